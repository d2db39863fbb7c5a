"""What people read beside the words themselves: who spoke, what is known of a turn or a call, where branches leave."""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET

from weft.exchange.edits.arguments import NEW, OLD, PATCHES, PATHS, WRITTEN, opened
from weft.exchange.edits.changes import FileChange, changes_of
from weft.exchange.exporters.port import Story
from weft.kernel.clock import iso_from_ms
from weft.kernel.contents import showable
from weft.kernel.enums import TurnStatus, TurnType
from weft.ledger.api import BranchPoint, FullTurn, TurnRange
from weft.ledger.model import FileNote, Message, ToolCall, Turn

UNKNOWN_MODELS = (None, "", "unknown", "none")
ROLES = {"user": "User", "assistant": "Assistant", "system": "System", "tool": "Tool"}
DOT = " · "
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f]")
_MORE_CONTROLS = re.compile(r"[\x7f-\x9f]")
_HIDDEN = (
    r"\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    r"\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""What has no shape of its own, or turns the direction of what follows: marks of direction, fillers, tags."""
_JOINERS, _VARIANTS = r"\u200c\u200d", r"\ufe00-\ufe0f"
_UNSEEN = re.compile(rf"[{_HIDDEN}]|(?<![^\x00-\x7f{_HIDDEN}{_JOINERS}{_VARIANTS}])[{_VARIANTS}](?!\u20e3)")
"""Hidden characters, and selectors of variants that neither follow a sign beyond ASCII nor belong to a keycap."""
_JOINING_NOTHING = re.compile(rf"(?<![^\x00-\x7f{_JOINERS}])[{_JOINERS}]|[{_JOINERS}](?![^\x00-\x7f{_JOINERS}])")
"""Joiners anywhere but between two signs beyond ASCII, where emoji and some scripts have them."""


def visible(text: str) -> str:
    """Lines as every reader sees them: colours of a terminal are gone, other control characters are drawn, and
    characters that hide or reorder text are written as escapes such as `\\u202e`. Twice is the same as once."""
    text = _COLOURS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _MORE_CONTROLS.sub("\ufffd", _CONTROLS.sub(lambda found: chr(0x2400 + ord(found[0])), showable(text)))
    return text if text.isascii() else _JOINING_NOTHING.sub(_escape, _UNSEEN.sub(_escape, text))


def _escape(unseen: re.Match[str]) -> str:
    return unseen[0].encode("unicode_escape").decode()


def on_one_line(text: str) -> str:
    return " ".join(visible(text).split())


def model_of(turn: Turn) -> str | None:
    return None if turn.model in UNKNOWN_MODELS else turn.model


def turn_facts(full_turn: FullTurn) -> list[str]:
    """What is known of a turn, and what is known not to be."""
    turn = full_turn.turn
    facts = [
        full_turn.session or "",
        moment(turn.started_at) if turn.time_known else "time unknown",
        model_of(turn) or "",
    ]
    if isinstance(turn.usage.total_tokens, int):
        facts.append(counted(turn.usage.total_tokens, "token"))
    facts.append(state_of(turn) or "")
    if not turn.is_current:
        facts.append("superseded by another version")
    if full_turn.shown is not None:
        facts.append(f"only its first {counted(full_turn.shown, 'event')}")
    return [on_one_line(fact) for fact in facts if fact]


def state_of(turn: Turn) -> str | None:
    """What sets a turn apart from one that was simply completed."""
    if turn.status == TurnStatus.FAILED:
        return "failed"
    if turn.interruption_reason is not None:
        return f"interrupted ({turn.interruption_reason})"
    if turn.status != TurnStatus.COMPLETED:
        return "not finished"
    return "compaction" if turn.turn_type == TurnType.COMPACTION else None


def error_of(turn: Turn) -> str | None:
    if turn.error is None:
        return None
    return turn.error if turn.error_code in (None, "error") else f"{turn.error_code}: {turn.error}"


def speaker(message: Message, turn: Turn) -> str:
    facts = [ROLES.get(message.role, message.role)]
    if message.source not in (None, "human"):
        facts.append(str(message.source))
    if message.model not in (*UNKNOWN_MODELS, turn.model):
        facts.append(str(message.model))
    if message.substituted is not UNSET:
        facts.append("substituted")
    return DOT.join(facts)


def call_facts(call: ToolCall) -> list[str]:
    facts = [{None: "no result yet", "ok": ""}.get(call.outcome, call.outcome or "")]
    if call.error_code not in (None, call.outcome):
        facts.append(str(call.error_code))
    if call.completed_at is not None and call.completed_at > call.started_at:
        facts.append(duration(call.completed_at - call.started_at))
    if call.server:
        facts.append(f"on {call.server}")
    if call.spawned_session:
        facts.append(f"started {call.spawned_session}")
    if call.substituted is not UNSET:
        facts.append("result substituted")
    return [on_one_line(fact) for fact in facts if fact]


def call_changes(call: ToolCall) -> list[FileChange]:
    """What a call changed in files, as it tells itself; nothing where what it tells has no such shape."""
    try:
        return changes_of(opened(call.arguments), call.metadata)
    except (AttributeError, TypeError, ValueError):  # a stranger's shape that looks like a patch and is none
        return []


def other_arguments(call: ToolCall, changes: list[FileChange]) -> Any:
    """The arguments that a change does not tell already."""
    arguments = opened(call.arguments)
    if changes and isinstance(arguments, dict):
        change_arguments = {*OLD, *NEW, *WRITTEN, *PATCHES, *PATHS, "edits"}
        return {name: value for name, value in arguments.items() if name not in change_arguments}
    return None if changes else arguments


def file_text(note: FileNote) -> str:
    lines = "" if note.line_start is None else f":{note.line_start}"
    if note.line_end is not None and note.line_end != note.line_start:
        lines += f"-{note.line_end}"
    return f"{note.kind} {note.path}{lines}"


def branch_text(branch: BranchPoint) -> str:
    words = [branch.link or "", branch.session or "", branch.subject[:120]]
    if branch.after_events is not None:
        words.append(f"from inside the turn, after {counted(branch.after_events, 'event')}")
    return on_one_line(DOT.join(word for word in words if word))


def goes_on(strand: TurnRange, before: TurnRange | None) -> bool:
    """Does it simply go on where the strand before it ends?"""
    return before is not None and strand.parent == before.number and strand.leaves == before.last


def next_of(story: Story, strand: TurnRange) -> str | None:
    """The turn that the page goes on with after a strand's last, where it belongs to the same thread."""
    after = story.strands[strand.number + 1 : strand.number + 2]
    return after[0].first if after and goes_on(after[0], strand) else None


def headed(strand: TurnRange, before: TurnRange | None) -> bool:
    """Does a strand need words before it? What simply goes on does not, unless inside a turn or in another chain."""
    return not goes_on(strand, before) or strand.after_events is not None or strand.link is not None


def is_one_thread(story: Story) -> bool:
    pairs = zip(story.strands[1:], story.strands, strict=False)
    return all(goes_on(strand, before) for strand, before in pairs)


def moment(ms: int) -> str:
    return iso_from_ms(ms)[:19].replace("T", " ") + " UTC"


def duration(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
