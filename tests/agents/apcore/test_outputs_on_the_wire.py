"""Outputs of modules as clients receive them: through a socket, over each binding and version, on every apcore."""

import json
from dataclasses import dataclass
from typing import Any

import apcore
import pytest
from pydantic import BaseModel, RootModel

from apcore_a2a.agents.apcore.executor import ServedExecutor
from apcore_a2a.protocol.model import Operation, Part, Task, TaskState
from tests.agents.apcore.conftest import SpeakTo
from tests.agents.apcore.running import Data, Returns, agent_of, needs_pipeline, registry_of
from tests.requirements import requirement

PNG = b"\x89PNG\r\n\x1a\n\x00\xff"


class Word(RootModel[str]):
    pass


class Numbers(RootModel[list[int]]):
    pass


class Own:
    """An executor other than apcore's."""

    def __init__(self, **modules: Any) -> None:
        self.registry = registry_of(**modules)

    async def call_async(self, module_id: str, inputs: Data, context: Any) -> Any:
        return await self.registry.get(module_id).execute(inputs, context)


class Reading(BaseModel):
    celsius: float


@dataclass
class Point:
    x: int


def data(value: Any) -> Part:
    return Part(data=value, media_type="application/json")


OUTPUTS: list[tuple[Any, list[Part]]] = [
    ({"a": 1, "list": [1, None]}, [data({"a": 1, "list": [1, None]})]),
    ({}, [data({})]),
    ("hello", [Part(text="hello")]),
    ("", [Part(text="")]),
    (PNG, [Part(raw=PNG, media_type="image/png")]),
    (b"", [Part(raw=b"", media_type="application/octet-stream")]),
    ({"picture": PNG, "width": 3}, [data({"width": 3}), Part(raw=PNG, filename="picture", media_type="image/png")]),
    ([1, {"two": 2}], [data([1, {"two": 2}])]),
    ([], [data([])]),
    ([("a", 1)], [data([["a", 1]])]),
    ((1, 2), [data([1, 2])]),
    (3, [data(3)]),
    (0, [data(0)]),
    (2**60 + 1, [data(2**60 + 1)]),
    (1.5, [data(1.5)]),
    (True, [data(True)]),
    (False, [data(False)]),
    (Reading(celsius=1.5), [data({"celsius": 1.5})]),
    (Point(1), [data({"x": 1})]),
]


def parts_of(task: Task) -> list[Part]:
    """Return the parts of the single artifact of a completed task."""
    assert task.status.state is TaskState.COMPLETED
    (artifact,) = task.artifacts
    return artifact.parts


@requirement("FR-MSG-004")
@pytest.mark.parametrize(("output", "parts"), OUTPUTS, ids=lambda value: repr(value)[:40])
async def test_an_output_becomes_the_parts_of_one_artifact(speak_to: SpeakTo, output: Any, parts: list[Part]) -> None:
    speaker = await speak_to(registry_of(a__module=Returns(output)))
    task = await speaker.send("go")
    assert parts_of(task) == parts
    assert parts_of(await speaker.get(task.id)) == parts


@requirement("FR-MSG-004")
async def test_none_is_an_empty_artifact_or_null_if_a_part_is_required(speak_to: SpeakTo) -> None:
    speaker = await speak_to(registry_of(a__module=Returns(None)))
    response = await speaker.http.send(speaker.request(Operation.SEND, speaker.message("go")))
    said = json.dumps(response.json())
    task = await speaker.get((await speaker.list()).tasks[0].id)
    if speaker.version == "1.0":
        assert parts_of(task) == [data(None)]
        assert '"data": null' in said
    else:
        assert parts_of(task) == []
        assert '"parts": []' in said
        assert "null" not in said


@pytest.mark.parametrize(
    ("schema", "output", "part"),
    [
        (Word, "hello", Part(text="hello")),
        (Numbers, [1, 2], data([1, 2])),
        ({"type": "string"}, "hello", Part(text="hello")),
        ({"type": "array", "items": {"type": "integer"}}, [1, 2], data([1, 2])),
    ],
    ids=["a string", "a list", "a string, by a dict", "a list, by a dict"],
)
async def test_an_output_that_is_not_an_object_is_validated(
    speak_to: SpeakTo, schema: Any, output: Any, part: Part
) -> None:
    if isinstance(schema, dict) and not hasattr(apcore, "PipelineEngine"):
        pytest.skip("this apcore knows no schemas but models")
    speaker = await speak_to(registry_of(a__module=Returns(output, output_schema=schema)))
    assert parts_of(await speaker.send("go")) == [part]


@needs_pipeline
@pytest.mark.parametrize("schema", ["input_schema", "output_schema"])
async def test_an_empty_schema_accepts_any_output(speak_to: SpeakTo, schema: str) -> None:
    empty: Data = {schema: {}}
    speaker = await speak_to(registry_of(a__module=Returns("hello", **empty)))
    assert parts_of(await speaker.send("go")) == [Part(text="hello")]


@pytest.mark.parametrize(
    "schema", [Word, Numbers, Reading, {"type": "string"}, {"type": "object"}], ids=lambda schema: str(schema)[-25:]
)
async def test_an_output_that_does_not_match_its_schema_fails_the_task(speak_to: SpeakTo, schema: Any) -> None:
    if isinstance(schema, dict) and not hasattr(apcore, "PipelineEngine"):
        pytest.skip("this apcore knows no schemas but models")
    speaker = await speak_to(registry_of(a__module=Returns(3, output_schema=schema)))
    task = await speaker.send("go")
    assert task.status.state is TaskState.FAILED
    assert task.status.message is not None
    assert task.status.message.parts == (Part(text="The module's output does not match its schema"),)
    assert task.status.message.metadata == {"type": "SchemaValidationError", "code": -32006}


async def test_none_matches_every_schema(speak_to: SpeakTo) -> None:
    """As in newer apcore. By itself 0.6.0 validates None like any other output."""
    speaker = await speak_to(registry_of(a__module=Returns(None, output_schema=Reading)))
    assert parts_of(await speaker.send("go")) in ([], [data(None)])


async def test_a_calling_module_receives_the_output_of_the_called_module(speak_to: SpeakTo) -> None:
    class Calls:
        description = "Call a.module, and return what came"

        async def execute(self, inputs: Data, context: Any) -> Any:
            return [await context.executor.call_async("a.module", {}, context)]

    speaker = await speak_to(registry_of(a__module=Returns("hello"), a__calls=Calls()), default_skill="a.calls")
    assert parts_of(await speaker.send("go")) == [data(["hello"])]


@needs_pipeline
async def test_middleware_sees_an_object_and_may_change_it(speak_to: SpeakTo) -> None:
    seen: list[Data] = []

    def shout(module_id: str, inputs: Data, output: Data, context: Any) -> Data | None:
        seen.append(output)
        if output["result"] == "hello":
            return {"shouted": "HELLO"}
        return None

    executor = ServedExecutor(registry_of(a__module=Returns("hello"), b__module=Returns("bye")))
    executor.use_after(shout)
    speaker = await speak_to(executor, default_skill="a.module")
    assert parts_of(await speaker.send("go")) == [data({"shouted": "HELLO"})]
    assert seen == [{"result": "hello"}]


@needs_pipeline
@pytest.mark.parametrize("schema", [Word, Numbers], ids=["string", "array"])
def test_an_executor_limited_to_objects_rejects_modules_with_other_outputs(schema: Any) -> None:
    executor = apcore.Executor(registry_of(a__module=Returns("hello", output_schema=schema)))
    with pytest.raises(ValueError, match=r"a\.module.*ServedExecutor"):
        agent_of(executor)
    agent_of(ServedExecutor(registry_of(a__module=Returns("hello", output_schema=schema))))
    agent_of(Own(a__module=Returns("hello", output_schema=schema)))  # has no pipeline of apcore
    for objects in (Reading, {"type": ["object", "null"]}):
        agent_of(apcore.Executor(registry_of(a__module=Returns({}, output_schema=objects))))
