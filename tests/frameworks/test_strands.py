"""What only agents of Strands have: one conversation in each agent, and interrupts without a type."""

from collections.abc import Iterator

import pytest

from apcore_a2a import ContentTypeNotSupportedError, Part
from tests.frameworks.conftest import Framework, begin, begin_slowly, environments_of, say, serve_agent


@pytest.fixture(scope="module", params=environments_of("strands"), ids=lambda environment: environment.id)
def strands(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framework]:
    environment = request.param._replace(script="strands_variants")
    yield from serve_agent(environment, tmp_path_factory.mktemp("strands"))


async def test_typed_output_is_data(strands: Framework) -> None:
    async with strands.client(path="/typed") as client:
        heard = await say(client, 'Report {"title": "Sales", "pages": 3}')
    assert heard.data == [{"title": "Sales", "pages": 3}]
    assert heard.state == "completed"


async def test_an_interrupt_without_approval_gets_the_words_of_the_user(strands: Framework) -> None:
    async with strands.client(path="/shared") as client:
        city = await say(client, 'book {"seats": 2}')
        strands.restart()
    async with strands.client(path="/shared") as client:
        price = await say(client, "Rome", to=city)
        done = await say(client, "20", to=city)
    assert [(question.text, question.kind) for question in city.questions] == [("Which city?", "input")]
    assert price.questions[0].text == "At which price?"
    assert price.questions[0].arguments == {"message": "At which price?", "currency": "EUR"}
    assert done.text == "The tool said: 2 seats to Rome for 20."


async def test_an_intervention_asks_for_an_approval(strands: Framework) -> None:
    if strands.environment.lock == "strands-floor":
        pytest.skip("this version has no interventions")
    async with strands.client(path="/guarded") as client:
        asked = await say(client, "look")
        done = await say(client, "approve", to=asked)
        again = await say(client, "look")
        rejected = await say(client, "reject", to=again)
    assert (asked.questions[0].kind, asked.questions[0].tool) == ("approval", "look")
    assert "private row" in done.text
    assert "private row" not in rejected.text


async def test_tools_see_the_call(strands: Framework) -> None:
    async with strands.client("bob", path="/shared") as client:
        heard = await say(client, "caller")
    assert heard.text == "The tool said: bob."


async def test_an_answer_that_was_blocked_fails_the_task(strands: Framework) -> None:
    async with strands.client(path="/shared") as client:
        heard = await say(client, "stop")
    assert heard.state == "failed"
    assert heard.words == "The answer was blocked by a content filter"


async def test_runs_of_one_agent_wait_for_each_other(strands: Framework) -> None:
    stopped = strands.effects().count("slow stopped")
    first = await begin_slowly(strands, path="/shared")
    async with strands.client("ada", path="/shared") as ada, strands.client("bob", path="/shared") as bob:
        waiting = await begin(bob, "hello")
        canceled = await begin(bob, "hello")
        await bob.cancel_task(canceled.task_id)  # it has not begun, so it stops no other run
        assert strands.effects().count("slow stopped") == stopped
        await ada.cancel_task(first.task_id)
        done = await bob.wait(waiting.task_id)
    assert strands.effects().count("slow stopped") == stopped + 1
    assert done.text == "You said 'hello'; turn 1."


@pytest.mark.parametrize(
    ("media_type", "name", "kind"),
    [
        ("application/pdf", "my file_1.bin", "document"),
        ("text/x-python", "", "document"),
        ("video/mp4", "film", "video"),
        ("", "photo.jpg", "image"),
    ],
)
async def test_files_are_blocks_of_their_kind(strands: Framework, media_type: str, name: str, kind: str) -> None:
    file = Part(raw=b"content", media_type=media_type, filename=name)
    async with strands.client(path="/shared") as client:
        heard = await say(client, [Part(text="see"), file])
    assert heard.text == f"You said 'see <{kind}>'; turn 1."


async def test_a_file_stays_in_the_conversation_as_bytes(strands: Framework) -> None:
    async with strands.client(path="/shared") as client:
        first = await say(client, [Part(raw=b"content", media_type="application/pdf")])
        again = await say(client, "bytes", context_id=first.context_id)
    assert again.text == "b'content'"


async def test_other_files_are_rejected_before_a_task_exists(strands: Framework) -> None:
    async with strands.client(path="/shared") as client:
        with pytest.raises(ContentTypeNotSupportedError, match="Files of the type application/x-tar are not supported"):
            await say(client, [Part(raw=b"content", media_type="application/x-tar")])
