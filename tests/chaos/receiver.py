"""A process that receives webhooks with random faults: `python -m tests.chaos.receiver SEED LATE`.

It writes its port, then a line "task number digest" for each event that it has accepted. For each request it chooses at
random: accept, reject, never respond, disconnect, accept after LATE seconds, redirect, or accept with a gigabyte. It
fails one event at most three times, because the sender gives up after the fourth failure.
"""

import asyncio
import hashlib
import os
import random
import sys
from collections import Counter

MAX_FAILURES = 3  # of one event
RESPONSES = {  # with their weights
    "accept": 700,
    "reject": 100,
    "ignore": 2,
    "disconnect": 80,
    "late": 30,
    "redirect": 70,
    "huge": 18,
}
ACCEPTED = ("accept", "late", "huge")
GIGABYTE = 1 << 30


class Receiver:
    def __init__(self, seed: int, late: float) -> None:
        self._random = random.Random(seed)
        self._late = late
        self._failures: Counter[str] = Counter()
        self._accepted: set[str] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Receive and answer one request. Return whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(fields["content-length"]))
        event = fields["webhook-id"]
        response = self._choose(event)
        if response in ACCEPTED:
            # In the order of arrival: a sender that is killed while it waits may restart before the late response.
            task, _, number = event.partition("/")
            os.write(1, f"{task} {number} {hashlib.sha256(body).hexdigest()[:16]}\n".encode())
        if response == "late":
            await asyncio.sleep(self._late)
        match response:
            case "accept" | "late":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            case "reject":
                writer.write(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")
            case "redirect":
                writer.write(b"HTTP/1.1 302 There\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
            case "huge":
                await self._flood(writer)
                return False
            case "ignore":
                await reader.read()  # until the sender disconnects
                return False
            case _:
                return False
        await writer.drain()
        return True

    def _choose(self, event: str) -> str:
        response = self._random.choices(list(RESPONSES), list(RESPONSES.values()))[0]
        # An accepted event never fails: a sender that was killed before it received the response may have one try left.
        if self._failures[event] == MAX_FAILURES or event in self._accepted:
            response = "accept"
        if response in ACCEPTED:
            self._accepted.add(event)
        else:
            self._failures[event] += 1
        return response

    async def _flood(self, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {GIGABYTE}\r\n\r\n".encode())
        for _ in range(GIGABYTE // 65536):
            writer.write(b"x" * 65536)
            await writer.drain()


async def main(seed: int, late: float) -> None:
    server = await asyncio.start_server(Receiver(seed, late).serve, "127.0.0.1", 0, backlog=1000)
    os.write(1, f"{server.sockets[0].getsockname()[1]}\n".encode())
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
