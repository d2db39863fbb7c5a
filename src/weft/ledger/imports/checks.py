"""What a stranger's run must keep to, beyond the form of each event: the rules that recording here keeps by itself."""

from __future__ import annotations

from msgspec import UNSET

from weft.kernel.approval_events import ApprovalDenied, ApprovalGranted, ApprovalRequested
from weft.kernel.clock import offset
from weft.kernel.dag_events import HistoryAppend, ModelResponse, RunFinished
from weft.kernel.enums import RunExit, TurnType
from weft.kernel.errors import InvalidFact
from weft.kernel.events import Event, UnknownEvent
from weft.kernel.fields import MessageFact
from weft.kernel.ledger_events import CompactionRecorded
from weft.ledger.views import Projector
from weft.ledger.views.rows import TurnRow
from weft.ledger.write.append import MESSAGE_ROOM
from weft.store.replica_names import last_copied_event, own_names
from weft.store.sql import Sql

ANSWERS = (ApprovalRequested, ApprovalGranted, ApprovalDenied)


def check_run_event(view: Projector, turn: TurnRow, event: Event | UnknownEvent) -> None:
    """May this event follow in its run, as the run stands now?"""
    if goes_on_here(view.sql, turn, event):
        raise InvalidFact(f"run:{turn.id}", "is being answered here")
    if isinstance(event, HistoryAppend):
        _check_message(turn, event.message)
    elif isinstance(event, ModelResponse) and event.output is not UNSET:
        _check_message(turn, event.output)
    elif isinstance(event, CompactionRecorded):
        _check_compaction(view, turn)
    elif isinstance(event, RunFinished):
        _check_end(view, turn, event)


def goes_on_here(sql: Sql, turn: TurnRow, event: Event | UnknownEvent) -> bool:
    """Whether an event of another ledger goes on with a turn that a broker of this one has open. What a copy took along
    open is its origin's. Answers to questions are taken: they count where they were asked alone."""
    if turn.inbox is None or turn.n <= last_copied_event(sql) or isinstance(event, ANSWERS):
        return False
    row = sql.one("SELECT replica FROM open_run WHERE turn = ?", (turn.id,))
    return row is not None and row[0] in own_names(sql)


def _check_message(turn: TurnRow, message: MessageFact) -> None:
    """The k-th message of a turn has the id `turn + k`; so a message's turn is found without an index."""
    k = turn.messages + 1
    if k >= MESSAGE_ROOM:
        raise InvalidFact(f"run:{turn.id}", f"holds more than {MESSAGE_ROOM - 1} messages")
    if message.id != offset(turn.id, k):
        raise InvalidFact(f"run:{turn.id}", f"its message {k} is {message.id}, not {offset(turn.id, k)}")
    notes = [noted for noted in (message.files, message.lints, message.codeblocks) if noted is not UNSET]
    if any(len(noted) >= MESSAGE_ROOM for noted in notes):
        raise InvalidFact(f"run:{turn.id}", f"its message {k} carries more than {MESSAGE_ROOM - 1} notes of a kind")


def _check_compaction(view: Projector, turn: TurnRow) -> None:
    if turn.type != TurnType.COMPACTION:
        raise InvalidFact(f"run:{turn.id}", f"is a {turn.type} turn and takes no compaction")
    if _has_compaction(view, turn):
        raise InvalidFact(f"run:{turn.id}", "has its compaction already")


def _check_end(view: Projector, turn: TurnRow, event: RunFinished) -> None:
    if turn.type == TurnType.COMPACTION and not _has_compaction(view, turn):
        raise InvalidFact(f"run:{turn.id}", "is a compaction turn and ends without its compaction")
    if event.exit == RunExit.SUCCESS and turn.calls and turn.source is None and _has_open_calls(view, turn):
        raise InvalidFact(f"run:{turn.id}", "ends well with a tool call that has no outcome")


def _has_compaction(view: Projector, turn: TurnRow) -> bool:
    return view.sql.one("SELECT 1 FROM compaction WHERE turn = ?", (turn.id,)) is not None


def _has_open_calls(view: Projector, turn: TurnRow) -> bool:
    """As the rows of this turn are, or will be once they are written."""
    stored = view.sql.all("SELECT event, outcome FROM tool_call WHERE turn = ?", (turn.n,))
    outcomes = {bytes(event): outcome for event, outcome in stored}
    for row in view.calls.values():
        if row.turn == turn.n:
            outcomes[row.event] = row.outcome
    return None in outcomes.values()
