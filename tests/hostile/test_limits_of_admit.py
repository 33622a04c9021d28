"""An agent whose `admit` raises SystemExit and the like: the client receives an error, and the server keeps running."""

import asyncio
import logging

import httpx
import pytest

from apcore_a2a.agent import Admission, Call
from tests.fakes import COMPLETED, ScriptedAgent
from tests.hostile.test_limits_of_json import WAYS
from tests.interaction.serving import serving


class Exits(ScriptedAgent):
    """An agent whose `admit` raises at the first call."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(default=(COMPLETED,))
        self.errors = [error]

    async def admit(self, call: Call) -> Admission:
        if self.errors:
            raise self.errors.pop()
        return await super().admit(call)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()], ids=repr
)
async def test_an_admit_that_exits_is_an_internal_error_with_a_reference(
    way: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    path, headers, call = WAYS[way]
    async with serving(Exits(error)) as url, httpx.AsyncClient(base_url=url) as client:
        failed = await client.post(path, json=call, headers=headers)
        assert failed.status_code == (500 if "REST" in way else 200)
        assert failed.headers["content-type"] == "application/json"
        (logged,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "Internal error" in failed.text
        if "1.0" in way:  # 0.3 has no field for it
            assert logged.__dict__["reference"] in failed.text
        again = await client.post(path, json=call, headers=headers)
        assert "TASK_STATE_COMPLETED" in again.text or '"completed"' in again.text
