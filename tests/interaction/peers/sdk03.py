"""The client of a2a-sdk 0.3.x, in a process and an environment of its own."""

from typing import Final

from tests.interaction.peers import Words
from tests.interaction.peers.process import ProcessPeer
from tests.sources import ROOT

PYTHON: Final = ROOT / ".venvs" / "sdk03" / "bin" / "python"
COMMAND: Final = (PYTHON, ROOT / "tests" / "interaction" / "peers" / "sdk03_client.py")


class Sdk03(ProcessPeer):
    async def send_data(self, skill: str, data: Words) -> list[Words]:
        """Return the parts that a skill answers to data, files as `raw` in base64."""
        return list(await self._ask("send_data", skill=skill, data=data))
