"""The A2A protocol without IO: functions from bytes and values to bytes and values.

- `model`, `card`: the only data model, shaped as A2A 1.0, the agent card, the eleven operations, and the rules by which
  versions differ in meaning.
- `lifecycle`: the allowed state transitions of a task, and how an event changes a task.
- `dialect`: the interface of a protocol version, and the choice of one for a request. `v1` and `v03` implement it.
- `decoding`: from JSON to values, with errors that name the wrong field, and inverted tables.
- `jsonrpc`, `sse`: framing with JSON-RPC 2.0 envelopes and server-sent events.
"""
