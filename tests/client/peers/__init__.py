"""Other people's A2A servers, each run in a process of its own, with the packages it needs.

Every peer runs the same agent, which does what the first word of a message says: `echo <text>`, `count <n>` (an
artifact in n chunks), `message` (no task), `ask` (waits for input), `fail`, `hang` (until it is cancelled).
A peer binds a port of its own choice and prints it as its first line.
"""
