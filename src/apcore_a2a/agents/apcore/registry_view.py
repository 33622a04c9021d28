"""A registry whose modules remember their JSON Schemas, for an `apcore.Executor` that is to be fast.

With every call apcore asks the pydantic models of a module for their JSON Schema: three times for the call, twice more
for a dry run, each time to know what to redact. pydantic makes the schema anew whenever it is asked, in about 190 µs;
from memory the answer takes 1.2 µs. That is most of what a call costs:

    apcore.Executor(RegistryView(registry), acl=acl)

The view stands between the executor and the registry. It answers `get` with a view of the module, whose schemas are
views of its models, and the view of a model remembers what the model said. Everything else that is asked goes on to the
registry, the module or the model.

Rule: nothing of the user's is changed, and nothing is decided for apcore. Every check and every redaction is its own;
it only gets its answers faster.
"""

from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
from pydantic import BaseModel

from apcore_a2a.agents.apcore.bare_output import OutputSchema
from apcore_a2a.agents.schema import Schema

# What each model answered, as JSON: whoever asks may change the answer, so each gets one of their own. None stands for
# an answer that JSON cannot hold. The keys are weak, so a module that was reloaded does not leave its old models here.
Answers = WeakKeyDictionary[type[BaseModel], bytes | None]

_ENCODER: Final = msgspec.json.Encoder(enc_hook=repr)
_DECODER: Final = msgspec.json.Decoder()


class RegistryView:
    """A registry, but for `get`, which answers with views of the modules.

    Example:
        >>> import apcore
        >>> registry = apcore.Registry()
        >>> executor = apcore.Executor(RegistryView(registry))
        >>> executor.registry.registry is registry
        True
    """

    def __init__(self, registry: Any) -> None:  # Any: apcore is untyped
        self.registry = registry
        self._answers: Answers = WeakKeyDictionary()

    def get(self, module_id: str, *args: Any, **options: Any) -> Any:
        """The module as the executor is to see it, or None. Asked anew each time: a replaced module is seen at once."""
        module = self.registry.get(module_id, *args, **options)
        if module is None:
            return None
        # apcore asks `isinstance(module, StreamingModule)`, and from Python 3.12 on that looks past `__getattr__`: a
        # module that streams needs a view whose class has the method, any other module one whose class has not.
        if getattr(module, "stream", None) is None:
            return ModuleView(module, self._answers)
        return StreamingModuleView(module, self._answers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.registry, name)


class ModuleView:
    """A module, but for its schemas, which remember what they said."""

    def __init__(self, module: Any, answers: Answers) -> None:
        self._module = module
        self.input_schema = _remembering(getattr(module, "input_schema", None), answers)
        self.output_schema = _remembering(getattr(module, "output_schema", None), answers)
        if hasattr(self.output_schema, "model_validate"):
            self.output_schema = OutputSchema(self.output_schema)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class StreamingModuleView(ModuleView):
    """A module that streams."""

    @property
    def stream(self) -> Any:
        return self._module.stream


class SchemaView:
    """A pydantic model that is asked for its JSON Schema once."""

    def __init__(self, model: type[BaseModel], answers: Answers) -> None:
        self._model = model
        self._answers = answers

    def model_json_schema(self, *args: Any, **options: Any) -> Schema:
        """The model's JSON Schema, an object that is the caller's own."""
        if args or options:  # another question, such as `by_alias=False`; apcore does not ask it
            return self._model.model_json_schema(*args, **options)
        answer = self._answers.get(self._model)
        if answer is not None:
            remembered: Schema = _DECODER.decode(answer)
            return remembered
        schema = self._model.model_json_schema()
        if self._model not in self._answers:
            self._answers[self._model] = _to_json(schema)
        return schema

    def __call__(self, *args: Any, **fields: Any) -> Any:
        return self._model(*args, **fields)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _remembering(schema: Any, answers: Answers) -> Any:
    """A view of the schema, if it is a model whose answer is the same each time."""
    if not isinstance(schema, type) or not issubclass(schema, BaseModel):
        return schema
    # A model that overrides `model_json_schema` may answer differently tomorrow.
    if getattr(schema.model_json_schema, "__func__", None) is not _PYDANTICS_OWN:
        return schema
    return SchemaView(schema, answers)


_PYDANTICS_OWN: Final = BaseModel.model_json_schema.__func__  # type: ignore[attr-defined]  # of a bound method


def _to_json(schema: Schema) -> bytes | None:
    """The schema as JSON; None if it does not come back as it was, for `json_schema_extra` may put anything into it."""
    try:
        encoded = _ENCODER.encode(schema)
    except ValueError:  # half of a surrogate pair, say
        return None
    if _DECODER.decode(encoded) != schema:
        return None
    return encoded
