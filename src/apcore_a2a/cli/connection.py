"""From the options of a command to a client of an agent; and one place where every command ends.

Rule: a command is a coroutine that gets a connected client. Its errors, its time limit and Ctrl-C are dealt with here.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from apcore_a2a.cli import failures
from apcore_a2a.cli.options import Connection
from apcore_a2a.cli.transports import DebugTransport, FileCardTransport, HeaderTransport, LocalCard
from apcore_a2a.client import A2AClient
from apcore_a2a.client.address import origin
from apcore_a2a.client.auth import Auth, AuthContext, BearerAuth, check_header
from apcore_a2a.client.open_transport import open_transport
from apcore_a2a.client.options import BindingName
from apcore_a2a.client.transport import Transport
from apcore_a2a.errors import A2ADiscoveryError, A2AError
from apcore_a2a.protocol.v03 import jsonrpc as v03

QUICK: Final = 30.0  # seconds for what an agent answers at once

Work = Callable[[A2AClient], Awaitable[int | None]]


class CardApiKey:
    """An API key, sent where the agent's card says; in `X-API-Key` if it says nothing."""

    def __init__(self, key: str) -> None:
        self._key = check_header(key)

    async def headers(self, context: AuthContext) -> Mapping[str, str]:
        if context.card is None:
            return {}  # no card has asked for it yet
        for scheme in (context.card.security_schemes or {}).values():
            if asked := scheme.get("apiKeySecurityScheme"):
                return self._place(str(asked.get("location", "header")), check_header(str(asked.get("name") or "")))
        return {"X-API-Key": self._key}

    def _place(self, location: str, name: str) -> Mapping[str, str]:
        match location:
            case "header":
                return {name: self._key}
            case "cookie":
                return {"Cookie": f"{name}={self._key}"}
        raise A2AError(f"The agent wants its API key in the {location}, which this command cannot do")

    def renew(self) -> bool:
        return False


def run(connection: Connection, work: Work, *, within: float | None = QUICK, talks: bool = True) -> int:
    """Connect, do the work, and answer the exit code.

    Args:
        within: The time limit if `--timeout` gives none.
        talks: Whether the work calls the agent, and does not merely look at its card.
    """

    async def do() -> int | None:
        async with connect(connection) as client:
            if talks and connection.version is None:
                await _note_version(client)
            return await work(client)

    return guard(connection, do, within=within)


def guard(connection: Connection, do: Callable[[], Awaitable[int | None]], *, within: float | None = QUICK) -> int:
    """Do something about an agent within its time limit, report what fails, and answer the exit code."""
    limit = connection.timeout or within

    async def limited() -> int:
        async with asyncio.timeout(limit):
            return await do() or 0

    try:
        return asyncio.run(limited())
    except KeyboardInterrupt:
        return failures.EXIT_INTERRUPTED
    except TimeoutError:
        late = TimeoutError(f"Nothing final from the agent within {limit:g} seconds" if limit else "")
        return failures.report(failures.explain(late), json=connection.json)
    except BrokenPipeError:  # whoever read our output has had enough; the interpreter must not try to flush it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failures.EXIT_FAILED
    except click.ClickException:
        raise
    except (A2AError, ValueError) as error:
        failure = failures.explain(error, with_credentials=connection.has_credentials)
        return failures.report(failure, json=connection.json)
    except Exception as error:
        return failures.report_unexpected(error, json=connection.json, debug=connection.debug)


async def _note_version(client: A2AClient) -> None:
    """No silent downgrade: whoever did not ask for an old version is told that it is all there is."""
    version = (await client.interface).protocol_version
    if not version.startswith("1."):
        click.echo(f"Note: the agent speaks A2A {version}; --a2a-version {version} silences this", err=True)


@asynccontextmanager
async def connect(connection: Connection) -> AsyncIterator[A2AClient]:
    """A client of the agent, with the binding that the caller prefers."""
    async with open_client(connection) as client:
        binding = await _preferred(connection, client)
        if binding is None:
            yield client
            return
    async with open_client(connection, binding) as client:
        yield client


async def _preferred(connection: Connection, client: A2AClient) -> BindingName | None:
    """The first preference that the card offers; none at all leaves it to the card."""
    if not connection.transports:
        return None
    offered = {interface.protocol_binding for interface in (await client.agent_card).supported_interfaces}
    return next((binding for binding in connection.transports if binding in offered), None)


@asynccontextmanager
async def open_client(
    connection: Connection,
    binding: BindingName | None = None,
    *,
    wrap: Callable[[Transport], Transport] = lambda it: it,
) -> AsyncIterator[A2AClient]:
    """A client of the agent; `wrap` may put a transport around the one that it uses."""
    url, origins = address(connection.agent), list(connection.origins)
    async with AsyncExitStack() as stack:
        transport = await _transport(connection, stack)
        if "://" not in url:
            card = _read_card(url)
            url, transport = card.url, FileCardTransport(transport, card)
            origins += card.origins
        client = A2AClient(
            url,
            auth=_auth(connection),
            timeout=None,
            http=wrap(transport),
            binding=binding,
            version=connection.version,
            allow_origins=origins,
            extensions=connection.extensions,
            poll_interval=connection.poll_interval,
            **_signatures(connection),
        )
        yield await stack.enter_async_context(client)


def address(reference: str) -> str:
    """An agent's address: a URL, a bare host (https, or http on this machine), or the path of a card."""
    if "://" in reference:
        return reference.removeprefix("file://")
    if Path(reference).is_file() or reference.startswith((".", "/", "~")):
        return reference
    host = reference.partition("/")[0].rpartition(":")[0] or reference.partition("/")[0]
    local = host in ("localhost", "127.0.0.1", "[::1]")
    return f"{'http' if local else 'https'}://{reference}"


def _read_card(path: str) -> LocalCard:
    """A card out of a file. Whoever hands it over trusts the addresses in it."""
    try:
        body = Path(path).expanduser().read_bytes()
        card = v03.decode_card(body)
        origins = tuple(origin(interface.url) for interface in card.supported_interfaces)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise A2ADiscoveryError(f"The agent card {path} cannot be read: {reason}", status=0) from error
    except (A2AError, ValueError) as error:
        raise A2ADiscoveryError(f"The agent card {path} is not an agent card: {error}") from error
    if not origins:
        raise A2ADiscoveryError(f"The agent card {path} names no interface")
    return LocalCard(f"{origins[0]}/agent-card.json", body, origins)


async def _transport(connection: Connection, stack: AsyncExitStack) -> Transport:
    transport = open_transport(None)
    if connection.insecure:
        import httpx  # for the one thing that our own transport does not do

        from apcore_a2a.client.httpx_transport import HttpxTransport

        click.echo("Warning: certificates are not verified (--insecure); others may read your credentials", err=True)
        transport = HttpxTransport(await stack.enter_async_context(httpx.AsyncClient(verify=False)))
    if connection.debug:
        transport = DebugTransport(transport)
    return HeaderTransport(transport, connection.headers) if connection.headers else transport


def _auth(connection: Connection) -> Auth | None:
    if connection.bearer:
        return BearerAuth(connection.bearer)
    return CardApiKey(connection.api_key) if connection.api_key else None


def _signatures(connection: Connection) -> dict[str, Any]:  # Any: two keywords of the client
    if connection.keys is None:
        return {}
    try:
        keys = msgspec.json.decode(Path(connection.keys).read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise click.UsageError(f"{connection.keys} is not a JSON Web Key Set: {error}") from error
    return {"keys": keys, "signatures": "if-present"}
