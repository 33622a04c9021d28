"""The engine that runs tasks, and the HTTP bindings over it."""
