"""The webhooks of stores that do not store events: when events are dropped."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.protocol.model import TaskState, encode
from apcore_a2a.storage.contract import DeliveryReport
from apcore_a2a.storage.webhook_table import STALE_ENTRIES, TaskWebhooks, WebhookTable
from tests.storage.contract import ALICE, Author, Clock, hook


def table_with(*names: str) -> tuple[WebhookTable, Clock]:
    clock = Clock()
    table = WebhookTable(clock)
    for name in names:
        table.begin(name, ALICE, hook(name))
        table.add_events(name, Author(name).create().events, TaskState.SUBMITTED)
    return table, clock


def test_stale_heap_entries_of_claims_are_removed() -> None:
    table, clock = table_with("put off", "t")
    (first,) = table.claim(1, 30)
    assert table.settle(first, DeliveryReport(delivered=0, pause=1e6))
    tracemalloc.start()
    for _ in range(100 * STALE_ENTRIES):  # each adds a heap entry of some hundred bytes for the end of its lease
        (claim,) = table.claim(1, 1e9)
        assert table.settle(claim, DeliveryReport(delivered=0, attempts=1, pause=1))
        clock.now += 1
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 10 * STALE_ENTRIES * 100
    (claim,) = table.claim(10, 30)
    assert table.settle(claim, DeliveryReport(delivered=1))
    assert table.claim(10, 30) == []
    clock.now += 1e6
    (put_off,) = table.claim(10, 30)
    assert put_off.webhook == first.webhook


def test_events_for_a_removed_webhook_only_are_dropped() -> None:
    table, _ = table_with("t")
    table.save(hook(config_id="slow"), ALICE, document=b"{}", state=TaskState.WORKING, version=1)
    table.add_events("t", [b"{}"], TaskState.COMPLETED)
    for claim in table.claim(10, 30):
        if claim.webhook.config.id == "w":
            table.settle(claim, DeliveryReport(delivered=2))
    assert table.read("t", 0) is not None
    assert table.remove("t", "slow")
    assert table.read("t", 0) is None  # the events are dropped, because no webhook waits for them
    assert table.remove("t", "w")
    assert "t" not in table.tasks


def size_of(kept: TaskWebhooks) -> int:
    """Return the bytes stored for the webhooks of a task, counted in full."""
    configs = [encode(row.webhook.config) for row in kept.rows.values()]
    return len(kept.base) + sum(map(len, kept.events)) + sum(map(len, configs))


@given(st.lists(st.tuples(st.sampled_from(["save", "add", "deliver", "end", "remove"]), st.sampled_from("ab"))))
def test_the_incremental_byte_count_equals_the_stored_bytes(steps: list[tuple[str, str]]) -> None:
    table, clock = table_with("t")
    author = Author("t")
    version = 1
    state = TaskState.WORKING
    for step, name in steps:
        url = f"https://example.com/{'x' * version}"
        match step:
            case "save":
                document = encode(author.task)
                table.save(hook(config_id=name, url=url), ALICE, document=document, state=state, version=version)
            case "add" | "end" if "t" in table.tasks and state is TaskState.WORKING:
                if step == "end":
                    state = TaskState.COMPLETED
                version += 1
                table.add_events("t", [b"x" * version], state)
            case "deliver":
                for claim in table.claim(1, 0):
                    table.settle(claim, DeliveryReport(delivered=claim.webhook.latest))
            case "remove":
                table.remove("t", name)
        clock.now += 1
        if "t" in table.tasks:
            assert table.tasks["t"].size == size_of(table.tasks["t"])


def test_drop_settled_drops_only_ended_and_delivered_tasks() -> None:
    table, _ = table_with("delivered", "waiting", "failed", "runs")
    for name in ("delivered", "waiting", "failed"):
        table.add_events(name, [b"{}"], TaskState.COMPLETED)
    for claim in table.claim(10, 30):
        name = claim.webhook.config.task_id
        if name in ("delivered", "runs"):
            table.settle(claim, DeliveryReport(delivered=claim.webhook.latest))
        if name == "failed":
            table.settle(claim, DeliveryReport(delivered=0, failed=True))
    table.drop_settled()
    assert table.tasks.keys() == {"waiting", "failed", "runs"}
    assert table.tasks["runs"].events  # delivery in 0.3 rebuilds the task from them
