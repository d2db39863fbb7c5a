"""Sessions read from their rows: records, names and their beginnings, reflog, which ones
contain a turn, on whose behalf turns were run, and which project a folder belongs to; and pages,
the way every listing is given.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from hashlib import sha256
from itertools import islice
from typing import Any, TypeVar

import orjson
from msgspec import UNSET, Struct

from weft.kernel.clock import is_ulid, is_ulid_ending
from weft.kernel.contents import MAX_INTEGER
from weft.kernel.enums import TaskStatus
from weft.kernel.errors import Action, AmbiguousName, Hint, InvalidInput, NotFound, quoted
from weft.kernel.events import Event
from weft.kernel.typed_names import normal_form
from weft.ledger.arguments import checked_count, checked_text
from weft.ledger.model import DEFAULT_AGENT, UNDATED, Branch, HeadMove, Session, SessionAlias
from weft.ledger.read.access import access_of, session_of_number
from weft.ledger.views.rows import (
    HISTORY,
    SESSION,
    HistoryRow,
    SegmentDepth,
    SessionRow,
    crossings,
    decoded,
    event_at,
    json_of,
    text_of,
)
from weft.store.fact_log import FactReader, LogRow
from weft.store.port import ReadTxn
from weft.store.sql import Row, Sql, blob, rows_in

# --- Pages of a listing: some of its items in order, and a cursor where the next page begins.

VERSION = 1
CHECKSUM_BYTES = 6
DIGEST_DIGITS = 12
ROWS_AT_ONCE = 512
LONGEST_CURSOR_LETTERS = 4096
Position = tuple[int, ...]
Item = TypeVar("Item")
Other = TypeVar("Other")


class Page(list[Item]):
    """Some items of a listing, in its order. `next` is the cursor that the following page is asked for with (`after=`);
    null: there are no more."""

    def __init__(self, items: Iterable[Item] = (), next: str | None = None) -> None:
        super().__init__(items)
        self.next = next


class PageCursor(Struct, frozen=True):
    """Where a page begins."""

    arrival: int
    """The number of the newest event when the first page was read: what arrived later is left for another reading."""
    now: int
    """The time of that, in Unix milliseconds, from which words such as 'yesterday' count on every page."""
    position: Position = ()
    """That of the last item of the page before; empty: this is the first page."""


class PageRequest:
    """One page that is asked for: a listing, its filters, how many items and from which cursor on."""

    def __init__(
        self, listing: str, replica: str, filters: Mapping[str, Any], limit: int | None, after: str | None
    ) -> None:
        self.listing = listing
        self.limit = None if limit is None else checked_count(limit, "limit")
        self._filters = _arguments_digest(
            *sorted((name, value) for name, value in filters.items() if value is not None)
        )
        self._replica = _arguments_digest(replica)
        self.after = None if after is None else self._read_cursor(after)

    def begin(self, arrival: int, now: int) -> PageCursor:
        """The cursor that was given; else that of a first page, which is read at this moment."""
        return self.after or PageCursor(arrival, now)

    @property
    def now(self) -> int | None:
        """The time of the first page; null: this is the first page."""
        return None if self.after is None else self.after.now

    @property
    def rows_at_once(self) -> int:
        """How many rows to read together: one more than the page has, to know whether another follows."""
        return ROWS_AT_ONCE if self.limit is None else min(self.limit + 1, ROWS_AT_ONCE)

    def page(self, begun: PageCursor, items: Iterable[tuple[Position, Item]]) -> Page[Item]:
        """As many items as were asked for; `items` begin behind the cursor, each with its position."""
        if self.limit is None:
            return Page(item for _, item in items)
        rest = iter(items)
        chosen = list(islice(rest, self.limit))
        further = next(rest, None) is not None
        place = chosen[-1][0] if chosen else begun.position
        text = self._write_cursor(PageCursor(begun.arrival, begun.now, place)) if further else None
        return Page((item for _, item in chosen), text)

    def page_until(
        self, begun: PageCursor, items: Iterable[tuple[Position, Item]], stopped: Position | None
    ) -> Page[Item]:
        """These items; where the search for them stopped before its end, the next page goes on behind that place."""
        text = None if stopped is None else self._write_cursor(PageCursor(begun.arrival, begun.now, stopped))
        return Page((item for _, item in items), text)

    def _write_cursor(self, cursor: PageCursor) -> str:
        values = [VERSION, self.listing, self._filters, self._replica, cursor.arrival, cursor.now, cursor.position]
        payload = orjson.dumps(values)
        return urlsafe_b64encode(sha256(payload).digest()[:CHECKSUM_BYTES] + payload).rstrip(b"=").decode()

    def _read_cursor(self, text: str) -> PageCursor:
        version, rest = _cursor_payload(checked_text(text, "cursor"))
        if version != VERSION:
            raise InvalidInput(
                f"the cursor is of form {quoted(version, 20)}", f"weft reads form {VERSION} here: start over"
            )
        listing, filters, replica, arrival, now, position = rest
        if listing != self.listing:
            raise InvalidInput(f"the cursor belongs to {listing}, not to {self.listing}", "give one of that listing")
        if replica != self._replica:
            raise InvalidInput("the cursor belongs to another ledger", "give one that this ledger gave")
        if filters != self._filters:
            raise InvalidInput(
                f"the cursor belongs to {listing} with other arguments", "ask for every page with the same ones"
            )
        return PageCursor(arrival, now, tuple(position))


def _arguments_digest(*values: Any) -> str:
    """Of arguments that are checked later, if at all."""
    return sha256(quoted(values, None).encode("utf-8", "backslashreplace")).hexdigest()[:DIGEST_DIGITS]


def _cursor_payload(text: str) -> tuple[Any, list[Any]]:
    """The version of a cursor and the rest of it; what its checksum does not fit was not given by weft."""
    try:
        data = urlsafe_b64decode(text[:LONGEST_CURSOR_LETTERS].encode("ascii") + b"=" * (-len(text) % 4))
        checksum, payload = data[:CHECKSUM_BYTES], data[CHECKSUM_BYTES:]
        if checksum == sha256(payload).digest()[:CHECKSUM_BYTES]:
            version, *rest = orjson.loads(payload)
            return version, rest
    except ValueError:
        pass
    raise InvalidInput(f"{quoted(text)} is no cursor", "give the `next` of a page as it is, or none for the first page")


def mapped(page: Page[Item], change: Callable[[Page[Item]], Iterable[Other]]) -> Page[Other]:
    """The same page with other items, made of all of them together."""
    return Page(change(page), page.next)


NEWEST: Position = (MAX_INTEGER, MAX_INTEGER)
"""Before everything in an order by time and number, the newest first."""


# --- Sessions by the beginnings of their labels: what people type of a name that another program made.

SHORTEST = 6
COMFORTABLE = 8
LONG = 16
TOO_LONG = 24
SHOWN = 8
LAST = "\U0010ffff"


def find_by_part(sql: Sql, text: str, may_read: Callable[[SessionRow], bool]) -> SessionRow | None:
    """The one session whose label begins so, else whose id ends so; raises AmbiguousName where it could be several.
    Sessions that cannot be read do not count.

    The label of a deleted session is no beginning of another one, nor of what lies below it: whoever deletes twice
    must not hit somebody else.
    """
    text = normal_form(text)
    rows = _beginning_so(sql, text, may_read)
    live = {row.label: row for row in rows if row.status != "deleted"}
    labels = [label for label in fitting({row.label for row in rows}, text) if label in live]
    if any(row.label == text for row in rows):
        return None
    return live[_only_label(text, labels)] if labels else _find_by_id_ending(sql, text, may_read)


def _find_by_id_ending(sql: Sql, text: str, may_read: Callable[[SessionRow], bool]) -> SessionRow | None:
    """Whole ids are looked up before. The ids alone are gone through, in their index."""
    if not is_ulid_ending(text) or is_ulid(text.upper()):
        return None
    ids = [str(id) for (id,) in sql.fetch_rows("SELECT id FROM session WHERE id LIKE ?", (f"%{text.upper()}",))]
    rows = [SessionRow(*row) for row in rows_in(sql, f"{SESSION.select} WHERE status <> 'deleted' AND id IN", ids)]
    readable = [row for row in rows if may_read(row)]
    if len(readable) > 1:
        raise AmbiguousName(text, sorted(row.id for row in readable))
    return readable[0] if readable else None


def find_shortened(sql: Sql, text: str, may_read: Callable[[SessionRow], bool]) -> SessionRow | None:
    """The one imported session whose label begins so, for what would make a new session otherwise. A label that
    listings show whole is not meant by its beginning: somebody may want a session of that name."""
    text = normal_form(text)
    rows = _beginning_so(sql, text, may_read)
    live = {row.label: row for row in rows if row.status != "deleted" and row.origin}
    labels = [label for label in fitting(live, text) if _is_cut(label, text)]
    if not labels or any(row.label == text for row in rows):
        return None
    return live[_only_label(text, labels)]


def _beginning_so(sql: Sql, text: str, may_read: Callable[[SessionRow], bool]) -> list[SessionRow]:
    if len(text) < SHORTEST:
        return []
    first = text.partition("/")[0]
    low = first if len(first) >= SHORTEST else text
    rows = (
        SessionRow(*row)
        for row in sql.fetch_rows(f"{SESSION.select} WHERE label >= ? AND label < ?", (low, low + LAST))
    )
    return [row for row in rows if may_read(row)]


MOST_NEAR = 3
MOST_COMPARED = 10_000
"""So many labels, the newest, are compared with a name that none of them has."""


def missing_session(
    sql: Sql,
    name: str,
    may_read: Callable[[SessionRow], bool],
    what: str = "session",
    hint: Hint = Action.LIST_SESSIONS,
) -> NotFound:
    """The error of a name that no session has: it says that one was deleted, or names sessions that are nearly called
    so, of those that can be read."""
    deleted = sql.fetch_rows(f"{SESSION.select} WHERE label = ? AND status = 'deleted'", (normal_form(name),))
    if any(may_read(SessionRow(*row)) for row in deleted):
        return NotFound(what, name, Action.RESTORE_SESSION.of(session=name))
    near = _near_labels(sql, normal_form(name), may_read)
    advice = Action.CHOOSE_NEAR_SESSION.of(names=" or ".join(map(repr, near))) if near else hint
    return NotFound(what, name, advice)


def _near_labels(sql: Sql, name: str, may_read: Callable[[SessionRow], bool]) -> list[str]:
    """Only what can be read is compared: what a stranger has changes nothing of the answer."""
    from difflib import get_close_matches

    newest = f"{SESSION.select} WHERE status <> 'deleted' ORDER BY n DESC LIMIT ?"
    rows = (SessionRow(*row) for row in sql.fetch_rows(newest, (MOST_COMPARED,)))
    labels = [row.label for row in rows if may_read(row)]
    begun = [label for label in labels if name and label.startswith(name)]
    return list(dict.fromkeys([*begun[:MOST_NEAR], *get_close_matches(name, labels, MOST_NEAR)]))[:MOST_NEAR]


def _only_label(text: str, labels: list[str]) -> str:
    """The one label that there is; raises AmbiguousName where there are several."""
    if len(labels) > 1:
        more = [f"{len(labels) - SHOWN} more"] if len(labels) > SHOWN else []
        raise AmbiguousName(text, [*labels[:SHOWN], *more])
    return labels[0]


def _is_cut(label: str, text: str) -> bool:
    """Whether the text is this label as a listing shortens it: part by part, and only parts that are long."""
    parts, words = label.split("/"), text.split("/")
    return len(parts) == len(words) and all(
        part == word or (part.startswith(word) and len(word) >= SHORTEST and _is_long(part))
        for part, word in zip(parts, words, strict=True)
    )


def shown_labels(sql: Sql, sessions: Iterable[SessionRow]) -> dict[str, str]:
    """By label what a listing shows of each of these sessions: an imported one's label as short as it can be typed,
    any other as it is."""
    rows = [row for row in sessions if row.status != "deleted"]
    numbers = {row.n for row in rows}
    aliases = [alias for alias, session in sql.fetch_rows("SELECT alias, session FROM alias") if session in numbers]
    short = short_labels([*(row.label for row in rows), *aliases])
    return {row.label: short[row.label] if row.origin else row.label for row in rows}


def fitting(labels: Iterable[str], text: str) -> list[str]:
    """The labels that a beginning could mean, without what lies below another one of them. Between slashes a word that
    is written out wins over one that is cut short."""
    begun = {label for label in labels if _label_begins(label, text)}
    for depth, word in enumerate(text.split("/")):
        begun = {label for label in begun if label.split("/")[depth : depth + 1] == [word]} or begun
    return sorted(label for label in begun if not any(above in begun for above in _labels_above(label)))


def _labels_above(label: str) -> Iterator[str]:
    parts = label.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def _label_begins(label: str, text: str) -> bool:
    if label.startswith(text):
        return True
    parts, typed = label.split("/"), text.split("/")
    return len(parts) == len(typed) and all(
        bool(word) and part.startswith(word) for part, word in zip(parts, typed, strict=True)
    )


def short_labels(labels: Iterable[str]) -> dict[str, str]:
    """Every label as short as it can be typed: of each long id in it only what sets it apart from its neighbours."""
    below: dict[str, set[str]] = {}
    paths = {label: label.split("/") for label in labels}
    for parts in paths.values():
        for depth, part in enumerate(parts):
            below.setdefault("/".join(parts[:depth]), set()).add(part)
    short = {above: _short_parts(sorted(parts)) for above, parts in below.items()}
    return {
        label: "/".join(short["/".join(parts[:depth])][part] for depth, part in enumerate(parts))
        for label, parts in paths.items()
    }


def _short_parts(parts: list[str]) -> dict[str, str]:
    made = {}
    for i, part in enumerate(parts):
        beside = (*parts[max(0, i - 1) : i], *parts[i + 1 : i + 2])
        length = max([COMFORTABLE, *(_common_prefix(part, other) + 1 for other in beside)])
        while length < len(part) and not part[length - 1].isalnum():
            length += 1
        made[part] = part[:length] if _is_long(part) else part
    return made


def _is_long(part: str) -> bool:
    """Whether a listing cuts this part of a label short."""
    return len(part) > (LONG if any(map(str.isdigit, part)) else TOO_LONG)


def _common_prefix(left: str, right: str) -> int:
    """How many characters two words share from the beginning."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


# --- Sessions read from their rows: records, names, reflog, which ones contain a turn, other replicas' branches.


def head_event(facts: FactReader, turn: Any, events: int | None) -> str | None:
    return None if events is None else event_at(facts, turn, events - 1)


def reflog(txn: ReadTxn, row: SessionRow, limit: int | None, skip: int = 0) -> list[HeadMove]:
    """Newest first; number 0 is the present head."""
    rows = txn.sql.fetch_rows(
        f"{HISTORY.select} WHERE session = ? AND k <= ? ORDER BY k DESC LIMIT ?",
        (row.n, row.moves - 1 - skip, row.moves if limit is None else limit),
    )
    return [_head_move(txn, row, HistoryRow(*values)) for values in rows]


def _head_move(txn: ReadTxn, session: SessionRow, row: HistoryRow) -> HeadMove:
    return HeadMove(
        number=session.moves - 1 - row.k,
        turn_id=row.turn,
        changed_at=row.changed_at,
        why=row.why,
        reason=None if row.reason is None else text_of(txn, row.reason),
        at_event=row.events,
    )


def head_at(sql: Sql, session: SessionRow, when: int) -> tuple[str | None, int | None] | None:
    """The turn and how many of its events, at a time; None when the session had no head yet.

    A clock that went back counts as standing still.
    """
    low, high = 0, session.moves
    while low < high:
        middle = (low + high) // 2
        found = sql.fetch_row("SELECT since FROM history WHERE session = ? AND k = ?", (session.n, middle))
        if found is not None and found[0] <= when:
            low = middle + 1
        else:
            high = middle
    row = sql.fetch_row("SELECT turn, events FROM history WHERE session = ? AND k = ?", (session.n, low - 1))
    return (row[0], row[1]) if row else None


def to_session(txn: ReadTxn, row: SessionRow) -> Session:
    return to_sessions(txn, [row])[0]


def to_sessions(txn: ReadTxn, rows: list[SessionRow]) -> list[Session]:
    """Many at once: a few statements in all."""
    txn.facts.hold(n for row in rows for n in _content_numbers(row) if n)
    above = {row.parent_session for row in rows if row.parent_session}
    parents = _readable_labels(txn, above)
    names = agent_names(txn.sql, (row.persona for row in rows))
    heads = {row.head for row in rows if row.head and _is_subagent(row)}
    ends: dict[str, str] = dict(rows_in(txn.sql, "SELECT id, status FROM turn WHERE id IN", heads))
    tried = _unfinished_attempts(txn.sql, (row.n for row in rows if _is_subagent(row)))
    states = {row.n: tried.get(row.n) or ends.get(row.head or "") for row in rows}
    return [_to_session(txn, row, parents, names, states[row.n]) for row in rows]


def _readable_labels(txn: ReadTxn, sessions: Iterable[str]) -> dict[str, str]:
    """By id the labels of those that can be read."""
    rows = (SessionRow(*row) for row in rows_in(txn.sql, f"{SESSION.select} WHERE id IN", sessions))
    return {row.id: row.label for row in rows if access_of(txn).may_read(row)}


def _unfinished_attempts(sql: Sql, sessions: Iterable[int]) -> dict[int, str]:
    """By session: the state of the newest turn that is under way, or failed, since the head was last moved."""
    found = sorted(rows_in(sql, _SINCE_THE_HEAD_MOVED, sessions), key=lambda row: row[1])
    return {session: status for session, _, status in found}


_SINCE_THE_HEAD_MOVED = (
    "SELECT t.session, t.n, t.status FROM turn t WHERE t.status <> 'completed' AND t.current = 1 AND t.n > COALESCE("
    "(SELECT h.n FROM history h WHERE h.session = t.session ORDER BY h.k DESC LIMIT 1), 0) AND t.session IN"
)


def _is_subagent(row: SessionRow) -> bool:
    return row.parent_session is not None or row.parent_turn is not None


def _task_status(row: SessionRow, state: str | None) -> str | None:
    """How far a subagent is, by the state of its newest turn; without one it has not begun."""
    if not _is_subagent(row):
        return None
    if state is None:
        return TaskStatus.PENDING.value
    return state if state in (TaskStatus.COMPLETED, TaskStatus.FAILED) else TaskStatus.RUNNING.value


def _content_numbers(row: SessionRow) -> tuple[int | None, ...]:
    return (
        row.task, row.routing, row.origin_session, row.title, row.workspace, row.git_branch,
        row.version, row.metadata,
    )  # fmt: skip


def _to_session(
    txn: ReadTxn, row: SessionRow, parents: dict[str, str], names: dict[str, str], state: str | None
) -> Session:
    return Session(
        id=row.id,
        label=row.label,
        head=row.head,
        persona_id=names[row.persona],
        status=row.status,
        lifecycle=row.lifecycle,
        created_at=row.created_at,
        updated_at=row.updated_at,
        time_known=row.updated_at != UNDATED,
        origin=row.origin or "weft",
        head_event=row.head_events,
        chosen_compaction=row.compaction,
        is_subagent=_is_subagent(row),
        parent_session=parents.get(row.parent_session) if row.parent_session else None,
        parent_turn_id=row.parent_turn,
        spawn_tool_call_id=row.spawn_call_name,
        task_description=text_of(txn, row.task),
        task_status=_task_status(row, state),
        routing_key=text_of(txn, row.routing),
        origin_session_id=text_of(txn, row.origin_session),
        title=text_of(txn, row.title),
        workspace_path=text_of(txn, row.workspace),
        git_branch=text_of(txn, row.git_branch),
        version=text_of(txn, row.version),
        agent=row.agent,
        metadata=json_of(txn, row.metadata),
    )


def agent_names(sql: Sql, agents: Iterable[str]) -> dict[str, str]:
    """The name of each agent; one that nobody named goes by its id."""
    names = {agent: agent for agent in agents}
    asked = [agent for agent in names if agent != DEFAULT_AGENT]
    return names | dict(rows_in(sql, "SELECT id, name FROM program WHERE id IN", asked))


def sessions_containing(txn: ReadTxn, segment: int, depth: int) -> list[SessionRow]:
    """Every session whose head ever stood at or below a turn: today's heads and past departures in its subtree, and in
    those of turns that go on from there across a link."""
    links = crossings(txn.sql)
    waiting, seen, numbers = [(segment, depth)], set[SegmentDepth](), set[int]()
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        numbers.update(n for (n,) in txn.sql.fetch_rows(_STOOD_BELOW, place))
        if links:
            below: dict[int, int] = dict(txn.sql.fetch_rows(f"{_BELOW} SELECT segment, depth FROM below", place))
            waiting += [child for child, (above, at) in links.items() if above in below and at >= below[above]]
    found = [session_of_number(txn, n) for n in sorted(numbers)]
    return [row for row in found if row is not None]


_BELOW = (
    "WITH RECURSIVE below(segment, depth) AS (SELECT CAST(? AS BIGINT), CAST(? AS BIGINT) UNION ALL"
    " SELECT s.n, s.base FROM below b JOIN segment s ON s.parent = b.segment AND s.parent_depth >= b.depth)"
)
_STOOD_BELOW = (
    f"{_BELOW} SELECT s.n FROM below b JOIN session s ON s.head_segment = b.segment AND s.head_depth >= b.depth"
    " UNION SELECT d.session FROM below b JOIN departure d ON d.segment = b.segment AND d.depth >= b.depth"
)
NAME_LETTERS = 6
_COLUMNS = (
    "SELECT s.id, s.label, b.tip, b.replica, b.head, b.head_events, b.changed_at, s.n FROM branch b"
    " JOIN session s ON s.n = b.session"
)


_ALIASES = (
    "SELECT a.alias, s.label, s.id, a.reason, s.n FROM alias a JOIN session s ON s.n = a.session"
    " WHERE s.status <> 'deleted'"
)


def load_aliases(txn: ReadTxn, session: int | None = None) -> list[SessionAlias]:
    """Other names of one session, or of all that can be read, in the order of the names."""
    which, values = ("", ()) if session is None else (" AND a.session = ?", (session,))
    rows, access = txn.sql.fetch_rows(f"{_ALIASES}{which} ORDER BY a.alias", values), access_of(txn)
    return [
        SessionAlias(alias=alias, session=label, session_id=id, reason=reason)
        for alias, label, id, reason, n in rows
        if access.is_unlimited or access.session_of_number(n) is not None
    ]


def load_branches(txn: ReadTxn, session: int | None = None) -> list[Branch]:
    """Other replicas' branches, of one session or of all that can be read; the newest first."""
    where, values = ("", ()) if session is None else (" WHERE b.session = ?", (session,))
    rows, access = txn.sql.fetch_rows(f"{_COLUMNS}{where} ORDER BY b.n DESC", values), access_of(txn)
    return [_branch_of_row(row) for row in rows if access.is_unlimited or access.session_of_number(row[-1]) is not None]


def _branch_of_row(row: Row) -> Branch:
    session, label, tip, replica, head, events, changed_at, _ = row
    return Branch(
        session_id=session,
        label=label,
        name=f"{(replica or session)[-NAME_LETTERS:].lower()}/{label}",
        replica=replica,
        head=head,
        head_event=events,
        changed_at=changed_at,
        tip=bytes(tip).hex(),
    )


def find_branch(txn: ReadTxn, name: str) -> Branch | None:
    """The newest branch of this name."""
    replica, _, label = name.partition("/")
    if len(replica) != NAME_LETTERS or not label:
        return None
    return next((found for found in load_branches(txn) if found.name == name), None)


# --- On whose behalf turns were run, by name: read out of the first event of each.

_FIRST_EVENTS = (
    "SELECT t.id, t.n, l.n, l.count, l.at, l.chain, l.events FROM turn t JOIN log l"
    " ON l.n = (SELECT min(k.n) FROM log k WHERE k.n >= t.n) WHERE t.id IN"
)
_FIELD = b'"on_behalf_of"'


def on_behalf_of(event: object) -> tuple[str, ...]:
    """The ids that an event names, the nearest first; none where the actor acted for itself."""
    return event.on_behalf_of if isinstance(event, Event) and event.on_behalf_of is not UNSET else ()


def load_on_behalf_of(txn: ReadTxn, turns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """By turn the names of those on whose behalf it was run; turns that were run for nobody else are left out."""
    ids: dict[str, tuple[str, ...]] = {}
    for turn, first, n, count, at, chain, events in rows_in(txn.sql, _FIRST_EVENTS, turns):
        row = LogRow(n, count, at, blob(chain), blob(events))
        line = row.lines()[first - row.first]
        if _FIELD in line and (principals := on_behalf_of(decoded(first, line))):
            ids[turn] = principals
    names = principal_names(txn.sql, (principal for principals in ids.values() for principal in principals))
    return {turn: tuple(names[principal] for principal in principals) for turn, principals in ids.items()}


def principal_names(sql: Sql, ids: Iterable[str]) -> dict[str, str]:
    """The names of agents and people and the labels of sessions; what is not known here goes by its id."""
    names = agent_names(sql, ids)
    unnamed = [id for id, name in names.items() if id == name]
    return names | dict(rows_in(sql, "SELECT id, label FROM session WHERE id IN", unnamed))


# --- Which project a folder belongs to.

RepositoryOf = Callable[[str], str | None]
"""Gives the repository of a folder: its remote as `repository_name` writes it, or the path of its main folder. The
folder itself: it belongs to none. None: nothing is known of it."""
GITHUB = "github.com"
HOME = "~"
WORKTREES = "worktrees"
MOST_LEVELS = 64
LONGEST_ADDRESS_CHARS = 500
SESSIONS_LOOKED_AT = 16
"""So many sessions of a folder are asked for its repository, the last ones."""
_ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]*://)(?:[^/@\s]*@)?([^/:@\s]+)(?::\d+)?/+(\S+)", re.IGNORECASE)
_PARAMETERS = re.compile(r"[?#]")
"""Where the parameters of an address begin, which may hold a token."""
_SCP = re.compile(r"(?:[^/@:\s]+@)([^/:@\s]+):/*(\S+)")
_OWNED = re.compile(r"[\w.-]+/[\w.-]+")
_TOOL_WORKTREE = re.compile(r"(?<=.)[/\\]\.claude[/\\]worktrees[/\\][^/\\]")
"""Where Claude Code makes worktrees of a repository: below its main folder."""
_PULL_REQUEST = re.compile(r"/pull/\d+/?$")
_FOLDERS = (
    "SELECT DISTINCT workspace FROM turn WHERE workspace IS NOT NULL"
    " UNION SELECT workspace FROM session WHERE workspace IS NOT NULL"
)
_NOTED = f"{SESSION.select} WHERE workspace IS NOT NULL AND metadata IS NOT NULL ORDER BY n DESC"
_WORKSPACES = "SELECT id, workspace FROM turn WHERE workspace IS NOT NULL AND id IN"


class Project(Struct, frozen=True):
    key: str
    """The repository, such as `github.com/owner/name`, or a folder's path."""
    name: str
    is_repository: bool = False


class Projects:
    """The projects of folders, each looked up once."""

    def __init__(self, txn: ReadTxn, repository_of: RepositoryOf | None = None) -> None:
        self._txn, self._local = txn, cache(repository_of or _unknown_folder)
        self._by_folder: dict[str, Project] = {}
        self._by_repository: dict[str, Project] = {}

    def of(self, folder: str) -> Project:
        project = self._by_folder.get(folder)
        if project is None:
            project = self._by_folder[folder] = self._look_up(folder)
        return project

    def name(self, folder: str | None) -> str:
        return self.of(folder).name if folder else project_of(folder)

    def is_in(self, folder: str, wanted: str) -> bool:
        """Does a folder belong to the project that is meant: by its name, its repository, or one of its folders? In any
        case of letters."""
        if not folder:
            return False
        project, words = self.of(folder), _folded_path(wanted)
        if words in (
            _folded_path(folder),
            project.name.casefold(),
            project.key.casefold(),
            project_of(folder).casefold(),
        ):
            return True
        return "/" in wanted and self.of(wanted.rstrip("/") or wanted).key.casefold() == project.key.casefold()

    @cached_property
    def folders(self) -> list[str]:
        """Every folder that a turn or a session worked in."""
        rows = self._txn.sql.fetch_rows(_FOLDERS)
        self._txn.facts.hold(workspace for (workspace,) in rows)
        return [folder for (workspace,) in rows if (folder := text_of(self._txn, workspace))]

    def _look_up(self, folder: str) -> Project:
        claims = self._folder_claims.get(folder)
        main = claims.main_folder if claims and self._local(folder) is None else None
        if main is None and (inside := _TOOL_WORKTREE.search(folder)) is not None:
            main = folder[: inside.start()]
        for place in (folder, main):
            if place and (repository := self._repository_of(place)) is not None:
                project = Project(repository, project_of(repository), is_repository=True)
                return self._by_repository.setdefault(repository.casefold(), project)
        return Project(main or folder, project_of(main or folder), is_repository=main is not None)

    def _repository_of(self, folder: str) -> str | None:
        """What is known of it here, what was recorded of it, or what is known of a folder around or beside it."""
        claims = self._folder_claims.get(folder)
        if self._local(folder) is not None or (claims and claims.repositories):
            return self._own_repository(folder)
        return self._repository_around(folder) or self._worktree_repositories.get(_worktree_place(folder) or "")

    def _own_repository(self, folder: str) -> str | None:
        """What is known of the folder itself here; else what all sessions in it recorded."""
        local, claims = self._local(folder), self._folder_claims.get(folder)
        if local is not None:
            return None if local == folder else local
        return claims.repository if claims else None

    def _repository_around(self, folder: str) -> str | None:
        """The repository of the nearest folder above it of which one was recorded; a home folder's is not that of all
        below."""
        place = folder.rstrip("/")
        for _ in range(MOST_LEVELS):
            place = place.rpartition("/")[0]
            if not place or project_of(place) == HOME:
                return None
            claims = self._folder_claims.get(place)
            if claims is not None and claims.repositories:
                return self._own_repository(place)
        return None

    @cached_property
    def _worktree_repositories(self) -> dict[str, str | None]:
        """By the place where worktrees of one name are made: the repository that they share, by those of which one was
        recorded. None: they differ."""
        repositories: dict[str, dict[str, str | None]] = {}
        for folder, claims in self._folder_claims.items():
            if claims.repositories and (place := _worktree_place(folder)) is not None:
                repository = self._own_repository(folder)
                repositories.setdefault(place, {})[(repository or "").casefold()] = repository
        return {place: _only_name(names) for place, names in repositories.items()}

    @cached_property
    def _folder_claims(self) -> dict[str, FolderClaims]:
        """By folder, what sessions in it recorded of its repository."""
        pairs = self._metadata_pairs()
        self._txn.facts.hold(content for pair in pairs for content in pair)
        claims: dict[str, FolderClaims] = {}
        for workspace, metadata in pairs:
            folder = text_of(self._txn, workspace) or ""
            claims.setdefault(folder, FolderClaims()).add(recorded_repository(json_of(self._txn, metadata), folder))
        return claims

    def _metadata_pairs(self) -> list[tuple[int, int]]:
        """Folders and what the last sessions in each noted, as contents, the latest last; of sessions that can be
        read."""
        pairs: list[tuple[int, int]] = []
        sessions: Counter[int] = Counter()
        rows = (SessionRow(*row) for row in self._txn.sql.fetch_rows(_NOTED))
        for row in filter(access_of(self._txn).may_read, rows):
            if row.workspace is not None and row.metadata is not None and sessions[row.workspace] < SESSIONS_LOOKED_AT:
                sessions[row.workspace] += 1
                pairs.append((row.workspace, row.metadata))
        return pairs[::-1]


def session_folders(txn: ReadTxn, rows: Sequence[SessionRow]) -> list[str]:
    """Where each session worked: the folder that was noted of it, else that of the turn it stands on; empty where
    neither is known."""
    heads = (row.head for row in rows if row.workspace is None and row.head)
    workspaces: dict[str | None, int] = dict(rows_in(txn.sql, _WORKSPACES, heads))
    numbers = [workspaces.get(row.head) if row.workspace is None else row.workspace for row in rows]
    txn.facts.hold(number for number in numbers if number is not None)
    return [text_of(txn, number) or "" for number in numbers]


class RecordedRepository(Struct, frozen=True):
    """What a session noted of the folder that it worked in."""

    repository: str | None = None
    main_folder: str | None = None
    """Where the folder is a worktree: the folder that it was made from."""


class FolderClaims:
    """What sessions noted of one folder. It counts where all that noted something noted the same."""

    def __init__(self) -> None:
        self.repositories: dict[str, str | None] = {}
        """By their names in small letters, as the last session wrote them."""
        self._main_folders: dict[str, str | None] = {}

    def add(self, record: RecordedRepository) -> None:
        if record.repository is not None:
            self.repositories[record.repository.casefold()] = record.repository
        if record.main_folder is not None:
            self._main_folders[record.main_folder] = record.main_folder

    @property
    def repository(self) -> str | None:
        return _only_name(self.repositories)

    @property
    def main_folder(self) -> str | None:
        """Of a folder whose repository is disputed none counts either."""
        return _only_name(self._main_folders) if len(self.repositories) <= 1 else None


def _only_name(names: dict[str, str | None]) -> str | None:
    """The one name among these; None where there is none, or more than one."""
    return next(iter(names.values())) if len(names) == 1 else None


def _unknown_folder(folder: str) -> None:
    """What is known of folders where nobody looks at them."""


def recorded_repository(metadata: Any, folder: str) -> RecordedRepository:
    """Codex notes the remote, Copilot the repository's name at GitHub, Claude Code pull requests and worktrees. A pull
    request counts where its repository is named like the folder."""
    if not isinstance(metadata, dict):
        return RecordedRepository()
    git, worktree = metadata.get("git"), metadata.get("worktree")
    remote = git.get("repository_url") if isinstance(git, dict) else None
    name = repository_name(remote) if isinstance(remote, str) else _repository_address(metadata.get("repository"))
    requests = metadata.get("pullRequests")
    for request in requests if name is None and isinstance(requests, list) else ():
        address = request.get("prUrl") if isinstance(request, dict) else None
        pulled = _PULL_REQUEST.sub("", address) if isinstance(address, str) else ""
        pulled_name = repository_name(pulled)
        if pulled_name is not None and project_of(pulled_name).casefold() == project_of(folder).casefold():
            name = pulled_name
    main = None
    if isinstance(worktree, dict) and worktree.get("worktreePath") == folder:
        main = worktree.get("originalCwd")
    return RecordedRepository(name, main if isinstance(main, str) and main != folder else None)


def _worktree_place(folder: str) -> str | None:
    """Of a worktree such as `~/.codex/worktrees/9a6a/app`: where those of its name are made, whatever the part in
    between. None: it lies in no folder of worktrees."""
    parts = folder.rstrip("/").split("/")
    return "/".join([*parts[:-2], "*", parts[-1]]) if WORKTREES in parts[:-2] else None


def _repository_address(name: Any) -> str | None:
    is_name = isinstance(name, str) and len(name) <= LONGEST_ADDRESS_CHARS and _OWNED.fullmatch(name)
    return f"{GITHUB}/{name}" if is_name else None


def repository_name(address: str) -> str | None:
    """A remote's address as `host/path`, without a user, a password, a port, `.git` and what follows `?` or `#`; None:
    it is no such address."""
    text = address.strip()
    if len(text) > LONGEST_ADDRESS_CHARS or not text.isprintable():
        return None
    text = _PARAMETERS.split(text, maxsplit=1)[0]
    parts = _ADDRESS.fullmatch(text) or _SCP.fullmatch(text)
    if parts is None:
        return None
    path = parts[2].rstrip("/").removesuffix(".git").rstrip("/")
    return f"{parts[1].lower()}/{path}" if path else None


def project_of(workspace: str | None) -> str:
    """The last part of a folder's path, on whatever system it lay; `~` where it is somebody's home."""
    parts = [part for part in (workspace or "").replace("\\", "/").split("/") if part]
    if not parts:
        return "/" if workspace else ""
    folders = parts[1:] if parts[0].endswith(":") else parts
    is_home = (len(folders) == 2 and folders[0].lower() in ("home", "users")) or folders == ["root"]
    return HOME if is_home else parts[-1]


def _folded_path(path: str) -> str:
    return (path.rstrip("/") or path).casefold()
