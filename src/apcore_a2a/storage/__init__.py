"""Where tasks are kept: one contract, several stores, unaware of each other.

- `contract`: the contract. `Store` is what the engine asks for, `TaskStore` the smaller one for classes of yours.
- `memory`: tasks in this process, the default; `owner_index` is how it finds what a listing shows.
- `sqlite`: tasks in a file, which survive the process.
- `custom`: any `TaskStore`, made to serve the engine.
- `sql`: what the two SQL stores have in common.
- `cursor`: what fits on a page of a listing and where it ended, for all of them.
"""
