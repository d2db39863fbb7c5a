"""The verbs of agents, tasks and sessions at work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.kernel.enums import ProgramKind
from weft.kernel.errors import AgentBusy, NotApplicable, quoted
from weft.ledger.api import Lease, LeaseKind, owner_of, patience_of, users_of_agent
from weft.ledger.arguments import checked_record
from weft.ledger.read.access import access_of
from weft.ledger.views.rows import ProgramRow
from weft.ledger.write.turn_events import end_lease, free_epoch, release, take
from weft.programs.assignments import load_assignment, withdraw_messages
from weft.programs.criteria import Observations, RunCommand, Workspace, judge
from weft.programs.foreign import ensure_own
from weft.programs.kinds import agent as agents
from weft.programs.kinds import session as sessions
from weft.programs.kinds import task as tasks
from weft.programs.lookups import checks_of, find, saved_state
from weft.programs.model import CriterionVerdict, Program, RecordedVerdict
from weft.programs.program_base import ProgramsBase, renewed
from weft.programs.program_writer import ProgramWriter
from weft.programs.vouching import ensure_vouched

RUN = "run"
"""The purpose of an agent's lease that is not for a task."""
AGENT, TASK = ProgramKind.AGENT, ProgramKind.TASK


class WorkVerbs(ProgramsBase):
    """What is done with agents, tasks and sessions while they work."""

    def assign(self, agent: str, task: str, *, session: str | None = None, key: str | None = None) -> Program:
        """An idle agent gets a task, and a session for it: its own of this label, made if there is none, else a new
        one. Where a broker runs, it begins with the work. Returns the agent."""

        def work(writer: ProgramWriter) -> Any:
            return agents.assign(writer, writer.require(agent, AGENT), writer.require(task, TASK), session)

        request = (agent, task) if session is None else (agent, task, session)
        return self._change("assign", work, key, *request)

    def give_up(self, agent: str, message: str, *, code: str) -> Program:
        """The agent's task fails, and the agent stands in an error that says why. Returns the agent."""
        return self._change("give_up", lambda c: agents.give_up(c, c.require(agent, AGENT), message, code), None)

    def stop_work(self, agent: str, *, reason: str, key: str | None = None) -> Program:
        """The agent's task fails where it is not over, and the agent is idle, whoever runs it. Messages of the work
        that wait are taken back, and its turn is cut short. Returns the agent."""
        assignment = load_assignment(self.ledger, self.get(agent, AGENT).id)

        def work(writer: ProgramWriter) -> Any:
            row = agents.stop(writer, writer.require(agent, AGENT), reason)
            if self._hold is None:
                end_lease(writer.append, LeaseKind.AGENT, row.id)
            return row

        stopped = self._change("stop_work", work, key, agent, reason)
        if assignment is not None:
            withdraw_messages(self.ledger, assignment, reason)
        return stopped

    def assign_task(self, task: str, assignee: str | None, *, key: str | None = None) -> Program:
        """A task becomes an agent's or a person's, without anybody beginning it. Returns the task."""

        def work(writer: ProgramWriter) -> Any:
            whom = None if assignee is None else writer.require(assignee, *tasks.ASSIGNEES)
            return tasks.assign(writer, writer.require(task, TASK), whom)

        return self._change("assign_task", work, key, task, assignee)

    def share_agent(self, agent: str, principal: str, *, key: str | None = None) -> Program:
        """A private agent works for one more person or agent, by its creator's word. Returns the agent."""

        def work(writer: ProgramWriter) -> Any:
            return agents.share(writer, writer.require(agent, AGENT), writer.require(principal, *tasks.ASSIGNEES))

        return self._change("share_agent", work, key, agent, principal)

    def unshare_agent(self, agent: str, principal: str, *, key: str | None = None) -> Program:
        """A private agent works for that person or agent no longer. Returns the agent."""

        def work(writer: ProgramWriter) -> Any:
            return agents.unshare(writer, writer.require(agent, AGENT), writer.require(principal, *tasks.ASSIGNEES))

        return self._change("unshare_agent", work, key, agent, principal)

    def step_agent(self, agent: str, verb: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """think, execute, wait, pause, resume, complete or reset, as its state allows. Who resets an agent that another
        one runs takes it from them."""

        def work(writer: ProgramWriter) -> Any:
            row = agents.step(writer, writer.require(agent, AGENT), verb, reason)
            if verb == "reset" and self._hold is None:
                end_lease(writer.append, LeaseKind.AGENT, row.id)
            return row

        return self._change("step_agent", work, key, agent, verb, reason)

    def hold_agent(self, agent: str, *, task: str | None = None) -> Lease:
        """Take the agent's lease, for a task or in general: what is done with `acting_as(…, hold)` is done while it
        lasts, or not at all. Each such step renews it; AgentBusy where somebody else holds it."""
        program, patience, leases = self.get(agent, AGENT), patience_of(self.ledger), list[Lease]()
        purpose = RUN if task is None else self.get(task, TASK).id

        def work(writer: ProgramWriter) -> str:
            writer.ensure_allowed(AGENT)
            writer.permit_agent("assign", f"run the agent {program.name!r}", writer.require(program.id, AGENT))
            epoch = free_epoch(
                writer.append,
                LeaseKind.AGENT,
                program.id,
                patience,
                lambda lease: AgentBusy(program.name, f"is at work (held by {lease.owner})"),
            )
            lease = take(writer.append, LeaseKind.AGENT, program.id, epoch, owner_of(self.ledger), purpose)
            self._writer.hold(lease)
            leases.append(lease)
            return program.id

        self._perform("hold_agent", work, None)
        return leases[-1]

    def renew_agent(self, hold: Lease) -> None:
        """Say that its holder is alive, while something takes its time."""

        def work(writer: ProgramWriter) -> str:
            writer.ensure_allowed(AGENT)
            return renewed(writer, checked_record(hold, Lease, "hold"))

        self._perform("renew_agent", work, None)

    def release_agent(self, hold: Lease) -> None:
        """Let it go, where it is still held."""

        def work(writer: ProgramWriter) -> str:
            writer.ensure_allowed(AGENT)
            program = renewed(writer, checked_record(hold, Lease, "hold"))
            release(writer.append, hold)
            return program

        self._perform("release_agent", work, None)
        self._writer.let_go(hold)

    def fail_agent(
        self, agent: str, message: str, *, code: str = "failed", details: Any = None, key: str | None = None
    ) -> Program:
        return self._change(
            "fail_agent",
            lambda c: agents.fail(c, c.require(agent, AGENT), message, code, details),
            key, agent, message, code, details,
        )  # fmt: skip

    def save_checkpoint(self, agent: str, state: Any, *, key: str | None = None) -> Program:
        """What an agent needs to go on from here."""
        return self._change(
            "save_checkpoint", lambda c: agents.checkpoint(c, c.require(agent, AGENT), state), key, agent, state
        )

    def load_checkpoint(self, agent: str) -> Any:
        """What was saved last; None where nothing was. It tells of a session: it is for the agent itself, and for
        whoever may give it tasks."""
        with self._reading() as txn:
            row = find(txn, agent, (AGENT,))
            own = users_of_agent(txn, row) if isinstance(row, ProgramRow) else (row.id,)
            if not access_of(txn).permits("assign", own):
                raise self.ledger.authority.refusal("assign", f"read what {agent!r} saved")
            return saved_state(txn, row) if isinstance(row, ProgramRow) else None

    def start_task(self, task: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """Work begins; while something it waits for is not done, it is blocked."""
        return self._change("start_task", lambda c: tasks.start(c, c.require(task, TASK), reason), key, task, reason)

    def check_task(self, task: str, seen: Observations) -> list[CriterionVerdict]:
        """Its success criteria held against what is there. Nothing is recorded."""
        config = ensure_vouched(self.get(task, TASK)).config
        return judge(tasks.criteria_of(config if isinstance(config, dict) else {}), seen)

    def complete_task(
        self,
        task: str,
        *,
        answer: str | None = None,
        workspace: str | Path | None = None,
        run: RunCommand | None = None,
        seen: Observations | None = None,
        agent: str | None = None,
        turn: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Done, if every success criterion holds; else CriteriaUnmet. What was observed is recorded either way. `agent`
        has worked on it, and is idle with the end of the task. `turn`, by its id, gave the answer."""
        program = self.get(task, TASK)
        ensure_own(program)
        judged = None if turn is None else self.ledger.turn(turn).id
        is_over = program.state == "completed"  # a retry, or a step that is refused: there is nothing to check
        if not is_over:  # before a command of its criteria runs for somebody who may not complete it
            self._change("complete_task", lambda writer: tasks.to_complete(writer, program.id), None)
        verdicts = [] if is_over else self.check_task(program.id, seen or _workspace(program, answer, workspace, run))
        met = all(verdict.passed for verdict in verdicts)

        def work(writer: ProgramWriter) -> Any:
            row = tasks.to_complete(writer, program.id)
            writer.ensure_version(row.name, program.version, writer.version_of(row))
            row = tasks.record_verdicts(writer, row, verdicts, judged)
            if met:
                row = tasks.complete(writer, row, answer)
            if met and agent is not None:
                agents.step(writer, writer.require(agent, AGENT), "complete", None)
            return row

        checked = self._change("complete_task", work, key if met else None, task, answer)
        if not met:
            raise tasks.refusal(checked.name, verdicts)
        return checked

    def fail_task(self, task: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change("fail_task", lambda c: tasks.fail(c, c.require(task, TASK), reason), key, task, reason)

    def checks(self, task: str) -> list[RecordedVerdict]:
        """Every verdict on its criteria that was recorded, the oldest first."""
        with self._reading() as txn:
            row = find(txn, task, (TASK,))
            return checks_of(txn, row) if isinstance(row, ProgramRow) else []

    def step_session(self, session: str, verb: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """pause, resume or complete, as its lifecycle allows."""
        if verb not in sessions.VERBS:
            raise NotApplicable(f"a session cannot {quoted(verb)}", f"it can {', '.join(sessions.VERBS)}")
        return self._change(
            "step_session",
            lambda c: sessions.step(c, c.require_session(session), verb, reason),
            key, session, verb, reason,
        )  # fmt: skip


def _workspace(task: Program, answer: str | None, folder: str | Path | None, run: RunCommand | None) -> Workspace:
    own = task.config.get("workspace") if isinstance(task.config, dict) else None
    place = folder if folder is not None else own
    return Workspace(None if place is None else Path(place), answer, run)
