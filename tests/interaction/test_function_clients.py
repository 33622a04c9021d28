"""The functions of examples/skills.py, called by the official Python clients, on a socket: 5 arrives as 5.0."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from apcore_a2a import A2AClient, as_agent
from apcore_a2a.protocol.model import Task
from examples.skills import SKILLS
from tests.interaction.conftest import Serve
from tests.interaction.peers.sdk03 import Sdk03
from tests.interaction.peers.sdk1 import Sdk1
from tests.interaction.test_examples import CLIENTS, Client


@pytest.fixture(params=CLIENTS, ids=lambda client: " ".join(client))
async def client(request: pytest.FixtureRequest, serve: Serve) -> AsyncIterator[Client]:
    version, binding = request.param
    mode = "0.3" if version == "1.x as 0.3" else "auto"  # it uses the version that the card offers
    url = await serve(as_agent(SKILLS), card=None, card_mode=mode)
    made: Client
    if version == "0.3.x":
        made = Sdk03(request.getfixturevalue("sdk03"), url, binding)
    else:
        made = Sdk1(url, binding)
    yield made
    await made.close()


async def test_an_official_client_calls_a_function(client: Client) -> None:
    (part,) = await client.send_data("forecast", {"city": "Rome", "days": 2})
    data = part["data"]
    if isinstance(data, dict):  # 0.3 has objects only
        data = data["value"]
    assert data == [{"city": "Rome", "number": number, "degrees": 21} for number in (1, 2)]


async def test_the_example_asks_and_waits_for_approval(serve: Serve) -> None:
    async with A2AClient(await serve(as_agent(SKILLS), card=None)) as client:

        async def say(content: Any, **options: Any) -> Task:
            answer = await client.send_message(content, **options)
            assert isinstance(answer, Task)
            return answer

        task = await say({"days": 2}, skill="plan")
        assert (task.status.state, task.text) == ("input-required", "Where to?")
        task = await say("Rome", task_id=task.id)
        assert (task.status.state, task.text) == ("completed", "2 days in Rome")
        task = await say("Rome", skill="cancel_journey")
        assert (task.status.state, task.text) == (
            "input-required",
            'Approval required for skill cancel_journey. Reply "approve" or "reject".',
        )
        task = await say("approve", task_id=task.id)
        assert task.text == "No journey to Rome"
