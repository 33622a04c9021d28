"""A process to be killed during deliveries: `python -m tests.chaos.webhook_worker FILE URL TASKS`.

It continues the tasks in the file, starts TASKS new tasks with a webhook each, and exits when all events are delivered.
It writes a line to standard output for each acknowledged task.
"""

import asyncio
import logging
import os
import sys

from apcore_a2a.agent import Agent
from apcore_a2a.engine.context import EngineOptions
from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.webhooks.delivery import DeliveryLimits, Posting
from apcore_a2a.protocol.model import PushConfig, SendConfiguration, Task
from apcore_a2a.storage.sqlite.store import SQLiteStore
from apcore_a2a.webhooks.sender import FORMATS, WebhookSender
from tests.chaos.worker import Patient
from tests.engine.driving import User, request

TIMEOUT = 4.0  # seconds for a POST, so that a late response is no timeout even on a loaded machine
SHORT_PAUSES = DeliveryLimits(retry_delays=(0.02, 0.04, 0.08))  # the real ones take seconds
CHUNKS = 1
AT_ONCE = 50  # tasks that begin together


def build(agent: Agent, store: SQLiteStore) -> Engine:
    sender = WebhookSender(allow_insecure=True, timeout=TIMEOUT)
    posting = Posting(sender=sender, formats=FORMATS, limits=SHORT_PAUSES)
    return Engine(agent, store, options=EngineOptions(shutdown_timeout=60), posting=posting)


async def begin(engine: Engine, url: str) -> str:
    """Send a message with a webhook, and return the id of its task."""
    asked = request("safe")
    configuration = SendConfiguration(return_immediately=True, task_push_notification_config=PushConfig(url=url))
    asked = type(asked)(message=asked.message, configuration=configuration)
    answer = await engine.send_message(asked, User(engine).context())
    task = answer if isinstance(answer, Task) else answer.task()  # type: ignore[union-attr]  # never a Message here
    return task.id


async def begin_many(engine: Engine, url: str, tasks: int) -> None:
    for _ in range(0, tasks, AT_ONCE):
        async with asyncio.TaskGroup() as group:
            begun = [group.create_task(begin(engine, url)) for _ in range(min(AT_ONCE, tasks))]
        os.write(1, "".join(f"{each.result()}\n" for each in begun).encode())


async def until_delivered(engine: Engine) -> None:
    while True:
        backlog = await engine.backlog()
        if not engine.active_tasks and not backlog.events:
            return
        await asyncio.sleep(0.02)


async def live(path: str, url: str, tasks: int) -> None:
    agent = Patient(CHUNKS)
    engine = build(agent, SQLiteStore(path))
    await agent.open_pool()
    await engine.open()
    await engine.recover()
    await begin_many(engine, url, tasks)
    await until_delivered(engine)
    await engine.close()


if __name__ == "__main__":
    logging.disable()  # all errors here are intended
    asyncio.run(live(sys.argv[1], sys.argv[2], int(sys.argv[3])))
