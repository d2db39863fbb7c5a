"""Which agents have a task, since when, by whose word, and who may run them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from weft.kernel.authority import Authority, Principal, PrincipalKind
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import NotApplicable, WeftError
from weft.ledger.api import Ledger, store_of, users_of_agent
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.access import access_of
from weft.ledger.views.rows import ProgramRow, load_program
from weft.store.port import ReadTxn
from weft.store.replicas import authored_event

WORK_FIELD = "work"
TASK_FIELD = "task"
"""The fields of a message's metadata that say what it is for in the work, and in that on which task."""
MOST_MESSAGES = 10_000


class Assignment(Struct, frozen=True, kw_only=True):
    """An agent got a task. `task` and `session` are ids; `n` is the arrival number of the event that says so."""

    n: int
    at: int
    task: str
    session: str
    by: tuple[str, ...]
    """The ids of those in whose name it got it, whoever acted first."""


def load_assignment(ledger: Ledger, agent: str) -> Assignment | None:
    """The present one of an agent, by its id; None where there is none, or where another ledger says so and nobody here
    took it over. It is for whoever goes on with the work: it asks for no right."""
    with store_of(ledger).read() as txn:
        row = load_program(txn.sql, agent)
        return None if row is None or row.task is None or row.session is None else _counted(txn, row)


def withdraw_messages(ledger: Ledger, assignment: Assignment, reason: str) -> None:
    """Take back the messages of an agent's work that wait, and have its turn cut short. What others have sent to the
    session stays, and so does a turn that answers it."""
    inbox, is_answered = ledger.inbox, False
    messages = inbox.list(session=assignment.session, limit=MOST_MESSAGES, after=assignment.n)
    for message in messages:
        if isinstance(message.metadata, dict) and message.metadata.get(TASK_FIELD) == assignment.task:
            try:
                inbox.cancel(message.id, reason=reason)
            except NotApplicable:  # a turn has taken it
                is_answered = True
    if is_answered:
        with suppress(NotApplicable):  # it has just ended
            inbox.interrupt(assignment.session)


def may_run(ledger: Ledger, senders: Sequence[str], agent: str) -> bool:
    """Whether those in whose name something was sent, whoever acted first, may all run an agent, by its id."""
    try:
        acting = ledger.acting_as(chain_of(senders))
    except WeftError:  # one of them is not there any more
        return False
    with store_of(acting).read() as txn:
        row = load_program(txn.sql, agent)
        return row is not None and access_of(txn).permits("assign", users_of_agent(txn, row))


def chain_of(senders: Sequence[str]) -> Authority:
    """The rights that all of these have, by their ids; whoever acted first."""
    return Authority(tuple(Principal(_principal_kind(name), name) for name in reversed(senders)))


def _principal_kind(name: str) -> PrincipalKind:
    return PrincipalKind.HUMAN if name == DEFAULT_AGENT else PrincipalKind.PROGRAM


def _counted(txn: ReadTxn, agent: ProgramRow) -> Assignment | None:
    entry = txn.sql.one(
        "SELECT n, at FROM program_history WHERE program = ? AND kind = 'agent_task_assigned' ORDER BY n DESC LIMIT 1",
        (agent.id,),
    )
    event = None if entry is None else authored_event(txn, entry[0])
    if entry is None or event is None or not event.counts:
        return None
    by = (event.fields["actor"], *(event.fields.get("on_behalf_of") or ()))
    return Assignment(n=entry[0], at=entry[1], task=str(agent.task), session=str(agent.session), by=by)


def agents_at_work(ledger: Ledger) -> list[str]:
    """The ids of the agents that have a task."""
    with store_of(ledger).read() as txn:
        rows = txn.sql.all(
            "SELECT id FROM program WHERE kind = ? AND deleted = 0 AND task IS NOT NULL ORDER BY updated_at, id",
            (ProgramKind.AGENT.value,),
        )
        return [str(id) for (id,) in rows]
