"""What docs/lifecycle.md and docs/concurrency.md say is what the code does."""

import re

from apcore_a2a.engine import conversation, first_step, recovery, run, stored_run, task
from apcore_a2a.engine.context import DEFAULTS
from apcore_a2a.engine.webhooks.delivery import DEFAULT_LIMITS as DELIVERY
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, TRANSITIONS
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import MAX_WEBHOOKS
from tests.sources import ROOT

LIFECYCLE = (ROOT / "docs/lifecycle.md").read_text(encoding="utf-8")
CONCURRENCY = (ROOT / "docs/concurrency.md").read_text(encoding="utf-8")
TIMING = DEFAULTS.timing
LOG_WINDOW = DEFAULTS.log_window
STOPPED = TIMING.cancel_grace + TIMING.cancel_margin  # the longest wait for a run that is stopped


def states(text: str) -> set[TaskState]:
    return {TaskState(f"TASK_STATE_{name}") for name in re.findall(r"[A-Z]+(?:_[A-Z]+)?", text)}


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    table = page.partition(f"## {heading}\n")[2].partition("|---")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]


def test_the_page_has_every_state_and_says_which_rest_and_which_end() -> None:
    told = {state: how for name, _, how in rows(LIFECYCLE, "States") for state in states(name)}
    assert told.keys() == set(TaskState) - {TaskState.UNSPECIFIED}
    assert {state for state, how in told.items() if how == "ends"} == TERMINAL
    assert {state for state, how in told.items() if how} == AT_REST


def test_the_page_has_every_transition() -> None:
    told = {old: states(new) for names, new in rows(LIFECYCLE, "Transitions") for old in states(names)}
    assert told == {old: set(new) for old, new in TRANSITIONS.items() if old is not TaskState.UNSPECIFIED}


def test_the_page_has_every_way_a_run_is_stopped() -> None:
    told = {(state, text) for _, state, text in rows(LIFECYCLE, "How a run ends")}
    stops = set()
    for reason in run.Stop:
        state = run.stopped_status(reason).status.state
        stops.add((state.removeprefix("TASK_STATE_"), reason.value))
    assert stops <= told
    assert ("FAILED", recovery.LOST) in told
    assert ("FAILED", StoreUnavailableError.text) in told


def test_the_numbers_on_the_pages_are_those_of_the_code() -> None:
    waits = {who: " | ".join(rest) for who, *rest in rows(CONCURRENCY, "Waits")}
    bounds = {what: limit for what, limit, _ in rows(CONCURRENCY, "Limits")}
    pauses = ", ".join(f"{pause:g}" for pause in TIMING.save_retries)
    expected = [
        (waits["a blocking send"], f"({DEFAULTS.execution_timeout:g} s), then {TIMING.cancel_grace:g} s"),
        (waits["a send for a task of another replica"], f"({DEFAULTS.execution_timeout:g} s; one hour without one)"),
        (waits["a message to a running task"], f"{task.MAX_QUEUED} may wait"),
        (waits["a cancel"], f"{STOPPED:g} s, then"),
        (waits["the task of a stopped agent"], f"{TIMING.cancel_grace:g} s"),
        (waits["a canceled task that waits for its user"], f"{TIMING.cancel_hook:g} s"),
        (
            waits["the next event of a webhook"],
            f"{', '.join(f'{pause:g}' for pause in DELIVERY.retry_delays)} s between",
        ),
        (bounds["workers that post to webhooks"], f"{DELIVERY.max_workers}, of one account "),
        (bounds["workers that post to webhooks"], f"account {DELIVERY.max_workers_per_account}, of those to one host"),
        (bounds["workers that post to webhooks"], f"port {DELIVERY.max_workers_per_target}; "),
        (bounds["workers that post to webhooks"], f"{DELIVERY.max_bytes >> 20} MiB"),
        (bounds["workers that post to webhooks"], f"of one account {DELIVERY.max_bytes_per_account >> 20}"),
        (bounds["webhooks of one task"], str(MAX_WEBHOOKS)),
        (waits["a reader"], f"every {DEFAULTS.keep_alive_interval:g} s"),
        (waits["the agent"], f"{task.MAX_UNSAVED} writes are pending"),
        (waits["the end of a task"], f"{pauses} s, then every {TIMING.save_retries[-1]:g} s"),
        (waits["a task without subscribers (0.3)"], f"{TIMING.disconnect_grace:g} s"),
        (waits["the shutdown"], f"({DEFAULTS.shutdown_timeout:g} s), then {STOPPED:g} s"),
        (bounds["running tasks"], f"{DEFAULTS.max_active_tasks:,}"),
        (bounds["open streams"], f"{DEFAULTS.max_streams:,}; `max_streams_per_caller`, "),
        (bounds["open streams"], f"{DEFAULTS.max_streams_per_caller:,}"),
        (bounds["messages in the queue of a task"], str(task.MAX_QUEUED)),
        (bounds["event log of a task in memory"], f"{LOG_WINDOW.events:,} events or {LOG_WINDOW.bytes >> 20} MiB"),
        (bounds["pending writes of one task"], str(task.MAX_UNSAVED)),
        (bounds["events taken from an agent in a row"], f"{run.BATCH}, and {first_step.MAX_EVENTS} before them"),
        (bounds["messages of a conversation for the agent"], str(DEFAULTS.context_messages)),
        (bounds["tasks that a message may refer to"], str(conversation.MAX_REFERENCES)),
        (bounds["runs of a task whose process ended"], str(stored_run.MAX_ATTEMPTS)),
    ]
    assert [(said, number) for said, number in expected if number not in said] == []
    assert f"after {TIMING.cancel_grace:g} seconds its task ends without it" in " ".join(LIFECYCLE.split())
    assert "after 0.05, 0.2, 1 and 4 seconds" in LIFECYCLE


def test_the_events_before_a_new_task_is_stored_are_those_of_the_code() -> None:
    (_, when), *_ = rows(LIFECYCLE, "How a run begins")
    assert f"has yielded {run.BATCH + first_step.MAX_EVENTS} events" in when
