"""Fixtures: an ASGI application behind HTTP/2, with the timeouts of the server or with short ones."""

from collections.abc import AsyncIterator

import pytest

from apcore_a2a.http.server.connection import HTTP2Support
from tests.http.server.http2_app import App, Short, serving_http2


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
async def url(app: App) -> AsyncIterator[str]:
    async with serving_http2(app, HTTP2Support()) as url:
        yield url
        app.gate.set()


@pytest.fixture
async def short_url(app: App) -> AsyncIterator[str]:
    """The address of a server with short timeouts."""
    support = HTTP2Support()
    support.opener = Short
    async with serving_http2(app, support) as url:
        yield url
        app.gate.set()
