"""What only agents of agent-framework have: arguments in pieces, and providers of their own for the history."""

from collections.abc import Iterator

import pytest

from tests.frameworks.agents.script import SECRET
from tests.frameworks.conftest import Framework, environments_of, say, serve_agent


@pytest.fixture(
    scope="module", params=environments_of("Microsoft agent-framework"), ids=lambda environment: environment.id
)
def microsoft(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framework]:
    environment = request.param._replace(script="agent_framework_variants")
    yield from serve_agent(environment, tmp_path_factory.mktemp("microsoft"))


async def test_arguments_in_pieces_are_one_call(microsoft: Framework) -> None:
    async with microsoft.client(path="/pieces") as client:
        heard = await say(client, "pieces")
        task = await client.get_task(heard.task_id)
    calls = [(data["name"], data["args"]) for kind, data in heard.tools if kind == "tool_call"]
    assert calls == [("look", {"query": "x"}), ("broken", {})]
    results = {data["name"]: data["response"] for kind, data in heard.tools if kind == "tool_result"}
    assert results["look"] == {"result": "private row"}
    assert list(results["broken"]) == ["error"]
    assert SECRET not in str(heard.tools) + str(task)


async def test_the_tool_of_an_approval_has_its_name_after_the_answer(microsoft: Framework) -> None:
    async with microsoft.client(path="/pieces") as client:
        asked = await say(client, "pay")
        done = await say(client, "approve", to=asked)
    assert [(kind, data["name"]) for kind, data in done.tools] == [("tool_result", "pay")]


async def test_a_file_of_the_model_is_an_artifact(microsoft: Framework) -> None:
    async with microsoft.client(path="/pieces") as client:
        heard = await say(client, "image")
        task = await client.get_task(heard.task_id)
    (part,) = task.artifacts[0].parts
    assert (part.raw, part.media_type) == (b"\x89PNG\r\n", "image/png")


async def test_typed_output_is_data(microsoft: Framework) -> None:
    async with microsoft.client(path="/typed") as client:
        heard = await say(client, "report")
    assert heard.data == [{"title": "Sales", "pages": 3}]
    assert heard.pieces == []


async def test_the_usage_of_a_run_counts_each_request_once(microsoft: Framework) -> None:
    async with microsoft.client(path="/pieces") as client:
        heard = await say(client, "look")
    assert heard.metadata["apcore.usage"] == {"requests": 2, "inputTokens": 20, "outputTokens": 10}


async def test_a_history_provider_of_the_application_is_used(microsoft: Framework) -> None:
    async with microsoft.client(path="/named") as client:
        first = await say(client, "hello")
    microsoft.restart()
    async with microsoft.client(path="/named") as client:
        again = await say(client, "again", context_id=first.context_id)
    assert again.text == "You said 'again'; turn 2."


def test_the_agent_of_a_workflow_is_rejected_because_callers_would_share_it(microsoft: Framework) -> None:
    assert [line for line in microsoft.effects() if line.startswith("the agent of a Workflow cannot be served")]
