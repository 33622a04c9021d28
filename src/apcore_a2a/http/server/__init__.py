"""The uvicorn side of serving: the server, its connections, TLS."""
