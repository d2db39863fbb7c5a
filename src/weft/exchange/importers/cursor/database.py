"""`state.vscdb`, three generations: chats and composers of a workspace as one JSON text each, and composers of all
workspaces as a row each, with a row for each of their bubbles.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weft.exchange.importers.cursor.bubbles import Bubble
from weft.exchange.importers.cursor.encodings import decoded, path_of
from weft.exchange.importers.cursor.homes import folder_of, folders, own_folder, transcripts_of
from weft.exchange.importers.cursor.messages import Setting, message_text
from weft.exchange.importers.cursor.rows import (
    CHATS,
    COMPOSERS,
    IGNORED,
    DiskSession,
    RowReader,
    Rows,
    SessionRows,
    listed,
)
from weft.exchange.importers.cursor.turns import Session, Summary, Turns, summaries
from weft.exchange.importers.databases import UNREADABLE, RowLines, opened
from weft.exchange.importers.port import NativeSession, Report, Transcript
from weft.exchange.importers.records.values import mapping, millis, present, sequence, text, whole

METADATA_FIELDS = (
    "status", "subtitle", "usageData", "contextTokensUsed", "contextTokenLimit", "contextUsagePercent",
    "totalLinesAdded", "totalLinesRemoved", "filesChangedCount", "tokenCount", "unifiedMode", "isAgentic", "isDraft",
    "isBestOfNSubcomposer", "createdFromBackgroundAgent", "prUrl", "_v",
)  # fmt: skip
WITHOUT = "/without-headers"


def composer_setting(composer: dict[str, Any]) -> Setting:
    model = text(mapping(composer.get("modelConfig")).get("modelName"))
    return Setting(
        model=None if model == "default" else model,
        is_subagent=text(mapping(composer.get("subagentInfo")).get("parentComposerId")) is not None,
        applied=_applied(composer),
    )


def _applied(composer: dict[str, Any]) -> dict[tuple[str, int], str]:
    """What became of suggested versions of files."""
    listed = [mapping(each) for found in mapping(composer.get("codeBlockData")).values() for each in _as_list(found)]
    statuses = (
        (path_of(each.get("uri")), whole(each.get("version")) or 0, text(each.get("status"))) for each in listed
    )
    return {(path, version): status for path, version, status in statuses if path is not None and status is not None}


def _as_list(value: Any) -> list[Any]:
    """Older versions have a list by file, newer ones an object."""
    return list(value.values()) if isinstance(value, dict) else sequence(value)


def composer_session(id: str, composer: dict[str, Any], listed: dict[str, Any], workspace: str | None) -> NativeSession:
    info = mapping(composer.get("subagentInfo")) or mapping(listed.get("subagentInfo"))
    both = listed | {name: value for name, value in composer.items() if value is not None}
    updated = millis(both.get("lastUpdatedAt")) or millis(composer.get("lastSendTime"))
    return NativeSession(
        id=id,
        title=text(composer.get("name")) or text(listed.get("name")) or text(composer.get("chatTitle")),
        workspace=workspace,
        git_branch=_branch(both),
        created=millis(both.get("createdAt")),
        parent=text(info.get("parentComposerId")),
        spawn_call=text(info.get("toolCallId")),
        agent=text(info.get("subagentTypeName")),
        archived=listed.get("isArchived") is True or composer.get("isArchived") is True,
        metadata=present(
            **{name: both.get(name) for name in METADATA_FIELDS},
            model=mapping(composer.get("modelConfig")),
            updated=updated,
        ),
        told_at=updated,
    )


def _branch(both: dict[str, Any]) -> str | None:
    """The one that it was begun on; else the one it stands on."""
    begun = text(both.get("createdOnBranch"))
    active = both.get("activeBranch")
    return begun or text(active) or text(mapping(active).get("branchName"))


def session_without_header(session: NativeSession) -> NativeSession:
    """Bubbles of a session that its headers do not name: what was taken back or generated anew, with no word of where
    it belonged. They are found, and not shown as what the session says."""
    return NativeSession(
        id=f"{session.id}{WITHOUT}",
        title=f"{session.title or session.id} (bubbles without headers)",
        workspace=session.workspace,
        created=session.created,
        archived=True,
        metadata={"session": session.id},
    )


def unplaced_summaries(summaries: list[Summary], bubbles: list[Bubble]) -> list[str]:
    """Summaries that no turn can be made of, since the bubbles that they name are gone."""
    here = {bubble.id for bubble in bubbles}
    return [summary.words for summary in summaries if here.isdisjoint(summary.anchors)]


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
        self._aside = RowLines()
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
        fields: dict[str, Any] = {}
        for key, data in self._rows.items():
            self._report.found += 1
            try:
                value = decoded(data)
            except ValueError as error:
                self._report.damaged += 1
                self._report.problem(None, f"{key} is not readable: {error}"[:300])
                continue
            fields[key] = value
            (self._report.kept if key in IGNORED else self._report.mapped)[f"item.{key}"] += 1
            own = {"tabs"} if key == CHATS else {"allComposers"} if key == COMPOSERS else set()
            rest = {name: each for name, each in value.items() if name not in own} if isinstance(value, dict) else value
            self._aside.add_value(key, rest)
        return fields

    def _disk(self) -> dict[str, SessionRows]:
        """Sessions of rows, but for those in which nothing was ever said: most composers were only opened."""
        rows: dict[str, SessionRows] = {}
        for id, found in self._rows.sessions().items():
            row = self._rows.row(found.composer) if found.composer is not None else None
            if found.bubbles or (row is not None and (row.error is not None or _has_conversation(row.data))):
                rows[id] = found
            elif row is not None:
                self._report.found += 1
                self._report.kept["composer.empty"] += 1
                self._aside.add(row.key, row.data)
        return rows

    def _lines(self) -> RowLines:
        lines, self._aside = self._aside, RowLines()
        return lines

    def _inline(self, inline_session: Any, kind: str, name: str, list_name: str) -> Iterator[Transcript]:
        """A session that lies in one text with all its bubbles."""
        self._report.found += 1
        id = text(mapping(inline_session).get(name))
        if id is None:
            self._report.damaged += 1
            self._report.problem(None, f"a {kind} without an id")
            return
        self._report.mapped[kind] += 1
        lines = self._lines()
        lines.add_value(f"{kind}:{id}", {each: value for each, value in inline_session.items() if each != list_name})
        reading = RowReader(self._report, lines)
        found = reading.inline(sequence(inline_session.get(list_name)))
        if kind == "tab" and found and found[-1].role == "user" and not message_text(found[-1]):
            found.pop()
            reading.keep("bubble.draft")  # the box for the next prompt
        workspace = own_folder(inline_session) or self._folder
        session = composer_session(id, inline_session, {}, workspace)
        yield _transcript_of(session, inline_session, reading.messages(found), workspace, lines)

    def _session(self, id: str, keys: SessionRows) -> Iterator[Transcript]:
        lines = self._lines()
        disk = DiskSession(keys, self._rows, RowReader(self._report, lines))
        if (beside := self._transcripts.get(id)) is not None:
            disk.reading.transcript(beside)
        listed_fields = self._listed.get(id, {})
        workspace = own_folder(disk.composer, listed_fields) or self._folder or self._listing().get(id)
        session = composer_session(id, disk.composer, listed_fields, workspace)
        if disk.standing or not disk.left:
            yield _transcript_of(session, disk.composer, disk.standing, workspace, lines, disk.missing)
            lines = RowLines()
        if disk.left:
            inner = Session(id=session.id, bubbles=disk.left, workspace=workspace, headless=True, starts=disk.starts())
            inner.setting = composer_setting(disk.composer)
            apart = session_without_header(session)
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


def _transcript_of(
    session: NativeSession,
    composer: dict[str, Any],
    bubbles: list[Bubble],
    workspace: str | None,
    lines: RowLines,
    missing: list[str] | None = None,
) -> Transcript:
    summed = summaries(composer, bubbles)
    if lost := unplaced_summaries(summed, bubbles):
        session.metadata = {**mapping(session.metadata), "summaries": lost}
    inner = Session(
        id=session.id,
        bubbles=bubbles,
        composer=composer,
        setting=composer_setting(composer),
        summaries=summed,
        workspace=workspace,
        missing=missing or [],
    )
    return Transcript(session=session, turns=Turns(inner).walk(), raw=lines.finish())
