"""The crew: it logs what fails, spares the others, and leaves on time."""

import asyncio

import pytest

from apcore_a2a.engine.runs import BackgroundWork
from tests.engine.driving import soon
from tests.fakes import Gate


async def test_one_who_fails_is_named_in_the_log_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    crew, gate = BackgroundWork(), Gate()

    async def fail() -> None:
        raise ValueError("broken")

    crew.start(fail(), name="the one")
    crew.start(gate.wait(), name="the other")
    await gate.reached()
    assert len(crew) == 1
    assert [record.__dict__["work"] for record in caplog.records] == ["the one"]
    gate.open()
    assert await soon(crew.join(5))
    assert len(crew) == 0


async def test_joining_is_bounded() -> None:
    crew, gate = BackgroundWork(), Gate()
    crew.start(gate.wait(), name="slow")
    assert not await soon(crew.join(0.001))
    gate.open()
    assert await soon(crew.join(5))
    assert await soon(crew.join(5))  # no work is left to wait for


async def test_dismissing_cancels_once_and_names_who_stays(caplog: pytest.LogCaptureFixture) -> None:
    crew, gate, deaf = BackgroundWork(), Gate(), Gate(deaf=True)
    heard = crew.start(gate.wait(), name="hears")
    unheard = crew.start(deaf.wait(), name="deaf")
    await gate.reached()
    await deaf.reached()
    await soon(crew.cancel_all(0.01))
    assert (heard.cancelled(), unheard.done(), unheard.cancelling()) == (True, False, 1)
    assert [record.__dict__["work"] for record in caplog.records] == [["deaf"]]
    deaf.open()
    await soon(unheard)
    await soon(crew.cancel_all(5))
    assert len(caplog.records) == 1


async def test_disowned_work_is_not_awaited_but_kept_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    crew, deaf = BackgroundWork(), Gate(deaf=True)
    member = crew.start(deaf.wait(), name="deaf")
    await deaf.reached()
    crew.abandon(member)
    assert await soon(crew.join(5))
    await soon(crew.cancel_all(5))
    assert member.cancelling() == 0  # it was cancelled before, and once is enough
    assert [record.__dict__["work"] for record in caplog.records] == [["deaf"]]
    deaf.open()
    await soon(asyncio.wait({member}))
    crew.abandon(member)  # too late to matter
    await soon(crew.cancel_all(5))
    assert len(caplog.records) == 1
