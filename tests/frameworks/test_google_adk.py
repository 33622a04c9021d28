"""What only agents of ADK have: tools that wait, files that tools save, Apps, Workflows and Runners."""

from collections.abc import Iterator

import pytest

from apcore_a2a.protocol.questions import to_answers
from tests.frameworks.agents.script import SECRET
from tests.frameworks.conftest import Framework, environments_of, say, serve_agent, until


@pytest.fixture(scope="module", params=environments_of("Google ADK"), ids=lambda environment: environment.id)
def adk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framework]:
    environment = request.param._replace(script="google_adk_variants")
    yield from serve_agent(environment, tmp_path_factory.mktemp("adk"))


# ---- tools ----------------------------------------------------------------------------------------------------------


async def test_a_confirmation_may_have_a_payload_that_the_user_changes(adk: Framework) -> None:
    async with adk.client(path="/tools") as client:
        asked = await say(client, 'vacation {"days": 5}')
        (question,) = asked.questions
        answer = {"approved": True, "arguments": {"approved": 3}}
        done = await say(client, [to_answers({question.id: answer})], to=asked)
    assert "vacation(days=5)" in question.text
    assert "How many days are approved?" in question.text
    assert (question.kind, question.arguments, question.editable) == ("approval", {"approved": 0}, True)
    assert "3 of 5 days" in done.text


async def test_a_word_confirms_the_payload_as_it_is(adk: Framework) -> None:
    async with adk.client(path="/tools") as client:
        asked = await say(client, 'vacation {"days": 5}')
        done = await say(client, "approve", to=asked)
    assert "0 of 5 days" in done.text


async def test_a_long_running_tool_gets_its_result_from_the_user(adk: Framework) -> None:
    async with adk.client(path="/tools") as client:
        asked = await say(client, 'ticket {"title": "Roof"}')
    adk.restart()
    async with adk.client(path="/tools") as client:
        done = await say(client, "repaired", to=asked)
    (question,) = asked.questions
    assert asked.state == "input-required"
    assert (question.tool, question.arguments, question.text) == (
        "ticket",
        {"title": "Roof"},
        "ticket waits for its result",
    )
    assert [data["name"] for kind, data in asked.tools] == ["ticket"]  # called, and not done
    assert done.text.endswith("The tool said: repaired.")


async def test_a_file_that_a_tool_saves_is_an_artifact(adk: Framework) -> None:
    async with adk.client(path="/tools") as client:
        heard = await say(client, 'save {"text": "hello"}')
        task = await client.get_task(heard.task_id)
    files = [part for artifact in task.artifacts for part in artifact.parts if part.is_file]
    assert [(file.raw, file.filename, file.media_type) for file in files] == [(b"hello", "note.txt", "text/plain")]


async def test_tools_that_are_not_async_do_not_block_the_event_loop(adk: Framework) -> None:
    if adk.environment.lock == "adk-floor":
        pytest.skip("this version runs them on the event loop")
    async with adk.client(path="/tools") as client:
        heard = await say(client, "thread")
    assert heard.text == "The tool said: other."


async def test_the_exception_of_a_tool_is_hidden(adk: Framework) -> None:
    async with adk.client(path="/tools") as client:
        heard = await say(client, "broken")
        task = await client.get_task(heard.task_id)
        again = await say(client, "again", context_id=heard.context_id)
    assert heard.words == "Internal error"
    assert SECRET not in str(task)
    assert again.text == "You said 'again'; turn 2."


# ---- answers --------------------------------------------------------------------------------------------------------


async def test_typed_output_is_data(adk: Framework) -> None:
    async with adk.client(path="/typed") as client:
        heard = await say(client, 'say {"title": "Sales", "pages": 3}')
    assert heard.data == [{"title": "Sales", "pages": 3}]
    assert heard.pieces == []


async def test_an_answer_that_the_model_did_not_finish_fails_the_task(adk: Framework) -> None:
    async with adk.client(path="/tools") as client:
        heard = await say(client, "max")
    assert heard.state == "failed"
    assert heard.words == "The model did not finish its answer"
    assert heard.details["type"] == "MAX_TOKENS"


async def test_the_text_of_an_unknown_error_code_is_hidden(adk: Framework) -> None:
    async with adk.client(path="/tools") as client:
        heard = await say(client, "code")
        task = await client.get_task(heard.task_id)
    assert heard.words == "Internal error"
    assert SECRET not in str(task)
    await until(lambda: f"QUOTA: {SECRET}" in "\n".join(adk.log))


async def test_the_texts_of_a_team_are_paragraphs(adk: Framework) -> None:
    async with adk.client(path="/team") as client:
        heard = await say(client, "say hello")
    assert heard.text.startswith("hello\n\n")


# ---- Apps, Workflows and Runners ------------------------------------------------------------------------------------


async def test_the_plugins_of_an_app_are_used(adk: Framework) -> None:
    before = adk.effects().count("plugin called")
    async with adk.client(path="/app") as client:
        heard = await say(client, "hello")
        again = await say(client, "again", context_id=heard.context_id)
    assert again.text == "You said 'again'; turn 2."
    assert adk.effects().count("plugin called") == before + 2


async def test_a_workflow_asks_and_returns_data_after_kill_9(adk: Framework) -> None:
    async with adk.client(path="/flow") as client:
        asked = await say(client, "hello")
    adk.restart()
    async with adk.client(path="/flow") as client:
        unclear = await say(client, {"town": 1}, to=asked)
        done = await say(client, "Rome", to=asked)
    assert asked.questions[0].text == "Which city?"
    assert unclear.state == "input-required"
    assert done.data == [{"to": {"city": "Rome"}}]


async def test_a_runner_keeps_its_own_sessions(adk: Framework) -> None:
    async with adk.client("ada", path="/runner") as ada, adk.client("bob", path="/runner") as bob:
        first = await say(ada, "hello")
        again = await say(ada, "again", context_id=first.context_id)
        other = await say(bob, "hello", context_id=first.context_id)
        asked = await say(ada, 'vacation {"days": 5}', context_id=first.context_id)
        done = await say(ada, "approve", to=asked)
    assert (again.text, other.text) == ("You said 'again'; turn 2.", "You said 'hello'; turn 1.")
    assert "0 of 5 days" in done.text


async def test_the_user_of_a_runner_is_the_caller(adk: Framework) -> None:
    async with adk.client("ada", path="/runner") as ada, adk.client("bob", path="/runner") as bob:
        first = await say(ada, "count")
        other = await say(bob, "count")
        again = await say(ada, "count")
    assert [heard.text for heard in (first, other, again)] == [f"The tool said: {count}." for count in (1, 1, 2)]


async def test_a_session_that_a_runner_has_lost_begins_again(adk: Framework) -> None:
    async with adk.client(path="/runner") as client:
        first = await say(client, "hello")
        asked = await say(client, 'vacation {"days": 5}')
    adk.restart()  # the sessions of this runner are in memory
    async with adk.client(path="/runner") as client:
        again = await say(client, "again", context_id=first.context_id)
        failed = await say(client, "approve", to=asked)
    assert again.text == "You said 'again'; turn 1."
    assert failed.words == "The agent has changed since it asked, and cannot continue this task"
