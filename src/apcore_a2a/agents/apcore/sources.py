"""From what users hold (a Registry, an Executor, an APCore client) to `Modules`.

Rule: an Executor is taken as it is, with its limits, its middleware and its speed; a Registry gets one of ours.
"""

import logging
from typing import Any, Final

import apcore

from apcore_a2a.agents.apcore.approvals import Asking, find_asking
from apcore_a2a.agents.apcore.bare_output import takes_objects_only
from apcore_a2a.agents.apcore.modules import Modules
from apcore_a2a.agents.apcore.registry_view import RegistryView
from apcore_a2a.agents.apcore.served_executor import ServedExecutor

logger = logging.getLogger(__name__)

WARNINGS: Final = {
    Asking.NOBODY: "executor has no approval handler: callers are asked for approval,"
    " but not about calls that modules make",
    Asking.UNKNOWN: "executor does not tell whether it has an approval handler:"
    " without one it runs what requires approval unasked",
}


def open_modules(source: Any) -> Modules:
    """The modules of an apcore Registry, Executor or APCore client.

    Raises:
        TypeError: `source` is none of these.
        ValueError: it has a module that this executor cannot run.
    """
    if isinstance(source, type):  # a class has the same names, and nothing behind them
        raise _unusable(source)
    executor = getattr(source, "executor", source)  # an APCore client holds one
    if hasattr(executor, "call_async") and hasattr(executor, "registry"):
        # Public on a client and on a ServedExecutor. A plain Executor keeps its configuration to itself.
        config = getattr(source, "config", None)
        modules = Modules(_without_view(executor.registry), executor, config=config)
        _refuse_outputs_that_fail(modules)
        _warn_of_calls_unasked(modules)
        return modules
    if hasattr(source, "get_definition") and hasattr(source, "list"):
        registry = _without_view(source)
        config = getattr(registry, "config", None)  # apcore's Registry has none; a look-alike may
        modules = Modules(registry, ServedExecutor(registry, config=config), config=config)
        _warn_of_calls_unasked(modules)
        return modules
    raise _unusable(source)


def _refuse_outputs_that_fail(modules: Modules) -> None:
    """Refuse a module that cannot end well on this executor, whatever it does."""
    for module in modules:
        kinds = module.output_schema.get("type", "object")
        if kinds == "object" or "object" in kinds or not takes_objects_only(modules.executor):
            continue
        raise ValueError(
            f"Module {module.id} returns {kinds} by its output_schema, but apcore {apcore.__version__} runs no module"
            " that does not return an object: have it return one, or serve the registry or a ServedExecutor instead"
        )


def _warn_of_calls_unasked(modules: Modules) -> None:
    """Say it where a module that requires approval may be run without anybody's."""
    guarded = [module.id for module in modules if module.requires_approval]
    if not guarded:
        return
    asking = find_asking(modules.executor)
    if asking is not Asking.HANDLER:
        logger.warning(WARNINGS[asking], extra={"modules": ", ".join(guarded)})


def _without_view(registry: Any) -> Any:
    """The registry itself. A view makes new objects with each `get`, and `Modules` knows a module by being the same."""
    if isinstance(registry, RegistryView):
        return registry.registry
    return registry


def _unusable(source: object) -> TypeError:
    return TypeError(f"An apcore Registry, Executor or APCore client is needed, not {type(source).__name__}")
