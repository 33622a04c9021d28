"""The client of @a2a-js/sdk, as a 0.3 client, in a process of its own: one for each call."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import PATIENCE
from tests.sources import ROOT

NODE_MODULES = ROOT / ".venvs" / "js"
SCRIPT = Path(__file__).with_name("js_client.cjs")


async def ask_js(*arguments: str) -> Any:
    """What the script answers to: address, binding, what to do."""
    if not (NODE_MODULES / "node_modules" / "@a2a-js" / "sdk").exists():
        pytest.skip(".venvs/js is missing: make setup")
    process = await asyncio.create_subprocess_exec(
        "node", str(SCRIPT), *arguments, cwd=NODE_MODULES, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(4 * PATIENCE):
        answer, _ = await process.communicate()
    return json.loads(answer)
