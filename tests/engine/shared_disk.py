"""A store in memory that several replicas share. One engine is under test. The test acts for all other replicas.

Nothing depends on the clock: the test answers each renewal of the lease (`renews`) and sends each wake-up (`wakes`).
`meanwhile` has steps that happen once while an answer of the store is on its way back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from msgspec.structs import replace

from apcore_a2a.engine.agent_output import check_event
from apcore_a2a.engine.context import CallContext, ReplicaTiming, Timing
from apcore_a2a.engine.stored_run import StoredRun
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import ArtifactUpdate, StatusUpdate, Task, TaskState, TaskStatus, encode
from apcore_a2a.storage.contract import Change, FollowedTask, Record, ReplicaRequest, TaskUpdate, WakeUp
from tests.engine.driving import ALICE, request, settle, until
from tests.engine.fake_disk import RUNNING, FakeDisk, Row

OWNER = CallContext(caller=ALICE).owner
NO_PAUSES = Timing(save_retries=(0,), peer_cancel=0, race_pause=0)
MANUAL = ReplicaTiming(renewals=1e9, retry=0)
"""The test decides when the lease is renewed, not the clock."""
ANYTHING = WakeUp(everything=True, requests=True, queue=True)
NOTHING = WakeUp(everything=False, requests=False, queue=False)


async def lose_the_answer() -> None:
    raise StoreUnavailableError


class SharedDisk(FakeDisk):
    """A disk that stores the runner of each task. The test writes to it for the other replicas."""

    shared: Literal[True] = True

    def __init__(self) -> None:
        super().__init__()
        self.runners: dict[str, str | None] = {}
        self.replicas = FakeReplicas(self)

    def put(
        self,
        task_id: str,
        runner: str | None,
        state: TaskState = TaskState.WORKING,
        *,
        retry_safe: bool = False,
        attempt: int = 1,
    ) -> Task:
        """Store a task of Alice that another replica has created."""
        said = request("slow", task_id=task_id, context_id="talk")
        task = Task(id=task_id, context_id="talk", status=TaskStatus(state=state), history=[said.message])
        stored = StoredRun(request=said, caller=ALICE, retry_safe=retry_safe, attempt=attempt)
        run = encode(stored) if state in RUNNING else b""
        self.rows[task_id] = Row(len(self.rows) + 1, OWNER, "", state, [v1.encode_event(task)], run=run)
        self.runners[task_id] = runner
        return task

    def write(self, task: Task, *events: StatusUpdate | ArtifactUpdate) -> WakeUp:
        """Write events for another replica. Return its wake-up."""
        row = self.rows[task.id]
        for event in events:
            row.events.append(check_event(event, row.task())[1])
            if isinstance(event, StatusUpdate):
                row.state = event.status.state
                row.run = row.run if row.state in RUNNING else b""
        self.runners[task.id] = self._runner(row.state, row.run, self.runners[task.id])
        return WakeUp(everything=False, requests=False, queue=False, tasks=frozenset({row.number}))

    def claim(self, task_id: str, runner: str) -> None:
        row = self.rows[task_id]
        row.epoch += 1
        self.runners[task_id] = runner

    def _runner(self, state: TaskState, run: bytes, runner: str | None) -> str | None:
        return runner if state in RUNNING or run else None

    # ---- what the engine does ---------------------------------------------------------------------------------------

    async def create(self, change: Change, *, key: str = "") -> str | None:
        self.runners[change.task.id] = "" if change.hand_on else self.replicas.name
        return await super().create(change, key=key)

    def append(self, change: Change) -> "asyncio.Future[None]":
        name = "" if change.hand_on else self.replicas.name
        runner = self._runner(change.task.status.state, change.run, name)
        task_id = change.task.id

        def note(done: "asyncio.Future[None]") -> None:
            if done.exception() is None:
                self.runners[task_id] = runner

        appended = super().append(change)
        appended.add_done_callback(note)
        return appended

    async def load(self, task_id: str, owner: str) -> Record | None:
        record = await super().load(task_id, owner)
        return None if record is None else replace(record, runner=self.runners[task_id])

    async def orphans(self) -> list[Record]:
        return await self.replicas.claim_orphans(100)


class FakeReplicas:
    """All roles of `Replicas` over a SharedDisk."""

    def __init__(self, disk: SharedDisk) -> None:
        self.seconds = 600.0
        self.name = "here-1"
        self.dead: set[str] = set()
        self.read_at_once = 2_000
        self.taken_at_once = 100
        self.updates_at_once = 100
        self.meanwhile: dict[str, Callable[[], Awaitable[object]]] = {}
        self.requests: list[ReplicaRequest] = []
        self.rejections: dict[int, str] = {}
        self.cleanups = 0
        self.down_at = float("-inf")
        self.next_end = 0.0  # a replica may be dead
        self._disk = disk
        self._renewals: asyncio.Queue[bool | Exception] = asyncio.Queue()
        self._wake_ups: asyncio.Queue[WakeUp] = asyncio.Queue()
        self._asked = {"renewal": 0, "wake-up": 0}

    @property
    def lease(self) -> "FakeReplicas":
        return self

    @property
    def claims(self) -> "FakeReplicas":
        return self

    @property
    def watch(self) -> "FakeReplicas":
        return self

    @property
    def mailbox(self) -> "FakeReplicas":
        return self

    async def _answer(self, method: str) -> None:
        happens = self.meanwhile.pop(method, None)
        if happens is not None:
            await happens()

    # ---- for the test -----------------------------------------------------------------------------------------------

    async def renews(self, answer: bool | Exception = True) -> None:
        """Answer one renewal. Return when the engine asks for the next, and had time for the work that follows."""
        await until(lambda: self._asked["renewal"] > 0)
        asked = self._asked["renewal"]
        self._renewals.put_nowait(answer)
        await until(lambda: self._asked["renewal"] > asked)
        await settle()

    async def wakes(self, wake_up: WakeUp = ANYTHING) -> None:
        """Send one wake-up. Return when the engine waits for the next and has read everything."""
        await until(lambda: self._asked["wake-up"] > 0)
        asked = self._asked["wake-up"]
        self._wake_ups.put_nowait(wake_up)
        await until(lambda: self._asked["wake-up"] > asked and self._wake_ups.empty())

    async def receives(self, task_id: str, body: bytes) -> str:
        """Post a request of another replica. Return the answer."""
        number = len(self.rejections) + 1
        self.requests.append(ReplicaRequest(number, task_id, OWNER, body))
        await self.wakes()
        await until(lambda: number in self.rejections)
        return self.rejections[number]

    # ---- the lease --------------------------------------------------------------------------------------------------

    async def join(self) -> None:
        self.dead.add(self.name)
        self.name = f"here-{len(self.dead) + 1}"

    async def renew(self) -> float | None:
        self._asked["renewal"] += 1
        answer = await self._renewals.get()
        if isinstance(answer, Exception):
            raise answer
        return self.next_end if answer else None

    async def clean_up(self) -> None:
        self.cleanups += 1

    # ---- taking over ------------------------------------------------------------------------------------------------

    async def _claim_all(self, runners: set[str], method: str) -> list[Record]:
        found = [task_id for task_id, runner in self._disk.runners.items() if runner in runners]
        for task_id in found:
            self._disk.claim(task_id, self.name)
        records = [await self._disk.load(task_id, OWNER) for task_id in found]
        await self._answer(method)
        return [record for record in records if record is not None]

    async def claim_orphans(self, limit: int) -> list[Record]:
        return await self._claim_all(self.dead, "claim_orphans")

    async def claim_queued(self, limit: int) -> list[Record]:
        return await self._claim_all({""}, "claim_queued")

    async def count_queued(self, limit: int) -> int:
        return list(self._disk.runners.values()).count("")

    async def claim(self, task_id: str, owner: str) -> Record | None:
        row = self._disk.rows.get(task_id)
        if row is not None and row.state not in TERMINAL:
            self._disk.claim(task_id, self.name)
        return await self._disk.load(task_id, owner)

    async def own_tasks(self) -> list[tuple[str, str]]:
        own = [(task_id, OWNER) for task_id, runner in self._disk.runners.items() if runner == self.name]
        await self._answer("own_tasks")
        return own

    # ---- watching ---------------------------------------------------------------------------------------------------

    async def follow(self, task_id: str, owner: str) -> Record | None:
        record = await self._disk.load(task_id, owner)
        await self._answer("follow")
        return record

    async def unfollow(self, task_ids: Sequence[str]) -> None: ...

    async def is_followed_elsewhere(self, task_id: str, owner: str) -> bool:
        return False

    async def read_updates(self, followed: Sequence[FollowedTask]) -> list[TaskUpdate]:
        found = [self._update_of(each) for each in followed[: self.updates_at_once]]
        await self._answer("read_updates")
        return found

    def _update_of(self, followed: FollowedTask) -> TaskUpdate:
        row = self._disk.rows.get(followed.task_id)
        if row is None:
            return TaskUpdate(followed.task_id, None, None, None, None, None, [])
        events = row.events[followed.version :][: self.read_at_once]
        runner = self._disk.runners[followed.task_id]
        return TaskUpdate(followed.task_id, row.number, len(row.events), row.epoch, runner, row.memo, events)

    async def until_woken(self, seconds: float) -> WakeUp:
        self._asked["wake-up"] += 1
        return await self._wake_ups.get()

    def wake_here(self) -> None:
        self._wake_ups.put_nowait(ANYTHING)

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def post(self, task_id: str, owner: str, runner: str, body: bytes) -> int | None:
        return None

    async def take(self) -> list[ReplicaRequest]:
        taken = self.requests[: self.taken_at_once]
        del self.requests[: self.taken_at_once]
        return taken

    async def finish(self, number: int, rejection: str = "") -> None:
        self.rejections[number] = rejection

    async def answer(self, number: int) -> str | None:
        return self.rejections.get(number)

    async def withdraw(self, number: int) -> bool:
        return False
