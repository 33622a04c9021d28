"""Structured input with choices: clients build a form from the schema."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

METRES = {"m": 1.0, "km": 1000.0, "mi": 1609.344, "ft": 0.3048}
Unit = Literal["m", "km", "mi", "ft"]


class Input(BaseModel):
    value: float = Field(description="How much")
    source: Unit = Field(description="The unit of the value")
    target: Unit = Field(description="The unit of the result")


class Output(BaseModel):
    value: float
    unit: Unit


class Convert:
    description = "Convert a length from one unit to another"
    input_schema = Input
    output_schema = Output
    tags: ClassVar = ["units"]
    annotations: ClassVar = {"readonly": True, "idempotent": True}
    examples: ClassVar = [{"title": "A marathon in miles", "inputs": {"value": 42.195, "source": "km", "target": "mi"}}]

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        metres = inputs["value"] * METRES[inputs["source"]]
        return {"value": round(metres / METRES[inputs["target"]], 6), "unit": inputs["target"]}
