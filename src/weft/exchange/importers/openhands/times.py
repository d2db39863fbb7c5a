"""When something happened. Events tell local time without a zone; a response of LiteLLM tells when it was made."""

from __future__ import annotations

from typing import Any

from weft.exchange.importers.values import millis, text


def moment(event: dict[str, Any]) -> tuple[int | None, str | None]:
    """Unix milliseconds, or the words that name no zone."""
    told = event.get("timestamp")
    at = millis(told) if isinstance(told, str) else None
    return at, text(told) if at is None else None


def seconds(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e11:
        return None
    return round(value * 1000)
