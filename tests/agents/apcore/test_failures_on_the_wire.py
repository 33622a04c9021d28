"""Errors as clients receive them: through a socket, over each binding and version.

What can be known before there is a task is an error of the request. Once there is a task, it fails: its status message
has the text, and in its metadata what the requirements want in the `data` of an error, with the code.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

import apcore
import apcore.errors
import pytest

from apcore_a2a.agents.apcore.executor import ServedExecutor
from apcore_a2a.protocol.model import Message, Operation, Part, Role, SendMessage, Task, TaskState
from tests.agents.apcore.conftest import SpeakTo
from tests.agents.apcore.running import Add, Data, Raises, Returns, needs_pipeline, registry_of
from tests.fakes import Keys
from tests.interaction.wire_client import Refused, WireClient
from tests.requirements import requirement

SKILL = "a.module"
WRAPS_EXCEPTIONS = hasattr(apcore.Executor, "current_strategy")  # newer apcore wraps others in a ModuleExecuteError


class Waits:
    """Never returns."""

    description = "Wait for ever"

    async def execute(self, inputs: Data, context: Any) -> Data:
        await asyncio.Event().wait()
        return {}


def message(*parts: Part, skill: str | None = None) -> SendMessage:
    metadata = None
    if skill is not None:
        metadata = {"skillId": skill}
    return SendMessage(message=Message(message_id="m-1", role=Role.USER, parts=parts, metadata=metadata))


async def refusal(speaker: WireClient, said: SendMessage) -> Refused:
    with pytest.raises(Refused) as refused:
        await speaker.call(Operation.SEND, said)
    assert not (await speaker.list()).tasks  # no task was created
    return refused.value


def failure(task: Task) -> tuple[str, Mapping[str, Any]]:
    """Return the text of a failed task, and the metadata of its status message."""
    assert task.status.state is TaskState.FAILED
    assert task.status.message is not None
    (part,) = task.status.message.parts
    assert task.status.message.metadata is not None
    return str(part.text), task.status.message.metadata


async def failure_of(speak_to: SpeakTo, error: Exception) -> tuple[str, Mapping[str, Any]]:
    """Return the error of a module that raises the exception: in the response, and by a later request."""
    speaker = await speak_to(registry_of(a__module=Raises(error)))
    task = await speaker.send("go")
    told = failure(task)
    assert failure(await speaker.get(task.id)) == told
    return told


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name.startswith("apcore_a2a.agents")]


# Before there is a task


@requirement("FR-ERR-001")
async def test_an_unknown_skill_is_rejected_by_name(speak_to: SpeakTo) -> None:
    speaker = await speak_to(registry_of(math__add=Add()))
    refused = await refusal(speaker, message(Part(text="hi"), skill="math.sub"))
    if speaker.version == "0.3":
        assert refused.code == -32601
    else:  # in 1.0 -32601 is for methods only
        assert refused.code == -32602
    assert refused.message == "Skill not found: math.sub"
    assert '"ModuleNotFoundError"' in json.dumps(refused.data)


@requirement("FR-ERR-002")
async def test_invalid_input_is_rejected_with_the_names_of_the_fields(speak_to: SpeakTo) -> None:
    module = Add()
    speaker = await speak_to(registry_of(math__add=module))
    refused = await refusal(speaker, message(Part(data={"a": "many"})))
    assert refused.code == -32602
    details = json.dumps(refused.data)
    assert '"SchemaValidationError"' in details
    for said in ('"field": "a"', '"field": "b"', '"Field required"'):
        assert said in details
    if speaker.version == "0.3":
        assert {"field": "b", "code": "missing", "message": "Field required"} in refused.data["errors"]
    assert module.calls == 0


class Refuses:
    """Check in `execute` what the schema of the inputs cannot express."""

    description = "Accept even numbers"

    async def execute(self, inputs: Data, context: Any) -> Data:
        wrong = [{"field": "a", "code": "odd", "message": "must be even"}]
        raise apcore.SchemaValidationError(message="Input validation failed", errors=wrong)


@needs_pipeline
@requirement("FR-ERR-002")
async def test_a_module_that_rejects_its_inputs_itself_names_the_fields(speak_to: SpeakTo) -> None:
    speaker = await speak_to(registry_of(a__refuses=Refuses()))
    failed = await speaker.send('{"a": 1}')
    assert failed.status.state is TaskState.FAILED
    assert failed.status.message is not None
    assert failed.status.message.parts[0].text == "Invalid parameters: a: must be even"
    assert failed.status.message.metadata == {
        "type": "SchemaValidationError",
        "code": -32602,
        "errors": [{"field": "a", "code": "odd", "message": "must be even"}],
    }


@needs_pipeline
async def test_a_called_module_that_rejects_its_inputs_names_no_field(speak_to: SpeakTo) -> None:
    class Calls:
        description = "Call a.refuses"

        async def execute(self, inputs: Data, context: Any) -> Any:
            return await context.executor.call_async("a.refuses", {"a": 1}, context)

    speaker = await speak_to(registry_of(a__refuses=Refuses(), b__calls=Calls()), default_skill="b.calls")
    failed = await speaker.send("{}")
    assert failed.status.message is not None
    assert failed.status.message.parts[0].text == "Internal error"


@requirement("FR-ERR-003", "FR-EXE-003")
@pytest.mark.parametrize("content", [{"a": 1, "b": 2}, {"a": "wrong"}], ids=["right", "wrong"])
async def test_a_caller_without_access_receives_task_not_found_and_is_named_in_the_log(
    speak_to: SpeakTo, content: Data, caplog: pytest.LogCaptureFixture
) -> None:
    module = Add()
    acl = apcore.ACL(rules=[], default_effect="deny")
    executor = ServedExecutor(registry_of(math__add=module), acl=acl)
    speaker = (await speak_to(executor, auth=Keys())).as_caller("mallory")
    with caplog.at_level(logging.WARNING):
        refused = await refusal(speaker, message(Part(data=content), skill="math.add"))
    assert (refused.code, refused.message) == (-32001, "Task not found")
    details = json.dumps(refused.data)
    assert '"TaskNotFoundError"' in details
    for secret in ("mallory", "math", "acl", "ACL", "denied", "external"):
        assert secret not in details
    (record,) = own_records(caplog)
    assert (record.levelname, record.getMessage()) == ("WARNING", "call denied by ACL")
    assert (record.__dict__["caller"], record.__dict__["module_id"]) == ("mallory", "math.add")
    assert module.calls == 0


# Once there is a task


@requirement("FR-ERR-004")
async def test_a_module_that_fails_is_an_internal_error_with_a_reference(
    speak_to: SpeakTo, caplog: pytest.LogCaptureFixture
) -> None:
    error = apcore.errors.ModuleExecuteError(module_id=SKILL, message="cannot open /etc/passwd: password=hunter2")
    with caplog.at_level(logging.ERROR):
        text, metadata = await failure_of(speak_to, error)
    assert text == "Internal error"
    (record,) = own_records(caplog)
    reference = record.__dict__["reference"]
    assert metadata == {"type": "ModuleExecuteError", "code": -32603, "reference": reference}
    assert (record.levelname, record.__dict__["module_id"]) == ("ERROR", SKILL)
    assert record.exc_info is not None


@requirement("FR-ERR-005")
async def test_a_timeout_is_reported_without_its_duration(speak_to: SpeakTo) -> None:
    text, metadata = await failure_of(speak_to, apcore.ModuleTimeoutError(module_id=SKILL, timeout_ms=1234))
    assert text == "Execution timed out"
    assert metadata == {"type": "ModuleTimeoutError", "code": -32603}


@requirement("FR-ERR-006")
async def test_invalid_input_is_reported_with_its_description(speak_to: SpeakTo) -> None:
    error = apcore.InvalidInputError(message="the file /srv/data/in.csv has 1/2 of the lines")
    text, metadata = await failure_of(speak_to, error)
    assert text == "Invalid input: the file … has 1/2 of the lines"
    assert metadata == {"type": "InvalidInputError", "code": -32602}


@requirement("FR-ERR-007")
@pytest.mark.parametrize(
    "error",
    [
        apcore.CallDepthExceededError(depth=33, max_depth=32, call_chain=["secret.module"]),
        apcore.CircularCallError(module_id="secret.module", call_chain=["secret.module"]),
        apcore.CallFrequencyExceededError(module_id="secret.module", count=4, max_repeat=3, call_chain=[]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_safety_limit_is_named_by_its_type_alone(speak_to: SpeakTo, error: Exception) -> None:
    text, metadata = await failure_of(speak_to, error)
    assert text == "Safety limit exceeded"
    assert metadata == {"type": type(error).__name__, "code": -32603}


@requirement("FR-ERR-008")
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (apcore.ModuleError(code="BANK_CLOSED", message="see /home/ada/x.py: token=abc"), "InternalError"),
        (KeyError("/home/ada/x"), "ModuleExecuteError" if WRAPS_EXCEPTIONS else "InternalError"),
    ],
    ids=["a code that is not known", "no error of apcore's"],
)
async def test_any_other_exception_is_an_internal_error_and_logged(
    speak_to: SpeakTo, error: Exception, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        text, metadata = await failure_of(speak_to, error)
    assert text == "Internal error"
    (record,) = own_records(caplog)
    assert metadata == {"type": kind, "code": -32603, "reference": record.__dict__["reference"]}
    assert record.levelname == "ERROR"
    assert record.exc_info is not None


@requirement("FR-ERR-008")
async def test_a_middleware_that_fails_is_an_internal_error(speak_to: SpeakTo) -> None:
    def fails(module_id: str, inputs: Data, output: Data, context: Any) -> Data:
        raise RuntimeError("/home/ada/x.py: token=abc")

    executor = ServedExecutor(registry_of(a__module=Returns({})))
    executor.use_after(fails)
    speaker = await speak_to(executor)
    text, metadata = failure(await speaker.send("go"))
    assert text == "Internal error"
    assert metadata["code"] == -32603
    assert "token" not in json.dumps(metadata)


async def test_access_revoked_during_the_run_fails_the_task_without_details(
    speak_to: SpeakTo, caplog: pytest.LogCaptureFixture
) -> None:
    error = apcore.ACLDeniedError(caller_id="secret.caller", target_id="secret.target")
    with caplog.at_level(logging.WARNING):
        text, metadata = await failure_of(speak_to, error)
    assert text == "Task not found"
    assert metadata == {"type": "TaskNotFoundError", "code": -32001}
    (record,) = own_records(caplog)
    assert (record.__dict__["caller"], record.__dict__["module_id"]) == ("anonymous", SKILL)


async def test_the_end_of_a_stream_has_the_same_error(speak_to: SpeakTo) -> None:
    error = apcore.ModuleTimeoutError(module_id=SKILL, timeout_ms=1)
    speaker = await speak_to(registry_of(a__module=Raises(error)))
    async with speaker.stream("go") as stream:
        heard = await stream.rest()
    last: Any = heard[-1]
    assert last.status.state is TaskState.FAILED
    assert last.status.message.metadata == {"type": "ModuleTimeoutError", "code": -32603}


@requirement("FR-ERR-005")
async def test_execution_timeout_is_reported_as_apcores_timeout(speak_to: SpeakTo) -> None:
    speaker = await speak_to(registry_of(a__module=Waits()), execution_timeout=0.01)
    text, metadata = failure(await speaker.send("go"))
    assert text == "Execution timed out"
    assert metadata == {"type": "ModuleTimeoutError", "code": -32603}
