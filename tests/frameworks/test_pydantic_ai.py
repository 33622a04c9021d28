"""What only agents of pydantic-ai have: deferred calls, dependencies, and outputs made of functions."""

from collections.abc import Iterator

import pytest

from apcore_a2a.protocol.questions import to_answers
from tests.frameworks.conftest import Framework, environments_of, say, serve_agent


@pytest.fixture(scope="module", params=environments_of("pydantic-ai"), ids=lambda environment: environment.id)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framework]:
    environment = request.param._replace(script="pydantic_ai_variants")
    yield from serve_agent(environment, tmp_path_factory.mktemp("pydantic_ai"))


async def test_a_deferred_call_asks_the_user_for_its_result(served: Framework) -> None:
    async with served.client(path="/asking") as client:
        asked = await say(client, 'ask_user {"question": "Which city?"}')
        served.restart()
    async with served.client(path="/asking") as client:
        done = await say(client, "Rome", to=asked)
        booked = await say(client, 'book {"seats": 2, "window": true}')
    assert (asked.questions[0].text, asked.questions[0].kind) == ("Which city?", "input")
    assert done.text == "The tool said: Rome."
    assert booked.questions[0].text == "book(seats=2, window=True)?"


async def test_dependencies_come_from_override(served: Framework) -> None:
    async with served.client(path="/asking") as client:
        assert (await say(client, "who")).text == "The tool said: dependencies."


async def test_a_usage_limit_is_named_and_holds_for_one_run(served: Framework) -> None:
    async with served.client(path="/asking") as client:
        limited = await say(client, "forever")
        again = await say(client, "hello", context_id=limited.context_id)
    assert (limited.state, limited.words) == ("failed", "The agent has reached its usage limit")
    assert limited.details["type"] == "UsageLimitExceeded"
    assert again.text == "small words"


async def test_output_that_differs_from_the_streamed_text_is_a_result(served: Framework) -> None:
    async with served.client(path="/upper") as client:
        assert "SMALL WORDS" in (await say(client, "hello")).text


async def test_a_file_is_a_file_of_the_answer(served: Framework) -> None:
    async with served.client(path="/drawing") as client:
        task = await client.send_message('draw {"color": "red"}')
    (part,) = task.files
    assert (part.raw, part.media_type) == (b"\x89PNG\r\n\x1a\nred", "image/png")


async def test_an_agent_with_an_output_validator_runs_with_its_own_output_type(served: Framework) -> None:
    async with served.client(path="/validated") as client:
        assert (await say(client, 'look {"query": "x"}')).text == "The tool said: private row."


async def test_the_reason_of_a_rejection_reaches_the_model(served: Framework) -> None:
    async with served.client(path="/paying") as client:
        asked = await say(client, "pay")
        answer = {asked.questions[0].id: {"approved": False, "reason": "too expensive"}}
        done = await say(client, [to_answers(answer)], to=asked)
    assert done.text == "The tool said: too expensive."
