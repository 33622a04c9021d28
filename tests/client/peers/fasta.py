# mypy: ignore-errors
# Typed against fasta2a, which is installed in its own environment.
"""A server of fasta2a: no webhooks, no list, no second message to a task, and no cancellation of a running task."""

import asyncio
import socket
import uuid
from contextlib import asynccontextmanager

import uvicorn
from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.storage import InMemoryStorage


class Agent(Worker):
    async def run_task(self, params) -> None:
        id = params["id"]
        context = params["context_id"]
        word, _, rest = params["message"]["parts"][0]["text"].partition(" ")
        await self.storage.update_task(id, state="working")
        await self.publish_status(id, context, "working")
        match word:
            case "ask":
                await self.storage.update_task(id, state="input-required")
            case "fail":
                await self.storage.update_task(id, state="failed")
            case "hang":
                await asyncio.Event().wait()
            case _:
                texts = [rest]
                if word == "count":
                    texts = [str(n) for n in range(int(rest))]
                for n, text in enumerate(texts):
                    piece = {"artifact_id": "numbers", "parts": [{"text": text}]}
                    await self.publish_artifact(id, context, piece, append=n > 0, last_chunk=n == len(texts) - 1)
                whole = {"artifact_id": "numbers", "parts": [{"text": text} for text in texts]}
                answer = {"message_id": str(uuid.uuid4()), "role": "agent", "parts": [{"text": "done"}]}
                await self.storage.update_task(id, state="completed", new_artifacts=[whole], new_messages=[answer])

    async def cancel_task(self, params) -> None:
        await self.storage.update_task(params["id"], state="canceled")

    def build_message_history(self, history):
        return history

    def build_artifacts(self, result):
        return []


def main() -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    storage = InMemoryStorage()
    broker = InMemoryBroker()

    @asynccontextmanager
    async def lifespan(app):
        async with app.task_manager, Agent(broker=broker, storage=storage).run():
            yield

    port = sock.getsockname()[1]
    app = FastA2A(storage=storage, broker=broker, name="fasta2a", url=f"http://127.0.0.1:{port}", lifespan=lifespan)
    print(port, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run([sock])


if __name__ == "__main__":
    main()
