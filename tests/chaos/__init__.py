"""Processes that are killed during their work, and the recovery by the next process."""
