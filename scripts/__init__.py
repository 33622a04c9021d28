"""The build's own tools, run by the Makefile."""
