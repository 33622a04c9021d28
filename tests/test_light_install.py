"""What is needed is loaded where it is used, and what is missing is named with the way to get it."""

import subprocess
import sys
import tomllib
from typing import Final

import pytest

from tests.sources import ROOT, python_files

# Keeps packages from being imported, as if they were not installed.
BLOCK: Final = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""

FUNCTIONS: Final = """
import asyncio, socket
import uvicorn
from apcore_a2a import A2AClient, Call, InvalidParamsError, async_serve, skill

@skill(tags=["math"])
async def add(a: int, b: int = 1) -> int:
    return a + b

def shout(text: str) -> str:
    return text.upper()

async def main():
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = await async_serve([add, shout], store="sqlite:///" + sys.argv[1])
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    serving = asyncio.create_task(server.serve([listener]))
    async with A2AClient(url) as client:
        print((await client.send_message({"a": 2}, skill="add")).data)
        print((await client.send_message("hi", skill="shout")).text)
        try:
            await client.send_message({"a": "2"}, skill="add")
        except InvalidParamsError as error:
            print(error.violations[0].field)
    server.should_exit = True
    await serving

asyncio.run(main())
"""

SDK: Final = """
class AgentExecutor: ...
AgentExecutor.__module__ = "a2a.server.agent_execution"
from apcore_a2a import as_agent
try:
    as_agent(AgentExecutor())
except ImportError as error:
    print(error)
"""

INSECURE: Final = """
from apcore_a2a.cli import main
import sys
sys.argv = ["apcore-a2a", "card", "https://127.0.0.1:9", "--insecure"]
try:
    main()
except SystemExit as ended:
    print("exit", ended.code)
"""

MCP: Final = """
from apcore_a2a.cli import main
import sys
sys.stderr = sys.stdout
try:
    main(["mcp", "http://127.0.0.1:9"])
except SystemExit as ended:
    print("exit", ended.code)
"""

POSTGRES: Final = """
import asyncio
from apcore_a2a import async_serve
try:
    asyncio.run(async_serve(lambda message: "x", store="postgresql://127.0.0.1/a2a"))
except (ImportError, ValueError) as error:
    print(error)
"""


def run_without(names: set[str], program: str, *arguments: str) -> str:
    """What a program prints where these packages are not installed."""
    code = BLOCK.format(names=names) + program
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=25
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_functions_are_served_and_called_without_apcore_and_what_else_they_do_not_use(tmp_path: object) -> None:
    unused = {
        "apcore",
        "pydantic",
        "joserfc",
        "rich",
        "watchfiles",
        "httpx",
        "a2a",
        "asyncpg",
        "google",
    }
    assert run_without(unused, FUNCTIONS, f"{tmp_path}/tasks.db").split() == ["3", "HI", "a"]


def test_insecure_needs_no_http_library_beside_the_default() -> None:
    assert run_without({"httpx"}, INSECURE).split() == ["exit", "3"]


@pytest.mark.parametrize(
    ("missing", "program", "extra"),
    [({"a2a"}, SDK, "sdk"), ({"asyncpg"}, POSTGRES, "postgres"), ({"mcp", "mcp_types"}, MCP, "mcp")],
    ids=["sdk", "postgres", "mcp"],
)
def test_a_missing_extra_is_named_with_the_way_to_get_it(missing: set[str], program: str, extra: str) -> None:
    assert f"pip install 'apcore-a2a[{extra}]'" in run_without(missing, program)


def test_there_is_code_behind_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in python_files("src"))
    assert [extra for extra in extras if extra != "dev" and f"apcore-a2a[{extra}]" not in sources] == []
