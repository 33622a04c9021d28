"""The JSON Schema of a pydantic model, remembered.

apcore asks for it several times with every call, and building it is most of what a call costs. The answer is the same
each time. Rule: no check is skipped, and no answer is shared: each is decoded anew.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from pydantic import BaseModel

from apcore_a2a.adapters.schema import Schema

Ask = Callable[..., Schema]


class SchemaMemo:
    """Stands where a model's `model_json_schema` was. Questions with options, and those of subclasses, go on to it."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model, self._ask = model, model.model_json_schema
        self._answer = msgspec.json.encode(self._ask(), enc_hook=repr)

    def __get__(self, instance: object, owner: type[BaseModel]) -> Ask:
        if owner is self._model:
            return self
        inherited: Ask = _function(self._ask).__get__(owner)
        return inherited

    def __call__(self, *args: Any, **options: Any) -> Schema:
        if args or options:
            return self._ask(*args, **options)
        answer: Schema = msgspec.json.decode(self._answer)
        return answer


def remember_schemas(module: Any) -> None:
    """Give the schemas of a module a memory, unless a model makes its schema in a way of its own."""
    for model in (getattr(module, "input_schema", None), getattr(module, "output_schema", None)):
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            continue
        if _function(model.model_json_schema) is _function(BaseModel.model_json_schema):
            memo = SchemaMemo(model)
            if memo() == model.model_json_schema():  # else it holds what JSON has not
                model.model_json_schema = memo  # type: ignore[method-assign]  # the point of this file


def _function(method: Any) -> Any:
    return getattr(method, "__func__", None)
