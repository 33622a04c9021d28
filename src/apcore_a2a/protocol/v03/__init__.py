"""A2A 0.3: its JSON-RPC form, its REST form (ProtoJSON), and what the two share."""
