"""Tasks in one SQLite file."""
