"""Writes (by the writer thread, in a transaction) and reads of webhooks in the database.

Invariant: a webhook is a cursor on the events of its task. An owner can access only the webhooks of its own tasks. Only
delivery, which acts for all owners, accesses them without an owner.
"""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from apcore_a2a.errors import InvalidParamsError
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import encode
from apcore_a2a.storage.contract import MAX_WEBHOOKS, Backlog, Claim, DeliveryReport, Webhook
from apcore_a2a.storage.sql import STATES, decode_push_config
from apcore_a2a.storage.sqlite.writer import Tables

_COLUMNS: Final = "config, a2a_version, delivered, latest, attempts, failed, reason"
_WAITING: Final = "failed = 0 AND delivered < latest"
_TASK: Final = "(SELECT number FROM task WHERE id = ? AND owner = ?)"


# ---- writes ----------------------------------------------------------------------------------------------------------


def release_all(tables: Tables) -> None:
    """Make all waiting webhooks due: claims of the earlier process are void, and `due` was on its monotonic clock."""
    tables.database.execute(f"UPDATE webhook SET due = 0 WHERE {_WAITING}")


def save(tables: Tables, webhook: Webhook, owner: str) -> Webhook | None:
    config = webhook.config
    database = tables.database
    found = database.execute(
        "SELECT number, state, version FROM task WHERE id = ? AND owner = ?", (config.task_id, owner)
    ).fetchone()
    if found is None:
        return None
    number, state, version = found
    update = "UPDATE webhook SET config = ?, a2a_version = ?, due = 0, claim = claim + 1"
    updated = database.execute(
        f"{update}, attempts = 0, failed = 0, reason = '' WHERE task = ? AND id = ?",
        (encode(config), webhook.a2a_version, number, config.id),
    )
    if updated.rowcount == 0:
        (others,) = database.execute("SELECT count(*) FROM webhook WHERE task = ?", (number,)).fetchone()
        if others >= MAX_WEBHOOKS:
            raise InvalidParamsError(f"A task has {MAX_WEBHOOKS} webhooks at most; delete one first")
        delivered = version
        if STATES[state] in AT_REST:
            delivered = version - 1
        tables.add_webhook(number, webhook, delivered=delivered, latest=version)
        tables.mark_webhooks(config.task_id, owner)
    row = database.execute(f"SELECT {_COLUMNS} FROM webhook WHERE task = ? AND id = ?", (number, config.id)).fetchone()
    return _to_webhook(row)


def remove(tables: Tables, task_id: str, owner: str, config_id: str) -> bool:
    deleted = tables.database.execute(
        f"DELETE FROM webhook WHERE task = {_TASK} AND id = ?", (task_id, owner, config_id)
    )
    return deleted.rowcount == 1


def claim(tables: Tables, limit: int, lease: float) -> list[Claim]:
    now = tables.clock.monotonic()
    due = tables.database.execute(
        f"SELECT webhook.task, webhook.id, owner, claim, {_COLUMNS} FROM webhook INDEXED BY webhook_waiting"
        f" JOIN task ON number = webhook.task WHERE {_WAITING} AND due <= ? ORDER BY due LIMIT ?",
        (now, limit),
    ).fetchall()
    claims: list[Claim] = []
    for number, config_id, owner, last_claim, *columns in due:
        tables.database.execute(
            "UPDATE webhook SET due = ?, claim = ? WHERE task = ? AND id = ?",
            (now + lease, last_claim + 1, number, config_id),
        )
        claims.append(Claim(_to_webhook(columns), owner, last_claim + 1))
    return claims


def settle(tables: Tables, claim: Claim, report: DeliveryReport) -> bool:
    config = claim.webhook.config
    due = tables.clock.monotonic() + report.pause
    values = (report.delivered, report.attempts, report.failed, report.reason, due)
    updated = tables.database.execute(
        "UPDATE webhook SET delivered = ?, attempts = ?, failed = ?, reason = ?, due = ?"
        f" WHERE task = {_TASK} AND id = ? AND claim = ?",
        (*values, config.task_id, claim.owner, config.id, claim.number),
    )
    return updated.rowcount == 1


# ---- reads -----------------------------------------------------------------------------------------------------------


def of_task(database: sqlite3.Connection, task_id: str, owner: str) -> list[Webhook] | None:
    found = database.execute("SELECT number FROM task WHERE id = ? AND owner = ?", (task_id, owner)).fetchone()
    if found is None:
        return None
    rows = database.execute(f"SELECT {_COLUMNS} FROM webhook WHERE task = ? ORDER BY id", found)
    return [_to_webhook(row) for row in rows.fetchall()]


def failed(database: sqlite3.Connection, owner: str, limit: int) -> list[Webhook]:
    rows = database.execute(
        f"SELECT {_COLUMNS} FROM webhook INDEXED BY webhook_failed JOIN task ON number = webhook.task"
        " WHERE failed = 1 AND owner = ? ORDER BY number LIMIT ?",
        (owner, limit),
    )
    return [_to_webhook(row) for row in rows.fetchall()]


def is_due(database: sqlite3.Connection, now: float) -> bool:
    due = f"SELECT 1 FROM webhook INDEXED BY webhook_waiting WHERE {_WAITING} AND due <= ? LIMIT 1"
    return database.execute(due, (now,)).fetchone() is not None


def backlog(database: sqlite3.Connection, now: float) -> Backlog:
    waiting, events, since = database.execute(
        "SELECT count(*), coalesce(sum(latest - delivered), 0), min(since)"
        f" FROM webhook INDEXED BY webhook_waiting WHERE {_WAITING}"
    ).fetchone()
    (given_up,) = database.execute("SELECT count(*) FROM webhook INDEXED BY webhook_failed WHERE failed = 1").fetchone()
    oldest = 0.0
    if since is not None:
        oldest = max(now - since, 0.0)
    return Backlog(webhooks=waiting, events=events, failed=given_up, oldest=oldest)


def _to_webhook(columns: Sequence[Any]) -> Webhook:  # Any: values of SQLite
    config, a2a_version, delivered, latest, attempts, failed, reason = columns
    return Webhook(
        config=decode_push_config(config),
        a2a_version=a2a_version,
        delivered=delivered,
        latest=latest,
        attempts=attempts,
        failed=bool(failed),
        reason=reason,
    )
