"""What one message is answered with instead of what is configured: a model, a situation, parameters, denied tools."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.errors import InvalidConfig, InvalidInput, quoted
from weft.programs.kinds.model import PARAMETER_CHECKS
from weft.programs.placeholders import variables_in
from weft.runtime.configuration.layers import ConfigLayer, LayerName
from weft.runtime.configuration.parameter_names import CONFIGURED_NAMES, parameters_of
from weft.runtime.configuration.permissions import PermissionLimits, checked_tool_patterns
from weft.runtime.inference.settings import NO_PARAMETERS, Parameters


class MessageOverrides(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """For one message alone. `deny` holds patterns of tools. Its JSON stands with the message in the inbox."""

    model: str | None = None
    situation: str | None = None
    toolset: str | None = None
    parameters: Parameters = NO_PARAMETERS
    deny: tuple[str, ...] = ()
    system: str | None = None
    """Replaces the system prompt so far."""
    is_root: bool = False
    """Whether its turn begins without anything that was said in the session before."""
    replays: str | None = None
    """The recorded turn that its turn replays: only whoever replays it answers it."""

    def record(self) -> dict[str, Any] | None:
        """The JSON of an admitted message's `overrides`; None where nothing is set."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        return {key: value for key, value in record.items() if value != {}} or None

    def layer(self, source: str = "") -> ConfigLayer:
        choices = {"model": self.model, "situation": self.situation, "toolset": self.toolset}
        values = {key: value for key, value in choices.items() if value is not None} | self.parameters.given()
        limits = PermissionLimits(deny=checked_tool_patterns(self.deny))
        return ConfigLayer(name=LayerName.MESSAGE, source=source, values=values, permissions=limits)


NO_OVERRIDES = MessageOverrides()


def read_overrides(record: Any, message: str) -> MessageOverrides:
    """The overrides of an admitted message. Raises InvalidInput where they have another form."""
    try:
        return NO_OVERRIDES if record is None else msgspec.convert(record, MessageOverrides)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the overrides of message {message}: {error}", "send the message again without") from None


def combined_overrides(overrides: Iterable[MessageOverrides]) -> MessageOverrides:
    """One set for messages that are answered together: a later message's value replaces an earlier one's, and what any
    of them denies is denied."""
    combined = NO_OVERRIDES
    for one in overrides:
        combined = MessageOverrides(
            model=one.model or combined.model,
            situation=one.situation or (None if one.model else combined.situation),
            toolset=one.toolset or combined.toolset,
            parameters=one.parameters.over(combined.parameters),
            deny=tuple(dict.fromkeys((*combined.deny, *one.deny))),
            system=one.system if one.system is not None else combined.system,
            is_root=combined.is_root or one.is_root,
            replays=one.replays or combined.replays,
        )
    return combined


def parse_overrides(
    *,
    model: str | None = None,
    situation: str | None = None,
    toolset: str | None = None,
    settings: Iterable[str] = (),
    deny: Iterable[str] = (),
) -> MessageOverrides:
    """Overrides as a command line gives them; `settings` are texts `KEY=VALUE`. Raises InvalidInput."""
    return MessageOverrides(
        model=model,
        situation=situation,
        toolset=toolset,
        parameters=parse_parameters(settings),
        deny=checked_tool_patterns(tuple(deny)),
    )


def parse_parameters(settings: Iterable[str]) -> Parameters:
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
