"""The log lines of tasks: one each, at a level that is shown, and with nothing that a client could forge."""

import logging
import re
from collections.abc import Iterator
from typing import Any

import apcore
import pytest

from apcore_a2a import async_serve
from apcore_a2a.agent import Caller
from apcore_a2a.agents.apcore.executor import ServedExecutor
from apcore_a2a.agents.functions.agent import ask
from apcore_a2a.errors import A2AError
from apcore_a2a.protocol.model import Message, Part, Role
from apcore_a2a.testing import app_client
from tests.fakes import ScriptedAgent
from tests.modules import Add, registry
from tests.requirements import requirement

HOSTILE = "begin\r\n12:00:00 INFO forged\x1b[31m\u2028 " + "x" * 3000
PAIR = {"a": 1, "b": 2}


class Alice:
    """Authenticates every caller as Alice, or under another given name."""

    def __init__(self, name: str = "alice") -> None:
        self._name = name

    def authenticate(self, headers: Any) -> Caller:
        return Caller(id=self._name, type="user")


class Fails(Add):
    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        raise RuntimeError("secret")


class Plain(logging.Handler):
    """A log as programs have it that know nothing of us: every field of a record on its line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()} {' '.join(extras(record).values())}")


def extras(record: logging.LogRecord) -> dict[str, str]:
    standard = vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "taskName"}
    return {name: str(value) for name, value in vars(record).items() if name not in standard}


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "apcore_a2a")


@pytest.fixture
def plain_log() -> Iterator[list[str]]:
    handler = Plain()
    logging.getLogger("apcore_a2a").addHandler(handler)
    yield handler.lines
    logging.getLogger("apcore_a2a").removeHandler(handler)


def lines(caplog: pytest.LogCaptureFixture, *messages: str) -> list[dict[str, str]]:
    return [extras(record) for record in caplog.records if record.getMessage() in messages]


async def test_a_task_that_ended_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with app_client(registry(add=Add()), auth=Alice()) as client:
        task: Any = await client.send_message(PAIR, skill="add")
    (line,) = lines(caplog, "task ended", "task waits")
    assert float(line.pop("seconds")) >= 0
    assert line == {"task_id": task.id, "skill": "add", "caller": "alice", "state": "completed"}


async def test_the_log_names_a_skill_chosen_by_default_and_a_function(caplog: pytest.LogCaptureFixture) -> None:
    async def shout(text: str) -> str:
        return text.upper()

    async with app_client(registry(add=Add())) as client:
        await client.send_message(PAIR)
    async with app_client(shout) as client:
        await client.send_message("hi")
    said = [(line["skill"], line["caller"]) for line in lines(caplog, "task ended")]
    assert said == [("add", "anonymous"), ("shout", "anonymous")]


async def test_a_task_that_failed_is_found_by_its_reference(caplog: pytest.LogCaptureFixture) -> None:
    async with app_client(registry(fails=Fails())) as client:
        task: Any = await client.send_message(PAIR)
    (line,) = lines(caplog, "task ended")
    (cause,) = lines(caplog, "module failed")
    told = task.status.message.metadata
    reference = told["reference"]
    assert (line["state"], line["reference"], line["type"]) == ("failed", reference, told["type"])
    assert (cause["task_id"], cause["reference"], cause["module_id"]) == (task.id, reference, "fails")


async def test_a_question_and_the_cancel_of_a_task_that_waits_are_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def wonder(text: str) -> Any:
        return ask("Which city?")

    async with app_client(wonder) as client:
        task: Any = await client.send_message("hi")
        await client.cancel_task(task.id)
    (waits,) = lines(caplog, "task waits")
    (ended,) = lines(caplog, "task ended")
    assert (waits["task_id"], waits["state"]) == (task.id, "input_required")
    assert (ended["task_id"], ended["state"]) == (task.id, "canceled")


async def test_a_reply_without_a_task_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    async def greet(text: str) -> Message:
        return Message(message_id="m", role=Role.AGENT, parts=(Part(text="hi"),))

    async with app_client(greet) as client:
        await client.send_message("hi")
    assert [line["skill"] for line in lines(caplog, "message answered")] == ["greet"]
    assert lines(caplog, "task ended") == []


async def test_debug_shows_what_is_asked_for_and_that_the_card_was_rebuilt(caplog: pytest.LogCaptureFixture) -> None:
    modules = registry(add=Add())
    async with app_client(modules, log_level="debug") as client:
        caplog.set_level(logging.DEBUG, "apcore_a2a")  # what log_level has set, pytest would reset
        await client.send_message(PAIR)
        modules.register("other", Add())
        await client.list_tasks()
    assert [line["operation"] for line in lines(caplog, "request dispatched")] == ["SendMessage", "ListTasks"]
    assert len(lines(caplog, "agent card rebuilt")) == 1


async def test_nothing_is_put_together_for_a_level_that_is_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "apcore_a2a")
    async with app_client(registry(add=Add()), name="math") as client:
        await client.send_message(PAIR)
    assert caplog.records == []


@requirement("NFR-SEC-002")
@pytest.mark.parametrize("denies", [True, False], ids=["denied", "unknown"])
async def test_a_client_cannot_forge_a_line_whatever_formatter_writes_it(plain_log: list[str], denies: bool) -> None:
    logging.getLogger("apcore_a2a").setLevel(logging.DEBUG)
    modules = registry(add=Add(), fails=Fails())
    rules = [apcore.ACLRule(callers=["*"], targets=["add", "fails"], effect="allow")]
    executor = ServedExecutor(modules, acl=apcore.ACL(rules=rules, default_effect="deny" if denies else "allow"))
    app = await async_serve(executor, auth=Alice(HOSTILE.replace("\n", "\r")))
    async with app_client(app) as client:
        with pytest.raises(A2AError):
            await client.send_message(PAIR, skill=HOSTILE)
        await client.send_message(PAIR, skill="add")
        await client.send_message(PAIR, skill="fails")
        with pytest.raises(A2AError):
            await client.get_task(HOSTILE)
    assert len(plain_log) >= 4
    assert [line for line in plain_log if re.search(r"[\x00-\x1f\x7f-\x9f\u2028]", line)] == []
    assert max(map(len, plain_log)) < 3000


async def test_an_agent_that_chooses_no_skill_is_logged_with_the_one_that_was_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with app_client(ScriptedAgent()) as client:
        await client.send_message("hello", skill="anything")
    (line,) = [record for record in caplog.records if record.getMessage() == "task ended"]
    assert extras(line)["skill"] == "anything"
