"""A module that requires approval: the task waits in INPUT_REQUIRED."""

from typing import Any, ClassVar

from pydantic import BaseModel, Field


class Input(BaseModel):
    to: str = Field(min_length=1, description="Recipient of the money")
    amount: int = Field(gt=0, description="Amount in cents")


class Output(BaseModel):
    receipt: str


class Transfer:
    description = "Send (pretended) money; asks for approval first"
    input_schema = Input
    output_schema = Output
    tags: ClassVar = ["payments", "approval"]
    annotations: ClassVar = {"destructive": True, "requires_approval": True}
    examples: ClassVar = [{"title": "Lunch", "inputs": {"to": "Ada", "amount": 1250}}]

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        return {"receipt": f"{inputs['amount'] / 100:.2f} sent to {inputs['to']}"}
