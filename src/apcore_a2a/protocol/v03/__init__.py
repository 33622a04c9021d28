"""A2A 0.3 as a dialect. It has two forms, with the same methods, rules and errors but not the same JSON.

- `jsonrpc`: the dialect in its JSON-RPC form, and what both forms share.
- `rest`: the dialect in its REST form, whose JSON is that of protocol buffers (ProtoJSON).

The JSON-RPC form is made of

- `values`: parts, messages, tasks and events, from 0.3's JSON to the model, and from the model's own JSON, which is
  1.0, to that of 0.3;
- `requests`: requests and push configs, from 0.3's JSON to the model;
- `card`: the card, both ways, and the hybrid that clients of both versions read.

The REST form adds one step before reading and after writing: it rewrites one JSON of 0.3 into the other.

Rule: input is read with tolerance, output is official 0.3.0. Why: docs/decisions/0010.
"""
