"""Compactions: what a `compacted` record says of the history it put in the old one's place.

A summary made on the provider's side is encrypted, and none is kept here then. What is kept beside it are the people's
own messages, not whole turns.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.exchange.importers.codex.contents import content_of
from weft.exchange.importers.codex.kinds import Entry
from weft.exchange.importers.codex.values import digest, present, whole
from weft.exchange.importers.transcript import NativeCompaction
from weft.exchange.importers.values import mapping, sequence, text

_SUMMARIES = frozenset({"compaction", "compaction_summary", "context_compaction"})
_SUMMARY_BEGINS = "Another language model started to solve this problem"
"""Codex's own first words of a summary that it hands to the next context."""


class Compaction(Struct, kw_only=True):
    id: str | None
    """Of the context window that it opened, else of its summary item (which redacted copies leave out)."""
    summary: str
    plain: list[Any]
    names: tuple[str, ...]
    at: int | None
    literal_time: str | None
    model: str | None
    tokens_before: int | None
    tokens_after: int | None = None
    trigger: str | None = None
    notes: dict[str, Any]

    def native(self, trigger: str | None, duration_ms: int | None) -> NativeCompaction:
        return NativeCompaction(
            summary=self.summary,
            model=self.model,
            trigger=self.trigger or trigger,
            tokens_before=self.tokens_before,
            tokens_after=self.tokens_after,
            duration_ms=duration_ms,
            metadata=self.notes or None,
        )


def compaction_of(
    entry: Entry, time: tuple[int | None, str | None], tokens_before: int | None, model: str | None
) -> Compaction:
    told = entry.value
    history = [mapping(item) for item in sequence(told.get("replacement_history"))]
    sealed = [item for item in history if _is_summary(item)]
    ids = [id for item in sealed if (id := text(item.get("id")))]
    window = text(told.get("window_id"))
    summary = text(told.get("message")) or _summary_in(history)
    plain = [[text(item.get("id")), content_of(item.get("content")).plain] for item in history]
    return Compaction(
        id=window or next(reversed(ids), None),
        summary=summary,
        plain=["compacted", window, summary, None if window else [ids, digest(plain)]],
        names=tuple(name for name in (window, *ids) if name),
        at=time[0],
        literal_time=time[1],
        model=model,
        tokens_before=tokens_before,
        trigger=text(told.get("trigger")),
        notes=present(
            window_number=whole(told.get("window_number")),
            window_id=window,
            previous_window_id=text(told.get("previous_window_id")),
            items_kept=len(history) - len(sealed) if history else None,
            encrypted_letters=sum(len(text(item.get("encrypted_content")) or "") for item in sealed) or None,
        ),
    )


def _summary_in(history: list[dict[str, Any]]) -> str:
    for item in reversed(history):
        if _is_summary(item):
            found = text(item.get("summary")) or text(item.get("text")) or content_of(item.get("content")).words()
            if found:
                return found
        elif item.get("role") == "user":
            words = content_of(item.get("content")).words()
            if words.startswith(_SUMMARY_BEGINS):
                return words
    return ""


def _is_summary(item: dict[str, Any]) -> bool:
    return text(item.get("type")) in _SUMMARIES
