"""A conversation that is being changed, in one transaction: its stream, what is said, who comes and goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType

from weft.kernel.conversation_events import MessagePosted, ParticipantAdded, ParticipantRemoved
from weft.kernel.enums import (
    ParticipantKind,
    ProgramKind,
    RoomHistory,
    RoomMessageKind,
    RoomNotice,
    RoomStatus,
    SystemAgentKind,
)
from weft.kernel.errors import NotApplicable
from weft.kernel.events import conversation_stream
from weft.kernel.fields import MentionFact, PartFact, TextFact
from weft.kernel.mentions import write_mention
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.agent_shares import is_private, users_of_agent
from weft.ledger.read.system_agents import system_kind_of
from weft.ledger.rooms.reading import posted_event
from weft.ledger.rooms.rows import (
    ConversationRow,
    ParticipantRow,
    find_conversation,
    load_conversation,
    present,
)
from weft.ledger.runs.admission import scope_of
from weft.ledger.views.program_rows import ProgramRow, load_program
from weft.ledger.write.append import Append, EventStream
from weft.ledger.write.placement import create_session
from weft.store.port import ReadTxn
from weft.store.replica_names import OwnEvents

SHORT_ID = 8


class PostedPlace(NamedTuple):
    """Where a message stands: its position in the conversation, and the arrival number of the event that posted it."""

    position: int
    n: int


class OpenRoom:
    """A conversation of this ledger."""

    def __init__(self, append: Append, row: ConversationRow) -> None:
        self.append, self.row, self.own = append, row, OwnEvents(append.sql)
        self.contents = append.contents_of(scope_of(row.id))
        self.position = row.position
        self.notices: list[str] = []
        self._posted: dict[int, MessagePosted] = {}
        """What this very transaction said, by arrival number: the log does not have it yet."""

    @classmethod
    def named(cls, append: Append, name: str) -> OpenRoom:
        """A conversation that whoever acts takes or took part in."""
        id = find_conversation(ReadTxn(append.sql, append.txn.facts), append.access, name)[0].id
        row = load_conversation(append.sql, id)
        assert row is not None, "it was found right now"
        return cls(append, row)

    @property
    def scope(self) -> int:
        return scope_of(self.row.id)

    def stream(self) -> EventStream:
        name = conversation_stream(self.row.id)
        tip = self.append.sql.one("SELECT last FROM stream_tip WHERE stream = ?", (name,))
        return self.append.stream(name, None if tip is None else bytes(tip[0]).hex(), DEFAULT_AGENT)

    @property
    def reading(self) -> ReadTxn:
        return ReadTxn(self.append.sql, self.append.txn.facts)

    def system_kind(self, agent: ProgramRow | None) -> str | None:
        """What an agent is for that this ledger made itself."""
        return system_kind_of(self.reading, agent)

    # --- what may be done ----------------------------------------------------------------------------------------

    def ensure_open(self) -> None:
        """Refuse what changes a conversation that is archived, or another ledger's."""
        if not self.own.has(self.row.n, self.row.replica):
            raise NotApplicable("the room was made in another ledger", "fork it at its last message and go on there")
        if self.row.status != RoomStatus.ACTIVE:
            raise NotApplicable("the room is archived", "restore it first")

    def ensure_member(self, right: str, action: str) -> ParticipantRow:
        """The membership of whoever acts. Raises NotAllowed where they take no part, or somebody on whose behalf they
        act: whoever was removed does nothing through an agent that stayed."""
        principal, *behind = self.append.acting_ids
        row = self.present(principal)
        if row is None or any(self.present(other) is None for other in behind if other != DEFAULT_AGENT):
            raise self.append.refusal(right, action, "only those who take part in the room do that")
        return row

    def present(self, node: str) -> ParticipantRow | None:
        return present(self.append.sql, self.row.id, node, self.own)

    def works_for(self, agent: ProgramRow, principals: Sequence[str]) -> bool:
        """Whether an agent answers to everybody in whose name a message is sent."""
        txn = self.reading
        if not is_private(txn, agent):
            return True
        others = (principal for principal in principals if principal not in (DEFAULT_AGENT, agent.id))
        return users_of_agent(txn, agent).issuperset(others)

    # --- what is said --------------------------------------------------------------------------------------------

    def say(
        self,
        message: str,
        kind: RoomMessageKind,
        parts: tuple[PartFact, ...],
        *,
        author: str | UnsetType = UNSET,
        mentions: Sequence[MentionFact] = (),
        **fields: Any,
    ) -> PostedPlace:
        """Add a message of this id."""
        stream = self.stream()
        n = self.append.first + len(self.append.lines)
        stream.add(
            MessagePosted,
            message=message,
            message_kind=kind,
            parts=parts,
            author=author,
            mentions=tuple(mentions) or UNSET,
            **fields,
        )
        assert isinstance(stream.last, MessagePosted)
        self._posted[n] = stream.last
        self.position += 1
        return PostedPlace(self.position, n)

    def notice(self, notice: RoomNotice, text: str, **fields: Any) -> None:
        """Something that the system says."""
        self.notices.append(text)
        with self.append.by_the_ledger():
            parts = (TextFact(text=self.contents.put_text(text)),)
            self.say(self.append.ulids.mint(), RoomMessageKind.SYSTEM, parts, notice=notice, **fields)

    def add_private_notice(self, text: str) -> None:
        """Something that whoever acts is told, and nobody else."""
        self.notices.append(text)

    def posted(self, n: int) -> MessagePosted:
        """The event of this number, which said something in a conversation."""
        if n in self._posted:
            return self._posted[n]
        return posted_event(self.reading, n)

    # --- who takes part ------------------------------------------------------------------------------------------

    def add_person(self, node: str, *, message: str | UnsetType = UNSET, since: int | UnsetType = UNSET) -> str:
        """A person takes part from now on; their participant's id."""
        participant = self.append.ulids.mint()
        self.stream().add(
            ParticipantAdded,
            participant=participant,
            participant_kind=ParticipantKind.USER,
            node=node,
            message=message,
            since=since,
        )
        return participant

    def add_agent(
        self,
        agent: ProgramRow,
        *,
        message: str | UnsetType = UNSET,
        since: int | UnsetType = UNSET,
        seen: int | UnsetType = UNSET,
        session: str | None = None,
    ) -> ParticipantRow:
        """An agent takes part from now on, with a session of its own."""
        if seen is UNSET and self.row.history == RoomHistory.ALL:
            seen = 0
        session = session or self.new_session(agent)
        self.stream().add(
            ParticipantAdded,
            participant=self.append.ulids.mint(),
            participant_kind=ParticipantKind.AGENT,
            node=agent.id,
            session=session,
            message=message,
            since=since,
            seen=seen,
        )
        row = self.present(agent.id)
        assert row is not None, "it was added right now"
        return row

    def new_session(self, agent: ProgramRow) -> str:
        """The session that an agent answers in here; its id. It is nobody's but the ledger's: whoever brought the agent
        in would read there what is said after they left."""
        routing = self.append.ledger_contents.put_text(f"room:{self.row.id}", "routing key")
        with self.append.by_the_ledger():
            label = self.session_label(agent)
            return create_session(self.append, label, persona=agent.id, actor=DEFAULT_AGENT, routing_key=routing).id

    def session_label(self, agent: ProgramRow) -> str:
        """A label that no session has: of the room and the agent's name."""
        label = f"room:{self.row.id[-SHORT_ID:].lower()}:{agent.name}"
        if self.append.view.find_session(label) is None:
            return label
        return f"room:{self.append.ulids.mint().lower()}:{agent.name}"

    def remove(self, participant: ParticipantRow) -> None:
        self.stream().add(ParticipantRemoved, participant=participant.id)

    def triage_agent(self) -> ProgramRow | None:
        """The system agent that takes what is said to nobody, where it takes part."""
        rows = self.append.sql.all(
            "SELECT p.node FROM participant p JOIN program a ON a.id = p.node"
            " WHERE p.conversation = ? AND a.system_kind = ? AND p.removed_n IS NULL",
            (self.row.id, SystemAgentKind.TRIAGE.value),
        )
        for (node,) in rows:
            agent = load_program(self.append.sql, node)
            if self.system_kind(agent) is not None and self.present(node) is not None:
                return agent
        return None

    # --- names ---------------------------------------------------------------------------------------------------

    def name_of(self, node: str) -> str:
        """The name that somebody has now."""
        row = None if node == DEFAULT_AGENT else load_program(self.append.sql, node)
        return node if row is None else row.name

    def mention(self, node: str) -> str:
        """The text that mentions somebody by the name that they have now."""
        row = None if node == DEFAULT_AGENT else load_program(self.append.sql, node)
        kind = ParticipantKind.AGENT if row is not None and row.kind == ProgramKind.AGENT else ParticipantKind.USER
        return write_mention(kind, node, node if row is None else row.name)
