"""What makes calls of apcore's modules cheap. Without this file they would do the same, and take ten times as long.

Rule: no check is skipped and nothing is redacted less. What apcore would find out anew with every call is known here
beforehand: a schema that never changes, a schema that marks no secret, a name that is no secret's, inputs that fit.
Where it is not known, apcore finds out.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from typing import Any, Final

import apcore
import msgspec
from pydantic import BaseModel

from apcore_a2a.agents.apcore.registry import ModuleInfo
from apcore_a2a.agents.apcore.schema import Schema

# Where the steps of apcore's pipeline are defined whose work we have read; of another version we know none.
STEPS: Final = "apcore.builtin_steps" if apcore.__version__.startswith("0.32.") else ""
REDACTS: Final = {  # of which attribute of the call, by which attribute of the module, into which one of the context
    "module_lookup": ("inputs", "input_schema", "redacted_inputs"),
    "input_validation": ("inputs", "input_schema", "redacted_inputs"),
    "output_validation": ("output", "output_schema", "redacted_output"),
}
MAX_NAMES: Final = 500  # characters that the names of one object may have to be remembered, 512 objects at most


class _Seen:
    """Something as a step of apcore's is to see it: itself, but for some attributes."""

    def __init__(self, whole: Any, **instead: Any) -> None:
        vars(self).update(instead, whole=whole)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)


class SchemaMemo:
    """Stands before a model's `model_json_schema`; questions with options and those of subclasses go on to it."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model
        self._answer = msgspec.json.encode(self._ask(model)(), enc_hook=repr)
        self.silent = None if b'"x-sensitive"' in self._answer else _Seen(model, model_json_schema=None)

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


def fits(executor: Any, module: ModuleInfo, inputs: Any) -> bool:
    """Whether a call is sure to pass apcore's checks, the ACL's aside; if not, ask apcore, which alone refuses.

    These are its questions to the same switches and the same model, in 15 µs instead of 160: most of its dry run is
    making copies of the inputs for logs. With the call itself everything is checked.
    """
    if not isinstance(executor, apcore.Executor) or not isinstance(inputs, dict) or module.previews:
        return False
    for step in executor._strategy.steps:
        if type(step).__module__ != STEPS or getattr(step, "_acl", executor._acl) is not executor._acl:
            return False
        if (switches := getattr(step, "_toggle_state", None)) is not None and switches.is_disabled(module.id):
            return False
    if executor._strategy.step_middlewares:
        return False
    try:
        if (model := getattr(module.source, "input_schema", None)) is not None:
            model.model_validate_json(json.dumps(inputs), strict=True)
    except Exception:  # the model's verdict, or a mistake in one of its validators: apcore says which
        return False
    return True


def spare_redaction(step: Any) -> Callable[[Any], Any]:
    """The work of a step that also makes a copy to be logged, with what is secret redacted.

    To look for secrets where there are none takes apcore 45 µs, three times with each call; to know that there are none
    takes 3. The copy is then made here, and the step runs as it does with a model that cannot say what to redact.
    """
    data, schema, copy = REDACTS[step.name]
    registry: Any = getattr(step, "_registry", None)

    def see(module: Any) -> Any:
        model = getattr(module, schema, None)
        memo = vars(model).get("model_json_schema") if isinstance(model, type) else None
        return _Seen(module, **{schema: memo.silent}) if isinstance(memo, SchemaMemo) and memo.silent else module

    seeing = _Seen(step, _registry=_Seen(registry, get=lambda *args, **hint: see(registry.get(*args, **hint))))

    async def execute(ctx: Any) -> Any:
        given, rules = getattr(ctx, data), step._redaction
        if not isinstance(given, dict) or _may_redact(given, rules):
            return await step.execute(ctx)
        ctx.module = see(ctx.module)
        try:
            result = await type(step).execute(seeing, ctx)
        finally:
            if spared := isinstance(ctx.module, _Seen):
                ctx.module = ctx.module.whole
        if spared:
            setattr(ctx.context, copy, deepcopy(given))
        return result

    return execute


def _may_redact(data: dict[str, Any], rules: Any) -> bool:
    return rules is None or bool(rules.compiled_regex_patterns) or _has_secrets(data, tuple(rules.sensitive_keys))


def _has_secrets(data: dict[str, Any] | list[Any], patterns: tuple[str, ...]) -> bool:
    """Whether a name in the data, at any depth, fits one of the patterns, or might."""
    if isinstance(data, dict):
        if sum(map(len, data)) > MAX_NAMES or _are_secret(tuple(data), patterns):
            return True
        data = list(data.values())
    return any(_has_secrets(value, patterns) for value in data if isinstance(value, (dict, list)))


@lru_cache(maxsize=512)
def _are_secret(names: tuple[str, ...], patterns: tuple[str, ...]) -> bool:
    asked = dict.fromkeys(names, 0)
    return bool(apcore.redact_sensitive(asked, {}, sensitive_keys=list(patterns)) != asked)
