"""The life of a task: the table of transitions, and what one event changes.

Rule: `fold` refuses what may not follow and then changes nothing; it costs the size of the event, which is shown by
counting what it touches in the task, never by the clock.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, SupportsIndex, get_args

import pytest

from apcore_a2a.agent import AgentEvent
from apcore_a2a.errors import InvalidAgentResponseError, InvalidStateTransitionError, wire
from apcore_a2a.protocol.lifecycle import (
    AT_REST,
    INTERRUPTED,
    MAX_TRANSITIONS,
    STATE_TRANSITIONS,
    TERMINAL,
    TRANSITIONS,
    adds_nothing,
    copy,
    document_of,
    fold,
    join_texts,
    skips_working,
)
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Event,
    Message,
    Part,
    Role,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
)
from tests.requirements import requirement

S = TaskState
SIX = {S.SUBMITTED, S.WORKING, S.COMPLETED, S.FAILED, S.CANCELED, S.INPUT_REQUIRED}


def new_task(state: TaskState = S.WORKING, **fields: Any) -> Task:  # Any: whatever fields a task has
    return Task(id="t", context_id="c", status=TaskStatus(state=state), **fields)


def say(text: str) -> Message:
    return Message(message_id=text, role=Role.AGENT, parts=(Part(text=text),))


def chunk(text: str, *, id: str = "a", append: bool = True, **fields: Any) -> ArtifactUpdate:
    return ArtifactUpdate(artifact=Artifact(artifact_id=id, parts=[Part(text=text)], **fields), append=append)


def texts_of(artifact: Artifact) -> list[object]:
    return [part.text for part in artifact.parts]


# ---- the table ---------------------------------------------------------------------------------------------------


@requirement("FR-TSK-001")
def test_among_the_six_states_of_the_requirements_exactly_their_transitions_are_allowed() -> None:
    allowed = {old: (TRANSITIONS[old] & SIX) - {old} for old in SIX}
    assert allowed == {
        S.SUBMITTED: {S.WORKING, S.CANCELED, S.FAILED},
        S.WORKING: {S.COMPLETED, S.FAILED, S.CANCELED, S.INPUT_REQUIRED},
        S.INPUT_REQUIRED: {S.WORKING, S.CANCELED, S.FAILED},
        S.COMPLETED: set(),
        S.FAILED: set(),
        S.CANCELED: set(),
    }


def test_the_states_that_1_0_adds_are_reached_and_left_like_their_neighbours() -> None:
    assert TRANSITIONS[S.AUTH_REQUIRED] == TRANSITIONS[S.INPUT_REQUIRED]
    assert {old for old in S if S.AUTH_REQUIRED in TRANSITIONS[old]} == {S.WORKING}
    assert {old for old in S if S.REJECTED in TRANSITIONS[old]} == {S.SUBMITTED, S.WORKING}


def test_only_a_state_that_is_not_at_rest_may_be_reported_again() -> None:
    assert {state for state in S if state in TRANSITIONS[state]} == {S.SUBMITTED, S.WORKING}


def test_the_table_has_a_row_for_every_state_and_nothing_leads_to_none() -> None:
    assert set(TRANSITIONS) == set(S)
    assert [old for old in S if S.UNSPECIFIED in TRANSITIONS[old]] == []


@requirement("FR-TSK-001")
def test_a_terminal_state_has_no_way_out_and_every_other_one_has() -> None:
    assert {state for state in S if not TRANSITIONS[state]} == TERMINAL | {S.UNSPECIFIED}
    assert AT_REST == TERMINAL | INTERRUPTED
    assert not TERMINAL & INTERRUPTED


@requirement("FR-TSK-001")
@pytest.mark.parametrize(("old", "new"), list(product(S, S)))
def test_a_status_is_taken_if_the_table_says_so_and_otherwise_changes_nothing(old: TaskState, new: TaskState) -> None:
    task, event = new_task(old), StatusUpdate(status=TaskStatus(state=new), metadata={"k": 1})
    if new in TRANSITIONS[old]:
        assert fold(task, event) is event
        assert (task.status, task.metadata) == (event.status, {"k": 1})
        return
    with pytest.raises(InvalidStateTransitionError) as refused:
        fold(task, event)
    assert (refused.value.old, refused.value.new, wire(refused.value).code) == (old, new, -32603)
    assert task == new_task(old)


@pytest.mark.parametrize(("old", "new"), list(product(S, S)))
def test_working_is_what_was_left_out_if_it_is_the_only_step_between(old: TaskState, new: TaskState) -> None:
    one_step, two_steps = new in TRANSITIONS[old], {s for s in TRANSITIONS[old] if new in TRANSITIONS[s]}
    assert skips_working(old, new) == (not one_step and S.WORKING in two_steps)


def test_an_agent_may_go_from_any_open_state_to_any_state_at_rest() -> None:
    for old, new in product(set(S) - TERMINAL - {S.UNSPECIFIED}, AT_REST):
        assert new in TRANSITIONS[old] or skips_working(old, new), (old, new)


# ---- one event ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(TERMINAL))
@pytest.mark.parametrize(
    "event", [say("late"), chunk("late"), new_task(S.WORKING)], ids=lambda event: type(event).__name__
)
def test_nothing_follows_a_terminal_state(state: TaskState, event: Event) -> None:
    task = new_task(state)
    with pytest.raises(InvalidStateTransitionError):
        fold(task, event)
    assert task == new_task(state)


def test_a_status_message_moves_to_the_history_when_the_next_status_comes() -> None:
    task = new_task()
    for text in ("one", "two"):
        fold(task, StatusUpdate(status=TaskStatus(state=S.WORKING, message=say(text))))
    assert (task.history, task.status.message) == ([say("one")], say("two"))


def test_a_first_chunk_does_not_append_whatever_it_says() -> None:
    task = new_task()
    applied = [fold(task, chunk(text)) for text in ("a", "b", "c")]
    assert [event.append for event in applied if isinstance(event, ArtifactUpdate)] == [False, True, True]
    assert [texts_of(artifact) for artifact in copy(task).artifacts] == [["abc"]]


def test_a_chunk_that_does_not_append_starts_the_artifact_over_in_its_place() -> None:
    task = new_task()
    for event in (chunk("a"), chunk("b", id="other"), chunk("c", append=False), chunk("d")):
        fold(task, event)
    assert [texts_of(artifact) for artifact in copy(task).artifacts] == [["cd"], ["b"]]


def test_metadata_is_merged_key_by_key() -> None:
    task = new_task(metadata={"a": 1})
    fold(task, StatusUpdate(status=TaskStatus(state=S.WORKING), metadata={"b": 2}))
    for metadata in (None, {"x": 1}, None, {"x": 2, "y": 3}):
        fold(task, chunk("a", metadata=metadata))
    assert task.metadata == {"a": 1, "b": 2}
    assert task.artifacts[0].metadata == {"x": 2, "y": 3}


@pytest.mark.parametrize(("id", "context_id"), [("u", "c"), ("t", "d")])
def test_an_agent_publishes_no_task_but_its_own(id: str, context_id: str) -> None:
    task = new_task()
    with pytest.raises(InvalidAgentResponseError):
        fold(task, Task(id=id, context_id=context_id, status=TaskStatus(state=S.COMPLETED)))
    assert task == new_task()


def test_chunks_go_on_where_a_published_task_left_off() -> None:
    task = new_task(artifacts=[Artifact(artifact_id="gone", parts=[])])
    fold(task, chunk("lost", id="gone"))
    fold(task, new_task(artifacts=[Artifact(artifact_id="a", parts=[Part(text="1")])]))
    fold(task, chunk("2"))
    assert [texts_of(artifact) for artifact in copy(task).artifacts] == [["12"]]


def test_what_is_no_event_is_a_bug_of_ours() -> None:
    task = new_task()
    with pytest.raises(AssertionError):
        fold(task, "completed")  # type: ignore[arg-type]  # that is the point
    assert task == new_task()


# ---- texts in pieces ----------------------------------------------------------------------------------------------


def test_a_text_that_arrives_in_pieces_is_one_part_of_the_stored_task() -> None:
    task = new_task()
    for event in (chunk("Hel"), chunk("lo"), chunk("1", id="other"), chunk(" world"), chunk("2", id="other")):
        fold(task, event)
    snapshot = copy(task)
    fold(task, chunk("!"))
    assert [texts_of(artifact) for artifact in snapshot.artifacts] == [["Hello world"], ["12"]]
    assert [texts_of(artifact) for artifact in join_texts(task).artifacts] == [["Hello world!"], ["12"]]


def test_only_a_text_that_an_event_appends_continues_the_text_before_it() -> None:
    task = new_task()
    for parts in (["one", "two"], [" more", "three"], []):
        fold(task, ArtifactUpdate(artifact=Artifact(artifact_id="a", parts=[Part(text=t) for t in parts]), append=True))
    assert texts_of(join_texts(task).artifacts[0]) == ["one", "two more", "three"]


FILE = Part(text="b", filename="b.txt")
APART = [Part(data=1), Part(raw=b"b"), FILE, Part(text="b", media_type="text/html"), Part(text="b", metadata={"m": 1})]


@pytest.mark.parametrize("part", APART)
def test_parts_that_differ_in_more_than_their_text_stay_apart(part: Part) -> None:
    task = new_task()
    for one in (Part(text="a"), part, Part(text="c"), Part(text="d")):
        fold(task, ArtifactUpdate(artifact=Artifact(artifact_id="a", parts=[one]), append=True))
    assert join_texts(task).artifacts[0].parts == [Part(text="a"), part, Part(text="cd")]


def test_the_document_of_a_task_has_joined_texts_and_the_events_keep_their_pieces() -> None:
    task = new_task()
    first = chunk("a", append=False)
    for event in (first, chunk("b")):
        fold(task, event)
    assert [texts_of(artifact) for artifact in document_of(task).task().artifacts] == [["ab"]]
    assert texts_of(first.artifact) == ["a"]


def test_pieces_of_a_replaced_artifact_are_forgotten() -> None:
    task = new_task()
    for event in (chunk("a"), chunk("b"), chunk("c", append=False), chunk("d")):
        fold(task, event)
    whole = new_task(artifacts=[Artifact(artifact_id="a", parts=[Part(text="1"), Part(text="2")])])
    assert texts_of(copy(task).artifacts[0]) == ["cd"]
    fold(task, chunk("e"))
    fold(task, whole)
    assert texts_of(copy(task).artifacts[0]) == ["1", "2"]


@pytest.mark.parametrize(
    ("update", "known", "dropped"),
    [
        (chunk("", append=True), True, True),
        (chunk("", append=False), False, True),
        (chunk("", append=False), True, False),  # the artifact is empty now
        (chunk("", append=True, metadata={"m": 1}), True, False),
        (chunk("x", append=True), True, False),
        (ArtifactUpdate(artifact=Artifact(artifact_id="a", parts=[], name="report")), False, False),
        (ArtifactUpdate(artifact=Artifact(artifact_id="a", parts=[]), append=True, last_chunk=True), True, True),
        (ArtifactUpdate(artifact=Artifact(artifact_id="a", parts=[Part(data="")]), append=True), True, False),
        (ArtifactUpdate(artifact=Artifact(artifact_id="a", parts=[FILE]), append=True), True, False),
    ],
)
def test_an_event_adds_nothing_if_it_has_only_empty_text(update: ArtifactUpdate, known: bool, dropped: bool) -> None:
    artifacts = [Artifact(artifact_id="a", parts=[Part(text="before")])] if known else []
    assert adds_nothing(update, new_task(artifacts=artifacts)) is dropped


# ---- cost --------------------------------------------------------------------------------------------------------


class Touched:
    def __init__(self) -> None:
        self.count = 0


class CountedList(list[Any]):  # Any: it stands for each list of a task
    """Counts the elements that are read or copied."""

    def __init__(self, items: list[Any], touched: Touched) -> None:
        super().__init__(items)
        self.touched = touched

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.touched.count += 1
            yield item

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        self.touched.count += len(range(*index.indices(len(self)))) if isinstance(index, slice) else 1
        return super().__getitem__(index)


class CountedDict(dict[str, Any]):
    """Counts the keys that are listed or copied."""

    touched: Touched

    def __iter__(self) -> Iterator[str]:
        for key in super().__iter__():
            self.touched.count += 1
            yield key

    def keys(self) -> Any:
        return list(self)


def counted_task(size: int, touched: Touched) -> Task:
    def metadata() -> CountedDict:
        counted = CountedDict((f"k{index}", index) for index in range(size))
        counted.touched = touched
        return counted

    def parts() -> CountedList:
        return CountedList([Part(text="x")] * size, touched)

    artifacts = [Artifact(artifact_id=f"a{index}", parts=[]) for index in range(size)]
    artifacts += [Artifact(artifact_id="a", parts=parts(), metadata=metadata())]
    task = new_task(
        artifacts=CountedList(artifacts, touched), history=CountedList([say("m")] * size, touched), metadata=metadata()
    )
    assert len(task.positions) == size + 1  # found once, when a run begins
    return task


EVENTS_OF_ONE_SIZE = [
    StatusUpdate(status=TaskStatus(state=S.WORKING, message=say("m")), metadata={"new": 1}),
    say("m"),
    chunk("x", metadata={"new": 1}),
    chunk("x", append=False),
    chunk("x", id="a0"),
    chunk("x", id="new"),
]


@pytest.mark.parametrize("event", EVENTS_OF_ONE_SIZE)
def test_folding_an_event_touches_as_much_of_a_long_task_as_of_a_short_one(event: Event) -> None:
    touched = {}
    for size in (1, 1_000):
        counter = Touched()
        task = counted_task(size, counter)
        counter.count = 0
        fold(task, event)
        touched[size] = counter.count
    assert touched[1_000] == touched[1] <= 3


@pytest.mark.parametrize("size", [0, 1, 2, 9])
def test_a_chunk_finds_its_artifact_among_few_and_among_many(size: int) -> None:
    ids = [f"a{index}" for index in range(size)]
    task = new_task(artifacts=[Artifact(artifact_id=id, parts=[]) for id in ids])
    for id in [*ids, *ids, "new", *ids, "newer", "new"]:
        fold(task, chunk(id, id=id, append=True))
    assert [artifact.artifact_id for artifact in task.artifacts] == [*ids, "new", "newer"]
    assert all({part.text for part in artifact.parts} == {artifact.artifact_id} for artifact in task.artifacts)
    assert [len(artifact.parts) for artifact in task.artifacts] == [3] * size + [2, 1]


def test_the_counters_do_count() -> None:
    counter = Touched()
    copy(counted_task(100, counter))
    assert counter.count >= 400


def recorded(task: Task) -> list[str]:
    assert task.metadata is not None
    return [passed["state"] for passed in task.metadata[STATE_TRANSITIONS]]


def moves(*states: TaskState) -> Task:
    """A task that records, after these states."""
    task = Task(id="t", status=TaskStatus(state=S.SUBMITTED, timestamp="0"), metadata={STATE_TRANSITIONS: []})
    for number, state in enumerate(states, 1):
        fold(task, StatusUpdate(status=TaskStatus(state=state, timestamp=str(number)), task_id="t"))
    return task


def test_a_task_that_records_its_states_says_which_it_has_left_and_when_each_was_last_said() -> None:
    task = moves(S.WORKING, S.WORKING, S.INPUT_REQUIRED, S.WORKING, S.COMPLETED)
    assert recorded(task) == ["submitted", "working", "input-required", "working"]
    assert task.metadata is not None
    assert [passed["timestamp"] for passed in task.metadata[STATE_TRANSITIONS]] == ["0", "2", "3", "4"]


def test_a_snapshot_does_not_see_the_states_that_are_recorded_later() -> None:
    task = moves(S.WORKING)
    snapshot = copy(task)
    fold(task, StatusUpdate(status=TaskStatus(state=S.COMPLETED), task_id="t"))
    assert (recorded(snapshot), recorded(task)) == (["submitted"], ["submitted", "working"])


def test_a_whole_task_of_an_agents_takes_the_place_of_all_but_the_recorded_states() -> None:
    task = moves(S.WORKING)
    made_up: Any = {STATE_TRANSITIONS: ["made up"], "mine": 1}
    fold(task, Task(id="t", status=TaskStatus(state=S.COMPLETED), metadata=made_up))
    assert recorded(task) == ["submitted", "working"]
    assert task.metadata is not None and task.metadata["mine"] == 1
    bare = moves(S.WORKING)
    fold(bare, Task(id="t", status=TaskStatus(state=S.COMPLETED)))
    assert recorded(bare) == ["submitted", "working"]


def test_the_oldest_recorded_states_go_first() -> None:
    there_and_back = [S.WORKING, *[S.INPUT_REQUIRED, S.WORKING] * MAX_TRANSITIONS]
    states = recorded(moves(*there_and_back))
    assert (len(states), states[0], states[-1]) == (MAX_TRANSITIONS, "working", "input-required")


@pytest.mark.parametrize("metadata", [None, {}, {"mine": 1}, {STATE_TRANSITIONS: "no list"}])
def test_a_task_that_does_not_record_is_left_alone(metadata: Any) -> None:
    task = Task(id="t", status=TaskStatus(state=S.SUBMITTED), metadata=metadata)
    fold(task, StatusUpdate(status=TaskStatus(state=S.WORKING), task_id="t"))
    assert task.metadata == metadata


def test_no_type_of_event_can_be_subclassed() -> None:
    # The engine compares types with `is`, which a subclass would pass unnoticed.
    assert [kind.__name__ for kind in get_args(AgentEvent) if not getattr(kind, "__final__", False)] == []
