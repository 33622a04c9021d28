"""From what users hold (a Registry, an Executor, an APCore client) to `Modules`.

Rule: nothing of the user's is changed. What we have otherwise, such as no time limits that nobody chose, is in a view.
"""

from collections.abc import Mapping
from typing import Any, Final

import apcore

from apcore_a2a.agents.apcore.asking import asking
from apcore_a2a.agents.apcore.registry import Modules
from apcore_a2a.agents.apcore.shortcuts import REDACTS, STEPS, fits, remember_schemas, spare_redaction

LIMITS: Final = {"_default_timeout": 30_000, "_global_timeout": 60_000}  # apcore's defaults, in ms
FOREVER: Final = 10**9  # ms


def open_modules(source: Any, *, cache_schemas: bool = True) -> Modules:
    """The modules of an apcore Registry, Executor or APCore client.

    Args:
        cache_schemas: Have pydantic models remember their JSON Schema, which apcore asks for with every call.

    Raises:
        TypeError: `source` is none of these.
    """
    registry, executor = _resolve(source)
    return Modules(registry, unhurried(executor), prepare=remember_schemas if cache_schemas else id, fits=fits)


def _resolve(source: Any) -> tuple[Any, Any]:
    executor = getattr(source, "executor", source)  # an APCore client holds one
    given = not isinstance(source, type)  # a class has the same names, and nothing behind them
    if given and hasattr(executor, "call_async") and hasattr(executor, "registry"):
        return executor.registry, executor
    if given and hasattr(source, "get_definition") and hasattr(source, "list"):
        config = getattr(source, "_config", None)
        discover = getattr(apcore.ACL, "discover", None)
        acl = None if config is None or discover is None else discover(config)
        return source, apcore.Executor(source, config=config, acl=acl, **asking())
    raise TypeError(f"An apcore Registry, Executor or APCore client is needed, not {type(source).__name__}")


def unhurried(executor: Any) -> Any:
    """The executor without the time limits nobody chose: how long a task may take is the engine's to say.

    It is a view that shares all state with the original, so an ACL or a middleware set there later counts here too.
    A limit that differs from apcore's default was chosen by somebody, and stays.
    """
    if not isinstance(executor, apcore.Executor):
        return executor
    changes = _without_limits(executor, FOREVER)  # until 0.16; there, 0 would be logged with every call
    strategy = getattr(executor, "_strategy", None)
    if strategy is not None:  # from 0.17 on; here, 0 also lets a canceled run cancel its module
        eased = {id(step): (step, _view(step, changed)) for step in strategy.steps if (changed := _ease(step))}

        def steps(view: Any) -> list[Any]:
            return [eased[id(step)][1] if id(step) in eased else step for step in vars(view)["steps"]]

        changes["_strategy"] = _view(strategy, {"steps": steps})
    return _view(executor, changes)


def _ease(step: Any) -> dict[str, Any]:
    """What is different in the view of a step: no limits nobody chose, no search for secrets where there are none."""
    changes: dict[str, Any] = _without_limits(step, 0)
    if type(step).__module__ == STEPS and step.name in REDACTS:
        execute = spare_redaction(step)
        changes["execute"] = lambda _: execute
    return changes


def _without_limits(thing: Any, instead: int) -> dict[str, Any]:
    return {name: instead for name, default in LIMITS.items() if vars(thing).get(name) == default}


def _view(thing: Any, changes: Mapping[str, Any]) -> Any:
    """The same object, but for some attributes; where a function is given, it is asked each time."""
    read = {name: property(new if callable(new) else _constant(new)) for name, new in changes.items()}
    kind = type(thing)
    view: Any = object.__new__(type(kind.__name__, (kind,), {"__module__": kind.__module__, **read}))
    view.__dict__ = thing.__dict__
    return view


def _constant(value: Any) -> Any:
    return lambda _: value
