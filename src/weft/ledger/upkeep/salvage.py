"""A new ledger from what could be proved of a damaged one.

Contents stand by themselves. An event has a place where the one before it has: what grows from something that is lost
cannot be in a ledger that verifies, and is written as JSON lines beside it, to be imported once the rest turns up. The
damaged files are only read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

import orjson
from msgspec import UNSET, Struct

from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.dag_events import RunStarted
from weft.kernel.errors import InvalidFact
from weft.kernel.events import Event, UnknownEvent, run_stream
from weft.kernel.facts import check_event, check_unknown
from weft.kernel.kinds import KINDS
from weft.kernel.ledger_events import ContentErased, SessionMoved
from weft.ledger.imports.sources import KEY as IMPORT_SECRET
from weft.ledger.imports.sources import adopt_secret
from weft.ledger.upkeep.facts_file import (
    BATCH_LINES,
    Fact,
    NewContent,
    NewEvent,
    event_line,
    take_batch,
    views_are_stale,
)
from weft.ledger.upkeep.recompute import rebuild, silent
from weft.store.atomic_files import open_private
from weft.store.port import Progress, Store, WriteTxn
from weft.store.records import DECLINED, FORMER, LACKS, TAKEN
from weft.store.replica_names import NOTE
from weft.store.salvaged_rows import ProvedContent, ProvedEvent

BATCH_BYTES = 4 * 1024 * 1024
_DECIDING = (b'"config":"', b'"session_model_switched"', b'"human_approved"', b'"human_rejected"')
"""Marks of the events that decide something where they were written or taken over."""


class Finds(Protocol):
    """Proved facts, and which of them have got a place."""

    damaged_contents: int
    unproved_events: int

    def contents(self) -> Iterable[ProvedContent]: ...
    def events(self) -> Iterable[ProvedEvent]: ...
    def local(self, key: str) -> str | None: ...
    def local_keys(self, prefix: str) -> list[str]: ...
    def place(self, event: bytes, stream: str) -> None: ...
    def is_placed(self, event: bytes) -> bool: ...
    def has_stream(self, name: str) -> bool: ...
    def unplaced(self) -> Iterable[bytes]: ...
    def missing(self) -> list[tuple[int, int]]: ...


class SalvageResult(Struct, frozen=True, kw_only=True):
    """What was saved and what was not."""

    events: int
    contents: int
    lost_events: tuple[tuple[int, int], ...]
    """Ranges of arrival numbers of which nothing could be proved."""
    unproved_events: int
    """Lines that were found, and that nothing vouches for; some may be damaged copies of events that were saved."""
    unplaced_events: int
    """Events that verify, and grow from something that is lost."""
    unplaced_file: str | None
    damaged_contents: int
    """Rows of contents whose bytes are not those that were written."""
    missing_contents: int
    """Contents that events name and that were not found, or were erased."""

    @property
    def is_whole(self) -> bool:
        """Damaged copies of facts count for nothing where a good one was found."""
        return not (self.lost_events or self.unplaced_events or self.missing_contents)


def salvage(finds: Finds, store: Store, unplaced: Path, progress: Progress | None = None) -> SalvageResult:
    """Everything that has a place, into an empty store; the rest of what verifies into the file `unplaced`."""
    placing = Placing(finds, store, progress or _silent)
    secret = finds.local(IMPORT_SECRET)
    if secret is not None and len(secret) == 64:
        adopt_secret(store, bytes.fromhex(secret))
    placing.take_contents()
    placing.take_events()
    store.catch_up()
    if views_are_stale(store):
        rebuild(store, silent)
    _keep_authority(finds, store)
    left = _write_unplaced(finds, unplaced)
    with store.read() as txn:
        (missing,) = txn.sql.one("SELECT count(*) FROM local WHERE key LIKE ?", (LACKS + "%",)) or (0,)
    return SalvageResult(
        events=placing.events,
        contents=placing.contents,
        lost_events=tuple(finds.missing()),
        unproved_events=finds.unproved_events,
        unplaced_events=left,
        unplaced_file=str(unplaced) if left else None,
        damaged_contents=finds.damaged_contents,
        missing_contents=int(missing),
    )


def _keep_authority(finds: Finds, store: Store) -> None:
    """The new ledger has a name of its own. Decisions that the damaged one wrote or took over are noted as taken over,
    and what it refused stays refused; where old pages say both of one event, it waits."""
    own = finds.local("replica")
    ends = {own: MAX_INTEGER} if own else {}
    for key in finds.local_keys(FORMER):
        ends[key.removeprefix(FORMER)] = int(finds.local(key) or 0)
    decided = {key: finds.local(key) or "0" for prefix in (TAKEN, DECLINED) for key in finds.local_keys(prefix)}
    for id in [key.removeprefix(TAKEN) for key in decided if key.startswith(TAKEN)]:
        if decided.pop(DECLINED + id, None) is not None:
            del decided[TAKEN + id]
    for proved in finds.events():
        if any(mark in proved.line for mark in _DECIDING):
            event = orjson.loads(proved.line)
            if proved.n <= ends.get(str(event.get("replica")), 0):
                decided[TAKEN + proved.id.hex()] = "0"

    def note(txn: WriteTxn) -> None:
        for key, value in decided.items():
            txn.sql.run(NOTE, (key, value))

    store.write(note)


def _silent(done: int, of: int) -> None:
    """No progress wanted."""


class Placing:
    """Facts on their way into the new ledger."""

    def __init__(self, finds: Finds, store: Store, progress: Progress) -> None:
        self._finds, self._store, self._progress = finds, store, progress
        self.events = self.contents = 0

    def take_contents(self) -> None:
        """Those that were erased stay erased, wherever their bytes turned up."""
        erased = {event.content for event in self._decoded() if isinstance(event, ContentErased)}
        wanted = (
            NewContent(content.ref, content.salt, content.data)
            for content in self._finds.contents()
            if content.ref.hex() not in erased
        )
        for batch in _batches(wanted):
            self._store.catch_up()
            self.contents += self._store.write(partial(take_batch, list(enumerate(batch)))).contents

    def _decoded(self) -> Iterator[Event | UnknownEvent]:
        for proved in self._finds.events():
            if b'"content_erased"' in proved.line:
                yield KINDS.decode(proved.line)

    def take_events(self) -> None:
        rest = iter(self._finds.events())
        while some := list(islice(rest, BATCH_LINES)):
            self._store.catch_up()
            self._place(self._placeable(some))
            self._progress(some[-1].n, some[-1].n)

    def _placeable(self, some: list[ProvedEvent]) -> list[NewEvent]:
        """Those that grow from what has a place, or gets one in the same batch."""
        events: dict[bytes, NewEvent] = {}
        streams: set[str] = set()
        for proved in some:
            event = _checked(proved)
            if event is not None and all(name in events or self._finds.is_placed(name) for name in _roots(event)):
                target = event.to if isinstance(event, SessionMoved) else None
                if target is None or run_stream(target) in streams or self._finds.has_stream(run_stream(target)):
                    events[proved.id] = NewEvent(proved.line, proved.id, event)
                    streams.add(event.stream)
        return list(events.values())

    def _place(self, events: list[NewEvent]) -> None:
        """All of them; where one has no place after all, each half by itself."""
        if not events:
            return
        try:
            self._store.write(partial(take_batch, list(enumerate(events))))
        except InvalidFact:
            if len(events) > 1:
                half = len(events) // 2
                self._place(events[:half])
                self._place(self._still_rooted(events[half:]))
            return
        self.events += len(events)
        for event in events:
            self._finds.place(event.id, event.event.stream)

    def _still_rooted(self, events: list[NewEvent]) -> list[NewEvent]:
        kept: dict[bytes, NewEvent] = {}
        for event in events:
            if all(name in kept or self._finds.is_placed(name) for name in _roots(event.event)):
                kept[event.id] = event
        return list(kept.values())


def _checked(proved: ProvedEvent) -> Event | UnknownEvent | None:
    """The event, if it is one that a ledger takes from strangers."""
    try:
        event = KINDS.decode(proved.line)
        if isinstance(event, Event):
            check_event(event)
        else:
            check_unknown(event, KINDS.kinds.get(event.kind))
    except (ValueError, InvalidFact):
        return None
    return event


def _roots(event: Event | UnknownEvent) -> Iterator[bytes]:
    """The events that it grows from."""
    if event.prev is not None:
        yield bytes.fromhex(event.prev)
    if isinstance(event, RunStarted) and event.fork is not UNSET:
        yield bytes.fromhex(event.fork.event)


def _batches(contents: Iterable[NewContent]) -> Iterator[list[Fact]]:
    batch: list[Fact] = []
    weight = 0
    for content in contents:
        batch.append(content)
        weight += len(content.data)
        if len(batch) >= BATCH_LINES or weight > BATCH_BYTES:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def _write_unplaced(finds: Finds, target: Path) -> int:
    count, file = 0, None
    try:
        for line in finds.unplaced():
            file = file or open(open_private(target), "wb")  # noqa: SIM115  # closed below
            file.write(event_line(line) + b"\n")
            count += 1
    finally:
        if file is not None:
            file.close()
    return count
