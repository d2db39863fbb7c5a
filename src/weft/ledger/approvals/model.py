"""What is told of decisions, requests to people and approval policies."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Approval(Struct, frozen=True, kw_only=True):
    """A request that a person allows a tool call, and what became of it."""

    id: str
    n: int
    turn: str
    session: str | None
    agent: str
    call: str
    """The event that asks for the call."""
    tool: str
    arguments: Any = None
    bound: str
    """The hash of exactly what would run."""
    shown: str | None
    """All that a person is shown of it; None where it was erased."""
    subjects: tuple[str, ...] | None = None
    """What the tool would be used on, as patterns are compared with it; None where that cannot be told."""
    rationale: str | None
    state: str
    is_used: bool
    """Whether what follows from the answer was recorded: a grant counts once."""
    requested_at: int
    expires_at: int | None
    answered_by: str | None
    answered_at: int | None
    scope: str | None
    reason: str | None


class CallDecision(Struct, frozen=True, kw_only=True):
    """What was decided about a tool call, and by what."""

    n: int
    turn: str
    call: str
    tool: str
    decision: str
    by: str
    bound: str | None
    policy: str | None
    approval: str | None
    rationale: str | None
    decided_at: int


class Policy(Struct, frozen=True, kw_only=True):
    """An approval policy, as far as it has come. Without an agent it is for all of them."""

    id: str
    name: str
    state: str
    agent: str | None
    source: str | None
    """None where it was erased."""
    digest: str
    docstring: str | None
    notes: str | None
    tests_total: int | None
    tests_passed: int | None
    tests_failed: int | None
    is_own: bool
    """Whether it was proposed in this ledger; one that came from elsewhere can be read, and not activated."""
    proposed_by: str
    proposed_at: int
    decided_by: str | None
    decided_at: int | None
    reason: str | None


class NewPolicy(Struct, frozen=True, kw_only=True):
    """A policy to propose; `tests` says how its own tests ended."""

    name: str
    source: str
    docstring: str | None = None
    notes: str | None = None
    agent: str | None = None
