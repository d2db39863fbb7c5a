"""Summaries that took the place of earlier bubbles: the newest with the session, others with the bubbles after them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.exchange.importers.cursor.bubbles import Bubble
from weft.exchange.importers.values import mapping, text, whole

BESIDE = ("conversationSummary", "cachedConversationSummary")


class Summary(Struct, frozen=True):
    """A summary, with the ids of bubbles."""

    words: str
    at: str | None
    """The last one when it was made."""
    through: str | None
    """The last that it stands for."""
    kept: str | None
    """The first that was still sent."""
    tokens_before: int | None = None

    @property
    def anchors(self) -> tuple[str, ...]:
        """Where it may lie, best first."""
        return tuple(id for id in (self.at, self.through) if id is not None)


def summaries(composer: dict[str, Any], bubbles: list[Bubble]) -> list[Summary]:
    """Each once, in the order of the bubbles that they end at."""
    told = [
        *((bubble.value.get(name), bubble.id) for bubble in bubbles for name in BESIDE),
        (composer.get("latestConversationSummary"), None),
    ]
    found: dict[tuple[str, str | None], Summary] = {}
    for value, where in told:
        made = _summary(value, where)
        if made is not None:
            found.setdefault((made.words, made.through), made)
    return list(found.values())


def _summary(value: Any, where: str | None) -> Summary | None:
    """Newer versions wrap it in an object of its own; older ones have the words there."""
    outer = mapping(value)
    inside = outer.get("summary")
    fields = mapping(inside) or outer
    words = text(inside) or text(mapping(inside).get("summary"))
    if words is None:
        return None
    last = text(outer.get("lastBubbleId")) or text(fields.get("lastBubbleId"))
    return Summary(
        words=words,
        at=last or where,
        through=text(fields.get("truncationLastBubbleIdInclusive")),
        kept=text(fields.get("clientShouldStartSendingFromInclusiveBubbleId")),
        tokens_before=whole(fields.get("tokensBefore")),
    )
