"""Offers to change the protocol that are accepted. The others are in tests/hostile/test_smuggling.py."""

from typing import Any

import httptools
import pytest

from apcore_a2a.http.server.connection import OneProtocolParser

OFFER = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: %b\r\n\r\n"


class Connection:
    """What a connection of uvicorn's is to its parser."""

    def __init__(self, ws_protocol_class: type | None) -> None:
        self.ws_protocol_class = ws_protocol_class
        self.headers: list[tuple[bytes, bytes]] = []
        self.messages = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_message_complete(self) -> None:
        self.messages += 1


def parser_of(connection: Connection) -> Any:
    return OneProtocolParser(httptools.HttpRequestParser(connection), connection)


def test_a_websocket_is_left_to_an_application_that_knows_them() -> None:
    with pytest.raises(httptools.HttpParserUpgrade):
        parser_of(Connection(object)).feed_data(OFFER % b"WebSocket")


@pytest.mark.parametrize(("knows", "offered"), [(None, b"websocket"), (object, b"h2c")])
def test_any_other_offer_is_as_if_it_had_not_been_made(knows: type | None, offered: bytes) -> None:
    connection = Connection(knows)
    parser_of(connection).feed_data(OFFER % offered)
    assert connection.messages == 2  # one of the parser that gave up, and one that has no effect
