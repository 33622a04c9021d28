"""Composition: whatever a user has becomes an application. The only package that may import everything."""
