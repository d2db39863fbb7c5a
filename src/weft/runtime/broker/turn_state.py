"""A turn as its recorded events tell it, what comes next in it, and what is then recorded.

All of it is pure: what was asked, what was answered, what is still open, how long it was worked on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct

from weft.kernel.clock import ms_from_iso
from weft.kernel.enums import Decision, DecisionSource, InterruptionReason, MessageRole, ToolCallStatus
from weft.kernel.events import (
    ApprovalDenied,
    ApprovalGranted,
    ApprovalRequested,
    Event,
    EventRef,
    HistoryAppend,
    Interruption,
    ModelRequest,
    ModelResponse,
    RunFinished,
    ToolCallRequested,
    ToolDecided,
    ToolResult,
    ToolUseFact,
    Words,
)
from weft.kernel.ledger_events import RunParked, WorkersAnswered
from weft.ledger.api import (
    ApprovalAsked,
    Entry,
    FinishedRun,
    KeptState,
    ModelAnswered,
    ParkedRun,
    RecordedEvent,
    RunInterruption,
    ToolDecision,
    ToolEnded,
)
from weft.ledger.model import NewError, NewMessage, RecordedTurn, SentResult
from weft.runtime.inference.model_requests import ToolSpec
from weft.runtime.replies import FinishReason, Reply
from weft.runtime.tool.tool_contract import CallAnswer, LaterResult, ToolOutput, Verdict

# --- How long a turn has been worked on, by its recorded events: from each event on that lets it begin or go on, until
# it is parked or ends.


class WorkedTime(Struct, frozen=True):
    """Milliseconds. Time after a crash counts until somebody goes on: only a parked turn needs nobody."""

    before_ms: int = 0
    """How long it was worked on until it was parked last."""
    since_ms: int | None = None
    """When it began, or came back after it was parked; None while it is parked."""

    def after(self, event: Event) -> WorkedTime:
        """The same with one more event."""
        if not isinstance(event.ts, str):
            return self
        at_ms = ms_from_iso(event.ts)
        if isinstance(event, RunParked):
            return WorkedTime(self.until(at_ms))
        return WorkedTime(self.before_ms, at_ms) if self.since_ms is None else self

    def until(self, at_ms: int) -> int:
        """How long it was worked on until that time."""
        return self.before_ms + (0 if self.since_ms is None else max(0, at_ms - self.since_ms))


def worked_ms(events: Iterable[Event]) -> int:
    """How long a turn was worked on until the last of its events."""
    worked, last_ms = WorkedTime(), 0
    for event in events:
        worked = worked.after(event)
        last_ms = ms_from_iso(event.ts) if isinstance(event.ts, str) else last_ms
    return worked.until(last_ms)


# --- A turn as its recorded events tell it: what was asked, what was answered, what is still open.

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
    needs_repeat: bool = False
    """Whether it is to be performed once more, where its tool allows that: whoever performed it is gone, or the workers
    have answered that it waited for."""
    is_parked: bool = False
    parked_until: int | None = None
    """When a parked call is given up, in Unix milliseconds; None: never."""
    decision: Decision | None = None
    plan_digest: str | None = None
    """The hash of what was decided on: what runs must have the same."""
    plan: str | None = None
    rationale: str | None = None
    """References of contents."""
    request: str | None = None
    """The event that asks a person."""
    is_approved: bool = False
    """Whether the answer of a person is what lets it run."""
    exclusive_key: str | None = None
    """What it shares with the calls that it waits for, as far as whoever works on the turn knows; not recorded."""
    answer: CallAnswer | None = None
    """What a person answered, until what follows from it is recorded; its reason is the reference of a content."""

    is_cut: bool = False
    """Whether its answer broke off with it: nobody knows whether its arguments are whole, and it is not run."""

    @property
    def needs_decision(self) -> bool:
        """Whether it is undecided what may be done with it now: nothing was decided yet, or a person has answered."""
        return self.outcome is None and (self.decision is None or self.answer is not None)


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
        self.is_answer_cut = False
        """Whether the last answer broke off before the model was done: the arguments of its last call may, too."""
        self.pauses = 0
        """How many of the last answers in a row were paused by their provider, which goes on once it is asked again."""
        self._since: list[str | None] = []
        """Messages since the last request, by their ids; None stands for the outcomes of the calls."""
        self.has_results = False
        """Whether the last answer asked for tools, all of whose outcomes the model has still to be told."""
        self.is_parked = False
        self.is_finished = False
        self.idempotent: frozenset[str] = frozenset()
        """The tools that may be run again where nobody knows whether they ran."""
        self.read_only: frozenset[str] = frozenset()
        self.is_gated = False
        """Whether a call runs only after a decision that allows it."""
        self.steers: tuple[str, ...] = ()
        """Messages that want to enter with the next request."""
        self.stop: InterruptionReason | None = None
        """Why the turn is to be cut short, where somebody asked for that."""
        self.worked = WorkedTime()
        self.deadline_seconds: float | None = None
        """So long the turn may be worked on, whoever works on it; time in which it is parked does not count."""
        self.max_requests: int = 100
        self.lost_because = InterruptionReason.CRASH
        self._asked_by: Any = UNSET
        """The replica that asked people; answers of others do not count."""

    @property
    def deadline_ms(self) -> int | None:
        if self.deadline_seconds is None or self.worked.since_ms is None:
            return None
        return self.worked.since_ms + round(self.deadline_seconds * 1000) - self.worked.before_ms

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
        """Another run that can be applied events to; what is never changed in place is shared."""
        other = Run(self.turn)
        vars(other).update(vars(self))
        other.taken, other.uses, other.answer_calls = [*self.taken], [*self.uses], [*self.answer_calls]
        other._since = [*self._since]
        other.requests = [copy.copy(request) for request in self.requests]
        other.calls = {event: copy.copy(call) for event, call in self.calls.items()}
        return other

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

    def is_held(self, call: RunCall) -> bool:
        """Whether an earlier call of the same answer that has the same key, such as the file that both change, is still
        open. What such a call would do is known only after that one."""
        if call.exclusive_key is None or call.event not in self.answer_calls:
            return False
        earlier = self.answer_calls[: self.answer_calls.index(call.event)]
        others = (self.calls[event] for event in earlier)
        return any(other.outcome is None and other.exclusive_key == call.exclusive_key for other in others)

    def may_run(self, call: RunCall) -> bool:
        """Whether an open call is to be run now, for the first time or again."""
        if call.is_parked or (self.is_gated and call.decision is not Decision.ALLOW):
            return False
        return not call.needs_repeat or self.may_repeat(call)

    def may_repeat(self, call: RunCall) -> bool:
        """Whether a call may be run again of which nobody knows whether it ran."""
        is_known = not self.is_gated or call.tool in self.read_only or call.plan is not None
        return call.tool in self.idempotent and is_known

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
            self.worked = self.worked.after(recorded.event)
            self._apply(recorded.id, recorded.event)
        return self

    def mark_lost(self, because: InterruptionReason = InterruptionReason.CRASH) -> Run:
        """Whoever performed what is open now is gone."""
        self.lost_because = because
        if self.last_request is not None:
            self.last_request.is_lost = self.last_request.is_open
        for call in self.open_calls:
            call.needs_repeat = not call.is_parked
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
            case ModelResponse() if not event.is_broken_off:
                self._answer(id, event)
            case ToolCallRequested():
                self._call(id, event)
            case ToolResult():
                self._apply_result(id, event)
            case Interruption():
                self._interrupt(event)
            case RunParked():
                self._park(event)
            case RunFinished():
                self.is_finished = True
            case _:
                self._apply_decision(id, event)

    def _apply_decision(self, id: str, event: Event) -> None:
        match event:
            case WorkersAnswered():
                self._apply_worker_answers(event)
            case ToolDecided():
                self._decide(event)
            case ApprovalRequested():
                self._ask_person(id, event)
            case ApprovalGranted() | ApprovalDenied():
                self._apply_answer(id, event)
            case _:
                pass

    def _answer(self, id: str, event: ModelResponse) -> None:
        for request in self.requests:
            request.is_answered = request.is_answered or request.correlation == event.correlation_id
        output = event.output
        self.answer = (id, None if output is UNSET else output.id)
        self.is_answer_cut = event.finish_reason in CUT_FINISHES
        self.pauses = self.pauses + 1 if event.finish_reason == FinishReason.PAUSE else 0
        parts = () if output is UNSET else output.parts
        self.uses = [part for part in parts if isinstance(part, ToolUseFact)]
        self.answer_calls = []
        if output is not UNSET:
            self._since.append(output.id)

    def _call(self, id: str, event: ToolCallRequested) -> None:
        tool = "" if isinstance(event.tool, Words) else event.tool
        self.calls[id] = RunCall(id, tool, event.call_id, event.args, event.correlation_id)
        self.uses = self.uses[1:]
        self.calls[id].is_cut = self.is_answer_cut and not self.uses
        if not self.answer_calls:
            self._since.append(None)
        self.answer_calls.append(id)
        self.has_results = True

    def _apply_result(self, id: str, event: ToolResult) -> None:
        call = self.calls.get(event.call.event_id)
        if call is not None and call.outcome is None:
            call.outcome, call.result = event.status, id
        self.is_parked = False

    def _park(self, event: RunParked) -> None:
        """A person may have answered before the turn was parked: such a call waits for nobody. Where none is named the
        turn waits for a process, and whoever goes on with it is one."""
        if not event.calls:
            return
        until = None if event.until is UNSET else ms_from_iso(event.until)
        calls = [self.calls[call.event_id] for call in event.calls]
        for call in calls:
            call.is_parked, call.parked_until = call.answer is None, until
        self.is_parked = all(call.is_parked for call in calls)

    def _decide(self, event: ToolDecided) -> None:
        call = self.calls.get(event.call.event_id)
        if call is None:
            return
        call.decision, call.answer, call.needs_repeat = event.decision, None, False
        call.is_approved = event.decision is Decision.ALLOW and event.by is DecisionSource.GRANT
        call.plan_digest = None if event.bound is UNSET else event.bound
        call.plan = None if event.plan is UNSET else event.plan
        call.rationale = None if event.rationale is UNSET else event.rationale

    def _ask_person(self, id: str, event: ApprovalRequested) -> None:
        call = self.calls.get(event.call.event_id)
        if call is not None:
            call.request, call.plan_digest, call.is_parked = id, event.bound, True
            call.parked_until = None if event.expires is UNSET else ms_from_iso(event.expires)
            self._asked_by = event.replica

    def _apply_answer(self, id: str, event: ApprovalGranted | ApprovalDenied) -> None:
        """The first answer counts, if the ledger that asked wrote it, for exactly what was shown."""
        call = next((open_call for open_call in self.open_calls if open_call.request == event.request.event_id), None)
        if call is None or call.answer is not None or not call.is_parked or event.replica != self._asked_by:
            return
        reason = None if event.reason is UNSET else event.reason
        if isinstance(event, ApprovalDenied):
            call.answer = CallAnswer(
                event=id, is_granted=False, plan_digest=call.plan_digest or "", abort=event.abort, reason=reason
            )
        elif event.bound == call.plan_digest:
            call.answer = CallAnswer(event=id, is_granted=True, plan_digest=event.bound, reason=reason)
        else:
            return
        call.is_parked = self.is_parked = False

    def _apply_worker_answers(self, event: WorkersAnswered) -> None:
        """A call that waited for workers is performed once more: it brings their answers."""
        call = self.calls.get(event.call.event_id)
        if call is not None and call.outcome is None and call.is_parked:
            call.is_parked = self.is_parked = False
            call.needs_repeat = True

    def apply_answers(self, events: Iterable[RecordedEvent]) -> bool:
        """Take answers up that people or workers gave while the turn was worked on; whether there was one."""
        before = [call.event for call in self.open_calls if call.is_parked]
        for recorded in events:
            if isinstance(recorded.event, ApprovalGranted | ApprovalDenied):
                self._apply_answer(recorded.id, recorded.event)
            elif isinstance(recorded.event, WorkersAnswered):
                self._apply_worker_answers(recorded.event)
        return before != [call.event for call in self.open_calls if call.is_parked]

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


# --- What comes next in a turn: a pure function of its recorded events and the time.

CUT_FINISHES = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
"""How answers end that break off before the model is done."""
CUT = "cut"
"""The code of a call with which an answer broke off."""
DENIED = "denied"
"""The code of a call that was refused; why, its decision says."""
MAX_CALLS = 128
"""So many tools may one answer ask for."""
MAX_PAUSES = 10
"""So often in a row a provider may pause, before the turn fails."""
MAX_LOSSES = 4
"""So often in a row whoever asks the model may be lost, before the turn fails."""


class AskModel(Struct, frozen=True):
    """Ask the model; `discard` is a request that nobody will hear an answer to, and is marked as interrupted."""

    attempt: int = 1
    discard: str | None = None
    reason: InterruptionReason = InterruptionReason.CRASH
    steers: tuple[str, ...] = ()


class StartTools(Struct, frozen=True):
    """Run the tools that the last answer asks for, side by side."""

    uses: tuple[ToolUseFact, ...]


class DecideCalls(Struct, frozen=True):
    """Decide what may be done with calls: they are new, or a person has answered."""

    calls: tuple[str, ...]


class RunAgain(Struct, frozen=True):
    """Run an idempotent tool again, of which nobody knows whether it ran."""

    call: str


class CloseCall(Struct, frozen=True):
    """Record how a call ended that nobody performs any more."""

    call: str
    status: ToolCallStatus
    code: str
    why: str


class ParkRun(Struct, frozen=True):
    """Let go of the session until the outcome of a call comes from outside, or the time limit of one."""

    calls: tuple[str, ...]


class CutRun(Struct, frozen=True):
    """End the turn with what it has; open calls are interrupted."""

    reason: InterruptionReason
    calls: tuple[str, ...]


class FinishTurn(Struct, frozen=True):
    """The turn is complete."""


class FailTurn(Struct, frozen=True):
    """The turn cannot be completed; `discard` is a request that nobody will hear an answer to."""

    code: str
    message: str
    discard: str | None = None
    reason: InterruptionReason = InterruptionReason.CRASH


Step = AskModel | StartTools | DecideCalls | RunAgain | CloseCall | ParkRun | CutRun | FinishTurn | FailTurn


def next_steps(run: Run, now_ms: int) -> tuple[Step, ...]:
    """What is to be done now. Empty: nothing but waiting for what is under way, or the turn is over."""
    if run.is_finished:
        return ()
    if (stop := _stop(run, now_ms)) is not None and not _is_answered(run):
        return (CutRun(stop, tuple(call.event for call in run.open_calls)),)
    request = run.last_request
    if request is not None and request.is_open:
        return _after_loss(run) if request.is_lost else ()
    if run.uses:
        return (_start_tools(run),)
    return _for_calls(run, now_ms) if run.open_calls else _steps_of_closed_run(run)


def _start_tools(run: Run) -> Step:
    count = len(run.uses)
    if count > MAX_CALLS:
        return FailTurn("too_many_calls", f"one answer asks for {count} tool calls, more than {MAX_CALLS}")
    return StartTools(tuple(run.uses))


def _stop(run: Run, now_ms: int) -> InterruptionReason | None:
    if any(call.decision is Decision.DENY_ABORT for call in run.open_calls):
        return InterruptionReason.APPROVAL_DENIED
    if run.stop is None and run.deadline_ms is not None and now_ms >= run.deadline_ms:
        return InterruptionReason.TIMEOUT
    return run.stop


def _is_answered(run: Run) -> bool:
    """Whether the last answer asks for nothing more: it is complete, whoever wants to cut the turn short now."""
    request = run.last_request
    return request is not None and request.is_answered and not (run.has_results or run.uses or run.pauses)


def _steps_of_closed_run(run: Run) -> tuple[Step, ...]:
    """Nothing is open: ask for the first time, again, with what the tools gave, or for the rest of an answer; else the
    turn is complete."""
    request = run.last_request
    if request is not None and request.interrupted is not None:
        return _ask_model(run, request.attempt + 1)
    if run.pauses > MAX_PAUSES:
        return (FailTurn("paused_too_often", f"the provider paused its answer {run.pauses} times in a row"),)
    return _ask_model(run) if request is None or run.has_results or run.pauses else (FinishTurn(),)


def _ask_model(run: Run, attempt: int = 1) -> tuple[Step, ...]:
    if len(run.requests) >= run.max_requests:
        return (FailTurn("too_many_requests", f"the model was asked {len(run.requests)} times in one turn"),)
    return (AskModel(attempt, steers=_steers(run)),)


def _steers(run: Run) -> tuple[str, ...]:
    """What enters with the next request: nothing between a paused answer and the rest of it."""
    return () if run.pauses and not run.has_results else run.steers


def _after_loss(run: Run) -> tuple[Step, ...]:
    request = run.last_request
    assert request is not None
    because = run.lost_because
    if because in LOSSES and run.losses >= MAX_LOSSES:
        words = f"whoever asked the model was lost {run.losses} times in a row"
        return (FailTurn("lost_too_often", words, request.event, because),)
    return (AskModel(request.attempt + 1, request.event, because, _steers(run)),)


def _for_calls(run: Run, now_ms: int) -> tuple[Step, ...]:
    if cut := [call for call in run.open_calls if call.is_cut]:
        why = "the answer broke off with this call, so its arguments may not be whole: call again, with less at once"
        return tuple(CloseCall(call.event, ToolCallStatus.ERROR, CUT, why) for call in cut)
    if run.is_gated and (steps := _for_decisions(run)):
        return steps
    held = [call for call in run.open_calls if run.is_gated and call.needs_decision]
    lost = [call for call in run.open_calls if call.needs_repeat and call not in held]
    if lost:
        return tuple(_after_lost_call(run, call) for call in lost)
    late = [call for call in run.open_calls if call.is_parked and _is_late(call, now_ms)]
    if late:
        why = "nothing came until the time that was set"
        return tuple(CloseCall(call.event, ToolCallStatus.TIMEOUT, "timeout", why) for call in late)
    waiting = [call for call in run.open_calls if call not in held]
    if not run.is_parked and waiting and all(call.is_parked for call in waiting):
        return (ParkRun(tuple(call.event for call in waiting)),)
    return ()


def _for_decisions(run: Run) -> tuple[Step, ...]:
    """Calls that were refused are over; those that nothing was decided about, or about which a person has answered, are
    decided on, each after earlier changes of the same file. Whoever was lost before a decision was recorded ran
    nothing."""
    refused = [call for call in run.open_calls if call.decision is Decision.DENY_CONTINUE]
    if refused:
        return tuple(CloseCall(call.event, ToolCallStatus.ERROR, DENIED, "") for call in refused)
    undecided = tuple(call.event for call in run.open_calls if call.needs_decision and not run.is_held(call))
    return (DecideCalls(undecided),) if undecided else ()


def _is_late(call: RunCall, now_ms: int) -> bool:
    return call.parked_until is not None and now_ms >= call.parked_until


def _after_lost_call(run: Run, call: RunCall) -> Step:
    if run.may_repeat(call):
        return RunAgain(call.event)
    why = "whoever ran it is gone, and nobody knows whether it ran"
    return CloseCall(call.event, ToolCallStatus.INTERRUPTED, run.lost_because.value, why)


# --- What is recorded of answers, tools and the end of a turn.


class TurnEnd(Struct, frozen=True, kw_only=True):
    """How a turn left the broker: over, with its last reply or its error, or parked."""

    turn: str
    recorded: RecordedTurn | None = None
    reply: Reply | None = None
    error: BaseException | None = None
    cut: InterruptionReason | None = None


def answer_entry(reply: Reply, request: str, correlation: str) -> ModelAnswered:
    facts = {"request_id": reply.request_id, "latency_ms": reply.latency_ms, "situation": reply.situation}
    facts |= {"model_id": reply.model_id, "provider": reply.provider, "usage_fault": reply.usage_fault or None}
    message = NewMessage(
        role=MessageRole.ASSISTANT,
        content=reply.parts,
        model=reply.model,
        metadata={name: value for name, value in facts.items() if value is not None} | reply.metadata,
    )
    return ModelAnswered(
        request=request,
        correlation=correlation,
        message=message,
        usage=UNSET if reply.usage is None else reply.usage,
        finish_reason=str(reply.finish),
        model=reply.model,
        latency_ms=reply.latency_ms,
    )


def call_end_entry(
    call: RunCall,
    status: ToolCallStatus,
    *,
    output: ToolOutput | None = None,
    error: NewError | None = None,
    is_untrusted: bool = False,
    kept: tuple[KeptState, ...] = (),
    sent: SentResult | None = None,
) -> ToolEnded:
    """The entry that tells how a call ended. `is_untrusted`: a stranger may have written the error."""
    return ToolEnded(
        call=call.event,
        call_id=call.call_id,
        correlation=call.correlation,
        status=status,
        result=UNSET if output is None else output.result,
        error=error,
        duration_ms=None if output is None else output.duration_ms,
        files=() if output is None else output.files,
        lints=() if output is None else output.lints,
        is_untrusted=is_untrusted or (output is not None and output.is_untrusted),
        spawned=None if output is None else output.spawned,
        awaited=() if output is None else output.awaited,
        kept=kept if output is None else output.kept,
        sent=sent,
    )


_STATUS_OF_CUT = {
    InterruptionReason.CANCELED: ToolCallStatus.CANCELED,
    InterruptionReason.APPROVAL_DENIED: ToolCallStatus.CANCELED,
    InterruptionReason.TIMEOUT: ToolCallStatus.TIMEOUT,
}


def status_of_cut(reason: InterruptionReason) -> ToolCallStatus:
    """How the open calls of a turn end that is cut short for this reason."""
    return _STATUS_OF_CUT.get(reason, ToolCallStatus.INTERRUPTED)


def decision_entries(call: RunCall, verdict: Verdict) -> list[Entry]:
    """What is recorded of a decision; where a person is to be asked, the request with it."""
    decision = ToolDecision(
        call=call.event,
        decision=verdict.decision,
        by=verdict.by,
        plan_digest=verdict.plan_digest,
        policy=verdict.policy,
        grant=verdict.grant,
        rationale=verdict.rationale,
        plan=verdict.plan,
        kept=verdict.kept,
    )
    if verdict.decision is not Decision.ASK:
        return [decision]
    assert verdict.plan_digest is not None, "a person is asked about exactly what would run"
    request = ApprovalAsked(
        call=call.event,
        plan_digest=verdict.plan_digest,
        shown=verdict.shown,
        subjects=verdict.subjects,
        rationale=verdict.rationale,
        expires=verdict.expires_ms,
    )
    return [decision, request]


def parking_entries(run: Run, step: ParkRun, later: Mapping[str, LaterResult]) -> list[ParkedRun]:
    """Calls with the same time limit are parked together; each that waits for workers by itself."""
    by_limit: dict[int | None, list[str]] = {}
    entries: list[ParkedRun] = []
    for call in step.calls:
        until, awaits = run.calls[call].parked_until, later.get(call)
        if awaits is not None and awaits.workers:
            entries.append(
                ParkedRun(calls=(call,), until=until, why=awaits.why, awaits=awaits.workers, is_any=awaits.is_any)
            )
        else:
            by_limit.setdefault(until, []).append(call)
    entries += [
        ParkedRun(calls=tuple(calls), until=until, why=_reasons_to_wait(calls, later))
        for until, calls in by_limit.items()
    ]
    return entries


def awaits_process(events: Iterable[RecordedEvent]) -> bool:
    """Whether a turn that is parked waits for a process that can go on with it, and for no outcome."""
    parks = [recorded.event for recorded in events if isinstance(recorded.event, RunParked)]
    return bool(parks) and not parks[-1].calls


def cut_entries(run: Run, reason: InterruptionReason) -> list[Entry]:
    """The end of a turn that is cut short where nobody works on it."""
    request = run.last_request
    error = NewError(code=reason.value, message="the turn was cut short")
    calls = run.open_calls
    entries: list[Entry] = [call_end_entry(call, status_of_cut(reason), error=error) for call in calls]
    if request is not None and request.is_open:
        entries.append(RunInterruption(reason, (request.event,)))
    return [*entries, RunInterruption(reason, tuple(call.event for call in calls)), FinishedRun()]


def _reasons_to_wait(calls: Sequence[str], later: Mapping[str, LaterResult]) -> str | None:
    reasons = [later[call].why for call in calls if call in later]
    return "; ".join(filter(None, reasons)) or None


def spec_fields(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description, "schema": spec.schema}
