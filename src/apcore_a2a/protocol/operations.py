"""The eleven operations of A2A 1.0, by name, with what they take and whether they stream.

Rule: a dialect gives each operation its method name; an operation absent from a dialect's table does not exist there.
"""

from enum import Enum
from typing import NamedTuple

from apcore_a2a.errors import A2AError, UnsupportedOperationError
from apcore_a2a.protocol import model


class Shape(NamedTuple):
    """What an operation takes, and whether it answers with a stream of events."""

    request: type[model.Value]
    streams: bool = False


class Rules(NamedTuple):
    """Where the versions differ in meaning, not only in shape; the engine and the bindings ask, the dialect answers.

    The defaults are the rules of 1.0, so that each field that a dialect sets is a difference from it.
    """

    version: str = "1.0"
    """Its name: a webhook is sent what it was set in."""
    resume_by_context: bool = False
    """A message without taskId continues the only task of its context that waits for input."""
    stream_keeps_task: bool = False
    """A task whose last stream is gone may be canceled (`cancel_on_disconnect`)."""
    subscribe_when_ended: bool = False
    """Subscribing to a task that has ended answers with its last status instead of an error."""
    replay: bool = False
    """A stream may begin with missed events instead of a snapshot (`Last-Event-ID`)."""
    list_by_creation: bool = False
    """A listing shows the newest task first, not the one whose status changed last."""
    page_is_array: bool = False
    """Over REST, a page of a listing is a bare array of tasks; where the next one is stands in a header."""
    without_extended_card: type[A2AError] = UnsupportedOperationError
    """What GetExtendedAgentCard is refused with by an agent that has none."""
    unnamed_push: str = ""
    """The id of a webhook that is set without one, so that setting it again replaces it; empty: a new id each time."""
    deleted_push_must_exist: bool = False
    """Deleting a webhook that is not there is an error."""
    stream_errors_as_events: bool = False
    """Over JSON-RPC, the error of a request that wanted a stream is the only event of one, if the client takes streams:
    clients of 0.3 look for it there and nowhere else."""


class Operation(Enum):
    """By their names in 1.0, which are also its JSON-RPC methods."""

    SEND = "SendMessage"
    STREAM = "SendStreamingMessage"
    GET = "GetTask"
    LIST = "ListTasks"
    CANCEL = "CancelTask"
    SUBSCRIBE = "SubscribeToTask"
    CREATE_PUSH = "CreateTaskPushNotificationConfig"
    GET_PUSH = "GetTaskPushNotificationConfig"
    LIST_PUSH = "ListTaskPushNotificationConfigs"
    DELETE_PUSH = "DeleteTaskPushNotificationConfig"
    EXTENDED_CARD = "GetExtendedAgentCard"

    # Each member is there once, so identity will do; Enum's own hash runs in Python, at each look into a table.
    __hash__ = object.__hash__


SHAPES = {
    Operation.SEND: Shape(model.SendMessage),
    Operation.STREAM: Shape(model.SendMessage, streams=True),
    Operation.GET: Shape(model.GetTask),
    Operation.LIST: Shape(model.ListTasks),
    Operation.CANCEL: Shape(model.CancelTask),
    Operation.SUBSCRIBE: Shape(model.SubscribeToTask, streams=True),
    Operation.CREATE_PUSH: Shape(model.PushConfig),
    Operation.GET_PUSH: Shape(model.PushConfigRef),
    Operation.LIST_PUSH: Shape(model.ListPushConfigs),
    Operation.DELETE_PUSH: Shape(model.PushConfigRef),
    Operation.EXTENDED_CARD: Shape(model.GetExtendedCard),
}
