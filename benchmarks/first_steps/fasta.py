# mypy: ignore-errors
"""An agent of pydantic-ai, with a function in place of a model, shown by fasta2a."""

import sys

import uvicorn
from fasta2a.pydantic_ai import agent_to_a2a
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

PORT = int(sys.argv[1])


def shout(messages, info):
    return ModelResponse(parts=[TextPart(messages[-1].parts[-1].content.upper())])


app = agent_to_a2a(Agent(FunctionModel(shout)), name="shout", url=f"http://127.0.0.1:{PORT}")
uvicorn.run(app, host="127.0.0.1", port=PORT)
