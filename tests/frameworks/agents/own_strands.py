"""The own server of Strands, `A2AServer`, with the same agents. It runs in the environment of tests/peers."""

import socket
import sys

import uvicorn
from strands.multiagent.a2a import A2AServer

from tests.frameworks.agents.strands_agent import make

if __name__ == "__main__":
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    server = A2AServer(agent_factory=lambda context_id: make(), port=port, enable_a2a_compliant_streaming=True)
    print(f"http://127.0.0.1:{port}", file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(server.to_starlette_app(), log_level="error")).run([sock])
