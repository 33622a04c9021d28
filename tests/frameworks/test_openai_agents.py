"""What only the OpenAI Agents SDK has: guardrails, handoffs, limits of turns, and a rejection with a message."""

from collections.abc import Iterator

import pytest

from apcore_a2a.protocol.questions import to_answers
from tests.frameworks.conftest import Framework, environments_of, say, serve_agent


@pytest.fixture(scope="module", params=environments_of("OpenAI Agents"), ids=lambda environment: environment.id)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framework]:
    environment = request.param._replace(script="openai_variants")
    yield from serve_agent(environment, tmp_path_factory.mktemp("openai_agents"))


async def test_a_guardrail_is_named(served: Framework) -> None:
    async with served.client(path="/guarded") as client:
        heard = await say(client, "a secret")
    assert (heard.state, heard.words) == ("failed", "A guardrail has rejected the message")
    assert heard.details["type"] == "InputGuardrailTripwireTriggered"


async def test_the_limit_of_turns_is_named(served: Framework) -> None:
    async with served.client(path="/looping") as client:
        heard = await say(client, "look")
    assert (heard.state, heard.words) == ("failed", "The agent has reached its limit of turns")


async def test_text_that_is_not_streamed_is_sent_once(served: Framework) -> None:
    async with served.client(path="/whole") as client:
        heard = await say(client, "look")
    assert heard.text == "Let me see. | The tool said: private row."
    assert heard.pieces == ["Let me see. ", "The tool said: private row."]


async def test_the_result_of_a_tool_can_be_the_answer(served: Framework) -> None:
    async with served.client(path="/stopping") as client:
        heard = await say(client, "look")
    assert heard.text == "Let me see. | private row"


async def test_the_reason_of_a_rejection_reaches_the_model(served: Framework) -> None:
    if served.environment.lock == "openai-agents-floor":
        expected = "The tool said: Tool execution was not approved.."  # this version has no reasons
    else:
        expected = "The tool said: too expensive."
    async with served.client(path="/paying") as client:
        asked = await say(client, "pay")
        answer = {asked.questions[0].id: {"approved": False, "reason": "too expensive"}}
        done = await say(client, [to_answers(answer)], to=asked)
    assert done.text == expected


async def test_nothing_is_traced_unless_it_is_allowed(served: Framework) -> None:
    async with served.client(path="/whole") as client:
        await say(client, "look")
    assert "trace began" not in served.effects()


async def test_the_agent_that_answered_last_goes_on(served: Framework) -> None:
    async with served.client(path="/handing") as client:
        first = await say(client, "report")
        second = await say(client, "hello", context_id=first.context_id)
    assert first.data == [{"title": "Sales", "pages": 3}]
    assert second.words == "Internal error"  # the typed agent answers, and its model writes no JSON
