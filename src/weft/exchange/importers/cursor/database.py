"""`state.vscdb`, three generations: chats and composers of a workspace, and composers of all
folders.

Its rows, two tables of keys and values; what lies elsewhere in the same home; and turns of a
session of bubbles: a user's bubble up to the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.cursor.bubbles import (
    Bubble,
    Setting,
    begun_at,
    bubble_error,
    bubble_identity,
    decode_json_value,
    ended_at,
    is_empty,
    is_prompt,
    is_spoken,
    message_call,
    message_text,
    path_of,
    prompt_message,
    response_message,
    role_of,
    tool_name,
)
from weft.exchange.importers.foreign_files import (
    UNREADABLE,
    Database,
    RowLines,
    open_database,
    peek,
    read_beneath,
    read_beside,
)
from weft.exchange.importers.foreign_values import (
    SOURCE_LIMITS,
    canonical,
    json_value,
    mapping,
    millis,
    present,
    sequence,
    text,
    whole_number,
)
from weft.exchange.importers.port import (
    Item,
    NativeCompaction,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Report,
    Transcript,
)
from weft.kernel.enums import AgentRole, MessageRole
from weft.kernel.errors import LimitExceeded, quoted

# --- The rows of `state.vscdb`: two tables of keys and values.

CHATS = "workbench.panel.aichat.view.aichat.chatdata"
COMPOSERS = "composer.composerData"
HEADERS = "composer.composerHeaders"
IGNORED = ("aiService.prompts", "aiService.generations")
"""What was typed in a workspace, without the sessions that it was typed in."""
ITEMS = (CHATS, COMPOSERS, HEADERS, *IGNORED)
COMPOSER, BUBBLE, REQUEST = "composerData", "bubbleId", "messageRequestContext"
KNOWN = frozenset({"checkpointId", "codeBlockDiff", "composerVirtualRowHeights", "codeBlockPartialInlineDiffFates"})
"""Of a session, and told by the verbatim copy alone."""


class Row(Struct, frozen=True):
    key: str
    data: bytes | None
    """None: what it held was deleted."""
    place: int = 0
    """Where it lies in its table: rows that were written later lie further on."""
    error: str | None = None
    """Why it cannot be read, where the database is damaged."""


class SessionRows(Struct):
    """The keys of one session."""

    composer: str | None = None
    bubbles: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    other_keys: list[str] = field(default_factory=list)


class Rows:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.has_disk = database.has("cursorDiskKV", "key", "value")
        self.has_items = database.has("ItemTable", "key", "value")

    def items(self) -> Iterator[tuple[str, bytes]]:
        if not self.has_items:
            return
        for key in ITEMS:
            sql = "SELECT CAST(value AS BLOB) FROM ItemTable WHERE key = ? AND value IS NOT NULL"
            for (data,) in self._database.rows(sql, (key,)):
                yield key, data

    def sessions(self) -> dict[str, SessionRows]:
        """Keys by session. Those of no session (caches, contents by hash) are not looked at."""
        rows: dict[str, SessionRows] = {}
        other_keys: list[tuple[str, str]] = []
        keys = self._database.walk("SELECT key FROM cursorDiskKV ORDER BY key") if self.has_disk else ()
        for (key,) in keys:
            kind, _, after_kind = key.partition(":") if isinstance(key, str) else ("", "", "")
            session = after_kind.partition(":")[0]
            if not session:
                continue
            if kind == COMPOSER:
                rows.setdefault(session, SessionRows()).composer = key
            elif kind == BUBBLE:
                rows.setdefault(session, SessionRows()).bubbles.append(key)
            elif kind == REQUEST:
                rows.setdefault(session, SessionRows()).requests.append(key)
            else:
                other_keys.append((session, key))
        for session, key in other_keys:
            if session in rows:
                rows[session].other_keys.append(key)
        return rows

    def row(self, key: str) -> Row:
        sql = "SELECT CAST(value AS BLOB), rowid FROM cursorDiskKV WHERE key = ?"
        try:
            rows = self._database.rows(sql, (key,))
        except UNREADABLE as error:
            return Row(key, None, error=str(error))
        data, place = rows[0] if rows else (None, 0)
        return Row(key, data, place)

    def headers(self) -> dict[str, dict[str, Any]]:
        """What the newest versions' table of headers tells of each session."""
        if not self._database.has("composerHeaders", "composerId", "value"):
            return {}
        rows = self._database.walk("SELECT composerId, CAST(value AS BLOB) FROM composerHeaders")
        return {id: _object(data) for id, data in rows if isinstance(id, str)}


def listed(items: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the lists of sessions tell of each, by its id."""
    lists = (mapping(items.get(key)).get("allComposers") for key in (COMPOSERS, HEADERS))
    fields = [mapping(composer) for listing in lists for composer in sequence(listing)]
    return {id: composer for composer in fields if (id := text(composer.get("composerId"))) is not None}


def _object(data: bytes | None) -> dict[str, Any]:
    try:
        return mapping(decode_json_value(data))
    except ValueError:
        return {}


class RowReader(Struct):
    """Reads the records of one session: each is counted, and kept on a line."""

    report: Report
    lines: RowLines

    def inline(self, values: list[Any]) -> list[Bubble]:
        """Bubbles that lie in the session's own record."""
        bubbles: list[Bubble] = []
        for value in values:
            self.report.found += 1
            number = self.lines.add_value("bubble", value)
            if isinstance(value, dict):
                bubbles.append(
                    Bubble(text(value.get("bubbleId")) or text(value.get("id")), value, role_of(value), number=number)
                )
            else:
                self._report_damaged(f"a bubble is a JSON {type(value).__name__}")
        return bubbles

    def row(self, row: Row, kind: str) -> dict[str, Any] | None:
        """The object in a row. One that was deleted left its key behind."""
        self.report.found += 1
        self.lines.add(row.key, row.data, place=row.place)
        if row.error is not None:
            self._report_damaged(f"{row.key} is not readable: {row.error}")
            return None
        if row.data is None:
            self.report.kept[f"{kind}.deleted"] += 1
            return None
        try:
            value = decode_json_value(row.data)
        except ValueError as error:
            self._report_damaged(f"{row.key} is not readable: {error}")
            return None
        if not isinstance(value, dict):
            self._report_damaged(f"{row.key} is a JSON {type(value).__name__}, not an object")
            return None
        return value

    def _report_damaged(self, problem: str) -> None:
        self.report.damaged += 1
        self.report.problem(None, problem[:300])

    def count_kept(self, kind: str, is_unknown: bool = False) -> None:
        self.report.kept[kind] += 1
        if is_unknown:
            self.report.unknown[kind] += 1

    def messages(self, bubbles: list[Bubble]) -> list[Bubble]:
        """Those that are messages."""
        messages = []
        for bubble in bubbles:
            if bubble.role is None:
                self.count_kept(f"bubble.type {quoted(bubble.value.get('type'), 20)}", is_unknown=True)
            elif bubble.role == "user" and is_empty(bubble):
                self.count_kept("bubble.draft")
            else:
                self.report.mapped[f"bubble.{bubble.role}"] += 1
                messages.append(bubble)
        return messages

    def keep_transcript(self, path: Path) -> None:
        """The lesser copy of the same session, line by line."""
        root = next((folder for folder in path.parents if folder.name == ".cursor"), path.parent)
        data = read_beside(path, root, self.report)
        if data is None:
            return
        for line in data.splitlines():
            self.report.found += 1
            self.report.kept["transcript"] += 1
            self.lines.add(f"transcript:{path.name}", line)


class DiskSession:
    """One session's rows, read and put in order."""

    def __init__(self, keys: SessionRows, rows: Rows, reading: RowReader) -> None:
        self.reading, self._rows = reading, rows
        self.composer = self._read_composer(keys)
        bubbles, places = self._read_bubbles(keys)
        inline = reading.inline(sequence(self.composer.get("conversation")))
        named, self.missing = in_order(sequence(self.composer.get("fullConversationHeadersOnly")), bubbles)
        chosen = {bubble.number for bubble in named}
        self.named_bubbles = reading.messages([*inline, *named])
        unnamed = [bubble for bubble in bubbles if bubble.number not in chosen]
        self.unnamed_bubbles = reading.messages(by_age(unnamed, places))
        """Bubbles that no header names."""
        for key in keys.other_keys:
            self._count_other(key)

    def _read_composer(self, keys: SessionRows) -> dict[str, Any]:
        if keys.composer is None:
            return {}
        value = self.reading.row(self._rows.row(keys.composer), "composer")
        if value is not None:
            self.reading.report.mapped["composer"] += 1
        return value or {}

    def _read_bubbles(self, keys: SessionRows) -> tuple[list[Bubble], dict[int, int]]:
        """Also by where their rows lie, for those whose order nothing else tells."""
        requests = self._read_requests(keys)
        bubbles, places = [], {}
        for key in keys.bubbles:
            row, number = self._rows.row(key), self.reading.lines.count
            value = self.reading.row(row, "bubble")
            if value is not None:
                name = key.split(":", 2)[2]
                bubbles.append(Bubble(name or None, value, role_of(value), requests.get(name, {}), number))
                places[number] = row.place
        return bubbles, places

    def _read_requests(self, keys: SessionRows) -> dict[str, dict[str, Any]]:
        """What was sent along with a prompt, by the id of its bubble."""
        fields = {}
        for key in keys.requests:
            value = self.reading.row(self._rows.row(key), "request")
            if value is not None:
                self.reading.report.mapped["request"] += 1
                fields[key.rpartition(":")[2]] = value
        return fields

    def _count_other(self, key: str) -> None:
        row, kind = self._rows.row(key), key.partition(":")[0]
        self.reading.report.found += 1
        self.reading.count_kept(kind, is_unknown=kind not in KNOWN)
        self.reading.lines.add(row.key, row.data, place=row.place)

    def starts(self) -> set[int]:
        """Of the bubbles without headers, those that begin anew: since the one before, another prompt was sent."""
        sent = [time for bubble in self.named_bubbles if is_prompt(bubble) and (time := begun_at(bubble.value))]
        times = [(begun_at(bubble.value), bubble.number) for bubble in self.unnamed_bubbles]
        return {
            number
            for (before, _), (time, number) in pairwise(times)
            if before is not None and time is not None and any(before < sent_time <= time for sent_time in sent)
        }


def in_order(headers: list[Any], bubbles: list[Bubble]) -> tuple[list[Bubble], list[str]]:
    """Bubbles as headers name them, and names that no bubble has."""
    named = {bubble.id: bubble for bubble in bubbles}
    by_inner_id = {
        bubble.value.get("bubbleId"): bubble for bubble in bubbles if isinstance(bubble.value.get("bubbleId"), str)
    }
    by_number: dict[int, Bubble] = {}
    missing: list[str] = []
    for header in map(mapping, headers):
        name = header.get("bubbleId")
        bubble = named.get(name) or by_inner_id.get(name) if isinstance(name, str) else None
        if bubble is not None:
            bubble.role = bubble.role or (role_of({}, header) if "type" not in bubble.value else None)
            by_number.setdefault(bubble.number, bubble)
        elif isinstance(name, str) and name:
            missing.append(name)
    return list(by_number.values()), missing


def by_age(bubbles: list[Bubble], places: dict[int, int]) -> list[Bubble]:
    """By their times where all have one, else by where their rows lie."""
    times = {bubble.number: begun_at(bubble.value) for bubble in bubbles}
    if all(time is not None for time in times.values()):
        return sorted(bubbles, key=lambda bubble: (times[bubble.number] or 0, places[bubble.number]))
    return sorted(bubbles, key=lambda bubble: places[bubble.number])


# --- What lies elsewhere in the same home: transcripts beside the database that has all of a session, and folders of
# workspaces.

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
TRANSCRIPTS = "agent-transcripts"
GLOBAL = "Cursor/User/globalStorage/state.vscdb"
CONFIGS = (".config", "Library/Application Support", "AppData/Roaming")
"""Below a home, where VS Code's descendants keep their settings."""
HELD = (
    "SELECT DISTINCT substr(key, 10, 36) FROM cursorDiskKV"
    " WHERE key >= 'bubbleId:' AND key < 'bubbleId;' AND value IS NOT NULL"
)
IN_LOG = re.compile(rb"bubbleId:([0-9a-f-]{36}):")


def transcript_id(path: Path) -> str:
    """The session of a transcript, by its file's name; copies are renamed, so what looks like an id goes first."""
    match = UUID.search(path.stem) or (UUID.search(path.parent.name) if path.parent.name != "subagents" else None)
    return match[0].lower() if match else path.stem


def is_in_database(path: Path) -> bool:
    """Does a database of the same home have this transcript's session?"""
    home = next((parent for parent in path.parents if parent.name == ".cursor"), None)
    if home is None or TRANSCRIPTS not in path.parts:
        return False
    id = transcript_id(path)
    if any(home.glob(f"chats/*/{id}/store.db")):
        return True
    return any(id in sessions_in(home.parent / config / GLOBAL) for config in CONFIGS)


def sessions_in(database: Path) -> frozenset[str]:
    """Ids of the sessions that a database has bubbles of."""
    log = database.with_name(f"{database.name}-wal")
    try:
        stamps = tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in (database, log) if file.is_file())
        return _sessions_in(database, log, stamps) if stamps else frozenset()
    except OSError:
        return frozenset()


@lru_cache(maxsize=4)
def _sessions_in(database: Path, log: Path, stamps: tuple[tuple[int, int], ...]) -> frozenset[str]:
    """Looked up once for as long as the files are as they were."""
    session_ids = {row[0] for row in peek(database, HELD, table="cursorDiskKV") if isinstance(row[0], str)}
    if log.is_file():
        log_bytes = read_beneath(log, log.parent, most=SOURCE_LIMITS.held_bytes)
        session_ids |= {id.decode() for id in IN_LOG.findall(log_bytes)}
    return frozenset(session_ids)


def transcripts_of(database: Path) -> dict[str, Path]:
    """The transcripts of the same home, by session."""
    home = _home(database)
    return {} if home is None else _transcripts_in(home)


def _home(database: Path) -> Path | None:
    """`.cursor`, seen from one of the databases that belong to it."""
    if database.name == "store.db":
        return next((parent for parent in database.parents if parent.name == ".cursor"), None)
    if not str(database).endswith(GLOBAL):
        return None
    above = database.parents[3:6]
    return next((parent / ".cursor" for parent in above if (parent / ".cursor").is_dir()), None)


def _transcripts_in(home: Path) -> dict[str, Path]:
    try:
        paths = sorted(
            path for path in home.glob(f"projects/*/{TRANSCRIPTS}/**/*") if path.suffix in (".jsonl", ".txt")
        )
    except OSError:
        return {}
    return {transcript_id(path): path for path in paths if not path.is_symlink()}


def folder_of(database: Path) -> str | None:
    """The folder of a workspace's database, as `workspace.json` beside it tells."""
    try:
        fields = mapping(json_value(read_beneath(database.with_name("workspace.json"), database.parent)))
    except (OSError, ValueError):
        return None
    return path_of(fields.get("folder")) or path_of(fields.get("workspace")) or path_of(fields.get("configuration"))


def own_folder(*fields: dict[str, Any]) -> str | None:
    """As a session itself, or its entry in a list, tells."""
    for candidate in fields:
        identifier = mapping(candidate.get("workspaceIdentifier"))
        folder = path_of(identifier.get("uri")) or path_of(mapping(identifier.get("configPath")))
        if folder:
            return folder
    return None


def workspace_folders(database: Path) -> dict[str, str]:
    """Of sessions in the global database: by id, the folder of the workspace that lists them."""
    words: dict[str, str] = {}
    try:
        databases = sorted(database.parent.parent.glob("workspaceStorage/*/state.vscdb"))
    except OSError:
        return words
    for workspace_database in databases:
        folder = folder_of(workspace_database)
        try:
            ids = [] if folder is None else _listed(workspace_database)
        except (OSError, LimitExceeded):  # it is gone, or is not read: a link, a pipe, rows without end
            continue
        words |= {id: folder for id in ids if folder is not None}
    return words


def _listed(database: Path) -> list[str]:
    """Ids of the sessions of a workspace; one that cannot be read here is reported when it is imported itself."""
    with open_database(database, Report(str(database)), database.parent.parent) as copy:
        if copy is None or not copy.has("ItemTable", "key", "value"):
            return []
        try:
            rows = copy.rows("SELECT CAST(value AS BLOB) FROM ItemTable WHERE key = ?", (COMPOSERS,))
            value = mapping(decode_json_value(rows[0][0])) if rows else {}
        except (ValueError, *UNREADABLE):
            return []
    return [
        id for composer in map(mapping, sequence(value.get("allComposers"))) if (id := text(composer.get("composerId")))
    ]


# --- Turns of a session of bubbles: a user's bubble up to the next one.

BESIDE = ("conversationSummary", "cachedConversationSummary")


class Summary(Struct, frozen=True):
    """A summary, with the ids of bubbles."""

    words: str
    at: str | None
    """The last one when it was made."""
    through: str | None
    """The last that it stands for."""
    kept: str | None
    """The first that was still sent."""
    tokens_before: int | None = None

    @property
    def anchors(self) -> tuple[str, ...]:
        """Where it may lie, best first."""
        return tuple(id for id in (self.at, self.through) if id is not None)


def summaries(composer: dict[str, Any], bubbles: list[Bubble]) -> list[Summary]:
    """Each once, in the order of the bubbles that they end at."""
    candidates = [
        *((bubble.value.get(name), bubble.id) for bubble in bubbles for name in BESIDE),
        (composer.get("latestConversationSummary"), None),
    ]
    unique_summaries: dict[tuple[str, str | None], Summary] = {}
    for value, bubble_id in candidates:
        summary = _summary(value, bubble_id)
        if summary is not None:
            unique_summaries.setdefault((summary.words, summary.through), summary)
    return list(unique_summaries.values())


def _summary(value: Any, bubble_id: str | None) -> Summary | None:
    """Newer versions wrap it in an object of its own; older ones have the words there."""
    outer = mapping(value)
    inner = outer.get("summary")
    fields = mapping(inner) or outer
    words = text(inner) or text(mapping(inner).get("summary"))
    if words is None:
        return None
    last = text(outer.get("lastBubbleId")) or text(fields.get("lastBubbleId"))
    return Summary(
        words=words,
        at=last or bubble_id,
        through=text(fields.get("truncationLastBubbleIdInclusive")),
        kept=text(fields.get("clientShouldStartSendingFromInclusiveBubbleId")),
        tokens_before=whole_number(fields.get("tokensBefore")),
    )


ENDED = frozenset({"completed", "aborted", "cancelled", "canceled", "error"})
STOPPED = frozenset({"aborted", "cancelled", "canceled"})


class PlannedTurn(Struct):
    """A turn to be."""

    key: str
    bubbles: list[Bubble] = field(default_factory=list)
    summary: Summary | None = None


class Session(Struct):
    """One composer, or one tab of the older chat, as its turns need it."""

    id: str
    bubbles: list[Bubble]
    composer: dict[str, Any] = field(default_factory=dict)
    setting: Setting = field(default_factory=Setting)
    summaries: list[Summary] = field(default_factory=list)
    workspace: str | None = None
    missing: list[str] = field(default_factory=list)
    """Bubbles that the session names and that are not there."""
    headless: bool = False
    """Its bubbles are those that no header names."""
    starts: set[int] = field(default_factory=set)
    """Numbers of bubbles that do not go on from the one before them."""


class Turns:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._plans = plan_turns(session)
        self._places = {
            bubble.id: number
            for number, plan in enumerate(self._plans)
            for bubble in plan.bubbles
            if bubble.id is not None
        }

    def walk(self) -> Iterator[NativeTurn]:
        for number, plan in enumerate(self._plans):
            yield self._compacted(number, plan.summary, plan.key) if plan.summary else self._turn(number, plan)

    def _turn(self, number: int, plan: PlannedTurn) -> NativeTurn:
        session, values = self._session, [bubble.value for bubble in plan.bubbles]
        items = items_of(plan.bubbles, session.setting)
        times = [time for value in values for time in (begun_at(value), ended_at(value)) if time is not None]
        failures = [error for value in values if (error := bubble_error(value)) is not None]
        is_last = number == len(self._plans) - 1
        status = text(session.composer.get("status"))
        return NativeTurn(
            key=plan.key,
            records=tuple(canonical(bubble_identity(bubble)) for bubble in plan.bubbles),
            names=tuple(bubble.id for bubble in plan.bubbles if bubble.id is not None),
            items=items,
            parent=self._parent(number),
            closed=not is_last or is_finished(session, items),
            error=failures[-1] if failures else None,
            interrupted=is_last and status in STOPPED and not failures,
            started=min(times, default=None),
            ended=max(times, default=None),
            role=AgentRole.WORKER if session.setting.is_subagent else AgentRole.UNIFIED,
            workspace=session.workspace,
            tools=_tools(values),
            toolset=text(session.composer.get("unifiedMode")),
            config=_config(session.composer),
            metadata=present(without_header=session.headless or None, missing=session.missing if is_last else None),
            offset=plan.bubbles[0].number,
            end=self._end_number(number, plan.bubbles[-1].number + 1),
        )

    def _parent(self, number: int) -> int | None:
        """What no header names has no known place: each of its turns stands for itself."""
        return number - 1 if number and not self._session.headless else None

    def _end_number(self, number: int, end: int) -> int:
        """The last turn lies as far on as its session is old: one that was taken back and begun anew has fewer
        bubbles and is further on all the same."""
        if number < len(self._plans) - 1:
            return end
        composer, times = self._session.composer, [begun_at(bubble.value) or 0 for bubble in self._session.bubbles]
        updated = begun_at({"createdAt": composer.get("lastUpdatedAt")}) or 0
        return max(end, updated, *times, 0)

    def _compacted(self, number: int, summary: Summary, key: str) -> NativeTurn:
        through, first_kept = self._places.get(summary.through or ""), self._places.get(summary.kept or "")
        through = through if through is not None and through < number else None
        return NativeTurn(
            key=key,
            records=(canonical(["summary", summary.words, summary.through, summary.kept]),),
            parent=self._parent(number),
            compaction=NativeCompaction(
                summary=summary.words,
                through=through,
                first_kept=first_kept if first_kept is not None and first_kept < number else None,
                tokens_before=summary.tokens_before,
            ),
            workspace=self._session.workspace,
            offset=number,
            end=self._end_number(number, number + 1),
        )


def plan_turns(session: Session) -> list[PlannedTurn]:
    plans: list[PlannedTurn] = []
    used_keys: set[str] = set()
    for number, bubble in enumerate(session.bubbles):
        if not plans or is_prompt(bubble) or bubble.number in session.starts:
            plans.append(PlannedTurn(_key(session, bubble, number, used_keys)))
        plans[-1].bubbles.append(bubble)
    for summary in session.summaries:
        _place_summary(session.id, plans, summary)
    return plans


def _key(session: Session, bubble: Bubble, number: int, used_keys: set[str]) -> str:
    key = bubble.id if bubble.id is not None and bubble.id not in used_keys else f"{session.id}#{number}"
    used_keys.add(key)
    return key


def _place_summary(id: str, plans: list[PlannedTurn], summary: Summary) -> None:
    """After the turn in which it was made; one whose place is not known is in the session's metadata alone."""
    for anchor in summary.anchors:
        for position, plan in enumerate(plans):
            if any(bubble.id == anchor for bubble in plan.bubbles):
                key = f"{id}#summary#{summary.through or anchor}"
                if all(other_plan.key != key for other_plan in plans):
                    plans.insert(position + 1, PlannedTurn(key, summary=summary))
                return


def items_of(bubbles: list[Bubble], setting: Setting) -> tuple[Item, ...]:
    """A call without words of its own belongs to the message before it."""
    items: list[Item] = []
    answers = False
    for bubble in bubbles:
        if is_prompt(bubble):
            items.append(prompt_message(bubble, setting))
            answers = False
            continue
        call, answer = message_call(bubble), response_message(bubble, setting)
        if is_spoken(bubble) or (not answers if call else answer.files):
            items.append(answer)
            answers = True
        if call is not None:
            items.append(call)
    return tuple(items)


def is_finished(session: Session, items: tuple[Item, ...]) -> bool:
    """Does the session say that nothing more is on its way?"""
    status = text(session.composer.get("status"))
    if session.composer.get("generatingBubbleIds") or status == "generating":
        return False
    is_answered = any(isinstance(item, NativeMessage) and item.role == MessageRole.ASSISTANT for item in items)
    return is_answered or status in ENDED or session.headless


def _tools(values: list[dict[str, Any]]) -> tuple[str, ...] | None:
    """Those that the model was given, by the numbers that the bubbles have."""
    supported_tools = next((tools for value in values if (tools := sequence(value.get("supportedTools")))), [])
    names = {name for number in supported_tools if (name := tool_name(number)) is not None}
    return tuple(sorted(names)) or None


def _config(composer: dict[str, Any]) -> dict[str, Any] | None:
    fields = mapping(composer.get("modelConfig"))
    return present(
        model=text(fields.get("modelName")),
        max_mode=fields.get("maxMode") if isinstance(fields.get("maxMode"), bool) else None,
        mode=text(composer.get("unifiedMode")),
        forced=text(composer.get("forceMode")),
        agentic=composer.get("isAgentic") if isinstance(composer.get("isAgentic"), bool) else None,
    )


# --- `state.vscdb`, three generations: chats and composers of a workspace as one JSON text each, and composers of all
# workspaces as a row each, with a row for each of their bubbles.

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
        applied=_applied_versions(composer),
    )


def _applied_versions(composer: dict[str, Any]) -> dict[tuple[str, int], str]:
    """What became of suggested versions of files."""
    listed = [
        mapping(block) for versions in mapping(composer.get("codeBlockData")).values() for block in _as_list(versions)
    ]
    statuses = (
        (path_of(block.get("uri")), whole_number(block.get("version")) or 0, text(block.get("status")))
        for block in listed
    )
    return {(path, version): status for path, version, status in statuses if path is not None and status is not None}


def _as_list(value: Any) -> list[Any]:
    """Older versions have a list by file, newer ones an object."""
    return list(value.values()) if isinstance(value, dict) else sequence(value)


def composer_session(id: str, composer: dict[str, Any], listed: dict[str, Any], workspace: str | None) -> NativeSession:
    info = mapping(composer.get("subagentInfo")) or mapping(listed.get("subagentInfo"))
    merged = listed | {name: value for name, value in composer.items() if value is not None}
    updated = millis(merged.get("lastUpdatedAt")) or millis(composer.get("lastSendTime"))
    return NativeSession(
        id=id,
        title=text(composer.get("name")) or text(listed.get("name")) or text(composer.get("chatTitle")),
        workspace=workspace,
        git_branch=_branch(merged),
        created=millis(merged.get("createdAt")),
        parent=text(info.get("parentComposerId")),
        spawn_call=text(info.get("toolCallId")),
        agent=text(info.get("subagentTypeName")),
        archived=listed.get("isArchived") is True or composer.get("isArchived") is True,
        metadata=present(
            **{name: merged.get(name) for name in METADATA_FIELDS},
            model=mapping(composer.get("modelConfig")),
            updated=updated,
        ),
        told_at=updated,
    )


def _branch(composer: dict[str, Any]) -> str | None:
    """The one that it was begun on; else the one it stands on."""
    created_on = text(composer.get("createdOnBranch"))
    active = composer.get("activeBranch")
    return created_on or text(active) or text(mapping(active).get("branchName"))


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
    bubble_ids = {bubble.id for bubble in bubbles}
    return [summary.words for summary in summaries if bubble_ids.isdisjoint(summary.anchors)]


def read_database(path: Path, report: Report) -> Iterator[Transcript]:
    with open_database(path, report) as database:
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
        for id, keys in self._disk().items():
            yield from self._session(id, keys)

    def _read_items(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, data in self._rows.items():
            self._report.found += 1
            try:
                value = decode_json_value(data)
            except ValueError as error:
                self._report.damaged += 1
                self._report.problem(None, f"{key} is not readable: {error}"[:300])
                continue
            fields[key] = value
            (self._report.kept if key in IGNORED else self._report.mapped)[f"item.{key}"] += 1
            list_fields = {"tabs"} if key == CHATS else {"allComposers"} if key == COMPOSERS else set()
            other_fields = (
                {name: field for name, field in value.items() if name not in list_fields}
                if isinstance(value, dict)
                else value
            )
            self._aside.add_value(key, other_fields)
        return fields

    def _disk(self) -> dict[str, SessionRows]:
        """Sessions of rows, but for those in which nothing was ever said: most composers were only opened."""
        rows: dict[str, SessionRows] = {}
        for id, keys in self._rows.sessions().items():
            row = self._rows.row(keys.composer) if keys.composer is not None else None
            if keys.bubbles or (row is not None and (row.error is not None or _has_conversation(row.data))):
                rows[id] = keys
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
        lines.add_value(f"{kind}:{id}", {field: value for field, value in inline_session.items() if field != list_name})
        reading = RowReader(self._report, lines)
        bubbles = reading.inline(sequence(inline_session.get(list_name)))
        if kind == "tab" and bubbles and bubbles[-1].role == "user" and not message_text(bubbles[-1]):
            bubbles.pop()
            reading.count_kept("bubble.draft")  # the box for the next prompt
        workspace = own_folder(inline_session) or self._folder
        session = composer_session(id, inline_session, {}, workspace)
        yield _transcript_of(session, inline_session, reading.messages(bubbles), workspace, lines)

    def _session(self, id: str, keys: SessionRows) -> Iterator[Transcript]:
        lines = self._lines()
        disk = DiskSession(keys, self._rows, RowReader(self._report, lines))
        if (beside := self._transcripts.get(id)) is not None:
            disk.reading.keep_transcript(beside)
        listed_fields = self._listed.get(id, {})
        workspace = own_folder(disk.composer, listed_fields) or self._folder or self._listing().get(id)
        session = composer_session(id, disk.composer, listed_fields, workspace)
        if disk.named_bubbles or not disk.unnamed_bubbles:
            yield _transcript_of(session, disk.composer, disk.named_bubbles, workspace, lines, disk.missing)
            lines = RowLines()
        if disk.unnamed_bubbles:
            inner = Session(
                id=session.id, bubbles=disk.unnamed_bubbles, workspace=workspace, headless=True, starts=disk.starts()
            )
            inner.setting = composer_setting(disk.composer)
            apart = session_without_header(session)
            yield Transcript(session=apart, turns=Turns(inner).walk(), raw=lines.finish())

    def _listing(self) -> dict[str, str]:
        if self._folders is None:
            self._folders = workspace_folders(self._path) if self._path.parent.name == "globalStorage" else {}
        return self._folders


def _has_conversation(data: bytes | None) -> bool:
    try:
        value = mapping(decode_json_value(data)) if data is not None else {}
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
    if unplaced := unplaced_summaries(summed, bubbles):
        session.metadata = {**mapping(session.metadata), "summaries": unplaced}
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
