"""What turns run with, and where, as the events before them have set it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from weft.exchange.importers.values import mapping, present, text


class Settings(Struct, frozen=True):
    model: str | None = None
    effort: str | None = None
    mode: str | None = None
    allows_all: bool | None = None
    workspace: str | None = None
    branch: str | None = None
    version: str | None = None

    def changed(self, kind: str, data: dict[str, Any]) -> Settings:
        """As they are after an event of this kind."""
        if kind == "session.model_change":
            effort = text(data.get("reasoningEffort"))
            return replace(self, model=text(data.get("newModel")) or self.model, effort=effort or self.effort)
        if kind == "session.auto_mode_resolved":
            return replace(self, model=text(data.get("chosenModel")) or self.model)
        if kind == "session.mode_changed":
            return replace(self, mode=text(data.get("newMode")) or self.mode)
        if kind == "session.permissions_changed":
            told = data.get("allowAllPermissions")
            return replace(self, allows_all=told if isinstance(told, bool) else self.allows_all)
        return self._moved(data)

    def _moved(self, data: dict[str, Any]) -> Settings:
        """A session's start and resumption tell the place within, a change of it as their own fields."""
        context = mapping(data.get("context")) or data
        return replace(
            self,
            workspace=text(context.get("cwd")) or self.workspace,
            branch=text(context.get("branch")) or self.branch,
            version=text(data.get("copilotVersion")) or self.version,
            model=text(data.get("selectedModel")) or self.model,
        )

    def config(self) -> dict[str, Any] | None:
        return present(model=self.model, effort=self.effort, mode=self.mode)
