"""The clients of @a2a-js/sdk: as a 1.0 client in one process, as a 0.3 client in one for each call."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import PATIENCE
from tests.interaction.peers.process import ProcessPeer
from tests.sources import ROOT

NODE_MODULES = ROOT / ".venvs" / "js"
SCRIPT = Path(__file__).with_name("js_client.cjs")
COMMAND = ("node", Path(__file__).with_name("js1_client.cjs"))


class Js(ProcessPeer):
    async def list(self, context_id: str, page_size: int, page_token: str = "") -> tuple[list[str], str]:
        ids, token = await self._ask("list", context_id=context_id, page_size=page_size, page_token=page_token)
        return ids, token


def installed() -> Path:
    """Return the directory of the package. Skip the test if it is not installed."""
    if not (NODE_MODULES / "node_modules" / "@a2a-js" / "sdk").exists():
        pytest.skip(".venvs/js is missing: make setup")
    return NODE_MODULES


async def ask_js(*arguments: str) -> Any:
    """Return the output of the script for an address, a binding and an action."""
    process = await asyncio.create_subprocess_exec(
        "node", str(SCRIPT), *arguments, cwd=installed(), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(4 * PATIENCE):
        answer, _ = await process.communicate()
    return json.loads(answer)
