"""The authorisation point of the graph: whether whoever reads may see a node. Every verb asks here, for every node.

A node goes with what it belongs to: an event with its stream (a turn, a session, a conversation, a program, a
resource), a snapshot with its resource or its turn, a message with the event that brought it. What is not in this
ledger is shown to whoever opened it alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from msgspec import UNSET

from weft.kernel import approval_events as approvals
from weft.kernel import conversation_events as rooms
from weft.kernel import dag_events as dag
from weft.kernel import ledger_events as own
from weft.kernel.enums import MessageRole
from weft.kernel.events import Event, UnknownEvent
from weft.ledger.read.access import READ_LEDGER, access_of
from weft.ledger.resources.reading import READ_RESOURCE, find_resource, may_use_resource
from weft.ledger.rooms.rows import load_conversation, present, readable_ranges
from weft.ledger.views import edge_types as kinds
from weft.ledger.views.edge_types import EdgeType
from weft.ledger.views.program_rows import load_program
from weft.ledger.views.recorded_events import decoded
from weft.ledger.views.rows import load_session, load_turn
from weft.store.port import ReadTxn
from weft.store.replica_names import OwnEvents
from weft.store.sql import Sql


class NodeAccess:
    """What may be seen of the graph in one transaction. `edges` is the database that has its edges."""

    def __init__(self, txn: ReadTxn, edges: Sql) -> None:
        self._txn, self._edges, self._access = txn, edges, access_of(txn)
        self._seen: dict[str, bool] = {}

    @property
    def is_unlimited(self) -> bool:
        return self._access.is_unlimited

    def may_see(self, key: str) -> bool:
        """Whether the node of this key may be seen."""
        if self._access.is_unlimited:
            return True
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = False  # of a circle nothing is seen
            kind, _, id = key.partition(":")
            seen = self._seen[key] = self._checks[kind](id) if kind in self._checks else False
        return seen

    def may_see_prompt(self, n: int) -> bool:
        """Whether the configuration that the turn of an event ran with may be seen: it goes with its agent."""
        event = None if self._access.is_unlimited else self._event(n)
        turn = load_turn(self._txn.sql, event.stream[4:]) if event is not None and event.stream[:4] == "run:" else None
        return turn is None or self._access.may_read_prompt(turn.n)

    @cached_property
    def _checks(self) -> dict[str, Callable[[str], bool]]:
        return {
            kinds.RUN: self._may_see_run,
            kinds.SESSION: self._may_see_session,
            kinds.PROGRAM: self._may_see_program,
            kinds.EVENT: self._may_see_event,
            kinds.GENERATION: self._may_see_event,
            kinds.TOOL_CALL: self._may_see_event,
            kinds.TOOL_RESULT: self._may_see_event,
            kinds.SUMMARY: self._may_see_event,
            kinds.MESSAGE: lambda id: self._may_see_produced(f"{kinds.MESSAGE}:{id}"),
            kinds.RESOURCE: self._may_see_resource,
            kinds.SNAPSHOT: self._may_see_snapshot,
            kinds.HANDLE: self._may_see_handle,
            kinds.POLICY: self._may_see_policy,
            kinds.URI: lambda _: self._access.may_whole(READ_LEDGER),
            kinds.MATERIALIZATION: lambda id: self._may_see_produced(f"{kinds.MATERIALIZATION}:{id}"),
        }

    def _may_see_run(self, turn: str) -> bool:
        row = load_turn(self._txn.sql, turn)
        return row is not None and self._access.may_read_turn(row)

    def _may_see_session(self, session: str) -> bool:
        row = load_session(self._txn.sql, session)
        return row is not None and self._access.may_read(row)

    def _may_see_program(self, program: str) -> bool:
        row = load_program(self._txn.sql, program)
        return row is None or self._access.may_read_program(row)

    def _may_see_produced(self, key: str) -> bool:
        """What events produce goes with them."""
        return any(self.may_see(source) for source in self.producers(key))

    def producers(self, key: str) -> list[str]:
        """The keys of the events that produced a node, the first one first."""
        query = "SELECT source FROM edge WHERE target = ? AND type = ? ORDER BY id"
        return [source for (source,) in self._edges.all(query, (key, EdgeType.EVENT_PRODUCES.value))]

    def _may_see_position(self, conversation: str, position: int) -> bool:
        row = load_conversation(self._txn.sql, conversation)
        if row is None:
            return False
        ranges = readable_ranges(self._txn.sql, self._access, row, OwnEvents(self._txn.sql))
        return any(low < position <= high for low, high in ranges)

    def _may_see_resource(self, resource: str) -> bool:
        found = find_resource(self._txn, resource)
        return found is not None and may_use_resource(self._access, self._txn, found, READ_RESOURCE)

    def _may_see_snapshot(self, snapshot: str) -> bool:
        row = self._txn.sql.one("SELECT resource, run FROM resource_snapshot WHERE id = ?", (snapshot,))
        if row is None:
            return False
        return self._may_see_resource(row[0]) or (row[1] is not None and self._may_see_run(row[1]))

    def _may_see_handle(self, handle: str) -> bool:
        row = self._txn.sql.one("SELECT resource FROM resource_handle WHERE id = ?", (handle,))
        return row is not None and self._may_see_resource(row[0])

    def _may_see_policy(self, policy: str) -> bool:
        row = self._txn.sql.one("SELECT agent FROM policy WHERE id = ?", (policy,))
        return row is not None and (row[0] is None or self._may_see_program(row[0]))

    # --- events -------------------------------------------------------------------------------------------------

    def _event(self, n: int) -> Event | UnknownEvent | None:
        line = self._txn.facts.line(n)
        return None if line is None else decoded(n, line)

    def _may_see_event(self, number: str) -> bool:
        event = self._event(int(number)) if number.isdecimal() and len(number) < 16 else None
        if event is None:
            return False
        stream, _, id = event.stream.partition(":")
        if stream == "conversation":
            return self._may_see_conversation_event(event, id, int(number))
        if stream == "import":
            return isinstance(event, own.Sighting) and self._may_see_session(event.session)
        check = self._stream_checks.get(stream)
        if check is None:
            return self._may_see_ledger_event(event)
        return check(id) and not (stream == "run" and self._is_hidden_prompt(event, id))

    @cached_property
    def _stream_checks(self) -> dict[str, Callable[[str], bool]]:
        return {
            "run": self._may_see_run,
            "session": self._may_see_session,
            "program": lambda id: load_program(self._txn.sql, id) is not None and self._may_see_program(id),
            "resource": self._may_see_resource,
        }

    def _is_hidden_prompt(self, event: Event | UnknownEvent, turn: str) -> bool:
        """A system message goes with the agent that it instructs."""
        if not isinstance(event, dag.HistoryAppend) or event.message.role is not MessageRole.SYSTEM:
            return False
        row = load_turn(self._txn.sql, turn)
        return row is None or not self._access.may_read_prompt(row.n)

    def _may_see_conversation_event(self, event: Event | UnknownEvent, conversation: str, n: int) -> bool:
        """What was said, to those who took part then; all else to those who take part now."""
        if isinstance(event, rooms.MessagePosted):
            query = "SELECT position FROM room_message WHERE id = ? AND n = ?"
            row = self._txn.sql.one(query, (event.message, n))
            return row is not None and self._may_see_position(conversation, row[0])
        events = OwnEvents(self._txn.sql)
        return bool(self._access.ids) and all(
            present(self._txn.sql, conversation, id, events) is not None for id in self._access.ids
        )

    def _may_see_ledger_event(self, event: Event | UnknownEvent) -> bool:
        """Events of the ledger's own stream go with what they are about; those about all of it, with the whole."""
        about = self._about(event)
        return self._access.may_whole(READ_LEDGER) if about is None else all(self.may_see(key) for key in about)

    def _about(self, event: Event | UnknownEvent) -> tuple[str, ...] | None:
        """The keys of what an event of the ledger's own stream is about; None: the whole ledger."""
        about: tuple[str, ...] | None = None
        match event:
            case approvals.PolicyProposed() | approvals.PolicyActivated() | approvals.PolicyRejected():
                about = (f"policy:{event.policy_ref}",)
            case approvals.PolicyRolledBack():
                about = f"policy:{event.policy_ref}", f"policy:{event.to}"
            case dag.ToolResult():
                about = (self._event_key(event.call.event_id),)
            case dag.Substitution():
                ids = event.original_event.event_id, event.replacement_event.event_id
                about = self._event_key(ids[0]), self._event_key(ids[1])
            case own.TurnLinked():
                about = f"run:{event.child}", f"run:{event.parent}"
            case own.TurnRetried():
                about = f"run:{event.turn}", f"run:{event.of}"
            case dag.SnapshotMaterialized() if event.run is not UNSET:
                about = (f"run:{event.run}",)
        return about

    def _event_key(self, event_id: str) -> str:
        return f"{kinds.EVENT}:{self._txn.facts.find_event(bytes.fromhex(event_id)) or event_id}"
