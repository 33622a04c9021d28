"""The tests: each module mirrors one of src, `interaction/` speaks through the client, the rest are gates."""
