"""What is recorded of an agent's work on a task: its rounds, the verdicts on them, what they spent, a checkpoint.

A round is one turn of the session since the agent got the task: the messages that it answers, its answer and the
verdicts on that. A message that no turn has taken yet is a round of its own. Nothing else decides how the work goes on,
so that any process goes on with it the same way.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct

from weft.kernel.authority import LOCAL
from weft.kernel.enums import Decision, DecisionSource, InboxState, ProgramKind, ToolCallStatus
from weft.ledger.api import InboxMessage, Ledger, Runs, Spending
from weft.ledger.model import TextPart, ToolCall, Turn
from weft.programs.assignments import WORK_FIELD, Assignment, load_assignment, may_run
from weft.programs.criteria import explain
from weft.programs.kinds.task import criteria_of
from weft.programs.model import Program, RecordedVerdict
from weft.programs.programs import Programs
from weft.runtime.broker.plans import message_workspace
from weft.runtime.broker.worked_time import worked_ms
from weft.runtime.harness.settings import HarnessSettings, harness_of
from weft.runtime.tools.todo_tool import items_of

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
    assignment: Assignment
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
            explain(criteria[one.criterion], one.observed, passed=False)
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
        rounds = self._rounds(program, assignment, task)
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
            pending_calls=() if open_turn is None else _pending(self._ledger, open_turn),
            workers=tuple(one.session for one in self._runs.workers(assignment.session) if not one.is_idle),
            plan=self._plan(turns),
            checkpoint=self._programs.load_checkpoint(program.id),
            agent_error=self._agent_error(program),
        )

    def _agent_error(self, agent: Program) -> str | None:
        if agent.state != "error":
            return None
        changes = self._programs.history(agent.id)
        return next((change.reason for change in changes if change.kind == "agent_failed"), None)

    def _rounds(self, agent: Program, assignment: Assignment, task: Program) -> tuple[WorkRound, ...]:
        messages = self._ledger.inbox.list(
            session=assignment.session, states=list(InboxState), limit=MOST_ROUNDS, after=assignment.n
        )
        checks = [check for check in self._programs.checks(task.id) if check.n > assignment.n]
        trusted: TrustedSenders = {assignment.by: True}
        by_turn: dict[str, list[InboxMessage]] = {}
        for message in messages:
            by_turn.setdefault(message.turn or message.id, []).append(message)
        rounds = [
            self._round(agent, group, [check for check in checks if check.turn == turn], trusted)
            for turn, group in by_turn.items()
        ]
        return tuple(sorted(rounds, key=lambda one: one.state is RoundState.WAITING))

    def _kind(self, agent: Program, message: InboxMessage, trusted: TrustedSenders) -> str | None:
        """What a message is in the work. Anybody who may write to the session can say that it is a brief: it counts
        where it was sent in the name of those who gave the agent its task, or of others who may run it."""
        kind = message.metadata.get(WORK_FIELD) if isinstance(message.metadata, dict) else None
        if not isinstance(kind, str) or kind not in set(WordKind):
            return None
        senders = (message.sender, *message.on_behalf_of)
        if senders not in trusted:
            trusted[senders] = may_run(self._ledger, senders, agent.id)
        return kind if trusted[senders] else None

    def _round(
        self,
        agent: Program,
        messages: list[InboxMessage],
        checks: list[RecordedVerdict],
        trusted: TrustedSenders,
    ) -> WorkRound:
        """Of the messages of one turn, in the order in which they came: the first of the harness says what it is."""
        kinds = [(message, self._kind(agent, message, trusted)) for message in messages]
        message, kind = next((one for one in kinds if one[1] is not None), kinds[0])
        beside = tuple(other for other in messages if other is not message)
        turn = None if message.turn is None else self._ledger.turn(message.turn)
        state = _state(message, turn)
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

    def _plan(self, turns: list[str]) -> tuple[dict[str, str], ...]:
        for turn in reversed(turns):
            for call in reversed(self._ledger.tool_calls(turn)):
                if call.name == "todo" and call.outcome == ToolCallStatus.OK:
                    return tuple(items_of(call.result))
        return ()


def _state(message: InboxMessage, turn: Turn | None) -> RoundState:
    if message.state in (InboxState.QUEUED, InboxState.TAKEN):
        return RoundState.WAITING
    if message.state == InboxState.CANCELLED:
        return RoundState.CUT
    if message.state == InboxState.DEAD or turn is None or turn.status == "failed":
        return RoundState.FAILED
    return RoundState.ANSWERED if turn.interruption_reason is None else RoundState.CUT


def _pending(ledger: Ledger, turn: str) -> tuple[ToolCall, ...]:
    return tuple(call for call in ledger.tool_calls(turn) if call.outcome is None)
