"""What a worker may do at most: what its spawner's turn was left with, and the toolset that its spawner may give.

A worker has its spawner's persona, so the persona's limits hold by themselves, and so do those of everybody on whose
behalf the spawner acts. Recorded here is what else limited the spawning turn: its own spawner, thread, session and
message. The toolset is not the spawner's own but the one that its toolset names for workers: a manager that changes
nothing has workers that do, because whoever gave it that toolset said so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.errors import NotApplicable
from weft.runtime.configuration.layers import ConfigLayer, EffectiveConfig, LayerName
from weft.runtime.configuration.permissions import PermissionLimits

_INHERITED = (LayerName.SPAWNER, LayerName.THREAD, LayerName.SESSION, LayerName.MESSAGE)


class WorkerConstraints(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is recorded with a worker's session. Form is fixed: other versions read it."""

    toolsets: tuple[str, ...]
    layers: tuple[ConfigLayer, ...] = ()
    workspace: str | None = None

    def record(self) -> Any:
        return msgspec.to_builtins(self)


def constraints_for(
    effective: EffectiveConfig, toolsets: Sequence[str], tools: Sequence[str] | None, workspace: str | None
) -> WorkerConstraints:
    """Those of a worker that a turn with this configuration spawns. `tools` are the patterns that it is to be left
    with, where its spawner asks for fewer."""
    inherited = [_passed_on(layer) for layer in effective.layers if layer.name in _INHERITED]
    if tools is not None:
        asked = ConfigLayer(name=LayerName.SPAWNER, source="spawn", permissions=PermissionLimits(allow=tuple(tools)))
        inherited.append(asked)
    return WorkerConstraints(
        toolsets=tuple(toolsets), layers=tuple(layer for layer in inherited if not layer.is_empty), workspace=workspace
    )


def _passed_on(layer: ConfigLayer) -> ConfigLayer:
    values = {key: value for key, value in layer.values.items() if key != "toolset"}
    return replace(layer, name=LayerName.SPAWNER, values=values)


def read_constraints(record: Any, label: str) -> WorkerConstraints:
    """Those of a worker. Raises NotApplicable where nothing of ours stands there: a worker without known limits does
    nothing."""
    try:
        return msgspec.convert(record, WorkerConstraints)
    except msgspec.ValidationError as error:
        raise NotApplicable(f"the limits of worker {label!r} cannot be read: {error}", "spawn another one") from None


def spawner_layers(constraints: WorkerConstraints) -> list[ConfigLayer]:
    """The layers that limit a worker's turns."""
    return [*constraints.layers, *_toolset_layers(constraints.toolsets)]


def _toolset_layers(toolsets: Iterable[str]) -> list[ConfigLayer]:
    return [ConfigLayer(name=LayerName.SPAWNER, source="spawn", values={"toolset": name}) for name in toolsets]
