"""Sessions that several replicas moved: which branches there are, and one move that joins them.

This ledger's branch is the session's label. Another replica's is called by the end of that replica's id and the label,
`7q2k4m/main`, from facts alone. Settling writes a move that names the ends of all branches; every replica that stands
at one of them follows it, so after the next sync all agree.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, Struct

from weft.kernel.advice import Action
from weft.kernel.dag_events import AgentForked
from weft.kernel.enums import MoveReason, SessionStatus
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.kernel.events import Event, UnknownEvent
from weft.kernel.fields import EventRef
from weft.kernel.ledger_events import CompactionChosen, SessionArchived, SessionMoved, SessionRenamed
from weft.kernel.shell_words import shell_word
from weft.ledger.arguments import checked_label
from weft.ledger.model import Branch
from weft.ledger.read.sessions import head_event, load_branches
from weft.ledger.sessions.heads import require_session, stream_of
from weft.ledger.views.recorded_events import decoded
from weft.ledger.views.rows import SessionRow
from weft.ledger.write.append import Append, LedgerWriter, Patience
from weft.ledger.write.placement import create_session, ensure_free, ensure_label_free, load_parent
from weft.store.facts import FactReader
from weft.store.port import ReadTxn

STATES = (SessionRenamed, SessionArchived)


class SettleChoice(Struct, frozen=True, kw_only=True):
    """Where a session shall stand once it is settled: at a turn, where one branch stands, or on both, as two."""

    turn: str | None = None
    event: str | None = None
    ours: bool = False
    theirs: bool = False
    fork: str | None = None

    def check(self) -> None:
        if (self.turn is not None) + self.theirs + (self.ours or self.fork is not None) != 1:
            raise InvalidInput("say where the session shall stand", "one of: a turn, ours, theirs, or fork")
        if self.fork is not None:
            checked_label(self.fork)


def settle(writer: LedgerWriter, name: str, choice: SettleChoice, reason: str | None, patience: Patience) -> None:
    """One move that names every branch's end, and what else of the session the branches say differently."""
    choice.check()

    def work(append: Append) -> None:
        row = require_session(append, name, "session:settle")
        ensure_free(append, row, patience)
        branches = load_branches(ReadTxn(append.sql, append.txn.facts), row.n)
        if not branches:
            raise NotApplicable(f"session {row.label!r} has one branch", "nothing is to be settled")
        turn, event = _chosen(append, row, branches, choice)
        compaction = row.compaction if turn == row.head else None
        states = _states(append.txn.facts, row, branches)
        stream = stream_of(append, row)
        stream.add(
            SessionMoved,
            to=turn,
            before=row.head,
            why=MoveReason.SETTLE,
            at=UNSET if event is None else event,
            reason=UNSET if reason is None else append.put_text(reason, "reason"),
            tips=tuple(EventRef(tip) for tip in (bytes(row.last_event).hex(), *(branch.tip for branch in branches))),
        )
        if SessionRenamed in states:
            stream.add(SessionRenamed, label=append.put_text(row.label))
        if SessionArchived in states:
            stream.add(SessionArchived, status=SessionStatus(row.status))
        if compaction is not None:
            stream.add(CompactionChosen, compaction=compaction or None)
        append.seal()

    patience.keep_trying(lambda: writer.write(work))


def _chosen(
    append: Append, row: SessionRow, branches: list[Branch], choice: SettleChoice
) -> tuple[str | None, str | None]:
    """The turn that the session shall stand at, and an event inside it."""
    if choice.turn is not None:
        turn = load_parent(append, choice.turn)
        return turn.id, choice.event or (None if turn.closed else turn.digest)
    if choice.theirs or choice.fork is not None:
        theirs = _their_head(append, row, branches)
        if choice.theirs:
            return theirs
        _fork(append, row, checked_label(choice.fork), theirs)
    return row.head, _event(append, row.head, row.head_events)


def _their_head(append: Append, row: SessionRow, branches: list[Branch]) -> tuple[str | None, str | None]:
    places = {(branch.head, branch.head_event) for branch in branches}
    if len(places) > 1:
        raise NotApplicable(
            f"session {row.label!r} has {len(branches)} other branches, at different turns",
            Action.NAME_ONE_BRANCH.of(branches=" or ".join(sorted(shell_word(branch.name) for branch in branches))),
        )
    head, events = places.pop()
    return head, _event(append, head, events)


def _event(append: Append, turn: str | None, events: int | None) -> str | None:
    return None if turn is None else head_event(append.txn.facts, append.view.turn(turn), events)


def _fork(append: Append, row: SessionRow, label: str, place: tuple[str | None, str | None]) -> None:
    """A session of its own for the other branch."""
    turn, event = place
    ensure_label_free(append, label)
    if turn is None:
        raise NotApplicable(f"the other branch of {row.label!r} stands at no turn", Action.CHOOSE_OWN_BRANCH)
    session = create_session(append, label, persona=row.persona)
    stream_of(append, session).add(
        AgentForked,
        to_branch=session.id,
        at_event=EventRef(event or append.view.turn(turn).digest),
        at_turn=turn,
        from_branch=row.id,
    )


def _states(facts: FactReader, row: SessionRow, branches: list[Branch]) -> set[type]:
    """Which of label and status were changed on some branch and not before all of them parted."""
    ends = [bytes(row.last_event).hex(), *(branch.tip for branch in branches)]
    chains = [dict(events_back_from(facts, end)) for end in ends]
    shared = set(chains[0]).intersection(*chains[1:])
    return {
        type(event) for chain in chains for id, event in chain.items() if id not in shared and type(event) in STATES
    }


def events_back_from(facts: FactReader, event_id: str | None) -> Iterator[tuple[str, Event | UnknownEvent]]:
    """An event of a stream and those before it."""
    while event_id is not None:
        n = facts.find_event(bytes.fromhex(event_id))
        line = None if n is None else facts.line(n)
        if n is None or line is None:
            return
        event = decoded(n, line)
        yield event_id, event
        event_id = event.prev
