"""Where a run stands and which phase may follow which; how a run starts, and why it is stopped.

A run is driven by one asyncio task, its *driver*, in which `Run.drive` calls the agent's generator. The agent and the
engine take turns in it: while the agent waits or computes, the driver is in the agent's hands; between two events it is
ours. Everything that is hard about a run is in the question what may happen to the driver from outside, and the answer
depends on whose hands it is in. So that is the state of a run, its `Phase`:

    OPENING ─► DECIDING ─► OPENING     an agent that may reply decides with its first event whether there is a task
       │           │
       └──► RUNNING ◄─► SAVING         the agent works; it stands at an event while the store catches up
               │           │
               └─► LEAVING ◄           nothing more is taken from it; it may tidy up
                      │
                   ENDING ─► OVER      the driver brings the task to rest, unless it is
     ABANDONED ─► OVER                 from any phase in the agent's hands: whoever stopped the run does that

A stop (cancel, deadline, shutdown) may be said in any phase. In the agent's hands (IN_AGENT) it cancels the driver,
which the agent feels as CancelledError where it waits. In ours it is only noted: cancelling would hit a write to the
store, and leave open whether it was made. The note is delivered when the agent waits next, or seen when its next event
comes. An agent that goes on all the same, for CANCEL_GRACE seconds, is ABANDONED: its task is ended without it.

What is not a phase, because it holds in several: why the run was stopped (`_stop`), the first save that failed
(`_save_failure`), and whether the store has the task (`LiveTask.is_stored`).

What the agent yields is checked and put into a batch where it is yielded, and folded into the task when the batch is
saved: when the agent waits, ends, or has yielded BATCH events in a row. Folding earlier would let a read in between see
a task that is newer than its version.
"""

from enum import Enum
from typing import Final

from msgspec import Struct


class Phase(Enum):
    """Where a run stands: whose hands the driver is in, and who may write the task."""

    OPENING = "how the run begins is on its way to the store; the agent is not called yet, or stands at its first event"
    DECIDING = "the agent has control, and its first event says whether there will be a task"
    RUNNING = "the agent has control; what it yielded is saved each time it waits"
    SAVING = "the agent stands at an event; the driver waits for the store, or for others to have their turn"
    LEAVING = "the agent has control to tidy up; nothing that it says is taken"
    ENDING = "the agent is done with; the driver brings its task to rest"
    ABANDONED = "the agent did not hear its cancellation; whoever stopped the run brings its task to rest"
    OVER = "nobody writes any more"


# By their own names, as h11 has its states: a run looks at them a dozen times for each message.
OPENING: Final = Phase.OPENING
DECIDING: Final = Phase.DECIDING
RUNNING: Final = Phase.RUNNING
SAVING: Final = Phase.SAVING
LEAVING: Final = Phase.LEAVING
ENDING: Final = Phase.ENDING
ABANDONED: Final = Phase.ABANDONED
OVER: Final = Phase.OVER

# Which phase may follow which. The tests check every assignment of `Run.phase` against this table.
MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    OPENING: frozenset({DECIDING, RUNNING, LEAVING, ENDING, OVER}),
    DECIDING: frozenset({OPENING, LEAVING, ABANDONED}),
    RUNNING: frozenset({SAVING, LEAVING, ABANDONED}),
    SAVING: frozenset({RUNNING, LEAVING}),
    LEAVING: frozenset({ENDING, OVER, ABANDONED}),
    ENDING: frozenset({OVER}),
    ABANDONED: frozenset({OVER}),
    OVER: frozenset(),
}
IN_AGENT: Final = frozenset({DECIDING, RUNNING, LEAVING})
"""The agent has the driver: only now may it be cancelled, or left behind."""


class Stop(Enum):
    """Why a run is stopped from outside, in the words its task ends with."""

    CANCEL = "Canceled by client"
    DISCONNECT = "Canceled: the client disconnected"
    TIMEOUT = "Execution timed out"
    SHUTDOWN = "Server shutdown"
    LOST = "Worker lost: the process running this task lost its lease"


# Those of a stop that make the task a failed one, each with the type that its metadata names; the others cancel it.
# The requirements have one type for what took too long (FR-ERR-005), whoever looked at the clock.
FAILING_STOPS: Final = {
    Stop.TIMEOUT: "ModuleTimeoutError",
    Stop.SHUTDOWN: "ServerShutdownError",
    Stop.LOST: "WorkerLostError",
}
NOT_OF_THE_TASK: Final = frozenset({Stop.SHUTDOWN, Stop.LOST})
"""What stops a run because of where it runs: another replica may run it again, if there is one."""


# ---- how a run starts ---------------------------------------------------------------------------------------------


class NewTask(Struct, frozen=True, gc=False):
    """With a new task, which is worked on at once."""

    key: str = ""


class AgentDecides(Struct, frozen=True, gc=False):
    """With the agent: its first event makes a task, or is a reply instead of one."""


class NextMessage(Struct, frozen=True, gc=False):
    """With what the user says to a task that waits."""


class Rerun(Struct, frozen=True, gc=False):
    """From the start, after the process that ran it died."""


class FromQueue(Struct, frozen=True, gc=False):
    """With a task that waited for a replica with room; nobody has begun with it."""


Start = NewTask | AgentDecides | NextMessage | Rerun | FromQueue
