"""A turn as its recorded events tell it: what was asked, what was answered, what is still open.

Nothing here reads or writes. The same events in the same order give the same run, whether they were just recorded or
are read back after a crash.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

from msgspec import UNSET, Struct

from weft.kernel.clock import ms_from_iso
from weft.kernel.dag_events import (
    HistoryAppend,
    Interruption,
    ModelRequest,
    ModelResponse,
    RunFinished,
    ToolCallRequested,
    ToolResult,
)
from weft.kernel.enums import InterruptionReason, ToolCallStatus
from weft.kernel.events import Event
from weft.kernel.fields import EventRef, ToolUseFact, Words
from weft.kernel.ledger_events import RunParked
from weft.ledger.api import RecordedEvent

LOSSES = (InterruptionReason.CRASH, InterruptionReason.SYSTEM_RESTART)
"""Why a request is asked again that may itself be what ended its asker."""


class RunRequest(Struct):
    """A request to a model, and what became of it."""

    event: str
    correlation: str
    attempt: int
    is_answered: bool = False
    interrupted: InterruptionReason | None = None
    """Why nobody will answer it, where that was recorded."""
    is_lost: bool = False
    """Whether whoever asked is gone: nobody will hear an answer."""

    @property
    def is_open(self) -> bool:
        return not self.is_answered and self.interrupted is None


class RunCall(Struct):
    """A tool call, and how it ended."""

    event: str
    tool: str
    call_id: str
    arguments: str
    """References of contents, as the event has them."""
    correlation: str
    outcome: ToolCallStatus | None = None
    result: str | None = None
    """The event that tells its outcome."""
    is_lost: bool = False
    is_parked: bool = False
    parked_until: int | None = None
    """When a parked call is given up, in Unix milliseconds; None: never."""


class Run:
    """One turn in the making."""

    def __init__(self, turn: str) -> None:
        self.turn = turn
        self.taken: list[str] = []
        self.requests: list[RunRequest] = []
        self.calls: dict[str, RunCall] = {}
        self.uses: list[ToolUseFact] = []
        """Calls that the last answer asks for and that were not recorded yet."""
        self.answer: tuple[str, str | None] | None = None
        """The event of the last answer and the id of its message."""
        self.answer_calls: list[str] = []
        """The calls that the last answer asked for, in its order."""
        self._since: list[str | None] = []
        """Messages since the last request, by their ids; None stands for the outcomes of the calls."""
        self.has_results = False
        """Whether the last answer asked for tools, all of whose outcomes the model has still to be told."""
        self.is_parked = False
        self.is_finished = False
        self.idempotent: frozenset[str] = frozenset()
        """The tools that may be run again where nobody knows whether they ran."""
        self.offers_tools = True
        """Whether the model was offered tools; calls of one that was not are kept as words, and run by nobody."""
        self.steers: tuple[str, ...] = ()
        """Messages that want to enter with the next request."""
        self.stop: InterruptionReason | None = None
        """Why the turn is to be cut short, where somebody asked for that."""
        self.works_since_ms: int | None = None
        """When the turn began, or came back after it was parked; None while it is parked."""
        self.deadline_seconds: float | None = None
        """So long the turn may work, counted from `works_since_ms`, whoever works on it."""
        self.max_requests: int = 100
        self.lost_because = InterruptionReason.CRASH

    @property
    def deadline_ms(self) -> int | None:
        if self.deadline_seconds is None or self.works_since_ms is None:
            return None
        return self.works_since_ms + round(self.deadline_seconds * 1000)

    @property
    def losses(self) -> int:
        """How often in a row whoever asked the model was lost, with the request that is lost now."""
        count = 0
        for request in reversed(self.requests):
            if request.is_answered:
                break
            count += request.is_lost or request.interrupted in LOSSES
        return count

    def copy(self) -> Run:
        return copy.deepcopy(self)

    @property
    def last_request(self) -> RunRequest | None:
        return self.requests[-1] if self.requests else None

    @property
    def open_calls(self) -> list[RunCall]:
        return [call for call in self.calls.values() if call.outcome is None]

    @property
    def parked_until(self) -> int | None:
        """The earliest time limit of the calls that wait."""
        limits = [call.parked_until for call in self.open_calls if call.is_parked]
        return min((limit for limit in limits if limit is not None), default=None)

    def refs_since_request(self) -> list[str | EventRef]:
        """What the next request is sent beside what the last one was: outcomes in the order of the calls."""
        results = [self.calls[call].result for call in self.answer_calls]
        refs: list[str | EventRef] = []
        for message in self._since:
            if message is not None:
                refs.append(message)
            else:
                refs += (EventRef(result) for result in results if result is not None)
        return refs

    def apply(self, events: Iterable[RecordedEvent]) -> Run:
        for recorded in events:
            self._note_time(recorded.event)
            self._apply(recorded.id, recorded.event)
        return self

    def _note_time(self, event: Event) -> None:
        if isinstance(event, RunParked):
            self.works_since_ms = None
        elif self.works_since_ms is None and isinstance(event.ts, str):
            self.works_since_ms = ms_from_iso(event.ts)

    def lose(self, because: InterruptionReason = InterruptionReason.CRASH) -> Run:
        """Whoever performed what is open now is gone."""
        self.lost_because = because
        if self.last_request is not None:
            self.last_request.is_lost = self.last_request.is_open
        for call in self.open_calls:
            call.is_lost = not call.is_parked
        return self

    def _apply(self, id: str, event: Event) -> None:
        match event:
            case HistoryAppend():
                self._since.append(event.message.id)
                if event.admitted is not UNSET:
                    self.taken.append(event.admitted)
            case ModelRequest():
                attempt = 1 if event.attempt is UNSET else event.attempt
                self.requests.append(RunRequest(id, event.correlation_id, attempt))
                self.has_results = False
                self._since = []
            case ModelResponse():
                self._answer(id, event)
            case ToolCallRequested():
                self._call(id, event)
            case ToolResult():
                self._result(id, event)
            case Interruption():
                self._interrupt(event)
            case RunParked():
                self.is_parked = True
                until = None if event.until is UNSET else ms_from_iso(event.until)
                for call in event.calls:
                    self.calls[call.event_id].is_parked = True
                    self.calls[call.event_id].parked_until = until
            case RunFinished():
                self.is_finished = True
            case _:
                pass

    def _answer(self, id: str, event: ModelResponse) -> None:
        for request in self.requests:
            request.is_answered = request.is_answered or request.correlation == event.correlation_id
        output = event.output
        self.answer = (id, None if output is UNSET else output.id)
        parts = () if output is UNSET else output.parts
        self.uses = [part for part in parts if isinstance(part, ToolUseFact)]
        self.answer_calls = []
        if output is not UNSET:
            self._since.append(output.id)

    def _call(self, id: str, event: ToolCallRequested) -> None:
        tool = "" if isinstance(event.tool, Words) else event.tool
        self.calls[id] = RunCall(id, tool, event.call_id, event.args, event.correlation_id)
        self.uses = self.uses[1:]
        if not self.answer_calls:
            self._since.append(None)
        self.answer_calls.append(id)
        self.has_results = True

    def _result(self, id: str, event: ToolResult) -> None:
        call = self.calls.get(event.call.event_id)
        if call is not None and call.outcome is None:
            call.outcome, call.result = event.status, id
        self.is_parked = False

    def _interrupt(self, event: Interruption) -> None:
        named = {ref.event_id for ref in event.affects}
        if not named:
            self.stop = self.stop or event.reason
        for request in self.requests:
            if request.event in named:
                request.interrupted = request.interrupted or event.reason
        for call in self.open_calls:
            if call.event in named:
                call.outcome = ToolCallStatus.INTERRUPTED
