"""The store in one SQLite file. Tasks survive the process. Only one process can use the file at a time.

**One process per file** (`database`). Opening locks the database file itself, whatever path leads to it. The lock
belongs to the kernel and ends with the process, however the process ends. There is no lock file whose removal would
undo it. It is not one of SQLite's locks, so other programs can read the database. After every commit, the writer checks
that the path still names the same file. If it does not, no further write is acknowledged, because no later process
would find it.

**One thread writes and commits in groups** (`writer`). Every write is a call in a queue. A thread takes all waiting
calls, executes them in one transaction, and completes their futures when it is committed (*group commit*). The commit
is the expensive part, so the cost per write falls with the load. A rejected write (its version is stale, or the store
is full) changes nothing and fails alone. If the transaction fails, each of its writes is retried in its own
transaction. The thread also removes expired tasks: two with each write, and more while nothing is written.

**Readers never wait for the writer** (`store`, `reads`). The database is in WAL mode: writes go to a log beside it
(`…-wal`), which SQLite copies into the file from time to time, and a reader sees the last commit before its transaction
began. The lookup of one row by its key runs in the event loop. Slower reads (a listing, events, rebuilding a task) run
in one of a few threads, each with its own connection.

**The store remembers its condition** (`database`): a full disk, a damaged file, a missing file. Such trouble is
logged once a minute, and the health check reports it until it ends.

**Tables** (`schema`, written by `writer`):

- `task`: a small row for each task, with all columns that are searched, sorted or compared: owner, context, state, time
  of the status, version, epoch. Every event updates the row, so it contains nothing that grows.
- `event`: the record of each event, under one integer that combines the numbers of the task and of the event.
- `document`: the task as JSON, written when it comes to rest, if it is not too large. A task without a document, or
  with a document older than its last event, is rebuilt from its events.
- `private`: the agent's memo and the description of the run, if there are any.
- `tally`: the number of an owner's tasks in each state, so that a listing need not count them.
- `webhook`: the webhooks of a task, each with its cursor in the events.

**Recovery** (`Tables.claim_orphans`). Only this process uses the file, so the process that left a task in a running
state is dead: the task is an *orphan*. After opening, the engine asks for the orphans once. An index on unfinished
tasks finds them. The `epoch` of each is raised, so that later writes of the earlier process are rejected, even
if it is still alive.
"""
