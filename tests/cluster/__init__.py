"""Three replicas in processes of their own, on a real PostgreSQL: killed, stopped, restarted, cut off; then looked at.

`make test` runs short rounds, `make chaos-cluster` long ones.
"""
