"""A2A servers of other implementations, each in its own process and environment.

Every peer runs the same agent. The first word of a message selects the action: `echo <text>`, `count <n>` (an artifact
in n chunks), `message` (no task), `ask` (waits for input), `fail`, `hang` (until it is canceled).
A peer binds a free port, and prints it as its first line.
"""
