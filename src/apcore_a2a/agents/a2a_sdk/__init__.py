"""Serves executors written for a2a-sdk, and converts its types to the model and back. Needs the extra `sdk`."""
