"""Registers the skills of remote A2A agents as modules of a local apcore registry."""
