"""`validate`: checks an agent against the specification."""
