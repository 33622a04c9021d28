"""Tasks in one SQLite file: they survive the process; one process at a time.

**One process per file** (`database`). Opening takes a lock on the database file itself, whatever path leads to it.
It is the kernel's and ends with the process, however that ends; there is nothing that could be removed to undo it. It
is not of SQLite's kind, so readers are not kept out. After every commit the writer looks whether the path still names
that file: once it does not, nothing more is acknowledged, as nobody would find it again.

**One thread writes, and commits in groups** (`writer`). Every write is a call that is put in a queue. A thread takes
all that wait, makes them in one transaction, and answers each when that is committed (*group commit*). The commit is
the expensive part, so the busier the store, the cheaper a write. A write that is refused (its version is stale, the
store is full) changes nothing and fails alone; if the transaction fails, each of its writes is tried again in one of
its own. The thread also removes expired tasks: two beside each write, more while nothing is written.

**Readers never wait for the writer** (`store`, `reads`). The database is in WAL mode: what is written goes to a log
beside it (`…-wal`), which SQLite copies into the file from time to time, and a reader sees the last commit before it
began. One row by its key is read at once, in the event loop. Whatever takes longer (a listing, events, a task to be
rebuilt) is read in one of a few threads, each with a connection of its own.

**What is wrong is remembered** (`database`): a full disk, a damaged file, one that is gone. It is logged once a
minute, and shown by health until it is over.

**What a table holds** (`schema`; written by `writer`):

- `task`: a small row for each task, with all that is searched, sorted or compared: owner, context, state, time of the
  status, version, epoch. Every event updates it, so it holds nothing that grows.
- `event`: the record of each event, under one integer made of the task's number and the event's.
- `document`: the task as JSON, written when it comes to rest, if it is not too large. A task without one, or with one
  that is older than its last event, is rebuilt from its events.
- `private`: the agent's memo and what is being run, where there is any.
- `tally`: how many tasks an owner has in each state, so that a listing need not count them.
- `push_config`, `push_outbox`: the webhooks of a task, and the events that they have yet to be sent.

**Recovery** (`Tables.claim_orphans`). The file is ours alone, so whoever left a task in the state of a run is gone:
that task is an *orphan*. After opening, the engine asks for them once. An index on the tasks that have not ended finds
them, and each has its `epoch` raised, so that a writer which was only thought dead is refused from then on.
"""
