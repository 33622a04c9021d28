"""The agents in examples/ behave as their docstrings say."""

from apcore_a2a import async_serve
from apcore_a2a.protocol.model import ArtifactUpdate, Message, Part, TaskState
from examples.custom_agent import Countdown
from examples.sdk_executor import Shout
from tests.conversations import contents, talk_to, text_of


async def test_the_countdown_asks_counts_piece_by_piece_and_ends() -> None:
    async with talk_to(Countdown(pause=0)) as user:
        task = await user.task("soon")
        assert (task.status.state, text_of(task)) == (TaskState.INPUT_REQUIRED, "From which number, up to 999?")
        task = await user.task("2", task=task)
        assert (task.status.state, text_of(task)) == (TaskState.COMPLETED, "Lift-off")
        chunks = [event for event in await user.stream("2") if isinstance(event, ArtifactUpdate)]
    assert contents(task) == [["2 1 0 "]]
    assert [(chunk.append, chunk.last_chunk) for chunk in chunks] == [(False, False), (True, False), (True, True)]


async def test_the_countdown_can_be_stopped() -> None:
    async with talk_to(Countdown()) as user:
        task = await user.cancel(await user.task("999", now=True))
    assert (task.status.state, text_of(task)) == (TaskState.CANCELED, "Countdown stopped")


async def test_the_sdk_executor_shouts() -> None:
    async with talk_to(Shout()) as user:
        task = await user.task("hello world")
        assert (task.status.state, contents(task)) == (TaskState.COMPLETED, [["HELLO WORLD"]])
        greeting = await user.ask("hi")
        assert isinstance(greeting, Message) and text_of(greeting) == "Hello!"
        assert text_of(await user.task(Part(data={}))) == "What shall I say?"


async def test_a_card_is_made_from_the_name_and_the_docstring() -> None:
    card = (await async_serve(Shout())).cards.card
    assert card.name == "Shout"
    assert card.description == "Returns text in upper case, and greets with a message instead of a task."
