"""Composition: makes an application from a served object. The only package that may import all others."""
