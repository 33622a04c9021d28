"""Settings that are numbers: what is none, or without end where that makes no sense, is refused by name."""

import math
from typing import Any

import pytest
from msgspec.structs import fields

from apcore_a2a import A2AClient, Settings, async_serve
from apcore_a2a.protocol.model import StatusUpdate, Task
from tests.interaction.serving import serving

NUMBERS = [field.name for field in fields(Settings) if "float" in str(field.type)]
UNBOUNDED = {"execution_timeout", "keep_alive_interval", "task_store_ttl"}  # that may be without end


async def echo(text: str) -> str:
    return text


@pytest.mark.parametrize("name", NUMBERS)
async def test_what_is_no_number_of_seconds_is_refused_by_name(name: str) -> None:
    unknown: dict[str, Any] = {name: math.nan}
    endless: dict[str, Any] = {name: math.inf}
    with pytest.raises(ValueError, match=f"{name} must .* not nan"):
        await async_serve(echo, **unknown)
    if name not in UNBOUNDED:
        with pytest.raises(ValueError, match=f"{name} must be finite"):
            await async_serve(echo, **endless)


@pytest.mark.parametrize("name", sorted(UNBOUNDED))
async def test_what_may_be_without_end_answers_and_streams(name: str) -> None:
    endless: dict[str, Any] = {name: math.inf}
    async with serving(echo, card=None, **endless) as url, A2AClient(url) as client:
        task = await client.send_message("hi")
        assert isinstance(task, Task)
        assert task.status.state == "completed"
        states = [event.status.state async for event in client.stream_message("hi") if isinstance(event, StatusUpdate)]
        assert states[-1] == "completed"
