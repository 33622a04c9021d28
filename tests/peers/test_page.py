"""The tables of the documentation are those of the tests, with the versions that are installed."""

import pytest

from tests.peers.table import CLIENTS, SERVERS, Client, Server
from tests.sources import ROOT


@pytest.mark.parametrize("peer", [*CLIENTS, *SERVERS], ids=lambda peer: peer.name)
def test_the_page_on_interoperability_has_the_row_of_a_peer(peer: Client | Server) -> None:
    assert peer.row in (ROOT / "docs" / "interoperability.md").read_text().splitlines()


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_the_page_on_agents_says_how_streamed_text_ends_for_a_client(client: Client) -> None:
    assert client.ends_row in (ROOT / "docs" / "agents.md").read_text().splitlines()
