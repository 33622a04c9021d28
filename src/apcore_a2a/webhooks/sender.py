"""Posting of notifications with aiohttp, their bodies, and the checks against server-side request forgery (SSRF).

Invariant: no redirect is followed, no proxy is used, no cookie is stored, and no `.netrc` file is read. The address
that is dialed is the one that was checked. The `Host` header and the verification of the certificate use the host name.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec import Struct

from apcore_a2a import __version__
from apcore_a2a.engine.webhooks.delivery import DEFAULT_LIMITS, Notification, NotificationFormat, PostFailure
from apcore_a2a.errors import A2AError, InvalidParamsError, Violation
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import ArtifactUpdate, Document, PushConfig
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.webhooks.signatures import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, parse_secret, sign

TIMEOUT: Final = 10.0  # seconds for one post
MAX_ANSWER: Final = 64 * 1024  # bytes of a response that are read, so that the connection can be reused
ANSWER_TIME: Final = 1.0  # seconds for reading them: the status alone decides about success
MAX_SECRET: Final = 4096  # characters of a token or of credentials, which are stored and sent in headers
KEEP_ALIVE: Final = 4.0  # seconds: servers close idle connections after 5 s or more, so ours close first
TOKEN_HEADERS: Final = ("X-A2A-Notification-Token", "A2A-Notification-Token")  # the names of 0.3 and of a2a-go


class AddressRefusedError(OSError):
    """The host resolves to an address that is not public."""


class WebhookSender:
    """A `Sender`. Each of the `secrets` signs every notification: two of them during a rotation.

    `allow_insecure` is for development: it permits any http or https URL and any address.
    """

    def __init__(
        self,
        *,
        allow_insecure: bool = False,
        secrets: Sequence[str] = (),
        timeout: float = TIMEOUT,
        network: "Network | None" = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._allow_insecure = allow_insecure
        self._keys = [parse_secret(secret) for secret in secrets]
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._network = network or Network()
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._session_resolver: AbstractResolver | None = None

    def check(self, config: PushConfig) -> None:
        check_url(config.url, allow_insecure=self._allow_insecure, ports=self._network.ports)
        _check_text("token", config.token)
        if config.authentication is not None:
            _check_text("authentication.scheme", config.authentication.scheme)
            _check_text("authentication.credentials", config.authentication.credentials)

    async def send(self, notification: Notification) -> PostFailure | None:
        try:
            # Checked again, because the settings may have changed since the webhook was set.
            self.check(notification.config)
            return await self._post(notification)
        except A2AError as error:
            return PostFailure(error.message, was_answered=True)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return PostFailure(_reason(error), was_answered=_is_refused(error))

    async def _post(self, notification: Notification) -> PostFailure | None:
        request = self._open_session().post(
            notification.config.url,
            data=notification.body,
            headers=self._headers(notification),
            allow_redirects=False,
            timeout=self._timeout,
        )
        async with request as answer:
            await _drain(answer)
            if 200 <= answer.status < 300:
                return None
            reason = f"HTTP {answer.status}"
            if 300 <= answer.status < 400:
                reason += ": redirects are not followed"
            return PostFailure(reason, was_answered=True)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            network = self._network
            resolver = network.resolver or _ThreadedResolver()
            socket_factory = None
            if not self._allow_insecure:
                resolver = _VettingResolver(resolver, network.may_dial)
                socket_factory = partial(_vetted_socket, network.may_dial)
            connector = aiohttp.TCPConnector(
                limit=0,  # the workers are limited, for each account: a limit per host would be shared by all
                keepalive_timeout=KEEP_ALIVE,
                use_dns_cache=False,  # every connection resolves the name, and checks the result
                ssl=network.trust or True,
                resolver=resolver,
                socket_factory=socket_factory,
            )
            self._session_resolver = resolver
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                headers={"User-Agent": f"apcore-a2a/{__version__}", "Accept-Encoding": "identity"},
            )
        return self._session

    def _headers(self, notification: Notification) -> dict[str, str]:
        config = notification.config
        timestamp = int(self._clock())
        headers = {
            "Content-Type": notification.media_type,
            ID_HEADER: notification.event_id,
            TIMESTAMP_HEADER: str(timestamp),
            **notification.trace,
        }
        if config.token:
            for name in TOKEN_HEADERS:
                headers[name] = config.token
        authentication = config.authentication
        if authentication is not None and authentication.scheme:
            headers["Authorization"] = f"{authentication.scheme} {authentication.credentials}".rstrip()
        signatures = [sign(key, notification.event_id, timestamp, notification.body) for key in self._keys]
        if signatures:
            headers[SIGNATURE_HEADER] = " ".join(signatures)
        return headers

    async def close(self) -> None:
        if self._session is not None and self._session_resolver is not None:
            await self._session.close()
            await self._session_resolver.close()  # a session does not close a resolver that was passed to it
            self._session = None


class _ThreadedResolver(AbstractResolver):
    """Resolves names with the system's resolver, on its own threads.

    aiohttp's resolver uses the thread pool of the event loop, which has only a few threads. Any client can set a
    webhook whose name server never answers. A few of these would block all name resolution of the agent, for example
    for the host of its language model.
    """

    def __init__(self) -> None:
        # A name server that does not answer holds its thread longer than its worker.
        self._threads = ThreadPoolExecutor(2 * DEFAULT_LIMITS.max_workers, "webhook names")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        look_up = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        addresses: list[ResolveResult] = []
        for its_family, _, protocol, _, address in found:
            addresses.append(
                ResolveResult(
                    hostname=host,
                    host=str(address[0]),
                    port=port,
                    family=its_family,
                    proto=protocol,
                    flags=socket.AI_NUMERICHOST,
                )
            )
        return addresses

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)  # a name server may not answer for a long time


class _VettingResolver(AbstractResolver):
    """Returns the result of another resolver, or raises if it contains an address that is not public.

    If one address of a name is not public, the name cannot be trusted, whichever address would be dialed.
    """

    def __init__(self, resolver: AbstractResolver, may_dial: Callable[[str], bool]) -> None:
        self._resolver = resolver
        self._may_dial = may_dial

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        if not all(self._may_dial(each["host"]) for each in found):
            raise AddressRefusedError
        return found

    async def close(self) -> None:
        await self._resolver.close()


def _vetted_socket(may_dial: Callable[[str], bool], address: tuple[Any, ...]) -> socket.socket:
    """Return a socket for a public address, given as a tuple of getaddrinfo (Any: its values).

    This also checks literal addresses in URLs, which no resolver sees.
    """
    family, kind, protocol, _, (host, *_) = address
    if not may_dial(host):
        raise AddressRefusedError
    return socket.socket(family=family, type=kind, proto=protocol)


async def _drain(answer: aiohttp.ClientResponse) -> None:
    """Read a short response, so that its connection can be reused. Close the connection of a long or slow one."""
    try:
        async with asyncio.timeout(ANSWER_TIME):
            await answer.content.readexactly(MAX_ANSWER)
    except asyncio.IncompleteReadError:
        return  # the response is shorter, and read completely
    except (TimeoutError, aiohttp.ClientError, OSError):
        pass
    answer.close()


def _check_text(field: str, text: str) -> None:
    """Reject text that a header cannot carry unchanged."""
    if len(text) > MAX_SECRET:
        wrong = Violation(field, f"is longer than {MAX_SECRET} characters")
        raise InvalidParamsError(f"Invalid parameter {field}: it is longer than {MAX_SECRET} characters", [wrong])
    if not text.isascii() or not text.isprintable():
        wrong = Violation(field, "must be printable ASCII")
        raise InvalidParamsError(f"Invalid parameter {field}: it must be printable ASCII", [wrong])


def _is_refused(error: BaseException) -> bool:
    """Return whether the address was rejected, so that nothing was dialed."""
    cause = getattr(error, "os_error", error)
    return isinstance(cause, AddressRefusedError) or isinstance(error.__cause__, AddressRefusedError)


def _reason(error: BaseException) -> str:
    """Return why a post failed, in our own words: a library's text may contain the URL, and with it a secret."""
    if _is_refused(error):
        return "the address is not public"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        return "TLS failed"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the name was not found"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "no connection"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed"
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.ClientPayloadError):
        return "the answer was not HTTP"
    return type(error).__name__


# ---- addresses (SSRF) -----------------------------------------------------------------------------------------------
# A webhook must give no access to the network behind the server.
#
# Invariant: the URL is checked when the webhook is set. The address is checked when it is dialed. A name may resolve
# differently a second later (DNS rebinding), so a check at the time of setting would prove nothing.

PORTS: Final = (443, 8443)
NEEDS_HTTPS: Final = "Webhook URL must use HTTPS in production mode"  # the requirements' text
NOT_PUBLIC: Final = "Webhook URL must not point to a loopback or private address in production mode"

# Networks that are rejected although `ipaddress` calls some of their addresses global: relays and translations that
# lead to another address (see also `_wrapped`), and metadata services of cloud providers.
_NOT_PUBLIC: Final = tuple(
    ip_network(network)
    for network in (
        "100.64.0.0/10",  # carrier-grade NAT
        "168.63.129.16/32",  # Azure's platform
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.88.99.0/24",  # 6to4 relays
        "198.18.0.0/15",  # benchmarks
        "224.0.0.0/4",
        "240.0.0.0/4",
        "64:ff9b:1::/48",  # NAT64 within a network
        "100::/64",
        "2001::/23",  # protocol assignments; Teredo
        "2001:db8::/32",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fec0::/10",  # site-local
        "ff00::/8",
    )
)
_NAT64: Final = IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = IPv6Network("::/96")  # IPv4-compatible, and ::1


def is_public(address: str) -> bool:
    """Return whether an address is on the public internet. An IPv6 address that wraps an IPv4 address is not."""
    try:
        parsed = ip_address(address.partition("%")[0])  # without the zone of a link-local one
    except ValueError:
        return False
    return _is_public(parsed)


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address):
        inner = _wrapped(address)
        if inner is not None:
            return False  # even if `inner` is public: a receiver behind a translation also has a direct address
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    return not any(address in network for network in _NOT_PUBLIC if network.version == address.version)


def _wrapped(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address wraps: mapped, compatible, NAT64, 6to4 or Teredo."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or address in _COMPATIBLE:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def check_url(url: str, *, allow_insecure: bool, ports: Collection[int] = PORTS) -> SplitResult:
    """Return the parts of a permitted webhook URL. With `allow_insecure`, every well-formed URL is permitted.

    Raises:
        InvalidParamsError: The URL is not permitted. The text says why.
    """
    parts = _split(url)
    if allow_insecure:
        return parts
    host = parts.hostname or ""
    if parts.scheme != "https":
        raise _refused(NEEDS_HTTPS)
    if _is_local_name(host) or _is_legacy_ipv4(host) or (_is_literal(host) and not is_public(host)):
        raise _refused(NOT_PUBLIC)
    if (parts.port or 443) not in ports:
        known = " or ".join(map(str, ports))
        raise _refused(f"Webhook URL must use port {known} in production mode")
    return parts


def _split(url: str) -> SplitResult:
    # URL parsers disagree about control characters and backslashes, and no valid URL contains them.
    if any(ord(character) <= 0x20 or character in "\\\x7f" for character in url):
        raise _refused("Webhook URL is not well-formed")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _refused("Webhook URL is not well-formed") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise _refused("Webhook URL must be an absolute http or https URL")
    if parts.username is not None or parts.password is not None:
        raise _refused("Webhook URL must not hold a user name or a password")
    if parts.fragment:
        raise _refused("Webhook URL must not have a fragment")
    return parts


def _is_local_name(host: str) -> bool:
    name = host.rstrip(".")
    return name == "localhost" or name.endswith((".localhost", ".local", ".internal"))


def _is_literal(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_legacy_ipv4(host: str) -> bool:
    """Return whether only C libraries parse the host as an IPv4 address: 2130706433, 0x7f.1, 017700000001."""
    if _is_literal(host):
        return False
    last = host.rstrip(".").rpartition(".")[2]
    return last.isdigit() or last.startswith("0x")


def _refused(text: str) -> InvalidParamsError:
    return InvalidParamsError(text, [Violation("url", text)])


class Network(Struct, frozen=True, kw_only=True):
    """The network of a sender: which addresses it dials, and which certificates it trusts. Tests pass another one."""

    ports: Collection[int] = PORTS
    may_dial: Callable[[str], bool] = is_public
    resolver: AbstractResolver | None = None
    """None: the system's resolver."""
    trust: ssl.SSLContext | None = None
    """None: the system's certificates."""


# ---- bodies ---------------------------------------------------------------------------------------------------------
# The bodies of notifications in each protocol version.
# Invariant: the body of a notification is derived from what the store has. A new version is one more row in `FORMATS`.


class EventFormat:
    """Posts every event as streams send it (1.0 §4.3.3)."""

    media_type = "application/a2a+json"
    posts_tasks = False

    def is_posted(self, event: bytes) -> bool:
        return True

    def encode(self, stored: bytes) -> bytes:
        return v1.event_of(stored)


class TaskFormat:
    """Posts the whole task after each status, and nothing for the chunks of artifacts (0.3.0 §9.5)."""

    media_type = "application/json"
    posts_tasks = True

    def is_posted(self, event: bytes) -> bool:
        decoded, _ = v1.decode_record(event)
        return not isinstance(decoded, ArtifactUpdate)

    def encode(self, stored: bytes) -> bytes:
        task = Document(stored).task()
        return v03.encode_push(task, task)


FORMATS: Final[Mapping[str, NotificationFormat]] = {v1.VERSION: EventFormat(), v03.VERSION: TaskFormat()}
