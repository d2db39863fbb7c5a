"""Answers about what was done and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weft.ledger.api import AuditFinding, AuditTally, ProjectWork, Spending


class ProjectTotals(Struct, frozen=True, kw_only=True):
    """`projects`: a folder's figures. `story` has its sessions and files too."""

    path: str
    name: str
    sessions: int
    turns: int
    origins: Sequence[str]
    files: int
    last_at: int
    time_known: bool
    spending: Spending


def project_totals(project: ProjectWork) -> ProjectTotals:
    return ProjectTotals(
        path=project.path,
        name=project.name,
        sessions=len(project.sessions),
        turns=project.turns,
        origins=project.origins,
        files=len(project.files),
        last_at=project.last_at,
        time_known=project.time_known,
        spending=project.spending,
    )


class AuditSummary(Struct, frozen=True, kw_only=True):
    turns: int
    calls: int
    allowed: int
    not_known: int
    problems: int
    findings: Mapping[str, int]


class AuditAnswer(Struct, frozen=True, kw_only=True):
    """`audit`: whether every call was allowed, how many were looked at, and what was found."""

    ok: bool
    summary: AuditSummary
    findings: Sequence[AuditFinding]


def audit_answer(findings: Sequence[AuditFinding], tally: AuditTally) -> AuditAnswer:
    summary = AuditSummary(
        turns=tally.turns,
        calls=tally.calls,
        allowed=tally.allowed,
        not_known=tally.not_known,
        problems=tally.problems,
        findings=tally.found,
    )
    return AuditAnswer(ok=tally.problems == 0, summary=summary, findings=findings)


class LedgerFigures(Struct, frozen=True, kw_only=True):
    """`stats`: where the ledger is, how large, and how much of each thing it holds."""

    path: str
    file_bytes: int | None
    counts: Mapping[str, Any]
