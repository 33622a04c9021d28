"""The examples, called as their first lines say: each through a client, most without a socket."""

import socket
from typing import Any

import pytest
from starlette.applications import Starlette

from apcore_a2a import (
    A2AClient,
    Part,
    PushConfig,
    SendConfiguration,
    StatusUpdate,
    Task,
    TaskNotFoundError,
    TaskState,
    UnauthenticatedError,
)
from apcore_a2a.testing import WebhookReceiver, app_client
from examples import approvals, chat, files, long_job, oidc, orchestrator, skills
from examples.migration import after, before
from tests.auth.issuer import provider
from tests.processes import running
from tests.sources import ROOT

PAGE = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")


async def finished(client: A2AClient, message: Any, **options: Any) -> Task:
    answer = await client.send_message(message, **options)
    assert isinstance(answer, Task)
    return answer


async def test_the_chat_agent_remembers_streams_and_counts_what_its_model_uses() -> None:
    async with app_client(chat.chat) as client:
        first = await finished(client, "hello")
        assert first.text == "You say hello. "
        assert first.metadata is not None and first.metadata["apcore.usage"]["requests"] == 1
        pieces = [event.text async for event in client.stream_message("again", context_id=first.context_id)]
        assert "".join(pieces).endswith("You say again. Before, you said hello. ")


@pytest.mark.parametrize(
    ("city", "trains"), [("Rome", "the 8:15 to Rome"), ("Atlantis", "unknown (failed)")], ids=["all", "one fails"]
)
async def test_the_orchestrator_joins_the_answers_of_three_agents(
    city: str, trains: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    program = f"from apcore_a2a import serve; from examples.orchestrator import AGENTS; serve(AGENTS, port={port})"
    async with running("-c", program, AGENTS_URL=address) as process:
        await process.says("running on")
        async with A2AClient(f"{address}/plan/") as client:
            task = await finished(client, city)
    assert task.data == {"weather": f"sunny in {city}", "hotels": f"the Grand Hotel {city}", "trains": trains}


async def test_an_agent_that_cannot_be_reached_does_not_stop_the_orchestrator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestrator, "BASE", "http://127.0.0.1:9")
    async with app_client(orchestrator.plan) as client:
        task = await finished(client, "Rome")
    assert set(task.data.values()) == {"unknown (A2AConnectionError)"}


async def test_a_transfer_runs_after_its_approval_only() -> None:
    async with app_client([approvals.transfer, approvals.order]) as client:
        asked = await finished(client, {"to": "Ada", "amount": 50}, skill="transfer")
        assert asked.status.state == TaskState.INPUT_REQUIRED
        done = await finished(client, "approve", task_id=asked.id, context_id=asked.context_id)
        assert done.text == "50 sent to Ada"
        asked = await finished(client, {"to": "Ada", "amount": 50}, skill="transfer")
        refused = await finished(client, "reject", task_id=asked.id, context_id=asked.context_id)
        assert refused.status.state in (TaskState.REJECTED, TaskState.CANCELED, TaskState.FAILED)
        assert "sent" not in refused.text


async def test_an_order_asks_above_the_limit_and_for_how_many() -> None:
    async with app_client([approvals.transfer, approvals.order]) as client:
        cheap = await finished(client, {"item": "a pen", "price": 3}, skill="order")
        assert cheap.text == "Ordered: a pen for 3"
        for answers, text in (
            ({"order": True, "pieces": 2}, "Ordered: 2 x a lamp for 500"),
            ({"order": False, "pieces": 1}, "Not ordered"),
        ):
            asked = await finished(client, {"item": "a lamp", "price": 250}, skill="order")
            assert asked.status.state == TaskState.INPUT_REQUIRED
            done = await finished(client, {"answers": answers}, task_id=asked.id, context_id=asked.context_id)
            assert done.text == text


async def test_a_file_is_counted_and_a_picture_is_drawn() -> None:
    async with app_client([files.count, files.draw]) as client:
        document = Part(raw=b"one\ntwo\n", filename="a.txt", media_type="text/plain")
        counted = await finished(client, document, skill="count")
        assert counted.data == {"bytes": 8, "lines": 2}
        drawn = await finished(client, {"values": [3, 5, 2]}, skill="draw")
        (picture,) = drawn.files
        assert picture.filename == "chart.svg" and isinstance(picture.raw, bytes)
        assert picture.raw.count(b"<rect") == 3


async def test_a_long_job_says_how_far_it_is_and_posts_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_job.Work, "seconds", 0)
    async with (
        WebhookReceiver() as hook,
        app_client(long_job.index, push_notifications=True, allow_insecure_webhooks=True) as client,
    ):
        events = client.stream_message(
            {"pages": 3}, configuration=SendConfiguration(task_push_notification_config=PushConfig(url=hook.url))
        )
        said = [event.text async for event in events if isinstance(event, StatusUpdate)]
        assert "Indexed page 2 of 3" in said
        states = set()
        while TaskState.COMPLETED not in states:
            event = (await hook.next()).event
            if isinstance(event, Task | StatusUpdate):
                states.add(event.status.state)


async def test_a_long_job_can_be_canceled() -> None:
    async with app_client(long_job.index) as client:
        task = await finished(client, {"pages": 1000}, configuration=SendConfiguration(return_immediately=True))
        canceled = await client.cancel_task(task.id)
        assert canceled.status.state == TaskState.CANCELED


async def test_tokens_of_the_provider_are_verified_and_scopes_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    async with provider() as issuer:
        monkeypatch.setenv("OIDC_ISSUER", issuer.issuer)
        application = oidc.app()
        assert isinstance(application, Starlette)
        async with app_client(application) as client:
            with pytest.raises(UnauthenticatedError):
                await client.send_message({}, skill="look")
            reader = (await issuer.bearer())["authorization"]
            who = await finished(client, {}, skill="look", auth=reader)
            assert who.text == "You are ada"
            with pytest.raises(TaskNotFoundError):
                await client.send_message("x", skill="remove", auth=reader)
            writer = (await issuer.bearer(scope="agents:write"))["authorization"]
            removed = await finished(client, "x", skill="remove", auth=writer)
            assert removed.text == "Removed x"


@pytest.mark.parametrize("app", [before.make_app("http://agent.test/"), after.app], ids=["before", "after"])
async def test_clients_see_the_same_before_and_after_the_migration(app: Any) -> None:
    async with app_client(app) as client:
        card = await client.agent_card
        assert (card.name, card.version) == ("shout", "1")
        task = await finished(client, "hello")
        assert (task.status.state, task.text) == (TaskState.COMPLETED, "HELLO")


async def test_the_agent_of_skills_is_what_its_page_says() -> None:
    async with app_client(skills.SKILLS) as client:
        days = await finished(client, "Rome", skill="forecast")
        assert days.data[0]["city"] == "Rome"


def test_every_example_is_on_the_page() -> None:
    examples = [path for path in (ROOT / "examples").glob("*.py") if path.name != "__init__.py"]
    assert len(examples) > 7
    assert [path.name for path in examples if f"(../examples/{path.name})" not in PAGE] == []


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "examples").glob("*.py")))
def test_the_commands_of_an_example_name_it(name: str) -> None:
    lines = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").splitlines()
    head = "\n".join(lines[: lines.index('"""', 1)])
    assert f"examples/{name}.py" in head or f"examples.{name}" in head or name == "conformance_agent"
