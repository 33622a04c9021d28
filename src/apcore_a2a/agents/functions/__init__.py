"""Serves Python functions as skills of an agent."""
