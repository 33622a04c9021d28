"""The engine over HTTP: JSON-RPC, REST, discovery, health, metrics, and the uvicorn side of serving them."""
