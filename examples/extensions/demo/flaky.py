"""A module that fails, to compare what callers see with what the log contains."""

from typing import Any, ClassVar

from pydantic import BaseModel, Field


class Input(BaseModel):
    fail: bool = Field(default=True, description="Whether to fail")


class Output(BaseModel):
    result: str


class Flaky:
    description = "Fail on request, to see how failures look"
    input_schema = Input
    output_schema = Output
    tags: ClassVar = ["demo"]

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        if inputs.get("fail", True):
            raise RuntimeError("the database password is hunter2")  # never shown to a client
        return {"result": "fine"}
