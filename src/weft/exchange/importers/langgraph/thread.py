"""One thread: its checkpoints read in order, each as a list of messages."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field

from weft.exchange.importers.langgraph.rows import Place, Row, Rows, Write, about
from weft.exchange.importers.langgraph.states import EMPTY, State, States, replayed
from weft.exchange.importers.langgraph.values import BROKEN, Checkpoint, Stored, Tagged, Unreadable, decoded, elements
from weft.exchange.importers.langgraph.values import plain as shown
from weft.exchange.importers.langgraph.verbatim import Verbatim
from weft.exchange.importers.port import Report
from weft.exchange.importers.values import mapping, millis, text

USUAL = ("messages", "__root__")
TOLD = frozenset({"__error__", "__interrupt__"})


class Outcome(Struct):
    """How a run that no other checkpoint follows ended, as its tasks wrote it down."""

    error: str | None = None
    interrupt: Any = None


class Thread(Struct):
    """What a thread's rows say."""

    place: Place
    root: str = ""
    """The id of its first checkpoint: no other database has it."""
    created: int | None = None
    states: States = field(default_factory=States)
    tips: dict[str, State] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By the message that such a run had come to."""
    last: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    raw: bytes = b""


class Reading:
    """Reads one thread."""

    def __init__(self, rows: Rows, place: Place, report: Report) -> None:
        self._rows, self._place, self._report = rows, place, report
        self._thread = Thread(place)
        self._verbatim = Verbatim()
        self._channel: str | None = None
        self._replayed = False

    def read(self) -> Thread:
        writes: dict[str, list[Write]] = {}
        for write in self._rows.writes(self._place):
            writes.setdefault(write.checkpoint, []).append(write)
        parents = self._rows.parents(self._place)
        for id in _ordered(parents):
            self._checkpoint(self._rows.checkpoint(self._place, id), writes)
        followed = set(parents.values())
        for id, written in writes.items():
            self._outcome(id, written, is_leaf=id not in followed)
        self._keep_writes(writes)
        self._keep_blobs()
        self._thread.raw = self._verbatim.finish()
        return self._thread

    def _checkpoint(self, row: Row, writes: dict[str, list[Write]]) -> None:
        self._report.found += 1
        metadata = about(row)
        columns = {
            "checkpoint_id": row.id, "parent_checkpoint_id": row.parent, "type": row.kind,
            "metadata": row.metadata.decode("utf-8", "replace"),
        }  # fmt: skip
        try:
            found = self._rows.read(row)
        except Unreadable as error:
            self._report.kept[f"checkpoint.{row.kind}"] += 1
            self._report.problem(None, f"{self._place.thread}: {error}"[:300])
            self._inherit(row)
            self._verbatim.row("checkpoint", columns, row.data)
            return
        except BROKEN as error:
            self._report.damaged += 1
            self._report.problem(None, f"the checkpoint {row.id} is not readable: {error}"[:300])
            self._inherit(row)
            self._verbatim.row("checkpoint", columns, row.data)
            return
        at = millis(found.at) if isinstance(found.at, str) else None
        thread = self._thread
        thread.root = thread.root or row.id
        thread.created = thread.created or at
        thread.last = row.id
        thread.metadata = thread.metadata or metadata
        source = text(metadata.get("source")) or "none"
        self._report.mapped[f"checkpoint.{source}"] += 1
        listed = self._listed(row, found, writes)
        before = self._before(row)
        thread.tips[row.id] = before if listed is None else thread.states.advance(before, listed, at, row.id)
        own = listed if listed is not None and not self._replayed and not self._rows.is_apart else None
        self._verbatim.row("checkpoint", columns, row.data, own)

    def _before(self, row: Row) -> State:
        return EMPTY if row.parent is None else self._thread.tips.get(row.parent, EMPTY)

    def _inherit(self, row: Row) -> None:
        self._thread.tips[row.id] = self._before(row)

    def _listed(self, row: Row, found: Checkpoint, writes: dict[str, list[Write]]) -> list[Stored] | None:
        """The messages at a checkpoint; None where nothing tells of any."""
        self._replayed = False
        listed = self._value(found)
        if listed is None and self._channel is not None and self._channel in found.versions and row.parent:
            written = [each for each in writes.get(row.parent, ()) if each.channel == self._channel]
            if written:
                listed = self._replay(self._thread.states.stored(self._before(row)), written)
                self._replayed = True
        if listed is None and self._channel is None:
            listed = self._first_writes(row, found, writes)
        return listed

    def _first_writes(self, row: Row, found: Checkpoint, writes: dict[str, list[Write]]) -> list[Stored] | None:
        """A channel that keeps only what is added may tell of its first messages by writes alone."""
        for name in sorted(found.versions, key=lambda name: (name not in USUAL, name)):
            written = [each for each in writes.get(row.parent or "", ()) if each.channel == name]
            if name not in found.channels and written:
                listed = self._replay([], written)
                if self._thread.states.is_list_of_messages(listed):
                    self._channel, self._replayed = name, True
                    return listed
        return None

    def _value(self, found: Checkpoint) -> list[Stored] | None:
        names = [self._channel] if self._channel is not None else self._candidates(found)
        for name in names:
            stored = found.channels.get(name) or self._rows.blob(self._place, name, found.versions.get(name))
            try:
                listed = None if stored is None else elements(stored)
            except BROKEN:
                continue
            if listed is not None and (self._channel == name or self._thread.states.is_list_of_messages(listed)):
                self._channel = name
                return listed
        return None

    def _candidates(self, found: Checkpoint) -> list[str]:
        names = {*found.channels, *(found.versions if self._rows.is_apart else ())}
        return sorted(names, key=lambda name: (USUAL.index(name) if name in USUAL else len(USUAL), name))

    def _replay(self, before: list[Stored], written: list[Write]) -> list[Stored]:
        """What was written since, added as LangGraph itself would."""
        base, more = before, list[Stored]()
        for write in written:
            try:
                fresh = self._written(write)
            except BROKEN:
                continue
            if fresh is None:
                base, more = self._overwritten(write), []
            else:
                more += fresh
        return replayed(base, more, self._thread.states)

    def _written(self, write: Write) -> list[Stored] | None:
        """One message or several; None where the whole list was replaced."""
        stored = Stored(write.kind, write.data)
        listed = elements(stored)
        if listed is not None:
            return [stored] if self._thread.states.known(stored)[1] is not None else listed
        value = decoded(write.kind, write.data)
        is_whole = isinstance(value, Tagged) and value.kind == "Overwrite"
        return None if is_whole or "__overwrite__" in mapping(value) else [stored]

    def _overwritten(self, write: Write) -> list[Stored]:
        value = decoded(write.kind, write.data)
        inner = mapping(value.value).get("value") if isinstance(value, Tagged) else mapping(value).get("__overwrite__")
        return [Stored("msgpack", msgspec.msgpack.encode(shown(each))) for each in inner or ()]

    def _outcome(self, id: str, written: list[Write], is_leaf: bool) -> None:
        state = self._thread.tips.get(id)
        if not is_leaf or state is None or state.tip is None:
            return
        for write in written:
            if write.channel not in TOLD:
                continue
            try:
                value = shown(decoded(write.kind, write.data))
            except BROKEN:
                value = None
            outcome = self._thread.outcomes.setdefault(state.tip, Outcome())
            if write.channel == "__error__":
                outcome.error = text(value) or "error"
            else:
                outcome.interrupt = value

    def _keep_writes(self, writes: dict[str, list[Write]]) -> None:
        for id, written in writes.items():
            for each in written:
                is_told = each.channel in TOLD or each.channel == self._channel
                kind = "write.branch" if each.channel.startswith("branch:") else f"write.{each.channel}"
                self._report.found += 1
                (self._report.mapped if is_told else self._report.kept)[kind] += 1
                columns = {
                    "checkpoint_id": id, "task_id": each.task, "task_path": each.path, "idx": each.index,
                    "channel": each.channel, "type": each.kind,
                }  # fmt: skip
                self._verbatim.row("write", columns, each.data)

    def _keep_blobs(self) -> None:
        for blob in self._rows.blobs(self._place):
            is_told = blob.channel == self._channel
            self._report.found += 1
            (self._report.mapped if is_told else self._report.kept)[f"blob.{'messages' if is_told else 'other'}"] += 1
            listed = None
            if is_told:
                try:
                    listed = elements(Stored(blob.kind, blob.data))
                except BROKEN:
                    listed = None
            columns = {"channel": blob.channel, "version": blob.version, "type": blob.kind}
            self._verbatim.row("blob", columns, blob.data, listed)


def _ordered(parents: dict[str, str | None]) -> list[str]:
    """Parents first; a chain that runs in a circle is cut."""
    done: dict[str, None] = {}
    for id in parents:
        chain: dict[str, None] = {}
        at: str | None = id
        while at is not None and at in parents and at not in done and at not in chain:
            chain[at] = None
            at = parents[at]
        done |= dict.fromkeys(reversed(chain))
    return list(done)
