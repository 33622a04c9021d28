"""ADK's own server, `to_a2a`, with the same agent. It runs in the environment of tests/peers."""

import socket
import sys

import uvicorn
from google.adk.a2a.utils.agent_to_a2a import to_a2a

from tests.frameworks.agents.google_adk_agent import agent

if __name__ == "__main__":
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    app = to_a2a(agent, host="127.0.0.1", port=port)
    print(f"http://127.0.0.1:{port}", file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run([sock])
