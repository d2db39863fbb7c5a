"""What people type for a turn and for a time: labels, `main~2`, `main@{yesterday}`, ends of
ids, digest prefixes; and periods, of which a day means all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from itertools import islice

from msgspec import UNSET, Struct

from weft.kernel.clock import ALPHABET, is_ulid
from weft.kernel.contents import text_bytes
from weft.kernel.errors import Action, AmbiguousName, InvalidInput, NotFound, quoted
from weft.kernel.ledger_events import SessionMoved
from weft.kernel.typed_names import name_in_address
from weft.ledger.arguments import checked_number, checked_text
from weft.ledger.read.access import access_of
from weft.ledger.read.sessions import find_branch, find_by_part, find_shortened, head_at, missing_session, reflog
from weft.ledger.read.turns import ranges_to
from weft.ledger.views.rows import (
    SESSION,
    SessionRow,
    StoredSessions,
    TurnRow,
    decoded,
    find_by_name,
    find_session,
    load_turn,
    place_of_event,
)
from weft.store.fact_log import LEDGER_SCOPE
from weft.store.port import ReadTxn
from weft.store.replicas import is_written_here
from weft.store.sql import rows_in

# --- What people type for a turn and for a time: labels, `main~2`, `main@{yesterday}`, ends of ids, digest prefixes.

_STEP = re.compile(r"~(\d*)|\^")
_AT = re.compile(r"@\{([^}]*)\}$")
_DEPTH = re.compile(r"#(\d+)$")
_HEX = re.compile(r"[0-9a-f]{7,64}")
_SUFFIX = re.compile(f"[{ALPHABET}]{{6,25}}", re.IGNORECASE)
SHOWN = 8
FAR = 10**15
NO_HEAD = "nothing is recorded in it, or all of it was undone"
ParseTime = Callable[[str], int]


class Revision(Struct, frozen=True):
    """A turn, and how many of its events count (null: all); the session it was reached through, if any."""

    turn: TurnRow
    events: int | None = None
    session: str | None = None


def resolve(txn: ReadTxn, name: str, parse_time: ParseTime) -> Revision:
    """The turn that these words mean; raises NotFound or AmbiguousName."""
    base, steps = _split_steps(name_in_address(checked_text(name, "name")))
    spot = _resolve_base(txn, base, parse_time)
    return spot if steps == 0 else Revision(_turn_ancestor(txn, spot.turn, steps, name), None, spot.session)


def _split_steps(name: str) -> tuple[str, int]:
    """`main~2^` is three turns before `main`."""
    steps, end = 0, len(name)
    found = list(_STEP.finditer(name, name.rfind("}") + 1))
    for match in reversed(found):
        if match.end() != end:
            break
        steps += _bounded_number(match.group(1) or "1")
        end = match.start()
    if not name[:end]:
        raise InvalidInput(f"{quoted(name)} names no turn", "write a session's label or a turn's id before ~ and ^")
    return name[:end], steps


def _resolve_base(txn: ReadTxn, base: str, parse_time: ParseTime) -> Revision:
    if match := _AT.search(base):
        session = require(txn, base[: match.start()] or "main")
        return _moved_from(txn, session, match.group(1).strip(), parse_time)
    access = access_of(txn)
    if is_ulid(base.upper()) and (turn := load_turn(txn.sql, base.upper())) is not None and access.may_read_turn(turn):
        return Revision(turn)
    session_row = _by_whole_name(txn, base)
    if session_row is not None:
        return _head_revision(txn, session_row)
    if match := _DEPTH.search(base):
        name = base[: match.start()]
        keyed = access.readable(find_session(txn.sql, name)) or find_by_part(txn.sql, name, access.may_read)
        if keyed is not None:
            return Revision(_at_depth(txn, keyed, _bounded_number(match.group(1)), base), None, keyed.label)
    if "/" in base and (branch := find_branch(txn, base)) is not None:
        if branch.head is None:
            raise NotFound("turn in branch", base, "that branch has no head")
        return Revision(_turn_row(txn, branch.head), branch.head_event)
    return _by_id(txn, base)


def require(txn: ReadTxn, name: str) -> SessionRow:
    """The session of this name; one that cannot be read is not there."""
    row = session_named(txn, name_in_address(checked_text(name, "session")))
    if row is None:
        raise missing_session(txn.sql, name, access_of(txn).may_read)
    return row


def session_named(txn: ReadTxn, name: str) -> SessionRow | None:
    """The session of this name that can be read: by label, alias or id, else by a routing key, the beginning of a
    label or the end of an id."""
    return _by_whole_name(txn, name) or _by_part(txn, name)


def session_beside_turns(txn: ReadTxn, name: str) -> SessionRow | None:
    """The same where a turn may be named instead, which then wins over the beginning of a label; raises AmbiguousName
    for one that listings show of a session."""
    return _session_or_turns(txn, name)[0]


def _session_or_turns(txn: ReadTxn, name: str) -> tuple[SessionRow | None, dict[str, Revision]]:
    """The session that a name means, or else the turns that it could mean."""
    if (row := _by_whole_name(txn, name)) is not None:
        return row, {}
    turns = _turns_by_part(txn, name)
    if not turns:
        return _by_part(txn, name), {}
    if (row := find_shortened(txn.sql, name, access_of(txn).may_read)) is not None:
        raise AmbiguousName(name, sorted([*turns, row.label]))
    return None, turns


def _by_whole_name(txn: ReadTxn, name: str) -> SessionRow | None:
    return find_by_name(StoredSessions(txn.sql), name, access_of(txn).may_read, any_case=True)


def _by_part(txn: ReadTxn, name: str) -> SessionRow | None:
    """By what is no name of its own: a routing key, then the beginning of a label or the end of an id. What lists show
    of a label that they cut short is not taken from it by a key."""
    may_read, routed = access_of(txn).may_read, _by_routing_key(txn, name)
    if routed is None:
        return find_by_part(txn.sql, name, may_read)
    with suppress(AmbiguousName):  # lists show none of them so
        return find_shortened(txn.sql, name, may_read) or routed
    return routed


def _by_routing_key(txn: ReadTxn, key: str) -> SessionRow | None:
    """Keys such as `dm:…` or `worker:…`; one that several sessions share names none of them."""
    rows = [row for row in routed_sessions(txn, key) if row.status != "deleted"]
    return rows[0] if len(rows) == 1 else None


def routed_sessions(txn: ReadTxn, key: str) -> list[SessionRow]:
    """Every session that was made with this routing key and can be read."""
    keys = txn.facts.find_bytes(LEDGER_SCOPE, text_bytes(key))
    found = rows_in(txn.sql, f"{SESSION.select} WHERE routing IS NOT NULL AND routing IN", keys)
    return [row for row in (SessionRow(*values) for values in found) if access_of(txn).may_read(row)]


def _bounded_number(digits: str) -> int:
    """Beyond every depth and every reflog, one number is as good as another."""
    return int(digits) if len(digits) < 16 else FAR


def _head_revision(txn: ReadTxn, session: SessionRow) -> Revision:
    if session.head is None:
        advice = Action.REDO_TURN.of(session=session.label) if _is_undone(txn, session) else NO_HEAD
        raise NotFound("turn in session", session.label, advice)
    return Revision(_turn_row(txn, session.head), session.head_events, session.label)


def _is_undone(txn: ReadTxn, session: SessionRow) -> bool:
    """Whether the last move of a session was an undo, made here, that can be taken back."""
    row = txn.sql.fetch_row("SELECT n FROM history WHERE session = ? AND k = ?", (session.n, session.moves - 1))
    line = None if row is None else txn.facts.line(row[0])
    if row is None or line is None:
        return False
    event = decoded(row[0], line)
    if not isinstance(event, SessionMoved) or event.undoes is UNSET:
        return False
    return is_written_here(txn.sql, row[0], event.replica)


def _turn_row(txn: ReadTxn, turn: str) -> TurnRow:
    row = load_turn(txn.sql, turn)
    if row is None:
        raise NotFound("turn", turn)
    return row


def _moved_from(txn: ReadTxn, session: SessionRow, when: str, parse_time: ParseTime) -> Revision:
    if when.isdecimal():
        moves = reflog(txn, session, 1, _bounded_number(when))
        if not moves:
            raise NotFound("move of session", f"{session.label}@{{{when}}}", moves_in_words(session))
        found, events = moves[0].turn_id, moves[0].at_event
    else:
        then = head_at(txn.sql, session, parse_time(when))
        if then is None:
            raise NotFound("head of session", f"{session.label}@{{{when}}}", "the session had no head then")
        found, events = then
    if found is None:
        raise NotFound("head of session", f"{session.label}@{{{when}}}", "the session had been reset")
    return Revision(_turn_row(txn, found), events, session.label)


def moves_in_words(session: SessionRow) -> str:
    """How often its head has moved, in words."""
    if not session.moves:
        return "it has not moved yet"
    return f"it has moved {'once' if session.moves == 1 else f'{session.moves} times'}"


def _at_depth(txn: ReadTxn, session: SessionRow, depth: int, name: str) -> TurnRow:
    row = txn.sql.fetch_row(
        "SELECT turn FROM history WHERE session = ? AND depth = ? AND why = 'turn' ORDER BY k DESC LIMIT 1",
        (session.n, depth),
    )
    if row is None:
        raise NotFound("turn", name, f"{session.label!r} made no turn at that depth")
    return _turn_row(txn, row[0])


def _turn_ancestor(txn: ReadTxn, turn: TurnRow, steps: int, name: str) -> TurnRow:
    depth = turn.depth - steps
    for part in ranges_to(txn.sql, turn.segment, turn.depth):
        if part.low <= depth <= part.high:
            row = txn.sql.fetch_row("SELECT id FROM turn WHERE segment = ? AND depth = ?", (part.segment, depth))
            if row is not None:
                return _turn_row(txn, row[0])
    raise NotFound("turn", name, f"that thread has {turn.depth} turn{'' if turn.depth == 1 else 's'}")


def _by_id(txn: ReadTxn, text: str) -> Revision:
    if is_ulid(text.upper()):
        row = _turn_row(txn, text.upper())
        access_of(txn).ensure_readable_turn(row, text.upper())
        return Revision(row)
    session, candidates = _session_or_turns(txn, text)
    if session is not None:
        return _head_revision(txn, session)
    if not candidates:
        if other_syntax := _other_syntax(text):
            raise NotFound("session or turn", text, other_syntax)
        hint = "name a session (its first 6 letters do), an id (or its last 6) or a digest"
        raise missing_session(txn.sql, text, access_of(txn).may_read, "session or turn", hint)
    if len(candidates) > 1:
        raise AmbiguousName(text, sorted(candidates))
    return next(iter(candidates.values()))


def _other_syntax(text: str) -> str:
    """What to write in place of a name that git knows; empty where it is none."""
    if text in ("HEAD", "@"):
        return "a session's label stands for its head: name a session, such as main"
    return "a range is no turn: name one session or one turn" if ".." in text else ""


def _turns_by_part(txn: ReadTxn, text: str) -> dict[str, Revision]:
    """By the last letters of a turn's id, or the first digits of an event's digest."""
    candidates: dict[str, Revision] = {}
    if _SUFFIX.fullmatch(text):
        candidates |= _by_suffix(txn, text)
    if _HEX.fullmatch(text.lower()):
        candidates |= _by_digest(txn, text.lower())
    return candidates


def _by_suffix(txn: ReadTxn, text: str) -> dict[str, Revision]:
    """Turns whose ids end so, a few of them."""
    access = access_of(txn)
    rows = txn.sql.fetch_rows(
        "SELECT id FROM turn WHERE id LIKE ? LIMIT ?", (f"%{text.upper()}", SHOWN if access.is_unlimited else FAR)
    )
    turns = (_turn_row(txn, id) for (id,) in rows)
    return {turn.id: Revision(turn) for turn in islice(filter(access.may_read_turn, turns), SHOWN)}


def _by_digest(txn: ReadTxn, digits: str) -> dict[str, Revision]:
    """Events whose id begins so; an event that ends its turn stands for the whole turn."""
    even = len(digits) // 2 * 2
    found = {}
    for _, event in txn.facts.find_events(bytes.fromhex(digits[:even]), digits[even:]):
        try:
            turn, position = place_of_event(txn.sql, txn.facts, event)
        except NotFound:
            continue
        if not access_of(txn).may_read_turn(turn):
            continue
        found[event] = Revision(turn, None if turn.closed and position == turn.events - 1 else position + 1)
    return found


_AGO = re.compile(r"(\d{1,12})\s*(second|minute|hour|day|week|month|year|s|m|h|d|w)s?(?:\s+ago)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONG = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800, "month": 2592000, "year": 31536000}
_LAST = re.compile(r"last\s+(day|week|month|year)")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - the alias hides what it is

_EARLIEST_MS = -62_135_596_800_000
"""The beginning of the calendar. What is so long ago that it has no date means this."""


def parse_moment(text: str, now_ms: int, zone: tzinfo) -> int:
    """`now`, `yesterday`, `3 days ago`, `3.days.ago`, `last week`, or a date with or without time and offset, as Unix
    milliseconds."""
    words = text.strip().lower()
    now = _EPOCH + timedelta(milliseconds=now_ms)
    if words in ("now", "today"):
        return now_ms
    if words == "yesterday":
        return _milliseconds(now - timedelta(days=1))
    if match := _LAST.fullmatch(words):
        return now_ms - _LONG[match[1]] * 1000
    if match := _AGO.fullmatch(words.replace(".", " ")):
        unit = _SECONDS.get(match[2]) or _LONG[match[2]]
        return max(now_ms - int(match[1]) * unit * 1000, _EARLIEST_MS)
    try:
        moment = datetime.fromisoformat(text.strip())
        return _milliseconds(moment if moment.tzinfo else moment.replace(tzinfo=zone))
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{quoted(text)} is no time", "write yesterday, '2 hours ago', 2026-11-15 or '2026-11-15 09:30'"
        ) from None


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


# --- Periods as people write them: a day means all of it, whoever reads it.
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def read_moment(given: int | str | None, what: str, now: int, zone: tzinfo) -> int | None:
    """A day means all of it: since its beginning, until its end. Everything else is a moment."""
    if given is None or not isinstance(given, str):
        return None if given is None else checked_number(given, what)
    day = _day_of(checked_text(given, what), now, zone)
    if day is None:
        return parse_moment(given, now, zone)
    try:
        midnight = datetime.combine(day + timedelta(days=what == "until"), time(), zone)
        return (midnight - _EPOCH) // timedelta(milliseconds=1)
    except (OverflowError, ValueError):  # a zone has no offset beyond the calendar
        raise InvalidInput(
            f"{what} {quoted(given)} is beyond the calendar", "name a day between year 1 and 9999"
        ) from None


def read_last_moment(given: int | str | None, now: int, zone: tzinfo) -> int | None:
    """The last millisecond of a period: that of a day, or a moment itself."""
    end = read_moment(given, "until", now, zone)
    is_day = isinstance(given, str) and _day_of(given, now, zone) is not None
    return end - 1 if end is not None and is_day else end


def _day_of(text: str, now: int, zone: tzinfo) -> date | None:
    words = text.strip().lower()
    if words in ("today", "yesterday"):
        today = (_EPOCH + timedelta(milliseconds=now)).astimezone(zone).date()
        return today - timedelta(days=words == "yesterday")
    if not _DATE.fullmatch(words):
        return None
    try:
        return date.fromisoformat(words)
    except ValueError:
        return None
