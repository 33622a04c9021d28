"""Our own client."""

from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar

from apcore_a2a.client import A2AClient
from apcore_a2a.client.options import BindingName, Version
from apcore_a2a.errors import A2AError
from apcore_a2a.protocol.model import ArtifactUpdate, Event, Message, SendConfiguration, StatusUpdate, Task
from tests.fakes import PATIENCE
from tests.interaction.peers import PeerError, Words

T = TypeVar("T")


def to_words(event: Event) -> Words:
    match event:
        case Task():
            texts = [part.text for artifact in event.artifacts for part in artifact.parts]
            said = [message.parts[0].text for message in event.history]
            state = _state(event.status.state)
            return {"task": event.id, "context": event.context_id, "state": state, "texts": texts, "history": said}
        case Message():
            return {"says": event.parts[0].text}
        case StatusUpdate():
            return {"state": _state(event.status.state)}
        case ArtifactUpdate():
            return {"chunk": event.artifact.parts[0].text, "append": event.append, "last": event.last_chunk}


def _state(state: str) -> str:
    return state.removeprefix("TASK_STATE_").lower().replace("_", "-")


async def _answer_of(call: Awaitable[T]) -> T:
    try:
        return await call
    except A2AError as error:
        raise PeerError(type(error).__name__) from error


class OurStream:
    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events

    async def next(self) -> Words:
        try:
            return to_words(await _answer_of(anext(self._events)))
        except StopAsyncIteration:
            return {}

    async def close(self) -> None:
        await self._events.aclose()


class Ours:
    def __init__(
        self, url: str, binding: BindingName, headers: dict[str, str] | None = None, *, version: Version
    ) -> None:
        self._client = A2AClient(url, binding=binding, version=version, timeout=PATIENCE)
        self._headers = headers or {}

    async def send(self, text: str, *, task_id: str = "", context_id: str = "", wait: bool = True) -> Words:
        how = SendConfiguration(return_immediately=not wait)
        call = self._client.send_message(
            text, task_id=task_id, context_id=context_id, configuration=how, headers=self._headers
        )
        return to_words(await _answer_of(call))

    async def stream(self, text: str) -> OurStream:
        return OurStream(self._client.stream_message(text, headers=self._headers))

    async def subscribe(self, task_id: str) -> OurStream:
        return OurStream(self._client.resubscribe(task_id, headers=self._headers))

    async def get(self, task_id: str, history_length: int | None = None) -> Words:
        call = self._client.get_task(task_id, history_length=history_length, headers=self._headers)
        return to_words(await _answer_of(call))

    async def cancel(self, task_id: str) -> Words:
        return to_words(await _answer_of(self._client.cancel_task(task_id, headers=self._headers)))

    async def card(self) -> Words:
        return (await self._client.agent_card).to_dict()

    async def extended_card(self) -> Words:
        return (await _answer_of(self._client.extended_card(headers=self._headers))).to_dict()

    async def set_webhook(self, task_id: str, url: str) -> Words:
        return (await _answer_of(self._client.set_push_config(task_id, url, headers=self._headers))).to_dict()

    async def get_webhook(self, task_id: str, config_id: str) -> Words:
        return (await _answer_of(self._client.get_push_config(task_id, config_id, headers=self._headers))).to_dict()

    async def close(self) -> None:
        await self._client.close()
