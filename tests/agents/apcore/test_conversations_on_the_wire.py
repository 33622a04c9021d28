"""The history that a module receives: through a socket, over each binding and version."""

from typing import Any

from apcore_a2a.agents.apcore.call import HISTORY
from apcore_a2a.protocol.model import Task, TaskState
from apcore_a2a.settings import Limits
from tests.agents.apcore.conftest import SpeakTo
from tests.agents.apcore.running import Data, registry_of
from tests.requirements import requirement


class Listens:
    """Returns the history: the texts of the user, and the length of each answer."""

    description = "Say what was said before"

    async def execute(self, inputs: Data, context: Any) -> Any:
        said: list[Any] = []
        for message in context.data[HISTORY]:
            part = message["parts"][0]
            said.append(part["text"] if message["role"] == "ROLE_USER" else len(part["data"]))
        return said


def heard(task: Task) -> Any:
    assert task.status.state is TaskState.COMPLETED
    return task.artifacts[0].parts[0].data


@requirement("FR-CTX-002")
async def test_a_module_receives_the_history_oldest_first(speak_to: SpeakTo) -> None:
    speaker = await speak_to(registry_of(a__listens=Listens()))
    first = await speaker.send("one")
    assert heard(first) == []
    assert heard(await speaker.send("two", context_id=first.context_id)) == ["one", 0]
    assert heard(await speaker.send("three", context_id=first.context_id)) == ["one", 0, "two", 2]
    assert heard(await speaker.send("elsewhere")) == []
    assert heard(await speaker.send("fresh", context_id="a-new-one")) == []


@requirement("FR-CTX-002")
async def test_a_module_receives_the_last_hundred_messages_of_a_long_conversation(speak_to: SpeakTo) -> None:
    speaker = await speak_to(registry_of(a__listens=Listens()))
    for number in range(52):
        last = await speaker.send(str(number), context_id="talk")
        if number == 50:
            assert heard(last)[::2] == [str(before) for before in range(50)]
    assert heard(last)[::2] == [str(before) for before in range(1, 51)]
    assert len(heard(last)) == 100


@requirement("FR-CTX-002")
async def test_the_number_of_history_messages_is_configurable(speak_to: SpeakTo) -> None:
    speaker = await speak_to(registry_of(a__listens=Listens()), limits=Limits(max_context_messages=2))
    for number in range(4):
        last = await speaker.send(str(number), context_id="talk")
    assert heard(last) == ["2", 2]
