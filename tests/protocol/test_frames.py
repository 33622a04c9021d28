"""What the official SDKs said (tests/frames) means the same after we have read it and written it again."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from a2a.client.card_resolver import parse_agent_card

from apcore_a2a.errors import InvalidParamsError, Violation
from apcore_a2a.protocol import model, v03, v1
from apcore_a2a.protocol.dialect import Dialect
from apcore_a2a.protocol.operations import SHAPES, Operation
from tests.requirements import requirement

FRAMES = Path(__file__).parents[1] / "frames"
SPOKEN: dict[str, Dialect] = {"sdk-0.3": v03, "sdk-1": v1}
DEFAULTS = {
    "append": False,
    "lastChunk": False,
    "required": False,
    "blocking": True,
    "configuration": {},
    "description": "",
    "filename": "",
    "mediaType": "",
    "extensions": [],
    "referenceTaskIds": [],
}


class Call(NamedTuple):
    """One recorded exchange over JSON-RPC."""

    dialect: Dialect
    operation: Operation
    params: Any
    results: list[Any]


def load(recording: str) -> list[dict[str, Any]]:
    frames: list[dict[str, Any]] = json.loads((FRAMES / f"{recording}.json").read_text(encoding="utf-8"))
    return frames


def calls(recording: str) -> list[Any]:
    """The exchanges that went well, named for pytest."""
    dialect = SPOKEN[recording]
    found = []
    for index, frame in enumerate(load(recording)):
        method = frame.get("request", {}).get("method")
        replies = frame["events"] if "events" in frame else [frame["response"]]
        if method is None or any("error" in reply for reply in replies):
            continue
        results = [reply.get("result") for reply in replies]  # a2a-sdk 0.3 leaves out a result that is null
        call = Call(dialect, dialect.METHODS[method], frame["request"].get("params", {}), results)
        found.append(pytest.param(call, id=f"{recording}-{index}-{method}"))
    return found


CALLS = [call for recording in SPOKEN for call in calls(recording)]


def bare(value: Any) -> Any:
    """Without the members that say what is understood anyway."""
    if isinstance(value, list):
        return [bare(item) for item in value]
    if not isinstance(value, dict):
        return value
    items = {name: bare(item) for name, item in value.items()}
    return {name: item for name, item in items.items() if name not in DEFAULTS or item != DEFAULTS[name]}


def test_the_recordings_hold_every_operation_that_their_sdk_has() -> None:
    for recording, without in (("sdk-0.3", {Operation.LIST, Operation.SUBSCRIBE}), ("sdk-1", {Operation.SUBSCRIBE})):
        recorded = {parameters.values[0].operation for parameters in calls(recording)}
        assert recorded == set(Operation) - without


@requirement("NFR-CMP-005")
@pytest.mark.parametrize("call", CALLS)
def test_a_recorded_request_means_the_same_after_us(call: Call) -> None:
    request = call.dialect.decode_request(call.operation, model.encode(call.params))
    assert bare(json.loads(call.dialect.encode_request(call.operation, request))) == bare(call.params)


@requirement("NFR-CMP-005")
@pytest.mark.parametrize("call", [call for call in CALLS if call.values[0].operation is not Operation.EXTENDED_CARD])
def test_a_recorded_answer_means_the_same_after_us(call: Call) -> None:
    dialect, operation, _, results = call
    for result in results:
        if SHAPES[operation].streams:
            rewritten = dialect.encode_event(dialect.decode_event(model.encode(result)))
        else:
            rewritten = dialect.encode_result(operation, dialect.decode_result(operation, model.encode(result)))
        assert bare(json.loads(rewritten) or None) == bare(result)  # delete: {} in 1.0 is as good as null


@requirement("NFR-CMP-005")
@pytest.mark.parametrize("recording", SPOKEN)
def test_we_read_a_recorded_card_as_sdk_1_reads_it(recording: str) -> None:
    card = next(frame["response"] for frame in load(recording) if frame["http"] == "GET /.well-known/agent-card.json")
    ours = parse_agent_card(json.loads(model.encode(v03.decode_card(model.encode(card)))))
    theirs = parse_agent_card(card)
    for interface in theirs.supported_interfaces:
        interface.protocol_version = interface.protocol_version.removesuffix(".0") if recording == "sdk-0.3" else "1.0"
    assert ours == theirs


def test_what_sdk_0_3_refuses_we_refuse_and_its_reasons_we_read() -> None:
    frame = next(one for one in load("sdk-0.3") if one.get("response", {}).get("error", {}).get("code") == -32602)
    with pytest.raises(InvalidParamsError):
        v03.decode_request(Operation.SEND, model.encode(frame["request"]["params"]))
    violations = v03.decode_violations(frame["response"]["error"]["data"])
    assert violations == [Violation("params.message.messageId", "Field required")]
