"""Whatever can be served, as an Agent."""

from typing import Any

from apcore_a2a.agent import Agent
from apcore_a2a.agents.executors import AgentExecutor, ExecutorAgent, RequestContextBuilder
from apcore_a2a.agents.functions.agent import FunctionAgent, SkillAgent, make_threads
from apcore_a2a.agents.functions.skill import collect, is_collection, mark_of


def as_agent(
    thing: Any, *, retry_safe: bool | None = None, request_context_builder: Any = None, default_skill: str = ""
) -> Agent:
    """An Agent that does what `thing` does.

    Args:
        thing: an Agent; an AgentExecutor, ours or a2a-sdk's; a function, coroutine function or generator function; or
            several of them: a list, a dict by the ids of their skills, a module, an object with public methods.
        retry_safe: whether a run may be repeated from the start after a crash; else `thing.retry_safe` says so, if it
            is there. An Agent says it itself, for each message.
        request_context_builder: makes what an executor gets to see: a `RequestContextBuilder`, or a2a-sdk's for an
            executor of a2a-sdk's. Nothing else has such a context.
        default_skill: the id of the function that a message is for which names none.

    Raises:
        TypeError: it is none of these; the text says why.
        ValueError: there is no function in it, two have the same id, or none is `default_skill`.
        ImportError: it needs an extra that is not installed.

    Example:
        >>> async def echo(text: str) -> str:
        ...     return text
        >>> agent = as_agent(echo, retry_safe=True)
    """
    if isinstance(thing, type):
        raise TypeError(f"{thing.__name__} is a class: serve an instance of it")
    if request_context_builder is not None:
        _check_builder(thing, request_context_builder)
    if isinstance(thing, Agent):
        if retry_safe is not None:
            raise TypeError("an Agent says in admit() whether a message is safe to retry")
        return thing
    if retry_safe is None:
        retry_safe = bool(getattr(thing, "retry_safe", False))
    # Before our own AgentExecutor, which has the same methods: theirs take other values.
    if _is_from_sdk(thing):
        return _from_sdk(thing, retry_safe, request_context_builder)
    if isinstance(thing, AgentExecutor):
        return ExecutorAgent(thing, retry_safe=retry_safe, builder=request_context_builder)
    if callable(thing) or is_collection(thing):
        agents = _from_functions(thing, retry_safe)
        if callable(thing) and not agents[0].skill.signature.inputs and mark_of(thing) is None:
            return agents[0]  # it takes whatever is said to it, so nobody has to name a skill
        return SkillAgent(agents, default_skill=default_skill)
    expected = "an Agent, an AgentExecutor (with execute and cancel), a function or several"
    raise TypeError(f"a {type(thing).__name__} cannot be served: expected {expected}")


def _from_functions(thing: Any, retry_safe: bool) -> list[FunctionAgent]:
    if callable(thing):
        return [FunctionAgent(thing, retry_safe=retry_safe)]
    threads = make_threads()  # for all of them together
    agents: list[FunctionAgent] = []
    for skill_id, function in collect(thing).items():
        is_safe = retry_safe or bool(getattr(function, "retry_safe", False))
        agents.append(FunctionAgent(function, skill_id=skill_id, retry_safe=is_safe, threads=threads))
    return agents


def _check_builder(thing: Any, builder: Any) -> None:
    """Refuse a builder that has no `build`, and one for what has no context."""
    if isinstance(thing, Agent) or not isinstance(thing, AgentExecutor):
        raise TypeError(f"request_context_builder is for executors, and a {type(thing).__name__} is none")
    if not isinstance(builder, RequestContextBuilder):
        raise TypeError(f"request_context_builder {type(builder).__name__} lacks the method build")


def _is_from_sdk(thing: object) -> bool:
    """Whether it is an executor of a2a-sdk's, told without importing that: most servers do not have it."""
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
