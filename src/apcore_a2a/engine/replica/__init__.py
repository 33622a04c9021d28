"""Replicas that share a store: lease, takeover of tasks, followers of tasks elsewhere, requests between replicas."""
