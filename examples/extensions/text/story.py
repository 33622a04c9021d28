"""A module that streams: each chunk is sent to the client as soon as it exists."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from pydantic import BaseModel, Field

LINES = (
    "Once there was {hero}, who answered every question at once.",
    "One day a question came that needed thought.",
    "So {hero} said: I am working on it, and sent a line whenever there was one.",
    "No connection was closed. When the answer came, all clients were still there.",
)


class Input(BaseModel):
    hero: str = Field(default="an agent", description="Who the story is about")


class Output(BaseModel):
    story: str


class Story:
    description = "Tell a short story, line by line"
    input_schema = Input
    output_schema = Output
    tags: ClassVar = ["text", "streaming"]
    annotations: ClassVar = {"readonly": True, "idempotent": True, "streaming": True}
    examples: ClassVar = [{"title": "About a lighthouse", "inputs": {"hero": "the lighthouse"}}]

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        return {"story": _story(inputs, len(LINES))}

    async def stream(self, inputs: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        for count in range(1, len(LINES) + 1):
            await asyncio.sleep(0.4)
            yield {"story": _story(inputs, count)}


def _story(inputs: dict[str, Any], count: int) -> str:
    return "\n".join(LINES[:count]).format(hero=inputs.get("hero", "an agent"))
