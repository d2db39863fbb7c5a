"""The programs of a ledger: every verb on what acts or is acted with. Thread-safe.

Verbs that all kinds have (create, configure, publish, delete, revert, history), and those of
information, people and tags, of agents, tasks and sessions at work, and of triggers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType

from weft.kernel.authority import Authority
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import Action, AgentBusy, InvalidInput, NotApplicable, NotFound, quoted
from weft.ledger.api import (
    Firing,
    Lease,
    LeaseKind,
    MissedTimes,
    listed_firings,
    listed_gaps,
    owner_of,
    patience_of,
    users_of_agent,
)
from weft.ledger.arguments import checked_count, checked_flag, checked_list, checked_names, checked_record, checked_text
from weft.ledger.read.access import access_of
from weft.ledger.views.rows import ProgramRow, SessionRow, find_program, load_request
from weft.ledger.write.turn_events import end_lease, free_epoch, release, take
from weft.programs import kind_table, program_changes, tasks, triggers
from weft.programs.kind_table import checked_kind, kind_of_row
from weft.programs.lookups import (
    InformationQuery,
    ProgramsBase,
    add_tags,
    checks_of,
    find,
    find_information,
    find_node,
    history,
    list_programs,
    may_read_request,
    nodes_with,
    remove_tags,
    renewed,
    requests,
    saved_state,
    tags_of,
    to_program,
    to_request,
)
from weft.programs.pending_verbs import PendingVerbs
from weft.programs.program_changes import PlannedProgram, WantedProgram, apply_programs
from weft.programs.program_kinds import deprecate_program, publish_program
from weft.programs.program_records import (
    CriterionVerdict,
    Difference,
    PersonRequest,
    Program,
    ProgramChange,
    RecordedVerdict,
    TaggedNode,
    checked_name,
    differences,
    merged,
)
from weft.programs.program_writer import ProgramWriter, ensure_own, ensure_vouched, find_program_or_session, name_in
from weft.programs.tasks import (
    CriterionObservations,
    RunCommand,
    WorkspaceObservations,
    judge_criterion,
    load_assignment,
    withdraw_messages,
)

# --- The verbs that all kinds of program have: create, configure, publish, delete, revert, and read the history.


class ProgramVerbs(ProgramsBase):
    """What all kinds of program have in common."""

    def create(
        self,
        kind: str,
        name: str,
        config: dict[str, Any],
        *,
        draft: bool = False,
        tagged: Sequence[str] = (),
        key: str | None = None,
    ) -> Program:
        """A new program, in use unless it is to stay a draft. Sent again with the same key it is made once."""
        kind_row = checked_kind(kind)
        checked_flag(draft, "draft")

        def work(writer: ProgramWriter) -> Any:
            row = program_changes.create_program(writer, kind_row, name, config, draft=draft)
            if tagged:
                add_tags(writer, row.id, tagged)
            return row

        return self._change("create", work, key, kind, name, config, draft, list(tagged))

    def ensure(self, kind: str, name: str, config: dict[str, Any], *, key: str | None = None) -> Program:
        """A program as it is said here: made where none has the name, configured where it is otherwise. Nothing is
        recorded where it is so already."""
        kind_row = checked_kind(kind)

        def work(writer: ProgramWriter) -> Any:
            row = find_program(writer.sql, checked_name(name))
            if row is None or row.deleted or row.kind != kind_row.name or row.version == 0:
                return program_changes.create_program(writer, kind_row, name, config)
            return program_changes.configure_program(writer, writer.require(row.id), config, given=config)

        return self._change("ensure", work, key, kind, name, config)

    def create_session(
        self,
        label: str | None = None,
        *,
        model: str | None = None,
        owner: str | None = None,
        config: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> Program:
        """A session of the ledger, with a model of its own; without a label it gets one."""
        if owner is not None:
            checked_text(owner, "owner")
        settings = {} if config is None else _checked_settings(config, "config")
        whole = {**settings, **({} if model is None else {"defaultModel": model})}

        def work(writer: ProgramWriter) -> Any:
            return kind_table.create_configured_session(writer, label, owner, whole)

        persona = owner or self.ledger.authority.principal.id
        return self._change("create_session", work, key, label, persona, whole)

    def all(self, kind: str | None = None, *, states: Sequence[str] = (), deleted: bool = False) -> list[Program]:
        """Living programs by kind and name, sessions last; with `deleted` also those that are hidden."""
        wanted = None if kind is None else checked_kind(kind)
        with self._reading() as txn:
            return list_programs(txn, wanted, checked_names(states, "state"), deleted=deleted)

    def configure(
        self,
        name: str,
        config: dict[str, Any],
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Another configuration, whole; with `expected` only if it is still at this version, else VersionConflict."""
        return self._reconfigure("configure", name, config, expected, reason, key)

    def change(
        self,
        name: str,
        changes: dict[str, Any],
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Some fields of its configuration; None takes one away, objects are changed field by field.
        A provider that moves to another server leaves its keys behind, unless they are given anew."""
        return self._reconfigure("change", name, _checked_settings(changes, "changes"), expected, reason, key)

    def _reconfigure(
        self, verb: str, name: str, given: Any, expected: int | None, reason: str | None, key: str | None
    ) -> Program:
        """A configuration, or with `change` the changes of one."""

        def config_for(writer: ProgramWriter, row: ProgramRow | SessionRow) -> Any:
            if verb == "configure":
                return given
            if isinstance(row, ProgramRow):
                writer.ensure_own(row)
            before = writer.config_of(row)
            return kind_of_row(row).changed(before, merged(before, given), given)

        def work(writer: ProgramWriter) -> Any:
            session_row = self._session_of_name(writer, name)
            if session_row is not None:
                config = config_for(writer, session_row)
                return kind_table.configure_session(writer, session_row, config, expected, given=given)
            row = writer.require(name)
            config = config_for(writer, row)
            return program_changes.configure_program(writer, row, config, expected=expected, reason=reason, given=given)

        return self._change(verb, work, key, name, given, expected, reason)

    def _session_of_name(self, writer: ProgramWriter, name: str) -> SessionRow | None:
        """A session, where no program has this name."""
        row = find_program_or_session(writer.append, name_in(writer.append, name))
        return writer.require_session(row.id) if isinstance(row, SessionRow) else None

    def publish(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change("publish", lambda c: publish_program(c, c.require(name), reason), key, name, reason)

    def deprecate(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change("deprecate", lambda c: deprecate_program(c, c.require(name), reason), key, name, reason)

    def delete(
        self, name: str, *, expected: int | None = None, reason: str | None = None, key: str | None = None
    ) -> Program:
        """Hidden and deprecated; its name is free, its history stays. A session is deleted as one."""

        def work(writer: ProgramWriter) -> Any:
            session_row = self._session_of_name(writer, name)
            if session_row is not None:
                return kind_table.delete_session(writer, session_row, expected=expected, reason=reason)
            return program_changes.delete_program(writer, writer.require(name), expected=expected, reason=reason)

        return self._change("delete", work, key, name, expected, reason)

    def revert(
        self,
        name: str,
        version: int,
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """The configuration of an earlier version again; the versions between stay in its history."""
        wanted = checked_count(version, "version")

        def work(writer: ProgramWriter) -> Any:
            if self._session_of_name(writer, name) is not None:
                raise InvalidInput("a session's configuration is not reverted", "configure it anew")
            return program_changes.revert_program(
                writer, writer.require(name), wanted, expected=expected, reason=reason
            )

        return self._change("revert", work, key, name, version, expected, reason)

    def history(self, name: str) -> list[ProgramChange]:
        """Everything that happened to it, newest first."""
        with self._reading() as txn:
            return history(txn, find(txn, name))

    def diff(self, name: str, before: int | None = None, after: int | None = None) -> list[Difference]:
        """Where two versions of its configuration differ: by default the last two."""
        with self._reading() as txn:
            row = find(txn, name)
            new = to_program(txn, row).version if after is None else checked_count(after, "version")
            old = new - 1 if before is None else checked_count(before, "version")
            configs = [{} if number == 0 else to_program(txn, row, number).config for number in (old, new)]
        return list(differences(*configs))


def _checked_settings(settings: Any, what: str) -> dict[str, Any]:
    if not isinstance(settings, Mapping):
        raise InvalidInput(f"{what} is {quoted(settings)}", "give a dict of settings")
    return dict(settings)


# --- The verbs of information, of people, and of tags.

INFORMATION, HUMAN = ProgramKind.INFORMATION, ProgramKind.HUMAN
STATUSES = ("told", "pending", "approved", "rejected")


class InformationVerbs(ProgramsBase):
    """What is known, who is told of it, and what things are tagged with."""

    def validate(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """A draft that fits its schema; else SchemaMismatch, and it stays a draft."""
        return self._change(
            "validate",
            lambda c: kind_table.validate_information(c, c.require(name, INFORMATION), reason),
            key,
            name,
            reason,
        )

    def activate(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change(
            "activate",
            lambda c: kind_table.activate_information(c, c.require(name, INFORMATION), reason),
            key,
            name,
            reason,
        )

    def archive(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change(
            "archive",
            lambda c: kind_table.archive_information(c, c.require(name, INFORMATION), reason),
            key,
            name,
            reason,
        )

    def query(
        self,
        text: str | None = None,
        *,
        info_type: str | None = None,
        tagged: Sequence[str] = (),
        path: str | None = None,
        equals: Any | UnsetType = UNSET,
        archived: bool = False,
    ) -> list[Program]:
        """Information by its words, type, tags and what stands at a path of its content; all of them must hold."""
        query = InformationQuery(
            text=text, info_type=info_type, tags=tagged, path=path, equals=equals, archived=archived
        )
        with self._reading() as txn:
            return find_information(txn, query)

    def set_presence(self, human: str, presence: str, *, key: str | None = None) -> Program:
        return self._change(
            "set_presence", lambda c: kind_table.presence(c, c.require(human, HUMAN), presence), key, human, presence
        )

    def notify(
        self,
        human: str,
        text: str,
        *,
        asks: bool = False,
        program: str | None = None,
        data: Any = None,
        key: str | None = None,
    ) -> PersonRequest:
        """What a person is to be told, or with `asks` to decide. It is kept; reaching them is somebody else's work."""

        def work(writer: ProgramWriter) -> str:
            return kind_table.notify_human(
                writer, writer.require(human, HUMAN), text, asks=asks, program=program, data=data
            )

        return self.request(self._perform("notify", work, key, human, text, asks, program, data))

    def approve(self, request: str, *, reason: str | None = None, key: str | None = None) -> PersonRequest:
        """Yes, by the person who was asked and who has the permission to approve."""
        self.ledger.trust.ensure("take an approval")
        return self.request(
            self._perform(
                "approve", lambda c: kind_table.answer_request(c, request, True, reason), key, request, reason
            )
        )

    def reject(self, request: str, *, reason: str | None = None, key: str | None = None) -> PersonRequest:
        self.ledger.trust.ensure("take an answer")
        return self.request(
            self._perform(
                "reject", lambda c: kind_table.answer_request(c, request, False, reason), key, request, reason
            )
        )

    def request(self, request: str) -> PersonRequest:
        with self._reading() as txn:
            row = load_request(txn.sql, checked_text(request, "request"))
            if row is None or not may_read_request(txn, row):
                raise NotFound("request", request, Action.LIST_REQUESTS)
            return to_request(txn, row)

    def requests(self, human: str | None = None, *, status: str | None = None) -> list[PersonRequest]:
        """What people were told and asked, the oldest first."""
        if status is not None and status not in STATUSES:
            raise InvalidInput(f"status is {quoted(status)}", f"one of {', '.join(STATUSES)}")
        with self._reading() as txn:
            row = None if human is None else find(txn, human, (HUMAN,))
            return requests(txn, row if isinstance(row, ProgramRow) else None, status)

    def add_tags(self, node: str, *given: str, key: str | None = None) -> list[str]:
        """Tags on anything that has an id; all that it has then."""
        return self.tags(self._perform("add_tags", lambda c: add_tags(c, node, given), key, node, list(given)))

    def remove_tags(self, node: str, *given: str, key: str | None = None) -> list[str]:
        return self.tags(self._perform("remove_tags", lambda c: remove_tags(c, node, given), key, node, list(given)))

    def tags(self, node: str) -> list[str]:
        with self._reading() as txn:
            return tags_of(txn.sql, find_node(txn, node))

    def tagged(self, *given: str) -> list[TaggedNode]:
        """Everything that has all of these tags."""
        with self._reading() as txn:
            return nodes_with(txn, given)


# --- The verbs of agents, tasks and sessions at work.

RUN = "run"
"""The purpose of an agent's lease that is not for a task."""
AGENT, TASK = ProgramKind.AGENT, ProgramKind.TASK


class WorkVerbs(ProgramsBase):
    """What is done with agents, tasks and sessions while they work."""

    def assign(self, agent: str, task: str, *, session: str | None = None, key: str | None = None) -> Program:
        """An idle agent gets a task, and a session for it: its own of this label, made if there is none, else a new
        one. Where a broker runs, it begins with the work. Returns the agent."""

        def work(writer: ProgramWriter) -> Any:
            return kind_table.assign_agent(writer, writer.require(agent, AGENT), writer.require(task, TASK), session)

        request = (agent, task) if session is None else (agent, task, session)
        return self._change("assign", work, key, *request)

    def give_up(self, agent: str, message: str, *, code: str) -> Program:
        """The agent's task fails, and the agent stands in an error that says why. Returns the agent."""
        return self._change(
            "give_up", lambda c: kind_table.give_up_agent(c, c.require(agent, AGENT), message, code), None
        )

    def stop_work(self, agent: str, *, reason: str, key: str | None = None) -> Program:
        """The agent's task fails where it is not over, and the agent is idle, whoever runs it. Messages of the work
        that wait are taken back, and its turn is cut short. Returns the agent."""
        assignment = load_assignment(self.ledger, self.get(agent, AGENT).id)

        def work(writer: ProgramWriter) -> Any:
            row = kind_table.stop_agent(writer, writer.require(agent, AGENT), reason)
            if self._hold is None:
                end_lease(writer.append, LeaseKind.AGENT, row.id)
            return row

        stopped = self._change("stop_work", work, key, agent, reason)
        if assignment is None:
            return stopped
        withdraw_messages(self.ledger, assignment, reason)
        return self.get(stopped.id)

    def assign_task(self, task: str, assignee: str | None, *, key: str | None = None) -> Program:
        """A task becomes an agent's or a person's, without anybody beginning it. Returns the task."""

        def work(writer: ProgramWriter) -> Any:
            whom = None if assignee is None else writer.require(assignee, *tasks.ASSIGNEES)
            return tasks.assign_task(writer, writer.require(task, TASK), whom)

        return self._change("assign_task", work, key, task, assignee)

    def share_agent(self, agent: str, principal: str, *, key: str | None = None) -> Program:
        """A private agent works for one more person or agent, by its creator's word. Returns the agent."""

        def work(writer: ProgramWriter) -> Any:
            return kind_table.share_agent(
                writer, writer.require(agent, AGENT), writer.require(principal, *tasks.ASSIGNEES)
            )

        return self._change("share_agent", work, key, agent, principal)

    def unshare_agent(self, agent: str, principal: str, *, key: str | None = None) -> Program:
        """A private agent works for that person or agent no longer. Returns the agent."""

        def work(writer: ProgramWriter) -> Any:
            return kind_table.unshare_agent(
                writer, writer.require(agent, AGENT), writer.require(principal, *tasks.ASSIGNEES)
            )

        return self._change("unshare_agent", work, key, agent, principal)

    def step_agent(self, agent: str, verb: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """think, execute, wait, pause, resume, complete or reset, as its state allows. Who resets an agent that another
        one runs takes it from them."""

        def work(writer: ProgramWriter) -> Any:
            row = kind_table.step_agent(writer, writer.require(agent, AGENT), verb, reason)
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
            lambda c: kind_table.fail_agent(c, c.require(agent, AGENT), message, code, details),
            key, agent, message, code, details,
        )  # fmt: skip

    def save_checkpoint(self, agent: str, state: Any, *, key: str | None = None) -> Program:
        """What an agent needs to go on from here."""
        return self._change(
            "save_checkpoint",
            lambda c: kind_table.checkpoint_agent(c, c.require(agent, AGENT), state),
            key,
            agent,
            state,
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
        return self._change(
            "start_task", lambda c: tasks.start_task(c, c.require(task, TASK), reason), key, task, reason
        )

    def check_task(self, task: str, seen: CriterionObservations) -> list[CriterionVerdict]:
        """Its success criteria held against what is there. Nothing is recorded."""
        config = ensure_vouched(self.get(task, TASK)).config
        return judge_criterion(tasks.criteria_of(config if isinstance(config, dict) else {}), seen)

    def complete_task(
        self,
        task: str,
        *,
        answer: str | None = None,
        workspace: str | Path | None = None,
        run: RunCommand | None = None,
        seen: CriterionObservations | None = None,
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
        verdicts = (
            [] if is_over else self.check_task(program.id, seen or _task_workspace(program, answer, workspace, run))
        )
        met = all(verdict.passed for verdict in verdicts)

        def work(writer: ProgramWriter) -> Any:
            row = tasks.to_complete(writer, program.id)
            writer.ensure_version(row.name, program.version, writer.version_of(row))
            row = tasks.record_verdicts(writer, row, verdicts, judged)
            if met:
                row = tasks.complete_task(writer, row, answer)
            if met and agent is not None:
                kind_table.step_agent(writer, writer.require(agent, AGENT), "complete", None)
            return row

        checked = self._change("complete_task", work, key if met else None, task, answer)
        if not met:
            raise tasks.task_refusal(checked.name, verdicts)
        return checked

    def fail_task(self, task: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change("fail_task", lambda c: tasks.fail_task(c, c.require(task, TASK), reason), key, task, reason)

    def checks(self, task: str) -> list[RecordedVerdict]:
        """Every verdict on its criteria that was recorded, the oldest first."""
        with self._reading() as txn:
            row = find(txn, task, (TASK,))
            return checks_of(txn, row) if isinstance(row, ProgramRow) else []

    def step_session(self, session: str, verb: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """pause, resume or complete, as its lifecycle allows."""
        if verb not in kind_table.SESSION_VERBS:
            raise NotApplicable(f"a session cannot {quoted(verb)}", f"it can {', '.join(kind_table.SESSION_VERBS)}")
        return self._change(
            "step_session",
            lambda c: kind_table.step_session(c, c.require_session(session), verb, reason),
            key, session, verb, reason,
        )  # fmt: skip


def _task_workspace(
    task: Program, answer: str | None, folder: str | Path | None, run: RunCommand | None
) -> WorkspaceObservations:
    own = task.config.get("workspace") if isinstance(task.config, dict) else None
    place = folder if folder is not None else own
    return WorkspaceObservations(None if place is None else Path(place), answer, run)


# --- The verbs of triggers: paused and resumed, and what they did.


class TriggerVerbs(ProgramsBase):
    """What is done with triggers, and what they did."""

    def step_trigger(self, trigger: str, verb: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """pause or resume. What sets a paused trigger off is passed over."""
        return self._change(
            "step_trigger",
            lambda writer: triggers.step_trigger(writer, writer.require(trigger, ProgramKind.TRIGGER), verb, reason),
            key,
            trigger,
            verb,
            reason,
        )

    def trigger_firings(self, trigger: str, *, limit: int = 20) -> list[Firing]:
        """For what a trigger fired here, the newest first, with what became of its messages."""
        most = checked_count(limit, "limit")
        with self._reading() as txn:
            return listed_firings(txn, find(txn, trigger, [ProgramKind.TRIGGER]).id, most)

    def missed_times(self, trigger: str, *, limit: int = 20) -> list[MissedTimes]:
        """Times of its schedule at which a trigger did not fire here, the newest first."""
        most = checked_count(limit, "limit")
        with self._reading() as txn:
            return listed_gaps(txn, find(txn, trigger, [ProgramKind.TRIGGER]).id, most)


# --- The programs of a ledger: every verb on what acts or is acted with.


class Programs(ProgramVerbs, WorkVerbs, InformationVerbs, TriggerVerbs, PendingVerbs):
    """Programs of one open ledger, changed in the name that the ledger acts in."""

    def acting_as(self, who: Authority | str, hold: Lease | None = None) -> Programs:
        """The same programs, changed in the name of somebody else: an authority, or the name of an agent or a person;
        with a hold of an agent, only while it lasts."""
        return Programs(self.ledger.acting_as(who), hold)

    def apply(
        self, wanted: Sequence[WantedProgram], *, prune: bool = False, dry_run: bool = False, key: str | None = None
    ) -> list[PlannedProgram]:
        """Many programs as files describe them (`weft.programs.program_changes`), in one append; what was done, or
        would be."""
        programs = [checked_record(program, WantedProgram, "wanted") for program in checked_list(wanted, "wanted")]
        return apply_programs(self._writer, programs, prune=prune, dry_run=dry_run, key=key)
