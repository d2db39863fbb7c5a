"""opencode: three containers with one mapping."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.exchange.importers.databases import MAGIC
from weft.exchange.importers.opencode.database import read_database
from weft.exchange.importers.opencode.export import read_export
from weft.exchange.importers.opencode.folder import parts_of, read_folder, read_orphans, whole_of
from weft.exchange.importers.opencode.recognition import Container, container, is_part_file, session_named
from weft.exchange.importers.opencode.rows import HIDDEN, Session
from weft.exchange.importers.opencode.turns import Turns
from weft.exchange.importers.port import Place, Report, Source
from weft.exchange.importers.transcript import NativeSession, Transcript
from weft.exchange.importers.values import mapping, millis, present, text

SUBAGENT = re.compile(r"(.+) \(@(.+) subagent\)", re.DOTALL)
"""How opencode titles the session of a subagent: its task and its name."""


class Opencode:
    origin = "opencode"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        told = environment.get("XDG_DATA_HOME")
        data = (Path(told) if told else home / ".local/share") / "opencode"
        found = [
            Place(data / "opencode.db", "opencode"),
            Place(data / "storage", "opencode before 1.2"),
            Place(data / "project", "opencode before 0.5"),
        ]
        try:
            others = sorted(path for path in data.glob("opencode-*.db") if path.is_file())
        except OSError:
            others = []
        found += [Place(path, "opencode, another release channel") for path in others]
        if database := environment.get("OPENCODE_DB"):
            found.append(Place(data / database, "opencode"))
        return found

    def recognises(self, source: Source) -> bool:
        return container(source) is not None

    def is_part(self, source: Source) -> bool:
        return is_part_file(source)

    def whole(self, source: Source) -> Path | None:
        return whole_of(source.path, session_named(source.head))

    def parts(self, path: Path) -> list[Path]:
        return parts_of(path) if path.suffix == ".json" else []

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        for session in _sessions(source, report):
            yield _transcript(session, source.path.stem, report)


def _sessions(source: Source, report: Report) -> Iterator[Session]:
    kind = container(source)
    if kind is Container.DATABASE or source.head.startswith(MAGIC):
        yield from read_database(source.path, report)
    elif kind is Container.FOLDER:
        session = read_folder(source.path, report)
        if session is not None:
            yield session
    elif kind is Container.ORPHANS:
        yield read_orphans(source.path, report)
    else:
        yield read_export(source.path.read_bytes(), report)


def _transcript(session: Session, fallback: str, report: Report) -> Transcript:
    info = session.info
    id = text(info.get("id"))
    id = fallback if id is None or id == HIDDEN else id
    mapped = {"session": int(session.is_told), "todo": len(session.todos), **session.told}
    report.found += sum(mapped.values()) + sum(session.kept.values())
    report.mapped.update({kind: count for kind, count in mapped.items() if count})
    report.kept.update(session.kept)
    report.unknown.update(session.unknown)
    return Transcript(session=told_session(id, session), turns=Turns(session, id, report).walk(), raw=session.raw)


def told_session(id: str, session: Session) -> NativeSession:
    info = session.info
    title, time = text(info.get("title")), mapping(info.get("time"))
    parent = text(info.get("parentID"))
    named = SUBAGENT.fullmatch(title or "") if parent else None
    revert = {name: value for name, value in mapping(info.get("revert")).items() if name != "diff"}
    return NativeSession(
        id=id,
        title=title,
        workspace=text(info.get("directory")),
        version=text(info.get("version")),
        created=millis(time.get("created")),
        parent=parent,
        task=named[1] if named else None,
        agent=text(info.get("agent")) or (named[2] if named else None),
        archived=millis(time.get("archived")) is not None,
        told_at=millis(time.get("updated")),
        metadata=present(
            slug=info.get("slug"),
            project=info.get("projectID"),
            share=mapping(info.get("share")).get("url"),
            summary=_without_diffs(info.get("summary")),
            model=info.get("model"),
            cost=info.get("cost"),
            tokens=info.get("tokens"),
            revert=revert,
            todos=session.todos,
            metadata=info.get("metadata"),
            fork=info.get("fork"),
        ),
    )


def _without_diffs(summary: Any) -> dict[str, Any]:
    return {name: value for name, value in mapping(summary).items() if name != "diffs"}
