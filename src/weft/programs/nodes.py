"""Anything that has an id (programs, sessions, turns, messages, events): how it is found, called and tagged."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from weft.kernel.clock import is_ulid
from weft.kernel.errors import AmbiguousName, InvalidInput, NotFound, quoted
from weft.kernel.foreign_input import is_digest
from weft.kernel.ledger_events import NodeTagged, NodeUntagged
from weft.ledger.arguments import checked_label
from weft.ledger.read.access import READ_LEDGER, LimitedTxn, access_of
from weft.ledger.read.revisions import resolve, session_beside_turns
from weft.ledger.views.rows import SessionRow, StoredSessions, find_by_name, find_program, turns_of_messages
from weft.programs.addresses import is_address, parse_address
from weft.programs.model import TaggedNode
from weft.programs.program_writer import ProgramWriter, find_any
from weft.store.port import ReadTxn
from weft.store.sql import Sql

NODE_KINDS = ("program", "session", "turn", "message", "event")
HINT = "name a program, a session, a turn, a message or an event"


def find_node(txn: ReadTxn, name: str) -> str:
    """The id that a name stands for: a program's, a session's, a turn's, a message's or an event's."""
    wanted = parse_address(name, "node").name if is_address(name) else name
    if not isinstance(wanted, str) or not wanted:
        raise InvalidInput(f"node is {quoted(name)}", HINT)
    row = find_any(txn, wanted) or find_any(txn, wanted.upper()) or session_beside_turns(txn, wanted)
    if row is not None:
        return row.id
    whole = wanted.upper()
    if is_ulid(whole) and _is_message(txn, whole):
        return whole
    if is_digest(wanted.lower()) and _is_event(txn, wanted.lower()):
        return wanted.lower()
    try:
        return resolve(txn, wanted, _no_time).turn.id
    except AmbiguousName:
        raise
    except (NotFound, InvalidInput):
        raise NotFound("node", wanted, HINT) from None


def _is_message(txn: ReadTxn, message: str) -> bool:
    """A message goes with its turn."""
    turn = turns_of_messages(txn.sql, [message]).get(message)
    return turn is not None and access_of(txn).may_read_turn(turn)


def _is_event(txn: ReadTxn, event: str) -> bool:
    """An event goes with its turn; others are for whoever may read the whole ledger."""
    if txn.facts.find_event(bytes.fromhex(event)) is None:
        return False
    if access_of(txn).may_whole(READ_LEDGER):
        return True
    try:
        resolve(txn, event, _no_time)
    except NotFound:
        return False
    return True


def _no_time(text: str) -> int:
    raise InvalidInput(f"{quoted(text)} is a time, not a node", HINT)


class Node(Struct, frozen=True, kw_only=True):
    """What an id stands for, and its name: a program's, a session's label, else the id itself."""

    id: str
    kind: str
    name: str
    there: bool = True
    """False of a hidden program and of a deleted session."""


def node_of(sql: Sql, node: str) -> Node:
    row = find_program(sql, node) or find_by_name(StoredSessions(sql), node)
    if isinstance(row, SessionRow):
        return Node(id=node, kind="session", name=row.label, there=row.status != "deleted")
    if row is not None:
        return Node(id=node, kind="program", name=row.name, there=not row.deleted)
    if sql.one("SELECT 1 FROM turn WHERE id = ?", (node,)) is not None:
        return Node(id=node, kind="turn", name=node)
    return Node(id=node, kind="message" if is_ulid(node) else "event", name=node)


def checked_tags(tags: Iterable[str]) -> list[str]:
    names = [tags] if isinstance(tags, str) else list(tags)
    if not names:
        raise InvalidInput("no tag was given", "give at least one")
    return list(dict.fromkeys(checked_label(tag, "tag") for tag in names))


def add_tags(writer: ProgramWriter, name: str, tags: Iterable[str]) -> str:
    """Those that it has already are not added again."""
    node = find_node(LimitedTxn(writer.sql, writer.append.txn.facts, writer.append.access), name)
    _permit_tags(writer, node)
    fresh = [tag for tag in checked_tags(tags) if tag not in tags_of(writer.sql, node)]
    if fresh:
        contents = tuple(writer.append.put_text(tag, "tag") for tag in fresh)
        writer.ledger_stream().add(NodeTagged, node=node, tags=contents)
    return node


def remove_tags(writer: ProgramWriter, name: str, tags: Iterable[str]) -> str:
    node = find_node(LimitedTxn(writer.sql, writer.append.txn.facts, writer.append.access), name)
    _permit_tags(writer, node)
    wanted, stream = checked_tags(tags), None
    for version in _versions(writer.sql, node):
        own = _own_tags(writer.sql, version)
        if there := [tag for tag in wanted if tag in own]:
            contents = tuple(writer.append.put_text(tag, "tag") for tag in there)
            stream = stream or writer.ledger_stream()
            stream.add(NodeUntagged, node=version, tags=contents)
    return node


def _permit_tags(writer: ProgramWriter, node: str) -> None:
    """What is said of a program is for those who may configure it; turns, messages and events are anybody's to mark."""
    row = find_any(writer.append, node)
    if isinstance(row, SessionRow):
        writer.permit_session(f"tag {row.label!r}", row)
    elif row is not None:
        writer.append.access.ensure_usable(row, row.name, "program")
        writer.permit_configuring(f"tag {row.name!r}", row)


_SAME_NATIVE = "SELECT id FROM turn WHERE native = (SELECT native FROM turn WHERE id = ?)"


def tags_of(sql: Sql, node: str) -> list[str]:
    """Its tags; of an imported turn also those of its other versions, which it stands in the place of."""
    return sorted({tag for version in _versions(sql, node) for tag in _own_tags(sql, version)})


def _own_tags(sql: Sql, node: str) -> list[str]:
    return [tag for (tag,) in sql.all("SELECT tag FROM node_tag WHERE node = ? ORDER BY tag", (node,))]


def _versions(sql: Sql, node: str) -> list[str]:
    """The node, and every other version of it if it is an imported turn."""
    others = sql.all(
        "SELECT id FROM turn WHERE native = (SELECT native FROM turn WHERE id = ?) AND id <> ?", (node, node)
    )
    return [node, *(id for (id,) in others)]


def _current(sql: Sql, node: str) -> str:
    """The version that stands in a turn's place; anything else is its own."""
    row = sql.one(f"{_SAME_NATIVE} AND current = 1", (node,))
    return node if row is None else str(row[0])


def nodes_with(txn: ReadTxn, tags: Iterable[str]) -> list[TaggedNode]:
    """Nodes that have all of these tags and can be read, programs first, each with all of its own."""
    sql = txn.sql
    nodes: set[str] | None = None
    for tag in checked_tags(tags):
        with_tag = {_current(sql, node) for (node,) in sql.all("SELECT node FROM node_tag WHERE tag = ?", (tag,))}
        nodes = with_tag if nodes is None else nodes & with_tag
    tagged = (_tagged(sql, node_of(sql, node)) for node in sorted(nodes or ()) if _is_readable(txn, node))
    shown = (node for node in tagged if node is not None)
    return sorted(shown, key=lambda node: (NODE_KINDS.index(node.kind), node.name, node.id))


def _is_readable(txn: ReadTxn, node: str) -> bool:
    if access_of(txn).is_unlimited:
        return True
    try:
        return find_node(txn, node) == node
    except NotFound:
        return False


def _tagged(sql: Sql, node: Node) -> TaggedNode | None:
    """Hidden programs and deleted sessions are not shown."""
    return TaggedNode(id=node.id, kind=node.kind, name=node.name, tags=tags_of(sql, node.id)) if node.there else None
