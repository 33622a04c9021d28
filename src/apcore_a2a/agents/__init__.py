"""Whatever can be served, as an Agent: functions, executors, apcore modules, executors of the official SDK."""
