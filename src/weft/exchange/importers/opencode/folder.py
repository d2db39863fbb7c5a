"""The folder of JSON files that opencode kept before version 1.2, and the older one under `project`.

`session/<project>/<session>.json`, `message/<session>/<message>.json`, `part/<message>/<part>.json`. Older, all below
`session`: `info/<session>.json`, `message/<session>/<message>.json`, `part/<session>/<message>/<part>.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.exchange.importers.opencode.rows import RowDraft, Session, Span, Verbatim
from weft.exchange.importers.opencode.versions import from_first_form, has_first_form
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.records.jsonl import read_whole
from weft.exchange.importers.records.values import canonical, json_object, json_value, mapping, millis, sequence, text
from weft.exchange.importers.sidecars import names_beneath, read_beneath, read_beside


class _File(Struct, frozen=True):
    """A message's file."""

    id: str
    data: bytes
    value: dict[str, Any]


class Layout(Struct, frozen=True):
    """Where the files of a session lie."""

    root: Path
    is_first_form: bool

    def messages(self, session: str) -> Path:
        return self.root / "message" / session

    def parts(self, session: str, message: str) -> Path:
        return self.root / "part" / session / message if self.is_first_form else self.root / "part" / message

    def todos(self, session: str) -> Path:
        return self.root / "todo" / f"{session}.json"


def layout(path: Path) -> Layout:
    """The one around a session's file."""
    if path.parent.name == "info" and path.parent.parent.name == "session":
        return Layout(path.parent.parent, is_first_form=True)
    return Layout(path.parent.parent.parent, is_first_form=False)


def read_folder(source: Source, report: Report) -> Session | None:
    path, data = source.path, read_whole(source)
    try:
        info = json_object(data)
    except ValueError as error:
        report.found += 1
        report.damaged += 1
        report.problem(1, f"the session is not readable: {error}"[:300])
        return None
    verbatim = Verbatim()
    verbatim.add("session", path.stem, data)
    return _read_messages(Session(info=info), layout(path), path.stem, verbatim, report)


def read_orphans(path: Path, report: Report) -> Session:
    """Messages whose session is gone; `path` is the first of them."""
    found = Layout(path.parents[2], is_first_form=path.parents[2].name == "session")
    session = _read_messages(Session(info={}, has_record=False), found, path.parent.name, Verbatim(), report)
    ids = (text(_object(bytes(message.row.data)).get("sessionID")) for message in session.messages[:1])
    session.info["id"] = next(ids, None) or path.parent.name
    return session


def is_first_orphan(path: Path) -> bool:
    """Is this the first message of a session whose own file is gone? It then brings in the others."""
    folder = path.parent
    sessions = folder.parent.parent / "session"
    name = f"{folder.name}.json"
    try:
        if (folder.parent.parent / "info" / name).exists() or any(
            (each / name).exists() for each in sessions.iterdir()
        ):
            return False
    except OSError:
        pass
    return _files(folder, folder.parent.parent)[:1] == [path]


def parts_of(path: Path) -> list[Path]:
    """The messages and parts that a session's file, or the first of the messages that have lost it, stands for."""
    if path.parent.parent.name == "message":
        found, id = Layout(path.parents[2], is_first_form=path.parents[2].name == "session"), path.parent.name
    elif path.parent.name == "info" or path.parent.parent.name == "session":
        found, id = layout(path), path.stem
    else:
        return []
    messages = _files(found.messages(id), found.root)
    parts = [part for message in messages for part in _files(found.parts(id, message.stem), found.root)]
    return [each for each in (*messages, *parts, found.todos(id)) if each != path and each.is_file()]


def whole_of(path: Path, session: str | None) -> Path | None:
    """The file that stands for a message, a part or what else is told of a session; `session`, if it names that."""
    for root in path.parents[:4]:
        folder = root / "session" if (root / "session").is_dir() else root
        id = session or (path.parent.name if path.parent.parent.name == "message" else path.stem)
        known = [each / f"{id}.json" for each in _folders(folder)]
        orphans = _files(root / "message" / id, root)
        if found := next((each for each in known if each.is_file()), orphans[0] if orphans else None):
            return found
    return None


def _folders(folder: Path) -> list[Path]:
    """Those in which session files lie: one for each project, or `info`."""
    if folder.name != "session":
        return []
    try:
        return sorted(each for each in folder.iterdir() if each.is_dir())
    except OSError:
        return []


def _read_messages(session: Session, found: Layout, id: str, verbatim: Verbatim, report: Report) -> Session:
    drafted = [_draft(file, found, id, verbatim, report) for file in _messages(found, id, report)]
    session.todos = _todos(found.todos(id), found.root, verbatim)
    session.raw, session.messages = verbatim.finish(drafted)
    return session


def _files(folder: Path, root: Path) -> list[Path]:
    """In order of their ids. Those being written have names that begin with a dot; links may lead anywhere, and so may
    those that are on the way to the folder."""
    names = names_beneath(folder, root)
    return sorted(folder / name for name in names if name.endswith(".json") and not name.startswith("."))


def _messages(found: Layout, session: str, report: Report) -> list[_File]:
    """As opencode orders them: by when they were made, then by id. One that is reverted meanwhile vanishes."""
    folder = found.messages(session)
    read = ((file.stem, read_beside(file, found.root, report)) for file in _files(folder, found.root))
    files = [_File(id, data, _object(data)) for id, data in read if data is not None]
    return sorted(files, key=lambda file: (millis(mapping(_info(file).get("time")).get("created")) or 0, file.id))


def _object(data: bytes) -> dict[str, Any]:
    try:
        return mapping(json_value(data))
    except ValueError:
        return {}


def _info(file: _File) -> dict[str, Any]:
    return from_first_form(file.value)[0] if has_first_form(file.value) else file.value


def _draft(file: _File, found: Layout, session: str, verbatim: Verbatim, report: Report) -> RowDraft:
    number = verbatim.count
    message, spans = verbatim.add("message", file.id, file.data), []
    if has_first_form(file.value):
        info, parts = from_first_form(file.value)
        message = Span(0, 0, file.id, canonical(info))
        spans = [Span(0, 0, None, canonical(part)) for part in parts]
        verbatim.count += len(parts)
    for each in _files(found.parts(session, file.id), found.root):
        if (part := read_beside(each, found.root, report)) is not None:
            spans.append(verbatim.add("part", each.stem, part))
    return RowDraft(message, spans, number)


def _todos(file: Path, root: Path, verbatim: Verbatim) -> list[Any]:
    try:
        data = read_beneath(file, root)
        todos = sequence(json_value(data))
    except (OSError, ValueError):
        return []
    verbatim.add("todo", None, data)
    return todos
