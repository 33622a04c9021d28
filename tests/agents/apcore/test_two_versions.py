"""The oldest supported apcore and the newest, each in a process of its own, served by the same command."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apcore_a2a import A2AClient
from tests.processes import running
from tests.requirements import requirement

ROOT = Path(__file__).parents[3]
OLDEST = ROOT / ".venvs" / "apcore-oldest" / "bin" / "python"
EXTENSIONS = ROOT / "examples" / "extensions"
VERSION = "import apcore; print(apcore.__version__)"


def version_of(python: str | Path) -> tuple[int, ...]:
    said = subprocess.run([python, "-c", VERSION], capture_output=True, check=True, text=True).stdout
    return tuple(int(number) for number in said.strip().split("."))


@pytest.fixture(params=["oldest", "newest"])
def python(request: pytest.FixtureRequest) -> str:
    if request.param == "newest":
        return sys.executable
    assert OLDEST.exists(), "make setup makes it"
    return str(OLDEST)


@requirement("NFR-CMP-002")
def test_there_are_two_versions_to_test_with() -> None:
    assert version_of(OLDEST) == (0, 6, 0)
    assert version_of(sys.executable) >= (0, 6, 0)


@requirement("NFR-CMP-002")
async def test_a_directory_of_modules_is_served_with_either(python: str) -> None:
    arguments = ("-m", "apcore_a2a", "serve", "--host", "127.0.0.1", "--port", "0", "--extensions-dir", str(EXTENSIONS))
    async with running(*arguments, python=python) as process:
        url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        async with A2AClient(url) as client:
            card = await client.agent_card
            assert {"text.stats", "units.convert", "payments.transfer"} <= {skill.id for skill in card.skills}
            counted: Any = await client.send_message("many hands", skill="text.stats")
            assert counted.artifacts[0].parts[0].data["words"] == 2
            length = {"value": 1.0, "source": "km", "target": "m"}
            converted: Any = await client.send_message(length, skill="units.convert")
            assert converted.artifacts[0].parts[0].data == {"value": 1000.0, "unit": "m"}
    assert "Traceback" not in process.said
