"""fasta2a, the own server of pydantic-ai, with the same model and tools. It runs in the environment of pydantic-ai."""

import socket
import sys

import uvicorn
from fasta2a.pydantic_ai import agent_to_a2a
from pydantic_ai import Agent, DeferredToolRequests, Tool
from pydantic_ai.models.function import FunctionModel

from tests.frameworks.agents import script
from tests.frameworks.agents.pydantic_ai_agent import Report, answer

agent = Agent(
    FunctionModel(stream_function=answer),
    name=script.NAME,
    output_type=[str, Report, DeferredToolRequests],  # without the last one, a call that requires approval fails
    tools=[Tool(script.pay, requires_approval=True), script.look, script.slow],
)

if __name__ == "__main__":
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    app = agent_to_a2a(agent, url=f"http://127.0.0.1:{port}")
    print(f"http://127.0.0.1:{port}", file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run([sock])
