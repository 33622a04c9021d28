"""Build tools, run by the Makefile."""
