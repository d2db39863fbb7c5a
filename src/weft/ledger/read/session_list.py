"""What lists show: sessions and turns in the order of their last change as of a moment, what
they are about in a line each, what they cost, and which files a turn touched; and which passages of
a message were put there by a tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from heapq import merge
from itertools import islice
from posixpath import normpath
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from weft.kernel.contents import MAX_INTEGER
from weft.kernel.errors import Action, Damaged, InvalidInput
from weft.kernel.message_text import show_mentions
from weft.ledger.model import UNDATED, Branch, FileNote, Session
from weft.ledger.read.access import access_of
from weft.ledger.read.sessions import (
    NEWEST,
    PageRequest,
    Position,
    Projects,
    RepositoryOf,
    load_branches,
    load_on_behalf_of,
    session_folders,
    shown_labels,
    to_sessions,
)
from weft.ledger.read.turns import CHUNK
from weft.ledger.views.projector import when_of
from weft.ledger.views.rows import (
    SESSION,
    TURN,
    SessionRow,
    TurnRow,
    fields_of,
    list_in,
    load_turn,
    recorded,
    stream_of,
    text_of,
    turns_of_messages,
)
from weft.ledger.views.sessions import choose_version, is_last, stands_for, versions_among
from weft.store.fact_log import FactReader, refuse_standstill
from weft.store.port import ReadTxn, Store
from weft.store.sql import KEYS_PER_QUESTION, Row, Sql, rows_in

if TYPE_CHECKING:
    from weft.ledger.read.contexts import PromptChange

# --- When sessions had last changed at a moment: the order in which a list of them goes on from page to page.

_SIGHTING = b'"kind":"sighting"'
_STREAM = "session:"


class SessionChanges:
    """What the events beyond an arrival number say of sessions."""

    def __init__(self, facts: FactReader, arrival: int) -> None:
        self.ids: set[str] = set()
        """Sessions that they say something of."""
        self.before: dict[str, str | None] = {}
        """By the id of an event in the stream of a session: that of the event before it."""
        for n, line in facts.lines(arrival):
            stream = stream_of(n, line)
            if stream.startswith(_STREAM):
                self.ids.add(stream.removeprefix(_STREAM))
                self.before[sha256(line).hexdigest()] = fields_of(n, line).get("prev")
            elif _SIGHTING in line:
                self.ids.add(str(fields_of(n, line).get("session")))


class SessionTimes:
    """The times of the last change of sessions, as of an arrival number."""

    def __init__(self, txn: ReadTxn, arrival: int) -> None:
        self._txn, self.arrival = txn, arrival

    @cached_property
    def changes(self) -> SessionChanges:
        return SessionChanges(self._txn.facts, self.arrival)

    def position_of(self, row: SessionRow) -> Position | None:
        """A session's position in a list by time; none if it was made later."""
        if row.id not in self.changes.ids:
            return row.updated_at, row.n
        event_id: str | None = bytes(row.last_event).hex()
        while event_id in self.changes.before:
            event_id = self.changes.before[event_id]
        return None if event_id is None else (self._changed_at(row, event_id), row.n)

    def _changed_at(self, row: SessionRow, last: str) -> int:
        """When a session had changed, whose last event was this one."""
        if row.origin is not None:
            return self._imported_changed_at(row, last)
        query = "SELECT since, n FROM history WHERE session = ? AND n <= ? ORDER BY k DESC LIMIT 1"
        moved_at, moved = self._txn.sql.fetch_row(query, (row.n, self.arrival)) or (row.created_at, 0)
        return max([int(moved_at), *self._event_times(last, moved)])

    def _imported_changed_at(self, row: SessionRow, last: str) -> int:
        """Sources tell when the turns ended that the session moved to; the time of the import, which is that of the
        session's first event, does not count."""
        query = (
            "SELECT h.changed_at, t.synthesised FROM history h JOIN turn t ON t.id = h.turn"
            " WHERE h.session = ? AND h.n <= ? ORDER BY h.k"
        )
        moves = self._txn.sql.fetch_rows(query, (row.n, self.arrival))
        times = list(self._event_times(last, 0))[:-1]
        return max([*times, *(at for at, is_arrival in moves if is_arrival == 0)], default=row.created_at)

    def _event_times(self, last: str | None, after: int) -> Iterator[int]:
        """The times of a session's events from this one back to an arrival number."""
        while last is not None:
            n = self._txn.facts.find_event(bytes.fromhex(last))
            if n is None or n <= after:
                return
            logged = self._txn.facts.log(n - 1, 1)[0]
            event = recorded(n, logged.lines()[n - logged.first]).event
            yield when_of(event, logged.at)
            last = event.prev


# --- What turns are about, in a line each: what a person asked, not what was put before or beside it.

LOOKED_AT = 6
READ = 64 * 1024
BLOCKS = 32
LOOKED_AT_CHARS = 4096
LONGEST_CHARS = 400
"""Of a subject: more than a line of any screen shows."""
_OPENING = re.compile(r"<([A-Za-z][\w.:-]*)(?:\s[^<>]*)?>|<!--")
_ANNOUNCED = re.compile(r"[^\n<]{1,80}:[^\S\n]*\n\s*<([A-Za-z][\w.:-]*)(?:\s[^<>]*)?>")
_RAN = "Ran `"
"""Before a command whose output stands in the lines below it."""
_WEAK = ("/", "! ", _RAN, "[Request interrupted")
"""Commands that were typed or run, and what was called off."""
_NONE = (0, False, 0, "")
_UNTITLED = re.compile(r"(?:New|Child) session - \d{4}-\d\d-\d\d")


def load_subjects(txn: ReadTxn, turns: Sequence[str]) -> dict[str, str]:
    """The subject of each turn that has one; a few statements for hundreds of turns."""
    found: dict[str, str] = {}
    for start in range(0, len(turns), KEYS_PER_QUESTION):
        found |= _load_some(txn, turns[start : start + KEYS_PER_QUESTION])
    return found


class _Candidate(Struct):
    """A message that may tell what its turn is about, best rank first."""

    rank: int
    seq: int
    contents: list[int]


def _load_some(txn: ReadTxn, turns: Sequence[str]) -> dict[str, str]:
    summaries: dict[str, int] = dict(rows_in(txn.sql, "SELECT turn, summary FROM compaction WHERE turn IN", turns))
    candidates: dict[str, list[_Candidate]] = {}
    rows = rows_in(
        txn.sql,
        "SELECT t.id, t.n, m.role, m.source, m.seq, m.text, m.parts FROM turn t JOIN message m"
        f" ON m.turn = t.n WHERE (m.role = 'user' OR m.seq < {LOOKED_AT}) AND t.id IN",
        [turn for turn in turns if turn not in summaries],
    )
    may_read_prompt, of_rooms = access_of(txn).may_read_prompt, _in_rooms(txn, turns)
    for turn, n, role, source, seq, text, parts in rows:
        contents = [] if role == "system" and not may_read_prompt(n) else _text_contents(text, parts)
        contents = contents[-1:] if turn in of_rooms and role == "user" else contents[:LOOKED_AT]
        if contents:
            candidates.setdefault(turn, []).append(_Candidate(_rank_of_words(role, source), seq, contents))
    best = {turn: sorted(some, key=lambda each: (each.rank, each.seq))[:LOOKED_AT] for turn, some in candidates.items()}
    txn.facts.hold([*summaries.values(), *(n for some in best.values() for each in some for n in each.contents)])
    return {turn: in_one_line(text_of(txn, n) or "") for turn, n in summaries.items()} | {
        turn: show_mentions(_best_line(txn, some)) for turn, some in best.items()
    }


def _in_rooms(txn: ReadTxn, turns: Sequence[str]) -> set[str]:
    """Those of these turns that answer messages of conversations."""
    query = "SELECT i.turn FROM inbox i JOIN room_delivery d ON d.message = i.message WHERE i.turn IN"
    return {turn for (turn,) in rows_in(txn.sql, query, turns)}


def _text_contents(text: int | None, parts: str | None) -> list[int]:
    if text is not None:
        return [text]
    try:
        return [part["text"] for part in list_in(parts) if part["type"] == "text"]
    except (KeyError, TypeError) as error:
        raise Damaged(f"a message's part lacks {error}", Action.VERIFY_AND_REBUILD) from error


def _rank_of_words(role: str, source: str | None) -> int:
    """People's words, then what others sent in the user's place, then anything."""
    if role != "user":
        return 2
    return 0 if source in (None, "human") else 1


def _best_line(txn: ReadTxn, candidates: list[_Candidate]) -> str:
    ranked_lines = [(each.rank, best_line(text_of(txn, n) or "" for n in each.contents)) for each in candidates]
    return min(
        ((rank, line.startswith(_WEAK), i, line) for i, (rank, line) in enumerate(ranked_lines) if line), default=_NONE
    )[3]


def best_line(texts: Iterable[str]) -> str:
    """What was said, in one line, over the parts of one message; parts that are one tagged block come last."""
    tagged = ""
    for text in texts:
        words, is_tagged = _without_blocks(text)
        line = first_line(words) if words.startswith(_RAN) else in_one_line(words)
        if line and not is_tagged:
            return line
        tagged = tagged or line
    return tagged


def spoken(text: str) -> str:
    """What was typed or told, without the tagged blocks before it and the tags around it."""
    return _without_blocks(text)[0]


def _without_blocks(text: str) -> tuple[str, bool]:
    """What was typed or told; and whether it stood inside a tagged block, since nothing else was there."""
    text = text[:READ].strip()
    if text.startswith("<command-"):
        words = (_within_tag(text, "command-name"), _within_tag(text, "command-args"))
        return " ".join(word for word in words if word) or text, False
    if text.startswith("<bash-input>"):
        return f"! {_within_tag(text, 'bash-input')}", False
    is_tagged = False
    for _ in range(BLOCKS):
        announced = _ANNOUNCED.match(text)
        opening = announced or _OPENING.match(text)
        if opening is None:
            break
        closing = f"</{opening[1]}>" if opening[1] else "-->"
        end = text.find(closing)
        if end < 0:
            break
        after = "" if announced else text[end + len(closing) :].strip()
        inside = text[opening.end() : end].strip()
        is_tagged = is_tagged or not after
        text = after or _within_tag(inside, "summary") or inside
    return text, is_tagged


def _within_tag(text: str, tag: str) -> str:
    return text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0].strip()


def first_line(text: str) -> str:
    """The first line that says something; only as much of a long text as needed is looked at."""
    return next((line.strip() for line in text[:LOOKED_AT_CHARS].splitlines() if line.strip()), "")


def meaningful_title(title: str | None) -> str | None:
    """A session's title, if it says anything. Some tools put the time of creation there until they know more."""
    return title if title and not _UNTITLED.match(title) else None


def in_one_line(text: str) -> str:
    """The text with a space for every line break and run of blanks; the end of a long one is cut with an ellipsis."""
    line = " ".join(text[:LOOKED_AT_CHARS].split())
    if len(line) <= LONGEST_CHARS and len(text) <= LOOKED_AT_CHARS:
        return line
    return f"{line[:LONGEST_CHARS].rstrip()}…" if line else ""


# --- Which passages of a person's message were put there by a tool: reminders, opened files, wrappers of commands.

INJECTED_TAGS = frozenset(
    "additional_data agent-message bash-stderr bash-stdout collaboration_mode command-args command-contents"
    " command-message command-name current_datetime environment_context environment_details git_status hook_context"
    " ide_diagnostics ide_opened_file ide_selection local-command-caveat local-command-stderr local-command-stdout"
    " new-diagnostics open_and_recently_viewed_files project_layout qwen:user-prompt-submit-context session_context"
    " session-start-hook skills_instructions system-reminder system_reminder task-notification teammate-message"
    " turn_aborted user_info user_instructions user-prompt-submit-hook".split()
)
INSTRUCTIONS_TAG = "INSTRUCTIONS"
"""People write it too: it counts only below the heading that Codex writes above it."""
COMMANDS = ("<command-name>", "<command-message>", "<bash-input>")
_PASSAGE_OPENING = re.compile(r"^[^\S\n]*<([A-Za-z][\w:-]{0,60})(?:[^\S\n][^<>\n]{0,300})?>", re.MULTILINE)
LONGEST_HEADING_CHARS = 1_000
_HEADING = re.compile(r"^# AGENTS\.md instructions[^\n]*\n\s*\Z", re.MULTILINE)
"""What Codex writes above its instructions."""


class MessagePassage(Struct, frozen=True):
    """A piece of a message's text, and whether a tool put it there."""

    text: str
    is_injected: bool = False

    @property
    def tag(self) -> str:
        """The name of the tag that it begins with; empty where it has none."""
        opening = _PASSAGE_OPENING.search(self.text) if self.is_injected else None
        return "" if opening is None else opening[1]


def message_passages(text: str) -> list[MessagePassage]:
    """A text in pieces, one after the other; together they are the text."""
    pieces: list[MessagePassage] = []
    typed_from = 0
    for start, end in _injected_spans(text):
        if text[typed_from:start].strip():
            pieces.append(MessagePassage(text[typed_from:start]))
        else:
            start = typed_from
        pieces.append(MessagePassage(text[start:end], is_injected=True))
        typed_from = end
    if text[typed_from:].strip() or not pieces:
        pieces.append(MessagePassage(text[typed_from:]))
    elif typed_from < len(text):
        pieces[-1] = MessagePassage(pieces[-1].text + text[typed_from:], is_injected=True)
    return pieces


def _injected_spans(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    open_tags: set[str] = set()
    """Those that are not closed from here on."""
    while (opening := _PASSAGE_OPENING.search(text, at)) is not None:
        start, tag = opening.start(), opening[1]
        heading = _heading_above(text, at, start) if tag == INSTRUCTIONS_TAG else None
        at = opening.end()
        if tag in open_tags or (heading is None and tag not in INJECTED_TAGS):
            continue
        closing = f"</{tag}>"
        end = text.find(closing, at)
        if end < 0:
            open_tags.add(tag)
            continue
        at = _line_end(text, end + len(closing))
        yield start if heading is None else heading, at


def _heading_above(text: str, after: int, start: int) -> int | None:
    heading = _HEADING.search(text, max(after, start - LONGEST_HEADING_CHARS), start)
    return None if heading is None else heading.start()


def _line_end(text: str, at: int) -> int:
    """Behind the line break after `at`, where nothing else stands before it; else `at`."""
    end = text.find("\n", at)
    return end + 1 if end >= 0 and not text[at:end].strip() else at


def typed_command(text: str) -> str | None:
    """The command that a person typed, where a message is a tool's record of one; such as `/review 12` or `! ls`."""
    return spoken(text) if text[:200].lstrip().startswith(COMMANDS) else None


# --- What lists show: sessions with what they are about and cost, subjects of many turns, the files of a turn.

HERE = "weft"
"""The origin of what was recorded here, where filters and lists name one."""
_FIRST_TURNS = (
    "SELECT s.n, COALESCE((SELECT h.turn FROM history h WHERE h.session = s.n AND h.why = 'turn'"
    " ORDER BY h.k LIMIT 1), s.head) FROM session s WHERE s.n IN"
)
_TOKENS = "SELECT id, tokens_before + COALESCE(total_tokens, 0) FROM turn WHERE id IN"


class SessionFilter(Struct, frozen=True, kw_only=True):
    """Which sessions to list; null: whatever it is."""

    origin: str | None = None
    project: str | None = None
    labels: tuple[str, ...] | None = None
    """Only sessions of these labels."""
    since: int | str | None = None
    """Unix milliseconds, or words such as '2 days ago'."""
    every: bool = False
    """Archived and deleted ones too."""
    subagents: bool = False


class ListedSession(Struct, frozen=True, kw_only=True):
    """A session as lists show it."""

    session: Session
    short_label: str
    project: str
    """The name of the repository that it worked in, where one is known; else the last part of its workspace, and `~`
    for somebody's home."""
    depth: int
    total_tokens: int
    subject: str
    """What it was first asked to do, where it has no title."""
    subagents: int
    branches: tuple[Branch, ...] = ()
    """Where other replicas' branches of it stand."""

    @property
    def title(self) -> str:
        """What lists call it: its title, its task, or what it was first asked to do."""
        own_title = meaningful_title(self.session.title)
        return own_title or self.session.task_description or self.subject or self.session.title or ""


class SessionList(Struct, frozen=True):
    """Listed sessions, with what they are about and cost."""

    sessions: list[ListedSession]
    hidden: int
    """Subagents' sessions that were left out."""
    further: int
    """Sessions behind this page."""
    next: str | None = None
    """The cursor of the next page; null: there is none."""
    empty: int = 0
    """Sessions of imports and of rooms without a turn that were left out."""


class ListReader:
    """Reads what lists need from one ledger; `parse_time` understands words for a time, `now` is the present one."""

    def __init__(
        self,
        store: Store,
        parse_time: Callable[..., int],
        now: Callable[[], int],
        repository_of: RepositoryOf | None = None,
    ) -> None:
        self._store, self._parse_time, self._now = store, parse_time, now
        self._repository_of = repository_of

    def sessions(self, wanted: SessionFilter, *, limit: int | None = None, after: str | None = None) -> SessionList:
        """The latest first; those of subagents below the session that started them. Pages are as those of
        `Ledger.sessions`."""
        request = PageRequest("listing", self._store.replica, to_builtins(wanted), limit, after)
        since = None if wanted.since is None else self._parse_time(wanted.since, now=request.now)
        with self._store.read() as txn:
            start, projects = request.begin(txn.facts.tip().n, self._now()), Projects(txn, self._repository_of)
            found = [
                SessionRow(*row) for row in txn.sql.fetch_rows(f"{SESSION.select} ORDER BY updated_at DESC, n DESC")
            ]
            rows = list(filter(access_of(txn).may_read, found))
            places = _positions_by_session(rows, SessionTimes(txn, start.arrival))
            fit = [row for row in rows if row.n in places and _session_fits(row, wanted, since)]
            fit.sort(key=lambda row: places[row.n], reverse=True)
            if wanted.project is not None:
                fit = of_project(txn, fit, wanted.project, projects)
            every, fit = len(fit), fit if wanted.every else _with_turns(txn, fit)
            main = [row for row in fit if not is_subagent(row)]
            chosen = _nested_sessions(fit) if wanted.subagents else main
            ordered = _rows_behind(_position_paths(chosen, places, nested=wanted.subagents), start.position)
            page = request.page(start, ordered)
            hidden = 0 if wanted.subagents else len(fit) - len(main)
            further, empty = len(ordered) - len(page), every - len(fit)
            return SessionList(_listed_sessions(txn, page, rows, projects), hidden, further, page.next, empty)

    def short_labels(self) -> dict[str, str]:
        """By label what listings show of every session that is not deleted."""
        with self._store.read() as txn:
            rows = (SessionRow(*row) for row in txn.sql.fetch_rows(SESSION.select))
            return shown_labels(txn.sql, filter(access_of(txn).may_read, rows))

    def subjects(self, turns: Sequence[str]) -> dict[str, str]:
        """What each of these turns is about, by its id."""
        with self._store.read() as txn:
            return load_subjects(txn, _readable_turns(txn, turns))

    def on_behalf_of(self, turns: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """By turn the names of those on whose behalf it was run, the nearest first; others are left out."""
        with self._store.read() as txn:
            return load_on_behalf_of(txn, _readable_turns(txn, turns))

    def prompt_changes(self, turn: str) -> list[PromptChange]:
        """Of the requests of a turn, those that did not begin with all of the request before them, and from where on;
        none where it cannot be read."""
        from weft.ledger.read.contexts import prompt_changes

        with self._store.read() as txn:
            row = load_turn(txn.sql, turn)
            return [] if row is None or not _readable_turns(txn, [turn]) else prompt_changes(txn, row)

    def sources(self) -> dict[str, list[tuple[str, str]]]:
        """Every turn that was picked or summed up and can be read: which way, and from which turns that can."""
        query = (
            "SELECT child, why, parent FROM link WHERE why IN ('cherry_pick', 'summary') ORDER BY child, why, parent"
        )
        found: dict[str, list[tuple[str, str]]] = {}
        with self._store.read() as txn:
            links = txn.sql.fetch_rows(query)
            turns = set(_readable_turns(txn, {turn for child, _, parent in links for turn in (child, parent)}))
            for child, why, parent in links:
                if {child, parent} <= turns:
                    found.setdefault(child, []).append((why, parent))
        return found

    def projects(self, folders: Iterable[str]) -> dict[str, str]:
        """The name of the project that each of these folders belongs to."""
        with self._store.read() as txn:
            projects = Projects(txn, self._repository_of)
            return {folder: projects.name(folder) for folder in folders}

    def files(self, messages: Iterable[str]) -> dict[str, list[FileNote]]:
        """The files that each of these messages read, wrote, referred to or carried."""
        with self._store.read() as txn:
            return load_files(txn, _readable_messages(txn, messages))


def _readable_turns(txn: ReadTxn, turns: Iterable[str]) -> list[str]:
    """Those of these turns that can be read."""
    access = access_of(txn)
    if access.is_unlimited:
        return list(turns)
    rows = rows_in(txn.sql, f"{TURN.select} WHERE id IN", list(turns))
    return [turn.id for turn in (TurnRow(*row) for row in rows) if access.may_read_turn(turn)]


def _readable_messages(txn: ReadTxn, messages: Iterable[str]) -> list[str]:
    """Those of these messages whose turns can be read."""
    ids, access = list(messages), access_of(txn)
    if access.is_unlimited:
        return ids
    turns = turns_of_messages(txn.sql, ids)
    readable = {turn.id for turn in {turn.id: turn for turn in turns.values()}.values() if access.may_read_turn(turn)}
    return [message for message in ids if message in turns and turns[message].id in readable]


def load_files(txn: ReadTxn, messages: Iterable[str]) -> dict[str, list[FileNote]]:
    found: dict[str, list[FileNote]] = {}
    query = "SELECT message, kind, path, line_start, line_end FROM message_file WHERE message IN"
    rows = sorted(rows_in(txn.sql, query, messages), key=lambda row: str(row[0]))
    txn.facts.hold(row[2] for row in rows)
    for message, kind, path, start, end in rows:
        note = FileNote(kind=kind, path=text_of(txn, path) or "", line_start=start, line_end=end)
        found.setdefault(message, []).append(note)
    return found


def is_subagent(row: SessionRow) -> bool:
    return row.parent_session is not None or row.parent_turn is not None


def _session_fits(row: SessionRow, wanted: SessionFilter, since: int | None) -> bool:
    return (
        (wanted.every or row.status == "active")
        and wanted.origin in (None, row.origin or HERE)
        and (wanted.labels is None or row.label in wanted.labels)
        and (since is None or row.updated_at >= since)
    )


def _with_turns(txn: ReadTxn, rows: list[SessionRow]) -> list[SessionRow]:
    """Without imported sessions of which nothing is a turn, nor will be one soon: state that a tool saved, or a file
    that somebody opened and left; and without those that agents of a room have answered nothing in. Another one that is
    made here is listed before its first turn, too."""
    begun = {session for (session,) in txn.sql.fetch_rows("SELECT DISTINCT session FROM provisional")}
    of_rooms = {
        session for (session,) in txn.sql.fetch_rows("SELECT session FROM participant WHERE session IS NOT NULL")
    }

    def is_shown(row: SessionRow) -> bool:
        return row.head is not None or row.id in begun or (row.origin is None and row.id not in of_rooms)

    return list(filter(is_shown, rows))


def _positions_by_session(rows: list[SessionRow], times: SessionTimes) -> dict[int, Position]:
    """By the numbers of sessions: their positions in the order of time, without those that were made since."""
    positions = {row.n: times.position_of(row) for row in rows}
    return {n: position for n, position in positions.items() if position is not None}


def _position_paths(
    rows: list[SessionRow], places: dict[int, Position], *, nested: bool
) -> list[tuple[Position, SessionRow]]:
    """Each session with the positions of those above it and its own."""
    paths: dict[str, Position] = {}
    for row in rows:
        above = paths.get(row.parent_session or "", ()) if nested else ()
        paths[row.id] = (*above, *places[row.n])
    return [(paths[row.id], row) for row in rows]


def _rows_behind(rows: list[tuple[Position, SessionRow]], place: Position) -> list[tuple[Position, SessionRow]]:
    """Those behind a place. A session comes before those that it started, and these before whatever is older."""

    def is_behind(path: Position) -> bool:
        shared = min(len(path), len(place))
        return len(path) > len(place) if path[:shared] == place[:shared] else path < place

    return [(path, row) for path, row in rows if is_behind(path)]


def of_project(txn: ReadTxn, rows: list[SessionRow], project: str, projects: Projects) -> list[SessionRow]:
    """Sessions whose folder belongs to this project: by its name, its repository or its folder, in any case."""
    folders = zip(rows, session_folders(txn, rows), strict=True)
    return [row for row, folder in folders if projects.is_in(folder, project)]


def has_title(session: Session) -> bool:
    """Does its title say anything?"""
    return meaningful_title(session.title) is not None


def _nested_sessions(rows: list[SessionRow]) -> list[SessionRow]:
    """Each session followed by those that it started, and these by theirs."""
    known = {row.id for row in rows}
    below: dict[str | None, list[SessionRow]] = {}
    for row in rows:
        parent = row.parent_session if row.parent_session in known and row.parent_session != row.id else None
        below.setdefault(parent, []).append(row)
    ordered, stack = [], below.pop(None, [])[::-1]
    while stack or below:
        if not stack:  # sessions that name each other as their parents
            stack = below.pop(next(iter(below)))[::-1]
        row = stack.pop()
        ordered.append(row)
        stack += below.pop(row.id, [])[::-1]
    return ordered


def _listed_sessions(
    txn: ReadTxn, rows: list[SessionRow], every: list[SessionRow], projects: Projects
) -> list[ListedSession]:
    tokens: dict[str | None, int] = dict(rows_in(txn.sql, _TOKENS, (row.head for row in rows if row.head)))
    sessions = to_sessions(txn, rows)
    untitled = [row for row, session in zip(rows, sessions, strict=True) if not has_title(session)]
    first = _first_turns(txn.sql, untitled)
    subjects = load_subjects(txn, list(dict.fromkeys(first.values())))
    labels = shown_labels(txn.sql, every)
    branches: dict[str, list[Branch]] = {}
    for branch in load_branches(txn):
        branches.setdefault(branch.session_id, []).append(branch)
    children: dict[str, int] = {}
    for row in every:
        if row.parent_session and row.status != "deleted":
            children[row.parent_session] = children.get(row.parent_session, 0) + 1
    return [
        ListedSession(
            session=session,
            short_label=labels.get(row.label, row.label),
            project=projects.name(folder),
            depth=row.head_depth or 0,
            total_tokens=tokens.get(row.head, 0),
            subject=subjects.get(first.get(row.n, ""), ""),
            subagents=children.get(row.id, 0),
            branches=tuple(branches.get(row.id, ())),
        )
        for row, session, folder in zip(rows, sessions, session_folders(txn, rows), strict=True)
    ]


def _first_turns(sql: Sql, rows: list[SessionRow]) -> dict[int, str]:
    """The first turn that each session made; of one that made none, where it stands."""
    return {n: turn for n, turn in rows_in(sql, _FIRST_TURNS, (row.n for row in rows)) if turn is not None}


# --- Lists of turns by their time, the newest first, as of a moment.

_REPLACED = "SELECT s.turn, s.by, s.round, b.n FROM superseded s JOIN turn b ON b.id = s.by WHERE s.turn IN"
_SUPERSEDED, _SIGHTING_KIND = b'"kind":"turn_superseded"', b'"kind":"sighting"'
Pair = tuple[str, str, int]
"""A turn, the one that a source put in its place, and the round of that."""


class CurrentTurns:
    """Which turns were current at a moment, by the number of the newest event then."""

    def __init__(self, txn: ReadTxn, arrival: int) -> None:
        self._sql, self._facts, self.arrival = txn.sql, txn.facts, arrival
        self.is_now = arrival >= txn.facts.tip().n
        """Nothing has arrived since."""
        self._rounds: tuple[int, dict[tuple[str, str], int]] | None = None

    def among(self, rows: Sequence[TurnRow]) -> list[TurnRow]:
        """Those of these turns that were current, in the same order."""
        arrived = [row for row in rows if row.n <= self.arrival]
        if self.is_now:
            return [row for row in arrived if row.current]
        versions = self._versions_by_number(arrived)
        replaced = self._replacements_of(row.id for group in versions.values() for row in group)
        return [row for row in arrived if self._was_current(row, versions.get(row.n, [row]), replaced)]

    def _versions_by_number(self, rows: Iterable[TurnRow]) -> dict[int, list[TurnRow]]:
        """By the number of a turn: all with its native id; of one that is current and has no other, nothing."""
        natives = {row.native for row in rows if row.native}
        groups: dict[int, list[TurnRow]] = {}
        for values in rows_in(self._sql, f"{TURN.select} WHERE native IN", natives):
            version = TurnRow(*values)
            groups.setdefault(version.native or 0, []).append(version)
        found = {row.n: groups.get(row.native or 0, [row]) for row in rows}
        return {n: group for n, group in found.items() if len(group) > 1 or not group[0].current}

    def _replacements_of(self, ids: Iterable[str]) -> dict[str, list[tuple[Pair, int]]]:
        """By turn: what was put in its place, with the number of that turn."""
        found: dict[str, list[tuple[Pair, int]]] = {}
        for turn, by, round, n in rows_in(self._sql, _REPLACED, ids):
            found.setdefault(turn, []).append(((turn, by, round), n))
        return found

    def _was_current(self, row: TurnRow, group: list[TurnRow], replaced: dict[str, list[tuple[Pair, int]]]) -> bool:
        if len(group) == 1 and row.current:
            return True
        namesakes = [version for version in group if version.n <= self.arrival]
        ids = {version.id for version in namesakes}
        rounds: dict[tuple[str, str], int] | None = None
        if self._later_events.superseded.isdisjoint(ids):
            pairs = [pair for id in ids for pair, n in replaced.get(id, ()) if n <= self.arrival]
        else:
            rounds = self._rounds_since(min(version.n for version in namesakes))
            pairs = [(turn, by, round) for (turn, by), round in rounds.items() if turn in ids]
        others = [version for version in namesakes if version.n != row.n and version.closed]
        versions = versions_among(self._sql, row, others, [(turn, by) for turn, by, _ in pairs])
        ids = {version.id for version in versions}
        pairs = [pair for pair in pairs if pair[0] in ids]
        outside = [pair for pair in pairs if pair[1] not in ids]
        if rounds is None:
            taken_in = {turn for turn, by, round in outside if stands_for(self._sql, turn, by, round)}
        else:
            taken_in = {turn for turn, by, round in outside if is_last(turn, by, round, rounds.get((by, turn)))}
        chosen = choose_version(versions, pairs, taken_in)
        return chosen is not None and chosen.n == row.n

    def _rounds_since(self, first: int) -> dict[tuple[str, str], int]:
        """What stood in place of what at the moment, and in which round, as the events from this number on said until
        then. The view has the last round alone, so this is read from the log, where somebody went on since."""
        if self._rounds is None or first < self._rounds[0]:
            rounds: dict[tuple[str, str], int] = {}
            for n, line in self._facts.lines(first, self.arrival):
                if _SUPERSEDED in line and (event := fields_of(n, line))["kind"] == "turn_superseded":
                    pair = event["turn"], event["by"]
                    rounds[pair] = max(rounds.get(pair, 0), event.get("round", 0))
            self._rounds = first, rounds
        return self._rounds[1]

    @cached_property
    def _later_events(self) -> LaterEvents:
        return LaterEvents(self._facts, self.arrival)

    @cached_property
    def moved(self) -> dict[int, tuple[Position, TurnRow]]:
        """Turns that another time was told of since, by their numbers: the position that each had before."""
        if self.is_now:
            return {}
        rows = [TurnRow(*row) for row in rows_in(self._sql, f"{TURN.select} WHERE id IN", self._later_events.sightings)]
        places = {
            row.n: ((self._listed_before(row), row.n), row)
            for row in rows
            if row.n <= self.arrival
            and row.seen is not None
            and bytes(row.seen) in self._later_events.sightings[row.id]
        }
        return {n: (place, row) for n, (place, row) in places.items() if place != order_of(row)}

    def _listed_before(self, row: TurnRow) -> int:
        """The time that a turn was listed by: the earliest one that any source told until then; without one, that of
        the turn it follows, if any. Of several sources the first one mostly tells what the others do."""
        starts: list[int] = []
        for n, line in self._facts.lines(row.n, self.arrival):
            if _SIGHTING_KIND in line and row.id.encode() in line:
                event = fields_of(n, line)
                if event.get("turn") == row.id and event.get("started") is not None:
                    starts.append(event["started"])
                    if starts == [row.seen_at]:
                        return row.listed_at
        parent = None if row.parent is None else load_turn(self._sql, row.parent)
        if not starts:
            return parent.listed_at if parent else UNDATED
        return max(min(starts), parent.listed_at if parent else -MAX_INTEGER)

    def position_of(self, row: TurnRow) -> Position:
        """A turn's position in a list by time."""
        return self.moved[row.n][0] if row.n in self.moved else order_of(row)

    def in_order(self, rows: Iterable[TurnRow]) -> list[TurnRow]:
        """The newest first."""
        return sorted(rows, key=self.position_of, reverse=True)


class LaterEvents:
    """What the events beyond an arrival number say of turns that came before them."""

    def __init__(self, facts: FactReader, arrival: int) -> None:
        self.superseded: set[str] = set()
        """Turns that were put in place of others, and those others."""
        self.sightings: dict[str, set[bytes]] = {}
        """By turn: the ids of the sightings that tell of it."""
        for n, line in facts.lines(arrival):
            if _SUPERSEDED in line or _SIGHTING_KIND in line:
                self._take_event(fields_of(n, line), line)

    def _take_event(self, event: dict[str, Any], line: bytes) -> None:
        if event["kind"] == "turn_superseded":
            self.superseded |= {event["turn"], event["by"]}
        elif event["kind"] == "sighting" and "turn" in event:
            self.sightings.setdefault(event["turn"], set()).add(sha256(line).digest())


def newest_turns(
    sql: Sql, current: CurrentTurns, before: Position = NEWEST, *, session: int | None = None, chunk: int = CHUNK
) -> Iterator[TurnRow]:
    """Turns that were current, the newest first, children before their parents: a clock that went back counts as
    standing still. `before` is the position behind which the list goes on; `chunk` turns are read at a time."""
    fits = "current = 1 AND " if current.is_now else ""
    fits += "" if session is None else "session = ? AND "
    rows = turns_by_time(sql, current, before, chunk, fits, () if session is None else (session,))
    while some := list(islice(rows, chunk)):
        yield from (row for row in current.among(some) if session in (None, row.session))


def turns_by_time(
    sql: Sql, current: CurrentTurns, before: Position, chunk: int, fits: str = "", values: tuple[int, ...] = ()
) -> Iterator[TurnRow]:
    """Turns behind a position, the newest first, each where it stood at the moment of `current`; `fits` is a further
    condition that ends with AND, which turns that moved since then need not fulfil."""
    moved = [row for place, row in current.moved.values() if place < before]
    others = _where_they_stand(sql, current.moved, before, chunk, fits, values)
    return merge(current.in_order(moved), others, key=current.position_of, reverse=True)


def _where_they_stand(
    sql: Sql, without: Container[int], place: Position, chunk: int, fits: str, values: tuple[int, ...]
) -> Iterator[TurnRow]:
    while rows := turns_before(sql, place, chunk, fits, values):
        yield from (row for row in rows if row.n not in without)
        refuse_standstill("turn", place, order_of(rows[-1]))
        place = order_of(rows[-1])


def turns_before(sql: Sql, place: Position, limit: int, fits: str = "", values: tuple[int, ...] = ()) -> list[TurnRow]:
    """So many turns before a place in the order of time, the newest first; `fits` is a further condition that ends with
    AND. Two statements, each of which an index leads to its first row: many turns may have one time."""
    at, n = place
    query = f"{TURN.select} WHERE {fits}listed_at = ? AND n < ? ORDER BY n DESC LIMIT ?"
    rows = sql.fetch_rows(query, (*values, at, n, limit))
    if len(rows) < limit:
        query = f"{TURN.select} WHERE {fits}listed_at < ? ORDER BY listed_at DESC, n DESC LIMIT ?"
        rows = [*rows, *sql.fetch_rows(query, (*values, at, limit - len(rows)))]
    return [TurnRow(*row) for row in rows]


def order_of(row: TurnRow) -> Position:
    """A turn's position in a list by time, as it is now."""
    return row.listed_at, row.n


# --- Which turns touched a file: read it, wrote it, referred to it or carried it.

_TOUCHES = (
    "SELECT f.path, f.id, f.message, f.kind, f.line_start, f.line_end, t.id, t.workspace, t.session, t.listed_at, t.n,"
    " t.synthesised"
    " FROM message_file f JOIN turn t ON t.n = (SELECT n FROM turn WHERE id < f.message ORDER BY id DESC LIMIT 1)"
    " WHERE t.current = 1 AND f.path IN"
)


class Touch(Struct, frozen=True, kw_only=True):
    """A turn's note of a file."""

    turn_id: str
    message_id: str
    kind: str
    path: str
    full_path: str
    """With the turn's workspace before it, where it was relative and that is known."""
    line_start: int | None
    line_end: int | None
    touched_at: int
    time_known: bool = True
    """False: its origin gives no time, and it stands where its turn came in."""
    session_id: str | None


class WantedPath:
    """What a person calls a file."""

    def __init__(self, path: str) -> None:
        words = _with_slashes(path)
        if not words.strip("/"):
            raise InvalidInput(f"{path!r} names no file", "give a path, or the end of one")
        self._is_end = not _is_absolute(words)
        self._path = normpath(words)

    def fits(self, path: str, workspace: str | None) -> bool:
        return self.is_at(full_path(path, workspace))

    def is_at(self, full: str) -> bool:
        return full == self._path or (self._is_end and full.endswith(f"/{self._path}"))

    def may_fit(self, path: str) -> bool:
        """Can it be the wanted one in some workspace?"""
        name = normpath(_with_slashes(path))
        return self.is_at(name) or self._path.endswith(f"/{name}")


def full_path(path: str, workspace: str | None) -> str:
    words = _with_slashes(path)
    return normpath(words if _is_absolute(words) or not workspace else f"{_with_slashes(workspace)}/{words}")


def _with_slashes(path: str) -> str:
    return path.replace("\\", "/")


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or path[1:3] == ":/"


def touches(txn: ReadTxn, path: str) -> list[Touch]:
    """Every note of this file, the newest first."""
    wanted = WantedPath(path)
    names = dict(_names_of_file(txn, wanted))
    rows = list(rows_in(txn.sql, _TOUCHES, names))
    txn.facts.hold({row[7] for row in rows if row[7]})
    sessions: dict[int | None, str] = dict(
        rows_in(txn.sql, "SELECT n, id FROM session WHERE n IN", {row[8] for row in rows if row[8] is not None})
    )
    rows.sort(key=lambda row: (row[9], row[10], row[1]), reverse=True)
    found = (_file_touch(txn, row, names[row[0]], sessions.get(row[8])) for row in rows)
    return [touch for touch in found if wanted.is_at(touch.full_path)]


def _names_of_file(txn: ReadTxn, wanted: WantedPath) -> Iterator[tuple[int, str]]:
    """The contents that can be a name of the file. A ledger has far fewer names of files than notes of them."""
    numbers = [n for (n,) in txn.sql.fetch_rows("SELECT DISTINCT path FROM message_file")]
    txn.facts.hold(numbers)
    for n in numbers:
        name = text_of(txn, n) or ""
        if wanted.may_fit(name):
            yield n, name


def _file_touch(txn: ReadTxn, row: Row, name: str, session: str | None) -> Touch:
    _, _, message, kind, start, end, turn, workspace, _, at, _, synthesised = row
    return Touch(
        turn_id=turn,
        message_id=message,
        kind=kind,
        path=name,
        full_path=full_path(name, text_of(txn, workspace)),
        line_start=start,
        line_end=end,
        touched_at=at,
        time_known=not synthesised,
        session_id=session,
    )
