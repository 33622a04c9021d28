"""The measured apcore module: it adds two numbers. Runs in our environment and in that of apcore-a2a 0.8.5.

The numbers are floats because 0.8.5, based on a2a-sdk's protobuf types, converts every integer of a request to a float.
"""

from typing import Any

import apcore
from pydantic import BaseModel

INPUTS = {"a": 1.5, "b": 2.5}


class Pair(BaseModel):
    a: float
    b: float


class Total(BaseModel):
    sum: float


class Add:
    description = "Add two numbers"
    input_schema = Pair
    output_schema = Total

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        return {"sum": inputs["a"] + inputs["b"]}


def registry(modules: int = 1) -> apcore.Registry:
    made = apcore.Registry(extensions_dir="nowhere")
    for number in range(modules):
        made.register("math.add" if number == 0 else f"math.add{number}", Add())
    return made
