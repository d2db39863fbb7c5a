"""The importer of Codex rollouts: one file is one session, read in one pass, a turn in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path

from weft.exchange.importers.codex.files import entries, is_rollout
from weft.exchange.importers.codex.groups import groups
from weft.exchange.importers.codex.kinds import Sort
from weft.exchange.importers.codex.session import Thread, session_of
from weft.exchange.importers.codex.turns import Turns
from weft.exchange.importers.port import Place, Report, Source
from weft.exchange.importers.transcript import Transcript

_AHEAD = 64
"""So many records are looked through for the session's own."""


class Codex:
    origin = "codex"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        root = Path(environment["CODEX_HOME"]) if environment.get("CODEX_HOME") else home / ".codex"
        return [
            Place(root / "sessions", "Codex sessions"),
            Place(root / "archived_sessions", "archived Codex sessions"),
        ]

    def recognises(self, source: Source) -> bool:
        return not self.is_part(source) and is_rollout(source.head)

    def is_part(self, source: Source) -> bool:
        """The index of thread names, which every session looks its own up in."""
        return Path(source.name).name == "session_index.jsonl" and b'"thread_name"' in source.head

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        found = entries(source, report)
        first = list(islice(found, _AHEAD))
        meta = next((entry.value for entry in first if entry.sort == Sort.META), None)
        if not first:
            return
        session = session_of(source, meta)
        turns = Turns(Thread(session), report, source.quiet)
        yield Transcript(session=session, turns=turns.walk(groups(chain(first, found))))
