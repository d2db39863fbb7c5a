"""What lists show: sessions with what they are about and cost, subjects of many turns, the files of a turn.

A list costs a few statements in all, however long it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, to_builtins

from weft.ledger.model import Branch, FileNote, Session
from weft.ledger.read.access import access_of
from weft.ledger.read.label_prefixes import shown_labels
from weft.ledger.read.pages import PageRequest, Position
from weft.ledger.read.principals import load_on_behalf_of
from weft.ledger.read.projects import Projects, RepositoryOf, session_folders
from weft.ledger.read.session_times import SessionTimes
from weft.ledger.read.sessions import load_branches, to_sessions
from weft.ledger.read.turn_titles import load_subjects, meaningful_title
from weft.ledger.views.rows import SESSION, TURN, SessionRow, TurnRow, turns_of_messages
from weft.ledger.views.values import text_of
from weft.store.port import ReadTxn, Store
from weft.store.sql import Sql, rows_in

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
            found = [SessionRow(*row) for row in txn.sql.all(f"{SESSION.select} ORDER BY updated_at DESC, n DESC")]
            rows = list(filter(access_of(txn).may_read, found))
            places = _places(rows, SessionTimes(txn, start.arrival))
            fit = [row for row in rows if row.n in places and _fits(row, wanted, since)]
            fit.sort(key=lambda row: places[row.n], reverse=True)
            if wanted.project is not None:
                fit = of_project(txn, fit, wanted.project, projects)
            every, fit = len(fit), fit if wanted.every else _with_turns(txn, fit)
            main = [row for row in fit if not is_subagent(row)]
            chosen = _nested(fit) if wanted.subagents else main
            ordered = _behind(_paths(chosen, places, nested=wanted.subagents), start.position)
            page = request.page(start, ordered)
            hidden = 0 if wanted.subagents else len(fit) - len(main)
            further, empty = len(ordered) - len(page), every - len(fit)
            return SessionList(_listed(txn, page, rows, projects), hidden, further, page.next, empty)

    def short_labels(self) -> dict[str, str]:
        """By label what listings show of every session that is not deleted."""
        with self._store.read() as txn:
            rows = (SessionRow(*row) for row in txn.sql.all(SESSION.select))
            return shown_labels(txn.sql, filter(access_of(txn).may_read, rows))

    def subjects(self, turns: Sequence[str]) -> dict[str, str]:
        """What each of these turns is about, by its id."""
        with self._store.read() as txn:
            return load_subjects(txn, _readable(txn, turns))

    def on_behalf_of(self, turns: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """By turn the names of those on whose behalf it was run, the nearest first; others are left out."""
        with self._store.read() as txn:
            return load_on_behalf_of(txn, _readable(txn, turns))

    def sources(self) -> dict[str, list[tuple[str, str]]]:
        """Every turn that was picked or summed up and can be read: which way, and from which turns that can."""
        query = (
            "SELECT child, why, parent FROM link WHERE why IN ('cherry_pick', 'summary') ORDER BY child, why, parent"
        )
        found: dict[str, list[tuple[str, str]]] = {}
        with self._store.read() as txn:
            links = txn.sql.all(query)
            turns = set(_readable(txn, {turn for child, _, parent in links for turn in (child, parent)}))
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


def _readable(txn: ReadTxn, turns: Iterable[str]) -> list[str]:
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


def _fits(row: SessionRow, wanted: SessionFilter, since: int | None) -> bool:
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
    begun = {session for (session,) in txn.sql.all("SELECT DISTINCT session FROM provisional")}
    of_rooms = {session for (session,) in txn.sql.all("SELECT session FROM participant WHERE session IS NOT NULL")}

    def is_shown(row: SessionRow) -> bool:
        return row.head is not None or row.id in begun or (row.origin is None and row.id not in of_rooms)

    return list(filter(is_shown, rows))


def _places(rows: list[SessionRow], times: SessionTimes) -> dict[int, Position]:
    """By the numbers of sessions: their positions in the order of time, without those that were made since."""
    positions = {row.n: times.position_of(row) for row in rows}
    return {n: position for n, position in positions.items() if position is not None}


def _paths(rows: list[SessionRow], places: dict[int, Position], *, nested: bool) -> list[tuple[Position, SessionRow]]:
    """Each session with the positions of those above it and its own."""
    paths: dict[str, Position] = {}
    for row in rows:
        above = paths.get(row.parent_session or "", ()) if nested else ()
        paths[row.id] = (*above, *places[row.n])
    return [(paths[row.id], row) for row in rows]


def _behind(rows: list[tuple[Position, SessionRow]], place: Position) -> list[tuple[Position, SessionRow]]:
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


def _nested(rows: list[SessionRow]) -> list[SessionRow]:
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


def _listed(txn: ReadTxn, rows: list[SessionRow], every: list[SessionRow], projects: Projects) -> list[ListedSession]:
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
