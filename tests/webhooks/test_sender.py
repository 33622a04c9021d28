"""Posting to a webhook: the dialed address, the connection, the headers and the response."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme
from aiohttp.abc import AbstractResolver, ResolveResult

from apcore_a2a.engine.webhooks.delivery import Notification, PostFailure
from apcore_a2a.errors import InvalidParamsError
from apcore_a2a.protocol.model import AuthenticationInfo, PushConfig
from apcore_a2a.webhooks import sender
from apcore_a2a.webhooks.sender import Network, WebhookSender
from tests.fakes import PATIENCE
from tests.interaction.serving import listen
from tests.requirements import requirement

NAME = "hooks.example.com"
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


def notice(url: str, **fields: Any) -> Notification:
    config = PushConfig(url=url, id="w", task_id="t", **fields)
    return Notification(config=config, event_id="t/1", body=b"{}", media_type="application/json")


async def deliver(sender: WebhookSender, notification: Notification) -> str:
    """Post a notification, and return the reason of a failure, or ""."""
    failure = await sender.send(notification)
    return failure.reason if failure is not None else ""


class Names(AbstractResolver):
    """A name server with a different answer for each query. The last answer is repeated."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            ResolveResult(hostname=host, host=each, port=port, family=socket.AF_INET, proto=0, flags=0)
            for each in found
        ]

    async def close(self) -> None: ...


@asynccontextmanager
async def posting(kind: type[WebhookSender] = WebhookSender, **options: Any) -> AsyncIterator[WebhookSender]:
    """Open a sender. Any: its options, and the fields of its network."""
    network = Network(**{name: options.pop(name) for name in Network.__struct_fields__ if name in options})
    made = kind(network=network, **options)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def answering(
    answer: bytes | Answer, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Serve a fixed response. Yield the port, and the heads of the received requests."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head)
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
                if callable(answer):
                    await answer(reader, writer)
                else:
                    writer.write(answer)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1], heads


def http(status: str, *headers: str, body: bytes = b"") -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


# ---- addresses ---------------------------------------------------------------------------------------------------


@requirement("NFR-SEC-004")
@pytest.mark.parametrize(
    "found",
    [["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["8.8.8.8", "127.0.0.1"], ["::ffff:127.0.0.1"], ["100.64.0.9"]],
)
async def test_a_host_that_resolves_to_a_private_address_is_not_dialed(found: list[str]) -> None:
    async with posting(resolver=Names(found)) as post:
        assert await deliver(post, notice(f"https://{NAME}/")) == "the address is not public"


@requirement("NFR-SEC-004")
async def test_a_host_that_resolves_differently_when_it_is_dialed_is_rejected() -> None:
    names = Names(["8.8.8.8"], ["127.0.0.1"])
    with listen() as inside:
        async with posting(resolver=names) as post:
            config = PushConfig(url=f"https://{NAME}/", id="w", task_id="t")
            post.check(config)
            assert (await names.resolve(NAME))[0]["host"] == "8.8.8.8"  # a check before dialing would pass
            assert await deliver(post, notice(config.url)) == "the address is not public"
        inside.setblocking(False)
        with pytest.raises(BlockingIOError):
            inside.accept()


async def test_each_post_resolves_the_host_once_and_dials_the_checked_address() -> None:
    checked: list[str] = []

    def may_dial(address: str) -> bool:
        checked.append(address)
        return checked.count(address) == 1  # yes when it is resolved, no when it is dialed: nothing leaves this machine

    names = Names(["8.8.8.8"], ["9.9.9.9"])
    async with posting(resolver=names, may_dial=may_dial) as post:
        for _ in range(2):
            assert await deliver(post, notice(f"https://{NAME}/")) == "the address is not public"
    assert (names.asked, checked) == ([NAME, NAME], ["8.8.8.8", "8.8.8.8", "9.9.9.9", "9.9.9.9"])


async def test_of_a_host_with_public_and_private_addresses_none_is_dialed() -> None:
    checked: list[str] = []

    def may_dial(address: str) -> bool:
        checked.append(address)
        return sender.is_public(address)

    async with posting(resolver=Names(["8.8.8.8", "10.0.0.1", "9.9.9.9"]), may_dial=may_dial) as post:
        assert await deliver(post, notice(f"https://{NAME}/")) == "the address is not public"
    assert checked == ["8.8.8.8", "10.0.0.1"]  # by the resolver, before any of them is dialed


@requirement("NFR-SEC-004")
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:7f00:1]", "169.254.169.254"])
async def test_a_literal_address_in_the_url_is_checked_when_it_is_dialed(host: str) -> None:
    class WithoutFirstCheck(WebhookSender):
        def check(self, config: PushConfig) -> None: ...

    async with posting(WithoutFirstCheck) as post:
        assert await deliver(post, notice(f"https://{host}/")) == "the address is not public"


async def test_a_url_permitted_only_in_development_is_rejected_in_production() -> None:
    async with posting() as post:
        assert await deliver(post, notice("http://example.com/")) == sender.NEEDS_HTTPS


async def test_certificate_and_host_header_are_those_of_the_host_name() -> None:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(NAME).configure_cert(server)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    async with answering(http("204 No Content"), server) as (port, heads):
        loopback: dict[str, Any] = {
            "resolver": Names(["127.0.0.1"]),
            "may_dial": lambda address: address == "127.0.0.1",
            "ports": (port,),
        }
        async with posting(**loopback, trust=trust) as post:
            assert await deliver(post, notice(f"https://{NAME}:{port}/hook?x=1")) == ""
            assert await deliver(post, notice(f"https://other.example.com:{port}/")) == "TLS failed"
        async with posting(**loopback) as strict:
            assert await deliver(strict, notice(f"https://{NAME}:{port}/")) == "TLS failed"
    (head,) = heads
    assert head.startswith(b"POST /hook?x=1 HTTP/1.1\r\n")
    assert f"host: {NAME}:{port}".encode() in head.lower()


# ---- requests ----------------------------------------------------------------------------------------------------


async def test_credentials_are_sent_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    given = AuthenticationInfo(scheme="Basic", credentials="dTpw")
    async with answering(http("200 OK", "Set-Cookie: a=b")) as (port, heads), posting(allow_insecure=True) as post:
        url = f"http://127.0.0.1:{port}/"
        assert await deliver(post, notice(url, authentication=given, token="t0ken")) == ""
        assert await deliver(post, notice(url)) == ""
    first, second = (head.decode().lower() for head in heads)
    assert "authorization: basic dtpw" in first
    assert "x-a2a-notification-token: t0ken" in first
    assert "webhook-id: t/1" in first
    for absent in ("cookie", "authorization", "token", "signature"):
        assert absent not in second


@pytest.mark.parametrize("text", ["line\r\nX-Injected: 1", "tab\t", "smile ☺", "null\0", "del\x7f"])
def test_text_that_a_header_cannot_carry_is_rejected(text: str) -> None:
    post = WebhookSender()
    url = "https://example.com/"
    for config in (
        PushConfig(url=url, token=text),
        PushConfig(url=url, authentication=AuthenticationInfo(scheme="Bearer", credentials=text)),
        PushConfig(url=url, authentication=AuthenticationInfo(scheme=text)),
    ):
        with pytest.raises(InvalidParamsError, match="printable ASCII"):
            post.check(config)


def test_the_length_of_a_token_is_limited() -> None:
    WebhookSender().check(PushConfig(url="https://example.com/", token="x" * sender.MAX_SECRET))
    with pytest.raises(InvalidParamsError, match="longer than 4096"):
        WebhookSender().check(PushConfig(url="https://example.com/", token="x" * (sender.MAX_SECRET + 1)))


async def test_a_connection_is_reused() -> None:
    connections = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(3):
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
            writer.write(http("200 OK", body=b"thanks"))
        writer.close()

    server = await asyncio.start_server(count, "127.0.0.1", 0)
    async with server, posting(allow_insecure=True) as post:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        assert [await deliver(post, notice(url)) for _ in range(3)] == ["", "", ""]
    assert connections == 1


# ---- responses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (http("200 OK"), ""),
        (http("202 Accepted", body=b"x" * 1000), ""),
        (http("204 No Content"), ""),
        (http("301 Moved", "Location: http://127.0.0.1:1/"), "HTTP 301: redirects are not followed"),
        (http("307 Moved", "Location: /elsewhere"), "HTTP 307: redirects are not followed"),
        (http("400 Bad Request"), "HTTP 400"),
        (http("410 Gone"), "HTTP 410"),
        (http("500 Oh"), "HTTP 500"),
        (b"nonsense\r\n\r\n", "the answer was not HTTP"),
    ],
)
async def test_only_2xx_counts_as_delivered(answer: bytes, reason: str) -> None:
    async with answering(answer) as (port, heads), posting(allow_insecure=True) as post:
        assert await deliver(post, notice(f"http://127.0.0.1:{port}/")) == reason
    assert len(heads) == 1


async def test_an_http_response_and_a_refused_address_do_not_count_as_a_target_that_is_down() -> None:
    async with answering(http("404 Not Found")) as (port, _), posting(allow_insecure=True) as post:
        answered = await post.send(notice(f"http://127.0.0.1:{port}/"))
        assert answered == PostFailure("HTTP 404", was_answered=True)
    async with posting(allow_insecure=True) as post:
        assert await post.send(notice(f"http://127.0.0.1:{port}/")) == PostFailure("no connection")
    async with posting() as post:
        assert await post.send(notice("https://127.0.0.1/")) == PostFailure(sender.NOT_PUBLIC, was_answered=True)
    async with posting(resolver=Names(["10.0.0.1"])) as post:
        refused = await post.send(notice(f"https://{NAME}/"))
        assert refused == PostFailure("the address is not public", was_answered=True)


async def test_many_posts_to_one_host_run_at_the_same_time() -> None:
    """A limit of connections per host would let one account's slow posts delay those of another."""
    many = 40
    arrived = asyncio.Barrier(many)

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await arrived.wait()
        writer.write(http("200 OK"))
        await writer.drain()

    async with answering(answer) as (port, _), posting(allow_insecure=True) as post, asyncio.timeout(PATIENCE):
        url = f"http://127.0.0.1:{port}/"
        async with asyncio.TaskGroup() as group:
            posts = [group.create_task(deliver(post, notice(url))) for _ in range(many)]
        assert {each.result() for each in posts} == {""}


async def test_only_the_beginning_of_a_huge_response_is_read() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
        while sent < 1 << 30:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    async with answering(flood) as (port, _), posting(allow_insecure=True) as post:
        async with asyncio.timeout(5):
            assert await deliver(post, notice(f"http://127.0.0.1:{port}/")) == ""
    assert sent < 1 << 25  # the size of the system's buffers


async def test_the_status_of_an_endless_response_decides() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
        await reader.read()  # until the sender disconnects

    async with answering(drip) as (port, _), posting(allow_insecure=True) as post:
        assert await deliver(post, notice(f"http://127.0.0.1:{port}/")) == ""


async def test_a_post_without_a_response_times_out() -> None:
    with listen() as silent:
        async with posting(allow_insecure=True, timeout=0.05) as post:
            assert await deliver(post, notice(f"http://127.0.0.1:{silent.getsockname()[1]}/")) == "no answer in time"


async def test_a_refused_or_closed_connection_is_reported() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with answering(hang_up) as (port, _), posting(allow_insecure=True) as post:
        assert await deliver(post, notice(f"http://127.0.0.1:{port}/")) == "the connection was closed"
    async with posting(allow_insecure=True) as post:
        assert await deliver(post, notice(f"http://127.0.0.1:{port}/secret-path")) == "no connection"


def test_the_default_timeout_is_ten_seconds() -> None:
    assert sender.TIMEOUT == 10


@pytest.mark.parametrize("allow_insecure", [True, False])
async def test_a_silent_name_server_blocks_no_other_name_resolution(
    monkeypatch: pytest.MonkeyPatch, allow_insecure: bool
) -> None:
    answers = threading.Event()
    asked = threading.Event()

    def ask(host: str, *_: Any, **__: Any) -> Any:
        if host == "localhost":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]
        asked.set()
        answers.wait(PATIENCE)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    async with posting(allow_insecure=allow_insecure) as post:
        sending = asyncio.create_task(deliver(post, notice(f"https://{NAME}/")))
        async with asyncio.timeout(PATIENCE):
            while not asked.is_set():  # noqa: ASYNC110  # a thread sets no asyncio event
                await asyncio.sleep(0)
            assert await loop.getaddrinfo("localhost", 0)
            answers.set()
            assert await sending == "the name was not found"
