"""Kiro: five containers, one form of steps, one mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.exchange.importers.databases import MAGIC
from weft.exchange.importers.jsonl import BOM
from weft.exchange.importers.kiro import conversation, editor, events, logs
from weft.exchange.importers.kiro.database import read_database
from weft.exchange.importers.kiro.recognition import Container, container, is_part, whole_of
from weft.exchange.importers.kiro.turns import Turns
from weft.exchange.importers.loading import loaded_object
from weft.exchange.importers.port import Place, Report, Source
from weft.exchange.importers.transcript import Transcript
from weft.exchange.importers.values import mapping, text

EDITORS = (".config", "Library/Application Support", "AppData/Roaming")
STORES = (".local/share", "Library/Application Support", "AppData/Local")
AGENT = "Kiro/User/globalStorage/kiro.kiroagent/workspace-sessions"


class Kiro:
    origin = "kiro"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        told = environment.get("KIRO_HOME")
        found = [Place((Path(told) if told else home / ".kiro") / "sessions", "Kiro")]
        found += [Place(home / base / AGENT, "Kiro before 1.0") for base in EDITORS]
        for tool, what in (("kiro-cli", "Kiro's first engine"), ("amazon-q", "Amazon Q")):
            found += [Place(home / base / tool / "data.sqlite3", what) for base in STORES]
        return found

    def recognises(self, source: Source) -> bool:
        return container(source) is not None

    def is_part(self, source: Source) -> bool:
        return is_part(source)

    def whole(self, source: Source) -> Path | None:
        return whole_of(source.path)

    def parts(self, path: Path) -> list[Path]:
        return []

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        kind = container(source)
        if kind is Container.DATABASE or source.head.startswith(MAGIC):
            yield from read_database(source.path, report)
        elif kind in (Container.CONVERSATION, Container.EDITOR):
            yield from _document(source, report, kind)
        elif kind is Container.EVENTS:
            session = events.session_of(source.path)
            model = text(mapping(session.metadata).get("model"))
            steps = events.steps(source, report, None if model == "auto" else model)
            yield Transcript(session=session, turns=Turns(session).walk(steps))
        else:
            found = logs.beside(source.path)
            session = logs.session_of(source.path, found)
            yield Transcript(session=session, turns=Turns(session).walk(logs.steps(source, report, found)))


def _document(source: Source, report: Report, kind: Container) -> Iterator[Transcript]:
    report.found += 1
    try:
        value: dict[str, Any] = loaded_object(source.path.read_bytes().removeprefix(BOM))
    except ValueError as error:
        report.damaged += 1
        report.problem(1, f"the document is not readable: {error}"[:300])
        return
    report.mapped["conversation"] += 1
    if kind is Container.EDITOR:
        session = editor.session_of(value, source.path)
        yield Transcript(session=session, turns=Turns(session, session.id).walk(editor.steps(value, report)))
        return
    id = text(value.get("conversation_id")) or source.path.stem
    session = conversation.session_of(value, id, None, None)
    yield Transcript(session=session, turns=Turns(session, id).walk(conversation.steps(value, report)))
