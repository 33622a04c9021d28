"""The tasks of one owner in memory, so that each is found by its context and a listing by what it shows.

Rule: what a task costs here does not depend on how many there are; a page of the newest costs about its own size.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, takewhile
from math import inf

from msgspec import Struct

from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import Task, TaskState
from apcore_a2a.storage.cursor import Place, cut_page, parse_cursor
from apcore_a2a.storage.task_store import Query


class Entry(Struct, gc=False, eq=False):
    """One task: the engine's live object while it runs, its encoded bytes when it is at rest."""

    id: str
    owner: str
    context_id: str
    key: str
    created: int
    state: TaskState = TaskState.UNSPECIFIED
    changed_at: str = ""
    version: int = 0
    epoch: int = 0
    task: Task | None = None
    body: bytes = b""
    memo: bytes = b""
    run: bytes = b""
    expires: float = inf


class Shelf(Struct):
    """Where the tasks of one owner are. Nearly every context has one task, so only one with more costs a dictionary."""

    unfinished: dict[str, Entry] = {}
    ended: dict[str, Entry] = {}
    """In the order of their ends, which is that of their status times while `in_order`: agents may make times up."""
    contexts: dict[str, Entry | dict[str, Entry]] = {}
    in_order: bool = True

    def add(self, entry: Entry) -> None:
        self.unfinished[entry.id] = entry
        same = self.contexts.setdefault(entry.context_id, entry)
        if isinstance(same, dict):
            same[entry.id] = entry
        elif same is not entry:
            self.contexts[entry.context_id] = {same.id: same, entry.id: entry}

    def end(self, entry: Entry) -> None:
        ended = self.ended
        if self.in_order and ended:
            self.in_order = ended[next(reversed(ended))].changed_at <= entry.changed_at
        del self.unfinished[entry.id]
        ended[entry.id] = entry

    def drop(self, entry: Entry) -> None:
        del (self.ended if entry.state in TERMINAL else self.unfinished)[entry.id]
        same = self.contexts[entry.context_id]
        if isinstance(same, dict) and len(same) > 1:
            del same[entry.id]
        else:
            del self.contexts[entry.context_id]

    def page(self, query: Query) -> tuple[list[Entry], str, int]:
        """What a page shows, the cursor of the next one, and how many tasks match in all."""
        since, state = query.changed_since, query.state
        if query.context_id or since or state is not None:
            some = self._of_context(query.context_id) if query.context_id else self._all(since)
            found = [entry for entry in some if entry.changed_at >= since and state in (None, entry.state)]
            return *_cut(found, query), len(found)
        newest = self._newest(query) if self.in_order and not query.by_creation else self._all()
        return *_cut(newest, query), len(self.unfinished) + len(self.ended)

    def _of_context(self, context_id: str) -> Iterable[Entry]:
        same = self.contexts.get(context_id, {})
        return same.values() if isinstance(same, dict) else (same,)

    def _all(self, since: str = "") -> Iterable[Entry]:
        """All tasks, save some that have not changed since then."""
        ended: Iterable[Entry] = reversed(self.ended.values())
        if since and self.in_order:
            ended = takewhile(lambda entry: entry.changed_at >= since, ended)
        return chain(self.unfinished.values(), ended)

    def _newest(self, query: Query) -> Iterator[Entry]:
        """All tasks that can be on a page, and few others."""
        start, missing, last = parse_cursor(query), query.limit + 1, ""
        yield from self.unfinished.values()
        for entry in reversed(self.ended.values()):
            if missing <= 0 and entry.changed_at < last:
                return
            if start is None or _by_status(entry) < start.place:
                yield entry
                missing, last = missing - 1, entry.changed_at


def _cut(entries: Iterable[Entry], query: Query) -> tuple[list[Entry], str]:
    return cut_page(entries, _by_creation if query.by_creation else _by_status, query)


def _by_creation(entry: Entry) -> Place:
    return "", entry.created


def _by_status(entry: Entry) -> Place:
    return entry.changed_at, entry.created
