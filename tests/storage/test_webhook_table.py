"""The webhooks of stores that keep no events: what is forgotten, and when."""

from apcore_a2a.protocol.model import PushConfig, TaskState
from apcore_a2a.storage.task_store import Report, Webhook
from apcore_a2a.storage.webhook_table import STALE_ENTRIES, WebhookTable
from tests.storage.contract import ALICE, Author, Clock


def table_with(*names: str) -> tuple[WebhookTable, Clock]:
    clock = Clock()
    table = WebhookTable(clock)
    for name in names:
        config = PushConfig(url="https://example.com", id="w", task_id=name)
        table.begin(name, ALICE, Webhook(config=config, a2a_version="1.0"))
        table.add_events(name, Author(name).create().events, TaskState.SUBMITTED)
    return table, clock


def test_claims_that_come_and_go_leave_no_trace() -> None:
    table, clock = table_with("t")
    for _ in range(10 * STALE_ENTRIES):
        (claim,) = table.claim(1, 30)
        assert table.settle(claim, Report(delivered=0, attempts=1, pause=1))
        clock.now += 1
    (claim,) = table.claim(10, 30)
    assert table.settle(claim, Report(delivered=1))
    assert table.claim(10, 30) == []


def test_only_what_is_over_and_delivered_is_forgotten() -> None:
    table, _ = table_with("delivered", "waiting", "failed", "runs")
    for name in ("delivered", "waiting", "failed"):
        table.add_events(name, [b"{}"], TaskState.COMPLETED)
    for claim in table.claim(10, 30):
        name = claim.webhook.config.task_id
        if name in ("delivered", "runs"):
            table.settle(claim, Report(delivered=claim.webhook.latest))
        if name == "failed":
            table.settle(claim, Report(delivered=0, failed=True))
    table.drop_settled()
    assert table.tasks.keys() == {"waiting", "failed", "runs"}
    assert table.tasks["runs"].events  # a 0.3 webhook needs them for the task as it was
