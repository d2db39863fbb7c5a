"""Answers about approval policies."""

from __future__ import annotations

from msgspec import Struct


class PolicySource(Struct, frozen=True, kw_only=True):
    """`policy show`: a policy with its source, as the resource that agents read. The one that comes with weft has no
    id."""

    uri: str
    id: str | None
    name: str
    state: str
    agent: str | None
    digest: str
    source: str
    docstring: str | None = None
    notes: str | None = None
    proposed_by: str | None = None
    proposed_at: int | None = None
    decided_by: str | None = None
    decided_at: int | None = None


class PolicyTestEntry(Struct, frozen=True, kw_only=True):
    """How one test of a policy ended."""

    name: str
    passed: bool
    expected: str
    decision: str
    rationale: str


class TestedPolicy(Struct, frozen=True, kw_only=True):
    """`policy test`: how the own tests of a policy ended."""

    name: str
    digest: str
    docstring: str | None
    total: int
    passed: int
    failed: int
    tests: tuple[PolicyTestEntry, ...]
