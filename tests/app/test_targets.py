"""`apcore-a2a serve TARGET` and `dev`: what can be named, what is said when it cannot be served, and `--reload`."""

import asyncio
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import pytest

from apcore_a2a import A2AClient
from apcore_a2a.cli.serve.targets import DirectoryTarget, ObjectTarget, load_target, parse_target
from tests.app.test_serving import address
from tests.auth.tokens import SECRET
from tests.cli.pseudo_terminal import at_terminal
from tests.processes import PATIENCE, running
from tests.requirements import requirement
from tests.sources import ROOT
from tests.test_docs import blocks_of

SKILLS = '''
from pathlib import Path

def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b

async def shout(text: str) -> str:
    return text.upper()
'''
AGENT = '''
import apcore
from fastapi import FastAPI
from apcore_a2a import async_serve
from apcore_a2a.agents.executors import TaskUpdater

async def shout(text: str) -> str:
    """Says it louder."""
    return text.upper()

async def make():
    return await async_serve(shout, name="made")

class Echo:
    async def execute(self, context, event_queue):
        await TaskUpdater(event_queue).complete(context.get_user_input())

    async def cancel(self, context, event_queue):
        pass

echo = Echo()
web = FastAPI()
number = 3
registry = apcore.Registry()

@apcore.module(id="text.twice", description="Say it twice", registry=registry)
def twice(text: str) -> dict:
    return {"said": text + text}
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of a user's, which is the current one."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in set(sys.modules) - before:
        # Theirs alone: a library that is loaded twice has two classes for each exception.
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def refusal(text: str, **options: bool) -> str:
    """What a person is told about a target."""
    with pytest.raises(click.ClickException) as refused:
        target = parse_target(text)
        assert isinstance(target, ObjectTarget)
        load_target(target, **options)
    assert "\n" not in refused.value.message
    return refused.value.message


def test_a_word_names_a_directory_a_file_or_a_module(here: Path) -> None:
    (here / "skills").mkdir()
    (here / "agent.py").touch()
    assert parse_target("skills") == DirectoryTarget(Path("skills"))
    assert parse_target("agent.py:shout") == ObjectTarget("agent.py", "shout")
    assert parse_target("package.agent:shout") == ObjectTarget("package.agent", "shout")


def test_a_name_is_found_in_a_file_and_in_a_module_with_what_lies_beside_it(here: Path) -> None:
    (here / "beside.py").write_text("NAME = 'found'")
    (here / "agent.py").write_text("import beside\nclass Agents:\n    first = beside.NAME")
    assert load_target(ObjectTarget("agent.py", "Agents.first")) == "found"
    assert load_target(ObjectTarget("agent", "Agents.first")) == "found"


def test_a_file_named_like_a_module_of_pythons_leaves_that_alone(here: Path) -> None:
    import json

    (here / "json.py").write_text("mine = 1")
    assert load_target(ObjectTarget("json.py", "mine")) == 1
    assert sys.modules["json"] is json


def test_a_factory_may_be_a_coroutine_function(here: Path) -> None:
    (here / "agent.py").write_text("def plain():\n    return 1\n\n\nasync def waiting():\n    return 2\n")
    assert load_target(ObjectTarget("agent.py", "plain"), factory=True) == 1
    assert load_target(ObjectTarget("agent.py", "waiting"), factory=True) == 2


@requirement("FR-CMD-002")
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("agnt.py:shout", "There is no file agnt.py; did you mean agent.py?"),
        ("agent.py:shuot", "agent.py has no shuot; did you mean shout? It has: shout, whisper"),
        ("agent.py:nothing", "agent.py has no nothing. It has: shout, whisper"),
        ("values.py", "Which one? It has: number, letter: name it as in values.py:NAME"),
        ("nowhere.at.all:x", "There is no module nowhere.at.all here"),
        ("agent", "There is no directory agent; did you mean agent.py?"),
        ("nowhere", "There is no directory nowhere: name a directory of apcore modules, file.py, file.py:name or"),
        ("bad/name.py:x", "bad/name.py cannot be imported: bad/name.py:2: NameError: name 'undefined' is not defined"),
        ("bad/syntax.py:x", "bad/syntax.py cannot be imported: bad/syntax.py:1: SyntaxError: invalid syntax, in: def"),
        ("bad/missing.py:x", "bad/missing.py:1: ModuleNotFoundError: No module named 'nowhere', in: import nowhere"),
        ("bad/exits.py:x", "bad/exits.py cannot be imported: bad/exits.py:2: it calls sys.exit()"),
        ("bad/deep.py:x", "bad/name.py:2: NameError"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_told_in_one_line_with_the_users_own(here: Path, target: str, said: str) -> None:
    imports = (
        "from __future__ import annotations\nfrom pathlib import Path\nfrom typing import Any, Literal, Optional\n"
    )
    (here / "agent.py").write_text(f"{imports}def shout(): ...\ndef whisper(): ...\n")
    (here / "values.py").write_text("number = 1\nletter = 'a'\n")
    (here / "bad").mkdir()
    (here / "bad" / "name.py").write_text("x = 1\ny = undefined + 1\n")
    (here / "bad" / "syntax.py").write_text("def f(:\n")
    (here / "bad" / "missing.py").write_text("import nowhere\n")
    (here / "bad" / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (here / "bad" / "deep.py").write_text("import json\nimport name\n")
    assert said in refusal(target)


def test_a_factory_that_fails_is_told_with_its_line(here: Path) -> None:
    (here / "agent.py").write_text("def make():\n    return 1 / 0\nnumber = 1\n")
    said = refusal("agent.py:make", factory=True)
    assert said == "agent.py:make cannot be called: agent.py:2: ZeroDivisionError: division by zero, in: return 1 / 0"
    assert refusal("agent.py:number", factory=True) == "agent.py:number is not a function, but a int: omit --factory"


# ---- as processes ---------------------------------------------------------------------------------------------------


def serve(*options: str, verb: str = "serve") -> list[str]:
    return ["-m", "apcore_a2a", verb, *options, "--port", "0"]


PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SHOWN = [
    line for block in blocks_of(PAGE, "sh") for line in block.code.splitlines() if re.search(" (serve|dev) ", line)
]


@requirement("FR-CMD-001")
@pytest.mark.parametrize("line", [*SHOWN, "apcore-a2a serve agent.py:echo"])
async def test_every_target_of_the_page_is_served(here: Path, line: str) -> None:
    (here / "agent.py").write_text(AGENT)
    (here / "skills.py").write_text(SKILLS)
    (here / "package").mkdir()
    (here / "package" / "agents.py").write_text(AGENT)
    (here / "extensions").mkdir()
    shutil.copy(ROOT / "examples" / "extensions" / "text" / "stats.py", here / "extensions")
    words = line.split()[1:]
    async with running("-m", "apcore_a2a", *words, "--port", "0", "--host", "127.0.0.1") as process:
        async with A2AClient(await address(process)) as client:
            task: Any = await client.send_message("hi")
            assert task.status.state == "TASK_STATE_COMPLETED"
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0
    assert "Traceback" not in process.said


FRAMEWORK_AGENT = """
class Agent:
    pass

Agent.__name__ = "AbstractAgent"
Agent.__module__ = "pydantic_ai.agent.abstract"

def pay(amount: int) -> str:
    return f"Paid {amount}"

clerk = Agent()
"""


def test_the_functions_beside_an_agent_of_a_framework_are_its_tools(here: Path) -> None:
    (here / "clerk.py").write_text(FRAMEWORK_AGENT)
    (here / "clerks.py").write_text(FRAMEWORK_AGENT + "other = Agent()")
    assert type(load_target(ObjectTarget("clerk.py", ""))).__name__ == "AbstractAgent"
    with pytest.raises(click.ClickException, match="Which one"):
        load_target(ObjectTarget("clerks.py", ""))


async def test_the_functions_of_a_file_are_skills(here: Path) -> None:
    (here / "skills.py").write_text(SKILLS)
    async with running(*serve("skills.py", "--host", "127.0.0.1", "--default-skill", "shout")) as process:
        async with A2AClient(await address(process)) as client:
            assert [skill.id for skill in (await client.agent_card).skills] == ["add", "shout"]
            task: Any = await client.send_message({"a": 1}, skill="add")
            assert task.artifacts[0].parts[0].data == 2
            task = await client.send_message("hi")
            assert task.artifacts[0].parts[0].text == "HI"


async def test_any_asgi_application_can_be_served_and_options_it_cannot_keep_are_refused(here: Path) -> None:
    (here / "agent.py").write_text(AGENT)
    async with running(*serve("agent.py:web", "--host", "127.0.0.1")) as process:
        async with httpx.AsyncClient(base_url=await address(process)) as http:
            assert (await http.get("/openapi.json")).json()["info"]["title"] == "FastAPI"
    async with running(*serve("agent.py:web", "--metrics")) as process:
        assert await process.ends() == 1
    assert "--metrics has no effect: agent.py:web is an ASGI application" in process.said
    async with running(*serve("agent.py:web"), JWT_KEY=SECRET) as process:
        assert await process.ends() == 1
    assert "agent.py:web is an ASGI application: give it auth= where it is created" in process.said


@requirement("FR-CMD-002")
async def test_a_target_that_fails_ends_with_one_and_no_traceback(here: Path) -> None:
    (here / "agent.py").write_text(AGENT)
    async with running(*serve("agent.py:number")) as process:
        assert await process.ends() == 1
    assert process.said.startswith("Error: agent.py:number: an object of type int cannot be served")
    assert len(process.said.splitlines()) == 1
    async with running(*serve("agent.py:shout", "--extensions-dir", ".")) as process:
        assert await process.ends() == 1
    assert "either a TARGET" in process.said


@requirement("FR-CMD-002")
async def test_a_directory_names_the_files_that_cannot_be_imported(here: Path) -> None:
    (here / "bad.py").write_text("import json\nx = undefined\n")
    async with running(*serve(str(here))) as process:
        assert await process.ends() == 1
    assert f"No modules discovered in {here}: bad.py:2: NameError: name 'undefined'" in process.said
    assert len(process.said.splitlines()) == 1


@requirement("FR-OPS-003")
async def test_dev_restarts_a_file_when_it_changes_also_after_an_error(here: Path) -> None:
    source = here / "agent.py"
    source.write_text("async def shout(text: str) -> str:\n    return text.upper()\n")
    async with running(*serve("agent.py:shout", verb="dev")) as process:
        url = await address(process)
        assert url.startswith("http://127.0.0.1:")
        await process.says(r"reload +on")
        assert f"explorer  {url}/explorer/" in process.said
        source.write_text("async def shout(text: str) -> str:\n    return nothing(\n")
        await process.says(r"agent.py:2: SyntaxError")
        await process.says("Waiting for a change")
        async with A2AClient(url, timeout=PATIENCE) as client:  # no server runs now, so the client waits
            asked = asyncio.create_task(client.send_message("hi"))
            source.write_text("async def shout(text: str) -> str:\n    return text.upper() + '!'\n")
            task: Any = await asked
            assert task.artifacts[0].parts[0].text == "HI!"
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0


async def test_dev_that_is_ended_while_it_starts_has_not_failed(here: Path) -> None:
    (here / "slow.py").write_text("import sys, time\nsys.stderr.write('importing\\n')\ntime.sleep(60)\n")
    async with running(*serve("slow.py:f", verb="dev")) as process:
        await process.says("importing")
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0


async def test_what_dev_has_started_ends_with_it_however_that_ends(here: Path) -> None:
    (here / "skills.py").write_text(SKILLS)
    async with running(*serve("skills.py", verb="dev")) as process:
        await address(process)
        process.signal(signal.SIGKILL)
        await process.ends()  # what it has started holds its standard error, too
    assert "Finished server process" in process.said


def test_ctrl_c_at_a_terminal_ends_dev_and_what_it_has_started(here: Path) -> None:
    (here / "skills.py").write_text(SKILLS)
    with at_terminal("dev", "skills.py", "--port", "0") as person:
        person.sees("Press CTRL\\+C to quit")
        person.interrupts("Finished server process")
        assert person.ends() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_a_signal_to_dev_at_a_terminal_ends_what_it_has_started(here: Path, number: signal.Signals) -> None:
    (here / "skills.py").write_text(SKILLS)
    with at_terminal("dev", "skills.py", "--port", "0") as person:
        person.sees("Press CTRL\\+C to quit")
        person.signal(number)
        person.sees("Finished server process")
        assert person.ends() == 0
