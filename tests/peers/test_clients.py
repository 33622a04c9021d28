"""What users of other projects' clients see of our agents, cell by cell of docs/interoperability.md."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from apcore_a2a import create_site
from apcore_a2a.protocol.lifecycle import StreamFinal
from tests.interaction.peers.process import Process
from tests.interaction.serving import serving_app
from tests.peers.agents import AGENTS
from tests.peers.table import BEHAVIOURS, CLIENTS, ENDS, Behaviour, Cell, Client, Shown

CELLS = [
    (client, behaviour) for client in CLIENTS for behaviour in BEHAVIOURS if client.cells[behaviour].shown is not None
]
OTHER_ENDS = [(client, final) for client in CLIENTS for final in ENDS if final != client.final]


async def shown_by(process: Process, client: Client, behaviour: Behaviour, cell: Cell, final: StreamFinal) -> list[Any]:
    """Return what the client shows of the agent of a behaviour."""
    site = create_site(AGENTS, stream_final=final, data_as_text=client.data_as_text, shutdown_timeout=0.1)
    async with serving_app(site) as address:
        url = f"{address}/{behaviour}"
        if cell.action == "cancel":
            return list((await process.ask(do="cancel", url=url))["shown"])
        if client.name == "AG2" and behaviour == "question":  # it passes the question to a hook, and goes on by itself
            return list((await process.ask(do=cell.action, url=url, text="book", talk="one", answer="Rome"))["shown"])
        shown: list[Any] = []
        for text in ("book", "Rome") if behaviour == "question" else ("go",):
            answer = await process.ask(do=cell.action, url=url, text=text, talk="one")
            if "raised" in answer:
                return [answer["raised"]]
            shown += answer["shown"]
        return shown


def matches(shown: Sequence[Any], expected: Shown) -> bool:
    if len(shown) != len(expected):
        return False
    for text, wanted in zip(shown, expected, strict=True):
        if isinstance(wanted, re.Pattern):
            if not wanted.fullmatch(text):
                return False
        elif isinstance(wanted, dict):
            if json.loads(text) != wanted:
                return False
        elif text != wanted:
            return False
    return True


@pytest.mark.parametrize(("client", "behaviour"), CELLS, ids=lambda value: getattr(value, "name", value))
async def test_a_client_shows_what_the_page_says(
    client: Client, behaviour: Behaviour, process_of: Callable[[Client], Process]
) -> None:
    cell = client.cells[behaviour]
    shown = await shown_by(process_of(client), client, behaviour, cell, client.final)
    assert cell.shown is not None
    assert matches(shown, cell.shown), shown


@pytest.mark.parametrize(("client", "final"), OTHER_ENDS, ids=lambda value: getattr(value, "name", value))
async def test_a_client_shows_streamed_text_as_the_page_says(
    client: Client, final: StreamFinal, process_of: Callable[[Client], Process]
) -> None:
    cell = client.ends[final]
    shown = await shown_by(process_of(client), client, "streamed", cell, final)
    assert cell.shown is not None
    assert matches(shown, cell.shown), shown
