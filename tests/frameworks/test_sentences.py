"""Every framework shows the same behaviour to a client, whatever its own streams look like."""

import pytest

from apcore_a2a import ContentTypeNotSupportedError, Part, __version__
from apcore_a2a.protocol.questions import to_answers
from tests.frameworks.agents.script import DESCRIPTION, NAME, SECRET, WORDS
from tests.frameworks.conftest import Framework, begin_slowly, file_part, say, until

# ---- text and tools -------------------------------------------------------------------------------------------------


async def test_the_card_has_the_agent_as_its_only_skill(framework: Framework) -> None:
    async with framework.client() as client:
        card = await client.agent_card
    assert card.name == NAME
    assert card.description in (DESCRIPTION, f"The agent {NAME}")  # some versions have no description
    assert [skill.id for skill in card.skills] == [NAME]
    assert card.version == __version__  # not that of the framework


async def test_text_is_streamed_in_pieces(framework: Framework) -> None:
    async with framework.client() as client:
        heard = await say(client, "hello")
    assert heard.text == "You said 'hello'; turn 1."
    assert len(heard.pieces) > 1
    assert heard.state == "completed"


async def test_a_long_text_is_streamed_as_a_whole(framework: Framework) -> None:
    async with framework.client() as client:
        heard = await say(client, "long")
    assert heard.text.split() == [f"w{number}" for number in range(WORDS)]


async def test_tools_are_statuses_with_their_names_only(framework: Framework) -> None:
    async with framework.client() as client:
        heard = await say(client, "look")
    assert heard.text == "Let me see. | The tool said: private row."
    kinds = [(kind, data["name"], sorted(data)) for kind, data in heard.tools]
    assert kinds == [("tool_call", "look", ["id", "name"]), ("tool_result", "look", ["id", "name"])]


async def test_usage_is_in_the_metadata_of_the_task(framework: Framework) -> None:
    async with framework.client() as client:
        heard = await say(client, "look")
    usage = heard.metadata["apcore.usage"]
    assert usage["requests"] == 2
    assert usage["inputTokens"] > 0
    assert usage["outputTokens"] > 0


async def test_typed_output_is_data(framework: Framework) -> None:
    if not framework.environment.typed:
        pytest.skip("this agent has no typed output")
    async with framework.client() as client:
        heard = await say(client, "report")
    assert heard.data == [{"title": "Sales", "pages": 3}]
    assert heard.state == "completed"


# ---- conversations --------------------------------------------------------------------------------------------------


async def test_a_conversation_goes_on_after_kill_9(framework: Framework) -> None:
    async with framework.client() as client:
        first = await say(client, "hello")
        second = await say(client, "again", context_id=first.context_id)
    framework.restart()
    async with framework.client() as client:
        third = await say(client, "third", context_id=first.context_id)
    assert second.text == "You said 'again'; turn 2."
    assert third.text == "You said 'third'; turn 3."


async def test_two_callers_with_one_context_id_have_two_conversations(framework: Framework) -> None:
    async with framework.client("ada") as ada, framework.client("bob") as bob:
        first = await say(ada, "hello")
        other = await say(bob, "hello", context_id=first.context_id)
        again = await say(ada, "again", context_id=first.context_id)
    assert (other.text, again.text) == ("You said 'hello'; turn 1.", "You said 'again'; turn 2.")


async def test_a_failed_turn_stays_in_the_conversation(framework: Framework) -> None:
    async with framework.client() as client:
        failed = await say(client, "fail")
        again = await say(client, "again", context_id=failed.context_id)
    assert failed.state == "failed"
    assert failed.words == "Internal error"
    await until(lambda: SECRET in "\n".join(framework.log))
    assert failed.details["reference"] in "\n".join(framework.log)
    assert again.text == "You said 'again'; turn 2."


# ---- approvals ------------------------------------------------------------------------------------------------------


async def test_an_approval_survives_an_unclear_answer_and_kill_9(framework: Framework) -> None:
    before = framework.effects().count("paid Ada 5")
    async with framework.client() as client:
        asked = await say(client, "pay")
        unclear = await say(client, "hm?", to=asked)
    assert (asked.state, unclear.state) == ("input-required", "input-required")
    (question,) = unclear.questions
    assert question == asked.questions[0]
    assert (question.kind, question.tool, question.arguments) == ("approval", "pay", {"to": "Ada", "amount": 5})
    framework.restart()
    async with framework.client() as client:
        done = await say(client, "approve", to=asked)
        again = await say(client, "again", context_id=asked.context_id)
    assert done.text == "The tool said: paid 5 to Ada."
    assert done.state == "completed"
    assert framework.effects().count("paid Ada 5") == before + 1
    assert again.text == "You said 'again'; turn 2."


async def test_a_rejected_call_does_not_run(framework: Framework) -> None:
    before = framework.effects()
    async with framework.client() as client:
        asked = await say(client, "pay")
        done = await say(client, "reject", to=asked)
    assert done.state == "completed"
    assert done.text.startswith("The tool said: ")
    assert framework.effects() == before


async def test_two_approvals_are_answered_in_one_message(framework: Framework) -> None:
    before = framework.effects()
    async with framework.client() as client:
        asked = await say(client, "two")
        ada, bob = asked.questions
        done = await say(client, [to_answers({ada.id: True, bob.id: False})], to=asked)
    assert done.state == "completed"
    assert framework.effects() == [*before, "paid Ada 1"]


async def test_two_approvals_are_answered_one_after_the_other(framework: Framework) -> None:
    before = framework.effects()
    async with framework.client() as client:
        asked = await say(client, "two")
        first = await say(client, [to_answers({asked.questions[0].id: False})], to=asked)
    assert first.state == "input-required"
    assert first.questions == asked.questions[1:]
    framework.restart()
    async with framework.client() as client:
        done = await say(client, "approve", to=asked)
    assert done.state == "completed"
    assert framework.effects() == [*before, "paid Bob 2"]


async def test_the_conversation_goes_on_while_a_task_waits(framework: Framework) -> None:
    async with framework.client() as client:
        asked = await say(client, "pay")
        other = await say(client, "hello", context_id=asked.context_id)
        done = await say(client, "approve", to=asked)
        again = await say(client, "again", context_id=asked.context_id)
    assert other.text == "You said 'hello'; turn 1."  # the turn that waits is not a part of it yet
    assert done.text == "The tool said: paid 5 to Ada."
    assert again.text == "You said 'again'; turn 3."


# ---- cancel and crash -----------------------------------------------------------------------------------------------


async def test_cancel_stops_the_tool(framework: Framework) -> None:
    stopped = framework.effects().count("slow stopped")
    heard = await begin_slowly(framework)
    async with framework.client() as client:
        task = await client.cancel_task(heard.task_id)
        again = await say(client, "again", context_id=heard.context_id)
    assert task.status.state == "canceled"
    await until(lambda: framework.effects().count("slow stopped") > stopped)
    assert again.text == "You said 'again'; turn 2."  # it has heard the first one


async def test_a_task_that_waits_can_be_canceled(framework: Framework) -> None:
    before = framework.effects()
    async with framework.client() as client:
        asked = await say(client, "pay")
        task = await client.cancel_task(asked.task_id)
        again = await say(client, "again", context_id=asked.context_id)
    assert task.status.state == "canceled"
    assert again.state == "completed"
    assert framework.effects() == before


async def test_a_task_that_was_killed_fails_and_its_conversation_goes_on(framework: Framework) -> None:
    heard = await begin_slowly(framework)
    framework.restart()
    async with framework.client() as client:
        task = await client.get_task(heard.task_id)
        again = await say(client, "again", context_id=heard.context_id)
    assert task.status.state == "failed"
    assert again.text == "You said 'again'; turn 2."


# ---- what clients send ----------------------------------------------------------------------------------------------


async def test_a_file_reaches_the_model(framework: Framework) -> None:
    async with framework.client() as client:
        heard = await say(client, [Part(text="see"), file_part()])
    assert "image" in heard.text
    assert heard.state == "completed"


async def test_data_reaches_the_model_as_text(framework: Framework) -> None:
    async with framework.client() as client:
        heard = await say(client, {"seats": 2})
    assert '{"seats":2}' in heard.text


async def test_a_file_by_url_is_rejected(framework: Framework) -> None:
    async with framework.client() as client:
        with pytest.raises(ContentTypeNotSupportedError, match="URL parts are not accepted"):
            await say(client, [Part(url="http://169.254.169.254/secret.png", media_type="image/png")])
