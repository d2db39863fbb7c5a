"""What a reader remembers of the turns it gave: what each was made of, and what it told of its session."""

from __future__ import annotations

from msgspec import Struct

from weft.exchange.importers.claude_code.kinds import JsonObject
from weft.exchange.importers.claude_code.tree import Plan


class Basis(Struct, frozen=True, gc=False):
    """All that a turn is made of beside the bytes of its lines: equal ones make equal turns."""

    number: int
    plan: Plan
    spawned: tuple[str | None, ...]
    """The subagents of its calls, as far as the whole file tells them."""
    tools: tuple[str, ...] | None
    kept: int | None
    """The first turn that its compaction kept in view."""


class Past(Struct, frozen=True):
    """A turn that was given."""

    basis: Basis
    kept_id: str | None
    """The line that its compaction kept in view first."""
    name: str
    """Its key, before it was told apart from others."""
    started: int | None
    workspace: str | None
    git_branch: str | None
    version: str | None
    facts: JsonObject


Given = dict[tuple[str, str | None], list[Past]]
"""By main session and subagent, in order."""
