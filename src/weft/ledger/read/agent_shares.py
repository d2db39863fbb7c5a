"""For whom a private agent works: whoever created it, and those it was shared with.

A program is private where the configuration that counts here says `visibility: private`; one that only other ledgers
configured is private where the newest of these says so. Who created a program is the actor of the event that did, with
those on whose behalf it was done; the field `createdBy` decides nothing. Only events count that were written or taken
over here.
"""

from __future__ import annotations

from weft.ledger.read.session_owners import counted_config
from weft.ledger.read.system_agents import system_kind_of
from weft.ledger.views.program_rows import ProgramRow
from weft.ledger.views.values import json_of
from weft.store.authorship import authored_event
from weft.store.port import ReadTxn

SHARED, UNSHARED = "agent_shared", "agent_unshared"


def is_private(txn: ReadTxn, program: ProgramRow) -> bool:
    """Of an erased configuration nobody can tell: it is private. A system agent never is."""
    if program.config is None or system_kind_of(txn, program) is not None:
        return False
    config = counted_config(txn, program.id)
    if config is None:
        config = json_of(txn, program.config)
    return not isinstance(config, dict) or config.get("visibility") == "private"


def creators_of(txn: ReadTxn, program: ProgramRow) -> frozenset[str]:
    """The ids of whoever created a program, and on whose behalf."""
    first = txn.sql.one("SELECT min(n) FROM program_history WHERE program = ?", (program.id,))
    event = None if first is None or first[0] is None else authored_event(txn, first[0])
    if event is None:  # it is being written right now
        return frozenset((program.created_by,))
    return frozenset((program.created_by, *(event.fields.get("on_behalf_of") or ()))) if event.counts else frozenset()


def is_being_created(txn: ReadTxn, program: ProgramRow) -> bool:
    """Whether the event that creates a program is being written right now."""
    first = txn.sql.one("SELECT min(n) FROM program_history WHERE program = ?", (program.id,))
    return first is None or first[0] is None or authored_event(txn, first[0]) is None


def shared_with(txn: ReadTxn, agent: str) -> tuple[str, ...]:
    """The ids of those that an agent was shared with, in that order. What another ledger shared or unshared does not
    count, so the events are read and not the view, which has the newest of all."""
    rows = txn.sql.all(
        "SELECT n FROM program_history WHERE program = ? AND kind IN (?, ?) ORDER BY n", (agent, SHARED, UNSHARED)
    )
    principals: dict[str, None] = {}
    for (n,) in rows:
        event = authored_event(txn, n)
        if event is None or not event.counts:
            continue
        principals.pop(event.fields["principal"], None)
        if event.fields["kind"] == SHARED:
            principals[event.fields["principal"]] = None
    return tuple(principals)


def users_of_agent(txn: ReadTxn, agent: ProgramRow) -> frozenset[str]:
    """The ids of those for whom an agent works though it is private: itself, its creators, those it was shared with."""
    return frozenset((agent.id, *creators_of(txn, agent), *shared_with(txn, agent.id)))
