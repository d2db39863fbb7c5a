"""What comes next in a turn: a pure function of its recorded events and the time.

Running, replaying, simulating and recovering a turn all call `next_steps`. A step is an intent: the shell records it
before it performs it, and records the outcome afterwards.
"""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.enums import Decision, InterruptionReason, ToolCallStatus
from weft.kernel.events import ToolUseFact
from weft.runtime.broker.run import LOSSES, Run, RunCall

DENIED = "denied"
"""The code of a call that was refused; why, its decision says."""
MAX_CALLS = 128
"""So many tools may one answer ask for."""
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


class Decide(Struct, frozen=True):
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


class Park(Struct, frozen=True):
    """Let go of the session until the outcome of a call comes from outside, or the time limit of one."""

    calls: tuple[str, ...]


class Cut(Struct, frozen=True):
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


Step = AskModel | StartTools | Decide | RunAgain | CloseCall | Park | Cut | FinishTurn | FailTurn


def next_steps(run: Run, now_ms: int) -> tuple[Step, ...]:
    """What is to be done now. Empty: nothing but waiting for what is under way, or the turn is over."""
    if run.is_finished:
        return ()
    if (stop := _stop(run, now_ms)) is not None and not _is_answered(run):
        return (Cut(stop, tuple(call.event for call in run.open_calls)),)
    request = run.last_request
    if request is not None and request.is_open:
        return _after_loss(run) if request.is_lost else ()
    if run.uses and run.offers_tools:
        return (_start_tools(run),)
    return _for_calls(run, now_ms) if run.open_calls else _onwards(run)


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
    return request is not None and request.is_answered and not run.has_results and not (run.uses and run.offers_tools)


def _onwards(run: Run) -> tuple[Step, ...]:
    """Nothing is open: ask for the first time, again, or with what the tools gave; else the turn is complete."""
    request = run.last_request
    if request is not None and request.interrupted is not None:
        return _ask(run, request.attempt + 1)
    return _ask(run) if request is None or run.has_results else (FinishTurn(),)


def _ask(run: Run, attempt: int = 1) -> tuple[Step, ...]:
    if len(run.requests) >= run.max_requests:
        return (FailTurn("too_many_requests", f"the model was asked {len(run.requests)} times in one turn"),)
    return (AskModel(attempt, steers=run.steers),)


def _after_loss(run: Run) -> tuple[Step, ...]:
    request = run.last_request
    assert request is not None
    because = run.lost_because
    if because in LOSSES and run.losses >= MAX_LOSSES:
        words = f"whoever asked the model was lost {run.losses} times in a row"
        return (FailTurn("lost_too_often", words, request.event, because),)
    return (AskModel(request.attempt + 1, request.event, because, run.steers),)


def _for_calls(run: Run, now_ms: int) -> tuple[Step, ...]:
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
        return (Park(tuple(call.event for call in waiting)),)
    return ()


def _for_decisions(run: Run) -> tuple[Step, ...]:
    """Calls that were refused are over; those that nothing was decided about, or about which a person has answered, are
    decided on, each after earlier changes of the same file. Whoever was lost before a decision was recorded ran
    nothing."""
    refused = [call for call in run.open_calls if call.decision is Decision.DENY_CONTINUE]
    if refused:
        return tuple(CloseCall(call.event, ToolCallStatus.ERROR, DENIED, "") for call in refused)
    undecided = tuple(call.event for call in run.open_calls if call.needs_decision and not run.is_held(call))
    return (Decide(undecided),) if undecided else ()


def _is_late(call: RunCall, now_ms: int) -> bool:
    return call.parked_until is not None and now_ms >= call.parked_until


def _after_lost_call(run: Run, call: RunCall) -> Step:
    if run.may_repeat(call):
        return RunAgain(call.event)
    why = "whoever ran it is gone, and nobody knows whether it ran"
    return CloseCall(call.event, ToolCallStatus.INTERRUPTED, run.lost_because.value, why)
