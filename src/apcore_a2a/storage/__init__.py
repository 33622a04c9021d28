"""Task stores: one contract, and several implementations that do not know each other.

- `contract`: the contracts. The engine uses `Store`. `TaskStore` is the smaller one for classes of users.
- `memory`: tasks in this process, the default. `owner_index` finds the tasks for a listing.
- `sqlite`: tasks in a file, which outlives the process.
- `postgres`: tasks in a PostgreSQL database, shared by several processes.
- `sql`: the parts that both SQL stores share.
- `custom`: an adapter that serves the engine from any `TaskStore`. `dict_store` adapts stores of dictionaries.
- `webhook_table`: the webhooks of stores that do not store events.
- `cursor`: the size of a page of a listing, and the token of the next page, for all stores.
"""
