"""The tools of a remote agent in real frameworks, each in an environment of its own, with a model that is a script."""

import asyncio
import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from apcore_a2a.protocol.model import TaskState
from tests.fakes import PATIENCE
from tests.sources import ROOT
from tests.toolkits.test_tools import states

AGENTS = Path(__file__).parent / "agents"
PATIENCE_OF_IMPORTS = 3 * PATIENCE  # some frameworks take seconds to import


def require(framework: str) -> Path:
    """Return the Python of a framework's environment. Skip the test without it, or fail in `make test-frameworks`."""
    python = ROOT / ".venvs" / f"framework-{framework}" / "bin" / "python"
    if not python.exists():
        if os.environ.get("FRAMEWORKS") == "required":
            pytest.fail(f"{python} is missing")
        pytest.skip("an environment is missing: make test-frameworks")
    return python


async def run(framework: str, *arguments: Any) -> Any:
    """Run the agent of a framework in a process, and return what it prints."""
    python = require(framework)
    script = AGENTS / f"{framework.replace('-', '_')}_agent.py"
    words = [each if isinstance(each, str) else json.dumps(each) for each in arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OTEL_SDK_DISABLED": "true"}

    def wait() -> str:
        ended = subprocess.run(
            [str(python), str(script), *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_OF_IMPORTS,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-4000:]
        return ended.stdout.splitlines()[-1]

    return json.loads(await asyncio.to_thread(wait))


# ---- LangGraph ------------------------------------------------------------------------------------------------------


async def test_langchain_calls_a_typed_tool(url: str, tmp_path: Path) -> None:
    given = {"tool": "add", "args": {"a": 2, "b": 3}}
    seen = await run("langgraph", url, str(tmp_path / "graph.db"), "direct", given)
    assert seen["schema"]["properties"]["a"]["type"] == "integer"
    assert (seen["said"], seen["blocking"]) == ("5", "5")


async def test_a_question_interrupts_a_graph_and_another_process_answers_it(url: str, tmp_path: Path) -> None:
    graph = str(tmp_path / "graph.db")
    asked = await run("langgraph", url, graph, "call", {"thread": "1", "calls": [["tour", {"text": "go"}, "c1"]]})
    (question,) = asked["asked"]
    assert question["text"] == "Which city?"
    again = await run("langgraph", url, graph, "resume", {"thread": "1", "answer": "Rome"})
    assert [each["id"] for each in again["asked"][0]["questions"]] == ["days"]
    done = await run("langgraph", url, graph, "resume", {"thread": "1", "answer": 3})
    assert done["outputs"] == [["3 days in Rome", "success"]]
    assert await states(url) == [TaskState.COMPLETED]  # the runs of the node have started one task


@pytest.mark.parametrize("answer", [True, False])
async def test_an_approval_interrupts_a_graph(url: str, tmp_path: Path, answer: bool) -> None:
    graph = str(tmp_path / "graph.db")
    asked = await run("langgraph", url, graph, "call", {"thread": "1", "calls": [["pay", {"amount": 5}, "c1"]]})
    assert asked["asked"][0]["questions"][0]["arguments"] == {"amount": 5}
    done = await run("langgraph", url, graph, "resume", {"thread": "1", "answer": answer})
    if answer:
        assert done["outputs"] == [['{"paid":5}', "success"]]
    else:
        assert done["outputs"][0][1] == "error"
    assert len(await states(url)) == 1


async def test_two_equal_calls_of_a_graph_are_two_tasks(url: str, tmp_path: Path) -> None:
    """A model that numbers its calls from the start in each turn repeats ids."""
    graph = str(tmp_path / "graph.db")
    calls = [["add", {"a": 2, "b": 3}, "c1"], ["add", {"a": 2, "b": 3}, "c2"]]
    await run("langgraph", url, graph, "call", {"thread": "1", "calls": calls})
    await run("langgraph", url, graph, "call", {"thread": "1", "calls": calls[:1]})
    await run("langgraph", url, graph, "call", {"thread": "2", "calls": calls[:1]})
    assert len(await states(url)) == 4


async def test_a_model_reads_the_errors_of_a_langchain_tool(url: str, tmp_path: Path) -> None:
    calls = [["add", {"a": "x", "b": 3}, "c1"], ["refuse", {"text": "no"}, "c2"]]
    seen = await run("langgraph", url, str(tmp_path / "graph.db"), "call", {"thread": "1", "calls": calls})
    assert [status for _, status in seen["outputs"]] == ["error", "error"]
    assert "a: expected" in seen["outputs"][0][0].lower()
    assert seen["outputs"][1][0] == "The remote task ended as FAILED: Refused: no"


# ---- the others -----------------------------------------------------------------------------------------------------

DAYS = [{"id": "days", "kind": "input", "text": "How many days?", "schema": {"type": "integer", "minimum": 1}}]
WRONG = "a: Expected `int`, got `str`"
FAILED = "The remote task ended as FAILED: Refused: no"


def check_schema(schema: dict[str, Any]) -> None:
    assert schema["properties"]["a"] == {"type": "integer", "description": "The first number."}
    assert schema["required"] == ["a", "b"]


def check_approval(questions: list[dict[str, Any]]) -> None:
    (asked,) = questions
    assert (asked["kind"], asked["tool"], asked["arguments"]) == ("approval", "pay", {"amount": 5})


async def count(url: str) -> Counter[str]:
    return Counter(state.removeprefix("TASK_STATE_") for state in await states(url))


async def test_pydantic_ai(url: str) -> None:
    seen = await run("pydantic-ai", url)
    check_schema(seen["schema"])
    assert seen["result"] == "tool-return 5"
    assert WRONG in seen["wrong"]
    assert FAILED in seen["failed"]
    assert seen["tour"] == ["Which city?", DAYS, "tool-return 3 days in Rome"]
    check_approval(seen["asked"])
    assert seen["paid"] == "tool-return {'paid': 5}"
    assert seen["rejected"] == "tool-return The tool call was denied."
    # pydantic-ai does not run a denied call, so the remote task of the second payment still waits.
    assert await count(url) == {"COMPLETED": 3, "FAILED": 1, "INPUT_REQUIRED": 1}


async def test_openai_agents(url: str) -> None:
    seen = await run("openai-agents", url)
    check_schema(seen["schema"])
    assert seen["result"] == ["5"]
    assert WRONG in seen["wrong"][0]
    assert FAILED in seen["failed"][0]
    assert "Which city?" in seen["asked"]
    assert seen["answered"] == ["2 seats in Rome"]
    assert seen["paid"] == [[{"amount": 5}], ['{"paid":5}']]
    assert seen["rejected"] == [[{"amount": 5}], ["Tool execution was not approved."]]
    assert seen["self_approved"] == [{"amount": 5, "a2a_answer": "approve"}]
    assert await count(url) == {"COMPLETED": 3, "FAILED": 1, "INPUT_REQUIRED": 1}


async def test_adk(url: str) -> None:
    seen = await run("adk", url)
    check_schema(seen["schema"])
    assert json.loads(seen["result"]) == {"result": 5}
    assert WRONG in seen["wrong"]
    assert FAILED in seen["failed"]
    assert seen["tour"] == ["Which city?", DAYS, '{"result": "3 days in Rome"}']
    check_approval(seen["asked"])
    assert json.loads(seen["paid"]) == {"result": {"paid": 5}}
    assert "rejected by the caller" in seen["rejected"]
    assert json.loads(seen["declined"]) == {"error": "The user rejects this call"}
    assert await count(url) == {"COMPLETED": 3, "FAILED": 1, "REJECTED": 1, "CANCELED": 1}


async def test_strands(url: str) -> None:
    seen = await run("strands", url)
    check_schema(seen["schema"])
    assert seen["result"] == "success 5"
    assert WRONG in seen["wrong"]
    assert FAILED in seen["failed"]
    assert seen["tour"] == ["Which city?", DAYS, "success 3 days in Rome"]
    check_approval(seen["asked"])
    assert seen["paid"] == 'success {"paid":5}'
    assert "rejected by the caller" in seen["rejected"]
    assert await count(url) == {"COMPLETED": 3, "FAILED": 1, "REJECTED": 1}
