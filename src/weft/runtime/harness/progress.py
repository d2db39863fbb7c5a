"""How far an agent's work on a task has come, for whoever looks at it: what it does, what it spent, what holds."""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.enums import InboxState
from weft.runtime.harness.facts import RoundState, WorkFacts
from weft.runtime.harness.moves import (
    AwaitAnswer,
    AwaitWorkers,
    CheckCriteria,
    GiveUpWork,
    Leave,
    Move,
    Rest,
    SaveCheckpoint,
    Say,
    StartTask,
    next_move,
    reflections_in_a_row,
)
from weft.runtime.harness.work_messages import criterion_words


class CriterionState(Struct, frozen=True, kw_only=True):
    """A success criterion, and whether it held when it was checked last; None: it was not checked yet."""

    criterion: int
    words: str
    passed: bool | None


class WorkProgress(Struct, frozen=True, kw_only=True):
    """An agent's work on its task. Costs are millionths of a US dollar; limits that are null do not hold."""

    task: str
    task_state: str
    session: str
    doing: str
    turns: int
    max_turns: int
    tokens: int
    max_tokens: int | None
    cost: int | None
    max_cost: int | None
    seconds: int
    max_seconds: int | None
    reflections: int
    """In a row, without anything new that holds."""
    criteria: tuple[CriterionState, ...]
    plan: tuple[dict[str, str], ...]
    pending_calls: tuple[str, ...]
    checkpoint: int | None
    """After how many turns the last checkpoint was saved."""


def progress_of(facts: WorkFacts, now_ms: int) -> WorkProgress:
    settings, spent, verdicts = facts.settings, facts.spent, facts.verdicts
    return WorkProgress(
        task=facts.task.name,
        task_state=facts.task.state,
        session=facts.session,
        doing=doing_words(facts, next_move(facts, now_ms)),
        turns=len(facts.rounds),
        max_turns=settings.max_turns,
        tokens=spent.total,
        max_tokens=settings.max_tokens,
        cost=spent.cost,
        max_cost=settings.max_cost,
        seconds=round(facts.seconds),
        max_seconds=settings.max_seconds,
        reflections=reflections_in_a_row(facts.rounds),
        criteria=tuple(
            CriterionState(
                criterion=number,
                words=criterion_words(criterion),
                passed=verdicts[number].passed if number in verdicts else None,
            )
            for number, criterion in enumerate(facts.criteria)
        ),
        plan=facts.plan,
        pending_calls=tuple(call.name for call in facts.pending_calls),
        checkpoint=facts.agent.last_checkpoint,
    )


def doing_words(facts: WorkFacts, move: Move, *, is_served: bool = False) -> str:
    """What the agent does, or what it waits for. `is_served`: whoever looks answers its messages, so that no other
    broker is waited for."""
    last, state = facts.last, facts.agent.state
    is_answered = last is None or last.state is not RoundState.WAITING
    if state == "paused":
        return "paused" if is_answered else "is paused after the turn under way"
    match move:
        case AwaitAnswer() | SaveCheckpoint(next=None):
            words = _answering_words(facts, is_served)
        case AwaitWorkers(sessions=sessions):
            words = f"waits for {len(sessions)} of its workers"
        case StartTask():
            words = "has not begun"
        case CheckCriteria():
            words = "checks the criteria"
        case Say(kind=kind):
            words = f"is told the {kind}"
        case SaveCheckpoint():
            words = "saves a checkpoint"
        case GiveUpWork(reason=reason):
            words = f"gives up: {reason}"
        case Leave():
            words = f"its task is {facts.task.state}"
        case Rest(until_ms=int()):
            words = f"rests after a failed turn: {last.error if last else ''}"
        case _:
            words = _standing_words(facts)
    return words


def _answering_words(facts: WorkFacts, is_served: bool) -> str:
    last = facts.last
    if facts.is_parked:
        tools = ", ".join(call.name for call in facts.pending_calls) or "something from outside"
        return f"waits for {tools}"
    is_queued = last is not None and last.message.state == InboxState.QUEUED
    return "waits for a broker" if is_queued and not is_served else "thinks"


def _standing_words(facts: WorkFacts) -> str:
    if facts.agent.state == "error":
        return f"stands in an error: {facts.agent_error}" if facts.agent_error else "stands in an error"
    if facts.task.state == "blocked":
        return "waits for other tasks"
    last = facts.last
    error = "" if last is None or last.error is None else f": {last.error}"
    return f"stands still{error}"
