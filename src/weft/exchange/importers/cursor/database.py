"""`state.vscdb`, three generations: chats and composers of a workspace as one JSON text each, and composers of all
workspaces as a row each, with a row for each of their bubbles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weft.exchange.importers.cursor import composers, messages
from weft.exchange.importers.cursor.beside import transcripts_of
from weft.exchange.importers.cursor.bubbles import Bubble
from weft.exchange.importers.cursor.compactions import summaries
from weft.exchange.importers.cursor.disk import DiskSession, Reading
from weft.exchange.importers.cursor.rows import ASIDE, CHATS, COMPOSERS, Found, Rows, listed
from weft.exchange.importers.cursor.turns import Session, Turns
from weft.exchange.importers.cursor.values import decoded
from weft.exchange.importers.cursor.workspaces import folder_of, folders, own_folder
from weft.exchange.importers.databases import UNREADABLE, opened
from weft.exchange.importers.lines import Lines
from weft.exchange.importers.port import Report
from weft.exchange.importers.transcript import NativeSession, Transcript
from weft.exchange.importers.values import mapping, sequence, text


def read_database(path: Path, report: Report) -> Iterator[Transcript]:
    with opened(path, report) as database:
        if database is None:
            return
        try:
            yield from _State(path, Rows(database), report).transcripts()
        except UNREADABLE as error:
            report.problem(None, f"the database is not readable: {error}"[:300])


class _State:
    def __init__(self, path: Path, rows: Rows, report: Report) -> None:
        self._path, self._rows, self._report = path, rows, report
        self._aside = Lines()
        """Rows of no session; the first session of the database keeps them."""
        self._items = self._read_items()
        headers = rows.headers()
        report.found += len(headers)
        report.mapped.update(["header"] * len(headers))
        self._listed = listed(self._items) | headers
        self._folder = folder_of(path)
        self._folders: dict[str, str] | None = None
        self._transcripts = transcripts_of(path)

    def transcripts(self) -> Iterator[Transcript]:
        for tab in sequence(mapping(self._items.get(CHATS)).get("tabs")):
            yield from self._inline(tab, "tab", "tabId", "bubbles")
        for composer in sequence(mapping(self._items.get(COMPOSERS)).get("allComposers")):
            if "conversation" in mapping(composer) or not isinstance(composer, dict):
                yield from self._inline(composer, "composer", "composerId", "conversation")
        for id, found in self._disk().items():
            yield from self._session(id, found)

    def _read_items(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, data in self._rows.items():
            self._report.found += 1
            try:
                value = decoded(data)
            except ValueError as error:
                self._report.damaged += 1
                self._report.problem(None, f"{key} is not readable: {error}"[:300])
                continue
            found[key] = value
            (self._report.kept if key in ASIDE else self._report.mapped)[f"item.{key}"] += 1
            own = {"tabs"} if key == CHATS else {"allComposers"} if key == COMPOSERS else set()
            rest = {name: each for name, each in value.items() if name not in own} if isinstance(value, dict) else value
            self._aside.add_value(key, rest)
        return found

    def _disk(self) -> dict[str, Found]:
        """Sessions of rows, but for those in which nothing was ever said: most composers were only opened."""
        said: dict[str, Found] = {}
        for id, found in self._rows.sessions().items():
            row = self._rows.row(found.composer) if found.composer is not None else None
            if found.bubbles or (row is not None and (row.error is not None or _has_conversation(row.data))):
                said[id] = found
            elif row is not None:
                self._report.found += 1
                self._report.kept["composer.empty"] += 1
                self._aside.add(row.key, row.data)
        return said

    def _lines(self) -> Lines:
        lines, self._aside = self._aside, Lines()
        return lines

    def _inline(self, told: Any, kind: str, name: str, list_name: str) -> Iterator[Transcript]:
        """A session that lies in one text with all its bubbles."""
        self._report.found += 1
        id = text(mapping(told).get(name))
        if id is None:
            self._report.damaged += 1
            self._report.problem(None, f"a {kind} without an id")
            return
        self._report.mapped[kind] += 1
        lines = self._lines()
        lines.add_value(f"{kind}:{id}", {each: value for each, value in told.items() if each != list_name})
        reading = Reading(self._report, lines)
        found = reading.inline(sequence(told.get(list_name)))
        if kind == "tab" and found and found[-1].role == "user" and not messages.words_of(found[-1]):
            found.pop()
            reading.keep("bubble.draft")  # the box for the next prompt
        workspace = own_folder(told) or self._folder
        session = composers.told(id, told, {}, workspace)
        yield _made(session, told, reading.said(found), workspace, lines)

    def _session(self, id: str, keys: Found) -> Iterator[Transcript]:
        lines = self._lines()
        disk = DiskSession(keys, self._rows, Reading(self._report, lines))
        if (beside := self._transcripts.get(id)) is not None:
            disk.reading.transcript(beside)
        told = self._listed.get(id, {})
        workspace = own_folder(disk.composer, told) or self._folder or self._listing().get(id)
        session = composers.told(id, disk.composer, told, workspace)
        if disk.standing or not disk.left:
            yield _made(session, disk.composer, disk.standing, workspace, lines, disk.missing)
            lines = Lines()
        if disk.left:
            inner = Session(id=session.id, bubbles=disk.left, workspace=workspace, headless=True, starts=disk.starts())
            inner.setting = composers.setting(disk.composer)
            apart = composers.headless(session)
            yield Transcript(session=apart, turns=Turns(inner).walk(), raw=lines.finish())

    def _listing(self) -> dict[str, str]:
        if self._folders is None:
            self._folders = folders(self._path) if self._path.parent.name == "globalStorage" else {}
        return self._folders


def _has_conversation(data: bytes | None) -> bool:
    try:
        value = mapping(decoded(data)) if data is not None else {}
    except ValueError:
        return data is not None  # it is told as damaged with its session
    return bool(value.get("conversation") or value.get("fullConversationHeadersOnly"))


def _made(
    session: NativeSession,
    composer: dict[str, Any],
    found: list[Bubble],
    workspace: str | None,
    lines: Lines,
    missing: list[str] | None = None,
) -> Transcript:
    summed = summaries(composer, found)
    if lost := composers.placeless(summed, found):
        session.metadata = {**mapping(session.metadata), "summaries": lost}
    inner = Session(
        id=session.id,
        bubbles=found,
        composer=composer,
        setting=composers.setting(composer),
        summaries=summed,
        workspace=workspace,
        missing=missing or [],
    )
    return Transcript(session=session, turns=Turns(inner).walk(), raw=lines.finish())
