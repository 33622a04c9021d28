"""What an agent is told of its conversation: both sides in order, bounded in messages and in bytes."""

import threading
from pathlib import Path

import pytest

from apcore_a2a.engine import conversation
from apcore_a2a.engine.conversation import MAX_BYTES, MAX_MESSAGE, TRUNCATED, read_conversation
from apcore_a2a.protocol.lifecycle import PROGRESS
from apcore_a2a.protocol.model import (
    Artifact,
    Document,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
    encode,
)
from apcore_a2a.protocol.v1 import encode_record
from apcore_a2a.storage.contract import Change, Store
from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.requirements import requirement


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return InMemoryTaskStore()
    return SQLiteStore(tmp_path / "tasks.db")


def user(*parts: Part, number: int = 0) -> Message:
    return Message(message_id=f"u{number}", role=Role.USER, parts=parts)


def agent(text: str, **metadata: object) -> Message:
    return Message(message_id=f"a-{text}", role=Role.AGENT, parts=(Part(text=text),), metadata=metadata or None)


def task(number: int, *said: Message, artifacts: list[Artifact] | None = None, last: Message | None = None) -> Task:
    return Task(
        id=f"t{number}",
        context_id="talk",
        status=TaskStatus(state=TaskState.COMPLETED, message=last, timestamp="2026-01-01T00:00:00.000Z"),
        history=list(said),
        artifacts=artifacts or [],
    )


async def told(store: Store, *tasks: Task, limit: int = 100) -> tuple[Message, ...]:
    await store.open()
    try:
        for each in tasks:
            document = Document(encode(each))
            events = [encode_record(each)]
            await store.create(Change(task=each, owner="alice", version=1, events=events, document=document))
        return await read_conversation(store, "alice", "talk", limit=limit)
    finally:
        await store.close()


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [f"{message.role.name.lower()}: {message.text}" for message in messages]


@requirement("FR-CTX-002")
async def test_both_sides_are_told_in_order_with_the_pieces_of_an_answer_joined(store: Store) -> None:
    pieces = Artifact(artifact_id="x", parts=[Part(text="Hel"), Part(text="lo"), Part(text="")])
    mixed = Artifact(artifact_id="y", parts=[Part(text="a"), Part(data={"n": 1}), Part(text="b")])
    asked = [user(Part(text="More")), agent("Which?"), user(Part(text="That"))]
    said = await told(
        store,
        task(1, user(Part(text="Hi")), artifacts=[pieces]),
        task(2, *asked, artifacts=[mixed], last=agent("Done")),
    )
    assert texts(said) == [
        "user: Hi",
        "agent: Hello",
        "user: More",
        "agent: Which?",
        "user: That",
        "agent: a\nb",
        "agent: Done",
    ]
    assert (said[1].message_id, said[1].task_id, said[1].context_id) == ("x", "t1", "talk")
    assert [part.data for part in said[5].parts][1] == {"n": 1}


async def test_how_far_a_task_is_and_an_empty_artifact_are_no_answers(store: Store) -> None:
    empty = Artifact(artifact_id="x", parts=[Part(text="")])
    said = await told(store, task(1, user(Part(text="Hi")), artifacts=[empty], last=agent("50%", **{PROGRESS: 0.5})))
    assert texts(said) == ["user: Hi"]


@requirement("FR-CTX-002")
async def test_of_more_messages_than_may_be_told_the_oldest_go(store: Store) -> None:
    tasks = [task(number, user(Part(text=str(number))), last=agent("ok")) for number in range(5)]
    assert texts(await told(store, *tasks, limit=3)) == ["agent: ok", "user: 4", "agent: ok"]


async def test_a_conversation_is_bounded_in_bytes_and_the_latest_are_told(store: Store) -> None:
    long = "x" * (MAX_MESSAGE - 1000)
    tasks = [task(number, user(Part(text=f"{number}{long}"), number=number)) for number in range(10)]
    said = await told(store, *tasks)
    assert [message.message_id for message in said] == ["u6", "u7", "u8", "u9"]
    assert sum(len(encode(message)) for message in said) <= MAX_BYTES


@pytest.mark.parametrize("letter", ["x", "é", "\N{SNOWMAN}", "\N{BALLOON}", "\x00"])
async def test_a_long_message_is_cut_and_says_so(store: Store, letter: str) -> None:
    long = Artifact(artifact_id="x", parts=[Part(text=letter * MAX_MESSAGE)])
    file = user(Part(text="See"), Part(raw=b"x" * MAX_MESSAGE, filename="large"), Part(data={"n": 1}))
    said = await told(store, task(1, file, artifacts=[long]))
    assert [bool(message.metadata and message.metadata[TRUNCATED]) for message in said] == [True, True]
    assert said[0].parts == (Part(text="See"), Part(data={"n": 1}))
    assert len(said[1].text) > 30_000
    assert all(len(encode(message)) <= MAX_MESSAGE + 500 for message in said)


async def test_large_tasks_are_not_read_on_the_loop(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read = conversation._messages_of
    is_on_loop: dict[str, bool] = {}

    def note_thread(task: Task) -> list[Message]:
        is_on_loop[task.id] = threading.current_thread() is threading.main_thread()
        return read(task)

    monkeypatch.setattr(conversation, "_messages_of", note_thread)
    monkeypatch.setattr("apcore_a2a.storage.cursor.MAX_PAGE_BYTES", 1)  # a task on each page
    await told(store, task(1, user(Part(text="x" * conversation.LARGE))), task(2, user(Part(text="x"))))
    assert is_on_loop == {"t1": False, "t2": True}


async def test_a_message_of_which_nothing_fits_is_still_there(store: Store) -> None:
    said = await told(store, task(1, user(Part(raw=b"x" * MAX_MESSAGE))))
    assert [message.parts for message in said] == [(Part(text=""),)]


def test_the_bounds_are_on_the_page_about_concurrency() -> None:
    page = Path(conversation.__file__).parents[3] / "docs" / "concurrency.md"
    assert "1 MiB, 256 KiB of one message" in page.read_text(encoding="utf-8")
    assert (MAX_BYTES, MAX_MESSAGE) == (1 << 20, 256 << 10)
