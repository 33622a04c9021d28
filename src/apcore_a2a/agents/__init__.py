"""Adapters to the Agent interface: functions, executors, apcore modules, and executors of the official SDK."""
