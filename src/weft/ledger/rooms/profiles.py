"""What agents and people tell of themselves. Anybody reads the profile of a public agent and of a person; that of a
private one is read by those it works for, and is not there for others."""

from __future__ import annotations

from typing import Any

from weft.kernel.advice import Action
from weft.kernel.enums import AgentKind, ProgramKind
from weft.kernel.errors import NotFound
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.access import access_of
from weft.ledger.read.agent_shares import is_private
from weft.ledger.read.session_owners import counted_config
from weft.ledger.read.sessions import agent_names
from weft.ledger.read.system_agents import system_kind_of
from weft.ledger.rooms.model import AgentProfile, PersonProfile
from weft.ledger.views.program_rows import ProgramRow, find_program
from weft.store.port import ReadTxn
from weft.store.sql import Sql

AGENT_EMOJI, SYSTEM_EMOJI, PERSON_EMOJI = "🤖", "🧭", "👤"
"""Shown where there is no picture and no emoji was chosen."""
PICTURE_ADDRESSES = ("https://", "http://", "data:image/")
EMOJI_LIMIT = 16
"""Code points: an emoji may consist of several."""


def agent_profile(txn: ReadTxn, name: str) -> AgentProfile:
    """Of an agent, by name or id; a deleted one is found by its id."""
    row = _readable_program(txn, name, ProgramKind.AGENT, "agent")
    config = _config(txn, row)
    identity = config.get("identity")
    identity = identity if isinstance(identity, dict) else {}
    kind = system_kind_of(txn, row)
    is_hidden = is_private(txn, row)
    tools = config.get("tools")
    return AgentProfile(
        id=row.id,
        name=row.name,
        description=_text(identity.get("description")),
        personality=_text(identity.get("soul")),
        tools=tuple(tool for tool in tools if isinstance(tool, str)) if isinstance(tools, list) else (),
        toolset=_text(config.get("toolset")),
        created_by=row.created_by,
        created_by_name=agent_names(txn.sql, [row.created_by])[row.created_by],
        created_at=row.created_at,
        kind=AgentKind.USER_AGENT.value if kind is None else AgentKind.SYSTEM_AGENT.value,
        system_agent_kind=kind,
        avatar_url=_picture(identity.get("avatar")),
        emoji=_emoji(identity.get("emoji")) or (AGENT_EMOJI if kind is None else SYSTEM_EMOJI),
        last_active_time=last_active(txn.sql, row.id),
        public=not is_hidden,
        private=is_hidden,
        is_deleted=bool(row.deleted),
    )


def person_profile(txn: ReadTxn, name: str) -> PersonProfile:
    """Of a person, by name or id. Whoever opened the ledger is `local`."""
    if name == DEFAULT_AGENT:
        return PersonProfile(
            id=name, name=name, emoji=PERSON_EMOJI, last_active_time=last_active(txn.sql, name, has_turns=False)
        )
    row = _readable_program(txn, name, ProgramKind.HUMAN, "person")
    config = _config(txn, row)
    return PersonProfile(
        id=row.id,
        name=row.name,
        email=_text(config.get("email")),
        image=_picture(config.get("image")),
        emoji=PERSON_EMOJI,
        presence=row.state,
        last_active_time=last_active(txn.sql, row.id, has_turns=False),
        is_deleted=bool(row.deleted),
    )


def last_active(sql: Sql, node: str, *, has_turns: bool = True) -> int | None:
    """When somebody last said something in a conversation, or an agent's newest turn began or ended."""
    message = sql.one("SELECT posted_at FROM room_message WHERE node = ? ORDER BY posted_at DESC LIMIT 1", (node,))
    turn = None
    if has_turns:
        turn = sql.one(
            "SELECT coalesce(completed_at, started_at) FROM turn WHERE persona = ? ORDER BY n DESC LIMIT 1", (node,)
        )
    return max((int(row[0]) for row in (message, turn) if row is not None and row[0] is not None), default=None)


def _readable_program(txn: ReadTxn, name: str, kind: ProgramKind, noun: str) -> ProgramRow:
    row = find_program(txn.sql, name)
    if row is None or row.kind != kind or not access_of(txn).may_read_program(row):
        raise NotFound(noun, name, Action.LIST_PROGRAMS)
    return row


def _config(txn: ReadTxn, row: ProgramRow) -> dict[str, Any]:
    """What counts here: another ledger's words about somebody are not shown as theirs."""
    config = counted_config(txn, row.id)
    return config if isinstance(config, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _picture(value: Any) -> str | None:
    """An address that a picture can be loaded from; nothing that could run."""
    return value if isinstance(value, str) and value.lower().startswith(PICTURE_ADDRESSES) else None


def _emoji(value: Any) -> str | None:
    text = value.strip() if isinstance(value, str) else ""
    return text if 0 < len(text) <= EMOJI_LIMIT and text.isprintable() else None
