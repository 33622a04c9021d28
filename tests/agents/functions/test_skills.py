"""Functions as skills: marks, collections, the skill of a message, and the card."""

import inspect
import io
import types
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, BinaryIO, Literal

import pytest

from apcore_a2a import Call, as_agent, ask, async_serve, skill
from apcore_a2a.agents.content import agent_message
from apcore_a2a.agents.functions.agent import SkillAgent
from apcore_a2a.agents.functions.skill import collect
from apcore_a2a.agents.skills import EXTENSION
from apcore_a2a.errors import InvalidParamsError, SkillNotFoundError
from apcore_a2a.protocol.model import Message, Part, Role, StatusUpdate, Task, TaskState
from tests.agents import skills_module
from tests.conversations import Conversation, contents, talk_to


@skill(id="math.add", name="Sum", tags=["math"], examples=[{"a": 1, "b": 2}, "1 + 2"], annotations={"readonly": True})
async def add(a: int, b: int = 0) -> int:
    """Adds two numbers.

    And nothing else.

    Args:
        a: The first.
        b (int): The second,
            if there is one.

    Returns:
        Their sum.
    """
    return a + b


async def shout(text: str) -> str:
    """Says it louder."""
    return text.upper()


async def count(text: str, to: Literal[1, 2] = 1) -> AsyncIterator[str]:
    yield text


def said(text: str, skill_id: str | None = None, **fields: Any) -> Message:
    metadata = None if skill_id is None else {"skillId": skill_id}
    return Message(message_id="m", role=Role.USER, parts=(Part(text=text),), metadata=metadata, **fields)


# ---- collecting ------------------------------------------------------------------------------------------------------


class Calculator:
    """Calculates."""

    def __init__(self) -> None:
        self.offset = 100

    async def plus(self, a: int) -> int:
        return a + self.offset

    def minus(self, a: int) -> int:
        return a - self.offset

    @staticmethod
    def twice(a: int) -> int:
        return 2 * a

    @property
    def broken(self) -> int:
        raise AssertionError("a property is not touched")

    def _private(self) -> None: ...


class Marked(Calculator):
    @skill
    async def half(self, a: int) -> int:
        return a // 2


@pytest.mark.parametrize(
    ("target", "ids"),
    [
        (add, ["math.add"]),
        ([add, shout], ["math.add", "shout"]),
        ((shout, Calculator()), ["shout", "plus", "minus", "twice"]),
        ({"x.add": add, "y": shout}, ["x.add", "y"]),
        (skills_module, ["total", "product"]),
        (Calculator(), ["plus", "minus", "twice"]),
        (Marked(), ["half"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_function_becomes_a_skill(target: Any, ids: list[str]) -> None:
    assert list(collect(target)) == ids


def test_a_module_without_all_serves_the_functions_that_it_defines() -> None:
    module = types.ModuleType("made")
    exec("from inspect import getdoc\ndef a(x: int): ...\ndef _b(x: int): ...", vars(module))
    assert list(collect(module)) == ["a"]


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ([], "a list has no function to serve"),
        ({}, "a dict has no function to serve"),
        (types.ModuleType("empty"), "module empty has no function to serve"),
        ([shout, shout], "two skills have the id shout"),
        ([shout, 3], "a int is not a function: 3"),
        ([lambda text: text], "a lambda has no name"),
        ({"": shout}, "a skill's id is a text"),
        ({3: shout}, "a skill's id is a text"),
        ({"a\nb": shout}, "a skill's id is a text"),
        ({"x": 3}, "x is not a function but a int"),
        ({"x": Calculator}, "x is not a function but a type"),
        ("file.py", "an object of type str cannot be served"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_invalid_collection_is_rejected_with_the_reason(target: Any, complaint: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refusal:
        as_agent(target)
    assert str(refusal.value).startswith(complaint)


def test_a_mark_does_not_change_the_function() -> None:
    def plain(a: int) -> int:
        """Says."""
        return a

    before = (plain.__doc__, plain.__name__, inspect.signature(plain))
    marked = skill(id="x")(plain)
    assert marked is plain
    assert (plain.__doc__, plain.__name__, inspect.signature(plain)) == before
    assert plain(3) == 3


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"tags": "math"}, "@skill: tags must be a list of strings, not a string"),
        ({"tags": [1]}, "@skill: Expected `str`, got `int`"),
        ({"id": 3}, "@skill: Expected `str`, got `int`"),
        ({"id": "a\nb"}, "a skill's id is a text"),
        ({"nmae": "x"}, "@skill has no option nmae"),
        ({"annotations": {"readonyl": True}}, "@skill: there is no annotation readonyl; there are readonly, "),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_invalid_mark_is_rejected_by_the_decorator(options: Any, complaint: str) -> None:
    with pytest.raises(TypeError) as refusal:
        skill(**options)
    assert str(refusal.value).startswith(complaint)


def test_a_function_that_cannot_be_marked_is_rejected_with_the_remedy() -> None:
    with pytest.raises(TypeError, match="give it an id with serve"):
        skill(id="x")(len)
    with pytest.raises(TypeError, match="@skill marks functions"):
        skill("x")  # type: ignore[call-overload]  # the point: a wrong call


# ---- the skill of a message -----------------------------------------------------------------------------------------


async def answer(user: Conversation, message: Message) -> list[list[object]]:
    return contents(await user.task(message))


async def test_a_message_names_its_skill() -> None:
    async with talk_to([add, shout]) as user:
        assert await answer(user, said("hi", "shout")) == [["HI"]]
        assert await answer(user, said('{"a": 1}', "math.add")) == [[1]]


async def test_without_a_skill_id_the_error_lists_the_skills() -> None:
    async with talk_to([add, shout]) as user:
        with pytest.raises(InvalidParamsError) as refusal:
            await user.task(said("hi"))
        assert str(refusal.value) == "Missing required parameter: metadata.skillId"
        assert refusal.value.violations[0].message.endswith("; the skills are: math.add, shout")
        with pytest.raises(SkillNotFoundError) as unknown:
            await user.task(said("hi", "shuot"))
        assert str(unknown.value) == "Skill not found: shuot"
        assert unknown.value.violations[0].message.endswith("; did you mean shout? The skills are: math.add, shout")


async def test_a_default_skill_or_the_only_one_needs_no_skill_id() -> None:
    async with talk_to([add]) as user:
        assert await answer(user, said('{"a": 1}')) == [[1]]
    async with talk_to(as_agent([add, shout], default_skill="shout")) as user:
        assert await answer(user, said("hi")) == [["HI"]]
        assert await answer(user, said('{"a": 1}', "math.add")) == [[1]]


async def test_as_agent_takes_a_default_skill() -> None:
    with pytest.raises(ValueError, match="default_skill is for several functions or modules, not for this SkillAgent"):
        await async_serve(as_agent([add, shout]), default_skill="shout")


def test_a_default_skill_must_exist() -> None:
    with pytest.raises(ValueError, match=r"default_skill 'x' is none of the skills: math\.add, shout"):
        as_agent([add, shout], default_skill="x")


async def test_a_reply_goes_to_the_skill_that_the_task_began_with() -> None:
    async def greet(text: str, call: Call) -> str | StatusUpdate:
        return f"Hello, {text}" if call.resumed else ask("Your name?")

    async with talk_to([greet, shout]) as user:
        task = await user.task(said("hi", "greet"))
        assert task.status.state is TaskState.INPUT_REQUIRED
        reply = Message(message_id="n", role=Role.USER, parts=(Part(text="Ada"),), task_id=task.id)
        task = await user.task(reply)
        assert contents(task) == [["Hello, Ada"]]


async def test_one_of_several_functions_can_reply_without_a_task() -> None:
    async def reply(text: str) -> Message:
        return Message(message_id="r", role=Role.AGENT, parts=(Part(text="hi"),))

    async with talk_to([reply, shout]) as user:
        assert isinstance(await user.ask(said("x", "reply")), Message)
        first, *_ = await user.stream(said("x", "shout"))
        assert isinstance(first, Task)


async def test_a_message_of_a_generator_ends_no_task_if_another_function_may_reply() -> None:
    async def reply(text: str) -> Message:
        return agent_message("hi")

    async def work(text: str) -> AsyncIterator[Message | str]:
        yield agent_message("Looking it up")
        yield "found"

    async with talk_to([reply, work]) as user:
        task = await user.task(said("x", "work"))
    assert (task.status.state, contents(task)) == (TaskState.COMPLETED, [["found"]])
    assert [message.text for message in task.history] == ["x", "Looking it up"]


def test_a_readonly_or_idempotent_skill_is_safe_to_repeat() -> None:
    agent = as_agent([add, shout])
    assert isinstance(agent, SkillAgent)
    assert [each.is_repeatable for each in agent.skills] == [True, False]


# ---- the card --------------------------------------------------------------------------------------------------------


async def test_the_card_describes_the_functions() -> None:
    app = await async_serve([add, shout, count])
    card = app.cards.card
    assert (card.name, card.description) == ("agent", "Agent with 3 skills: math.add, shout, count")
    first, second, third = card.skills
    assert (first.id, first.name, first.tags) == ("math.add", "Sum", ("math",))
    assert first.description == "Adds two numbers.\n\nAnd nothing else."
    assert first.examples == ('{"a":1,"b":2}', "1 + 2")
    assert (first.input_modes, first.output_modes) == (("application/json",), ("application/json",))
    assert (second.id, second.name, second.description) == ("shout", "Shout", "Says it louder.")
    assert (second.input_modes, third.input_modes) == (("text/plain",), ("application/json", "text/plain"))
    assert (second.output_modes, third.output_modes) == (("text/plain",), ("text/plain",))
    extension = next(each for each in card.capabilities.extensions if each.uri == EXTENSION)
    assert extension.params is not None
    described = extension.params["skills"]
    assert described["math.add"] == {
        "annotations": {
            "readonly": True,
            "destructive": False,
            "idempotent": False,
            "requires_approval": False,
            "open_world": True,
        },
        "inputSchema": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "The first."},
                "b": {"type": "integer", "default": 0, "description": "The second, if there is one."},
            },
            "required": ["a"],
            "additionalProperties": False,
        },
        "outputSchema": {"type": "integer"},
        "examples": [{"name": "", "input": {"a": 1, "b": 2}}],
    }
    assert described["shout"] == {"outputSchema": {"type": "string"}}
    assert described["count"]["streaming"] is True


def turn(image: bytes, degrees: int = 90) -> bytes:
    return image


def draw(text: str) -> io.BytesIO | None:
    return None


async def pages(text: str) -> AsyncIterator[BinaryIO]:
    yield io.BytesIO()


def either(text: str) -> bytes | str:
    return text


@pytest.mark.parametrize(
    ("function", "takes", "gives"),
    [
        (turn, ("application/json", "application/octet-stream"), ("application/octet-stream",)),
        (draw, ("text/plain",), ("application/octet-stream",)),
        (pages, ("text/plain",), ("application/octet-stream",)),
        (either, ("text/plain",), ("text/plain",)),
    ],
)
async def test_the_card_states_which_functions_take_and_return_files(function: Any, takes: Any, gives: Any) -> None:
    (skill,) = (await async_serve([function])).cards.card.skills
    assert (skill.input_modes, skill.output_modes) == (takes, gives)


@pytest.mark.parametrize(
    ("target", "name", "description"),
    [
        (add, "add", "Adds two numbers."),
        ([shout], "shout", "The agent shout"),
        (skills_module, "skills_module", "Sums and products."),
        (Calculator(), "Calculator", "Calculates."),
        (partial(add, b=2), "add", "Adds two numbers."),
        (as_agent([add, shout]), "agent", "Agent with 2 skills: math.add, shout"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_the_card_is_named_after_the_served_object(target: Any, name: str, description: str) -> None:
    card = (await async_serve(target)).cards.card
    assert (card.name, card.description) == (name, description)
    card = (await async_serve(target, name="mine", description="Does.")).cards.card
    assert (card.name, card.description) == ("mine", "Does.")
