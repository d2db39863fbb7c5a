"""The configuration of a turn as a merge of layers. Nothing here reads or writes.

The layers, the weakest first: provider, model, situation, persona, spawner, thread, session, message. Each is optional.
A value of a later layer replaces that of an earlier one; permissions narrow each other, and those of whoever acts
(principal).
A layer's values are `model`, `situation`, `toolset` and the parameters of a request by their names in `Parameters`.

A turn records its merged configuration, where each value came from, and the layers that threads pass on: those of the
thread and of the session. A turn of the same session that continues it takes over the thread's, and reads its session's
anew; a turn of another session takes over both as its thread. What was set for one message is never passed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from weft.runtime.configuration.permissions import NO_LIMITS, GrantedPermissions, LimitingLayer, PermissionLimits
from weft.runtime.inference.settings import Parameters


class LayerName(StrEnum):
    """Where a part of a configuration stands, the weakest first. `principal` is whoever acts: it only limits."""

    PRINCIPAL = "principal"
    PROVIDER = "provider"
    MODEL = "model"
    SITUATION = "situation"
    PERSONA = "persona"
    TOOLSET = "toolset"
    SPAWNER = "spawner"
    THREAD = "thread"
    SESSION = "session"
    MESSAGE = "message"


_ORDER = tuple(LayerName)
_OF_MODEL = (LayerName.PROVIDER, LayerName.MODEL, LayerName.SITUATION)
_PASSED_ON = (LayerName.SPAWNER, LayerName.THREAD, LayerName.SESSION)
CHOICES = ("model", "situation", "toolset")
"""The values that are no parameters."""


class ConfigLayer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One part of a configuration. `source` names what it is written in: a program, a session, a turn."""

    name: LayerName
    source: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    permissions: PermissionLimits = NO_LIMITS

    @property
    def is_empty(self) -> bool:
        return not self.values and self.permissions == NO_LIMITS


class SourcedValue(Struct, frozen=True):
    """A value that counts, and the layer that it came from."""

    value: Any
    layer: LayerName
    source: str


class EffectiveConfig(Struct, frozen=True, kw_only=True):
    """What a turn is configured with. `not_sent` holds those of the values that its model does not take."""

    values: dict[str, SourcedValue]
    permissions: GrantedPermissions
    layers: tuple[ConfigLayer, ...]
    not_sent: dict[str, Any] = field(default_factory=dict)

    def value(self, key: str) -> Any:
        """None where no layer has it."""
        sourced = self.values.get(key)
        return None if sourced is None else sourced.value

    @property
    def situation(self) -> str | None:
        """The situation that the model is asked in; None also where it does not know the one that was configured."""
        name = self.value("situation")
        return name if isinstance(name, str) and "situation" not in self.not_sent else None

    @property
    def toolset(self) -> str | None:
        """The toolset that the turn is given; None: it has no tools."""
        name = self.value("toolset")
        return name if isinstance(name, str) else None

    @property
    def parameters(self) -> Parameters:
        """Every parameter, whether the model takes it or not."""
        return _parameters(self.values)

    @property
    def request_parameters(self) -> Parameters:
        """The parameters that stand above the model's own and its situation's, as an inference request takes them."""
        return _parameters({key: value for key, value in self.values.items() if value.layer not in _OF_MODEL})

    def sending(self, sendable: Parameters) -> EffectiveConfig:
        """The same, where the model is sent these parameters and no others."""
        sent = sendable.given()
        unsent = {key: value for key, value in self.parameters.given().items() if key not in sent}
        return replace(self, not_sent={**self.not_sent, **unsent})

    def record(self, *, model: str, provider: str, chain: Iterable[str]) -> dict[str, Any]:
        """The JSON of a turn's `effective_config`. `model` and `provider` are the names of the programs."""
        parameters = {key: value for key, value in self.parameters.given().items() if key not in self.not_sent}
        return {
            "model": model,
            "provider": provider,
            "situation": self.situation,
            **({} if self.toolset is None else {"toolset": self.toolset}),
            "parameters": parameters,
            "chain": list(chain),
            "sources": {key: {"layer": str(one.layer), "source": one.source} for key, one in self.values.items()},
            "not_sent": self.not_sent,
            "layers": [msgspec.to_builtins(layer) for layer in passed_on(self.layers)],
        }


def _parameters(values: Mapping[str, SourcedValue]) -> Parameters:
    return Parameters(**{key: one.value for key, one in values.items() if key not in CHOICES})


def merge(layers: Iterable[ConfigLayer]) -> EffectiveConfig:
    """One configuration. A value of a later layer replaces that of an earlier one; permissions intersect."""
    values: dict[str, SourcedValue] = {}
    limits: list[LimitingLayer] = []
    merged = tuple(layers)
    for layer in merged:
        values |= {key: SourcedValue(value, layer.name, layer.source) for key, value in layer.values.items()}
        if layer.permissions != NO_LIMITS:
            limits.append(LimitingLayer(layer.name, layer.source, layer.permissions))
    return EffectiveConfig(values=values, permissions=GrantedPermissions(tuple(limits)), layers=merged)


def is_chosen_above(values: Mapping[str, SourcedValue], key: str, other: str) -> bool:
    """Whether a later layer chose `key` than chose `other`."""
    return key in values and (
        other not in values or _ORDER.index(values[key].layer) > _ORDER.index(values[other].layer)
    )


def passed_on(layers: Iterable[ConfigLayer]) -> list[ConfigLayer]:
    """The layers that a thread passes on: its own, then its spawner's and its session's. Of its own those values are
    left out that a later one replaces, and the limits that an earlier one has: forks of forks do not add up."""
    kept = [layer for layer in layers if layer.name in _PASSED_ON]
    own = [layer for layer in kept if layer.name is LayerName.THREAD]
    last = {key: i for i, layer in enumerate(own) for key in layer.values}
    first = {layer.permissions: i for i, layer in reversed(list(enumerate(own)))}
    own = [
        replace(
            layer,
            values={key: value for key, value in layer.values.items() if last[key] == i},
            permissions=layer.permissions if first[layer.permissions] == i else NO_LIMITS,
        )
        for i, layer in enumerate(own)
    ]
    others = [layer for layer in kept if layer.name is not LayerName.THREAD]
    return [layer for layer in (*own, *others) if not layer.is_empty]


def thread_layers(record: Any, *, same_session: bool) -> list[ConfigLayer]:
    """The layers that a turn takes over from its parent's `effective_config`: from a turn of the same session the
    thread's alone. A record without layers, of an earlier version or an import, passes nothing on."""
    try:
        layers = [_checked(layer) for layer in msgspec.convert(record["layers"], list[ConfigLayer])]
    except (TypeError, KeyError, msgspec.ValidationError):
        return []
    inherited = (LayerName.THREAD,) if same_session else _PASSED_ON
    return [replace(layer, name=LayerName.THREAD) for layer in layers if layer.name in inherited]


def _checked(layer: ConfigLayer) -> ConfigLayer:
    """A recorded layer with values of the right types. Raises ValidationError where one is none of ours."""
    choices = {key: msgspec.convert(layer.values[key], str) for key in CHOICES if key in layer.values}
    others = {key: value for key, value in layer.values.items() if key not in CHOICES}
    return replace(layer, values=choices | msgspec.convert(others, Parameters).given())
