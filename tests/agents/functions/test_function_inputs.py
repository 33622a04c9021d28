"""The parameters of functions, rejected functions, and retry safety."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from apcore_a2a import skill
from apcore_a2a.agent import Agent, Call
from apcore_a2a.agents.as_agent import as_agent
from apcore_a2a.errors import ContentTypeNotSupportedError
from apcore_a2a.protocol.model import Message, Part, Role
from tests.conversations import contents, talk_to

if TYPE_CHECKING:
    from decimal import Decimal


async def by_name(call):  # type: ignore[no-untyped-def]  # the point: no annotations
    return call.message.parts[0].text


async def by_place(message, whatever):  # type: ignore[no-untyped-def]  # the point: no annotations
    return f"{message.parts[0].text}{whatever.message.parts[0].text}"


async def by_annotation(later: Call, first: str) -> str:
    return f"{first}{later.caller.id}"


async def with_default(text: str, temperature: float = 0.7) -> str:
    return f"{text} {temperature}"


async def unresolvable(message: "Message", number: "Decimal | None" = None) -> "str":
    return str(message.parts[0].text)


def wrapped(text: str) -> Any:
    return with_default(text)


class Greeter:
    def __init__(self, greeting: str) -> None:
        self.greeting = greeting

    async def __call__(self, text: str) -> str:
        return f"{self.greeting}, {text}"

    async def method(self, text: str) -> str:
        return f"{self.greeting} {text}"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (by_name, "hi"),
        (by_place, "hihi"),
        (by_annotation, "hianonymous"),
        (with_default, "hi 0.7"),
        (unresolvable, "hi"),
        (wrapped, "hi 0.7"),
        (lambda message: message.parts[0].text, "hi"),
        (partial(with_default, temperature=1), "hi 1"),
        (Greeter("Hello"), "Hello, hi"),
        (Greeter("Hello").method, "Hello hi"),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__) if callable(value) else "",
)
async def test_a_function_is_called_with_the_arguments_of_its_signature(
    function: Callable[..., Any], expected: str
) -> None:
    async with talk_to(function) as user:
        assert contents(await user.task("hi")) == [[expected]]


async def test_a_text_parameter_gets_all_text_of_the_message() -> None:
    async def echo(text: str) -> str:
        return text

    message = Message(message_id="m", role=Role.USER, parts=(Part(text="a"), Part(data=1), Part(text="b")))
    async with talk_to(echo) as user:
        assert contents(await user.task(message)) == [["a\nb"]]


async def test_a_function_that_takes_only_text_is_not_called_without_text() -> None:
    called: list[str] = []

    async def delete(name: str) -> None:
        called.append(name)

    async with talk_to(delete) as user:
        for part in (Part(data={"name": "a"}), Part(raw=b"a", filename="a")):
            with pytest.raises(ContentTypeNotSupportedError, match="Skill delete takes text, and the message has none"):
                await user.task(part)
        await user.task("")
    assert called == [""]


async def test_a_function_that_also_takes_the_call_is_called_without_text() -> None:
    async def look(text: str, call: Call) -> str:
        return f"{text!r} {call.message.files[0].filename}"

    async with talk_to(look) as user:
        assert contents(await user.task(Part(raw=b"a", filename="a.png"))) == [["'' a.png"]]


async def test_the_answer_to_an_approval_needs_no_text() -> None:
    @skill(annotations={"requires_approval": True})
    async def delete(name: str) -> str:
        return f"deleted {name}"

    async with talk_to(delete) as user:
        task = await user.task("a")
        assert contents(await user.task(Part(data={"approved": True}), task=task)) == [["deleted a"]]


async def too_many(message, call, more):  # type: ignore[no-untyped-def]  # the point: no annotations
    ...


async def half_typed(message, number: int) -> None:  # type: ignore[no-untyped-def]  # the point: one without a type
    ...


async def hidden_type(amount: "Decimal") -> None: ...


async def wrong_type(number: complex) -> None: ...


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (
            too_many,
            "too_many cannot be served: without types it may take (message), (message, call) or (call), and no more",
        ),
        (
            half_typed,
            "half_typed cannot be served: number has a type and another parameter has none;"
            " give all of them types, or take (message), (message, call) or (call)",
        ),
        (
            hidden_type,
            "hidden_type cannot be served: Decimal, the type of amount, is not known at run time:"
            " import or define it in the module, and not under TYPE_CHECKING or in a function",
        ),
        (
            wrong_type,
            "wrong_type cannot be served: JSON has no form for number: type <class 'complex'> is not supported",
        ),
        (type, "type is a class: serve an instance of it"),
        (min, "min cannot be served: its parameters are unknown"),
        (
            3,
            "an object of type int cannot be served: expected an apcore Registry or Executor, an Agent,"
            " an AgentExecutor (with execute and cancel), functions, or an agent of a supported framework",
        ),
    ],
)
def test_a_function_that_cannot_be_served_is_rejected_with_the_reason(function: Any, complaint: str) -> None:
    with pytest.raises(TypeError) as refusal:
        as_agent(function)
    assert str(refusal.value) == complaint


# ---- retry safety ----------------------------------------------------------------------------------------------------


async def safe(text: str) -> str:
    return text


async def is_retry_safe(agent: Agent, call: Call) -> bool:
    return (await agent.admit(call)).retry_safe


async def test_a_run_is_safe_to_repeat_only_if_declared_so() -> None:
    calls: list[Call] = []

    async def capture(call: Call) -> None:
        calls.append(call)

    async with talk_to(capture) as user:
        await user.task("?")
    marked = partial(safe)
    marked.retry_safe = True  # type: ignore[attr-defined]  # an attribute that as_agent reads
    assert not await is_retry_safe(as_agent(safe), calls[0])
    assert await is_retry_safe(as_agent(safe, retry_safe=True), calls[0])
    assert await is_retry_safe(as_agent(marked), calls[0])
    assert not await is_retry_safe(as_agent(marked, retry_safe=False), calls[0])


def test_an_agent_is_served_unchanged_and_decides_itself_about_retries() -> None:
    agent = as_agent(safe)
    assert as_agent(agent) is agent
    with pytest.raises(TypeError, match="returns it from admit"):
        as_agent(agent, retry_safe=True)


def test_an_agent_made_of_a_function_keeps_its_name_and_docstring() -> None:
    def greet(text: str) -> str:
        """Greets."""
        return text

    agent: Any = as_agent(greet)
    assert (agent.__name__, agent.__doc__) == ("greet", "Greets.")
