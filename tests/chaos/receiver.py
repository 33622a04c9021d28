"""A process that receives webhooks as badly as it can: `python -m tests.chaos.receiver SEED LATE`.

It writes its port, then a line "task number digest" for each event that it has accepted. What it does with a request is
thrown by dice: accept it, refuse it, never answer, hang up, answer after LATE seconds, point elsewhere, or accept it
with a gigabyte. It does not fail one event more than three times: a fourth would be the sender's last.
"""

import asyncio
import hashlib
import os
import random
import sys
from collections import Counter

MERCY, ALWAYS = 3, "accept"
DEEDS = {"accept": 700, "refuse": 100, "ignore": 2, "hang up": 80, "late": 30, "redirect": 70, "huge": 18}
ACCEPTED = ("accept", "late", "huge")
GIGABYTE = 1 << 30


class Receiver:
    def __init__(self, seed: int, late: float) -> None:
        self._dice = random.Random(seed)
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
        """Receive one request; whether the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(fields["content-length"]))
        event = fields["webhook-id"]
        deed = self._throw(event)
        if deed in ACCEPTED:
            # In the order of arrival: a sender that is killed while it waits may be back before the late answer is.
            task, _, number = event.partition("/")
            os.write(1, f"{task} {number} {hashlib.sha256(body).hexdigest()[:16]}\n".encode())
        if deed == "late":
            await asyncio.sleep(self._late)
        match deed:
            case "accept" | "late":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            case "refuse":
                writer.write(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")
            case "redirect":
                writer.write(b"HTTP/1.1 302 There\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
            case "huge":
                await self._flood(writer)
                return False
            case "ignore":
                await reader.read()  # until the sender has had enough
                return False
            case _:
                return False
        await writer.drain()
        return True

    def _throw(self, event: str) -> str:
        deed = self._dice.choices(list(DEEDS), list(DEEDS.values()))[0]
        # Nor does it fail what it has accepted: a sender that was killed before it heard of that may have one try left.
        if self._failures[event] == MERCY or event in self._accepted:
            deed = ALWAYS
        if deed in ACCEPTED:
            self._accepted.add(event)
        else:
            self._failures[event] += 1
        return deed

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
