"""Cursor: one mapping for bubbles, another for messages of roles and blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from weft.exchange.importers.cursor.beside import CONFIGS, TRANSCRIPTS, is_held
from weft.exchange.importers.cursor.database import read_database
from weft.exchange.importers.cursor.exports import read_export
from weft.exchange.importers.cursor.recognition import Container, container
from weft.exchange.importers.cursor.store import read_store
from weft.exchange.importers.cursor.transcripts import read_text, read_transcript
from weft.exchange.importers.databases import MAGIC
from weft.exchange.importers.port import Place, Report, Source
from weft.exchange.importers.transcript import Transcript


class Cursor:
    origin = "cursor"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        told = environment.get("XDG_CONFIG_HOME")
        configs = [home / config for config in CONFIGS]
        if told:
            configs[0] = Path(told)
        found = [
            Place(config / "Cursor" / "User" / folder, what)
            for config in configs
            for folder, what in (("globalStorage", "Cursor"), ("workspaceStorage", "Cursor, by workspace"))
        ]
        for name in (".cursor", ".cursor-server"):
            found.append(Place(home / name / "chats", "Cursor's command line agent"))
            found.append(Place(home / name / "projects", "Cursor's transcripts"))
        return found

    def recognises(self, source: Source) -> bool:
        return container(source) is not None

    def is_part(self, source: Source) -> bool:
        return TRANSCRIPTS in source.path.parts and is_held(source.path)

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        kind = container(source)
        if kind is Container.STORE:
            yield from read_store(source.path, report)
        elif kind is Container.STATE or source.head.startswith(MAGIC):
            yield from read_database(source.path, report)
        elif kind is Container.EXPORT:
            yield from read_export(source, report)
        elif kind is Container.TEXT:
            yield from read_text(source, report)
        else:
            yield from read_transcript(source, report)
