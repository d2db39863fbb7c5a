"""Answers about agents at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from weft.programs.program_records import Program
    from weft.runtime.agent_work import WorkProgress


class AgentStatus(Struct, frozen=True, kw_only=True):
    """`agent status`: an agent, and how far its work on its task has come; null where it has none."""

    agent: Program
    work: WorkProgress | None
