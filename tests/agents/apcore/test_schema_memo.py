"""A schema that is remembered is the same schema."""

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from apcore_a2a.agents.apcore.shortcuts import SchemaMemo, remember_schemas
from apcore_a2a.agents.apcore.sources import open_modules
from apcore_a2a.errors import InvalidParamsError
from tests.agents.apcore.running import Data, Returns, agent_of, call_of, registry_of, run


def model() -> type[BaseModel]:
    class Order(BaseModel):
        amount: int = Field(alias="sum")
        note: str = ""

    return Order


def remembered() -> type[BaseModel]:
    order = model()
    remember_schemas(Returns({}, input_schema=order))
    assert isinstance(vars(order)["model_json_schema"], SchemaMemo)
    return order


def test_the_answer_is_the_same() -> None:
    assert remembered().model_json_schema() == model().model_json_schema()


def test_an_answer_that_is_changed_does_not_change_the_next() -> None:
    order = remembered()
    order.model_json_schema()["properties"].clear()
    assert order.model_json_schema() == model().model_json_schema()


@pytest.mark.parametrize("options", [{"mode": "serialization"}, {"by_alias": False}])
def test_a_question_with_options_is_asked_anew(options: dict[str, Any]) -> None:
    assert remembered().model_json_schema(**options) == model().model_json_schema(**options)


def test_a_subclass_answers_for_itself() -> None:
    order = remembered()
    larger = type("Larger", (order,), {"__annotations__": {"extra": int}})
    assert set(larger.model_json_schema()["properties"]) == {"sum", "note", "extra"}  # type: ignore[attr-defined]


def test_a_subclass_with_a_way_of_its_own_keeps_it() -> None:
    class Own(BaseModel):
        @classmethod
        def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
            return {"own": True}

    mixed = type("Mixed", (remembered(), Own), {})
    assert mixed.model_json_schema() == {"own": True}  # type: ignore[attr-defined]


def test_instances_can_be_asked_as_before() -> None:
    assert remembered()(sum=1).model_json_schema() == model().model_json_schema()


def test_a_model_with_its_own_way_is_left_alone() -> None:
    class Clock(BaseModel):
        asked: int = 0

        @classmethod
        def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
            cls.__doc__ = f"{cls.__doc__}."
            return {"description": cls.__doc__}

    remember_schemas(Returns({}, input_schema=Clock))
    assert Clock.model_json_schema() != Clock.model_json_schema()


def test_a_schema_that_is_not_json_is_left_alone() -> None:
    class Odd(BaseModel):
        model_config = ConfigDict(json_schema_extra=lambda schema: schema.update(odd=object()))

    remember_schemas(Returns({}, input_schema=Odd))
    assert "model_json_schema" not in vars(Odd)


def test_what_is_no_model_is_left_alone() -> None:
    schema = {"type": "object"}
    remember_schemas(Returns({}, input_schema=schema, output_schema=None))
    assert schema == {"type": "object"}


def test_remembering_twice_changes_nothing_more() -> None:
    order = remembered()
    first = vars(order)["model_json_schema"]
    remember_schemas(Returns({}, input_schema=order))
    assert vars(order)["model_json_schema"] is first


def test_it_can_be_switched_off() -> None:
    order = model()
    list(open_modules(registry_of(shop__order=Returns({}, input_schema=order)), cache_schemas=False))
    assert "model_json_schema" not in vars(order)


async def test_nothing_is_checked_less() -> None:
    order = model()

    class Book:
        description = "Book an order"
        input_schema = order
        output_schema = order

        async def execute(self, inputs: Data, context: Any) -> Data:
            return {"sum": inputs["sum"]}

    agent = agent_of(shop__book=Book())
    assert (await run(agent, call_of({"sum": 1}))).data == {"sum": 1}
    assert isinstance(vars(order)["model_json_schema"], SchemaMemo)
    with pytest.raises(InvalidParamsError):
        await agent.admit(call_of({"sum": "lots"}))
