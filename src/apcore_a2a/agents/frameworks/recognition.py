"""The table of supported frameworks, by which their agents and factories of agents are recognized.

Invariant: an agent is recognized by the module and the name of its classes. A framework is imported only if an agent of
it is served, so it is installed and imported already.
"""

import inspect
import re
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from msgspec import Struct

from apcore_a2a.agents.frameworks.framework_agent import Adapter, FrameworkAgent, FrameworkOptions


def _load_pydantic_ai() -> Callable[[Any], Adapter]:
    from apcore_a2a.agents.frameworks.pydantic_ai import PydanticAdapter

    return PydanticAdapter


def _load_langgraph() -> Callable[[Any], Adapter]:
    from apcore_a2a.agents.frameworks.langgraph import GraphAdapter

    return GraphAdapter


def _load_openai_agents() -> Callable[[Any], Adapter]:
    from apcore_a2a.agents.frameworks.openai_agents import OpenAIAdapter

    return OpenAIAdapter


def _load_google_adk() -> Callable[[Any], Adapter]:
    from apcore_a2a.agents.frameworks.google_adk import GoogleAdapter

    return GoogleAdapter


def _load_agent_framework() -> Callable[[Any], Adapter]:
    from apcore_a2a.agents.frameworks.agent_framework import MicrosoftAdapter

    return MicrosoftAdapter


def _load_strands() -> Callable[[Any], Adapter]:
    from apcore_a2a.agents.frameworks.strands import StrandsAdapter

    return StrandsAdapter


class Framework(Struct, frozen=True, kw_only=True):
    """A row of the table."""

    title: str
    module: str
    """The module or the package that defines the class."""
    class_name: str
    """The class, from which the agents may be derived."""
    distribution: str
    floor: tuple[int, ...]
    """The oldest version that the tests run with."""
    load: Callable[[], Callable[[Any], Adapter]]
    """Imports the adapter."""

    def has(self, kind: type) -> bool:
        """Return whether a class is the one of this row."""
        is_inside = f"{kind.__module__}.".startswith(f"{self.module}.")
        return is_inside and kind.__name__ == self.class_name

    def defines(self, kind: type) -> bool:
        """Return whether a class is one of the framework, and not derived from it by the application."""
        return kind.__module__.partition(".")[0] == self.module.partition(".")[0]


# An agent is a node in versions from 2 on. A Workflow is a node, too.
GOOGLE_CLASSES: Final = ("BaseAgent", "BaseNode", "App", "Runner")

GRAPHS: Final = (("langgraph.pregel", "Pregel"), ("langgraph.graph", "StateGraph"))

FRAMEWORKS: Final = (
    Framework(
        title="pydantic-ai",
        module="pydantic_ai",
        class_name="AbstractAgent",
        distribution="pydantic-ai-slim",
        floor=(1, 107),
        load=_load_pydantic_ai,
    ),
    Framework(
        title="OpenAI Agents",
        module="agents.agent",  # not `agents`, which may be a package of the application
        class_name="Agent",
        distribution="openai-agents",
        floor=(0, 8),
        load=_load_openai_agents,
    ),
    *(
        Framework(
            title="LangGraph",
            module=module,
            class_name=class_name,
            distribution="langgraph",
            floor=(1, 0),
            load=_load_langgraph,
        )
        for module, class_name in GRAPHS
    ),
    Framework(
        title="strands",
        module="strands",
        class_name="Agent",
        distribution="strands-agents",
        floor=(1, 36),
        load=_load_strands,
    ),
    *(
        Framework(
            title="Google ADK",
            module="google.adk",
            class_name=class_name,
            distribution="google-adk",
            floor=(2, 0),
            load=_load_google_adk,
        )
        for class_name in GOOGLE_CLASSES
    ),
    Framework(
        title="Microsoft agent-framework",
        module="agent_framework",
        class_name="BaseAgent",
        distribution="agent-framework-core",
        floor=(1, 20),
        load=_load_agent_framework,
    ),
)


def framework_of(thing: object) -> Framework | None:
    """Return the framework that an object is an agent of, or None.

    Example:
        >>> framework_of("a text") is None
        True
    """
    return _framework_of_class(type(thing))


def _framework_of_class(kind: type) -> Framework | None:
    for base in kind.__mro__:
        for framework in FRAMEWORKS:
            if framework.has(base):
                return framework
    return None


def is_factory(thing: Any) -> bool:
    """Return whether an object makes agents of a framework: a function without required parameters.

    A lambda is called, to see what it returns. A function must declare it by its return annotation, because a call
    might have effects.
    """
    target = thing
    if isinstance(thing, partial):
        target = thing.func
        if isinstance(target, type):
            return _framework_of_class(target) is not None
    if not inspect.isroutine(target) or not _needs_no_arguments(thing):
        return False
    if getattr(target, "__name__", "") == "<lambda>":
        return framework_of(thing()) is not None
    returned = _return_type(target)
    return isinstance(returned, type) and _framework_of_class(returned) is not None


def _needs_no_arguments(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


def _return_type(function: Callable[..., Any]) -> Any:  # Any: an annotation
    """Return the class of the return annotation: `Agent` for `Agent[None, str]`. A coroutine function has none."""
    if inspect.iscoroutinefunction(function):
        return None
    try:
        hint = inspect.get_annotations(function, eval_str=True).get("return")
    except Exception:  # an annotation is code of the application, which may raise anything
        return None
    return getattr(hint, "__origin__", hint)


def serve_framework(thing: Any, options: FrameworkOptions, *, retry_safe: bool = False) -> FrameworkAgent:
    """Return the agent that serves an agent of a framework, or a factory of such agents.

    Raises:
        ImportError: the version of the framework is not supported.
        TypeError: the factory does not return an agent of a framework.
    """
    first = thing
    if framework_of(thing) is None:
        first = thing()
    framework = framework_of(first)
    if framework is None:
        raise TypeError(f"the factory returns a {type(first).__name__}, which is not an agent of a supported framework")
    _check_version(framework)
    adapt = framework.load()
    make = None
    if first is not thing:

        def make() -> Adapter:
            return adapt(thing())

    return FrameworkAgent(framework.title, adapt(first), options=options, make=make, retry_safe=retry_safe)


def _check_version(framework: Framework) -> None:
    try:
        installed = version(framework.distribution)
    except PackageNotFoundError:  # installed in another way, for example from its sources
        return
    if read_version(installed) < framework.floor:
        floor = ".".join(map(str, framework.floor))
        text = f"{framework.distribution} {installed} is not supported: install {floor} or newer"
        raise ImportError(text)


def read_version(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version.

    Example:
        >>> read_version("1.2.0rc1")
        (1, 2, 0)
    """
    numbers = re.match(r"[\d.]*\d", text)
    if numbers is None:
        return ()
    return tuple(int(number) for number in numbers[0].split("."))
