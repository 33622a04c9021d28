"""The small contract `TaskStore`, and the store in memory as an implementation of it."""

import inspect

import pytest

from apcore_a2a.protocol.model import Artifact, Part, PushConfig, Task, TaskState, TaskStatus
from apcore_a2a.storage.contract import METHODS, TaskStore, missing_methods
from apcore_a2a.storage.custom import TaskStoreAdapter
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.requirements import requirement
from tests.storage.contract import Clock, DictStore, timestamp


def make_task(task_id: str, context_id: str = "talk", state: TaskState = TaskState.WORKING) -> Task:
    return Task(id=task_id, context_id=context_id, status=TaskStatus(state=state, timestamp=timestamp()))


@requirement("FR-STR-001")
def test_the_contract_is_seven_async_methods_that_can_be_checked_at_run_time() -> None:
    methods = {name for name, member in vars(TaskStore).items() if inspect.iscoroutinefunction(member)}
    assert sorted(methods) == list(METHODS)
    assert len(METHODS) == 7
    assert isinstance(DictStore(), TaskStore)
    assert not isinstance(object(), TaskStore)


@requirement("FR-STR-003")
def test_any_class_with_the_seven_methods_is_accepted() -> None:
    assert missing_methods(DictStore()) == []
    TaskStoreAdapter(DictStore())


@requirement("FR-STR-003")
def test_missing_methods_of_a_store_are_named() -> None:
    class Half:
        async def save(self, task: Task) -> None: ...

        get = "not callable"

    text = "Half lacks methods of TaskStore: delete, delete_push_config, get, get_push_config, list, save_push_config"
    with pytest.raises(TypeError, match=f"^{text}$"):
        TaskStoreAdapter(Half())


@requirement("FR-STR-002")
def test_the_memory_store_is_a_task_store_with_the_required_defaults() -> None:
    assert isinstance(InMemoryTaskStore(), TaskStore)
    defaults = {name: each.default for name, each in inspect.signature(InMemoryTaskStore).parameters.items()}
    assert (defaults["ttl_seconds"], defaults["max_capacity"], defaults["max_context_messages"]) == (3600, 10_000, 100)


@pytest.mark.parametrize(("ttl", "capacity"), [(0, 1), (-1, 1), (1, 0)])
def test_a_limit_of_zero_is_rejected(ttl: float, capacity: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        InMemoryTaskStore(ttl=ttl, max_capacity=capacity)


@requirement("FR-STR-002")
async def test_tasks_are_saved_read_and_deleted() -> None:
    store = InMemoryTaskStore()
    task = make_task("t")
    await store.save(task)
    assert await store.get("t") == task
    assert await store.get("unknown") is None
    assert await store.delete("t") is True
    assert await store.delete("t") is False
    assert await store.get("t") is None


@requirement("FR-STR-002")
async def test_saving_again_also_replaces_an_ended_task() -> None:
    store = InMemoryTaskStore()
    for state in (TaskState.WORKING, TaskState.COMPLETED, TaskState.WORKING):
        task = make_task("t", state=state)
        await store.save(task)
        assert await store.get("t") == task
    await store.save(make_task("later"))
    await store.save(make_task("t"))
    assert [each.id for each in (await store.list()).tasks] == ["later", "t"]


@requirement("FR-STR-002")
async def test_a_saved_task_is_a_copy() -> None:
    store = InMemoryTaskStore()
    task = make_task("t")
    await store.save(task)
    task.artifacts.append(Artifact(artifact_id="a", parts=[Part(text="later")]))
    saved = await store.get("t")
    assert saved is not None
    assert saved.artifacts == []


@requirement("FR-STR-002")
async def test_lists_are_newest_first_by_creation_in_pages_and_by_context() -> None:
    store = InMemoryTaskStore()
    for n in range(5):
        await store.save(make_task(f"t{n}", context_id=f"c{n % 2}"))
    first = await store.list(None, None, 3)
    second = await store.list(None, first.next_cursor, 3)
    assert [task.id for task in (*first.tasks, *second.tasks)] == ["t4", "t3", "t2", "t1", "t0"]
    assert second.next_cursor is None
    assert [task.id for task in (await store.list("c1", None, 10)).tasks] == ["t3", "t1"]


@requirement("FR-STR-002")
async def test_a_saved_task_expires_when_it_has_ended() -> None:
    clock = Clock()
    store = InMemoryTaskStore(ttl=10, clock=clock)
    await store.save(make_task("ended", state=TaskState.COMPLETED))
    await store.save(make_task("again", state=TaskState.COMPLETED))
    for name in ("again", "running"):
        await store.save(make_task(name))
    clock.now += 10
    assert await store.get("ended") is None
    assert await store.get("again") is not None
    assert await store.get("running") is not None


@requirement("FR-STR-002")
async def test_push_configs_are_stored_with_their_task() -> None:
    store = InMemoryTaskStore()
    config = PushConfig(url="https://example.com/hook")
    await store.save(make_task("t"))
    await store.save_push_config("t", config)
    assert await store.get_push_config("t") == config
    assert await store.delete_push_config("t") is True
    assert await store.delete_push_config("t") is False
    await store.save_push_config("t", config)
    await store.save(make_task("t"))
    assert await store.get_push_config("t") == config
    await store.delete("t")
    assert await store.get_push_config("t") is None
