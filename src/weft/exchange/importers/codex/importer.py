"""The importer of Codex: its rollouts, and the runs that it printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from weft.exchange.importers.codex.files import is_rollout
from weft.exchange.importers.codex.names import name_of
from weft.exchange.importers.codex.printed import is_printed
from weft.exchange.importers.codex.reader import CodexReader
from weft.exchange.importers.port import Place, Report, Source
from weft.exchange.importers.transcript import Transcript


class Codex:
    origin = "codex"
    mapping = 2

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
