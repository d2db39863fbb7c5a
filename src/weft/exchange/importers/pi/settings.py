"""What turns run with: model, thinking level, mode, tools, as the entries before them have set it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from weft.exchange.importers.values import present, sequence, text


class Settings(Struct, frozen=True):
    model: str | None = None
    provider: str | None = None
    thinking: str | None = None
    mode: str | None = None
    tier: Any = None
    tools: tuple[str, ...] | None = None
    is_reset: bool = False
    """The context was cleared, and no turn has begun since."""

    def begun(self, header: dict[str, Any]) -> Settings:
        """The first version of the format has them in its header."""
        return replace(
            self,
            model=text(header.get("modelId")),
            provider=text(header.get("provider")),
            thinking=text(header.get("thinkingLevel")),
        )

    def changed(self, kind: str, value: dict[str, Any]) -> Settings:
        """As they are after a record of this kind."""
        if kind == "model_change":
            provider, model = text(value.get("provider")), text(value.get("modelId"))
            if model is None and (both := text(value.get("model"))) is not None:  # oh-my-pi: provider/model
                provider, model = both.split("/", 1) if "/" in both else (None, both)
            return replace(self, provider=provider, model=model)
        if kind == "thinking_level_change":
            return replace(self, thinking=text(value.get("thinkingLevel")))
        if kind == "mode_change":
            return replace(self, mode=text(value.get("mode")))
        if kind == "service_tier_change":
            return replace(self, tier=value.get("serviceTier"))
        if kind == "active_tools_change":
            return replace(self, tools=names(value.get("activeToolNames")))
        return replace(self, is_reset=True)

    def config(self) -> dict[str, Any] | None:
        return present(
            model=self.model, provider=self.provider, thinking=self.thinking, mode=self.mode, service_tier=self.tier
        )


def names(value: Any) -> tuple[str, ...] | None:
    return tuple(name for name in sequence(value) if isinstance(name, str)) or None
