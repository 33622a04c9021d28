"""The cost of decoding a request and encoding an answer, compared with the official SDKs: protobuf JSON and pydantic.

python -m benchmarks.bench_codec [--quick]

Every codec handles the same message. Rounds are interleaved and medians shown, the ratio first. The SDK of the 0.3
generation (pydantic) runs in its own environment, .venvs/sdk03, if it exists. The figures are processor time, which
other processes disturb little. Absolute figures still differ by machine, so compare figures of one run.
"""

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measuring import FULL, ROOT, Findings, Plan, Table, ratio, run_alone

SDK03 = ROOT / ".venvs/sdk03/bin/python"
TARGETS = {"decode SendMessage": 5.0, "encode Task": 10.0}  # microseconds, including the envelope
Codec = Callable[[], object]

TEXT = "Summarise the attached quarterly report in three sentences, for a reader who has no time. "
PARTS_10: list[dict[str, Any]] = [{"text": TEXT}, {"data": {"quarter": 3, "year": 2026, "draft": False}}]
MESSAGE_10 = {
    "messageId": "5b1f2c7e-8a1d-4f0e-9c55-0d4f3f6a7b90",
    "contextId": "9c1d7c5e-1f0a-4f7e-9d3b-0a5e8f2b7c22",
    "role": "ROLE_USER",
    "parts": PARTS_10,
    "metadata": {"skillId": "report.summarise"},
}
STATUS_10 = {"state": "TASK_STATE_COMPLETED", "timestamp": "2026-01-01T00:00:00.000Z"}
IDS = {"id": "3f1a9f0c-52f5-4a41-8f7e-2f6b5a0d9c11", "contextId": MESSAGE_10["contextId"]}


def request_10() -> bytes:
    """A JSON-RPC request of 416 bytes."""
    envelope = {"jsonrpc": "2.0", "id": "1", "method": "SendMessage", "params": {"message": MESSAGE_10}}
    body = json.dumps(envelope, separators=(",", ":"))
    return body.replace("no time. ", "no time. " + "." * (416 - len(body))).encode()


def task_10() -> bytes:
    """Return a task of about 3 kB: a message, an answer in eleven parts, a few numbers."""
    artifact = {
        "artifactId": "answer",
        "name": "answer",
        "parts": [{"text": TEXT * 2}] * 10 + [{"data": {"pages": 12}}],
    }
    task = {
        **IDS,
        "status": STATUS_10,
        "artifacts": [artifact],
        "history": [MESSAGE_10] * 2,
        "metadata": {"cost": 0.25},
    }
    return json.dumps(task, separators=(",", ":")).encode()


def chunk_10() -> bytes:
    artifact = {"artifactId": "answer", "parts": [{"text": TEXT}]}
    event = {"taskId": IDS["id"], "contextId": IDS["contextId"], "artifact": artifact, "append": True}
    return json.dumps({"artifactUpdate": event}, separators=(",", ":")).encode()


# ---- the codecs --------------------------------------------------------------------------------------------------


def ours() -> dict[str, Codec]:
    from apcore_a2a.protocol import jsonrpc, v1
    from apcore_a2a.protocol.model import Operation, decode_task

    request, task, event = request_10(), decode_task(task_10()), v1.decode_event(chunk_10())

    def decode() -> object:
        read = jsonrpc.parse(request)
        return v1.decode_request(v1.METHODS[read.method], read.params)

    return {
        "decode SendMessage": decode,
        "parse envelope": lambda: jsonrpc.parse(request),
        "encode Task": lambda: jsonrpc.format_result(b'"1"', v1.encode_result(Operation.SEND, task)),
        "encode event": lambda: jsonrpc.format_result(b'"1"', v1.encode_event(event)),
    }


def protobuf() -> dict[str, Codec]:
    """The codecs of a2a-sdk 1.x: JSON, dictionaries and protobuf messages."""
    from a2a.types import a2a_pb2
    from google.protobuf.json_format import MessageToDict, ParseDict

    request = request_10()
    answer = a2a_pb2.SendMessageResponse(task=ParseDict(json.loads(task_10()), a2a_pb2.Task()))
    event = ParseDict(json.loads(chunk_10()), a2a_pb2.StreamResponse())

    def respond(message: object) -> bytes:
        result = MessageToDict(message)  # type: ignore[arg-type]  # a message of protobuf
        return json.dumps({"jsonrpc": "2.0", "id": "1", "result": result}).encode()

    return {
        "decode SendMessage": lambda: ParseDict(json.loads(request)["params"], a2a_pb2.SendMessageRequest()),
        "parse envelope": lambda: json.loads(request),
        "encode Task": lambda: respond(answer),
        "encode event": lambda: respond(event),
    }


def pydantic() -> dict[str, Codec]:
    """The codecs of a2a-sdk 0.3: JSON and pydantic models. Runs in the environment of that SDK."""
    types: Any = import_module("a2a.types")  # Any: mypy would resolve it to the SDK of 1.x

    def old(part: dict[str, Any]) -> dict[str, Any]:
        return {"kind": next(iter(part)), **part}

    def message() -> dict[str, Any]:
        return {**MESSAGE_10, "kind": "message", "role": "user", "parts": [old(part) for part in PARTS_10]}

    envelope = {"jsonrpc": "2.0", "id": "1", "method": "message/send", "params": {"message": message()}}
    request = json.dumps(envelope, separators=(",", ":")).encode()
    tree = json.loads(task_10()) | {"kind": "task", "history": [message()] * 2}
    tree["status"]["state"] = "completed"
    tree["artifacts"][0]["parts"] = [old(part) for part in tree["artifacts"][0]["parts"]]
    answer = types.SendMessageSuccessResponse(id="1", result=types.Task.model_validate(tree))
    update = json.loads(chunk_10())["artifactUpdate"] | {"kind": "artifact-update"}
    update["artifact"]["parts"] = [old(part) for part in update["artifact"]["parts"]]
    event = types.SendStreamingMessageSuccessResponse(
        id="1", result=types.TaskArtifactUpdateEvent.model_validate(update)
    )
    return {
        "decode SendMessage": lambda: types.SendMessageRequest.model_validate(json.loads(request)),
        "parse envelope": lambda: json.loads(request),
        "encode Task": lambda: json.dumps(answer.model_dump(mode="json", by_alias=True, exclude_none=True)).encode(),
        "encode event": lambda: event.model_dump_json(by_alias=True, exclude_none=True).encode(),
    }


# ---- the clock ---------------------------------------------------------------------------------------------------


def time_once(codec: Codec, seconds: float) -> float:
    """Return the microseconds per call, measured for about this many seconds."""
    calls, spent = 1, 0.0
    gc.collect()
    gc.disable()
    try:
        while spent < seconds:
            calls *= 2
            started = time.process_time()
            for _ in range(calls):
                codec()
            spent = time.process_time() - started
    finally:
        gc.enable()
    return spent / calls * 1e6


class Elsewhere:
    """The codecs of another environment, timed there. Each request and response is a line of JSON."""

    def __init__(self, python: Path) -> None:
        command = [str(python), "-m", "benchmarks.bench_codec", "answer"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)

    def time(self, case: str, seconds: float) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([case, seconds]), file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=5)


def answer() -> None:
    codecs = pydantic()
    for line in sys.stdin:
        case, seconds = json.loads(line)
        print(time_once(codecs[case], seconds), flush=True)


def measure(rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return the median microseconds of interleaved rounds by case and codec."""
    here = {"apcore-a2a": ours(), "a2a-sdk 1.x, protobuf": protobuf()}
    elsewhere = Elsewhere(SDK03) if SDK03.exists() else None
    names = [*here, *(["a2a-sdk 0.3, pydantic"] if elsewhere else [])]
    figures: dict[str, dict[str, list[float]]] = {case: {name: [] for name in names} for case in here["apcore-a2a"]}
    try:
        for _ in range(rounds):
            for case, taken in figures.items():
                for name in names:
                    codec = here.get(name)
                    took = time_once(codec[case], seconds) if codec else elsewhere.time(case, seconds)  # type: ignore[union-attr]  # it is there
                    taken[name].append(took)
    finally:
        if elsewhere:
            elsewhere.close()
    return {case: {name: statistics.median(each) for name, each in taken.items()} for case, taken in figures.items()}


def bench(found: Findings, plan: Plan) -> None:
    sizes = {"decode SendMessage": len(request_10()), "encode Task": len(task_10()), "encode event": len(chunk_10())}
    rows = []
    for case, taken in measure(*((15, 0.05) if plan == FULL else (3, 0.01))).items():
        size = f", {sizes[case]:,} bytes" if case in sizes else ""
        for name, took in taken.items():
            limit = f"{TARGETS[case]:g}" if case in TARGETS and name == "apcore-a2a" else ""
            rows.append([f"{case}{size}: {name}", ratio(took / taken["apcore-a2a"]), f"{took:.2f}", limit])
        found.figures[f"codec/{case}"] = taken["apcore-a2a"]
    columns = ("codec", "ours is … times as fast", "µs of processor time", "limit")
    found.add(Table("Codecs: reading a request, writing an answer", columns, rows))


if __name__ == "__main__":
    if sys.argv[1:] == ["answer"]:
        answer()
    else:
        run_alone(bench, __doc__)
