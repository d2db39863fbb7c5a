"""Tags on anything that has an id: programs, sessions, turns, messages, events."""

from __future__ import annotations

from collections.abc import Iterable

from weft.kernel.errors import AmbiguousName, InvalidInput, NotFound
from weft.kernel.facts import is_digest
from weft.kernel.ledger_events import NodeTagged, NodeUntagged
from weft.kernel.ulid import is_ulid
from weft.ledger.labels import checked_label
from weft.ledger.names import resolve
from weft.ledger.rows import SessionRow
from weft.programs.addresses import is_address, parse_address
from weft.programs.clerk import Clerk, find_any
from weft.programs.model import Tagged
from weft.store.port import ReadTxn, Sql

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


def checked_tags(tags: Iterable[str]) -> list[str]:
    given = [tags] if isinstance(tags, str) else list(tags)
    if not given:
        raise InvalidInput("no tag was given", "give at least one")
    return list(dict.fromkeys(checked_label(tag, "tag") for tag in given))


def add(clerk: Clerk, name: str, tags: Iterable[str]) -> str:
    """Those that it has already are not added again."""
    node = find_node(ReadTxn(clerk.sql, clerk.draft.txn.facts), name)
    fresh = [tag for tag in checked_tags(tags) if tag not in tags_of(clerk.sql, node)]
    if fresh:
        contents = tuple(clerk.draft.put_text(tag, "tag") for tag in fresh)
        clerk.ledger_stream().add(NodeTagged, node=node, tags=contents)
    return node


def remove(clerk: Clerk, name: str, tags: Iterable[str]) -> str:
    node = find_node(ReadTxn(clerk.sql, clerk.draft.txn.facts), name)
    there = [tag for tag in checked_tags(tags) if tag in tags_of(clerk.sql, node)]
    if there:
        contents = tuple(clerk.draft.put_text(tag, "tag") for tag in there)
        clerk.ledger_stream().add(NodeUntagged, node=node, tags=contents)
    return node


def tags_of(sql: Sql, node: str) -> list[str]:
    return [tag for (tag,) in sql.all("SELECT tag FROM node_tag WHERE node = ? ORDER BY tag", (node,))]


def nodes_with(sql: Sql, tags: Iterable[str]) -> list[Tagged]:
    """Nodes that have all of these tags, programs first, each with all of its own."""
    found: set[str] | None = None
    for tag in checked_tags(tags):
        nodes = {node for (node,) in sql.all("SELECT node FROM node_tag WHERE tag = ?", (tag,))}
        found = nodes if found is None else found & nodes
    made = [_tagged(sql, node) for node in sorted(found or ())]
    return sorted((one for one in made if one is not None), key=lambda one: (ORDER.index(one.kind), one.name, one.id))


ORDER = ("program", "session", "turn", "message", "event")


def _tagged(sql: Sql, node: str) -> Tagged | None:
    """What a node is; hidden programs and deleted sessions are not shown."""
    kind, name = "event", node
    found = find_any(sql, node)
    if isinstance(found, SessionRow):
        if found.status == "deleted":
            return None
        kind, name = "session", found.label
    elif found is not None:
        if found.deleted:
            return None
        kind, name = "program", found.name
    elif sql.one("SELECT 1 FROM turn WHERE id = ?", (node,)) is not None:
        kind = "turn"
    elif is_ulid(node):
        kind = "message"
    return Tagged(id=node, kind=kind, name=name, tags=tags_of(sql, node))
