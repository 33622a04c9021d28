"""The JSON Schema of a pydantic model, remembered.

apcore asks for it several times with every call, and building it is most of what a call costs. The answer is the same
each time. Rule: no check is skipped, and no answer is shared: each is decoded anew.
"""

from typing import Any

import msgspec
from pydantic import BaseModel

from apcore_a2a.adapters.schema import Schema


class SchemaMemo:
    """Stands before a model's `model_json_schema`; questions with options and those of subclasses go on to it."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model
        self._answer = msgspec.json.encode(self._ask(model)(), enc_hook=repr)

    def _ask(self, owner: type[BaseModel]) -> Any:
        following: Any = super(self._model, owner)  # as if this memo were not there
        return following.model_json_schema

    def __get__(self, instance: object, owner: type[BaseModel]) -> Any:
        return self if owner is self._model else self._ask(owner)

    def __call__(self, *args: Any, **options: Any) -> Schema:
        if args or options:
            asked: Schema = self._ask(self._model)(*args, **options)
            return asked
        answer: Schema = msgspec.json.decode(self._answer)
        return answer


def remember_schemas(module: Any) -> None:
    """Give the schemas of a module a memory, unless a model makes its schema in a way of its own."""
    for model in (getattr(module, "input_schema", None), getattr(module, "output_schema", None)):
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            continue
        if getattr(model.model_json_schema, "__func__", None) is BaseModel.model_json_schema.__func__:  # type: ignore[attr-defined]
            memo = SchemaMemo(model)
            if memo() == model.model_json_schema():  # else it holds what JSON has not
                model.model_json_schema = memo  # type: ignore[method-assign]  # the point of this file
