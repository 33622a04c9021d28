"""The client, against a server that misbehaves on demand and against other people's servers."""
