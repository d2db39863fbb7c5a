"""What comes next in an agent's work on a task: a pure function of what is recorded, and of the time."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.kernel.enums import InterruptionReason
from weft.kernel.errors import BudgetSpent
from weft.runtime.harness.facts import RoundState, WordKind, WorkFacts, WorkRound
from weft.runtime.harness.work_messages import budget_words, failure_words, reflection, resumption_words, task_brief

ENDED_STATES = ("completed", "failed")
BUDGET_SPENT = "budget_spent"
CRITERIA_UNMET = "criteria_unmet"
TURN_FAILED = "turn_failed"
FIRST_PAUSE_MS = 2000
"""So long after a failed turn the next one is begun; twice as long after each further one in a row."""
LONGEST_PAUSE_MS = 5 * 60 * 1000


class Rest(Struct, frozen=True):
    """Nothing is to be done, until that time or until something is recorded."""

    until_ms: int | None = None


class StartTask(Struct, frozen=True):
    """The task begins."""


class Say(Struct, frozen=True):
    """The agent thinks, and gets a message to answer."""

    kind: WordKind
    text: str
    reason: str | None = None
    """Why, for the log."""


class AwaitAnswer(Struct, frozen=True):
    """A broker answers a message."""

    message: str


class AwaitWorkers(Struct, frozen=True):
    """Workers of the agent, by the ids of their sessions, have not answered yet: what they find comes as a message."""

    sessions: tuple[str, ...]


class CheckCriteria(Struct, frozen=True):
    """The success criteria are held against the last answer; where all hold, the work is done."""


class SaveCheckpoint(Struct, frozen=True):
    """What the agent has reached is saved."""

    next: str | None = None
    """What it is to be told next."""


class StandStill(Struct, frozen=True):
    """The agent waits, and its work stands still until somebody asks for it again."""

    reason: str


class GiveUpWork(Struct, frozen=True):
    """The task fails, and the agent stands in an error."""

    code: str
    reason: str


class Leave(Struct, frozen=True):
    """The task is over, whoever ended it: the agent is idle."""


Move = (
    Rest
    | StartTask
    | Say
    | AwaitAnswer
    | AwaitWorkers
    | CheckCriteria
    | SaveCheckpoint
    | StandStill
    | GiveUpWork
    | Leave
)


def next_move(facts: WorkFacts, now_ms: int, *, is_asked: bool = False) -> Move:
    """`is_asked`: somebody asks for the work just now, so that what was interrupted goes on."""
    agent, task = facts.agent.state, facts.task.state
    if task in ENDED_STATES and agent != "error":
        return Leave()
    if agent in ("error", "paused") or task == "blocked":
        return Rest()
    return StartTask() if task == "pending" else _next_round(facts, now_ms, is_asked=is_asked)


def _next_round(facts: WorkFacts, now_ms: int, *, is_asked: bool) -> Move:
    last = facts.last
    if last is None:
        return _within_budget(facts, Say(WordKind.BRIEF, task_brief(facts.task)))
    if last.state is RoundState.WAITING:
        return _while_answered(facts, last)
    if facts.last_harness_round is None:  # others were quicker: what they were answered is no answer to the task
        return _within_budget(facts, Say(WordKind.BRIEF, task_brief(facts.task)))
    if last.state is RoundState.ANSWERED:
        return AwaitWorkers(facts.workers) if facts.workers else _after_answer(facts, last)
    if last.state is RoundState.FAILED and facts.settings.reflects and not is_asked:
        return _after_failure(facts, last, now_ms)
    return _after_cut(facts, last, is_asked=is_asked)


def _while_answered(facts: WorkFacts, last: WorkRound) -> Move:
    is_due = facts.settings.checkpoint_every is not None and facts.is_parked
    if is_due and _saved(facts, "pendingCalls") != pending_calls(facts):
        return SaveCheckpoint()
    return AwaitAnswer(last.message.id)


def _after_answer(facts: WorkFacts, last: WorkRound) -> Move:
    settings = facts.settings
    unmet = facts.unmet(last.verdicts)
    if facts.criteria and not last.verdicts:
        return CheckCriteria()
    if not unmet and (facts.criteria or not last.failed_calls or not settings.reflects):
        return CheckCriteria()
    if not settings.reflects:
        return GiveUpWork(CRITERIA_UNMET, f"not met: {'; '.join(unmet)}")
    why = "; ".join([*unmet, *last.failed_calls])
    text = reflection(unmet, last.failed_calls)
    if _is_checkpoint_due(facts, last):
        return SaveCheckpoint(text)
    count = reflections_in_a_row(facts.rounds)
    if count >= settings.max_reflections:
        return GiveUpWork(CRITERIA_UNMET, f"{count} reflections in a row brought nothing new: {why}")
    reason = f"reflection {count + 1} of {settings.max_reflections}: {why}"
    return _within_budget(facts, Say(WordKind.REFLECTION, text, reason))


def _after_failure(facts: WorkFacts, last: WorkRound, now_ms: int) -> Move:
    settings, error = facts.settings, last.error or "no error was told"
    if last.error_code == BudgetSpent.code:
        return GiveUpWork(BUDGET_SPENT, f"budget: {error}")
    count = reflections_in_a_row(facts.rounds)
    if count >= settings.max_reflections:
        return GiveUpWork(TURN_FAILED, f"{count} reflections in a row brought nothing new: {error}")
    failures = _failures_in_a_row(facts.rounds)
    until_ms = (last.message.settled_at or 0) + min(FIRST_PAUSE_MS * 2 ** (failures - 1), LONGEST_PAUSE_MS)
    if now_ms < until_ms:
        return Rest(until_ms)
    first = facts.rounds[-failures]
    reason = f"reflection {count + 1} of {settings.max_reflections}: the last turn failed: {error}"
    return _within_budget(facts, Say(WordKind.REFLECTION, failure_words(first.text, error), reason))


def _after_cut(facts: WorkFacts, last: WorkRound, *, is_asked: bool) -> Move:
    """After a turn that somebody cut short, or that failed where nobody reflects on it."""
    if last.error_code == BudgetSpent.code:
        return GiveUpWork(BUDGET_SPENT, f"budget: {last.error}")
    if last.error_code == InterruptionReason.TIMEOUT and (words := budget_words(facts)) is not None:
        return GiveUpWork(BUDGET_SPENT, words)
    if is_asked:
        return _within_budget(facts, Say(WordKind.RESUMPTION, resumption_words(facts)))
    if facts.agent.state == "waiting":
        return Rest()
    how = "failed" if last.state is RoundState.FAILED else "was interrupted"
    return StandStill(f"the last turn {how}: {last.error or 'no error was told'}")


def _within_budget(facts: WorkFacts, move: Say) -> Move:
    words = budget_words(facts)
    return move if words is None else GiveUpWork(BUDGET_SPENT, words)


def _is_checkpoint_due(facts: WorkFacts, last: WorkRound) -> bool:
    every = facts.settings.checkpoint_every
    is_saved = _saved(facts, "turn") == last.turn and _saved(facts, "next") is not None
    return every is not None and len(facts.rounds) % every == 0 and not is_saved


def pending_calls(facts: WorkFacts) -> list[dict[str, Any]]:
    """The calls of the turn under way that have not ended, as a checkpoint holds them."""
    return [{"id": call.call_id, "tool": call.name, "arguments": call.arguments} for call in facts.pending_calls]


def _saved(facts: WorkFacts, field: str) -> object:
    return facts.checkpoint.get(field) if isinstance(facts.checkpoint, dict) else None


def reflections_in_a_row(rounds: tuple[WorkRound, ...]) -> int:
    """How many rounds at the end are reflections after which no more criteria held than before."""
    count, held = 0, frozenset[int]()
    for one in rounds:
        has_progress = bool(one.held - held)
        count = count + 1 if one.kind == WordKind.REFLECTION and not has_progress else 0
        held = one.held if one.verdicts else held
    return count


def _failures_in_a_row(rounds: tuple[WorkRound, ...]) -> int:
    count = 0
    for one in reversed(rounds):
        if one.state is not RoundState.FAILED:
            break
        count += 1
    return count
