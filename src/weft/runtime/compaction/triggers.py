"""When a session is compacted: by its settings, the size of its context, and what came of the last request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from weft.kernel.enums import CompactionTrigger
from weft.kernel.errors import ContextTooLong, InvalidConfig, WeftError
from weft.runtime.assembly.sizes import ContextFit

FIELD = "compaction"
"""The field of a session's and an agent's configuration."""
DEFAULT_THRESHOLD = 0.8
"""The share of the window from which on a context is compacted."""
Count = Annotated[int, Meta(ge=1)]


class CompactionSettings(Struct, frozen=True, kw_only=True, rename="camel"):
    """How a session is compacted by itself. Without `model` its own model writes summaries; without `every_turns` and
    `every_tokens` only its size makes a compaction due. With `automatic` false none is made but by hand and where a
    provider refused the context as too long."""

    model: str | None = None
    strategy: str = "summary"
    threshold: Annotated[float, Meta(gt=0, le=1)] = DEFAULT_THRESHOLD
    every_turns: Count | None = None
    every_tokens: Count | None = None
    keep: Annotated[int, Meta(ge=0)] | None = None
    focus: str | None = None
    automatic: bool = True


class SinceCompaction(Struct, frozen=True):
    """How much was said since the compaction in effect, or since the beginning."""

    turns: int
    tokens: int


def compaction_settings(*configs: Mapping[str, Any] | None) -> CompactionSettings:
    """Of several configurations, each over the ones before, field by field; such as the agent's, then the session's."""
    merged: dict[str, Any] = {}
    for config in configs:
        fields = (config or {}).get(FIELD)
        if isinstance(fields, Mapping):
            merged |= fields
    try:
        return msgspec.convert(merged, CompactionSettings, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"config.{FIELD}", str(error), "mend it") from None


def due(settings: CompactionSettings, fit: ContextFit, since: SinceCompaction) -> CompactionTrigger | None:
    """Why a compaction is to be made before the next request; None: none is. A context in which nothing was said since
    the last one is not compacted again: it would not become smaller."""
    if not settings.automatic or since.turns == 0:
        return None
    if fit.has_reached(settings.threshold):
        return CompactionTrigger.CONTEXT_LIMIT
    if settings.every_turns is not None and since.turns >= settings.every_turns:
        return CompactionTrigger.PERIODIC
    if settings.every_tokens is not None and since.tokens >= settings.every_tokens:
        return CompactionTrigger.PERIODIC
    return None


def due_after(error: WeftError, *, recovered: bool) -> CompactionTrigger | None:
    """Whether a request that failed is to be asked once more, after a compaction; never twice in one turn."""
    is_overflow = isinstance(error, ContextTooLong) and not recovered
    return CompactionTrigger.OVERFLOW_RECOVERY if is_overflow else None
