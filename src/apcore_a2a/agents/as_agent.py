"""`as_agent`, which adapts anything that can be served to the Agent interface."""

from typing import Any

from apcore_a2a.agent import Agent
from apcore_a2a.agents.checker import Checker
from apcore_a2a.agents.executor_agent import ExecutorAgent
from apcore_a2a.agents.executors import AgentExecutor, RequestContextBuilder
from apcore_a2a.agents.frameworks.framework_agent import FrameworkOptions
from apcore_a2a.agents.frameworks.recognition import framework_of, is_factory, serve_framework
from apcore_a2a.agents.functions.agent import FunctionAgent, SkillAgent
from apcore_a2a.agents.functions.skill import collect, is_collection, mark_of
from apcore_a2a.agents.mcp.targets import is_mcp_server, serve_mcp
from apcore_a2a.agents.threads import Threads


def as_agent(
    thing: Any,
    *,
    retry_safe: bool | None = None,
    request_context_builder: Any = None,
    default_skill: str = "",
    frameworks: FrameworkOptions | None = None,
) -> Agent:
    """Adapt `thing` to an Agent.

    Args:
        thing: An Agent, an AgentExecutor (of this package or of a2a-sdk), a function, coroutine function or generator
            function, or a collection of functions: a list, a dict of functions by skill id, a module, or an object
            with public methods. Or an MCP server, an agent of a supported framework, or a function without parameters
            that returns a new one for each run.
        retry_safe: Whether a run may be repeated from the start after a crash. The default is `thing.retry_safe`, or
            False without that attribute. Not for an Agent, whose `admit` decides this for each message.
        request_context_builder: Builds the context that an executor receives: a `RequestContextBuilder`, or that of
            a2a-sdk for an executor of a2a-sdk. Only executors have such a context.
        default_skill: The id of the function that handles messages without a skill id.
        frameworks: How the agents of frameworks are served.

    Raises:
        TypeError: `thing` cannot be served. The text says why.
        ValueError: The collection has no function, two functions have the same id, or none is `default_skill`.
        ImportError: `thing` needs an extra that is not installed, or its framework is too old.

    Example:
        >>> async def echo(text: str) -> str:
        ...     return text
        >>> agent = as_agent(echo, retry_safe=True)
    """
    _check(thing, request_context_builder)
    if isinstance(thing, Agent):
        if retry_safe is not None:
            raise TypeError("retry_safe is not for an Agent, which returns it from admit() for each message")
        return thing
    if retry_safe is None:
        retry_safe = bool(getattr(thing, "retry_safe", False))
    if framework_of(thing) is not None or is_factory(thing):
        return serve_framework(thing, frameworks or FrameworkOptions(), retry_safe=retry_safe)
    if is_mcp_server(thing):
        return serve_mcp(thing, retry_safe=retry_safe, default_skill=default_skill)
    # Checked before our own AgentExecutor: both have the same methods, but those of a2a-sdk take other types.
    if _is_from_sdk(thing):
        return _from_sdk(thing, retry_safe, request_context_builder)
    if isinstance(thing, AgentExecutor):
        return ExecutorAgent(thing, retry_safe=retry_safe, builder=request_context_builder)
    if callable(thing) or is_collection(thing):
        agents = _from_functions(thing, retry_safe)
        if callable(thing) and not agents[0].skill.signature.inputs and mark_of(thing) is None:
            return agents[0]  # it accepts any message, so clients need not name a skill
        return SkillAgent(agents, default_skill=default_skill)
    expected = (
        "an apcore Registry or Executor, an Agent, an AgentExecutor (with execute and cancel), functions,"
        " or an agent of a supported framework"
    )
    raise TypeError(f"an object of type {type(thing).__name__} cannot be served: expected {expected}")


def _from_functions(thing: Any, retry_safe: bool) -> list[FunctionAgent]:
    if callable(thing):
        return [FunctionAgent(thing, retry_safe=retry_safe)]
    threads = Threads()  # shared by all the functions
    checker = Checker()
    agents: list[FunctionAgent] = []
    for skill_id, function in collect(thing).items():
        is_safe = retry_safe or bool(getattr(function, "retry_safe", False))
        agents.append(FunctionAgent(function, skill_id=skill_id, retry_safe=is_safe, threads=threads, checker=checker))
    return agents


def _check(thing: Any, builder: Any) -> None:
    """Raise TypeError for a class, and for a builder without the method `build`, or with no executor."""
    if isinstance(thing, type):
        raise TypeError(f"{thing.__name__} is a class: serve an instance of it")
    if builder is None:
        return
    if isinstance(thing, Agent) or not isinstance(thing, AgentExecutor):
        raise TypeError(f"request_context_builder is for executors, not for a {type(thing).__name__}")
    if not isinstance(builder, RequestContextBuilder):
        raise TypeError(f"request_context_builder {type(builder).__name__} lacks the method build")


def _is_from_sdk(thing: object) -> bool:
    """Whether this is an executor of a2a-sdk. Does not import a2a-sdk, which most servers do not have."""
    for base in type(thing).__mro__:
        if base.__name__ == "AgentExecutor" and base.__module__.startswith("a2a."):
            return True
    return False


def _from_sdk(executor: Any, retry_safe: bool, builder: Any) -> Agent:
    try:
        from apcore_a2a.agents.a2a_sdk.bridge import SDKAgent
    except ImportError as error:
        text = "serving an executor of a2a-sdk needs a2a-sdk: pip install 'apcore-a2a[sdk]'"
        raise ImportError(text) from error
    return SDKAgent(executor, retry_safe=retry_safe, builder=builder)
