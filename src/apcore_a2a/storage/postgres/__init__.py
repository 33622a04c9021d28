"""Tasks in a PostgreSQL database: they survive the machine, and any number of processes share them.

A process that has the store open is a *replica*. All of them are equal; none talks to another but through the database.

**Each replica writes in groups** (`writer`, `statements`). Every write is put in a queue. All that wait are written by
one statement, on one connection that does nothing else: one round trip and one commit for however many. A write that
is refused (its version is stale, another has the task) changes nothing and fails alone. When the connection breaks in
the middle, nobody knows what became of the group: it is written again, and a write that is refused now is taken for
written if its last event stands where it was to stand. So nothing is lost and nothing is there twice.

**Who runs a task is in its row** (`runner`): the name of a replica while it is run there or messages wait for it, NULL
while it waits for its user or has ended, '' while it waits for any replica with room. A write is refused when another
replica's name stands there.

**A replica is alive while it says so** (`replicas`). It renews one row of its own, by the server's clock, so nobody's
clock matters and the cost does not grow with the tasks. Whoever misses its time is dead for good: it cannot renew the
row, it stops its runs, and goes on under a new name. Its tasks are claimed by the others, each with its `epoch` raised,
so that what a replica says that was only thought dead is refused.

**Who watches a task is in its row, too** (`watchers`): the names of replicas with readers of it. A write answers with
them, so whoever wrote can wake them after its commit, and wakes nobody in vain. NOTIFY within the transaction would
make every commit wait for a lock that the whole server shares. A wake-up may get lost; readers look once a second.

**What a table holds** (`schema`):

- `task`: one row for each task, with its document once it rests, if that is not too large.
- `event`: each event, under the task's number and its own.
- `replica`: one row for each replica. `command`: what one replica asks of another (`replicas`).
- `about`: the version of these tables, the oldest version that can go on beside it, and the key of page tokens.

Texts that come from clients (ids, owners) are stored as bytes: PostgreSQL's text does not take NUL, and JSON's does.
"""
