"""`open_modules` accepts registries, executors and clients, and does not change them."""

import ast
from pathlib import Path
from typing import Any

import apcore
import pytest
from pydantic import BaseModel

from apcore_a2a import async_serve
from apcore_a2a.agents.apcore.executor import RegistryView, ServedExecutor, open_modules
from tests.agents.apcore.running import Add, Counts, Data, agent_of, call_of, needs_pipeline, registry_of, run
from tests.sources import PACKAGE


async def test_a_registry_an_executor_and_a_client_are_served_alike() -> None:
    registry = registry_of(math__add=Add())
    held = [registry, apcore.Executor(registry), RegistryView(registry), apcore.Executor(RegistryView(registry))]
    if hasattr(apcore, "APCore"):
        held.append(apcore.APCore(registry=registry))
    for source in held:
        assert open_modules(source).registry is registry
        assert (await run(agent_of(source), call_of({"a": 1, "b": 2}))).data == {"total": 3}


@pytest.mark.parametrize("source", [None, 1, "registry", {}, object(), apcore.Registry])
def test_any_other_object_is_a_type_error_that_names_the_accepted_types(source: object) -> None:
    with pytest.raises(TypeError, match="Registry, Executor or APCore client"):
        open_modules(source)


async def test_another_executor_is_used_unchanged() -> None:
    class Own:
        def __init__(self, registry: apcore.Registry) -> None:
            self.registry = registry

        def validate(self, module_id: str, inputs: Data) -> Any:
            return apcore.ValidationResult(valid=True, errors=[])

        async def call_async(self, module_id: str, inputs: Data, context: Any) -> Data:
            return {"called": module_id}

    assert (await run(agent_of(Own(registry_of(math__add=Add()))), call_of({"a": 1}))).data == {"called": "math.add"}


def test_the_configuration_of_a_client_and_of_a_served_executor_is_known() -> None:
    config = apcore.Config({"project": {"name": "calculator"}})
    assert open_modules(ServedExecutor(apcore.Registry(), config=config)).config is config
    assert open_modules(apcore.Executor(apcore.Registry(), config=config)).config is None  # not exposed
    if hasattr(apcore, "APCore"):
        assert open_modules(apcore.APCore(config=config)).config is config


# Later changes of a served object apply


async def test_a_middleware_added_later_applies() -> None:
    seen: list[str] = []
    executor = apcore.Executor(registry_of(math__add=Add()))
    agent = agent_of(executor)
    executor.use_before(lambda module_id, inputs, context: seen.append(module_id))
    await run(agent, call_of({"a": 1, "b": 2}))
    assert seen == ["math.add"]


@needs_pipeline
async def test_a_step_added_later_applies() -> None:
    seen: list[str] = []

    class Step(apcore.BaseStep):  # type: ignore[misc]  # apcore is untyped
        def __init__(self) -> None:
            super().__init__(name="look", description="Look", removable=True, replaceable=True)

        async def execute(self, ctx: Any) -> Any:
            seen.append(ctx.module_id)
            return apcore.StepResult(action="continue")

    executor = apcore.Executor(registry_of(math__add=Add()))
    agent = agent_of(executor)
    executor.current_strategy.insert_after("module_lookup", Step())
    await run(agent, call_of({"a": 1, "b": 2}))
    assert seen == ["math.add"]


# Served objects do not change


def attributes(*things: Any) -> list[dict[str, Any]]:
    """Return all attributes of objects, with the contents of their lists and dicts."""
    return [{name: repr(value) for name, value in vars(thing).items()} for thing in things]


def classes(*kinds: type) -> list[dict[str, Any]]:
    """Return the attributes of a class by identity: a replaced method is another object."""
    return [dict(vars(kind)) for kind in kinds]


class Text(BaseModel):
    text: str


@pytest.mark.parametrize("kind", ["a registry", "an executor", "a served executor"])
async def test_served_objects_do_not_change(kind: str) -> None:
    class Question(Text):
        pass

    class Answer(Text):
        pass

    class Module:
        description = "Answer a question"
        input_schema = Question
        output_schema = Answer

        def __init__(self) -> None:
            self.calls = 0

        async def execute(self, inputs: Data, context: Any) -> Data:
            return {"text": inputs["text"]}

    module, streaming = Module(), Counts({"text": "one"}, input_schema=Question, output_schema=Answer)
    registry = registry_of(a__module=module, a__stream=streaming)
    source: Any = registry
    executors: list[Any] = []
    if kind != "a registry":
        source = apcore.Executor(registry) if kind == "an executor" else ServedExecutor(registry)
        executors = [source]
        await source.call_async("a.module", {"text": "hello"})  # apcore itself caches data with the first call
        source.registry.get_definition("a.module")
    models: list[type] = [Question, Answer, Text, BaseModel, Module, Counts, apcore.Registry, apcore.Executor]
    before = attributes(module, streaming, registry, *executors), classes(*models)

    app = await async_serve(source)
    agent = agent_of(source)
    for skill in ("a.module", "a.stream"):
        await run(agent, call_of({"text": "hello"}, skill=skill))
    assert app.cards.card.skills

    assert (attributes(module, streaming, registry, *executors), classes(*models)) == before
    assert [*Question.__subclasses__(), *Answer.__subclasses__()] == []


def private_names(source: str) -> list[str]:
    """Return private names of objects other than `self`, as attributes or as strings for getattr and the like."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="self")):
                pass
            case ast.Attribute(attr=name) if name.startswith("_") and not name.endswith("__"):
                found.append(name)
            case ast.Call(args=[_, ast.Constant(value=str(name)), *_]) if name.startswith("_") and name[1:2] != "_":
                found.append(name)
    return found


@pytest.mark.parametrize("path", sorted((PACKAGE / "agents" / "apcore").glob("*.py")), ids=lambda path: path.name)
def test_no_private_name_of_apcore_or_of_the_application_is_used(path: Path) -> None:
    assert private_names(path.read_text(encoding="utf-8")) == []


def test_private_names_are_found() -> None:
    assert private_names("executor._acl; self._known; getattr(executor, '_config', None)") == ["_acl", "_config"]
