"""The server process: its start (or one line with the reason for a failed start), signals, and a bounded shutdown.

Invariants: once every task is at rest in the store, code that ignores its cancellation does not keep the process alive.
Only a signal ends the server: `sys.exit` in an asyncio task of an agent ends that task.
"""

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, MappingProxyType
from typing import Any, Final

import uvicorn
from uvicorn.lifespan.on import LifespanOn

from apcore_a2a.http.server.tls import HANDSHAKE_LIMITS, HandshakeLimits, RenewedContext, TLSListener
from apcore_a2a.http.traffic import KEY, Traffic

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
LAST_GRACE: Final = 2.0  # seconds until the process exits after a clean shutdown
FORCED_GRACE: Final = 0.5  # after a second signal
OTHER_PORT: Final = "choose another one with --port (in Python: port=), or 0 for any that is free"
OTHER_HOST: Final = "choose another one with --host (in Python: host=)"

Handler = Callable[[int, FrameType | None], None]

logger = logging.getLogger("uvicorn.error")  # its lines are shown at the terminal


class NotStarted(Exception):
    """The server could not start. The text says why, and what to do."""


class Server(uvicorn.Server):
    """uvicorn with a reason for a failed start, exit code 0 on a signal, and an immediate exit on the second signal.

    `drain_delay` is the number of seconds for which the server still listens after a signal, so that load balancers
    notice the shutdown before the port closes.
    `tls` is the TLS context for https, `handshakes` the limits of its handshakes.
    `state` is added to the state of the application's lifespan, where connections find it.
    `on_started` is called with the address once the application is open and the socket listens.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        drain_delay: float = 0,
        tls: RenewedContext | None = None,
        handshakes: HandshakeLimits = HANDSHAKE_LIMITS,
        state: Mapping[str, object] = MappingProxyType({}),
        on_started: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._state = state
        self._tls = tls
        self._handshakes = handshakes
        self._listener: TLSListener | None = None
        self._drain_delay = drain_delay
        self._on_started = on_started
        self._timer: threading.Timer | None = None

    def run_to_end(self, sockets: list[socket.socket] | None = None) -> str:
        """Serve until a signal, at bound sockets if given. Return why it could not start, or an empty string."""
        with _signals_end_the_server_only(self.handle_sighup):
            try:
                self.run(sockets)
            except NotStarted as error:
                return str(error)
            finally:
                self._exit_after(None)
        return ""

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        with asyncio.Runner(loop_factory=_loop_factory(self.config)) as runner:
            loop = runner.get_loop()
            serving = loop.create_task(self.serve(sockets))
            while not serving.done():
                try:
                    loop.run_until_complete(serving)
                except SystemExit:
                    if serving.done():
                        raise
                    # asyncio raises it from any task. The event loop can continue.
                    logger.error("A task of the agent called sys.exit(). The task has ended, and the server continues")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
            self._exit_after(FORCED_GRACE)
        super().handle_exit(sig, frame)

    def handle_sighup(self, sig: int, frame: FrameType | None) -> None:
        """Shut down as for SIGTERM, but not as a second signal: the terminal and its shell may both send SIGHUP."""
        if not self.should_exit:
            os.kill(os.getpid(), signal.SIGTERM)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if sockets is None:
            sockets = bind(self.config.host, self.config.port)
        host, port = sockets[0].getsockname()[:2]
        self.lifespan.state.update(self._state)
        try:
            await self._listen(sockets)
        except SystemExit:  # uvicorn raises it if the application did not open. Older versions return
            raise NotStarted(self._why_not_open()) from None
        except OSError as error:  # another process took the port between bind() and listen()
            await self.lifespan.shutdown()
            raise NotStarted(_why_not_bound(error, self.config.host, port)) from error
        if self.lifespan.should_exit:
            raise NotStarted(self._why_not_open())
        if not all(map(_is_listening, sockets)):  # the same, but uvloop does not report the error of listen()
            for server in self.servers:
                server.close()
            await self.lifespan.shutdown()
            raise NotStarted(_why_not_bound(OSError(errno.EADDRINUSE, ""), self.config.host, port))
        gc.collect()
        gc.freeze()  # the present objects stay, so no collection scans them again (45,000 objects, 30 ms)
        if ":" in host:
            host = f"[{host}]"
        scheme = "http" if self._tls is None else "https"
        address = f"{scheme}://{host}:{port}"
        if self._on_started is not None:
            self._on_started(address)
        logger.info("Uvicorn running on %s (Press CTRL+C to quit)", address)

    async def _listen(self, sockets: list[socket.socket]) -> None:
        """Open the application, then accept connections."""
        if self._tls is None:
            await super().startup(sockets)
            return
        await super().startup([])  # without its TLS, which waits a minute for each handshake
        if self.lifespan.should_exit:
            return
        traffic = self.lifespan.state.get(KEY) or Traffic()
        self._listener = TLSListener(self._make_protocol, self._tls, traffic, limits=self._handshakes)
        self._listener.listen(sockets, self.config.backlog)

    def _make_protocol(self) -> asyncio.Protocol:
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def _why_not_open(self) -> str:
        return getattr(self.lifespan, "reason", "") or "The application did not open"

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        if not self.config.loaded:
            self.config.load()
        self.config.lifespan_class = Lifespan
        await super().serve(sockets)
        self._exit_after(LAST_GRACE)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._drain_delay and not self.force_exit:
            logger.info("Draining: new work is rejected, and the port closes in %g s", self._drain_delay)
            await asyncio.sleep(self._drain_delay)  # a second signal ends the process earlier
        if self._listener is not None:
            await self._listener.close()
        await super().shutdown(sockets)

    def _exit_after(self, seconds: float | None) -> None:
        """End the process after so many seconds, even if threads or tasks still run. None cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = threading.Timer(seconds, os._exit, [0 if not self.force_exit else 1])
            self._timer.daemon = True
            self._timer.start()


class Lifespan(LifespanOn):
    """uvicorn's lifespan, which keeps the reason of a failed start for `Server` instead of logging it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.reason = ""

    async def startup(self) -> None:
        original = self.logger
        self.logger = _SILENT
        try:
            await super().startup()
        finally:
            self.logger = original

    async def send(self, message: Any) -> None:  # Any: a dictionary of uvicorn's type
        if message["type"] == "lifespan.startup.failed":
            self.reason = message.get("message", "")
        await super().send(message)


_SILENT: Final = logging.getLogger(f"{__name__}.silent")
_SILENT.setLevel(logging.CRITICAL + 1)


# ---- sockets ------------------------------------------------------------------------------------------------------


def bind(host: str | None, port: int) -> list[socket.socket]:
    """Return bound sockets for an address. They do not listen, so no client connects before the application is open.

    Raises:
        NotStarted: one of them cannot be bound.
    """
    bound: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            if bound:  # with port 0, all sockets get the port of the first one
                address = (address[0], bound[0].getsockname()[1], *address[2:])
            bound.append(_bind_one(family, kind, protocol, address))
    except OSError as error:
        for opened in bound:
            opened.close()
        raise NotStarted(_why_not_bound(error, host, port)) from error
    return bound


def _bind_one(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # on Windows, two processes could share the port
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
    except OSError:
        opened.close()
        raise
    return opened


def _is_listening(opened: socket.socket) -> bool:
    if opened.fileno() < 0:  # uvloop has closed it
        return False
    return bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _why_not_bound(error: OSError, host: str | None, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Cannot listen on {host}:{port}: another process has this port (address already in use); {OTHER_PORT}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"Cannot listen on {host}:{port}: this user may not open the port (permission denied); {OTHER_PORT}"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"Cannot listen on {host}:{port}: this machine has no such address ({error.strerror}); {OTHER_HOST}"
    return f"Cannot listen on {host}:{port}: {error.strerror or error}"


# ---- the loop and its signals -------------------------------------------------------------------------------------


def _loop_factory(config: uvicorn.Config) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the event loop that uvicorn would use: uvloop's, if it is installed."""
    factory = getattr(config, "get_loop_factory", None)
    if factory is not None:
        found: Callable[[], asyncio.AbstractEventLoop] | None = factory()
        return found
    config.setup_event_loop()  # uvicorn before 0.36 sets a policy instead
    return None


@contextmanager
def _signals_end_the_server_only(on_sighup: Handler) -> Iterator[None]:
    """Ignore the signals that uvicorn raises again when it has ended, because they have been handled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {number: signal.signal(number, _handled) for number in SIGNALS}
    # Windows has no SIGHUP. An existing handler (for example nohup's, which ignores it) is kept.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, on_sighup)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _handled(number: int, frame: FrameType | None) -> None:
    """Do nothing."""


# ---- signals --------------------------------------------------------------------------------------------------------
# SIGINT and SIGTERM are passed to the engine at once.
#
# A server waits for open connections before it shuts the application down, and an event stream is a connection that
# stays open. Without this, uvicorn would wait for the stream, and the stream for the shutdown.


@contextmanager
def on_exit_signal(begin: Callable[[], None]) -> Iterator[None]:
    """Call `begin` on the event loop at an exit signal, then the previous handler of the signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(begin)
        earlier = before[signal.Signals(number)]
        if callable(earlier):
            earlier(number, frame)

    for number, earlier in before.items():
        if callable(earlier):  # without a handler, the signal ends the process at once
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, earlier in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, earlier)
