"""The behaviours of the other frameworks that a server of FastMCP has as well. The tests have the same names."""

from collections.abc import Iterator
from typing import Any

import pytest

from apcore_a2a import A2AClient, InvalidParamsError, StatusUpdate, TaskNotFoundError
from tests.frameworks.agents.script import DESCRIPTION, NAME, SECRET
from tests.frameworks.conftest import Framework, Heard, say, serve_agent, until
from tests.frameworks.table import FASTMCP

PAY = {"to": "Ada", "amount": 5}


@pytest.fixture(scope="module", params=FASTMCP, ids=lambda environment: environment.id)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framework]:
    yield from serve_agent(request.param, tmp_path_factory.mktemp("fastmcp"))


async def use(client: A2AClient, tool: str, inputs: Any = None) -> Heard:
    """Call a tool, and read the stream of its task to the end."""
    heard = Heard()
    async for event in client.stream_message(inputs or {}, skill=tool):
        heard.add(event)
    return heard


async def begin_slowly(server: Framework) -> Heard:
    """Start a task whose tool never ends. Return it once the tool runs."""
    began = server.effects().count("slow began")
    heard = Heard()
    async with server.client() as client:
        async for event in client.stream_message({}, skill="slow"):
            heard.add(event)
            break
    await until(lambda: server.effects().count("slow began") > began)
    return heard


async def test_the_card_has_its_tools_as_skills(server: Framework) -> None:
    async with server.client() as client:
        card = await client.agent_card
    assert (card.name, card.description) == (NAME, DESCRIPTION)
    assert {"pay", "look", "slow", "report"} <= {skill.id for skill in card.skills}


async def test_wrong_inputs_create_no_task(server: Framework) -> None:
    async with server.client() as client:
        before = await client.list_tasks()
        with pytest.raises(InvalidParamsError) as wrong:
            await use(client, "pay", {"to": "Ada", "amount": "five"})
        assert (await client.list_tasks()).total_size == before.total_size
    assert [violation.field for violation in wrong.value.violations] == ["amount"]


async def test_progress_is_the_status_of_the_task(server: Framework) -> None:
    async with server.client() as client:
        heard = await use(client, "look", {"query": "x"})
    statuses = [event.status for event in heard.events if isinstance(event, StatusUpdate)]
    assert "half" in [status.text for status in statuses]
    assert heard.text == "private row"


async def test_typed_output_is_data(server: Framework) -> None:
    async with server.client() as client:
        heard = await use(client, "report")
    assert heard.data == [{"title": "Sales", "pages": 3}]


async def test_a_file_of_a_tool_is_a_file_of_the_answer(server: Framework) -> None:
    async with server.client() as client:
        heard = await use(client, "draw")
        task = await client.get_task(heard.task_id)
    assert [file.media_type for file in task.files] == ["image/png"]


async def test_an_approval_survives_an_unclear_answer_and_kill_9(server: Framework) -> None:
    before = server.effects().count("paid Ada 5")
    async with server.client() as client:
        asked = await use(client, "pay", PAY)
        unclear = await say(client, "hm?", to=asked)
    assert (asked.state, unclear.state) == ("input-required", "input-required")
    server.restart()
    async with server.client() as client:
        done = await say(client, "approve", to=asked)
    assert (done.state, done.text) == ("completed", "paid 5 to Ada")
    assert server.effects().count("paid Ada 5") == before + 1


async def test_a_rejected_call_does_not_run(server: Framework) -> None:
    before = server.effects()
    async with server.client() as client:
        asked = await use(client, "pay", PAY)
        done = await say(client, "reject", to=asked)
    assert (done.state, done.text) == ("completed", "not paid")
    assert server.effects() == before


async def test_two_approvals_are_answered_one_after_the_other(server: Framework) -> None:
    before = server.effects()
    async with server.client() as client:
        asked = await use(client, "two")
        again = await say(client, "reject", to=asked)
    server.restart()
    async with server.client() as client:
        done = await say(client, "approve", to=asked)
    assert (asked.words.splitlines()[0], again.words.splitlines()[0]) == ("Pay 1 to Ada?", "Pay 2 to Bob?")
    assert done.text == "not paid, paid 2 to Bob"
    assert server.effects() == [*before, "paid Bob 2"]


async def test_another_caller_cannot_answer(server: Framework) -> None:
    before = server.effects()
    async with server.client("ada") as ada, server.client("bob") as bob:
        asked = await use(ada, "pay", PAY)
        with pytest.raises(TaskNotFoundError):
            await say(bob, "approve", to=asked)
    assert server.effects() == before


async def test_cancel_stops_the_tool(server: Framework) -> None:
    stopped = server.effects().count("slow stopped")
    heard = await begin_slowly(server)
    async with server.client() as client:
        task = await client.cancel_task(heard.task_id)
    assert task.status.state == "canceled"
    await until(lambda: server.effects().count("slow stopped") > stopped)


async def test_a_task_that_waits_can_be_canceled(server: Framework) -> None:
    before = server.effects()
    async with server.client() as client:
        asked = await use(client, "pay", PAY)
        task = await client.cancel_task(asked.task_id)
    assert task.status.state == "canceled"
    assert server.effects() == before


async def test_a_task_that_was_killed_fails(server: Framework) -> None:
    heard = await begin_slowly(server)
    server.restart()
    async with server.client() as client:
        task = await client.get_task(heard.task_id)
    assert task.status.state == "failed"


async def test_the_text_of_a_tool_error_fails_the_task(server: Framework) -> None:
    async with server.client() as client:
        heard = await use(client, "fail")
    assert heard.state == "failed"
    assert "no such thing" in heard.words


async def test_the_text_of_an_exception_is_hidden_by_a_server_that_masks_it(server: Framework) -> None:
    async with server.client() as client:
        heard = await use(client, "crash")
        task = await client.get_task(heard.task_id)
    assert heard.state == "failed"
    assert SECRET not in f"{heard.words} {task}"
