"""What people type for a node: `KIND:NAME`, or a name alone where only one node has it.

Runs are named like turns (`main~1`, the end of an id, the beginning of a digest), sessions by their labels, programs,
resources and policies by their names, events by the beginning of their ids. What a listing shows is taken too.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from weft.graph.edge_reader import EdgeReader
from weft.kernel.advice import Action
from weft.kernel.clock import is_ulid
from weft.kernel.errors import AmbiguousName, InvalidInput, NotFound
from weft.kernel.weft_error import quoted
from weft.ledger.approvals.policies import load_policy
from weft.ledger.arguments import checked_text
from weft.ledger.model import DEFAULT_AGENT, IMPORTED_AGENT
from weft.ledger.read.revisions import ParseTime, require, resolve
from weft.ledger.resources.reading import load_resource
from weft.ledger.resources.snapshot_reading import load_snapshot
from weft.ledger.views import edge_types as kinds
from weft.ledger.views.edge_types import node_key
from weft.ledger.views.edges import thing_of
from weft.ledger.views.program_rows import find_program
from weft.ledger.views.recorded_events import decoded

_HEX = re.compile(r"[0-9a-f]{7,64}")
_REF = re.compile(r"[0-9a-f]{64}")
_ALIASES = {"agent": kinds.PROGRAM, "turn": kinds.RUN, "branch": kinds.SESSION, "subagent": kinds.SESSION}
Find = Callable[[str], str | None]


class NodeNames:
    """The names of nodes in one transaction, for whoever reads in it."""

    def __init__(self, reader: EdgeReader, parse_time: ParseTime) -> None:
        self._reader, self._txn, self._parse_time = reader, reader.txn, parse_time
        self._finders: dict[str, Find] = {
            kinds.RUN: self._run,
            kinds.SESSION: self._session,
            kinds.PROGRAM: self._program,
            kinds.RESOURCE: self._resource,
            kinds.SNAPSHOT: lambda name: node_key(kinds.SNAPSHOT, load_snapshot(self._txn, name).id),
            kinds.POLICY: self._policy,
        }

    def key(self, name: str, *, first: tuple[str, ...] = ()) -> str:
        """The key of the node that a name means. Of nodes of several kinds the one is meant whose kind stands first in
        `first`, else the name must be the name of one. Raises NotFound, also for what may not be seen, and
        AmbiguousName."""
        text = checked_text(name, "node").strip()
        kind, colon, rest = text.partition(":")
        kind = _ALIASES.get(kind, kind)
        if colon and kind in kinds.NODE_KINDS and rest:
            key = self._of_kind(kind, rest)
        else:
            key = self._of_any_kind(text, first)
        if key is None or not self._reader.access.may_see(key):
            raise NotFound("node", name, Action.NAME_A_NODE)
        return key

    def _of_kind(self, kind: str, id: str) -> str | None:
        if kind in kinds.EVENT_BACKED:
            return self._event(kind, id)
        finder = self._finders.get(kind)
        if finder is not None:
            return finder(id)
        if kind == kinds.URI:
            return node_key(kind, id) if _REF.fullmatch(id) else None
        return node_key(kind, id) if is_ulid(id) or _REF.fullmatch(id) else None

    def _of_any_kind(self, text: str, first: tuple[str, ...]) -> str | None:
        if _HEX.fullmatch(text) and (event := self._event(kinds.EVENT, text)) is not None:
            return event
        visible: dict[str, str] = {}
        ambiguity: AmbiguousName | None = None
        for kind in self._wanted(first):
            try:
                key = self._found(kind, text)
            except AmbiguousName as error:  # a longer name of another kind may be meant
                ambiguity = ambiguity or error
                continue
            if key is not None and self._reader.access.may_see(key):
                visible[kind] = key
        if not visible and ambiguity is not None:
            raise ambiguity
        for kind in first:
            if kind in visible:
                return visible[kind]
        if len(visible) > 1:
            names = [self._reader.name_of(key) for key in visible.values()]
            raise AmbiguousName(text, names, "say which one: KIND:NAME")
        if not visible and is_ulid(text):
            return next((key for key in self._by_ulid(text) if self._reader.access.may_see(key)), None)
        return next(iter(visible.values()), None)

    def _wanted(self, first: tuple[str, ...]) -> tuple[str, ...]:
        bare = (kinds.RUN, kinds.PROGRAM, kinds.RESOURCE, kinds.POLICY, kinds.SNAPSHOT)
        return tuple(dict.fromkeys((*first, *bare)))

    def _found(self, kind: str, text: str) -> str | None:
        try:
            return self._finders[kind](text)
        except (NotFound, InvalidInput):
            return None

    def _by_ulid(self, text: str) -> list[str]:
        """Of nodes that have nothing but an id, those that edges join."""
        unnamed = (kinds.MESSAGE, kinds.HANDLE, kinds.MATERIALIZATION, kinds.SESSION)
        keys = [node_key(kind, text) for kind in unnamed]
        return [key for key in keys if next(self._reader.of(key), None) is not None]

    # --- by kind ------------------------------------------------------------------------------------------------

    def _run(self, name: str) -> str | None:
        return node_key(kinds.RUN, resolve(self._txn, name, self._parse_time).turn.id)

    def _session(self, name: str) -> str | None:
        return node_key(kinds.SESSION, require(self._txn, name).id)

    def _program(self, name: str) -> str | None:
        if name in (DEFAULT_AGENT, IMPORTED_AGENT):
            return node_key(kinds.PROGRAM, name)
        row = find_program(self._txn.sql, name)
        if row is not None:
            return node_key(kinds.PROGRAM, row.id)
        named = node_key(kinds.PROGRAM, name)
        return named if next(self._reader.of(named), None) is not None else None

    def _resource(self, name: str) -> str | None:
        return node_key(kinds.RESOURCE, load_resource(self._txn, name).id)

    def _policy(self, name: str) -> str | None:
        return node_key(kinds.POLICY, load_policy(self._txn, name).id)

    def _event(self, kind: str, digits: str) -> str | None:
        """By the beginning of an id, as whichever kind of node it is asked for."""
        if not _HEX.fullmatch(digits):
            raise InvalidInput(f"{quoted(digits)} is no event", "give at least seven hex digits of its id")
        even, odd = digits[: len(digits) // 2 * 2], digits[len(digits) // 2 * 2 :]
        found = self._txn.facts.find_events(bytes.fromhex(even), odd)
        seen = [(n, id) for n, id in found if self._reader.access.may_see(node_key(kinds.EVENT, n))]
        if len(seen) > 1:
            raise AmbiguousName(digits, [f"{kind}:{id}" for _, id in seen])
        if not seen:
            return None
        n = seen[0][0]
        line = self._txn.facts.line(n)
        if kind != kinds.EVENT and (line is None or thing_of(decoded(n, line)) != kind):
            return None
        return node_key(kind, n)
