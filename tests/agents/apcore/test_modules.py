"""`Modules`: descriptions, lookup, and notifications of changes."""

import gc
import logging
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apcore
import pytest
from apcore.decorator import module as apcore_module
from pydantic import BaseModel

from apcore_a2a.agents.apcore.agent import build_card
from apcore_a2a.agents.apcore.executor import open_modules
from apcore_a2a.agents.apcore.modules import ModuleInfo
from apcore_a2a.agents.skills import Annotations, Example
from tests.agents.apcore.running import Add, Counts, Returns, modules_of, registry_of

FILE = """
from pydantic import BaseModel
class In(BaseModel):
    a: int
class Tool:
    description = "From a file"
    input_schema = In
    output_schema = In
    async def execute(self, inputs, context):
        return inputs
"""


def only(**modules: Any) -> ModuleInfo:
    (found,) = modules_of(**modules)
    return found


def test_a_module_is_described_by_its_attributes() -> None:
    example = apcore.ModuleExample(title="Small", inputs={"a": 1, "b": 2}, output={"total": 3})
    module = Add()
    vars(module).update(examples=[example], version="2.1.0")
    found = only(math__add=module)
    assert (found.id, found.description, found.tags, found.version) == (
        "math.add",
        "Add two integers",
        ("math",),
        "2.1.0",
    )
    assert found.annotations == Annotations(readonly=True)
    assert found.examples == (Example("Small", {"a": 1, "b": 2}),)
    assert set(found.input_schema["properties"]) == {"a", "b"}
    assert set(found.output_schema["properties"]) == {"total"}
    assert (found.streams, found.hidden, found.is_skill) == (False, False, True)


def test_a_module_without_attributes_is_described_by_defaults() -> None:
    found = only(a__module=Returns({}))
    assert (found.annotations, found.examples, found.input_schema, found.output_schema) == (None, (), {}, {})
    assert (found.tags, found.display) == ((), {})
    assert not found.is_repeatable


def test_annotations_may_be_a_dict() -> None:
    found = only(a__module=Returns({}, annotations={"destructive": True, "open_world": False, "unknown": 1}))
    assert found.annotations == Annotations(destructive=True, open_world=False)


def test_a_function_can_be_a_module() -> None:
    registry = apcore.Registry()

    @apcore_module(id="math.double", description="Double a number", registry=registry)  # type: ignore[untyped-decorator]
    def double(number: int) -> dict[str, int]:
        return {"doubled": 2 * number}

    found = open_modules(registry).find("math.double")
    assert found is not None
    assert set(found.input_schema["properties"]) == {"number"}


def test_a_stream_method_makes_a_module_a_streaming_one() -> None:
    assert only(a__counts=Counts()).streams


@pytest.mark.parametrize("where", ["metadata", "attribute"])
def test_display_is_found_wherever_apcore_keeps_it(where: str) -> None:
    display = {"alias": "Nice"}
    attributes = {"metadata": {"display": display}} if where == "metadata" else {"display": display}
    assert only(a__module=Returns({}, **attributes)).display == display


def test_modules_from_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "tool.py").write_text(FILE)
    registry = apcore.Registry(extensions_dir=str(tmp_path))
    registry.discover()
    assert [module.id for module in open_modules(registry)] == ["text.tool"]


def test_modules_come_sorted_and_without_apcores_own() -> None:
    registry = registry_of(b__two=Returns({}), a__one=Returns({}))
    if hasattr(registry, "register_internal"):
        registry.register_internal("system.health", Returns({}))
    assert [module.id for module in open_modules(registry)] == ["a.one", "b.two"]


def test_hidden_modules_are_modules_but_not_skills() -> None:
    if not hasattr(apcore.ModuleAnnotations(), "discoverable"):
        pytest.skip("this apcore hides nothing")
    found = only(secret__tool=Returns({}, annotations=apcore.ModuleAnnotations(discoverable=False)))
    assert (found.hidden, found.is_skill) == (True, False)


def test_a_module_is_described_once() -> None:
    modules = modules_of(math__add=Add())
    assert modules.find("math.add") is modules.find("math.add")


@pytest.mark.parametrize("module_id", ["", "math", "math.sub", "x" * 100_000, "system.health"])
def test_an_unknown_module_is_not_found(module_id: str) -> None:
    assert modules_of(math__add=Add()).find(module_id) is None


def test_peer_weakness_16_a_module_registered_again_is_described_again() -> None:
    registry = registry_of(a__module=Returns({}))
    modules = open_modules(registry)
    assert modules.find("a.module").description == "Return a value"  # type: ignore[union-attr]  # or the test fails
    registry.unregister("a.module")
    registry.register("a.module", Returns({}, description="Better"))
    assert modules.find("a.module").description == "Better"  # type: ignore[union-attr]
    registry.unregister("a.module")
    assert modules.find("a.module") is None


def test_a_change_on_any_thread_calls_the_watcher_on_that_thread() -> None:
    registry = registry_of(math__add=Add())
    told: list[int] = []
    open_modules(registry).watch(lambda: told.append(threading.get_ident()))
    registry.register("a.one", Returns({}))
    worker = threading.Thread(target=registry.unregister, args=("math.add",))
    worker.start()
    worker.join(5)
    assert told == [threading.get_ident(), worker.ident]


def test_a_module_without_a_description_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    modules = modules_of(nameless__tool=Returns({}, description=""))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert [module.is_skill for module in modules] == [False]
    assert [record.__dict__["module_id"] for record in caplog.records if record.name.startswith("apcore_a2a")] == [
        "nameless.tool"
    ]


def test_only_the_module_that_cannot_be_described_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(BaseModel):
        callback: Callable[[], None]  # has no JSON Schema

    modules = modules_of(math__add=Add(), odd__one=Returns({}, input_schema=Odd))
    with caplog.at_level(logging.ERROR):
        assert [module.id for module in modules] == [module.id for module in modules] == ["math.add"]
    assert [record.__dict__["module_id"] for record in caplog.records] == ["odd.one"]


@pytest.mark.parametrize(
    "says",
    [
        {"description": 5},
        {"description": "half of a \ud83d"},
        {"tags": [5]},
        {"display": "short"},
        {"display": {"alias": 5}},
        {"display": {"a2a": {"tags": "short"}}},
        {"examples": [apcore.ModuleExample(title="Odd", inputs={"n": object()}, output={})]},
        {"input_schema": {"type": "object", "properties": {"n": {"default": object()}}}},
    ],
    ids=["description", "half", "tag", "display", "alias", "tags", "example", "schema"],
)
def test_only_the_module_that_a_card_cannot_contain_is_left_out(
    says: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    modules = modules_of(math__add=Add(), odd__one=Returns({}, **says))
    with caplog.at_level(logging.ERROR):
        assert [skill.id for skill in build_card(modules).skills] == ["math.add"]
    assert [record.__dict__["module_id"] for record in caplog.records] == ["odd.one"]


def test_schemas_may_be_dicts() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert only(a__module=Returns({}, input_schema=schema, output_schema=schema)).input_schema == schema


def test_a_module_that_was_removed_is_not_kept() -> None:
    module = Add()
    registry, kept = registry_of(math__add=module), weakref.ref(module)
    modules = open_modules(registry)
    modules.watch(list)
    assert modules.find("math.add") is not None
    del module
    registry.unregister("math.add")
    gc.collect()
    assert kept() is None
