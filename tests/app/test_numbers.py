"""Settings that are numbers: NaN, and infinity where a setting must be finite, are rejected by name."""

import math
from typing import Any

import pytest

from apcore_a2a import A2AClient, Limits, async_serve
from apcore_a2a.protocol.model import StatusUpdate, Task
from apcore_a2a.settings import TABLE, Setting
from tests.interaction.serving import serving

NUMBERS = [setting for setting in TABLE if "float" in str(setting.kind)]
UNBOUNDED = {"execution_timeout", "keep_alive_interval", "task_store_ttl"}  # infinity means no limit


async def echo(text: str) -> str:
    return text


def options_with(setting: Setting, value: float) -> dict[str, Any]:
    given: dict[str, Any] = {setting.name: value}
    return {"limits": Limits(**given)} if setting.group else given


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda setting: str(setting.name))
async def test_a_number_of_seconds_that_is_nan_or_infinite_is_rejected_by_name(setting: Setting) -> None:
    with pytest.raises(ValueError, match=f"{setting.name} must be .* not nan"):
        await async_serve(echo, **options_with(setting, math.nan))
    if setting.name not in UNBOUNDED:
        with pytest.raises(ValueError, match=f"{setting.name} must be .*finite.* not inf"):
            await async_serve(echo, **options_with(setting, math.inf))


@pytest.mark.parametrize("name", sorted(UNBOUNDED))
async def test_an_agent_with_an_infinite_time_answers_and_streams(name: str) -> None:
    endless: dict[str, Any] = {name: math.inf}
    async with serving(echo, card=None, **endless) as url, A2AClient(url) as client:
        task = await client.send_message("hi")
        assert isinstance(task, Task)
        assert task.status.state == "completed"
        states = [event.status.state async for event in client.stream_message("hi") if isinstance(event, StatusUpdate)]
        assert states[-1] == "completed"
