"""Real apcore modules for tests of whole applications."""

import asyncio
from typing import Any

import apcore
from pydantic import BaseModel


class Pair(BaseModel):
    a: int
    b: int


class Total(BaseModel):
    sum: int


class Add:
    """Adds two numbers."""

    description = "Add two numbers"
    input_schema = Pair
    output_schema = Total

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        return {"sum": inputs["a"] + inputs["b"]}


class Pay(Add):
    """Adds, and requires an approval."""

    description = "Add two numbers, after asking"
    annotations = apcore.ModuleAnnotations(requires_approval=True)


class Hang(Add):
    """Never returns."""

    description = "Wait forever"

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {"sum": 0}


def registry(**modules: Any) -> apcore.Registry:
    """Return a registry of modules by id, with `__` for the dot. Without arguments it has the module `math.add`."""
    made = apcore.Registry(extensions_dir="nowhere")
    for name, module in (modules or {"math__add": Add()}).items():
        made.register(name.replace("__", "."), module)
    return made
