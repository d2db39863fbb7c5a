"""Threads as a session log: one entry a line, each naming the one before it.

The entry is that of a session program: who said which text, when, in which session, by which model, at what cost. It
has no place for tool calls, thinking, images and system prompts; what is left out is counted. What is not known is
not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from weft.exchange.exporters.port import ExportOptions, ExportReport, Story
from weft.exchange.exporters.turn_contents import UNKNOWN_MODELS, json_line, model_of
from weft.kernel.clock import iso_from_ms
from weft.kernel.events import Usage
from weft.ledger.api import FullTurn, MessageReply, TurnRange
from weft.ledger.model import ImagePart, Message, Part, ReasoningPart, TextPart, ToolCall, Turn

TOKENS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cached_input_tokens": "cacheReadTokens",
    "cache_write_tokens": "cacheWriteTokens",
    "cache_write_1h_tokens": "cacheWrite1hTokens",
}
REQUIRED = ("input_tokens", "output_tokens")
NOTHING = MessageReply()


class JsonLines:
    form = "jsonl"
    suffix = ".jsonl"
    one_thread = False
    wants_requests = True

    def write(self, story: Story, wishes: ExportOptions, report: ExportReport) -> Iterator[bytes]:
        ends = _Ends(story.thread_ranges)
        for thread_range in story.thread_ranges:
            last = ends.before(thread_range)
            for full_turn in story.turns_of(thread_range):
                report.count(full_turn)
                before, entries = last, list[tuple[int, str]]()
                for position, message in _entries(full_turn, report):
                    yield json_line(entry(full_turn, message, last)) + b"\n"
                    last = message.id
                    entries.append((position, last))
                ends.note(thread_range, full_turn.turn.id, before, entries)


class _Ends:
    """The last entry before each place where a range leaves another one."""

    def __init__(self, thread_ranges: tuple[TurnRange, ...]) -> None:
        self._event_limits: dict[tuple[int | None, str | None], set[int | None]] = {}
        for thread_range in thread_ranges:
            self._event_limits.setdefault((thread_range.parent, thread_range.leaves), set()).add(
                thread_range.after_events
            )
        self._last_entries: dict[tuple[int | None, str | None, int | None], str | None] = {}

    def before(self, thread_range: TurnRange) -> str | None:
        return self._last_entries.get((thread_range.parent, thread_range.leaves, thread_range.after_events))

    def note(self, thread_range: TurnRange, turn: str, before: str | None, entries: list[tuple[int, str]]) -> None:
        """`entries` are those of a turn by their events, `before` the one that came before it."""
        for events in self._event_limits.get((thread_range.number, turn), ()):
            earlier_entries = [entry for position, entry in entries if events is None or position < events]
            self._last_entries[(thread_range.number, turn, events)] = earlier_entries[-1] if earlier_entries else before


def _entries(full_turn: FullTurn, report: ExportReport) -> Iterator[tuple[int, Message]]:
    report.left_out["summary"] += full_turn.summary is not None
    for position, item in zip(full_turn.positions, full_turn.items, strict=True):
        if isinstance(item, ToolCall) or "#" in item.id:  # of a context: what stands for calls and their results
            report.left_out["tool call"] += 1
        elif item.role not in ("user", "assistant"):
            report.left_out[f"{item.role} message"] += 1
        else:
            for part in item.content:
                if not isinstance(part, TextPart):
                    report.left_out[_part_kind(part)] += 1
            yield position, item


def _part_kind(part: Part) -> str:
    if isinstance(part, ReasoningPart):
        return "thinking"
    return "image" if isinstance(part, ImagePart) else "part of a tool call"


def entry(full_turn: FullTurn, message: Message, parent: str | None) -> dict[str, Any]:
    """One line of the log."""
    turn, reply = full_turn.turn, full_turn.replies.get(message.id, NOTHING)
    is_answer = message.role == "assistant"
    message_fields: dict[str, Any] = {"role": message.role, "content": message.text}
    if is_answer:
        message_fields |= _without_none({"model": _model(message, turn), "usage": _usage(full_turn, message, reply)})
    is_dated = turn.time_known or message.created_at != turn.started_at
    line_fields: dict[str, Any] = {"uuid": message.id}
    line_fields |= _without_none(
        {
            "parentUuid": parent,
            "sessionId": turn.session_id,
            "timestamp": iso_from_ms(message.created_at) if is_dated else None,
            "message": message_fields,
        }
    )
    if message.substituted is not UNSET:
        line_fields["substitutes"] = message.substituted.original
    if is_answer:
        noted = _noted(message, turn)
        line_fields |= _without_none(
            {
                "requestId": noted.get("request_id") or reply.request_id,
                "provider": reply.provider or turn.provider,
                "latencyMs": reply.latency_ms,
                "situation": noted.get("situation"),
            }
        )
    return line_fields


def _noted(message: Message, turn: Turn) -> dict[str, str]:
    """What was noted beside an answer when it was asked for here; other tools' notes mean something else."""
    notes = message.metadata if turn.origin in (None, "weft") and isinstance(message.metadata, dict) else {}
    return {name: value for name, value in notes.items() if isinstance(value, str)}


def _model(message: Message, turn: Turn) -> str | None:
    return message.model if message.model not in UNKNOWN_MODELS else model_of(turn)


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _usage(full_turn: FullTurn, message: Message, reply: MessageReply) -> dict[str, int] | None:
    """The answer's own numbers; those of the turn where this is its only answer."""
    usage = reply.usage
    if usage is None and full_turn.shown is None:
        answers = [item.id for item in full_turn.items if isinstance(item, Message) and item.role == "assistant"]
        usage = full_turn.turn.usage if answers == [message.id] else None
    return None if usage is None or not _is_whole(usage) else _counts(usage)


def _is_whole(usage: Usage) -> bool:
    return all(getattr(usage, name) is not UNSET for name in REQUIRED)


def _counts(usage: Usage) -> dict[str, int]:
    return {ours: count for name, ours in TOKENS.items() if (count := getattr(usage, name)) is not UNSET}
