"""A2A 0.3 as a dialect. It has two forms, with the same methods, rules and errors but different JSON.

- `jsonrpc`: the dialect in its JSON-RPC form, its requests and push configs, and the parts that both forms share.
- `rest`: the dialect in its REST form, whose JSON is that of protocol buffers (ProtoJSON).

The JSON-RPC form consists of

- `values`: parts, messages, tasks and events, from 0.3's JSON to the model, and from the model's own JSON, which is
  1.0, to that of 0.3
- `card`: the card in both directions, and the hybrid card for clients of both versions.

The REST form adds a step before decoding and after encoding: it converts one JSON of 0.3 into the other.

"The requirements" in comments here are those of this project (FR-…, tests/requirements.toml). They differ from the
specification in a few forms and names.

Invariant: input is decoded with tolerance, output is official 0.3.0 (docs/decisions/0010).
"""
