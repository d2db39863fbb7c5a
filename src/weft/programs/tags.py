"""Tags on anything that has an id: programs, sessions, turns, messages, events."""

from __future__ import annotations

from collections.abc import Iterable

from weft.kernel.errors import InvalidInput
from weft.kernel.ledger_events import NodeTagged, NodeUntagged
from weft.ledger.arguments import checked_label
from weft.ledger.views.rows import SessionRow
from weft.programs.model import Tagged
from weft.programs.nodes import KINDS, Node, find_node, node_of
from weft.programs.program_writer import ProgramWriter, find_any
from weft.store.port import ReadTxn
from weft.store.sql import Sql


def checked_tags(tags: Iterable[str]) -> list[str]:
    given = [tags] if isinstance(tags, str) else list(tags)
    if not given:
        raise InvalidInput("no tag was given", "give at least one")
    return list(dict.fromkeys(checked_label(tag, "tag") for tag in given))


def add(clerk: ProgramWriter, name: str, tags: Iterable[str]) -> str:
    """Those that it has already are not added again."""
    node = find_node(ReadTxn(clerk.sql, clerk.append.txn.facts), name)
    _permit(clerk, node)
    fresh = [tag for tag in checked_tags(tags) if tag not in tags_of(clerk.sql, node)]
    if fresh:
        contents = tuple(clerk.append.put_text(tag, "tag") for tag in fresh)
        clerk.ledger_stream().add(NodeTagged, node=node, tags=contents)
    return node


def remove(clerk: ProgramWriter, name: str, tags: Iterable[str]) -> str:
    node = find_node(ReadTxn(clerk.sql, clerk.append.txn.facts), name)
    _permit(clerk, node)
    there = [tag for tag in checked_tags(tags) if tag in tags_of(clerk.sql, node)]
    if there:
        contents = tuple(clerk.append.put_text(tag, "tag") for tag in there)
        clerk.ledger_stream().add(NodeUntagged, node=node, tags=contents)
    return node


def _permit(clerk: ProgramWriter, node: str) -> None:
    """What is said of a program is for those who may configure it; turns, messages and events are anybody's to mark."""
    found = find_any(clerk.sql, node)
    if found is not None:
        own = found.persona if isinstance(found, SessionRow) else None
        clerk.permit("configure", f"tag {found.label if isinstance(found, SessionRow) else found.name!r}", own)


def tags_of(sql: Sql, node: str) -> list[str]:
    return [tag for (tag,) in sql.all("SELECT tag FROM node_tag WHERE node = ? ORDER BY tag", (node,))]


def nodes_with(sql: Sql, tags: Iterable[str]) -> list[Tagged]:
    """Nodes that have all of these tags, programs first, each with all of its own."""
    found: set[str] | None = None
    for tag in checked_tags(tags):
        nodes = {node for (node,) in sql.all("SELECT node FROM node_tag WHERE tag = ?", (tag,))}
        found = nodes if found is None else found & nodes
    made = [_tagged(sql, node_of(sql, node)) for node in sorted(found or ())]
    return sorted((one for one in made if one is not None), key=lambda one: (KINDS.index(one.kind), one.name, one.id))


def _tagged(sql: Sql, node: Node) -> Tagged | None:
    """Hidden programs and deleted sessions are not shown."""
    return Tagged(id=node.id, kind=node.kind, name=node.name, tags=tags_of(sql, node.id)) if node.there else None
