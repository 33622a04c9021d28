"""`validate`: an agent held against the specification."""
