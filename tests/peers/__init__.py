"""Orchestrators of other projects as clients of our server, and servers of other projects for our client.

Each peer has an environment of its own in `.venvs/peers/`, which `make test-peers` creates.
"""
