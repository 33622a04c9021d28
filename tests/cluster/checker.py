"""What must hold of a database of tasks, and of what clients were told about it. Each rule that does not is a sentence.

It looks at the tables themselves, not through the store: what is wrong there must not look right here.
"""

import json
from collections import defaultdict
from typing import Any

import asyncpg

from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import ArtifactUpdate, Task, decode_task, encode
from apcore_a2a.storage.sql import STATES
from tests.cluster.replicas import ENDED, Client

Events = dict[str, list[tuple[int, bytes]]]


async def check_database(dsn: str, schema: str) -> list[str]:
    """Invariants I1, I2, I3/I6, I7 and I8 of every task in a schema."""
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
                wrong.append(f"{task['id'].decode()}: an event is not owed to its webhook")
    return wrong


async def not_at_rest(dsn: str, schema: str) -> list[str]:
    """The tasks that have not ended, and who is to go on with them."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    try:
        rows = await connection.fetch(
            "SELECT id, state, version, epoch, runner, until > now() AS lives FROM task"
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
        wrong.append(f"its events lead to {first.status.state}, its row says {state}")
    if row["document_version"] == row["version"] and encode(decode_task(row["document"])) != encode(first):
        wrong.append("its document is not what its events lead to")
    if state in TERMINAL and row["runner"] is not None:
        wrong.append("it has ended, and somebody still runs it")
    if stale_runs([event for event, _ in decoded]):
        wrong.append("a run wrote after a later one had begun")
    return wrong


def stale_runs(events: list[Any]) -> bool:
    """Whether a run of the counting agent comes back after another one."""
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
    """Every event in a schema, by its task's id and its number."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    try:
        rows = await connection.fetch("SELECT id, sequence, body FROM event JOIN task ON number = event.task")
    finally:
        await connection.close()
    found: dict[str, dict[int, bytes]] = defaultdict(dict)
    for row in rows:
        found[row["id"].decode()][row["sequence"]] = row["body"]
    return found


def check_told(client: Client, stored: dict[str, dict[int, bytes]]) -> list[str]:
    """Invariants I4, I5 and R10: what clients were told, by streams and by reads."""
    wrong = [f"{task_id}: was answered, and is not there" for task_id in client.created if task_id not in stored]
    for told in client.told:
        last = None
        for seq, event in told.events:
            if "task" in event:  # a snapshot: at the beginning, or where a reader had to begin again
                if last is not None and seq < last:
                    wrong.append(f"{told.task_id}: a stream went back from {last} to {seq}")
            elif last is not None and seq != last + 1:
                wrong.append(f"{told.task_id}: a stream went from {last} to {seq}")
            last = seq
            if "task" not in event and not is_stored(event, stored[told.task_id].get(seq)):
                wrong.append(f"{told.task_id}: event {seq} was told, and another is stored")
    return wrong + check_reads(client) + check_versions(client)


def is_stored(event: dict[str, Any], body: bytes | None) -> bool:
    if body is None:
        return False
    kept = json.loads(body)
    kept.pop("message", None)  # the user's, which is kept with the event and not told with it
    return bool(kept == event)


def check_versions(client: Client) -> list[str]:
    """A stream that begins after somebody was told of an event begins with that one, or later."""
    told: dict[str, list[tuple[float, int]]] = defaultdict(list)  # by task: when, up to which event
    for stream in client.told:
        told[stream.task_id] += zip(stream.times, (seq for seq, _ in stream.events), strict=True)
    wrong: list[str] = []
    for stream in client.told:
        if not stream.events:
            continue
        first, _ = stream.events[0]
        known = max((seq for at, seq in told[stream.task_id] if at < stream.begun), default=0)
        if first < known:
            wrong.append(f"{stream.task_id}: a stream began with {first} after {known} was told")
    return wrong


def check_reads(client: Client) -> list[str]:
    """A read that begins after another has ended shows nothing older; an end is final."""
    wrong: list[str] = []
    ended = ends_told(client)
    for begun, returned, task_id, state in sorted(client.reads, key=lambda read: read[1]):
        if task_id in ended and begun > ended[task_id][0] and state != ended[task_id][1]:
            wrong.append(f"{task_id}: shown as {state} after {ended[task_id][1]}")
        if state in ENDED and (task_id not in ended or returned < ended[task_id][0]):
            ended[task_id] = (returned, state)
    return wrong


def ends_told(client: Client) -> dict[str, tuple[float, str]]:
    """By task: when a stream first told of its end, and which it was."""
    ended: dict[str, tuple[float, str]] = {}
    for stream in client.told:
        for at, (_, event) in zip(stream.times, stream.events, strict=True):
            status = event.get("statusUpdate", event.get("task", {})).get("status", {})
            state = status.get("state", "").removeprefix("TASK_STATE_")
            if state in ENDED and at < ended.get(stream.task_id, (float("inf"), ""))[0]:
                ended[stream.task_id] = (at, state)
    return ended
