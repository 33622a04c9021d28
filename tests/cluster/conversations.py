"""Conversations of several turns in one task, each of whose messages is sent twice with one key, as balancers do."""

import asyncio
from random import Random
from typing import Any
from uuid import uuid4

from tests.cluster.replicas import ENDED, Client, message

PAUSES = (0.0, 0.0, 0.02, 0.2)  # seconds between the two copies of a message


class Conversation:
    """One task of several turns. Each turn produces an artifact, and the next message continues the task."""

    def __init__(self, client: Client, kind: str, *, numbers: int, pause: float) -> None:
        self._client = client
        self._dice = Random(client.dice.random())
        self._text = f"talk {numbers} {pause} {kind}"
        self._numbers = numbers
        self.kind = kind
        self.task_id = ""
        self.sent: list[str] = []  # ids of the acknowledged messages
        self.shown: dict[str, list[str]] = {}  # the latest texts of each artifact that a client received at rest
        self.wrong: list[str] = []

    async def hold(self, turns: int) -> None:
        """Send one message after the other, some of them while the task still runs, until it rests or has ended."""
        state = ""
        while state not in ENDED and len(self.sent) < turns:
            if await self._say() or self._dice.random() < 0.5:
                state = await self._until_rest()
        if state not in ENDED:
            await self._until_rest()

    async def _say(self) -> bool:
        """Send the next message twice. Return whether the sender waited for the end of its turn."""
        waits = not self.sent or self._dice.random() < 0.5
        body = message(self._text, now=not waits, task_id=self.task_id)
        key = str(uuid4())
        async with asyncio.TaskGroup() as group:
            first = group.create_task(self._client.persist("POST", "/message:send", body, key=key))
            await asyncio.sleep(self._dice.choice(PAUSES))
            second = group.create_task(self._client.persist("POST", "/message:send", body, key=key))
        answers = (first.result(), second.result())
        accepted = [answer["task"] for answer in answers if "task" in answer]
        if not accepted:
            if await self._client.read(self.task_id) not in ENDED:
                self.wrong.append(f"{self.task_id}: a message was rejected: {answers}")
            return True
        self.sent.append(body["message"]["messageId"])
        self.task_id = accepted[0]["id"]
        for task in accepted:
            if task["id"] != self.task_id:
                self.wrong.append(f"{self.task_id}: a repeated message created the task {task['id']}")
            if waits:
                self._see(task)
        return waits

    async def _until_rest(self) -> str:
        while True:
            task = await self._client.persist("GET", f"/tasks/{self.task_id}")
            state = state_of(task)
            if state in ENDED or (state == "INPUT_REQUIRED" and self.sent[-1] in message_ids(task)):
                self._see(task)
                return state
            await asyncio.sleep(0.05)

    def _see(self, task: dict[str, Any]) -> None:
        """Check a task that was sent as being at rest, and note its artifacts."""
        state = state_of(task)
        if state not in (*ENDED, "INPUT_REQUIRED"):
            self.wrong.append(f"{self.task_id}: a blocking send was answered with {state}")
            return
        artifacts = artifacts_of(task)
        for name, texts in self.shown.items():
            if artifacts.get(name) != texts:
                self.wrong.append(f"{self.task_id}: {name} was {texts}, and is {artifacts.get(name)}")
        self.shown = artifacts

    async def check(self) -> list[str]:
        """Return what is wrong with the task at the end, as one replica shows it."""
        task = await self._client.persist("GET", f"/tasks/{self.task_id}")
        self._see(task)
        history = message_ids(task)
        for message_id in self.sent:
            if history.count(message_id) != 1:
                self.wrong.append(f"{self.task_id}: {message_id} is {history.count(message_id)} times in the history")
        if state_of(task) == "INPUT_REQUIRED":
            for turn in range(1, len(self.sent) + 1):
                text = "".join(artifacts_of(task).get(f"turn-{turn}", []))
                run = text.partition(" ")[0]
                if text != "".join(f"{run} {number}" for number in range(self._numbers)):
                    self.wrong.append(f"{self.task_id}: turn {turn} produced {text!r}")
        return self.wrong


def state_of(task: dict[str, Any]) -> str:
    state: str = task["status"]["state"]
    return state.removeprefix("TASK_STATE_")


def message_ids(task: dict[str, Any]) -> list[str]:
    return [said["messageId"] for said in task.get("history", []) if said["role"] == "ROLE_USER"]


def artifacts_of(task: dict[str, Any]) -> dict[str, list[str]]:
    return {each["artifactId"]: [part["text"] for part in each["parts"]] for each in task.get("artifacts", [])}
