"""The configuration of a turn as a merge of layers: nothing here reads or writes.

A message may be answered otherwise than is configured, and a worker with no more than its spawner's
turn had.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from weft.kernel.authority import Layer
from weft.kernel.errors import InvalidConfig, InvalidInput, NotApplicable, quoted
from weft.programs.program_kinds import PARAMETER_CHECKS, THINKING_CONFIG, thinking_in
from weft.programs.program_records import variables_in
from weft.runtime.inference.model_requests import NO_PARAMETERS, FunctionReference, ModelParameters
from weft.runtime.sandbox.profiles import parse_profile
from weft.runtime.tool.toolsets import (
    NO_LIMITS,
    GrantedPermissions,
    LimitingLayer,
    PermissionLimits,
    SandboxLimits,
    checked_tool_patterns,
    common_tool_patterns,
    sandbox_config,
)

# --- The configuration of a turn as a merge of layers.


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


_OF_MODEL = (LayerName.PROVIDER, LayerName.MODEL, LayerName.SITUATION)
_PASSED_ON = (LayerName.SPAWNER, LayerName.THREAD, LayerName.SESSION, LayerName.MESSAGE)
CHOICES = ("model", "fallback", "situation", "toolset")
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
    place: int = 0
    """Which of the merged layers it is: those of a thread are several of one name."""


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
    def parameters(self) -> ModelParameters:
        """Every parameter, whether the model takes it or not."""
        return _parameters(self.values)

    @property
    def request_parameters(self) -> ModelParameters:
        """The parameters that stand above the model's own and its situation's, as an inference request takes them."""
        return _parameters({key: value for key, value in self.values.items() if value.layer not in _OF_MODEL})

    def sending(self, sendable: ModelParameters) -> EffectiveConfig:
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
            **({} if (fallback := self.value("fallback")) is None else {"fallback": fallback}),
            "situation": self.situation,
            **({} if self.toolset is None else {"toolset": self.toolset}),
            "parameters": parameters,
            "chain": list(chain),
            "sources": {key: {"layer": str(one.layer), "source": one.source} for key, one in self.values.items()},
            "not_sent": self.not_sent,
            "layers": [msgspec.to_builtins(layer) for layer in passed_on(self.layers)],
        }


def _parameters(values: Mapping[str, SourcedValue]) -> ModelParameters:
    return ModelParameters(**{key: one.value for key, one in values.items() if key not in CHOICES})


def merge(layers: Iterable[ConfigLayer]) -> EffectiveConfig:
    """One configuration. A value of a later layer replaces that of an earlier one; permissions intersect."""
    values: dict[str, SourcedValue] = {}
    limits: list[LimitingLayer] = []
    merged = tuple(layers)
    for place, layer in enumerate(merged):
        values |= {key: SourcedValue(value, layer.name, layer.source, place) for key, value in layer.values.items()}
        if layer.permissions != NO_LIMITS:
            limits.append(LimitingLayer(layer.name, layer.source, layer.permissions))
    return EffectiveConfig(values=values, permissions=GrantedPermissions(tuple(limits)), layers=merged)


def is_chosen_above(values: Mapping[str, SourcedValue], key: str, other: str) -> bool:
    """Whether a later layer chose `key` than chose `other`."""
    return key in values and (other not in values or values[key].place > values[other].place)


def passed_on(layers: Iterable[ConfigLayer]) -> list[ConfigLayer]:
    """The layers that a thread passes on: its own, then its spawner's, its session's and the message's. Of its own
    those values are left out that a later one replaces, and the limits that an earlier one has: forks of forks do not
    add up."""
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
    others = [layer for name in _PASSED_ON for layer in kept if layer.name is name is not LayerName.THREAD]
    return [layer for layer in (*own, *others) if not layer.is_empty]


def thread_layers(record: Any, *, same_session: bool, message: MessageOverrides | None) -> list[ConfigLayer]:
    """The layers that a turn takes over from its parent's `effective_config`: from a turn of the same session the
    thread's alone. What the parent's message was sent with is a fork's default, in place of which the fork's own
    `message` may give something else; None: the turn does an earlier one again, and takes nothing over of a message. A
    record without layers, of an earlier version or an import, passes nothing on."""
    try:
        layers = [_checked(layer) for layer in msgspec.convert(record["layers"], list[ConfigLayer])]
    except (TypeError, KeyError, msgspec.ValidationError):
        return []
    inherited = (LayerName.THREAD,) if same_session else _PASSED_ON
    return [
        replace(layer, name=LayerName.THREAD)
        for layer in (_default_layer(layer, message) for layer in layers if layer.name in inherited)
        if not layer.is_empty
    ]


def _default_layer(layer: ConfigLayer, instead: MessageOverrides | None) -> ConfigLayer:
    """A message's layer without what another message gives in place of it."""
    if layer.name is not LayerName.MESSAGE:
        return layer
    if instead is None:
        return ConfigLayer(name=layer.name)
    limits = layer.permissions
    if instead.allow is not None or instead.deny:
        limits = replace(limits, allow=None, deny=())
    if instead.sandbox is not None:
        limits = replace(limits, sandbox=NO_SANDBOX_LIMITS)
    if instead.credentials is not None:
        limits = replace(limits, credentials=None)
    # A situation is one of its model: without the model it means nothing.
    left_out = () if instead.model is None else ("model", "situation")
    values = {key: value for key, value in layer.values.items() if key not in left_out}
    return replace(layer, values=values, permissions=limits)


def _checked(layer: ConfigLayer) -> ConfigLayer:
    """A recorded layer with values of the right types. Raises ValidationError where one is none of ours."""
    choices = {key: msgspec.convert(layer.values[key], str) for key in CHOICES if key in layer.values}
    others = {key: value for key, value in layer.values.items() if key not in CHOICES}
    return replace(layer, values=choices | msgspec.convert(others, ModelParameters).given())


# --- The two spellings of a request's parameters: in configurations `maxTokens`, in `ModelParameters` `max_tokens`.

PARAMETER_NAMES = {
    "temperature": "temperature", "maxTokens": "max_tokens", "topP": "top_p", "topK": "top_k", "minP": "min_p",
    "seed": "seed", "stop": "stop", "presencePenalty": "presence_penalty", "frequencyPenalty": "frequency_penalty",
    "thinking": "thinking", "responseSchema": "response_schema",
}  # fmt: skip
"""By the name in a configuration, that in `ModelParameters`."""
CONFIGURED_NAMES = {own: name for name, own in PARAMETER_NAMES.items()}


def parameters_of(config: Mapping[str, Any], place: str) -> ModelParameters:
    """The parameters among the fields of a configuration; `place` names it in a refusal. A `thinkingConfig` counts
    before `thinking`."""
    values = {own: config[name] for name, own in PARAMETER_NAMES.items() if name in config}
    if THINKING_CONFIG in config:
        values["thinking"] = thinking_in(f"{place}, {THINKING_CONFIG}", config[THINKING_CONFIG])
    try:
        return msgspec.convert(values, ModelParameters, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidConfig(place, str(error), "mend it") from None


# --- What one message is answered with instead of what is configured: a model, a situation, parameters, denied tools.


class MessageOverrides(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """For one message alone. `allow` and `deny` hold patterns of tools, `credentials` ids, `sandbox` a profile: they
    narrow what is configured, and open nothing. Its JSON stands with the message in the inbox."""

    model: str | None = None
    situation: str | None = None
    toolset: str | None = None
    parameters: ModelParameters = NO_PARAMETERS
    deny: tuple[str, ...] = ()
    allow: tuple[str, ...] | None = None
    sandbox: str | None = None
    credentials: tuple[str, ...] | None = None
    system: str | None = None
    """Replaces the system prompt so far."""
    is_root: bool = False
    """Whether its turn begins without anything that was said in the session before."""
    replays: str | None = None
    """The recorded turn that its turn replays: only whoever replays it answers it."""
    functions: tuple[FunctionReference, ...] = ()
    """The functions that the program which sent it gave its turn as tools."""
    rights: tuple[Layer, ...] = ()
    """What its sender was limited to when it was admitted, as by a token: its turn has no other rights."""

    def record(self) -> dict[str, Any] | None:
        """The JSON of an admitted message's `overrides`; None where nothing is set."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        return {key: value for key, value in record.items() if value != {}} or None

    def layer(self, source: str = "") -> ConfigLayer:
        choices = {"model": self.model, "situation": self.situation, "toolset": self.toolset}
        values = {key: value for key, value in choices.items() if value is not None} | self.parameters.given()
        limits = PermissionLimits(
            allow=None if self.allow is None else checked_tool_patterns(self.allow),
            deny=checked_tool_patterns(self.deny),
            credentials=self.credentials,
            sandbox=NO_SANDBOX_LIMITS if self.sandbox is None else _narrowing(self.sandbox),
        )
        return ConfigLayer(name=LayerName.MESSAGE, source=source, values=values, permissions=limits)


NO_SANDBOX_LIMITS = SandboxLimits()


def _narrowing(profile: str) -> SandboxLimits:
    """The sandbox that a profile names, as a limit that opens nothing."""
    limits = msgspec.convert(sandbox_config(parse_profile(profile)), SandboxLimits)
    return replace(limits, only_narrows=True)


NO_OVERRIDES = MessageOverrides()


def read_overrides(record: Any, message: str) -> MessageOverrides:
    """The overrides of an admitted message. Raises InvalidInput where they have another form."""
    try:
        return NO_OVERRIDES if record is None else msgspec.convert(record, MessageOverrides)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the overrides of message {message}: {error}", "send the message again without") from None


def combined_overrides(overrides: Iterable[MessageOverrides]) -> MessageOverrides:
    """One set for messages that are answered together: a later message's value replaces an earlier one's, and every
    limit of any of them counts."""
    combined = NO_OVERRIDES
    for one in overrides:
        combined = MessageOverrides(
            model=one.model or combined.model,
            situation=one.situation or (None if one.model else combined.situation),
            toolset=one.toolset or combined.toolset,
            parameters=one.parameters.over(combined.parameters),
            deny=tuple(dict.fromkeys((*combined.deny, *one.deny))),
            allow=common_tool_patterns(combined.allow, one.allow),
            sandbox=_common_profile(combined.sandbox, one.sandbox),
            credentials=_common_credentials(combined.credentials, one.credentials),
            system=one.system if one.system is not None else combined.system,
            is_root=combined.is_root or one.is_root,
            replays=one.replays or combined.replays,
            functions=tuple(dict.fromkeys((*combined.functions, *one.functions))),
            rights=tuple(dict.fromkeys((*combined.rights, *one.rights))),
        )
    return combined


def _common_profile(one: str | None, other: str | None) -> str | None:
    if one is None or other is None:
        return other if one is None else one
    return str(parse_profile(one).narrowed(parse_profile(other)))


def _common_credentials(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if one is None or other is None:
        return other if one is None else one
    return tuple(id for id in one if id in other)


def parse_overrides(
    *,
    model: str | None = None,
    situation: str | None = None,
    toolset: str | None = None,
    settings: Iterable[str] = (),
    deny: Iterable[str] = (),
    allow: Iterable[str] = (),
    sandbox: str | None = None,
    credentials: Iterable[str] = (),
    thinking: str | None = None,
) -> MessageOverrides:
    """Overrides as a command line gives them; `settings` are texts `KEY=VALUE`, and an empty list says nothing. Raises
    InvalidInput."""
    thinking_setting = () if thinking is None else (f"thinking={thinking}",)
    return MessageOverrides(
        model=model,
        situation=situation,
        toolset=toolset,
        parameters=parse_parameters((*settings, *thinking_setting)),
        deny=checked_tool_patterns(tuple(deny)),
        allow=checked_tool_patterns(tuple(allow)) or None,
        sandbox=None if sandbox is None else str(parse_profile(sandbox)),
        credentials=tuple(dict.fromkeys(credentials)) or None,
    )


def parse_parameters(settings: Iterable[str]) -> ModelParameters:
    """Texts `KEY=VALUE` as parameters. A key is a parameter's name in a model's configuration; a value is JSON or text.
    Of a key that is given twice the last value counts."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise InvalidInput(f"{quoted(setting)} is not KEY=VALUE", "give for example temperature=0.2")
        values[key] = _checked_value(key, _json_or_text(text))
    return parameters_of(values, "--set")


def _checked_value(key: str, value: Any) -> Any:
    if key not in PARAMETER_CHECKS:
        raise InvalidInput(f"{quoted(key)} is no parameter of a model", _meant(key))
    if any(variables_in(value)):
        raise InvalidInput(f"{key}: a message names no variable of the environment", "give the value itself")
    try:
        return PARAMETER_CHECKS[key](key, value)
    except InvalidConfig as error:
        raise InvalidInput(str(error), error.hint) from None


def _meant(key: str) -> str:
    if key in ("model", "situation"):
        return f"give it as --{key}"
    near = [CONFIGURED_NAMES[key]] if key in CONFIGURED_NAMES else get_close_matches(key, PARAMETER_CHECKS, n=1)
    return f"did you mean {near[0]}?" if near else f"one of {', '.join(PARAMETER_CHECKS)}"


def _json_or_text(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


# --- What a worker may do at most: what its spawner's turn was left with, and the toolset that its spawner may give.

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
