"""Invariants of a database of tasks, and of the answers to its clients. Each violation is returned as a sentence.

The checker reads the tables directly, not through the store, so that an error of the store cannot hide a violation.
"""

import json
from collections import defaultdict
from typing import Any

import asyncpg

from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import TERMINAL, join_texts
from apcore_a2a.protocol.model import ArtifactUpdate, Task, decode_task, encode
from apcore_a2a.storage.sql import STATES
from tests.cluster.replicas import ENDED, Client

Events = dict[str, list[tuple[int, bytes]]]


async def check_database(dsn: str, schema: str) -> list[str]:
    """Check the invariants I1, I2, I3/I6, I7 and I8 of every task in a schema."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    try:
        tasks = await connection.fetch("SELECT * FROM task ORDER BY number")
        rows = await connection.fetch("SELECT task, sequence, body FROM event ORDER BY task, sequence")
        webhooks = await connection.fetch("SELECT task, latest FROM webhook")
    finally:
        await connection.close()
    events: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for row in rows:
        events[row["task"]].append((row["sequence"], row["body"]))
    wrong: list[str] = []
    for task in tasks:
        wrong += [f"{task['id'].decode()}: {what}" for what in check_task(task, events[task["number"]])]
        for webhook in webhooks:
            if webhook["task"] == task["number"] and webhook["latest"] != task["version"]:
                wrong.append(f"{task['id'].decode()}: an event is not due to its webhook")
    return wrong


async def not_at_rest(dsn: str, schema: str) -> list[str]:
    """Return the tasks that have not ended, with their runners."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    try:
        rows = await connection.fetch(
            "SELECT id, state, version, epoch, runner, run, until > now() AS lives FROM task"
            " LEFT JOIN replica ON name = runner WHERE ended IS NULL"
        )
    finally:
        await connection.close()
    return [str(dict(row)) for row in rows]


def check_task(row: Any, events: list[tuple[int, bytes]]) -> list[str]:
    wrong: list[str] = []
    if [sequence for sequence, _ in events] != list(range(1, row["version"] + 1)):
        return ["its events are not 1 to its version"]
    decoded = [v1.decode_record(body) for _, body in events]
    first = decoded[0][0]
    assert isinstance(first, Task)
    ends = []
    for index, (event, _) in enumerate(decoded, 1):
        status = getattr(event, "status", None)
        if status is not None and status.state in TERMINAL:
            ends.append(index)
    state = STATES[row["state"]]
    if ends != ([row["version"]] if state in TERMINAL else []):
        wrong.append(f"its ends are at {ends} of {row['version']}")
    v1.replay(first, [body for _, body in events[1:]])
    if first.status.state is not state:
        wrong.append(f"its events lead to {first.status.state}, its row has {state}")
    if row["document_version"] == row["version"] and encode(decode_task(row["document"])) != encode(join_texts(first)):
        wrong.append("its document differs from its events")
    if state in TERMINAL and row["runner"] is not None:
        wrong.append("it has ended, and still has a runner")
    if stale_runs([event for event, _ in decoded]):
        wrong.append("a run wrote after a later one had begun")
    return wrong


def stale_runs(events: list[Any]) -> bool:
    """Return whether a run of the counting agent wrote after a later run had begun."""
    seen: list[str] = []
    for event in events:
        if isinstance(event, ArtifactUpdate):
            run = str(event.artifact.parts[0].text).partition(" ")[0]
            if run in seen[:-1]:
                return True
            if not seen or seen[-1] != run:
                seen.append(run)
    return False


async def read_events(dsn: str, schema: str) -> dict[str, dict[int, bytes]]:
    """Return every event in a schema, by the id of its task and its number."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    try:
        rows = await connection.fetch("SELECT id, sequence, body FROM event JOIN task ON number = event.task")
    finally:
        await connection.close()
    found: dict[str, dict[int, bytes]] = defaultdict(dict)
    for row in rows:
        found[row["id"].decode()][row["sequence"]] = row["body"]
    return found


def check_received(client: Client, stored: dict[str, dict[int, bytes]]) -> list[str]:
    """Check the invariants I4, I5 and R10 of all that clients received, by streams and by reads."""
    wrong = client.internal_errors[:]
    wrong += [f"{task_id}: was acknowledged, and is not stored" for task_id in client.created if task_id not in stored]
    for received in client.received:
        last = None
        for seq, event in received.events:
            if "task" in event:  # a snapshot: at the start, or where a reader had to start again
                if last is not None and seq < last:
                    wrong.append(f"{received.task_id}: a stream went back from {last} to {seq}")
            elif last is not None and seq != last + 1:
                wrong.append(f"{received.task_id}: a stream went from {last} to {seq}")
            last = seq
            if "task" not in event and not is_stored(event, stored[received.task_id].get(seq)):
                wrong.append(f"{received.task_id}: received event {seq} differs from the stored one")
    return wrong + check_reads(client) + check_versions(client)


def is_stored(event: dict[str, Any], body: bytes | None) -> bool:
    if body is None:
        return False
    stored = json.loads(body)
    stored.pop("message", None)  # the user's message, which is stored with the event and not sent with it
    return bool(stored == event)


def check_versions(client: Client) -> list[str]:
    """Check that a stream which begins after a client received an event begins with that event or a later one."""
    latest: dict[str, list[tuple[float, int]]] = defaultdict(list)  # by task: time and number of each event
    for stream in client.received:
        latest[stream.task_id] += zip(stream.times, (seq for seq, _ in stream.events), strict=True)
    wrong: list[str] = []
    for stream in client.received:
        if not stream.events:
            continue
        first, _ = stream.events[0]
        known = max((seq for at, seq in latest[stream.task_id] if at < stream.begun), default=0)
        if first < known:
            wrong.append(f"{stream.task_id}: a stream began with {first} after {known} was received")
    return wrong


def check_reads(client: Client) -> list[str]:
    """Check that a read which begins after another has ended shows nothing older, and that an end is final."""
    wrong: list[str] = []
    ended = ends_received(client)
    for begun, returned, task_id, state in sorted(client.reads, key=lambda read: read[1]):
        if task_id in ended and begun > ended[task_id][0] and state != ended[task_id][1]:
            wrong.append(f"{task_id}: shown as {state} after {ended[task_id][1]}")
        if state in ENDED and (task_id not in ended or returned < ended[task_id][0]):
            ended[task_id] = (returned, state)
    return wrong


def ends_received(client: Client) -> dict[str, tuple[float, str]]:
    """Return by task when a stream first sent its end, and which end."""
    ended: dict[str, tuple[float, str]] = {}
    for stream in client.received:
        for at, (_, event) in zip(stream.times, stream.events, strict=True):
            status = event.get("statusUpdate", event.get("task", {})).get("status", {})
            state = status.get("state", "").removeprefix("TASK_STATE_")
            if state in ENDED and at < ended.get(stream.task_id, (float("inf"), ""))[0]:
                ended[stream.task_id] = (at, state)
    return ended
