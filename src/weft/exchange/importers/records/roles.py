"""What a record is to the turns of its session.

Each origin has a table from its kinds of records to these roles, or a function where the kind alone does not tell.
"""

from __future__ import annotations

from enum import Enum, auto

from weft.exchange.importers.port import Report


class Role(Enum):
    """What a record is for the turns of its session."""

    PROMPT = auto()
    """A message of a person, or of whoever started the agent: a turn begins."""
    PREFACE = auto()
    """Written before the prompt that it belongs to."""
    INJECTED = auto()
    """Put into the context by the tool itself: part of the turn under way, or the beginning of one."""
    ANSWER = auto()
    """A response of the model, or the outcome of a call."""
    NOTICE = auto()
    """Shown to the person, not to the model."""
    DETAIL = auto()
    """Tells something about the turn under way."""
    END = auto()
    """Tells that, or how, a turn or a response ended."""
    COMPACTION = auto()
    """A summary that the conversation goes on from."""
    SETTING = auto()
    """Changes what later turns run with."""
    SESSION = auto()
    """Tells something about the session."""
    AGENT = auto()
    """Tells something about a subagent."""
    IGNORED = auto()
    """A known kind of which nothing is mapped: only the verbatim copy holds it."""
    UNKNOWN = auto()


IN_TURNS = frozenset({
    Role.PROMPT, Role.PREFACE, Role.INJECTED, Role.ANSWER, Role.NOTICE, Role.DETAIL, Role.COMPACTION,
})  # fmt: skip
"""Roles of records that turns are made of: `walk_turns` counts these as mapped when it reads them again."""


def count_kept(report: Report, kind: str, role: Role) -> None:
    """Count a record that only the verbatim copy holds."""
    report.kept[kind] += 1
    if role is Role.UNKNOWN:
        report.unknown[kind] += 1
