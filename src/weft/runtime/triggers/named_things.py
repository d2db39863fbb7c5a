"""Whether the things that a trigger's configuration names are there. A trigger that names others collects errors
until it is paused; whoever makes one is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.kernel.enums import ProgramKind
from weft.kernel.errors import InvalidInput, NotApplicable, quoted
from weft.programs import Programs


def ensure_there(programs: Programs, config: Mapping[str, Any]) -> None:
    """Refuse a configuration that names a task, room, agent, turn or folder that is not there, or an agent that takes
    no part in the room that it is to answer in. Sessions are made when they are first sent to. What has no right form
    is left to whoever checks forms."""
    on, to = (value if isinstance(value, dict) else {} for value in (config.get("on"), config.get("to")))
    watched = on.get("file")
    if isinstance(on.get("task"), str):
        programs.get(on["task"], ProgramKind.TASK)
    if isinstance(on.get("room"), str):
        programs.ledger.rooms.get(on["room"])
    if isinstance(watched, dict) and isinstance(watched.get("folder"), str):
        _ensure_folder(watched["folder"])
    if isinstance(to.get("thread"), str):
        programs.ledger.resolve(to["thread"])
    agent = programs.get(to["persona"], ProgramKind.AGENT) if isinstance(to.get("persona"), str) else None
    if isinstance(to.get("room"), str):
        room = programs.ledger.rooms.get(to["room"])
        present = {participant.agent_id for participant in programs.ledger.rooms.participants(room.id)}
        if agent is not None and agent.id not in present:
            raise NotApplicable(f"agent {agent.name!r} takes no part in room {to['room']!r}", "let it in first")


def _ensure_folder(folder: str) -> None:
    if not Path(folder).is_dir():
        raise InvalidInput(f"there is no folder {quoted(folder, 200)}", "make it first, or name another")
