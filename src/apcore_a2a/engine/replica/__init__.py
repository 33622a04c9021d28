"""Replicas that share a store: whose turn it is to run a task, who follows it, and what one asks of another."""
