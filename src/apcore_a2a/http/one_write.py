"""An answer in one write.

uvicorn writes the head of an answer and then its body, and each write is a call of the system and a packet; together
they are a tenth of a small request. Here the head waits for the body, but never longer than a turn of the loop: a
stream whose first event takes its time shows its head at once.
"""

import asyncio
from typing import Any, Final

LARGE: Final = 64 * 1024  # bytes of a body that is not copied to save a call
HEAD: Final = b"HTTP/1.1 "  # how every head begins; a body that does waits a turn as well, and nothing else happens


class OneWriteTransport:
    """A connection's transport, for uvicorn. What is not here is the transport's own."""

    __slots__ = ("_head", "_sending", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.is_closing = transport.is_closing  # asked for each request: by way of `__getattr__` it takes a µs
        self._head = b""
        self._sending: asyncio.Handle | None = None

    def __getattr__(self, name: str) -> Any:  # Any: whatever it is there
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            head = self._take_head()
            if len(data) > LARGE:
                self._transport.write(head)
            else:
                data = head + data  # not `writelines`: that of asyncio 3.12 pauses nobody, however much waits
            self._transport.write(data)
        elif data.startswith(HEAD):
            self._head = data
            self._sending = asyncio.get_running_loop().call_soon(self._send_head)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._send_head()
        self._transport.close()

    def _send_head(self) -> None:
        if self._head:
            self._transport.write(self._take_head())

    def _take_head(self) -> bytes:
        head = self._head
        self._head = b""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        return head
