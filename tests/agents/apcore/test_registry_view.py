"""A registry view behaves as the registry, but caches schemas."""

import gc
import weakref
from typing import Any

import apcore
import pytest
from pydantic import BaseModel, ConfigDict, Field

from apcore_a2a.agents.apcore.executor import RegistryView
from apcore_a2a.errors import InvalidParamsError
from tests.agents.apcore.running import Add, Counts, Data, Returns, agent_of, call_of, needs_pipeline, registry_of, run
from tests.calls import count_calls


def model() -> type[BaseModel]:
    class Order(BaseModel):
        amount: int = Field(alias="sum")
        note: str = ""

    return Order


def view_of(module: Any) -> Any:
    """Return the view of a module that an executor receives."""
    return RegistryView(registry_of(a__module=module)).get("a.module")


def schema_view_of(schema: Any) -> Any:
    view = view_of(Returns({}, input_schema=schema))
    view.input_schema.model_json_schema()  # the first result is that of the model, later ones are cached
    return view.input_schema


def test_the_cached_schema_is_the_same() -> None:
    order = model()
    assert schema_view_of(order).model_json_schema() == order.model_json_schema()


def test_a_changed_schema_does_not_change_the_next_copy() -> None:
    order = model()
    view = schema_view_of(order)
    view.model_json_schema()["properties"].clear()
    assert view.model_json_schema() == order.model_json_schema()


@pytest.mark.parametrize("options", [{"mode": "serialization"}, {"by_alias": False}])
def test_a_schema_with_options_is_not_cached(options: dict[str, Any]) -> None:
    order = model()
    assert schema_view_of(order).model_json_schema(**options) == order.model_json_schema(**options)


def test_a_subclass_has_its_own_schema() -> None:
    order = model()
    schema_view_of(order)
    larger = type("Larger", (order,), {"__annotations__": {"extra": int}})
    assert set(schema_view_of(larger).model_json_schema()["properties"]) == {"sum", "note", "extra"}


def test_a_model_that_overrides_model_json_schema_is_not_cached() -> None:
    class Clock(BaseModel):
        @classmethod
        def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
            cls.__doc__ = f"{cls.__doc__}."
            return {"description": cls.__doc__}

    view = schema_view_of(Clock)
    assert view.model_json_schema() != view.model_json_schema()


@pytest.mark.parametrize("odd", [object, "\ud800", {1: 2}, (1, 2), float("nan")])
def test_a_schema_that_is_not_json_is_not_cached(odd: Any) -> None:
    class Odd(BaseModel):
        model_config = ConfigDict(json_schema_extra={"odd": odd})

    assert repr(schema_view_of(Odd).model_json_schema()) == repr(Odd.model_json_schema())


def test_a_model_without_a_schema_raises_its_own_error() -> None:
    class Odd(BaseModel):
        callback: Any

        @classmethod
        def __get_pydantic_json_schema__(cls, *args: Any) -> Any:
            raise RuntimeError("no schema")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no schema"):
            view_of(Returns({}, input_schema=Odd)).input_schema.model_json_schema()


@pytest.mark.parametrize("schema", [None, 1, object()])
def test_a_schema_that_is_not_a_model_is_unchanged(schema: Any) -> None:
    module = Returns({})
    registry = registry_of(a__module=module)
    vars(module).update(input_schema=schema)
    assert RegistryView(registry).get("a.module").input_schema is schema


def test_a_schema_is_built_once() -> None:
    made: list[str] = []

    class Order(BaseModel):
        model_config = ConfigDict(json_schema_extra=lambda schema: made.append("made"))

    view = RegistryView(registry_of(a__module=Returns({}, input_schema=Order, output_schema=Order)))
    for _ in range(3):
        module = view.get("a.module")
        module.input_schema.model_json_schema()
        module.output_schema.model_json_schema()
    assert made == ["made"]


# The module, and the registry


def test_a_replaced_module_is_seen_at_once() -> None:
    registry = registry_of(a__module=Returns({}, input_schema=model()))
    view = RegistryView(registry)
    assert "sum" in view.get("a.module").input_schema.model_json_schema()["properties"]
    registry.unregister("a.module")
    assert view.get("a.module") is None
    registry.register("a.module", Add())
    assert "a" in view.get("a.module").input_schema.model_json_schema()["properties"]


def test_other_attributes_are_those_of_the_registry_and_the_module() -> None:
    registry = registry_of(math__add=Add())
    view = RegistryView(registry)
    assert view.list() == registry.list()
    assert view.get_definition("math.add").description == "Add two integers"
    assert view.get("math.add").tags == ("math",)
    for thing in (view, view.get("math.add"), view.get("math.add").input_schema):
        assert not hasattr(thing, "no_such_thing")
    assert view.get("math.add").input_schema(a=1, b=2).a == 1


def test_a_module_that_was_removed_is_not_kept() -> None:
    order = model()
    module = Returns({}, input_schema=order)
    registry = registry_of(a__module=module)
    view = RegistryView(registry)
    view.get("a.module").input_schema.model_json_schema()
    registry.unregister("a.module")
    kept_module, kept_model = weakref.ref(module), weakref.ref(order)
    del module, order
    gc.collect()
    assert (kept_module(), kept_model()) == (None, None)


async def test_only_a_streaming_module_has_stream() -> None:
    agent = agent_of(a__counts=Counts({"n": 1}, {"n": 2}), math__add=Add())
    assert len((await run(agent, call_of("go", skill="a.counts"))).updates) == 3
    executor = apcore.Executor(RegistryView(registry_of(math__add=Add(), a__counts=Counts({"n": 1}, {"n": 2}))))
    assert [chunk async for chunk in executor.stream("math.add", {"a": 1, "b": 2})] == [{"total": 3}]
    assert [chunk async for chunk in executor.stream("a.counts", {})] == [{"n": 1}, {"n": 2}]


async def test_the_view_skips_no_check() -> None:
    class Book:
        description = "Book an order"
        input_schema = output_schema = model()

        async def execute(self, inputs: Data, context: Any) -> Data:
            return {"sum": inputs["sum"]}

    agent = agent_of(shop__book=Book())
    for _ in range(2):
        assert (await run(agent, call_of({"sum": 1}))).data == {"sum": 1}
        with pytest.raises(InvalidParamsError):
            await agent.admit(call_of({"sum": "lots"}))


# Speed, without a clock


@needs_pipeline
async def test_a_message_costs_less_than_a_bare_call() -> None:
    """Counted in function calls, including those of the admission checks."""
    agent, executor = agent_of(math__add=Add()), apcore.Executor(registry_of(math__add=Add()))
    inputs = {"a": 1, "b": 2}
    await run(agent, call_of(inputs))  # fill the caches
    await executor.call_async("math.add", inputs)
    ours, _ = await count_calls(run(agent, call_of(inputs)))
    theirs, _ = await count_calls(executor.call_async("math.add", inputs))
    assert ours < 0.7 * theirs
