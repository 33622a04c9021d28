"""What an import loads. Each half of the package is paid for by those who use it."""

import subprocess
import sys

from tests.requirements import requirement

SERVERS = {"a2a", "apcore", "google", "grpc", "pydantic", "starlette", "uvicorn"}
OF_CALLS = {"aiohttp", "httpx", "joserfc"}  # loaded by the first call, or by keys to check cards with
OF_RARE_CASES = {"difflib", "email", "random", "tempfile"}  # of the standard library, 0.1 MB or more each


def loaded_by(module: str) -> set[str]:
    """Top-level packages that a fresh interpreter loads for the module."""
    program = f"import sys; before = set(sys.modules); import {module}; print(*(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=20)
    return {name.partition(".")[0] for name in run.stdout.split()}


def test_the_root_loads_no_other_package_at_all() -> None:
    assert loaded_by("apcore_a2a") - sys.stdlib_module_names == {"apcore_a2a"}


@requirement("FR-CLI-001")
def test_the_client_loads_neither_a_server_nor_an_http_library() -> None:
    assert loaded_by("apcore_a2a.client") & (SERVERS | OF_CALLS) == set()


def test_the_client_loads_no_module_that_it_rarely_needs() -> None:
    assert loaded_by("apcore_a2a.client") & OF_RARE_CASES == set()


HTTP_1_1 = """
import asyncio, json, sys
from urllib.request import Request, urlopen
from apcore_a2a import as_agent
from tests.interaction.serving import serving

async def shout(text: str) -> str:
    return text.upper()

def ask(url, body=None):
    headers = {"A2A-Version": "1.0", "Content-Type": "application/json"}
    with urlopen(Request(url, body and json.dumps(body).encode(), headers)) as answer:
        return answer.read().decode()

def use(url):
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    assert "HI" in ask(url, call)
    assert "HI" in ask(f"{url}/message:send", {"message": message})
    assert "GRPC" in ask(f"{url}/.well-known/agent-card.json")

async def main():
    async with serving(as_agent(shout)) as url:
        await asyncio.to_thread(use, url)

asyncio.run(main())
print(*sys.modules)
"""


def test_http_1_1_loads_nothing_of_http_2_and_grpc() -> None:
    run = subprocess.run([sys.executable, "-c", HTTP_1_1], capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
    loaded = run.stdout.split()
    assert [name for name in loaded if name.partition(".")[0] in {"h2", "hpack", "hyperframe", "grpc"}] == []
    ours = (
        "apcore_a2a.http.server.http2",
        "apcore_a2a.http.grpc",
        "apcore_a2a.protocol.grpc",
        "apcore_a2a.protocol.protobuf",
    )
    assert [name for name in loaded if name.startswith(ours)] == []
