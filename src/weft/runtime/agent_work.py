"""Work of agents on tasks as it is recorded: its rounds, its next move, its messages, its progress.

What comes next is a pure function of what is recorded and of the time. What the limits leave for
the next turn of the work is found here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any

from msgspec import Struct

from weft.kernel.authority import LOCAL
from weft.kernel.enums import (
    CriterionType,
    Decision,
    DecisionSource,
    InboxState,
    InterruptionReason,
    ProgramKind,
    ToolCallStatus,
)
from weft.kernel.errors import BudgetSpent
from weft.ledger.api import InboxMessage, Ledger, Runs, SessionStanding, Spending
from weft.ledger.model import TextPart, ToolCall, Turn
from weft.programs.kind_table import HARNESS_FIELDS
from weft.programs.program_records import Program, RecordedVerdict
from weft.programs.programs import Programs
from weft.programs.tasks import WORK_FIELD, TaskAssignment, criteria_of, explain_criterion, load_assignment, may_run
from weft.runtime.broker.turn_plans import message_workspace
from weft.runtime.broker.turn_state import worked_ms
from weft.runtime.inference.model_requests import RequestBudget
from weft.runtime.ledger_port import Executor
from weft.runtime.tool.recorded_results import items_of

# --- How an agent works: the limits and habits that its configuration names under `harness`.

DEFAULT_MAX_TURNS = 50
DEFAULT_MAX_REFLECTIONS = 3
MICRODOLLARS = 1_000_000


class HarnessSettings(Struct, frozen=True, kw_only=True):
    """Limits that are None do not hold. Money is in micro-dollars."""

    max_turns: int = DEFAULT_MAX_TURNS
    max_tokens: int | None = None
    max_cost: int | None = None
    max_seconds: int | None = None
    reflects: bool = False
    """Whether an answer that does not hold, and a turn that failed, are followed by another turn."""
    max_reflections: int = DEFAULT_MAX_REFLECTIONS
    """So many of these in a row bring nothing new before the work is given up."""
    checkpoint_every: int | None = None
    """After so many turns a checkpoint is saved."""


def harness_of(agent: Program) -> HarnessSettings:
    """Raises InvalidConfig where a configuration that was taken over from elsewhere says something odd."""
    config = agent.config if isinstance(agent.config, dict) else {}
    harness: dict[str, Any] = HARNESS_FIELDS("config.harness", config.get("harness") or {})
    cost = harness.get("maxCost")
    return HarnessSettings(
        max_turns=harness.get("maxTurns", DEFAULT_MAX_TURNS),
        max_tokens=harness.get("maxTokens"),
        max_cost=None if cost is None else round(cost * MICRODOLLARS),
        max_seconds=harness.get("maxSeconds"),
        reflects=bool(harness.get("reflectOnFailure")),
        max_reflections=harness.get("maxReflections", DEFAULT_MAX_REFLECTIONS),
        checkpoint_every=harness.get("checkpointEvery"),
    )


# --- What is recorded of an agent's work on a task: its rounds, the verdicts on them, what they spent, a checkpoint.

MOST_ROUNDS = 10_000
TrustedSenders = dict[tuple[str, ...], bool]
"""Whether messages in these names may be the harness's: of those who may run the agent."""
FAILURES = (ToolCallStatus.ERROR, ToolCallStatus.TIMEOUT)
REFUSALS = (Decision.DENY_CONTINUE, Decision.DENY_ABORT)


class WordKind(StrEnum):
    """What a message of the harness is."""

    BRIEF = "brief"
    REFLECTION = "reflection"
    RESUMPTION = "resumption"


class RoundState(StrEnum):
    """How far the turn of a message has come."""

    WAITING = "waiting"
    """No turn has answered the message yet."""
    ANSWERED = "answered"
    FAILED = "failed"
    CUT = "cut"
    """Somebody cut the turn short, or took the message back."""


class WorkRound(Struct, frozen=True, kw_only=True):
    """One turn, or a message that waits for one, and what came of it."""

    message: InboxMessage
    """What the turn answers: the harness's message where there is one, else the first."""
    beside: tuple[InboxMessage, ...] = ()
    """Other messages that the turn answers: those that steered it, or were taken together with the first."""
    state: RoundState
    turn: str | None = None
    kind: str | None = None
    """A `WordKind`; None where no message of it is the harness's."""
    answer: str | None = None
    error: str | None = None
    error_code: str | None = None
    failed_calls: tuple[str, ...] = ()
    """Tools whose last call in the turn ended in an error, with the error."""
    verdicts: tuple[RecordedVerdict, ...] = ()
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """What all its messages say, in the order in which they came."""
        messages = sorted((self.message, *self.beside), key=lambda message: message.n)
        parts = [part for message in messages for part in message.content]
        return "\n".join(str(part.text) for part in parts if isinstance(part, TextPart))

    @property
    def held(self) -> frozenset[int]:
        """The criteria that held after it."""
        return frozenset(verdict.criterion for verdict in self.verdicts if verdict.passed)


class WorkFacts(Struct, frozen=True, kw_only=True):
    """An agent's work on its present task."""

    agent: Program
    task: Program
    settings: HarnessSettings
    assignment: TaskAssignment
    session: str
    """The label of the session that it works in."""
    head: str | None
    rounds: tuple[WorkRound, ...]
    spent: Spending
    is_parked: bool = False
    """Whether the turn under way waits for something from outside."""
    pending_calls: tuple[ToolCall, ...] = ()
    """The calls of the turn under way that have not ended."""
    workers: tuple[str, ...] = ()
    """The ids of the sessions of its workers that are not idle."""
    plan: tuple[dict[str, str], ...] = ()
    """The agent's own list of what is to be done."""
    checkpoint: Any = None
    agent_error: str | None = None
    """Why the agent stands in an error."""

    @property
    def last(self) -> WorkRound | None:
        return self.rounds[-1] if self.rounds else None

    @property
    def last_harness_round(self) -> WorkRound | None:
        """The last round that the harness began: others send messages to the session, too."""
        return next((one for one in reversed(self.rounds) if one.kind is not None), None)

    @property
    def harness_messages(self) -> int:
        """How many messages of the session say that they are the harness's. It never becomes less, as the number of
        rounds does where one turn takes several messages."""
        messages = [message for one in self.rounds for message in (one.message, *one.beside)]
        return sum(isinstance(message.metadata, dict) and WORK_FIELD in message.metadata for message in messages)

    @property
    def criteria(self) -> list[dict[str, Any]]:
        return criteria_of(self.task.config if isinstance(self.task.config, dict) else {})

    @property
    def seconds(self) -> float:
        """How long its turns that have ended were worked on; one that waited for something from outside was not."""
        return sum(one.seconds for one in self.rounds)

    @property
    def verdicts(self) -> dict[int, RecordedVerdict]:
        """The last verdict on each criterion."""
        return {verdict.criterion: verdict for one in self.rounds for verdict in one.verdicts}

    @property
    def workspace(self) -> str | None:
        """The folder that its messages name, else the task's own. Only whoever opened the ledger names a folder in a
        message."""
        last = self.last_harness_round
        named = None if last is None else message_workspace([last.message])
        config = self.task.config if isinstance(self.task.config, dict) else {}
        workspace = named or config.get("workspace")
        return workspace if isinstance(workspace, str) else None

    def unmet(self, verdicts: tuple[RecordedVerdict, ...]) -> list[str]:
        """What does not hold, in words, by the verdicts on one round."""
        criteria = self.criteria
        return [
            explain_criterion(criteria[one.criterion], one.observed, passed=False)
            for one in verdicts
            if not one.passed and one.criterion < len(criteria)
        ]


class WorkReader:
    """Reads the facts of work, whoever asks for them: they are no answer to anybody."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs.acting_as(LOCAL)
        self._ledger, self._runs = self._programs.ledger, Runs(self._programs.ledger)
        self._seconds: dict[str, float] = {}
        """By turn, how long those were worked on that have ended."""

    def facts(self, agent: str) -> WorkFacts | None:
        """None where the agent has no task that it got here."""
        program = self._programs.get(agent, ProgramKind.AGENT)
        assignment = load_assignment(self._ledger, program.id)
        if assignment is None or program.current_task is None:
            return None
        task = self._programs.get(assignment.task, ProgramKind.TASK)
        standing = self._runs.standing(assignment.session, 1)
        rounds = self._work_rounds(program, assignment, task)
        turns = [one.turn for one in rounds if one.turn is not None]
        open_turn = standing.open_turn if rounds and rounds[-1].state is RoundState.WAITING else None
        return WorkFacts(
            agent=program,
            task=task,
            settings=harness_of(program),
            assignment=assignment,
            session=standing.label,
            head=standing.head,
            rounds=rounds,
            spent=self._runs.work_spending(assignment.session, assignment.n),
            is_parked=open_turn is not None and standing.is_parked,
            pending_calls=() if open_turn is None else _pending_calls(self._ledger, open_turn),
            workers=tuple(one.session for one in self._runs.workers(assignment.session) if not one.is_idle),
            plan=self._newest_plan(turns),
            checkpoint=self._programs.load_checkpoint(program.id),
            agent_error=self._agent_error(program),
        )

    def _agent_error(self, agent: Program) -> str | None:
        if agent.recorded_state != "error":
            return None
        changes = self._programs.history(agent.id)
        return next((change.reason for change in changes if change.kind == "agent_failed"), None)

    def _work_rounds(self, agent: Program, assignment: TaskAssignment, task: Program) -> tuple[WorkRound, ...]:
        messages = self._ledger.inbox.list(
            session=assignment.session, states=list(InboxState), limit=MOST_ROUNDS, after=assignment.n
        )
        checks = [check for check in self._programs.checks(task.id) if check.n > assignment.n]
        trusted: TrustedSenders = {assignment.by: True}
        by_turn: dict[str, list[InboxMessage]] = {}
        for message in messages:
            by_turn.setdefault(message.turn or message.id, []).append(message)
        rounds = [
            self._work_round(agent, group, [check for check in checks if check.turn == turn], trusted)
            for turn, group in by_turn.items()
        ]
        return tuple(sorted(rounds, key=lambda one: one.state is RoundState.WAITING))

    def _message_kind(self, agent: Program, message: InboxMessage, trusted: TrustedSenders) -> str | None:
        """What a message is in the work. Anybody who may write to the session can say that it is a brief: it counts
        where it was sent in the name of those who gave the agent its task, or of others who may run it."""
        kind = message.metadata.get(WORK_FIELD) if isinstance(message.metadata, dict) else None
        if not isinstance(kind, str) or kind not in set(WordKind):
            return None
        senders = (message.sender, *message.on_behalf_of)
        if senders not in trusted:
            trusted[senders] = may_run(self._ledger, senders, agent.id)
        return kind if trusted[senders] else None

    def _work_round(
        self,
        agent: Program,
        messages: list[InboxMessage],
        checks: list[RecordedVerdict],
        trusted: TrustedSenders,
    ) -> WorkRound:
        """Of the messages of one turn, in the order in which they came: the first of the harness says what it is."""
        kinds = [(message, self._message_kind(agent, message, trusted)) for message in messages]
        message, kind = next((one for one in kinds if one[1] is not None), kinds[0])
        beside = tuple(other for other in messages if other is not message)
        turn = None if message.turn is None else self._ledger.turn(message.turn)
        state = _round_state(message, turn)
        if turn is None or state is RoundState.WAITING:
            error = "its message was taken back" if state is RoundState.CUT else message.error
            return WorkRound(message=message, beside=beside, state=state, turn=message.turn, kind=kind, error=error)
        return WorkRound(
            message=message,
            beside=beside,
            state=state,
            turn=turn.id,
            kind=kind,
            answer=self._answer(turn) if state is RoundState.ANSWERED else None,
            error=turn.error or turn.interruption_reason,
            error_code=turn.error_code or turn.interruption_reason,
            failed_calls=self._failed_calls(turn.id),
            verdicts=tuple(checks) if state is RoundState.ANSWERED else (),
            seconds=self._worked_seconds(turn),
        )

    def _worked_seconds(self, turn: Turn) -> float:
        """Of a turn that has ended. Only one with tool calls can have been parked."""
        if turn.id not in self._seconds:
            if self._ledger.tool_calls(turn.id):
                milliseconds = worked_ms(recorded.event for recorded in self._runs.events(turn.id))
            else:
                milliseconds = max(0, (turn.completed_at or turn.started_at) - turn.started_at)
            self._seconds[turn.id] = milliseconds / 1000
        return self._seconds[turn.id]

    def _answer(self, turn: Turn) -> str | None:
        messages = self._ledger.messages(turn.id)
        return next((one.text for one in messages if one.id == turn.response_message_id), None)

    def _failed_calls(self, turn: str) -> tuple[str, ...]:
        """What a permission, a policy or a person refused is no failure: it was decided. Arguments that do not fit
        are one."""
        last_calls = {call.name: call for call in self._ledger.tool_calls(turn)}
        failed = [call for call in last_calls.values() if call.outcome in FAILURES]
        decisions = self._ledger.approvals.decisions(turn) if failed else []
        refused = {one.call for one in decisions if one.decision in REFUSALS and one.by != DecisionSource.ARGUMENTS}
        return tuple(
            f"{call.name}: {call.error or call.error_code or call.outcome}" for call in failed if call.id not in refused
        )

    def _newest_plan(self, turns: list[str]) -> tuple[dict[str, str], ...]:
        for turn in reversed(turns):
            for call in reversed(self._ledger.tool_calls(turn)):
                if call.name == "todo" and call.outcome == ToolCallStatus.OK:
                    return tuple(items_of(call.result))
        return ()


def _round_state(message: InboxMessage, turn: Turn | None) -> RoundState:
    if message.state in (InboxState.QUEUED, InboxState.TAKEN):
        return RoundState.WAITING
    if message.state == InboxState.CANCELLED:
        return RoundState.CUT
    if message.state == InboxState.DEAD or turn is None or turn.status == "failed":
        return RoundState.FAILED
    return RoundState.ANSWERED if turn.interruption_reason is None else RoundState.CUT


def _pending_calls(ledger: Ledger, turn: str) -> tuple[ToolCall, ...]:
    return tuple(call for call in ledger.tool_calls(turn) if call.outcome is None)


# --- What is said in an agent's work: to it of its task, of an answer that does not hold, after a failure and where it
# goes on; and to people about its budget.

_LISTS = (("inputs", "You are given"), ("outputs", "Wanted"), ("constraints", "Keep to"))


def task_brief(task: Program) -> str:
    """A task as the first message of the session that it is worked on in. A task that is only a title is what the
    title says."""
    config = task.config if isinstance(task.config, dict) else {}
    spec: dict[str, Any] = config.get("spec") or {}
    if not any(spec.values()):
        return str(config.get("title", task.name))
    parts = [f"Task: {config.get('title', task.name)}"]
    parts += [_list_text(heading, spec[name]) for name, heading in _LISTS if spec.get(name)]
    criteria = spec.get("successCriteria") or []
    parts += [_list_text("It is done when", map(criterion_words, criteria))] if criteria else []
    return "\n\n".join([*parts, "Answer with the final result alone."])


def resumed_brief(task: Program) -> str:
    """The same to an agent that has worked on it before."""
    return f"{task_brief(task)}\n\nYou have begun already: go on from there."


def reflection(unmet: Sequence[str], failed_calls: Sequence[str] = ()) -> str:
    """The message after an answer that does not meet the criteria, or after tool calls that ended in errors."""
    parts = [_list_text("Not done yet", unmet)] if unmet else []
    parts += [_list_text("These tool calls ended in errors", failed_calls)] if failed_calls else []
    return "\n\n".join([*parts, "Think about why, then give the whole final answer again."])


def _list_text(heading: str, items: Iterable[Any]) -> str:
    return "\n".join([f"{heading}:", *(f"- {item}" for item in items)])


def criterion_words(criterion: dict[str, Any]) -> str:
    """What a criterion asks for."""
    where = f"the file {criterion['path']}" if "path" in criterion else "the answer"
    match criterion["type"]:
        case CriterionType.FILE_EXISTS:
            return f"{where} exists"
        case CriterionType.WORD_COUNT:
            bounds = [f"at least {criterion['min']}"] if "min" in criterion else []
            bounds += [f"at most {criterion['max']}"] if "max" in criterion else []
            return f"{where} has {' and '.join(bounds)} words"
        case CriterionType.CONTAINS:
            return f"{where} contains {criterion['text']!r}"
        case CriterionType.JSON_SCHEMA:
            return f"{where} is JSON that fits the schema {criterion['schema']}"
        case _:
            return f"the command {criterion['command']!r} ends with {criterion.get('exitCode', 0)}"


def failure_words(text: str, error: str) -> str:
    """The message whose turn failed, once more: the session holds nothing of that turn."""
    return f"{text}\n\nAn earlier try of this ended with an error: {error}\nGo on in another way if that can help."


def resumption_words(facts: WorkFacts) -> str:
    """The task itself, what the checkpoint says comes next, or that it goes on."""
    if facts.head is None:
        return task_brief(facts.task)
    saved = facts.checkpoint if isinstance(facts.checkpoint, dict) else {}
    text = saved.get("next")
    return text if saved.get("head") == facts.head and isinstance(text, str) else resumed_brief(facts.task)


def budget_words(facts: WorkFacts) -> str | None:
    """Which limit of the harness leaves no further turn, and what is still missing; None where there is one."""
    settings, spent = facts.settings, facts.spent
    words = None
    if len(facts.rounds) >= settings.max_turns:
        words = f"budget: {settings.max_turns} turn{' was' if settings.max_turns == 1 else 's were'} not enough"
    elif settings.max_tokens is not None and spent.total >= settings.max_tokens:
        words = f"budget: {spent.total} of {settings.max_tokens} tokens are spent"
    elif settings.max_seconds is not None and facts.seconds >= settings.max_seconds:
        words = f"budget: {facts.seconds:.0f} of {settings.max_seconds} seconds are spent"
    elif settings.max_cost is not None and spent.unpriced:
        words = "budget: nobody knows what the turns cost, for a model of theirs has no price"
    elif settings.max_cost is not None and (spent.cost or 0) >= settings.max_cost:
        words = f"budget: {_dollars_text(spent.cost or 0)} of {_dollars_text(settings.max_cost)} are spent"
    if words is None:
        return None
    last = facts.last
    unmet = [] if last is None else [*facts.unmet(last.verdicts), *last.failed_calls]
    return f"{words}: {'; '.join(unmet)}" if unmet else words


def _dollars_text(cost: int) -> str:
    return f"${cost / MICRODOLLARS:.4f}"


# --- What comes next in an agent's work on a task: a pure function of what is recorded, and of the time.

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
    agent, task = facts.agent.recorded_state, facts.task.state
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
    if is_due and _saved_field(facts, "pendingCalls") != pending_calls(facts):
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
    if facts.agent.recorded_state == "waiting":
        return Rest()
    how = "failed" if last.state is RoundState.FAILED else "was interrupted"
    return StandStill(f"the last turn {how}: {last.error or 'no error was told'}")


def _within_budget(facts: WorkFacts, move: Say) -> Move:
    words = budget_words(facts)
    return move if words is None else GiveUpWork(BUDGET_SPENT, words)


def _is_checkpoint_due(facts: WorkFacts, last: WorkRound) -> bool:
    every = facts.settings.checkpoint_every
    is_saved = _saved_field(facts, "turn") == last.turn and _saved_field(facts, "next") is not None
    return every is not None and len(facts.rounds) % every == 0 and not is_saved


def pending_calls(facts: WorkFacts) -> list[dict[str, Any]]:
    """The calls of the turn under way that have not ended, as a checkpoint holds them."""
    return [{"id": call.call_id, "tool": call.name, "arguments": call.arguments} for call in facts.pending_calls]


def _saved_field(facts: WorkFacts, field: str) -> object:
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


# --- How far an agent's work on a task has come, for whoever looks at it: what it does, what it spent, what holds.


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
    last, state = facts.last, facts.agent.recorded_state
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
    if facts.agent.recorded_state == "error":
        return f"stands in an error: {facts.agent_error}" if facts.agent_error else "stands in an error"
    if facts.task.state == "blocked":
        return "waits for other tasks"
    last = facts.last
    error = "" if last is None or last.error is None else f": {last.error}"
    return f"stands still{error}"


# --- What the harness of an agent leaves for the next turn of its work: time and money.

SHORTEST_SECONDS = 0.001


class TurnLimits(Struct, frozen=True):
    """None does not limit."""

    seconds: float | None = None
    budget: RequestBudget | None = None


NO_LIMITS = TurnLimits()


def turn_limits(programs: Programs, crossing: Executor, agent: Program | None, standing: SessionStanding) -> TurnLimits:
    """What is left for a turn of a session, where the agent works on its task there, or a worker of that work does, and
    its harness limits that. The money is that of the whole work: all of its turns share it."""
    if agent is None or load_assignment(programs.ledger, agent.id) is None:
        return NO_LIMITS
    settings = harness_of(agent)
    if settings.max_seconds is None and settings.max_cost is None:
        return NO_LIMITS
    facts = WorkReader(programs).facts(agent.id)
    if facts is None or facts.assignment.session != Runs(programs.ledger).top_session(standing.id):
        return NO_LIMITS
    seconds = None if settings.max_seconds is None else max(settings.max_seconds - facts.seconds, SHORTEST_SECONDS)
    if settings.max_cost is None:
        return TurnLimits(seconds)
    read = partial(_spent_cost, Runs(programs.ledger), facts.assignment.session, facts.assignment.n)
    return TurnLimits(seconds, RequestBudget(money=settings.max_cost, read_spent=partial(crossing.run, read)))


def _spent_cost(runs: Runs, session: str, since: int) -> int:
    """Micro-dollars that the work has cost, with its workers."""
    return runs.work_spending(session, since).cost or 0
