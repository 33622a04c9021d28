"""Large inputs of modules, which are checked in a process before apcore checks them."""

from typing import Annotated, Any

import apcore
import pytest
from pydantic import BaseModel, Field, field_validator

from apcore_a2a import A2AError, InvalidParamsError
from apcore_a2a.agents.apcore.executor import ServedExecutor
from apcore_a2a.agents.apcore.modules import MAX_CHECKED, CheckedInputs, refuse_many_errors
from apcore_a2a.testing import app_client
from tests.agents.apcore.running import needs_pipeline
from tests.modules import registry

pytestmark = needs_pipeline

MANY = 1_200  # more values than are checked on the event loop
OBJECT = {"type": "object"}


def rows_of(items: dict[str, str]) -> Any:  # Any: a schema, or the model of a subclass
    return {"type": "object", "properties": {"rows": {"type": "array", "items": items}}}


class Count:
    """Counts the rows of its inputs."""

    description = "Count rows"
    input_schema = rows_of({"type": "object"})
    output_schema: Any = OBJECT

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        return {"count": len(inputs["rows"])}


class Rows(BaseModel):
    rows: list[dict[str, int]]

    @field_validator("rows")
    @classmethod
    def check(cls, rows: list[dict[str, int]]) -> list[dict[str, int]]:
        if rows[-1]["n"] == 0:
            raise RuntimeError("a defect of the validator")
        return rows


class CountModel(Count):
    input_schema = Rows


class Names(BaseModel):
    rows: list[Annotated[str, Field(pattern="^a+$")]]


class CountNames(Count):
    input_schema = Names


class Unusable(Count):
    input_schema = rows_of({"type": "no type"})


def rows(*last: object) -> dict[str, Any]:
    return {"rows": [*({"n": number + 1} for number in range(MANY)), *last]}


async def test_large_inputs_run_when_they_are_valid_also_a_second_time() -> None:
    async with app_client(registry(count=Count()), name="rows") as client:
        for _ in range(2):
            task: Any = await client.send_message(rows())
            assert task.data == {"count": MANY}


async def test_large_inputs_that_are_invalid_are_rejected_before_a_task_exists() -> None:
    async with app_client(registry(count=Count()), name="rows") as client:
        with pytest.raises(InvalidParamsError) as caught:
            await client.send_message(rows("no object"))
        assert [violation.field for violation in caught.value.violations] == [f"rows.{MANY}"]
        assert not (await client.list_tasks()).tasks


async def test_large_inputs_are_not_checked_for_a_caller_without_access() -> None:
    modules = ServedExecutor(registry(count=Count()), acl=apcore.ACL(rules=[], default_effect="deny"))
    async with app_client(modules, name="rows", default_skill="count") as client:
        with pytest.raises(A2AError) as caught:
            await client.send_message(rows("no object"))
    assert not isinstance(caught.value, InvalidParamsError)


async def test_large_inputs_of_a_model_run_when_they_are_valid() -> None:
    async with app_client(registry(count=CountModel()), name="rows") as client:
        task: Any = await client.send_message(rows())
        assert task.data == {"count": MANY}


@pytest.mark.parametrize("count", [1, MANY], ids=["one error", "many errors"])
async def test_large_inputs_that_do_not_fit_a_model_are_rejected(count: int) -> None:
    async with app_client(registry(count=CountModel()), name="rows") as client:
        with pytest.raises(InvalidParamsError) as caught:
            await client.send_message(rows(*["no object"] * count))
    assert len(caught.value.violations) == 1


async def test_patterns_of_a_model_are_tried_before_it_checks_large_inputs() -> None:
    async with app_client(registry(count=CountNames()), name="rows") as client:
        task: Any = await client.send_message({"rows": ["aa"] * MANY})
        assert task.data == {"count": MANY}


async def test_an_executor_of_the_application_checks_large_inputs_again() -> None:
    async with app_client(apcore.Executor(registry(count=Count())), name="rows") as client:
        task: Any = await client.send_message(rows())
        assert task.data == {"count": MANY}


async def test_a_schema_that_cannot_be_used_rejects_large_inputs() -> None:
    async with app_client(registry(count=Unusable()), name="rows") as client:
        with pytest.raises(A2AError):
            await client.send_message(rows())
        assert not (await client.list_tasks()).tasks


def test_a_schema_without_a_model_is_left_to_apcore() -> None:
    refuse_many_errors(Count(), rows("no object"))


async def test_a_defect_of_a_validator_is_reported_as_apcore_reports_it() -> None:
    async with app_client(registry(count=CountModel()), name="rows") as client:
        errors = []
        for large in (rows({"n": 0}), {"rows": [{"n": 0}]}):
            with pytest.raises(A2AError) as caught:
                await client.send_message(large)
            errors.append(type(caught.value))
        assert errors[0] is errors[1]


def test_the_latest_valid_inputs_are_known_and_no_more_than_the_limit() -> None:
    checked = CheckedInputs()
    for number in range(MAX_CHECKED + 1):
        checked.add({}, number)
    assert checked.has({}, MAX_CHECKED)
    assert not checked.has({}, 0)
    assert not checked.has({}, object())
