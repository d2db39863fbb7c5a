"""Logs of the second engine: `sessions/cli/<session>.jsonl`, a kind and its data on each line, and beside it what Kiro
tells of the session and of the costs of its turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.jsonl import Record, records
from weft.exchange.importers.kiro.steps import Kind, Outcome, Step, image_part, plain
from weft.exchange.importers.loading import loaded
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.transcript import NativeCall, NativeSession, Tokens
from weft.exchange.importers.values import mapping, millis, present, sequence, text, whole
from weft.ledger.model import Part, ReasoningPart, TextPart

KINDS = {
    "Prompt": Kind.PROMPT,
    "AssistantMessage": Kind.ANSWER,
    "ToolResults": Kind.RESULTS,
    "Compaction": Kind.COMPACTION,
    "Clear": Kind.CLEAR,
    "CancelledPrompt": Kind.BESIDE,
}


class Beside(Struct):
    """The file beside a log."""

    told: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What a turn cost, by the id of its last answer."""

    @property
    def state(self) -> dict[str, Any]:
        return mapping(self.told.get("session_state"))

    @property
    def model(self) -> str | None:
        return text(mapping(mapping(self.state.get("rts_model_state")).get("model_info")).get("model_id"))


def beside(path: Path) -> Beside:
    try:
        told = mapping(loaded(path.with_suffix(".json").read_bytes()))
    except (OSError, ValueError):
        return Beside()
    found = Beside(told)
    turns = mapping(found.state.get("conversation_metadata")).get("user_turn_metadatas")
    for turn in map(mapping, sequence(turns)):
        last = text(mapping(mapping(turn.get("result")).get("Ok")).get("id"))
        named = [id for each in sequence(turn.get("message_ids")) if (id := text(each))]
        if (id := last or (named[-1] if named else None)) is not None:
            found.costs[id] = turn
    return found


def session_of(path: Path, found: Beside) -> NativeSession:
    told, state = found.told, found.state
    return NativeSession(
        id=text(told.get("session_id")) or path.stem,
        title=text(told.get("title")),
        workspace=text(told.get("cwd")),
        created=millis(told.get("created_at")),
        parent=text(told.get("parent_session_id")),
        agent=text(state.get("agent_name")),
        told_at=millis(told.get("updated_at")),
        metadata=present(reason=told.get("session_created_reason"), updated=told.get("updated_at"), model=found.model),
    )


def steps(source: Source, report: Report, found: Beside) -> Iterator[Step]:
    for record in records(source, report):
        name = text(record.value.get("kind")) or "none"
        kind = KINDS.get(name)
        if kind is None:
            report.kept[name] += 1
            report.unknown[name] += 1
            continue
        report.mapped[name] += 1
        yield _step(kind, record, found)


def _step(kind: Kind, record: Record, found: Beside) -> Step:
    data = mapping(record.value.get("data"))
    blocks = [mapping(each) for each in sequence(data.get("content"))]
    seconds = mapping(data.get("meta")).get("timestamp")
    step = Step(kind=kind, offset=record.offset, end=record.end, id=text(data.get("message_id")), at=_time(seconds))
    step.identity = blocks
    step.parts = [part for block in blocks if (part := _part(block)) is not None]
    step.calls = [_call(mapping(block.get("data"))) for block in blocks if block.get("kind") == "toolUse"]
    step.outcomes = [_outcome(mapping(block.get("data"))) for block in blocks if block.get("kind") == "toolResult"]
    if kind is Kind.COMPACTION:
        step.words = text(data.get("summary")) or ""
        step.identity = step.words
    elif kind is Kind.BESIDE:
        step.stopped = True
    elif kind is Kind.ANSWER:
        step.model = text(data.get("model")) or found.model
        _cost(step, found.costs.get(step.id or "", {}))
    return step


def _time(told: Any) -> int | None:
    """Counted in seconds, where it is a number."""
    number = whole(told)
    return number * 1000 if number is not None and 0 < number < 10**11 else millis(told)


def _part(block: dict[str, Any]) -> Part | None:
    kind, data = block.get("kind"), block.get("data")
    if kind == "text":
        return TextPart(data) if isinstance(data, str) and data else None
    if kind in ("thinking", "reasoning"):
        words = text(data) or text(mapping(data).get("text"))
        return ReasoningPart(words) if words else None
    return image_part(data) if kind == "image" else None


def _call(told: dict[str, Any]) -> NativeCall:
    return NativeCall(
        id=text(told.get("toolUseId")) or "", name=text(told.get("name")) or "", arguments=told.get("input")
    )


def _outcome(told: dict[str, Any]) -> Outcome:
    status = str(told.get("status")).lower()
    return Outcome(
        text(told.get("toolUseId")) or "",
        plain(told.get("content")),
        status == "error",
        status in ("cancelled", "canceled"),
    )


def _cost(step: Step, turn: dict[str, Any]) -> None:
    """Of a whole turn, told with its last answer. Noughts stand for what was not counted."""
    names = ("input_token_count", "output_token_count", "cache_read_input_token_count", "cache_write_input_token_count")
    counts = [whole(turn.get(name)) for name in names]
    if any(counts):
        step.tokens = Tokens(input=counts[0], output=counts[1], cached=counts[2], cache_write=counts[3])
    step.model = text(turn.get("model")) or step.model
    step.done = millis(turn.get("end_timestamp"))
    credits = [each for each in map(mapping, sequence(turn.get("metering_usage"))) if each]
    step.metadata = present(metering=credits, context_usage=turn.get("context_usage_percentage"))
