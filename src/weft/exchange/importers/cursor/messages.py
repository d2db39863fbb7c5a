"""Bubbles as messages and calls."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.cursor import bubbles, calls, context
from weft.exchange.importers.cursor.bubbles import Bubble
from weft.exchange.importers.cursor.values import path_of
from weft.exchange.importers.transcript import NativeCall, NativeMessage
from weft.exchange.importers.values import mapping, present, text, whole
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

APPLIED = frozenset({"accepted", "applied"})
GENERATED = ("isCapabilityIteration", "skipRendering", "isSimulatedMsg")
"""Marks of a prompt that no person wrote."""


class Setting(Struct):
    """What holds for every bubble of a session."""

    model: str | None = None
    is_subagent: bool = False
    applied: dict[tuple[str, int], str] = field(default_factory=dict)
    """What became of each suggested version of a file, by path and number."""


def prompts(bubble: Bubble) -> bool:
    """Does a turn begin here? A user's bubble may also hold nothing but the outcome of a tool."""
    return bubble.role == "user" and not (
        mapping(bubble.value.get("toolFormerData")) and not bubbles.words(bubble.value)
    )


def words_of(bubble: Bubble) -> str:
    return bubbles.words(bubble.value)


def is_empty(bubble: Bubble) -> bool:
    """Nothing was said or attached: the box for the next prompt, kept as one."""
    value = bubble.value
    places = (value, mapping(value.get("context")))
    pictured = any(context.images(*places))
    return not (bubbles.words(value) or pictured or context.files(value, *places) or value.get("toolFormerData"))


def reduced(bubble: Bubble) -> list[Any]:
    """What makes the identity of a bubble."""
    value = bubble.value
    former = mapping(value.get("toolFormerData"))
    images = [part.url for part in context.images(value, mapping(value.get("context")))[0]]
    said = [bubble.role, bubble.id, bubbles.words(value), bubbles.thinking(value), images]
    return [*said, calls.reduced(former)] if former else said


def prompt(bubble: Bubble, setting: Setting) -> NativeMessage:
    value, request = bubble.value, bubble.request
    places = (value, mapping(value.get("context")), request)
    images, paths = context.images(value, mapping(value.get("context")))
    said = bubbles.words(value)
    parts: list[Part] = [TextPart(said)] if said else []
    return NativeMessage(
        role=MessageRole.USER,
        parts=(*parts, *images),
        native=bubble.id,
        at=bubbles.begun(value),
        source=_source(value, setting),
        context=context.injected(*places),
        metadata=_beside(value),
        files=tuple(dict.fromkeys((*context.files(value, *places[:2]), *paths))),
        lints=context.lints(*places),
    )


def _source(value: dict[str, Any], setting: Setting) -> MessageSource:
    if any(value.get(name) is True for name in GENERATED):
        return MessageSource.EVENT
    return MessageSource.AGENT if setting.is_subagent else MessageSource.HUMAN


def speaks(bubble: Bubble) -> bool:
    """Is it more than a call: does it have words, thoughts, costs or a failure of its own?"""
    value = bubble.value
    told = (bubbles.words(value), bubbles.thinking(value), bubbles.pictures(value), bubbles.tokens(value))
    return any(told) or bubbles.failure(value) is not None


def response(bubble: Bubble, setting: Setting) -> NativeMessage:
    value = bubble.value
    said = bubbles.words(value)
    parts: list[Part] = [ReasoningPart(each) for each in bubbles.thinking(value)]
    parts += [TextPart(said)] if said else []
    parts += [ImagePart(url) for url in bubbles.pictures(value)]
    return NativeMessage(
        role=MessageRole.ASSISTANT,
        parts=tuple(parts),
        native=bubble.id,
        at=bubbles.begun(value),
        model=bubbles.model(value) or setting.model,
        tokens=bubbles.tokens(value),
        metadata=_beside(value),
        files=suggested(value, setting),
        lints=context.lints(value),
    )


def call(bubble: Bubble) -> NativeCall | None:
    former = mapping(bubble.value.get("toolFormerData"))
    return calls.call(former, bubble.id, bubbles.begun(bubble.value)) if former else None


def suggested(value: dict[str, Any], setting: Setting) -> tuple[FileNote, ...]:
    """Files of which an answer wrote a version: written where that was accepted, named where not."""
    found: dict[str, FileNote] = {}
    for block in calls.blocks(value):
        path = path_of(block.get("uri"))
        if path is None:
            continue
        status = setting.applied.get((path, whole(block.get("version")) or 0)) or text(block.get("status")) or ""
        is_written = status in APPLIED or (path in found and found[path].kind == FileKind.WRITTEN)
        found[path] = FileNote(kind=FileKind.WRITTEN if is_written else FileKind.REFERENCED, path=path)
    return tuple(found.values())


def _beside(value: dict[str, Any]) -> dict[str, Any] | None:
    return present(
        request=text(value.get("requestId")),
        usage=text(value.get("usageUuid")),
        server=text(value.get("serverBubbleId")),
        checkpoint=text(value.get("checkpointId")),
        checkpoint_after=text(value.get("afterCheckpointId")),
        thinking_ms=value.get("thinkingDurationMs"),
        signature=bubbles.signature(value),
        turn_ms=value.get("turnDurationMs"),
        capability=value.get("capabilityType"),
        refunded=True if value.get("isRefunded") is True else None,
        tokens_so_far=value.get("tokenCountUpUntilHere"),
        error=value.get("errorDetails"),
    )
