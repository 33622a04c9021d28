"""Modules that stream: chunk by chunk, then the merged result."""

import asyncio
from typing import Any

import pytest

from apcore_a2a.errors import AgentError, InvalidAgentResponseError
from tests.agents.apcore.running import (
    Counts,
    Data,
    Outcome,
    Total,
    agent_of,
    call_of,
    needs_pipeline,
    run,
    take,
)
from tests.requirements import requirement


@requirement("FR-EXE-001")
async def test_peer_weakness_13_chunks_are_sent_one_by_one_and_replaced_by_the_merged_result() -> None:
    module = Counts({"n": 1, "seen": {"one": True}}, {"n": 2, "seen": {"two": True}}, {"list": [1]}, {"list": [2]})
    outcome = await run(agent_of(a__counts=module), call_of("go"))
    assert [(update.append, update.last_chunk) for update in outcome.updates] == [
        (False, False),
        (True, False),
        (True, False),
        (True, False),
        (False, True),
    ]
    assert outcome.data == {"n": 2, "seen": {"one": True, "two": True}, "list": [2]}
    assert len({update.artifact.artifact_id for update in outcome.updates}) == 1


async def test_a_chunk_is_copied_when_it_is_yielded() -> None:
    growing: list[int] = []

    class Grows:
        description = "Yield one list again and again"

        async def execute(self, inputs: Data, context: Any) -> Data:
            return {}

        async def stream(self, inputs: Data, context: Any) -> Any:
            for number in range(3):
                growing.append(number)
                yield {"usage": {str(number): number}, "list": growing}
            growing.append(99)

    outcome = await run(agent_of(a__grows=Grows()), call_of("go"))
    assert [update.artifact.parts[0].data for update in outcome.updates[:-1]] == [
        {"usage": {"0": 0}, "list": [0]},
        {"usage": {"1": 1}, "list": [0, 1]},
        {"usage": {"2": 2}, "list": [0, 1, 2]},
    ]
    assert outcome.data == {"usage": {"0": 0, "1": 1, "2": 2}, "list": [0, 1, 2]}


async def test_objects_are_merged_at_any_depth_and_replace_what_is_none() -> None:
    module = Counts({"a": {"b": {"c": 1}}, "x": 1}, {"a": {"b": {"d": 2}}, "x": {"y": 1}}, {"a": {"b": {"c": 3}}})
    outcome = await run(agent_of(a__counts=module), call_of("go"))
    assert outcome.data == {"a": {"b": {"c": 3, "d": 2}}, "x": {"y": 1}}


async def test_an_empty_first_chunk_is_a_chunk() -> None:
    outcome = await run(agent_of(a__counts=Counts({}, {"n": 1})), call_of("go"))
    assert [update.append for update in outcome.updates] == [False, True, False]
    assert outcome.data == {"n": 1}


async def test_a_stream_without_chunks_still_has_one_artifact() -> None:
    assert (await run(agent_of(a__counts=Counts()), call_of("go"))).data == {}


@pytest.mark.parametrize(
    "schema",
    [Total, pytest.param({"type": "object", "required": ["total"]}, marks=needs_pipeline)],
    ids=["model", "dict"],
)
async def test_a_streamed_result_that_does_not_match_its_schema_fails_the_run(schema: Any) -> None:
    module = Counts({"n": 1}, output_schema=schema)
    with pytest.raises(InvalidAgentResponseError, match="output does not match its schema"):
        await run(agent_of(a__counts=module), call_of("go"))


async def test_a_chunk_that_is_not_an_object_is_an_internal_error() -> None:
    with pytest.raises(AgentError, match="Internal error"):
        await run(agent_of(a__counts=Counts({"n": 1}, "two")), call_of("go"))


async def test_a_stream_that_fails_keeps_the_sent_chunks() -> None:
    agent = agent_of(a__counts=Counts({"n": 1}, then=RuntimeError("boom")))
    call = call_of("go")
    outcome = Outcome(call)
    with pytest.raises(AgentError):
        async for event in agent.run(call):
            take(outcome, event)
    assert outcome.data == {"n": 1}


async def test_only_an_async_generator_counts_as_streaming() -> None:
    class Pretends:
        description = "Have a stream method that is none"

        async def execute(self, inputs: Data, context: Any) -> Data:
            return {"executed": True}

        async def stream(self, inputs: Data, context: Any) -> Any:
            raise AssertionError

    assert (await run(agent_of(a__pretends=Pretends()), call_of("go"))).data == {"executed": True}


async def test_closing_a_stream_closes_the_module() -> None:
    closed = asyncio.Event()

    class Endless:
        description = "Never stop"

        async def execute(self, inputs: Data, context: Any) -> Data:
            return {}

        async def stream(self, inputs: Data, context: Any) -> Any:
            try:
                while True:
                    yield {"n": 1}
            finally:
                closed.set()

    events = agent_of(a__endless=Endless()).run(call_of("go"))
    async with asyncio.timeout(5):
        async for event in events:
            if getattr(event, "artifact", None):
                break
        await events.aclose()
        await closed.wait()


@needs_pipeline
async def test_a_streamed_result_may_match_a_schema_that_is_a_dict() -> None:
    module = Counts({"total": 1}, output_schema={"type": "object", "required": ["total"]})
    assert (await run(agent_of(a__counts=module), call_of("go"))).data == {"total": 1}
