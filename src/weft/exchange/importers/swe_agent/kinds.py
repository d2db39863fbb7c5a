"""What a run's document holds, and what becomes of it. A record is a step, a message, or a section beside them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.exchange.importers.port import Report

TOLD = frozenset({"info", "environment", "replay_config", "instance_id", "trajectory_format"})
"""Sections that tell of the run as a whole."""
LISTS = frozenset({"trajectory", "history", "messages", "attempts"})


def account(report: Report, kind: str, *, is_mapped: bool, is_unknown: bool = False) -> None:
    """One record found."""
    report.found += 1
    (report.mapped if is_mapped else report.kept)[kind] += 1
    if is_unknown:
        report.unknown[kind] += 1


def account_sections(report: Report, document: dict[str, Any]) -> None:
    for name in document:
        if name not in LISTS:
            account(report, name, is_mapped=name in TOLD, is_unknown=name not in TOLD)


def objects(values: Iterable[Any], kind: str, report: Report) -> list[dict[str, Any]]:
    """Those that are objects; anything else is a damaged record."""
    found = []
    for number, value in enumerate(values):
        if isinstance(value, dict):
            found.append(value)
        else:
            report.found += 1
            report.damaged += 1
            report.problem(None, f"{kind} {number} is a JSON {type(value).__name__}, not an object")
    return found
