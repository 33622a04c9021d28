"""The parts that both SQL stores share: codes of states, tasks rebuilt from events, options of a URL.

Invariant: the code of a state never changes, because it is stored in the tables.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import join_texts
from apcore_a2a.protocol.model import Document, PushConfig, Task, TaskState, decode_task, encode

DEFAULT_TTL: Final = 7 * 24 * 3600  # seconds for which ended tasks are stored
STATES: Final = tuple(TaskState)  # a state is stored as its number in the specification's own enum
CODES: Final = {state: code for code, state in enumerate(STATES)}

decode_push_config: Final = msgspec.json.Decoder(PushConfig).decode

ReadOption = Callable[[str], Any]
"""Parses the text of an option. Any: a number or a text, as the constructor of the store expects it."""


def rebuild_document(body: bytes | None, events: Sequence[bytes]) -> Document:
    """Return the task made of an older document, or of its first event if there is none, and the events since."""
    if body is None:
        first, _ = v1.decode_record(events[0])
        assert isinstance(first, Task)  # the first event of each task is the task itself
        task = first
        events = events[1:]
    else:
        task = decode_task(body)
    v1.replay(task, events)
    return Document(encode(join_texts(task)), task)


def read_switch(text: str) -> bool:
    """Return whether an option is on.

    Raises:
        ValueError: the text is neither "on" nor "off".
    """
    if text not in ("on", "off"):
        raise ValueError(text)
    return text == "on"


def read_options(given: Iterable[tuple[str, str]], known: Mapping[str, ReadOption]) -> dict[str, Any]:
    """Return the known options of a store's URL as arguments of its constructor. Unknown options are ignored.

    Raises:
        ValueError: the value of an option cannot be parsed.
    """
    options: dict[str, Any] = {}  # Any: as the constructor expects them
    for name, text in given:
        if name not in known:
            continue
        try:
            options[name] = known[name](text)
        except ValueError:
            kind = "on or off" if known[name] is read_switch else "a number"
            raise ValueError(f"{name} in a store URL must be {kind}, not {text!r}") from None
    return options
