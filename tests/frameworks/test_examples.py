"""The examples run as their first lines say, without an account of a model provider."""

import re
from pathlib import Path
from typing import Final

import pytest

from apcore_a2a import A2AClient
from tests.fakes import PATIENCE
from tests.frameworks.conftest import require, say
from tests.frameworks.table import ENVIRONMENTS
from tests.processes import running
from tests.sources import ROOT

EXAMPLES: Final = sorted((ROOT / "examples" / "frameworks").glob("*_agent.py"))


def target_of(example: Path) -> str:
    found = re.search(r"^apcore-a2a serve (\S+) --store", example.read_text(), re.MULTILINE)
    assert found is not None
    return str(ROOT / found[1])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
async def test_an_example_runs_as_it_says(example: Path, tmp_path: Path) -> None:
    environment = next(each for each in ENVIRONMENTS if each.script == example.stem)
    require(environment)
    target = target_of(example)
    store = f"sqlite:///{tmp_path}/tasks.db"
    arguments = ("-m", "apcore_a2a", "serve", target, "--store", store, "--port", "0", "--host", "127.0.0.1")
    async with running(*arguments, python=str(environment.python)) as process:
        url = await process.says(r"http://127\.0\.0\.1:\d+")
        async with A2AClient(url[0], timeout=PATIENCE) as client:
            first = await say(client, "hello")
            second = await say(client, "again", context_id=first.context_id)
            asked = await say(client, "pay")
            done = await say(client, "approve", to=asked)
    assert "message 1" in first.text
    assert "message 2" in second.text
    assert asked.questions[0].arguments == {"to": "Ada", "amount": 5}
    assert done.text == "Paid 5 to Ada"
