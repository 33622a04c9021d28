"""Any events in any order: the task is what they say, and what was handed out before stays as it was."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from apcore_a2a.errors import InvalidAgentResponseError, InvalidStateTransitionError
from apcore_a2a.protocol.lifecycle import TERMINAL, TRANSITIONS, copy, fold, join_texts
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Event,
    Message,
    Part,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    decode_task,
    encode,
)
from tests.protocol import strategies
from tests.protocol.test_lifecycle import new_task, say, texts_of
from tests.requirements import requirement

S = TaskState


@given(strategies.tasks(), strategies.events())
def test_a_snapshot_is_not_changed_by_what_comes_later(task: Task, event: Event) -> None:
    snapshot = copy(task)
    before = encode(snapshot)
    assert before == encode(task)
    try:
        fold(task, event)
    except (InvalidStateTransitionError, InvalidAgentResponseError):
        assert encode(task) == before
    assert encode(snapshot) == before


class Life(RuleBasedStateMachine):
    """A task beside a model of it that keeps plain values and takes no shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.task = new_task(S.SUBMITTED)
        self.frozen: list[tuple[Event, bytes]] = []  # what was published or copied, and how it looked then
        self.state = S.SUBMITTED
        self.said: list[Message] = []
        self.pending: Message | None = None
        self.metadata: dict[str, int] = {}
        self.artifacts: dict[str, tuple[list[str], dict[str, int]]] = {}

    def publish(self, event: Event, *, allowed: bool) -> bool:
        before = encode(self.task)
        try:
            applied = fold(self.task, event)
        except (InvalidStateTransitionError, InvalidAgentResponseError):
            assert encode(self.task) == before
            assert not allowed
            return False
        assert allowed
        self.frozen.append((applied, encode(applied)))
        return True

    few_keys = st.none() | st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9), min_size=1)
    few_texts = st.lists(st.sampled_from("pqr"), max_size=3)

    @rule(state=st.sampled_from(S) | st.just(S.WORKING), text=st.none() | st.sampled_from("mn"), metadata=few_keys)
    def report(self, state: TaskState, text: str | None, metadata: dict[str, int] | None) -> None:
        status = TaskStatus(state=state, message=None if text is None else say(text))
        if self.publish(StatusUpdate(status=status, metadata=metadata), allowed=state in TRANSITIONS[self.state]):
            self.said += [] if self.pending is None else [self.pending]
            self.state, self.pending = state, status.message
            self.metadata |= metadata or {}

    @rule(id=st.sampled_from("ab"), texts=few_texts, append=st.booleans(), metadata=few_keys)
    def produce(self, id: str, texts: list[str], append: bool, metadata: dict[str, int] | None) -> None:
        artifact = Artifact(artifact_id=id, parts=[Part(text=text) for text in texts], metadata=metadata)
        if self.publish(ArtifactUpdate(artifact=artifact, append=append), allowed=self.state not in TERMINAL):
            old_texts, old_metadata = self.artifacts.get(id, ([], {})) if append else ([], {})
            if old_texts and texts:  # the first text continues the last one
                texts = [old_texts[-1] + texts[0], *texts[1:]]
                old_texts = old_texts[:-1]
            self.artifacts[id] = ([*old_texts, *texts], old_metadata | (metadata or {}))

    @rule()
    def talk(self) -> None:
        if self.publish(say("hello"), allowed=self.state not in TERMINAL):
            self.said.append(say("hello"))

    @rule(state=st.sampled_from(S), id=st.sampled_from("tu"), ids=st.lists(st.sampled_from("abc"), unique=True))
    def replace(self, state: TaskState, id: str, ids: list[str]) -> None:
        artifacts = [Artifact(artifact_id=name, parts=[Part(text="r")]) for name in ids]
        event = Task(id=id, context_id="c", status=TaskStatus(state=state), artifacts=artifacts, metadata={"x": 0})
        if self.publish(event, allowed=id == "t" and state in TRANSITIONS[self.state]):
            self.state, self.said, self.pending, self.metadata = state, [], None, {"x": 0}
            self.artifacts = {name: (["r"], {}) for name in ids}

    @rule()
    def look(self) -> None:
        snapshot = copy(self.task)
        self.frozen.append((snapshot, encode(snapshot)))

    @invariant()
    def the_task_is_what_the_events_say(self) -> None:
        task = decode_task(encode(self.task))  # so that only `look` joins the texts of the task itself, at some steps
        task.pieces.update({index: [*places] for index, places in self.task.pieces.items()})
        join_texts(task)
        found = {one.artifact_id: (texts_of(one), one.metadata or {}) for one in task.artifacts}
        assert (task.status.state, task.history, task.status.message) == (self.state, self.said, self.pending)
        assert (found, task.metadata or {}) == (self.artifacts, self.metadata)

    @invariant()
    def what_was_published_stays_as_it_was(self) -> None:
        assert [encode(event) for event, _ in self.frozen] == [body for _, body in self.frozen]


@requirement("FR-TSK-001")
def test_any_events_in_any_order_leave_a_consistent_task() -> None:
    run_state_machine_as_test(Life, settings=settings(max_examples=60, stateful_step_count=40))
