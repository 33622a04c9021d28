"""The process that checks slow inputs: its limits, the turns of callers, and its end."""

import asyncio

import pytest
from msgspec.structs import replace

from apcore_a2a.agent import Caller
from apcore_a2a.agents.checker import MAX_WAITING, Checker, quota_key_of
from apcore_a2a.engine.context import CallContext
from apcore_a2a.errors import InvalidParamsError, OverloadedError
from tests.engine.driving import request, serving
from tests.fakes import ScriptedAgent
from tests.processes import PATIENCE

ADA = "ada"
BOB = "bob"
SLOW = ["^(a+)+$"]
LONG = ["a" * 60 + "!"]


async def test_the_errors_of_a_value_are_those_of_json_schema() -> None:
    checker = Checker()
    schema = {"properties": {"n": {"type": "integer"}}, "required": ["m"]}
    answer = await checker.find_errors(schema, {"n": "x"}, ADA)
    assert [(error.path, error.code) for error in answer.errors] == [("n", "type"), ("", "required")]
    assert (await checker.find_errors(schema, {"n": 1, "m": 2}, ADA)).errors == []


@pytest.mark.parametrize("items", [[1, 1.0], [{"a": 1, "b": 2}, {"b": 2, "a": 1.0}], [[True], [True]]])
async def test_repeated_items_are_found_whatever_their_form(items: list[object]) -> None:
    (error,) = (await Checker().find_errors({"uniqueItems": True}, items, ADA)).errors
    assert error.code == "uniqueItems"


@pytest.mark.parametrize("items", [[1, True], [0, False], ["1", 1], [[], {}], [1.5, 1]])
async def test_different_items_of_json_are_unique(items: list[object]) -> None:
    assert not (await Checker().find_errors({"uniqueItems": True}, items, ADA)).errors


async def test_a_pattern_that_takes_too_long_is_an_error_of_the_input() -> None:
    checker = Checker()
    with pytest.raises(InvalidParamsError, match="too long"):
        await checker.try_patterns(SLOW, LONG, ADA)
    await checker.try_patterns(SLOW, ["aaa"], ADA)  # the process goes on
    assert checker.is_running


async def test_a_pattern_of_another_engine_is_skipped() -> None:
    checker = Checker()
    await checker.try_patterns([r"\p{L}+"], ["a"], ADA)
    with pytest.raises(InvalidParamsError):
        await checker.try_patterns([r"\p{L}+", *SLOW], LONG, ADA)


async def test_an_invalid_schema_is_named() -> None:
    answer = await Checker().find_errors({"pattern": "("}, "x", ADA)
    assert "error" in answer.failed


async def test_a_process_that_does_not_answer_is_ended_and_replaced() -> None:
    checker = Checker(seconds=1_000.0, longest=0.5)
    with pytest.raises(OverloadedError):
        await checker.find_errors({"pattern": SLOW[0]}, LONG[0], ADA)
    assert not checker.is_running
    patient = Checker(seconds=1_000.0)
    assert (await patient.find_errors({"type": "string"}, 1, ADA)).errors


async def test_a_cancelled_check_ends_its_process() -> None:
    checker = Checker(seconds=1_000.0)
    await checker.find_errors({}, 1, ADA)  # it runs
    check = asyncio.create_task(checker.find_errors({"pattern": SLOW[0]}, LONG[0], ADA))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    check.cancel()
    with pytest.raises(asyncio.CancelledError):
        await check
    async with asyncio.timeout(PATIENCE):
        assert (await checker.find_errors({"type": "string"}, 1, ADA)).errors


async def test_callers_take_turns_and_one_of_them_cannot_fill_the_queue() -> None:
    checker = Checker()
    order: list[str] = []

    async def check(caller: str) -> None:
        await checker.find_errors({}, 1, caller)
        order.append(caller)

    async with asyncio.TaskGroup() as group:
        for _ in range(MAX_WAITING):
            group.create_task(check(ADA))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await checker.find_errors({}, 1, ADA)
        group.create_task(check(BOB))
    assert "bob" in order[:3]
    await checker.find_errors({}, 1, ADA)  # nothing is left of the queue


async def test_a_pattern_that_needs_much_memory_is_an_error_of_the_input() -> None:
    checker = Checker(seconds=1_000.0)
    with pytest.raises(InvalidParamsError, match="too long"):
        await checker.find_errors({"pattern": r"^(.|\n)*$"}, "a" * 8_000_000, ADA)
    assert checker.is_running  # the process goes on


async def test_checks_are_counted_by_the_address_of_an_anonymous_caller_or_by_the_account() -> None:
    agent = ScriptedAgent()
    ada = Caller(id="ada", type="user")
    async with serving(agent) as engine:
        for address in ("192.0.2.1", "192.0.2.2"):
            for caller in (Caller(), Caller(tenant="x"), ada, replace(ada, tenant="x")):
                await engine.send_message(request("hi"), CallContext(caller=caller, peer=(address, 1)))
    keys = [quota_key_of(call) for call in agent.calls]
    assert keys[0] == keys[1] != keys[4] == keys[5]
    assert keys[2] == keys[3] == keys[6] == keys[7]
    assert len(set(keys)) == 3
