"""Tasks in a PostgreSQL database. They survive the loss of an agent's machine, and any number of processes share them.

A process that has the store open is a *replica*. All replicas are equal. They communicate only through the database.

**Each replica writes in groups** (`writer`, `statements`). Every write enters a queue. One statement writes all queued
writes, on a connection that is used for nothing else: one round trip and one commit for any number of them. A rejected
write (its version is stale, another replica runs the task) changes nothing and fails alone. If the connection breaks
in the middle, it is unknown whether the group was committed. It is written again, and a write that is rejected now
counts as written if its last event is stored at its position. So no event is lost, and none is stored twice.

**The runner of a task is in its row** (`runner`): the name of a replica while the task runs there or messages wait for
it, NULL while the task waits for its user or has ended, '' while it waits for any replica with capacity. A write is
rejected if the row names another replica.

**Each replica holds a lease** (`replicas`). It renews one row of its own, by the server's clock, so the clocks of the
replicas do not matter and the cost does not grow with the tasks. A replica that does not renew its row in time may be
declared dead, which is final: it cannot renew the row, it stops its runs, and it joins under a new name. The others
claim its tasks and raise the `epoch` of each, so that later writes of the replica that was declared dead are rejected.

**The followers of a task are in its row, too** (`watchers`): the names of the replicas whose clients read the task. A
write returns them, so the writer wakes exactly these replicas after its commit (`notifications`). NOTIFY within the
transaction would make every commit wait for a lock that the whole server shares. A wake-up may get lost, so followers
also poll once a second.

Each part is the standard pattern for its problem: a lease row with a fencing token (`until`, `epoch`), a queue whose
consumers SKIP LOCKED rows (`CLAIM_QUEUED`), a transactional outbox (`webhook`), and NOTIFY only as a hint to read.

**What a table holds** (`schema`):

- `task`: one row for each task, with its document once it rests, unless that is too large.
- `event`: each event, under the number of its task and its own.
- `webhook`: the webhooks of tasks and their cursors (`store`).
- `replica`: one row for each replica. `command`: requests from one replica to another (`replicas`).
- `about`: the version of these tables, the oldest version whose replicas can use them, and the key of page tokens.

Texts that come from clients (ids, owners) are stored as `bytea`, because PostgreSQL's `text` rejects NUL characters,
which JSON strings may contain.
"""
