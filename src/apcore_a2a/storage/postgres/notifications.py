"""Wake-ups between replicas: one connection that sends and receives PostgreSQL notifications.

Invariant: a notification is sent after the commit of the write that it announces. It may get lost while there is no
connection, so a replica that waits for notifications also polls. Without an address for listening, replicas only poll.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from apcore_a2a.storage.contract import WakeUp
from apcore_a2a.storage.postgres.connection import (
    Address,
    Connection,
    ServerCondition,
    SessionSettings,
    close_quietly,
    connect,
)
from apcore_a2a.storage.postgres.writer import ALL_REPLICAS

RECONNECT_PAUSE: Final = 1.0  # seconds between attempts to listen again
WORDS_AT_ONCE: Final = 350  # task numbers in one notification: PostgreSQL limits the payload to 7,999 characters
REQUEST: Final = "command"  # the payload for a replica request; other versions send it, too
QUEUED: Final = "queued"  # the payload for a task that waits for any replica
ORPHANS: Final = "orphans"  # the payload if a replica was declared dead
NOTIFY: Final = "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS wake_up (channel, payload)"


def channel_of_all(schema: str) -> str:
    """Return the channel to which all replicas of a schema listen."""
    return f"a2a_all_{schema}"[:63]


class Notifications:
    """Wakes other replicas, and receives their wake-ups.

    The payload of a notification has the numbers of tasks, REQUEST, QUEUED or ORPHANS, separated by spaces.
    """

    def __init__(self, address: Address, condition: ServerCondition) -> None:
        self._schema = address.schema
        self._address = address.for_listening
        self._condition = condition
        if self._address is not None and address.listen_dsn is not None:
            # Reads and writes may succeed while this address does not answer: then the replica polls.
            self._condition = ServerCondition(self._address)
        self._channel = ""
        self._connection: Connection | None = None
        self._outbox: dict[str, set[str]] = {}  # words of the payloads to send, by replica
        self._to_send = asyncio.Event()
        self._woken = asyncio.Event()
        self._received: set[str] = set()
        self._missed = True  # whether notifications may have been sent while this replica did not listen
        self._work: asyncio.Task[None] | None = None

    def open(self, name: str) -> None:
        """Listen for notifications to this name from now on."""
        self._channel = self._channel_of(name)
        if self._address is None:
            return
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._run(self._address), name="postgres notifications")
        elif self._connection is not None:
            self._connection.terminate()  # `_run` opens a new one, on the new channel

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work}, timeout=2)
        await close_quietly(self._connection)

    def wake_for_request(self, replica: str) -> None:
        """Wake a replica that has received a request, or the answer to one."""
        self._send_soon(replica, {REQUEST})

    def wake_followers(self, followed: Mapping[str, Iterable[int]]) -> None:
        """Wake replicas for the tasks with these numbers; ALL_REPLICAS for tasks that wait for any replica."""
        for replica, numbers in followed.items():
            words = {QUEUED} if replica == ALL_REPLICAS else set(map(str, numbers))
            self._send_soon(replica, words)

    def _send_soon(self, replica: str, words: set[str]) -> None:
        if self._address is None:  # otherwise the outbox would grow
            return
        self._outbox.setdefault(replica, set()).update(words)
        self._to_send.set()

    async def until_woken(self, seconds: float) -> WakeUp:
        """Wait for a wake-up, at most for this time."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return WakeUp(everything=True, requests=True, queue=True)
        self._woken.clear()
        received = self._received
        missed = self._missed
        self._received = set()
        self._missed = False
        return WakeUp(
            everything=missed,
            requests=missed or REQUEST in received,
            queue=missed or QUEUED in received,
            orphans=ORPHANS in received,
            tasks=frozenset(int(word) for word in received if word.isdecimal()),
        )

    def wake_here(self) -> None:
        """Make `until_woken` return, as if every replica had sent a wake-up."""
        self._missed = True
        self._woken.set()

    async def _run(self, address: Address) -> None:
        while True:
            try:
                connection = await self._listen(address)
                while not connection.is_closed():
                    await self._to_send.wait()
                    self._to_send.clear()
                    await self._send(connection)
            except Exception as error:  # without this task, the replica would receive no notification any more
                self._condition.failed(error)
                await asyncio.sleep(RECONNECT_PAUSE)

    async def _listen(self, address: Address) -> Connection:
        # A notification need not survive a crash, so its commit does not wait for the disk.
        connection = await connect(address, SessionSettings(address, synchronous_commit="off"))
        self._connection = connection
        connection.add_termination_listener(self._on_termination)
        await connection.add_listener(self._channel, self._on_notification)
        await connection.add_listener(self._channel_of(ALL_REPLICAS), self._on_notification)
        self._condition.succeeded()
        self.wake_here()
        return connection

    def _channel_of(self, replica: str) -> str:
        # Names of replicas are unique on the server. The channel of all replicas contains the schema.
        return f"a2a_{replica}" if replica else channel_of_all(self._schema)

    def _on_notification(self, connection: object, pid: int, channel: str, payload: object) -> None:
        self._received.update(str(payload).split())
        self._woken.set()

    def _on_termination(self, *_: object) -> None:
        self._to_send.set()  # so that `_run` checks the connection

    async def _send(self, connection: Connection) -> None:
        outbox = self._outbox
        self._outbox = {}
        channels: list[str] = []
        payloads: list[str] = []
        for replica, words in outbox.items():
            ordered = sorted(words)
            for start in range(0, len(ordered), WORDS_AT_ONCE):
                channels.append(self._channel_of(replica))
                payloads.append(" ".join(ordered[start : start + WORDS_AT_ONCE]))
        if channels:
            await connection.execute(NOTIFY, channels, payloads)
