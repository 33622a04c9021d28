"""A long-running module: it reports its progress, and stops when the task is canceled."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from pydantic import BaseModel, Field


class Input(BaseModel):
    steps: int = Field(default=10, ge=1, le=600, description="How many steps to take")
    seconds: float = Field(default=0.5, gt=0, le=60, description="How long each step takes")


class Output(BaseModel):
    step: int
    percent: int
    note: str


class Simulate:
    description = "Work for a while and say how far it is"
    input_schema = Input
    output_schema = Output
    tags: ClassVar = ["jobs", "streaming"]
    annotations: ClassVar = {"readonly": True, "idempotent": True, "streaming": True}
    examples: ClassVar = [{"title": "Five seconds", "inputs": {"steps": 10, "seconds": 0.5}}]

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        return [progress async for progress in self.stream(inputs, context)][-1]

    async def stream(self, inputs: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        steps = inputs.get("steps", 10)
        for step in range(1, steps + 1):
            if context.cancel_token is not None:
                context.cancel_token.check()
            await asyncio.sleep(inputs.get("seconds", 0.5))
            yield {"step": step, "percent": step * 100 // steps, "note": f"step {step} of {steps}"}
