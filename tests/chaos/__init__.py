"""Processes that are killed in the middle of their work, and what the next one makes of it."""
