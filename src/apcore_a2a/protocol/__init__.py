"""The A2A protocol without IO: bytes and values in, bytes and values out.

- `model`, `card`: the one data model, shaped as A2A 1.0, and the agent card.
- `lifecycle`: which state of a task may follow which, and how an event changes a task.
- `model`: the eleven operations, and the rules by which versions differ in meaning.
- `dialect`: what a protocol version provides, and which one a request speaks; `v1` and `v03` are those versions.
- `decoding`: from JSON to values, with errors that name the wrong field; constant tables read both ways.
- `jsonrpc`, `sse`: the framing, JSON-RPC 2.0 envelopes and server-sent events.
"""
