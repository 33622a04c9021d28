"""Stores of users whose tasks are dictionaries: their recognition, and the JSON that they receive."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given

from apcore_a2a.protocol.model import Task, TaskState, TaskStatus
from apcore_a2a.storage.contract import SavedPushConfig
from apcore_a2a.storage.dict_store import DictTaskStore, from_dict, takes_dicts, to_dict
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.app.test_app import send
from tests.interaction.serving import serving
from tests.modules import Add, Pay, registry
from tests.protocol import strategies
from tests.requirements import requirement
from tests.storage.contract import DictStore, StoreOfDicts


class Annotated(DictStore):
    async def save(self, task: dict[str, Any]) -> None:  # type: ignore[override]  # the override is under test
        """Has its annotation as text."""


class Bare(DictStore):
    async def save(self) -> None:  # type: ignore[override]  # the override is under test
        """Has no parameter."""


@pytest.mark.parametrize(
    ("store", "wants"),
    [(StoreOfDicts(), True), (Annotated(), True), (DictStore(), False), (InMemoryTaskStore(), False), (Bare(), False)],
)
def test_a_dict_store_is_recognised_by_its_methods_or_annotations(store: Any, wants: bool) -> None:
    assert takes_dicts(store) is wants


def test_an_evaluated_dict_annotation_is_recognised() -> None:
    def save(task: Any) -> None: ...

    for declared, wants in ((dict, True), (dict[str, Any], True), (Task, False), (Any, False)):
        save.__annotations__["task"] = declared
        store = DictStore()
        store.save = save  # type: ignore[assignment, method-assign]  # the assignment is under test
        assert takes_dicts(store) is wants


@given(strategies.tasks())
def test_the_round_trip_through_a_dictionary_loses_nothing(task: Task) -> None:
    kept = json.loads(json.dumps(to_dict(task)))
    before = json.dumps(kept)
    assert from_dict(kept) == task
    assert json.dumps(kept) == before


async def test_states_are_written_in_short_form_and_read_in_both_spellings() -> None:
    store = StoreOfDicts()
    tasks = DictTaskStore(store)
    await tasks.save(Task(id="t", status=TaskStatus(state=TaskState.INPUT_REQUIRED)))
    kept = await store.get("t")
    assert kept is not None and kept["status"]["state"] == "input-required"
    for word in ("input_required", "input-required"):
        await store.update_status("t", {"state": word})
        found = await tasks.get("t")
        assert found is not None and found.status.state is TaskState.INPUT_REQUIRED


async def test_webhooks_are_dictionaries_too() -> None:
    tasks = DictTaskStore(StoreOfDicts())
    config = SavedPushConfig(url="https://client.example/hook", token="x", a2a_version="0.3")
    assert await tasks.get_push_config("t") is None
    await tasks.save_push_config("t", config)
    assert await tasks.get_push_config("t") == config
    assert await tasks.delete_push_config("t")
    assert not await tasks.delete_push_config("t")


@requirement("FR-STR-001", "FR-STR-003", "FR-CTX-004")
async def test_a_dict_store_as_in_the_design_stores_an_agent_s_tasks_across_restarts() -> None:
    class Durable(StoreOfDicts):
        durable = True

    store = Durable()
    modules = registry(math__add=Add(), bank__pay=Pay())
    async with serving(modules, card=None, task_store=store) as url, httpx.AsyncClient(base_url=url) as client:

        async def call(body: dict[str, Any]) -> Any:
            return (await client.post("/", json=body)).json()["result"]

        done = await call(send())
        asked = await call(send(skill="bank.pay"))
        assert (done["status"]["state"], asked["status"]["state"]) == ("completed", "input-required")
        kept = await store.get(done["id"])
        assert kept is not None
        assert (kept["contextId"], kept["status"]["state"]) == (done["contextId"], "completed")
        canceled = await call({**send(method="tasks/cancel"), "params": {"id": asked["id"]}})
        assert canceled["status"]["state"] == "canceled"
        listed = await call({**send(method="tasks/list"), "params": {}})
        assert {task["id"] for task in listed["tasks"]} == {done["id"], asked["id"]}
    async with serving(modules, card=None, task_store=store) as url, httpx.AsyncClient(base_url=url) as client:
        found = (await client.post("/", json={**send(method="tasks/get"), "params": {"id": done["id"]}})).json()
        assert found["result"]["artifacts"] == done["artifacts"]
