"""The connection of a command to its agent: transports, credentials and time limits."""

import asyncio
import errno
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from ssl import CERT_NONE, SSLContext, create_default_context
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.clean_text import clean_line
from apcore_a2a.cli import failures
from apcore_a2a.cli.completion import remember_skills
from apcore_a2a.cli.options import NOT_JSON, CommonOptions
from apcore_a2a.cli.rendering import indent
from apcore_a2a.client import A2AClient
from apcore_a2a.client.auth import Auth, BearerAuth, CardAuth, origin
from apcore_a2a.client.channel import call_deadline, open_http2_transport, open_transport
from apcore_a2a.client.options import BindingName
from apcore_a2a.client.transport import HttpRequest, HttpResponse, HttpStream, Transport, with_headers
from apcore_a2a.errors import A2ADiscoveryError, A2AError, InvalidParamsError, ParseError
from apcore_a2a.protocol.decoding import decode
from apcore_a2a.protocol.model import encode
from apcore_a2a.protocol.v03 import jsonrpc as v03

# ---- transports -----------------------------------------------------------------------------------------------------
# Transports between a command's client and the network, each a wrapper of another one.
#
# They implement options that the client library does not have: a card from a file, headers for every request, and
# recording the exchange. `validate` records it because its rules concern bytes and headers that the client consumes.

# Headers that cannot contain a secret. A list of secret headers would miss the API key of the next agent.
HARMLESS_HEADERS: Final = frozenset(
    {"accept", "content-type", "a2a-version", "a2a-extensions", "last-event-id", "if-none-match"}
)
MAX_SHOWN: Final = 4000  # bytes of a body; an artifact can be megabytes of Base64
# The secrets by which an agent authenticates to a webhook. The text may be truncated before the closing quote.
_SECRETS: Final = re.compile(r'("(?:token|credentials)"\s*:\s*)"(?:[^"\\]|\\.)*"?')
_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(Any)


class LocalCard(Struct, frozen=True):
    """A card from a file, and the origins of its interfaces."""

    url: str
    """The address for which `FileCardTransport` returns the card."""
    body: bytes
    origins: tuple[str, ...]


class NetworkTransport:
    """Sends the requests of gRPC over HTTP/2, and all others over another transport."""

    has_trailers = True

    def __init__(self, inner: Transport, tls: SSLContext | None = None) -> None:
        self._inner = inner
        self._tls = tls
        self._http2: Transport | None = None

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        return await self._choose(request).request(request, limit)

    def stream(self, request: HttpRequest, idle: float) -> AbstractAsyncContextManager[HttpStream]:
        return self._choose(request).stream(request, idle)

    def _choose(self, request: HttpRequest) -> Transport:
        if not request.needs_trailers:
            return self._inner
        if self._http2 is None:
            self._http2 = open_http2_transport(self._tls)
        return self._http2

    async def close(self) -> None:
        await self._inner.close()
        if self._http2 is not None:
            await self._http2.close()


class FileCardTransport:
    """Answers the request for the agent's card with a card from a file."""

    has_trailers = True

    def __init__(self, inner: Transport, card: LocalCard) -> None:
        self._inner = inner
        self._card = card

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        if request.url == self._card.url:
            return HttpResponse(200, {"content-type": "application/json"}, self._card.body)
        return await self._inner.request(request, limit)

    def stream(self, request: HttpRequest, idle: float) -> AbstractAsyncContextManager[HttpStream]:
        return self._inner.stream(request, idle)

    async def close(self) -> None:
        await self._inner.close()


class HeaderTransport:
    """Adds the caller's service parameters (A2A 1.0 §3.2.6: HTTP headers) to each request.

    They override the headers of the client, even A2A-Version, because the caller has set them explicitly.
    """

    has_trailers = True

    def __init__(self, inner: Transport, headers: Mapping[str, str]) -> None:
        self._inner = inner
        self._headers = headers

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        return await self._inner.request(with_headers(request, self._headers), limit)

    def stream(self, request: HttpRequest, idle: float) -> AbstractAsyncContextManager[HttpStream]:
        return self._inner.stream(with_headers(request, self._headers), idle)

    async def close(self) -> None:
        await self._inner.close()


class RecordingTransport:
    """Records the last request and its response as sent on the wire. The body of a stream is not recorded."""

    has_trailers = True

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.last_request = HttpRequest("GET", "", {})
        self.last_response = HttpResponse(0, {})

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        self.last_request = request
        self.last_response = await self._inner.request(request, limit)
        return self.last_response

    @asynccontextmanager
    async def stream(self, request: HttpRequest, idle: float) -> AsyncIterator[HttpStream]:
        self.last_request = request
        async with self._inner.stream(request, idle) as response:
            self.last_response = HttpResponse(response.status, response.headers)
            yield response

    async def close(self) -> None:
        await self._inner.close()

    def last_json(self) -> Any:  # Any: whatever the agent sent
        """The last response, decoded, or None if it is not valid JSON. Every rule of `validate` rejects None."""
        body = self.last_response.body
        if self.last_request.needs_trailers:
            body = _grpc_json(self.last_request.url, body, of_request=False)
        try:
            return decode(body, _ANY)
        except (ParseError, InvalidParamsError):
            return None


def _grpc_json(url: str, body: bytes, *, of_request: bool) -> bytes:
    """Return the message in a body of gRPC as JSON, or nothing if it cannot be read."""
    from apcore_a2a.protocol import grpc  # loads the tables of message types, which only gRPC needs

    method = grpc.METHODS.get(urlsplit(url).path)
    if method is None or len(body) < grpc.PREFIX:
        return b""
    try:
        if of_request:
            return encode(method.request.decode(body[grpc.PREFIX :]))
        return method.decode_answer(body[grpc.PREFIX :])
    except A2AError:
        return b""


class DebugTransport:
    """Prints requests and responses on standard error. Secrets in headers and webhooks are masked."""

    has_trailers = True

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        _show_request(request)
        response = await self._inner.request(request, limit)
        body = response.body
        if request.needs_trailers:
            body = _grpc_json(request.url, body, of_request=False)
        _show(f"< HTTP {response.status}{_grpc_status(response)}", body)
        return response

    @asynccontextmanager
    async def stream(self, request: HttpRequest, idle: float) -> AsyncIterator[HttpStream]:
        _show_request(request)
        async with self._inner.stream(request, idle) as response:
            _show(f"< HTTP {response.status}, a stream")
            url = request.url if request.needs_trailers else ""
            yield HttpStream(response.status, response.headers, _show_chunks(response.chunks, url), response.trailers)

    async def close(self) -> None:
        await self._inner.close()


async def _show_chunks(chunks: AsyncIterator[bytes], grpc_url: str) -> AsyncIterator[bytes]:
    """Show the chunks of a stream, and of a stream of gRPC at that address its messages as JSON."""
    if not grpc_url:
        async for chunk in chunks:
            _show("<", chunk)
            yield chunk
        return
    from apcore_a2a.protocol.grpc import MessageSplitter, frame_message  # as in _grpc_json

    splitter = MessageSplitter(sys.maxsize)  # the client has the limit
    async for chunk in chunks:
        with suppress(ValueError):  # the client reports it
            for message in splitter.feed(chunk):
                _show("<", _grpc_json(grpc_url, frame_message(message), of_request=False))
        yield chunk


def _grpc_status(response: HttpResponse) -> str:
    code = response.trailers.get("grpc-status") or response.headers.get("grpc-status")
    return f", grpc-status {code}" if code else ""


def _show_request(request: HttpRequest) -> None:
    headers = []
    for name, value in request.headers.items():
        if name.lower() not in HARMLESS_HEADERS:
            value = "…"
        headers.append(f"{name}: {value}")
    _show(f"> {request.method} {request.url}", "\n".join(headers).encode())
    body = request.body
    if request.needs_trailers:
        body = _grpc_json(request.url, body, of_request=True)
    if body:
        _show(">", body)


def _show(head: str, body: bytes = b"") -> None:
    """Print a line and the indented body. Both are sanitized, because they contain text of agents."""
    click.echo(clean_line(head), err=True)
    text = _SECRETS.sub(r'\1"…"', body[:MAX_SHOWN].decode(errors="replace"))
    if len(body) > MAX_SHOWN:
        text += "…"
    if text:
        click.echo(indent(text), err=True)


# ---- connection -----------------------------------------------------------------------------------------------------
# Opens a client from the options of a command, and handles the end of every command.
#
# Invariant: a command is a coroutine that receives a connected client. Its errors, its time limit and Ctrl-C are
# handled here.

DEFAULT_TIME_LIMIT: Final = 30.0  # seconds for operations that an agent answers at once
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of an output that accepts no more data

Work = Callable[[A2AClient], Awaitable[int | None]]


# ---- running a command ----------------------------------------------------------------------------------------------


def run_with_client(
    common: CommonOptions, work: Work, *, time_limit: float | None = DEFAULT_TIME_LIMIT, calls_agent: bool = True
) -> int:
    """Connect, run the command, and return its exit code.

    Args:
        common: The common options.
        work: The command.
        time_limit: Seconds, unless `--timeout` is given. None for commands that wait for a task.
        calls_agent: Whether the command calls the agent, instead of only reading its card.
    """

    async def connect_and_work() -> int | None:
        async with open_preferred_client(common) as client:
            if calls_agent and common.version is None:
                await _note_old_version(client)
            remember_skills(common.agent, await client.agent_card)
            try:
                return await work(client)
            except A2AError as error:
                if not failures.is_about_skill(error):
                    raise
                hint = failures.skill_hint(error, await client.agent_card)
                failure = failures.explain(error, with_credentials=common.has_credentials)
                return failures.report(replace(failure, hint=hint), json=common.json)

    return run_to_exit_code(common, connect_and_work, time_limit=time_limit)


def run_to_exit_code(
    common: CommonOptions, work: Callable[[], Awaitable[int | None]], *, time_limit: float | None = DEFAULT_TIME_LIMIT
) -> int:
    """Run a command within its time limit, report its errors, and return its exit code."""
    limit = common.timeout or time_limit

    async def limited_work() -> int:
        async with asyncio.timeout(limit):
            code = await work()
            return code or 0

    return report_failures(common, lambda: asyncio.run(limited_work()), limit=limit)


def report_failures(common: CommonOptions, run: Callable[[], int], *, limit: float | None = None) -> int:
    """Return the exit code of a command, whatever it raises. Each failure is reported once, here."""
    try:
        return run()
    except KeyboardInterrupt:
        return failures.EXIT_INTERRUPTED
    except TimeoutError:
        text = ""
        if limit:
            text = f"The agent did not finish within {limit:g} seconds"
        return failures.report(failures.explain(TimeoutError(text)), json=common.json)
    except BrokenPipeError:
        _drop_output()  # the reader has closed the pipe (`| head`)
        return failures.EXIT_FAILED
    except (click.ClickException, click.exceptions.Exit):
        raise  # a usage error found late, or artifacts that cannot be saved; main() reports those
    except (A2AError, ValueError) as error:
        failure = failures.explain(error, with_credentials=common.has_credentials)
        return failures.report(failure, json=common.json)
    except Exception as error:  # a bug: it is reported without a traceback
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            _drop_output()
            click.echo(f"Error: cannot write the output: {error.strerror}", err=True)
            return failures.EXIT_FAILED
        return failures.report_unexpected(error, json=common.json, debug=common.debug)


def _drop_output() -> None:
    """Discard the rest of the output. Otherwise the interpreter would flush it at exit, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _note_old_version(client: A2AClient) -> None:
    """Report that the agent only supports an old version, unless the caller chose it (a2a-cli §13.2)."""
    version = (await client.interface).protocol_version
    if not version.startswith("1."):
        click.echo(f"Note: the agent only supports A2A {version}. --a2a-version {version} hides this note", err=True)


# ---- opening a client -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_preferred_client(common: CommonOptions) -> AsyncIterator[A2AClient]:
    """Open a client that uses the binding that the caller prefers."""
    async with open_client(common) as client:
        binding = await _preferred_binding(common, client)
        if binding is None:
            yield client
            return
    # A client uses one binding, and only the card shows which preferred ones the agent offers. Hence a second client.
    async with open_client(common, binding) as client:
        yield client


async def _preferred_binding(common: CommonOptions, client: A2AClient) -> BindingName | None:
    """Return the first preferred binding that the card offers. By default the card decides (a2a-cli §13.1)."""
    if not common.bindings:
        return None
    card = await client.agent_card
    offered = {interface.protocol_binding for interface in card.supported_interfaces}
    for binding in common.bindings:
        if binding in offered:
            return binding
    return None


@asynccontextmanager
async def open_client(common: CommonOptions, binding: BindingName | None = None) -> AsyncIterator[A2AClient]:
    """Open a client and fetch the card. It uses the given binding, or the first of the card."""
    async with _open_destination(common) as destination, _make_client(common, destination, binding) as client:
        # Commands that wait for a task have no time limit. The card needs no work, so its fetch has one.
        async with call_deadline(common.timeout or DEFAULT_TIME_LIMIT):
            await client.agent_card
        yield client


@asynccontextmanager
async def open_recorded_client(
    common: CommonOptions, binding: BindingName | None = None, *, timeout: float | None = None
) -> AsyncIterator[tuple[A2AClient, RecordingTransport]]:
    """Open a client with a time limit for each call, and a recorder of its last exchange."""
    async with _open_destination(common) as destination:
        # Outermost, so that a card from a file is recorded too and can be validated.
        recorder = RecordingTransport(destination.transport)
        async with _make_client(common, destination._replace(transport=recorder), binding, timeout) as client:
            yield client, recorder


class Destination(NamedTuple):
    """The address of an agent, and the transport to it."""

    url: str
    allowed_origins: tuple[str, ...]
    transport: Transport


@asynccontextmanager
async def _open_destination(common: CommonOptions) -> AsyncIterator[Destination]:
    async with open_network(common) as transport:
        address = agent_address(common.agent)
        if "://" in address:
            yield Destination(address, common.allowed_origins, transport)
            return
        card = _read_card(address)
        # A card file that the caller passes is trusted, with the addresses in it.
        origins = (*common.allowed_origins, *card.origins)
        yield Destination(card.url, origins, FileCardTransport(transport, card))


@asynccontextmanager
async def open_network(common: CommonOptions) -> AsyncIterator[Transport]:
    if not common.insecure:
        yield _with_options(common, NetworkTransport(open_transport(None)))
        return
    from apcore_a2a.client.aiohttp_transport import AiohttpTransport  # here, because it loads aiohttp

    click.echo("Warning: TLS certificates are not verified (--insecure). Others may read your credentials", err=True)
    yield _with_options(common, NetworkTransport(AiohttpTransport(verify=False), _unverified_tls()))


def _unverified_tls() -> SSLContext:
    tls = create_default_context()
    tls.check_hostname = False
    tls.verify_mode = CERT_NONE
    tls.set_alpn_protocols(["h2"])
    return tls


def _with_options(common: CommonOptions, transport: Transport) -> Transport:
    if common.debug:
        transport = DebugTransport(transport)
    # The outer transport, so that --debug shows these headers too.
    if common.headers:
        transport = HeaderTransport(transport, common.headers)
    return transport


def _make_client(
    common: CommonOptions, destination: Destination, binding: BindingName | None, timeout: float | None = None
) -> A2AClient:
    return A2AClient(
        destination.url,
        auth=choose_auth(common),
        timeout=timeout,  # usually None: the command as a whole has a time limit, see run_to_exit_code
        http=destination.transport,
        binding=binding,
        version=common.version,
        allow_origins=destination.allowed_origins,
        extensions=common.extensions,
        poll_interval=common.poll_interval,
        **_signature_options(common),
    )


def _signature_options(common: CommonOptions) -> dict[str, Any]:  # Any: two keywords of the client
    if common.keys_file is None:
        return {}
    try:
        keys = msgspec.json.decode(Path(common.keys_file).read_bytes(), type=dict[str, Any])
    except NOT_JSON as error:
        raise click.UsageError(f"{common.keys_file} is not a JSON Web Key Set: {error}") from error
    from apcore_a2a.client.signatures import CardVerifier  # loads a cryptography library

    try:
        # Checked here, so that a wrong file is not reported as an error of the agent.
        CardVerifier(keys, required=False)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    # An unsigned card is not a failure (a2a-cli §10.1). `card` reports that it is unsigned.
    return {"keys": keys, "signatures": "if-present"}


# ---- address of the agent -------------------------------------------------------------------------------------------


def agent_address(reference: str) -> str:
    """Return the address of an agent: a URL, a host name (https, or http for this machine), or the path of a card."""
    if "://" in reference:
        return reference.removeprefix("file://")
    if Path(reference).is_file() or reference.startswith((".", "/", "~")):
        return reference
    host_and_port = reference.partition("/")[0]
    # rpartition: in `[::1]:8000` only the last colon separates the port. Without a port, the part before the colon is
    # empty.
    host = host_and_port.rpartition(":")[0] or host_and_port
    if host in ("localhost", "127.0.0.1", "[::1]"):
        return f"http://{reference}"
    return f"https://{reference}"


def _read_card(path: str) -> LocalCard:
    """Read a card file, as if it came from the first address that it names."""
    try:
        body = Path(path).expanduser().read_bytes()
        card = v03.decode_card(body)
    except (OSError, RuntimeError) as error:  # RuntimeError: `~user` with an unknown user
        reason = getattr(error, "strerror", None) or type(error).__name__
        # status=0: no response. Without a status, the error would mean that there is a card, but an invalid one.
        raise A2ADiscoveryError(f"The agent card {path} cannot be read: {reason}", status=0) from error
    except A2AError as error:
        raise A2ADiscoveryError(f"The agent card {path} is not an agent card: {error}") from error
    origins: list[str] = []
    for interface in card.supported_interfaces:
        with suppress(ValueError):  # the address of a gRPC interface may be only host:port
            origins.append(origin(interface.url))
    if not origins:
        raise A2ADiscoveryError(f"The agent card {path} names no interface with an http or https address")
    # The client fetches a card only from an http address. FileCardTransport answers the request for this one.
    return LocalCard(f"{origins[0]}/agent-card.json", body, tuple(origins))


# ---- credentials ----------------------------------------------------------------------------------------------------


def choose_auth(common: CommonOptions) -> Auth | None:
    """Return the credentials of the flags and variables. A bearer token alone is sent regardless of the card."""
    if common.bearer and not (common.api_key or common.basic or common.client_id):
        return BearerAuth(common.bearer)
    if not common.has_credentials:
        return None
    basic: tuple[str, str] | None = None
    if common.basic:
        name, _, password = common.basic.partition(":")
        basic = (name, password)
    client: tuple[str, str] | None = None
    if common.client_id:
        client = (common.client_id, common.client_secret or "")
    return CardAuth(token=common.bearer or "", api_key=common.api_key or "", basic=basic, client=client)
