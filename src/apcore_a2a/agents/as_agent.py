"""Whatever can be served, as an Agent."""

from typing import Any

from apcore_a2a.agent import Agent
from apcore_a2a.agents.executor_agent import ExecutorAgent
from apcore_a2a.agents.executors import AgentExecutor
from apcore_a2a.agents.functions import FunctionAgent


def as_agent(thing: Any, *, retry_safe: bool | None = None) -> Agent:
    """An Agent that does what `thing` does.

    Args:
        thing: an Agent; an AgentExecutor, ours or a2a-sdk's; or a function, coroutine function or generator function.
        retry_safe: whether a run may be repeated from the start after a crash; else `thing.retry_safe` says so, if it
            is there. An Agent says it itself, for each message.

    Raises:
        TypeError: it is none of these; the text says why.
        ImportError: it needs an extra that is not installed.

    Example:
        >>> async def echo(text: str) -> str:
        ...     return text
        >>> agent = as_agent(echo, retry_safe=True)
    """
    if isinstance(thing, type):
        raise TypeError(f"{thing.__name__} is a class: serve an instance of it")
    if isinstance(thing, Agent):
        if retry_safe is not None:
            raise TypeError("an Agent says in admit() whether a message is safe to retry")
        return thing
    if retry_safe is None:
        retry_safe = bool(getattr(thing, "retry_safe", False))
    # Before our own AgentExecutor, which has the same methods: theirs take other values.
    if _is_from_sdk(thing):
        return _from_sdk(thing, retry_safe)
    if isinstance(thing, AgentExecutor):
        return ExecutorAgent(thing, retry_safe=retry_safe)
    if callable(thing):
        return FunctionAgent(thing, retry_safe=retry_safe)
    expected = "an Agent, an AgentExecutor (with execute and cancel) or a function"
    raise TypeError(f"a {type(thing).__name__} cannot be served: expected {expected}")


def _is_from_sdk(thing: object) -> bool:
    """Whether it is an executor of a2a-sdk's, told without importing that: most servers do not have it."""
    for base in type(thing).__mro__:
        if base.__name__ == "AgentExecutor" and base.__module__.startswith("a2a."):
            return True
    return False


def _from_sdk(executor: Any, retry_safe: bool) -> Agent:
    try:
        from apcore_a2a.agents.a2a_sdk.bridge import SDKAgent
    except ImportError as error:
        text = "serving an executor of a2a-sdk needs a2a-sdk 1.x: pip install 'apcore-a2a[sdk]'"
        raise ImportError(text) from error
    return SDKAgent(executor, retry_safe=retry_safe)
