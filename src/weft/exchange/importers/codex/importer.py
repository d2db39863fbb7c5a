"""The importer of Codex: its rollouts, and the runs that it printed. One file is one session, a turn in memory at a
time.

A thread is a state that entries change, one after the other. Before the turn at its end, which may go on, is made of
what is there, the state is copied; the next reading takes the copy and goes on with the entries that are new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import chain, islice
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.codex.entries import Entry, Sort, entries, is_rollout
from weft.exchange.importers.codex.groups import Assembler
from weft.exchange.importers.codex.printed import is_printed, transcripts
from weft.exchange.importers.codex.threads import Thread, name_of, session_of
from weft.exchange.importers.codex.turns import Turns
from weft.exchange.importers.port import NativeTurn, Place, Report, Source, Transcript
from weft.exchange.importers.records.jsonl import Reached

_FIRST_ENTRIES = 64
"""So many records are looked through for the session's own."""


class _State(Struct):
    """A rollout as far as it was read."""

    turns: Turns
    thread: Thread
    assembler: Assembler = field(default_factory=Assembler)

    def copy(self) -> _State:
        """Entries are only ever looked at, and a report belongs to one reading."""
        shared: dict[int, Any] = {id(entry): entry for entry in self.assembler.waiting}
        shared[id(self.turns.report)] = self.turns.report
        return deepcopy(self, shared)


class CodexReader:
    """Of one rollout."""

    def __init__(self) -> None:
        self._state: _State | None = None
        self._reached = Reached()

    def read(self, source: Source, report: Report, taken: Mapping[str, int]) -> Iterator[Transcript]:
        state, self._state = self._state, None
        if is_printed(source.head) and not is_rollout(source.head):
            yield from transcripts(source, report)
            return
        if state is None or self._reached.is_torn or taken.get(state.thread.session.id, 0) < state.turns.made:
            yield from self._read_anew(source, report)
            return
        session = state.thread.session
        state.thread.take_name(name_of(source.path, session.id))
        state.turns.report, state.turns.is_over = report, source.is_over
        more = entries(source, report, self._reached)
        yield Transcript(session=session, turns=self._walk(state, more, True), known=state.turns.made)

    def _read_anew(self, source: Source, report: Report) -> Iterator[Transcript]:
        self._reached = Reached()
        all_entries = entries(source, report, self._reached)
        first = list(islice(all_entries, _FIRST_ENTRIES))
        if not first:
            return
        meta = next((entry.value for entry in first if entry.sort == Sort.META), None)
        thread = Thread(session_of(source, meta))
        thread.take_name(name_of(source.path, thread.session.id))
        state = _State(Turns(thread, report, source.is_over), thread)
        is_session_known = meta is not None or len(first) == _FIRST_ENTRIES
        yield Transcript(session=thread.session, turns=self._walk(state, chain(first, all_entries), is_session_known))

    def _walk(self, state: _State, more: Iterator[Entry], is_session_known: bool) -> Iterator[NativeTurn]:
        """`is_session_known`: whose session it is will not change."""
        for entry in more:
            yield from state.turns.take(state.assembler.feed(entry))
        self._state = state.copy() if is_session_known else None
        yield from state.turns.take(state.assembler.finish())


class Codex:
    origin = "codex"
    mapping = 3

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        root = Path(environment["CODEX_HOME"]) if environment.get("CODEX_HOME") else home / ".codex"
        return [
            Place(root / "sessions", "Codex sessions"),
            Place(root / "archived_sessions", "archived Codex sessions"),
        ]

    def recognises(self, source: Source) -> bool:
        return not self.is_part(source) and (is_rollout(source.head) or is_printed(source.head))

    def is_part(self, source: Source) -> bool:
        """The index of thread names, which every session looks its own up in."""
        return Path(source.name).name == "session_index.jsonl" and b'"thread_name"' in source.head

    def is_renamed(self, path: Path, since: int) -> bool:
        named = name_of(path)
        return named is not None and named.at >= since

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        return self.reader().read(source, report, {})

    def reader(self) -> CodexReader:
        return CodexReader()
