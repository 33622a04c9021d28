"""SQLite and memory return the same results after any history of writes, rejections and time."""

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, multiple, rule
from msgspec.structs import replace

from apcore_a2a.errors import A2AError
from apcore_a2a.protocol.lifecycle import TERMINAL, TRANSITIONS
from apcore_a2a.protocol.model import Document, TaskState
from apcore_a2a.storage.contract import Change, Page, Query, Record, Store
from tests.storage.contract import ALICE, BOB, STORES, TTL, Author, Clock, append, pages, timestamp

CAPACITY = 5
owners = st.sampled_from([ALICE, BOB])
contexts = st.sampled_from(["x", "y"])
states = st.sampled_from(sorted(TaskState))
T = TypeVar("T")


class Stores(RuleBasedStateMachine):
    """Makes the same calls to both stores. `authors` are the tasks that may still be stored."""

    authors: Bundle[Author] = Bundle("authors")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.made = self.ticks = 0
        self.memory, self.sqlite = (
            STORES[name].make(Path(self.folder.name), self.clock, CAPACITY) for name in ("memory", "sqlite")
        )
        self.run(self.sqlite.open())

    def teardown(self) -> None:
        self.run(self.sqlite.close())
        self.runner.close()
        self.folder.cleanup()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    async def both(self, call: Any) -> Any:  # Any: an operation of a store, and its result
        answers = [await self.answer(call, store) for store in (self.memory, self.sqlite)]
        assert answers[0] == answers[1]
        return answers[0]

    async def answer(self, call: Any, store: Store) -> object:
        try:
            return await call(store)
        except A2AError as error:
            return type(error)

    def now(self) -> str:
        self.ticks += 1
        self.clock.now += 0.001  # otherwise two tasks may end at once, and their order of eviction is undefined
        return timestamp(self.ticks)

    async def send(self, change: Change) -> bool:
        return await self.both(lambda store: append(store, change)) is None

    # ---- rules -------------------------------------------------------------------------------------------------------

    @rule(target=authors, owner=owners, context_id=contexts, key=st.sampled_from(["", "k1", "k2"]))
    def create(self, owner: str, context_id: str, key: str) -> Any:  # Any: hypothesis accepts one author or none
        self.made += 1
        author = Author(f"t{self.made}", owner=owner, context_id=context_id, at=self.now())
        change = author.create()
        made = self.run(self.both(lambda store: store.create(change, key=key)))
        return author if made is None else multiple()

    @rule(author=authors, state=states)
    def move(self, author: Author, state: TaskState) -> None:
        if state in TRANSITIONS[author.task.status.state]:
            rival = author.rival()
            if self.run(self.send(rival.status(state, at=self.now()))):
                author.task, author.version, author.records = rival.task, rival.version, rival.records

    @rule(author=authors, texts=st.lists(st.text(max_size=5), min_size=1, max_size=3), bump=st.integers(0, 1))
    def speak(self, author: Author, texts: list[str], bump: int) -> None:
        if author.task.status.state not in TERMINAL:
            rival = author.rival()
            rival.epoch += bump
            if self.run(self.send(rival.chunk(*texts))):
                author.task, author.version, author.records = rival.task, rival.version, rival.records
                author.epoch = rival.epoch

    @rule(author=authors, version=st.integers(-2, 2), epoch=st.integers(-1, 0), owner=owners)
    def meddle(self, author: Author, version: int, epoch: int, owner: str) -> None:
        """A stale write is rejected. Writes that would not be stale are not sent."""
        if (version, epoch, owner) == (0, 0, author.owner) or author.task.status.state in TERMINAL:
            return
        rival = author.rival()
        rival.version, rival.epoch, rival.owner = max(rival.version + version, 0), rival.epoch + epoch, owner
        if rival.version != author.version or epoch or owner != author.owner:
            assert not self.run(self.send(rival.chunk("meddling")))

    @rule(author=consumes(authors), owner=owners)
    def remove(self, author: Author, owner: str) -> None:
        self.run(self.both(lambda store: store.remove(author.task.id, owner)))

    @rule(seconds=st.sampled_from([1.0, TTL / 2, TTL]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        for _ in range(CAPACITY):  # SQLite removes two expired tasks with each write, memory removes all with each read
            self.run(self.sqlite.check())

    # ---- invariants --------------------------------------------------------------------------------------------------

    @rule(author=authors, owner=owners, after=st.integers(-1, 9))
    def read(self, author: Author, owner: str, after: int) -> None:
        record = self.run(self.both(lambda store: load(store, author.task.id, owner)))
        events = self.run(self.sqlite.events(author.task.id, owner, after))
        assert (record is None) == (events is None)
        if record is not None:
            assert record.version == author.version
            assert events == author.records[max(after, 0) :]

    @rule(owner=owners, context_id=st.sampled_from(["", "x"]), state=st.none() | states, by_creation=st.booleans())
    def browse(self, owner: str, context_id: str, state: TaskState | None, by_creation: bool) -> None:
        query = Query(owner=owner, limit=2, context_id=context_id, state=state, by_creation=by_creation)
        self.run(self.both(lambda store: walk(store, query)))
        since = timestamp(max(self.ticks - 3, 0))
        self.run(self.both(lambda store: walk(store, replace(query, changed_since=since))))


async def load(store: Store, task_id: str, owner: str) -> Record | None:
    record = await store.load(task_id, owner)
    return None if record is None else plain(record)


async def walk(store: Store, query: Query) -> list[Page]:
    """Return all pages without their cursors, which differ between the stores."""
    return [Page(list(map(plain, page.records)), "", page.total) for page in await pages(store, query)]


def plain(record: Record) -> Record:
    """Return a record without the decoded objects that its document may cache."""
    return replace(record, document=Document(record.document.body))


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=30, stateful_step_count=40)
