"""Serves apcore modules as skills, and turns messages into module calls. The only package that imports apcore."""
