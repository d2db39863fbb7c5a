"""Who owns a session, and the prompt that its next request begins with.

A session belongs to the persona it was made for, until a configuration names another owner. Only a configuration counts
that was written or taken over here. The owner's rights over the session follow it.
"""

from __future__ import annotations

from typing import Any

from weft.ledger.model import PROMPT_SEQUENCE, Message, TextPart
from weft.ledger.views.program_rows import load_program
from weft.ledger.views.rows import SessionRow
from weft.ledger.views.values import json_of
from weft.store.authorship import authored_event, counts
from weft.store.port import ReadTxn


def counted_config(txn: ReadTxn, program: str) -> Any:
    """The newest configuration that was written or taken over here; None where there is none."""
    return next((json_of(txn, config) for n, config in _configurations(txn, program) if counts(txn, n)), None)


def session_owner(txn: ReadTxn, session: SessionRow) -> str:
    """The id of the agent or person that a session belongs to."""
    if session.config is None:
        return session.persona
    for n, _ in _configurations(txn, session.id):
        event = authored_event(txn, n)
        if event is not None and event.counts:
            references = event.fields.get("references") or ()
            owners = [one["program"] for one in references if one.get("field") == "owner"]
            return str(owners[0]) if owners else session.persona
    return session.persona


def prompt_of(txn: ReadTxn, session: SessionRow) -> Message | None:
    """The soul of the agent that owns a session, as the system message that its next request begins with."""
    owner = session_owner(txn, session)
    agent = load_program(txn.sql, owner)
    if agent is None or agent.kind != "agent" or agent.deleted:
        return None
    config = counted_config(txn, owner)
    identity = config.get("identity") if isinstance(config, dict) else None
    soul = identity.get("soul") if isinstance(identity, dict) else None
    if not isinstance(soul, str) or not soul.strip():
        return None
    return Message(owner, "system", (TextPart(soul),), PROMPT_SEQUENCE, agent.updated_at)


def _configurations(txn: ReadTxn, program: str) -> list[tuple[int, int]]:
    """Numbers of the events that configured a program and of the configurations, the newest first."""
    query = "SELECT n, config FROM program_history WHERE program = ? AND config IS NOT NULL ORDER BY n DESC"
    return [(n, config) for n, config in txn.sql.all(query, (program,))]
