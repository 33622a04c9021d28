# mypy: ignore-errors
# Typed against fasta2a, which is installed in its own environment.
"""fasta2a's server. It runs one task at a time, and answers message/send without waiting for the result."""

import asyncio
from contextlib import asynccontextmanager

from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.storage import InMemoryStorage

from benchmarks.peers.serving import CHUNK, FILLED, arguments, prepare, serve


class Obedient(Worker):
    async def run_task(self, params) -> None:
        id, context = params["id"], params["context_id"]
        await self.storage.update_task(id, state="working")
        await self.publish_status(id, context, "working")
        work = await prepare(params["message"]["parts"][0]["text"])
        for number in range(work.chunks):
            piece = {"artifact_id": "answer", "parts": [{"text": CHUNK}]}
            await self.publish_artifact(id, context, piece, append=number > 0, last_chunk=number == work.chunks - 1)
            if work.yields:
                await asyncio.sleep(0)
        whole = {"artifact_id": "answer", "parts": [{"text": CHUNK}] * work.chunks}
        await self.storage.update_task(id, state="completed", new_artifacts=[whole])

    async def cancel_task(self, params) -> None:
        await self.storage.update_task(params["id"], state="canceled")

    def build_message_history(self, history):
        return history

    def build_artifacts(self, result):
        return []


async def fill(storage: InMemoryStorage, tasks: int) -> None:
    for number in range(tasks):
        message = {"message_id": f"m{number}", "role": "user", "kind": "message", "parts": [{"text": "echo"}]}
        task = await storage.submit_task(f"11111111-0000-4000-8000-{number:012d}", message)
        storage.tasks[FILLED % number] = storage.tasks.pop(task["id"])
        task["id"] = FILLED % number
        artifact = {"artifact_id": "answer", "parts": [{"text": CHUNK}]}
        await storage.update_task(task["id"], state="completed", new_artifacts=[artifact])


def main() -> None:
    given = arguments()
    storage, broker = InMemoryStorage(), InMemoryBroker()

    @asynccontextmanager
    async def lifespan(app):
        await fill(storage, given.fill)
        async with app.task_manager, Obedient(broker=broker, storage=storage).run():
            yield

    url = f"http://127.0.0.1:{given.port}"
    serve(FastA2A(storage=storage, broker=broker, name="bench", url=url, lifespan=lifespan), given.port)


if __name__ == "__main__":
    main()
