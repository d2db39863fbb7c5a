"""What is recorded of answers, tools and the end of a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct

from weft.kernel.enums import Decision, InterruptionReason, MessageRole, ToolCallStatus
from weft.ledger.api import ApprovalAsked, Entry, KeptState, ModelAnswered, Parked, ToolDecision, ToolEnded
from weft.ledger.model import NewError, NewMessage, RecordedTurn, SentResult
from weft.runtime.broker.run import Run, RunCall
from weft.runtime.broker.steps import Park
from weft.runtime.broker.tools import Later, Verdict
from weft.runtime.inference.replies import Reply
from weft.runtime.inference.settings import ToolSpec
from weft.runtime.tools.calls import ToolOutput


class TurnEnd(Struct, frozen=True, kw_only=True):
    """How a turn left the broker: over, with its last reply or its error, or parked."""

    turn: str
    recorded: RecordedTurn | None = None
    reply: Reply | None = None
    error: BaseException | None = None
    cut: InterruptionReason | None = None


def answered(reply: Reply, request: str, correlation: str) -> ModelAnswered:
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


def ended(
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


def decided(call: RunCall, verdict: Verdict) -> list[Entry]:
    """What is recorded of a decision; where a person is to be asked, the request with it."""
    decision = ToolDecision(
        call=call.event,
        decision=verdict.decision,
        by=verdict.by,
        bound=verdict.bound,
        policy=verdict.policy,
        grant=verdict.grant,
        rationale=verdict.rationale,
        plan=verdict.plan,
        kept=verdict.kept,
    )
    if verdict.decision is not Decision.ASK:
        return [decision]
    assert verdict.bound is not None, "a person is asked about exactly what would run"
    request = ApprovalAsked(
        call=call.event,
        bound=verdict.bound,
        shown=verdict.shown,
        subjects=verdict.subjects,
        rationale=verdict.rationale,
        expires=verdict.expires_ms,
    )
    return [decision, request]


def parked(run: Run, step: Park, later: Mapping[str, Later]) -> list[Parked]:
    """Calls with the same time limit are parked together; each that waits for workers by itself."""
    by_limit: dict[int | None, list[str]] = {}
    entries: list[Parked] = []
    for call in step.calls:
        until, awaits = run.calls[call].parked_until, later.get(call)
        if awaits is not None and awaits.workers:
            entries.append(
                Parked(calls=(call,), until=until, why=awaits.why, awaits=awaits.workers, is_any=awaits.is_any)
            )
        else:
            by_limit.setdefault(until, []).append(call)
    entries += [Parked(calls=tuple(calls), until=until, why=_why(calls, later)) for until, calls in by_limit.items()]
    return entries


def _why(calls: Sequence[str], later: Mapping[str, Later]) -> str | None:
    reasons = [later[call].why for call in calls if call in later]
    return "; ".join(filter(None, reasons)) or None


def spec_fields(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description, "schema": spec.schema}
