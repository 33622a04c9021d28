"""Executors other than apcore's: any object that can call a module."""

import inspect
from typing import Any

import pytest

from apcore_a2a.agents.apcore.modules import passing_context
from apcore_a2a.agents.threads import MAX_THREADS
from apcore_a2a.protocol.model import Part, TaskState
from tests.agents.apcore.conftest import SpeakTo
from tests.agents.apcore.running import Add, Counts, Data, agent_of, registry_of
from tests.requirements import requirement


class Bare:
    """A minimal executor: it takes no context, checks nothing and cannot stream."""

    def __init__(self, **modules: Any) -> None:
        self.registry = registry_of(**modules)
        self.calls: list[Any] = []

    async def call_async(self, module_id: str, inputs: Data) -> Data:
        self.calls.append((module_id, inputs))
        return {"called": module_id}


class WithContext(Bare):
    async def call_async(self, module_id: str, inputs: Data, *, context: Any) -> Data:  # type: ignore[override]
        return {"trace": context is not None}


class Streaming(Bare):
    async def stream(self, module_id: str, inputs: Data) -> Any:
        yield {"a": 1}
        yield {"b": 2}


@requirement("NFR-CMP-002")
async def test_an_executor_that_takes_no_context_is_called_without_one(speak_to: SpeakTo) -> None:
    executor = Bare(math__add=Add())
    speaker = await speak_to(executor)
    task = await speaker.send('{"a": 1, "b": 2}')
    assert task.artifacts[0].parts == [Part(data={"called": "math.add"}, media_type="application/json")]
    assert executor.calls == [("math.add", {"a": 1, "b": 2})]


async def test_a_context_is_passed_by_keyword_if_it_is_keyword_only(speak_to: SpeakTo) -> None:
    task = await (await speak_to(WithContext(math__add=Add()))).send('{"a": 1, "b": 2}')
    assert task.artifacts[0].parts == [Part(data={"trace": True}, media_type="application/json")]


async def test_a_streaming_module_is_called_normally_if_the_executor_cannot_stream(speak_to: SpeakTo) -> None:
    task = await (await speak_to(Bare(a__counts=Counts({"n": 1})))).send("go")
    assert task.status.state is TaskState.COMPLETED
    assert task.artifacts[0].parts == [Part(data={"called": "a.counts"}, media_type="application/json")]


async def test_stream_of_an_executor_need_not_take_a_context(speak_to: SpeakTo) -> None:
    speaker = await speak_to(Streaming(a__counts=Counts({"n": 1})))
    task = await speaker.send("go")
    assert task.artifacts[0].parts == [Part(data={"a": 1, "b": 2}, media_type="application/json")]


def test_methods_of_apcore_are_called_without_a_wrapper() -> None:
    async def third(module_id: str, inputs: Data, ctx: Any = None) -> None: ...

    async def anything(*args: Any, **options: Any) -> None: ...

    for method in (third, anything, max):  # `max` has no signature
        assert passing_context(method) is method
    with pytest.raises(ValueError, match="signature"):
        inspect.signature(max)


@requirement("FR-AGC-002")
@pytest.mark.parametrize(("make", "streams"), [(Bare, False), (Streaming, True)])
@pytest.mark.parametrize("path", ["/.well-known/agent.json", "/.well-known/agent-card.json"])
async def test_the_card_states_whether_the_executor_streams(
    speak_to: SpeakTo, make: Any, streams: bool, path: str
) -> None:
    speaker = await speak_to(make(a__counts=Counts({"n": 1})))
    capabilities = (await speaker.http.get(path)).json()["capabilities"]
    assert capabilities["streaming"] is streams
    assert capabilities["pushNotifications"] is False
    assert capabilities["stateTransitionHistory"] is False  # without state_history=True


@requirement("FR-AGC-002")
async def test_the_card_of_a_registry_states_that_it_streams(speak_to: SpeakTo) -> None:
    speaker = await speak_to(registry_of(math__add=Add()))
    card = (await speaker.http.get("/.well-known/agent.json")).json()
    assert card["capabilities"]["streaming"] is True
    async with speaker.stream('{"a": 1, "b": 2}') as stream:
        assert len(await stream.rest()) > 1


def test_a_custom_executor_has_no_stuck_threads_and_full_capacity() -> None:
    agent = agent_of(Bare(math__add=Add()))
    assert (agent.stuck_threads, agent.thread_capacity) == (0, MAX_THREADS)
