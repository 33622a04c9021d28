"""Agents of other frameworks: one file for each framework, and what they share in `framework_agent`."""
