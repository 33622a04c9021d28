"""Three replicas in processes of their own on a real PostgreSQL: killed, stopped, restarted and cut off.

Afterwards the database and the answers to clients are checked. `make test` runs short rounds, `make chaos-cluster` long
ones.
"""
