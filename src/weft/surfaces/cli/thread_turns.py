"""The turns of a thread in full, and the form in which they are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.kernel.enums import TurnType
from weft.ledger.api import FullTurn
from weft.ledger.model import Message, ToolCall
from weft.surfaces.cli.rendering.transcript import in_order
from weft.surfaces.wire.sessions import ReadTurn

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.ledger.model import Turn


def thread_turns(ledger: Ledger, name: str) -> tuple[str, Iterator[FullTurn]]:
    """The id of a thread's first turn, and all its turns in full; those who may not read everything get them one by
    one."""
    if ledger.authority.is_unlimited:
        threads = ledger.full_threads(name)
        return threads.strands[0].first, threads.turns
    thread, point = ledger.thread(name), ledger.point(name)
    labels = {session.id: session.label for session in ledger.sessions(every=True)}

    def full_turn(turn: Turn) -> FullTurn:
        place = point.event_id or turn.id if turn.id == point.turn_id else turn.id
        summary = ledger.compactions.get(turn.id) if turn.turn_type == TurnType.COMPACTION else None
        items = tuple(in_order(ledger, place))
        return FullTurn(turn=turn, items=items, session=labels.get(turn.session_id or ""), summary=summary)

    return next(thread.ancestry), map(full_turn, thread.turns)


def read_turn(full_turn: FullTurn) -> ReadTurn:
    return ReadTurn(
        turn=full_turn.turn,
        session=full_turn.session,
        messages=[item for item in full_turn.items if isinstance(item, Message)],
        tool_calls=[item for item in full_turn.items if isinstance(item, ToolCall)],
        compaction=full_turn.summary,
    )
