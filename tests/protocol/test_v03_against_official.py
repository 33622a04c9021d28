"""What we write in A2A 0.3 is what others read: the official JSON schema, a2a-sdk 0.3.x, and a2a-sdk 1.x for cards.

The schema beside this file is that of A2A 0.3.0 (specification/json/a2a.json of the A2A project, Apache-2.0).
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from a2a.client.card_resolver import parse_agent_card
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from apcore_a2a import errors
from apcore_a2a.errors import A2AError
from apcore_a2a.protocol import jsonrpc, model
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.model import SHAPES, Operation
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.protocol import strategies
from tests.requirements import requirement
from tests.sources import ROOT

HERE = Path(__file__).parent
SDK = ROOT / ".venvs" / "sdk03" / "bin" / "python"
DEFINITIONS = json.loads((HERE / "a2a-v0.3.0.schema.json").read_text(encoding="utf-8"))["definitions"]

TYPES = {  # the official names of our operations; 0.3 has no tasks/list in JSON-RPC
    Operation.SEND: "SendMessage",
    Operation.STREAM: "SendStreamingMessage",
    Operation.GET: "GetTask",
    Operation.CANCEL: "CancelTask",
    Operation.SUBSCRIBE: "TaskResubscription",
    Operation.CREATE_PUSH: "SetTaskPushNotificationConfig",
    Operation.GET_PUSH: "GetTaskPushNotificationConfig",
    Operation.LIST_PUSH: "ListTaskPushNotificationConfig",
    Operation.DELETE_PUSH: "DeleteTaskPushNotificationConfig",
    Operation.EXTENDED_CARD: "GetAuthenticatedExtendedCard",
}
ANSWERED = [operation for operation in TYPES if not SHAPES[operation].streams]
EVENT = "SendStreamingMessageSuccessResponse"
ID = b'"1"'


def requests(operation: Operation) -> st.SearchStrategy[model.Value]:
    if operation is Operation.DELETE_PUSH:  # here 0.3 demands the id, and so do we of ourselves
        return st.builds(model.PushConfigRef, task_id=strategies.ids, id=strategies.ids)
    return strategies.requests[operation]


def answers(operation: Operation) -> st.SearchStrategy[Any]:
    return strategies.cards_of("0.3") if operation is Operation.EXTENDED_CARD else strategies.results(operation)


def request_body(operation: Operation, request: model.Value) -> bytes:
    return jsonrpc.format_request("1", v03.NAMES[operation], v03.encode_request(operation, request))


def answer_body(operation: Operation, answer: Any) -> bytes:
    return jsonrpc.format_result(ID, v03.encode_result(operation, answer))


def event_body(event: model.Event) -> bytes:
    return jsonrpc.format_result(ID, v03.encode_event(event))


# ---- the JSON schema ---------------------------------------------------------------------------------------------


def check(name: str, body: bytes) -> None:
    schema = {"$ref": f"#/definitions/{name}", "definitions": DEFINITIONS}
    Draft7Validator(schema).validate(json.loads(body))


@requirement("NFR-CMP-001")
@pytest.mark.parametrize("operation", TYPES)
@settings(max_examples=40)
@given(data=st.data())
def test_our_requests_match_the_schema(operation: Operation, data: st.DataObject) -> None:
    check(f"{TYPES[operation]}Request", request_body(operation, data.draw(requests(operation))))


@requirement("NFR-CMP-001")
@pytest.mark.parametrize("operation", ANSWERED)
@settings(max_examples=40)
@given(data=st.data())
def test_our_answers_match_the_schema(operation: Operation, data: st.DataObject) -> None:
    check(f"{TYPES[operation]}SuccessResponse", answer_body(operation, data.draw(answers(operation))))


@requirement("NFR-CMP-001")
@given(strategies.events())
def test_our_events_match_the_schema(event: model.Event) -> None:
    check(EVENT, event_body(event))


@given(strategies.cards)
def test_our_hybrid_card_matches_the_schema(card: AgentCard) -> None:
    check("AgentCard", v03.encode_hybrid_card(card))


@pytest.mark.parametrize(
    "error",
    [
        errors.TaskNotFoundError("t"),
        errors.InvalidParamsError("no", [errors.Violation("a", "b")]),
        errors.SkillNotFoundError("s"),
        errors.InternalError("ref"),
    ],
)
def test_our_errors_match_the_schema(error: A2AError) -> None:
    check("JSONRPCErrorResponse", jsonrpc.format_error(ID, v03.encode_error(error)))


# ---- a2a-sdk 0.3.x -----------------------------------------------------------------------------------------------


def collect(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    found: list[Any] = []

    @settings(max_examples=count, phases=[Phase.generate], database=None)
    @given(strategy)
    def draw(value: Any) -> None:
        found.append(value)

    draw()
    return found


def read_with_sdk(name: str, bodies: list[bytes]) -> list[Any]:
    """Each body as a2a-sdk 0.3.x understood it; a body that it refuses ends the process and the test."""
    assert SDK.exists(), "a2a-sdk 0.3.x is missing: run `make setup`"
    lines = "\n".join(json.dumps([name, json.loads(body)]) for body in bodies)
    command = [str(SDK), str(HERE / "read_with_sdk03.py")]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=25, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def same(ours: list[Any], theirs: list[Any], decode: Callable[[bytes], Any], member: str) -> None:
    assert len(ours) == len(theirs) > 0
    assert [decode(model.encode(one.get(member))) for one in theirs] == ours


@requirement("NFR-CMP-005")
@pytest.mark.parametrize("operation", TYPES)
def test_the_sdk_reads_our_requests_as_we_meant_them(operation: Operation) -> None:
    ours = collect(requests(operation), 40)
    theirs = read_with_sdk(f"{TYPES[operation]}Request", [request_body(operation, one) for one in ours])
    same(ours, theirs, lambda body: v03.decode_request(operation, body), "params")


@requirement("NFR-CMP-005")
@pytest.mark.parametrize("operation", ANSWERED)
def test_the_sdk_reads_our_answers_as_we_meant_them(operation: Operation) -> None:
    ours = collect(answers(operation), 40)
    bodies = [answer_body(operation, one) for one in ours]
    theirs = read_with_sdk(f"{TYPES[operation]}SuccessResponse", bodies)
    same(ours, theirs, lambda body: v03.decode_result(operation, body), "result")


@requirement("NFR-CMP-005")
def test_the_sdk_reads_our_events_as_we_meant_them() -> None:
    ours = collect(strategies.events(), 150)
    same(ours, read_with_sdk(EVENT, [event_body(one) for one in ours]), v03.decode_event, "result")


# ---- the hybrid card ---------------------------------------------------------------------------------------------


@requirement("NFR-CMP-005")
def test_sdk_0_3_reads_the_hybrid_card_like_the_0_3_card() -> None:
    ours = collect(strategies.cards, 60)
    pure = read_with_sdk("AgentCard", [v03.encode_card(card) for card in ours])
    for card in pure:
        for skill in card["skills"]:
            if not skill["examples"]:
                del skill["examples"]  # only the 0.3 card has an empty list
    assert read_with_sdk("AgentCard", [v03.encode_hybrid_card(card) for card in ours]) == pure


@requirement("NFR-CMP-005")
@given(strategies.cards)
def test_sdk_1_reads_the_hybrid_card_like_the_1_0_card(card: AgentCard) -> None:
    assert parse_agent_card(json.loads(v03.encode_hybrid_card(card))) == parse_agent_card(
        json.loads(model.encode(card))
    )
