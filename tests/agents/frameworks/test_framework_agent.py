"""What agents of all frameworks have in common, with an adapter that follows a script."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import httpx
import pytest

from apcore_a2a import A2AClient, About, ContentTypeNotSupportedError, ModelUsage, Part, Question, Task, ToolCalled
from apcore_a2a import ToolDone as Done
from apcore_a2a.agent import ShowTools
from apcore_a2a.agents.frameworks.framework_agent import (
    AgentTurn,
    Asked,
    FrameworkAgent,
    FrameworkOptions,
    Kept,
    StateUnreadable,
)
from apcore_a2a.app.serve import build_app
from apcore_a2a.protocol.questions import PART_TYPE, questions_of, to_answers

Script = Callable[[AgentTurn, list[Any]], AsyncGenerator[Any, None]]


class ScriptedAdapter:
    """An adapter whose conversation is a list of the texts of the user and the agent."""

    about = About(name="clerk")

    def __init__(self, script: Script, *, has_messages: bool = True) -> None:
        self._script = script
        self._has_messages = has_messages
        self.opened: list[str] = []

    def messages_of(self, state: Any) -> list[Any] | None:
        if not self._has_messages:
            return None
        messages: list[Any] = state["messages"]
        return messages

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        @asynccontextmanager
        async def opened() -> AsyncGenerator[None, None]:
            self.opened.append("open")
            try:
                yield
            finally:
                self.opened.append("closed")

        return opened()

    def run(self, turn: AgentTurn) -> AsyncGenerator[Any, None]:
        messages = [] if turn.state is None else list(turn.state["messages"])
        if turn.answers is None:
            messages.append(turn.call.text)
        return self._script(turn, messages)


async def count(turn: AgentTurn, messages: list[Any]) -> AsyncGenerator[Any, None]:
    """Answer with the conversation; ask before "pay"."""
    yield Kept({"messages": messages})
    if turn.answers is None and messages[-1].startswith("pay"):
        question = Question(id="1", text="Pay?", kind="approval", tool="pay")
        other = Question(id="2", text="When?")
        yield Asked([question, other] if messages[-1] == "pay twice" else [question], {"messages": messages})
        return
    if turn.answers is not None:
        messages.append(",".join(str(each.approved or each.value) for each in turn.answers.values()))
    if messages[-1] == "fail":
        raise RuntimeError("secret")
    yield " ".join(messages)
    yield Kept({"messages": [*messages, "ok"]})


class Conversation:
    """Sends messages in one context."""

    def __init__(self, client: A2AClient) -> None:
        self._client = client
        self._context_id = ""

    async def say(self, content: Any, task: Task | None = None) -> Task:
        task_id = "" if task is None else task.id
        answer = await self._client.send_message(content, task_id=task_id, context_id=self._context_id)
        assert isinstance(answer, Task)
        self._context_id = answer.context_id
        return answer

    async def cancel(self, task: Task) -> Task:
        return await self._client.cancel_task(task.id)


@asynccontextmanager
async def talking_to(adapter: Any, **options: Any) -> AsyncGenerator[Conversation, None]:
    app = build_app(FrameworkAgent("test", adapter, options=FrameworkOptions(**options)))
    await app.open()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
        async with A2AClient("http://agent", http=http) as client:
            yield Conversation(client)
    await app.close()


async def test_a_conversation_has_the_turns_of_its_context() -> None:
    async with talking_to(ScriptedAdapter(count)) as talk:
        await talk.say("one")
        assert (await talk.say("two")).text == "one ok two"


async def test_a_failed_turn_is_remembered_as_far_as_the_adapter_has_kept_it() -> None:
    async with talking_to(ScriptedAdapter(count)) as talk:
        failed = await talk.say("fail")
        assert failed.status.state == "failed"
        assert "secret" not in failed.status.text
        assert (await talk.say("two")).text == "fail two"


@pytest.mark.parametrize("has_messages", [True, False])
async def test_a_paused_turn_joins_the_conversation_when_it_ends(has_messages: bool) -> None:
    async with talking_to(ScriptedAdapter(count, has_messages=has_messages)) as talk:
        await talk.say("one")
        asked = await talk.say("pay")
        between = await talk.say("two")
        paid = await talk.say("approve", asked)
        after = await talk.say("three")
    assert asked.status.state == "input-required"
    assert between.text == "one ok two"
    if has_messages:  # the turn follows what was said in between
        assert paid.text == "one ok two ok pay True"
        assert after.text == "one ok two ok pay True ok three"
    else:  # the state cannot be joined, and the last turn counts
        assert paid.text == "one ok pay True"
        assert after.text == "one ok pay True ok three"


async def test_a_canceled_question_leaves_the_conversation_as_it_was() -> None:
    async with talking_to(ScriptedAdapter(count)) as talk:
        await talk.say("one")
        asked = await talk.say("pay")
        assert (await talk.cancel(asked)).status.state == "canceled"
        assert (await talk.say("two")).text == "one ok two"


async def test_answers_are_collected_until_no_question_is_open() -> None:
    async with talking_to(ScriptedAdapter(count)) as talk:
        asked = await talk.say("pay twice")
        first = await talk.say([to_answers({"2": "today"})], asked)
        unclear = await talk.say("perhaps", asked)
        done = await talk.say("approve", asked)
    assert [question.id for question in questions_of(asked.status.message)] == ["1", "2"]
    assert [question.id for question in questions_of(first.status.message)] == ["1"]
    assert [question.id for question in questions_of(unclear.status.message)] == ["1"]
    assert done.text == "pay twice today,True"


async def test_a_whole_paused_run_gets_the_turns_in_between_at_its_end() -> None:
    """The framework stores the paused run in a form of its own, and only the conversation has messages."""

    async def script(turn: AgentTurn, messages: list[Any]) -> AsyncGenerator[Any, None]:
        if turn.answers is None and messages[-1] == "pay":
            yield Asked([Question(id="1", text="Pay?", kind="approval", tool="pay")], {"paused": messages})
            return
        yield Kept({"messages": [*messages, "ok"]})

    class WithPausedForm(ScriptedAdapter):
        def messages_of(self, state: Any) -> list[Any] | None:
            messages: list[Any] | None = state.get("messages")
            return messages

        def run(self, turn: AgentTurn) -> AsyncGenerator[Any, None]:
            if turn.answers is not None:
                return script(turn, turn.state["paused"])
            return super().run(turn)

    async def last(turn: AgentTurn, messages: list[Any]) -> AsyncGenerator[Any, None]:
        async for each in script(turn, messages):
            yield each
        yield " ".join(messages)

    async with talking_to(WithPausedForm(last)) as talk:
        await talk.say("one")
        asked = await talk.say("pay")
        await talk.say("two")
        await talk.say("approve", asked)
        assert (await talk.say("three")).text == "one ok two ok pay ok three"


async def test_a_conversation_that_cannot_be_read_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    async def script(turn: AgentTurn, messages: list[Any]) -> AsyncGenerator[Any, None]:
        if turn.state is not None:
            raise StateUnreadable("another version")
        yield messages[-1]
        yield Kept({"messages": messages})

    async with talking_to(ScriptedAdapter(script)) as talk:
        await talk.say("one")
        assert (await talk.say("two")).text == "two"
    assert "conversation cannot be read, it begins again" in caplog.messages


async def test_a_paused_run_that_cannot_be_read_fails_with_a_reason() -> None:
    async def script(turn: AgentTurn, messages: list[Any]) -> AsyncGenerator[Any, None]:
        if turn.answers is not None:
            raise StateUnreadable("another version")
        yield Asked([Question(id="1", text="Pay?", kind="approval", tool="pay")], {"messages": messages})

    async with talking_to(ScriptedAdapter(script)) as talk:
        asked = await talk.say("pay")
        failed = await talk.say("approve", asked)
    assert failed.status.state == "failed"
    assert failed.status.text == "The agent has changed since it asked, and cannot continue this task"


async def tools(turn: AgentTurn, messages: list[Any]) -> AsyncGenerator[Any, None]:
    yield ToolCalled(id="1", name="look", arguments={"query": "x"})
    yield Done(id="1", name="look", result="row")
    yield ModelUsage(requests=1, input_tokens=2)
    yield "seen"


@pytest.mark.parametrize(
    ("show", "shown"),
    [
        ("no", []),
        ("names", [{"id": "1", "name": "look"}, {"id": "1", "name": "look"}]),
        ("arguments", [{"id": "1", "name": "look", "args": {"query": "x"}}, {"id": "1", "name": "look"}]),
        (
            "results",
            [
                {"id": "1", "name": "look", "args": {"query": "x"}},
                {"id": "1", "name": "look", "response": {"result": "row"}},
            ],
        ),
    ],
)
async def test_clients_see_as_much_of_tools_as_the_server_shows(show: ShowTools, shown: list[Any]) -> None:
    agent = FrameworkAgent("test", ScriptedAdapter(tools), options=FrameworkOptions(show_tools=show))
    seen: list[Any] = []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(agent))) as http:
        async with A2AClient("http://agent", http=http) as client:
            async for event in client.stream_message("look"):
                message = getattr(getattr(event, "status", None), "message", None)
                parts = message.parts if message else ()
                seen += [part.data for part in parts if (part.metadata or {}).get(PART_TYPE)]
    assert seen == shown


async def test_a_url_is_rejected_unless_the_server_allows_it() -> None:
    part = Part(url="http://127.0.0.1/a.png", media_type="image/png")
    async with talking_to(ScriptedAdapter(tools)) as talk:
        with pytest.raises(ContentTypeNotSupportedError, match="URL parts are not accepted"):
            await talk.say([part])
    async with talking_to(ScriptedAdapter(tools), allow_urls=True) as talk:
        assert (await talk.say([part])).status.state == "completed"


class TextAdapter(ScriptedAdapter):
    """An adapter whose agent reads only text."""

    def check_parts(self, parts: Sequence[Part]) -> None:
        if any(part.is_file for part in parts):
            raise ContentTypeNotSupportedError("No files, please")


async def test_a_message_that_the_agent_cannot_read_is_rejected_before_a_task_exists() -> None:
    file = Part(raw=b"content", filename="a.txt")
    async with talking_to(TextAdapter(count)) as talk:
        with pytest.raises(ContentTypeNotSupportedError, match="No files, please"):
            await talk.say([file])
        asked = await talk.say("pay")
        assert (await talk.say([file], asked)).status.state == "input-required"  # the reply is not for the agent


async def test_a_shared_agent_is_opened_and_closed_with_the_server() -> None:
    adapter = ScriptedAdapter(tools)
    async with talking_to(adapter):
        assert adapter.opened == ["open"]
    assert adapter.opened == ["open", "closed"]


async def test_a_factory_makes_an_agent_for_each_run() -> None:
    first = ScriptedAdapter(tools)
    made: list[ScriptedAdapter] = []

    def make() -> ScriptedAdapter:
        made.append(ScriptedAdapter(count))
        return made[-1]

    agent = FrameworkAgent("test", first, options=FrameworkOptions(), make=make)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(agent))) as http:
        async with A2AClient("http://agent", http=http) as client:
            one = await client.send_message("one")
            assert isinstance(one, Task)
            two = await client.send_message("two", context_id=one.context_id)
    assert two.text == "one ok two"
    assert len(made) == 2
    assert [each.opened for each in made] == [["open", "closed"]] * 2
    assert first.opened == []
    assert isinstance(agent.lifespan(), nullcontext)
