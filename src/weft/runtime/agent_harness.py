"""Performs the moves of an agent's work: for somebody who waits, or as a job of the broker.

Nobody else runs an agent while its lease is held. Commands of success criteria run in the sandbox.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from msgspec import Struct

from weft.kernel.authority import LOCAL, Authority
from weft.kernel.clock import Clock, SystemClock
from weft.kernel.enums import InboxState, MessageRole
from weft.kernel.errors import (
    Action,
    AgentBusy,
    CriteriaUnmet,
    IllegalTransition,
    InvalidInput,
    LedgerError,
    NotApplicable,
    NotFound,
    StoreError,
    WeftError,
    error_code,
)
from weft.kernel.foreign_input import ReadLimits
from weft.ledger.api import Admission, InboxMessage, Lease, Runs
from weft.ledger.model import NewMessage
from weft.programs.program_records import Program
from weft.programs.program_writer import ensure_own, ensure_vouched
from weft.programs.programs import Programs
from weft.programs.tasks import (
    MAX_FILE_BYTES,
    TASK_FIELD,
    WORK_FIELD,
    CommandResult,
    RunCommand,
    WorkspaceObservations,
    agents_at_work,
    chain_of,
    load_assignment,
)
from weft.runtime.agent_work import (
    ENDED_STATES,
    AwaitAnswer,
    AwaitWorkers,
    CheckCriteria,
    GiveUpWork,
    Leave,
    Move,
    Rest,
    SaveCheckpoint,
    Say,
    StandStill,
    StartTask,
    WorkFacts,
    WorkReader,
    next_move,
    pending_calls,
)
from weft.runtime.broker.broker import OnJobError, answer_admitted, broker_of, renewed, to_the_end
from weft.runtime.broker.session_turns import BUSY_SECONDS
from weft.runtime.broker.turn_plans import Planner, SenderContext
from weft.runtime.ledger_port import Executor, RuntimeLedger
from weft.runtime.replies import TurnReply
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.hidden_places import HiddenFiles
from weft.runtime.sandbox.processes import Ending, Limits
from weft.runtime.sandbox.profiles import WORKSPACE_PROFILE
from weft.runtime.tool.tool_contract import ToolFailure
from weft.runtime.tool.workspace import BeneathPath, WorkspaceFolder

if TYPE_CHECKING:
    from weft.runtime.replies import OnToken


# --- Looks at what success criteria are about. Commands run in the sandbox, with the task's workspace as the one place
# to write to; files are read as the tools of agents read them, for an agent may have made a link of any name.

TIMEOUT_SECONDS = 60.0
_FILE_LIMITS = ReadLimits(held_bytes=MAX_FILE_BYTES, advice="check a smaller file")
_NO_FILE = ("not_found", "is_folder", "not_a_file")


class CriterionFiles(WorkspaceObservations):
    """One folder, without the ledger and what is hidden from commands: a verdict tells of what it is about."""

    def __init__(self, runner: CommandRunner, folder: Path | None, answer: str | None, run: RunCommand) -> None:
        super().__init__(folder, answer, run)
        self._runner = runner

    def file_exists(self, path: str) -> bool:
        return self._find(path)[1].exists

    def read_text(self, path: str | None) -> str | None:
        if path is None:
            return super().read_text(path)
        workspace, found = self._find(path)
        if not found.exists:
            return None
        try:
            file = workspace.read_if_there(found.text)
        except ToolFailure as failure:
            if failure.code in _NO_FILE:
                return None
            raise _unreadable(failure) from failure
        return None if file is None else file.data.decode(errors="replace")

    def _find(self, path: str) -> tuple[WorkspaceFolder, BeneathPath]:
        runner = self._runner
        workspace = WorkspaceFolder(self._root(), withheld=runner.protected.withheld, limits=_FILE_LIMITS)
        try:
            found = workspace.resolve(path)
        except ToolFailure as failure:
            if failure.code in _NO_FILE:
                return workspace, BeneathPath((), exists=False)
            raise _unreadable(failure) from failure
        hidden = HiddenFiles(workspace.root, runner.protected.secrets, runner.person.covered_places)
        if hidden.is_hidden(found.text, path):
            raise InvalidInput(f"{path!r} is hidden from commands, and from criteria", "check another file")
        return workspace, found


def _unreadable(failure: ToolFailure) -> InvalidInput:
    return InvalidInput(f"a criterion cannot be judged: {failure.message}", "put a plain file there, or name another")


class CriterionCommands:
    """The commands of one check. They run in a thread that may wait; another thread can cancel them."""

    def __init__(self, runner: CommandRunner) -> None:
        self._runner = runner
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None] | None = None

    def observe(self, folder: str | Path | None, answer: str | None) -> CriterionFiles:
        """What criteria are judged by, in a folder and in the last answer."""
        return CriterionFiles(self._runner, None if folder is None else Path(folder), answer, self.run)

    def run(self, command: str | list[str], folder: Path, timeout: float | None) -> CommandResult:
        """As `complete_task` takes it: called where no event loop runs."""
        try:
            return asyncio.run(self._run_command(command, folder, timeout))
        finally:
            with self._lock:
                self._running = None

    def cancel(self) -> None:
        """End the command that runs, and run no other one: whoever waits for it gets `CancelledError`."""
        with self._lock:
            self._is_cancelled = True
            if self._running is not None:
                loop, task = self._running
                assert task is not None
                with suppress(RuntimeError):  # it has just ended by itself
                    loop.call_soon_threadsafe(task.cancel)

    async def _run_command(self, command: str | list[str], folder: Path, timeout: float | None) -> CommandResult:
        with self._lock:
            if self._is_cancelled:
                raise asyncio.CancelledError
            self._running = asyncio.get_running_loop(), asyncio.current_task()
        argv = command if isinstance(command, list) else ["/bin/sh", "-c", command]
        limits = Limits(seconds=TIMEOUT_SECONDS if timeout is None else timeout)
        outcome = await self._runner.run(WORKSPACE_PROFILE, argv, workspace=folder, limits=limits)
        return CommandResult(
            exit_code=outcome.code if outcome.ending is Ending.EXITED else None,
            stdout=outcome.stdout.decode(errors="replace"),
            stderr=outcome.stderr.decode(errors="replace"),
        )


# --- Who runs an agent: nobody else does while its lease is held, in this process or another.


@asynccontextmanager
async def hold_agent(
    programs: Programs, crossing: Executor, agent: Program, task: str | None = None
) -> AsyncIterator[Lease]:
    """Hold an agent, for a task by its id or in general. Raises AgentBusy where somebody else holds it."""
    own, leases = programs.acting_as(agent.name), list[Lease]()
    try:
        await to_the_end(crossing.run(lambda: leases.append(own.hold_agent(agent.id, task=task))))
        async with renewed(partial(crossing.run, partial(own.renew_agent, leases[0]))):
            yield leases[0]
    finally:
        for lease in leases:  # also where the task was cancelled before it heard of it
            with suppress(AgentBusy):  # it was taken from us; whoever has it now keeps it
                await to_the_end(crossing.run(partial(own.release_agent, lease)))


# --- Moves of an agent's work, performed by whoever holds the agent.


class WorkRequest(Struct, frozen=True, kw_only=True):
    """What whoever asks for the work says of it: in whose name the agent is told, and how its turns are run."""

    authority: Authority | None = None
    """None: in the name of whoever sent the last message of the work, or gave the agent its task."""
    overrides: Any = None
    workspace: str | None = None
    """The folder that it works in, where that is not the task's own."""


NO_REQUEST = WorkRequest()
WORKING_STATES = ("thinking", "executing")
"""The states of an agent from which it begins to wait."""


class MovePerformer:
    """Performs the moves of one ledger's agents."""

    def __init__(self, programs: Programs, crossing: Executor, runner: CommandRunner) -> None:
        self._programs, self._crossing, self._runner = programs, crossing, runner
        self._reader = WorkReader(programs)

    async def facts(self, agent: str) -> WorkFacts | None:
        return await self._crossing.run(lambda: self._reader.facts(agent))

    async def next_move(self, agent: str, now_ms: int, *, is_asked: bool = False) -> tuple[WorkFacts, Move] | None:
        """What is recorded of an agent's work, and what comes next; None where it has no task."""
        facts = await self.facts(agent)
        return None if facts is None else (facts, next_move(facts, now_ms, is_asked=is_asked))

    async def perform(
        self, facts: WorkFacts, move: Move, lease: Lease, request: WorkRequest = NO_REQUEST
    ) -> Admission | None:
        """Under the lease of the agent; the message's receipt where the agent was told something. Raises what criteria
        that cannot be checked raise."""
        agent, programs = facts.agent, self._programs.acting_as(facts.agent.name, lease)
        match move:
            case StartTask():
                await self._run_to_the_end(partial(programs.start_task, facts.task.id))
            case Say():
                admission: Admission = await self._run_to_the_end(
                    partial(self._send_message, programs, facts, move, request)
                )
                return admission
            case CheckCriteria():
                await self._check_criteria(programs, facts, request.workspace or facts.workspace)
            case SaveCheckpoint():
                await self._run_to_the_end(
                    partial(programs.save_checkpoint, agent.id, checkpoint_state(facts, move.next))
                )
            case StandStill(reason=reason):
                if agent.recorded_state in WORKING_STATES:
                    await self._run_to_the_end(partial(programs.step_agent, agent.id, "wait", reason=reason))
            case GiveUpWork(code=code, reason=reason):
                await self._run_to_the_end(partial(programs.give_up, agent.id, reason, code=code))
            case Leave():
                await self._run_to_the_end(partial(programs.step_agent, agent.id, "reset", reason="its task is over"))
            case Rest() | AwaitAnswer() | AwaitWorkers():
                return None  # somebody else's turn: nothing is done
            case _:
                assert_never(move)
        return None

    async def _run_to_the_end(self, work: Any) -> Any:
        return await to_the_end(self._crossing.run(work))

    def _send_message(self, programs: Programs, facts: WorkFacts, move: Say, request: WorkRequest) -> Admission:
        """The agent's step stands in the log before the message. What a message of the owner's names as its folder is
        worked in, so a folder that comes of the task is looked at first."""
        if request.workspace is None:
            ensure_vouched(facts.task)
        agent = facts.agent
        is_step_recorded = agent.recorded_state == "thinking" and (agent.turn_count or 0) > len(facts.rounds)
        if not is_step_recorded:
            if agent.recorded_state == "thinking":
                programs.step_agent(agent.id, "wait", reason=move.reason)
            programs.step_agent(agent.id, "think", reason=move.reason)
        last, overrides = facts.last_harness_round, request.overrides
        if overrides is None and last is not None:
            overrides = last.message.overrides
        workspace = request.workspace or facts.workspace
        message = NewMessage(
            role=MessageRole.USER,
            content=move.text,
            context=None if workspace is None else {"workspace": workspace},
            metadata={WORK_FIELD: move.kind.value, TASK_FIELD: facts.task.id},
        )
        ledger = programs.ledger.acting_as(request.authority or _telling_authority(facts))
        return ledger.inbox.admit(
            message,
            session=facts.assignment.session,
            overrides=overrides,
            key=f"work {facts.assignment.session} {facts.assignment.n} message {facts.harness_messages}",
        )

    async def _check_criteria(self, programs: Programs, facts: WorkFacts, workspace: str | None) -> None:
        """Records a verdict on every criterion; where all hold, the task and the agent are done in the same append."""
        last = facts.last
        assert last is not None, "criteria are held against an answer"
        if facts.agent.recorded_state == "thinking":
            await self._run_to_the_end(
                partial(programs.step_agent, facts.agent.id, "execute", reason="checking the criteria")
            )
        commands = CriterionCommands(self._runner)
        try:
            await self._crossing.run(
                lambda: programs.complete_task(
                    facts.task.id,
                    answer=last.answer,
                    seen=commands.observe(workspace, last.answer),
                    agent=facts.agent.id,
                    turn=last.turn,
                )
            )
        except asyncio.CancelledError:
            commands.cancel()
            raise
        except CriteriaUnmet:
            return
        except (StoreError, AgentBusy):  # nothing is wrong with the work: it is gone on with later
            raise
        except WeftError as error:
            code, words = error.code, str(error)
            await self._run_to_the_end(lambda: programs.fail_agent(facts.agent.id, words, code=code))
            raise


def checkpoint_state(facts: WorkFacts, text: str | None) -> dict[str, Any]:
    """Where the work stands: the agent's plan, what it has reached and spent, and the calls that have not ended."""
    last = facts.last
    return {
        "task": facts.task.name,
        "session": facts.session,
        "head": facts.head,
        "turn": None if last is None else last.turn,
        "next": text,
        "plan": list(facts.plan),
        "progress": {
            "turns": len(facts.rounds),
            "tokens": facts.spent.total,
            "cost": facts.spent.cost,
            "seconds": round(facts.seconds),
            "criteria": [{"criterion": number, "passed": one.passed} for number, one in sorted(facts.verdicts.items())],
        },
        "pendingCalls": pending_calls(facts),
    }


def _telling_authority(facts: WorkFacts) -> Authority:
    """In whose name the agent is told: as it was told before, else in that of whoever gave it the task."""
    last = facts.last_harness_round
    by = facts.assignment.by if last is None else (last.message.sender, *last.message.on_behalf_of)
    return chain_of(by)


# --- Work on a task that somebody waits for: the same moves as the broker's job performs, by whoever asked for the
# work.

OnProgress = Callable[[WorkFacts, Move], None]
"""Called with what is recorded of the work before each move, and with the move."""

OnAdmitted = Callable[[Admission], Awaitable[None]]
"""Called with each message of the work before its answer is awaited."""


class FinishedWork(Struct, frozen=True, kw_only=True):
    """What came of the work on a task: the task as it is now, what is recorded of the work, and its last answer."""

    task: Program
    facts: WorkFacts
    reply: TurnReply | None = None
    """The last answer."""
    admission: Admission | None = None
    """The receipt for the message that it answers."""
    reason: str | None = None
    """Why it was given up."""


class TaskWork:
    """Works on tasks in one process, until their criteria hold or the harness ends it."""

    def __init__(
        self,
        ledger: RuntimeLedger,
        programs: Programs,
        planner: Planner,
        runner: CommandRunner,
        *,
        clock: Clock | None = None,
        on_token: OnToken | None = None,
        on_progress: OnProgress | None = None,
        on_admitted: OnAdmitted | None = None,
    ) -> None:
        self._ledger, self._programs, self._planner = ledger, programs, planner
        self._clock, self._on_token, self._on_progress = clock or SystemClock(), on_token, on_progress
        self._on_admitted = on_admitted
        self._performer, self._runs = MovePerformer(programs, ledger.crossing, runner), Runs(programs.ledger)

    async def run(
        self, agent: Program, task: Program, request: WorkRequest, *, session: str | None = None
    ) -> FinishedWork:
        """Begin or go on with the work. `session` is the label of the session that it is begun in. Raises what ended
        it before the harness did, such as the failure of a turn."""
        ensure_own(task)
        crossing = self._ledger.crossing
        async with hold_agent(self._programs, crossing, agent, task.id) as lease:
            begin = partial(_begin_task, self._programs, agent.id, task.id, lease, session)
            await to_the_end(crossing.run(begin))
            try:
                return await self._run_task(agent.id, lease, request)
            except asyncio.CancelledError:
                with suppress(LedgerError):  # somebody else has moved the agent meanwhile
                    await to_the_end(self._stand_still(agent.id, lease))
                raise

    async def _stand_still(self, agent: str, lease: Lease) -> None:
        """Whoever is cancelled leaves the agent waiting."""
        facts = await self._performer.facts(agent)
        if facts is not None:
            await self._performer.perform(facts, StandStill("interrupted"), lease)

    async def _run_task(self, agent: str, lease: Lease, request: WorkRequest) -> FinishedWork:
        is_asked, reply, fault, reason = True, None, None, None
        facts: WorkFacts | None = None
        admission: Admission | None = None
        while True:
            facts_and_move = await self._performer.next_move(agent, self._clock.now_ms(), is_asked=is_asked)
            if facts_and_move is None:
                break
            facts, move = facts_and_move
            is_asked = False
            if self._on_progress is not None:
                self._on_progress(facts, move)
            if isinstance(move, AwaitAnswer):
                if admission is None or admission.message != move.message:
                    admission = await self._ledger.crossing.run(
                        partial(_message_admission, self._programs, move.message)
                    )
                if self._on_admitted is not None:
                    await self._on_admitted(admission)
                reply, fault = await self._await_answer(admission)
                continue
            if isinstance(move, AwaitWorkers):
                await self._await_workers(move)
                continue
            if isinstance(move, Rest):
                if move.until_ms is None:
                    break
                await asyncio.sleep(max(0, move.until_ms - self._clock.now_ms()) / 1000)
                continue
            admission = await self._performer.perform(facts, move, lease, request) or admission
            if isinstance(move, StandStill):
                raise fault or NotApplicable(move.reason, Action.RESUME_WORK.of(task=facts.task.name))
            if isinstance(move, GiveUpWork):
                reason = move.reason
                break
        assert facts is not None, "the agent had a task"
        task = await self._ledger.crossing.run(partial(self._programs.get, facts.task.id))
        return FinishedWork(task=task, facts=facts, reply=reply, admission=admission, reason=reason)

    async def _await_workers(self, move: AwaitWorkers) -> None:
        """Have the messages answered that wait in the sessions of workers; another broker may do so, too."""
        inbox, run = self._programs.acting_as(LOCAL).ledger.inbox, self._ledger.crossing.run
        waiting = [await run(partial(inbox.list, session=session, limit=1)) for session in move.sessions]
        messages = [message for messages in waiting for message in messages]
        if messages:
            await asyncio.gather(*(self._await_answer(_admission_of(message)) for message in messages))
        else:
            await asyncio.sleep(BUSY_SECONDS)  # their answers are on their way

    async def _await_answer(self, admission: Admission) -> tuple[TurnReply | None, WeftError | None]:
        """The answer to a message of the work, or what its turn failed with."""
        broker_of(self._ledger).plan_with(self._planner)  # also for what others left in the session
        sending = SenderContext(planner=self._planner)
        try:
            return await answer_admitted(self._ledger, admission, sending, on_token=self._on_token), None
        except StoreError:  # nothing is known of the turn
            raise
        except WeftError as error:
            _, is_elsewhere = await self._ledger.crossing.run(partial(self._runs.message_state, admission.message))
            if is_elsewhere:  # nobody here answers it
                raise
            return None, error


async def resume_work(ledger: RuntimeLedger, programs: Programs, runner: CommandRunner, agent: Program) -> Move | None:
    """Tell an agent whose work stands still to go on, in the name of whoever asks; a broker answers that. Returns what
    comes next in its work: a `Say` was performed. None where it has no task."""
    performer = MovePerformer(programs, ledger.crossing, runner)
    async with hold_agent(programs, ledger.crossing, agent) as lease:
        facts_and_move = await performer.next_move(agent.id, SystemClock().now_ms(), is_asked=True)
        if facts_and_move is None:
            return None
        facts, move = facts_and_move
        if isinstance(move, Say | GiveUpWork):  # whatever else is due, a broker does without being asked
            await performer.perform(facts, move, lease, WorkRequest(authority=programs.ledger.authority))
        return move


def _message_admission(programs: Programs, message: str) -> Admission:
    return _admission_of(programs.ledger.inbox.get(message))


def _admission_of(waiting: InboxMessage) -> Admission:
    return Admission(
        message=waiting.id, session=waiting.session, session_id=waiting.session_id, is_fork=False, receipt=None
    )


def ensure_free(agent: Program) -> None:
    """Refuse an agent whose state lets nobody begin with it."""
    hints = {
        "paused": Action.RESUME_AGENT.of(agent=agent.name),
        "error": Action.RESET_AGENT.of(agent=agent.name),
        "thinking": Action.WAIT_FOR_ANSWER_OR_RESET_AGENT.of(agent=agent.name),
    }
    if agent.recorded_state in hints:
        raise NotApplicable(f"agent {agent.name!r} is {agent.recorded_state}", hints[agent.recorded_state])


def _begin_task(invoker: Programs, agent_id: str, task_id: str, lease: Lease, session: str | None) -> None:
    """The task started and the agent on it, whether for the first time or taken up again."""
    programs = invoker.acting_as(invoker.ledger.authority, lease)
    agent, task = invoker.get(agent_id), invoker.get(task_id)
    is_current = agent.current_task == task.name
    if is_current and task.state in ENDED_STATES:  # it was left there between the end of its task and its own
        agent = programs.acting_as(agent.name, lease).step_agent(agent.id, "reset", reason="its task is over")
    elif not is_current or agent.recorded_state != "thinking":
        ensure_free(agent)
    if task.state == "pending":
        task = programs.start_task(task.id)
    if task.state != "active":
        hint = "complete what it depends on first" if task.state == "blocked" else "make a new task"
        raise NotApplicable(f"task {task.name!r} is {task.state}", hint)
    if not is_current:
        programs.assign(agent.id, task.id, session=session)


# --- The broker's job that goes on with the work of agents: it performs each move that is due, on behalf of nobody who
# waits for it.

BUSY_MS = 5000
"""How soon an agent is looked at again that somebody else runs."""
FIRST_PAUSE_MS = 1000
LONGEST_PAUSE_MS = 60_000
"""After a failed move its agent rests for the first pause; for twice as long after each further one in a row."""
MAX_FAILURES = 3
"""So often in a row a move may fail before its agent stands in an error."""


class AgentTrouble(Struct, frozen=True):
    """Moves of one agent that failed, one after the other."""

    failures: int
    until_ms: int
    """When the next one is tried."""
    words: str | None = None
    """What people were told of it last."""


class HarnessJob:
    """A `BackgroundJob`. Of several brokers the one performs a move that holds the agent. What one agent's move fails
    with is told of, and keeps that agent alone waiting."""

    name = "the work of agents"

    def __init__(
        self,
        programs: Programs,
        crossing: Executor,
        runner: CommandRunner,
        *,
        clock: Clock | None = None,
        on_error: OnJobError | None = None,
    ) -> None:
        self._programs, self._crossing, self._clock = programs, crossing, clock or SystemClock()
        self._performer, self._on_error = MovePerformer(programs, crossing, runner), on_error
        self._troubles: dict[str, AgentTrouble] = {}
        self._awaited: dict[str, tuple[int, str]] = {}
        """By agent, its assignment and the message whose turn is to end before anything else can come next."""
        self._runs = Runs(programs.ledger)

    async def run_due(self, now_ms: int) -> int | None:
        """Raises where it cannot be read which agents are at work."""
        agents = await self._crossing.run(lambda: agents_at_work(self._programs.ledger))
        for agent in {*self._troubles, *self._awaited}.difference(agents):
            self._troubles.pop(agent, None)
            self._awaited.pop(agent, None)
        dues = await asyncio.gather(*map(self._go_on, agents))
        return min((due_ms for due_ms in dues if due_ms is not None), default=None)

    async def _go_on(self, agent: str) -> int | None:
        """Perform the moves of one agent until a turn is to be answered or nothing is due; when that is."""
        trouble = self._troubles.get(agent)
        if trouble is not None and self._clock.now_ms() < trouble.until_ms:
            return trouble.until_ms
        try:
            while True:
                due_ms = await self._move_agent(agent)
                self._troubles.pop(agent, None)
                if due_ms is not NOW:
                    return due_ms
        except AgentBusy:
            return self._clock.now_ms() + BUSY_MS
        except Exception as error:  # whatever it is, the other agents go on
            return await self._after_error(agent, error)

    async def _after_error(self, agent: str, error: Exception) -> int:
        """When the agent is looked at again. One whose moves fail again and again stands in an error, which a person
        sees; not so where the ledger cannot be read or written, which is no fault of the agent."""
        before = self._troubles.get(agent)
        failures = 1 if before is None else before.failures + 1
        is_final = failures >= MAX_FAILURES and not isinstance(error, StoreError)
        words = f"{type(error).__name__}: {error}"
        if is_final:
            try:
                fail = partial(self._programs.fail_agent, agent, str(error) or words, code=error_code(error))
                await self._crossing.run(fail)
            except IllegalTransition:  # it stands in an error already
                pass
            except WeftError as second:
                error, words = second, f"{type(second).__name__}: {second}"
        # somebody may just have moved the agent: that is told of where it does not go away
        is_reported = is_final or not isinstance(error, IllegalTransition | NotFound)
        if is_reported and self._on_error is not None and (before is None or words != before.words):
            self._on_error(f"the work of agent {await self._agent_name(agent)}", error)
        pause_ms = min(FIRST_PAUSE_MS << min(failures - 1, 16), LONGEST_PAUSE_MS)
        until_ms = self._clock.now_ms() + pause_ms
        self._troubles[agent] = AgentTrouble(failures, until_ms, words if is_reported else None)
        return until_ms

    async def _agent_name(self, agent: str) -> str:
        try:
            return (await self._crossing.run(partial(self._programs.get, agent))).name
        except WeftError:  # its id says which one it is
            return agent

    async def _move_agent(self, agent: str) -> int | None:
        if await self._is_awaited(agent):
            return None
        facts_and_move = await self._performer.next_move(agent, self._clock.now_ms())
        if facts_and_move is None:
            return None
        facts, move = facts_and_move
        if isinstance(move, AwaitAnswer) and facts.settings.checkpoint_every is None:
            self._awaited[agent] = (facts.assignment.n, move.message)
        if isinstance(move, Rest | AwaitAnswer | AwaitWorkers):
            return move.until_ms if isinstance(move, Rest) else None
        async with hold_agent(self._programs, self._crossing, facts.agent, facts.task.id) as lease:
            again = await self._performer.next_move(agent, self._clock.now_ms())
            if again is not None:
                await self._performer.perform(*again, lease)
        return NOW

    async def _is_awaited(self, agent: str) -> bool:
        """Whether a turn is still to be answered: while it runs there is much news, and nothing to do."""
        awaited = self._awaited.get(agent)
        if awaited is None:
            return False
        is_awaited = await self._crossing.run(lambda: self._is_under_way(agent, *awaited))
        if not is_awaited:
            del self._awaited[agent]
        return is_awaited

    def _is_under_way(self, agent: str, number: int, message: str) -> bool:
        assignment = load_assignment(self._programs.ledger, agent)
        if assignment is None or assignment.n != number or self._programs.get(assignment.task).state != "active":
            return False
        return self._runs.message_state(message)[0] in (InboxState.QUEUED, InboxState.TAKEN)


NOW = -1
"""Another move may be due at once."""
