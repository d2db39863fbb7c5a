"""Anything that has an id: what a name stands for, and what people call it."""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.errors import AmbiguousName, InvalidInput, NotFound
from weft.kernel.facts import is_digest
from weft.kernel.ulid import is_ulid
from weft.ledger.read.revisions import resolve
from weft.ledger.views.rows import SessionRow
from weft.programs.addresses import is_address, parse_address
from weft.programs.program_writer import find_any
from weft.store.port import ReadTxn
from weft.store.sql import Sql

KINDS = ("program", "session", "turn", "message", "event")
HINT = "name a program, a session, a turn, a message or an event"


def find_node(txn: ReadTxn, name: str) -> str:
    """The id that a name stands for: a program's, a session's, a turn's, a message's or an event's."""
    wanted = parse_address(name, "node").name if is_address(name) else name
    if not isinstance(wanted, str) or not wanted:
        raise InvalidInput(f"node is {name!r:.80}", HINT)
    found = find_any(txn.sql, wanted) or find_any(txn.sql, wanted.upper())
    if found is not None:
        return found.id
    whole = wanted.upper()
    if is_ulid(whole) and txn.sql.one("SELECT 1 FROM message WHERE id = ?", (whole,)) is not None:
        return whole
    if is_digest(wanted.lower()) and txn.facts.find_event(bytes.fromhex(wanted)) is not None:
        return wanted.lower()
    try:
        return resolve(txn, wanted, _no_time).turn.id
    except AmbiguousName:
        raise
    except (NotFound, InvalidInput):
        raise NotFound("node", wanted, HINT) from None


def _no_time(text: str) -> int:
    raise InvalidInput(f"{text!r:.80} is a time, not a node", HINT)


class Node(Struct, frozen=True, kw_only=True):
    """What an id stands for, and its name: a program's, a session's label, else the id itself."""

    id: str
    kind: str
    name: str
    there: bool = True
    """False of a hidden program and of a deleted session."""


def node_of(sql: Sql, node: str) -> Node:
    found = find_any(sql, node)
    if isinstance(found, SessionRow):
        return Node(id=node, kind="session", name=found.label, there=found.status != "deleted")
    if found is not None:
        return Node(id=node, kind="program", name=found.name, there=not found.deleted)
    if sql.one("SELECT 1 FROM turn WHERE id = ?", (node,)) is not None:
        return Node(id=node, kind="turn", name=node)
    return Node(id=node, kind="message" if is_ulid(node) else "event", name=node)
