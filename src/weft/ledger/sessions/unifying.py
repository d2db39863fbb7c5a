"""Two sessions that belong together become one, without merging their trees.

The session that goes is archived under another label, and its label and aliases lead to the one that stays, where a
turn tells what is to be known of it. All of that is one append: a reader finds both sessions as they were, or one.
Names always lead to a session, never to another name: those that came by an earlier merge go along.
"""

from __future__ import annotations

from msgspec import UNSET, Struct

from weft.kernel.advice import Action
from weft.kernel.enums import AliasReason, SessionStatus
from weft.kernel.errors import NotApplicable
from weft.kernel.ledger_events import AliasAdded, SessionArchived, SessionRenamed
from weft.ledger.arguments import LABEL_LIMIT, cleaned_label
from weft.ledger.model import Session, Turn
from weft.ledger.read.access import READ_SESSION
from weft.ledger.read.continuity import load_continuity
from weft.ledger.read.principals import principal_names
from weft.ledger.read.revisions import routed_sessions
from weft.ledger.read.sessions import load_branches
from weft.ledger.sessions.heads import require_session, stream_of
from weft.ledger.sessions.merging import Summary, add_turn
from weft.ledger.sessions.settling import events_back_from
from weft.ledger.views.rows import SessionRow, find_by_name, load_turn
from weft.ledger.views.sessions import wrote_last
from weft.ledger.write.append import Append, Patience
from weft.ledger.write.placement import ensure_free
from weft.store.port import ReadTxn

UNIFIED = "unified/"
"""With this before its label a session is archived once another one has its label."""


class Unification(Struct, frozen=True, kw_only=True):
    """Two sessions that became one."""

    session: Session
    """The one that stays."""
    archived: Session
    """The one that was merged into it, under its new label."""
    names: tuple[str, ...]
    """Labels and aliases that lead to the one that stays from now on."""
    summary: Turn
    """The turn that tells of the archived one."""


class UnifiedIds(Struct, frozen=True):
    """The same by ids, as a repeated command answers it."""

    session: str
    archived: str
    turn: str
    names: tuple[str, ...]
    """References of the contents that hold them: names may be erased meanwhile."""


def unify(append: Append, name: str, into: str, text: str | None, patience: Patience, key: str | None) -> UnifiedIds:
    """Merge a session into another one. `text` is the summary; without one it is made of what is recorded."""
    gone = require_session(append, name, "session:archive")
    target = require_session(append, into, "turn:merge")
    for right in (READ_SESSION, "session:rename"):
        append.access.ensure(right, gone, name)
        append.access.ensure(right, target, into)
    _ensure_two(append, gone, target)
    ensure_free(append, gone, patience)
    ensure_free(append, target, patience)
    names = _names(append, gone)
    head = None if gone.head is None else load_turn(append.sql, gone.head)
    if text is None:
        (actor,) = principal_names(append.sql, append.acting_ids[:1]).values()
        text = load_continuity(ReadTxn(append.sql, append.txn.facts), gone, target, append.access).text(actor)
    turn = add_turn(append, target.id, UNSET, patience, key, Summary(head, text))
    ended = stream_of(append, gone)
    ended.add(SessionRenamed, label=append.put_text(_retired_label(append, gone.label)))  # a label wins over an alias
    if gone.status != SessionStatus.ARCHIVED:
        ended.add(SessionArchived, status=SessionStatus.ARCHIVED)
    going_on = stream_of(append, target)
    aliases = tuple(append.put_text(alias) for alias in names)
    for alias in aliases:
        going_on.add(AliasAdded, alias=alias, reason=AliasReason.IDENTITY_MERGE)
    return UnifiedIds(target.id, gone.id, turn, aliases)


def _ensure_two(append: Append, gone: SessionRow, target: SessionRow) -> None:
    if gone.id == target.id:
        raise NotApplicable(f"both names lead to session {target.label!r}", "name two sessions")
    if gone.status == SessionStatus.DELETED:
        raise NotApplicable(f"session {gone.label!r} is deleted", "restore it first")
    if load_branches(ReadTxn(append.sql, append.txn.facts), gone.n):
        raise NotApplicable(f"session {gone.label!r} has several branches", "settle it first")


def _names(append: Append, session: SessionRow) -> tuple[str, ...]:
    """Every name that leads to a session: its label, its aliases, and its routing key if no other session has it."""
    rows = append.sql.all("SELECT alias FROM alias WHERE session = ? ORDER BY alias", (session.n,))
    names = [session.label, *(row[0] for row in rows if row[0] != session.label)]
    key = None if session.routing is None else append.txn.facts.text(session.routing)
    if key is not None and key not in names and cleaned_label(key) == key and find_by_name(append.view, key) is None:
        routed = routed_sessions(ReadTxn(append.sql, append.txn.facts), key)
        names += [key] if [row.id for row in routed] == [session.id] else []
    return tuple(names)


def _retired_label(append: Append, label: str) -> str:
    retired = f"{UNIFIED}{label}"[: LABEL_LIMIT - len(UNIFIED)].strip()
    free, number = retired, 1
    while find_by_name(append.view, free) is not None:
        number += 1
        free = f"{retired}-{number}"
    return free


# --- the way back ---------------------------------------------------------------------------------------------------


def separate(append: Append, name: str, patience: Patience) -> str:
    """Undo a merge: the session is active again and has its names back, with the reasons that they had. The summary
    stays a turn of the other session. Returns the session's id."""
    row = require_session(append, name, "session:archive")
    append.access.ensure("session:rename", row, name)
    ensure_free(append, row, patience)
    label, reasons = row.label.removeprefix(UNIFIED), _former_names(append, row)
    holders = [(alias, holder) for alias in reasons if (holder := _merged_into(append, alias, row)) is not None]
    if not holders:
        raise NotApplicable(f"no name of session {row.label!r} was given to another session", Action.LIST_SESSIONS)
    for alias, holder in holders:
        append.access.ensure("session:rename", holder, alias)
        if not wrote_last(append.view, holder, append.replica):
            stream_of(append, holder).add(
                AliasAdded, alias=append.put_text(alias), reason=AliasReason.IDENTITY_MERGE
            )  # so that other ledgers believe this one, which wrote last, that it hands the name back
        stream_of(append, row).add(AliasAdded, alias=append.put_text(alias), reason=reasons[alias])
    if any(alias == label for alias, _ in holders):
        stream_of(append, row).add(SessionRenamed, label=append.put_text(label))
    if row.status != SessionStatus.ACTIVE:
        stream_of(append, row).add(SessionArchived, status=SessionStatus.ACTIVE)
    return row.id


def _former_names(append: Append, session: SessionRow) -> dict[str, AliasReason]:
    """What a merged session may have been called, and why: its label, its routing key, and the aliases it ever had."""
    facts = append.txn.facts
    names = {session.label.removeprefix(UNIFIED): AliasReason.MANUAL}
    if session.routing is not None and (key := facts.text(session.routing)):
        names.setdefault(key, AliasReason.MANUAL)
    for _, event in events_back_from(facts, bytes(session.last_event).hex()):
        if isinstance(event, AliasAdded) and (alias := facts.text(append.number(event.alias))):
            names.setdefault(alias, event.reason)
    return names


def _merged_into(append: Append, alias: str, session: SessionRow) -> SessionRow | None:
    """The other session that an alias leads to since a merge."""
    rows = "SELECT session FROM alias WHERE alias = ? AND reason = ? AND session <> ?"
    row = append.sql.one(rows, (alias, AliasReason.IDENTITY_MERGE, session.n))
    return None if row is None else append.view.session_of_number(row[0])
