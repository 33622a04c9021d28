"""What the official SDKs said (tests/frames) means the same after we have read it and written it again."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from a2a.client.card_resolver import parse_agent_card

from apcore_a2a.errors import InvalidParamsError, Violation
from apcore_a2a.protocol import model, v1
from apcore_a2a.protocol.dialect import Dialect
from apcore_a2a.protocol.model import SHAPES, Operation
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.protocol.v03 import rest as v03_rest
from tests.requirements import requirement

FRAMES = Path(__file__).parents[1] / "frames"
RECORDINGS = ("sdk-0.3", "js-0.3", "sdk-1")
SPOKEN: dict[tuple[str, str], Dialect] = {
    ("sdk-0.3", "jsonrpc"): v03,
    ("sdk-0.3", "rest"): v03_rest,
    ("js-0.3", "jsonrpc"): v03,
    ("js-0.3", "rest"): v03_rest,
    ("sdk-1", "jsonrpc"): v1,
    ("sdk-1", "rest"): v1,
}
PATHS = {
    r"POST .*/message:send": Operation.SEND,
    r"POST .*/message:stream": Operation.STREAM,
    r"POST .*/tasks/[^/]+:cancel": Operation.CANCEL,
    r"GET .*/tasks(\?.*)?": Operation.LIST,
    r"GET .*/tasks/[^/]+": Operation.GET,
    r"POST .*/pushNotificationConfigs": Operation.CREATE_PUSH,
    r"GET .*/pushNotificationConfigs": Operation.LIST_PUSH,
    r"GET .*/pushNotificationConfigs/[^/]+": Operation.GET_PUSH,
    r"DELETE .*/pushNotificationConfigs/[^/]+": Operation.DELETE_PUSH,
    r"GET .*/(card|extendedAgentCard)": Operation.EXTENDED_CARD,
}
UNSAID = {  # members whose absence says the same
    "append": False,
    "lastChunk": False,
    "required": False,
    "final": False,
    "description": "",
    "filename": "",
    "mediaType": "",
    "extensions": [],
    "referenceTaskIds": [],
    "artifacts": [],
}


class Call(NamedTuple):
    """One recorded exchange; `params` is None where the request had no body."""

    dialect: Dialect
    operation: Operation
    params: Any
    results: list[Any]
    exact: bool = True


def load(recording: str) -> list[dict[str, Any]]:
    frames: list[dict[str, Any]] = json.loads((FRAMES / f"{recording}.json").read_text(encoding="utf-8"))
    return frames


def to_call(recording: str, frame: dict[str, Any]) -> Call | None:
    """None for an exchange that fetched the public card, or failed."""
    dialect = SPOKEN[recording, frame["binding"]]
    replies = frame["events"] if "events" in frame else [frame["response"]]
    if frame["status"] >= 300 or "well-known" in frame["http"] or any("error" in (reply or {}) for reply in replies):
        return None
    if frame["binding"] == "rest":
        operation = next(value for path, value in PATHS.items() if re.fullmatch(path, frame["http"]))
        # In ProtoJSON the SDKs disagree whether file content is base64 once or twice: we read both, and write one.
        return Call(dialect, operation, frame.get("request"), replies, exact=recording != "js-0.3")
    request, results = frame["request"], [reply.get("result") for reply in replies]  # a2a-sdk 0.3 leaves out a null
    return Call(dialect, dialect.METHODS[request["method"]], request.get("params"), results)


def calls(recording: str, binding: str) -> list[Any]:
    numbered = enumerate(load(recording))
    found = [(index, to_call(recording, frame)) for index, frame in numbered if frame["binding"] == binding]
    named = [(f"{recording}-{index}-{call.operation.value}", call) for index, call in found if call]
    return [pytest.param(call, id=name) for name, call in named]


CALLS = [call for spoken in SPOKEN for call in calls(*spoken)]
ASKED = [call for call in CALLS if set(call.values[0].params or {"name"}) != {"name"}]  # a name only repeats the path


def bare(value: Any) -> Any:
    """Without the members that say what is understood anyway."""
    if isinstance(value, list):
        return [bare(item) for item in value]
    if not isinstance(value, dict):
        return value
    items = {name: bare(item) for name, item in value.items()}
    return {name: item for name, item in items.items() if name not in UNSAID or item != UNSAID[name]}


def bare_request(call: Call, body: Any) -> Any:
    """0.3 says how to wait: in JSON-RPC we take silence for true, and in ProtoJSON silence is false."""
    body = bare(body)
    if call.dialect is v1:
        return body
    configuration = body.pop("configuration", {})
    silence = "configuration" not in call.params if call.dialect is v03_rest else True
    return body | {"configuration": {"blocking": silence, **configuration}} if "message" in body else body


def test_the_recordings_hold_every_operation_that_their_sdk_has() -> None:
    for recording in RECORDINGS:
        recorded = {parameters.values[0].operation for parameters in calls(recording, "jsonrpc")}
        unknown = {Operation.SUBSCRIBE} if recording == "sdk-1" else {Operation.SUBSCRIBE, Operation.LIST}
        assert recorded == set(Operation) - unknown


@requirement("NFR-CMP-005")
@pytest.mark.parametrize("call", ASKED)
def test_a_recorded_request_means_the_same_after_us(call: Call) -> None:
    request = call.dialect.decode_request(call.operation, model.encode(call.params))
    rewritten = call.dialect.encode_request(call.operation, request)
    assert call.dialect.decode_request(call.operation, rewritten) == request
    if call.exact:
        assert bare_request(call, json.loads(rewritten)) == bare_request(call, call.params)


@requirement("NFR-CMP-005")
@pytest.mark.parametrize("call", [call for call in CALLS if call.values[0].operation is not Operation.EXTENDED_CARD])
def test_a_recorded_answer_means_the_same_after_us(call: Call) -> None:
    for result in call.results:
        read, rewritten = read_and_write(call, model.encode(result))
        assert read_and_write(call, rewritten) == (read, rewritten)
        if call.exact:
            assert bare(json.loads(rewritten) or None) == bare(result or None)  # delete: {} is as good as null


def read_and_write(call: Call, body: bytes) -> tuple[Any, bytes]:
    if SHAPES[call.operation].streams:
        event = call.dialect.decode_event(body)
        return event, call.dialect.encode_event(event)
    result = call.dialect.decode_result(call.operation, body)
    return result, call.dialect.encode_result(call.operation, result)


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("binding", ["jsonrpc", "rest"])
def test_the_content_of_a_recorded_file_is_read(recording: str, binding: str) -> None:
    call = next(one.values[0] for one in calls(recording, binding) if one.values[0].operation is Operation.SEND)
    message = call.dialect.decode_result(Operation.SEND, model.encode(call.results[0]))
    content = b"\x00\xff"
    if (recording, binding) == ("sdk-0.3", "rest"):
        content = b"AP8="  # over REST, this SDK puts the text of the base64 into the field (docs/decisions/0044)
    assert content in [part.raw for part in message.parts]


@requirement("NFR-CMP-005")
@pytest.mark.parametrize("recording", RECORDINGS)
def test_we_read_a_recorded_card_as_sdk_1_reads_it(recording: str) -> None:
    card = next(frame["response"] for frame in load(recording) if frame["http"] == "GET /.well-known/agent-card.json")
    ours = parse_agent_card(json.loads(model.encode(v03.decode_card(model.encode(card)))))
    theirs = parse_agent_card(card)
    for interface in theirs.supported_interfaces:
        interface.protocol_version = {"0.3.0": "0.3"}.get(interface.protocol_version, interface.protocol_version)
    assert ours == theirs


def test_what_sdk_0_3_refuses_we_refuse_and_its_reasons_we_read() -> None:
    frame = next(one for one in load("sdk-0.3") if one.get("response", {}).get("error", {}).get("code") == -32602)
    with pytest.raises(InvalidParamsError):
        v03.decode_request(Operation.SEND, model.encode(frame["request"]["params"]))
    violations = v03.decode_violations(frame["response"]["error"]["data"])
    assert violations == [Violation("params.message.messageId", "Field required")]
