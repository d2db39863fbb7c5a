"""The configuration of a turn on the command line: the options of a message, and what is shown of the layers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.program_call import acting_for, complete_programs
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.configuration import ConfiguredLimits, ConfiguredTurn, ConfiguredValue

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.runtime.assembly.configuration_layers import EffectiveConfig, MessageOverrides
    from weft.runtime.assembly.turn_configuration import TurnConfiguration
    from weft.runtime.tool.toolsets import LimitingLayer

RUN_TOOLSET = "worker"
"""What `weft agent run` gives a message where nothing names a toolset."""
F = TypeVar("F", bound=Callable[..., Any])
Row = list[Span | str]


def override_options(function: F) -> F:
    """What one message is answered with instead of what is configured; `parse_overrides` takes them."""
    model = complete_programs("model")
    for option in (
        click.option("--deny", metavar="PATTERN", multiple=True, help="A tool that is denied: NAME or NAME(PATTERN)."),
        click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A parameter: temperature=0.2."),
        click.option("--toolset", metavar="NAME", help="What its tools are at most; `weft toolset list` shows them."),
        click.option("--situation", metavar="NAME", help="The situation whose parameters are used."),
        click.option("--model", metavar="NAME", shell_complete=model, help="The model that is asked."),
    ):  # fmt: skip
        function = option(function)
    return function


def ensure_toolset(ledger: Ledger, name: str | None) -> None:
    """Refuse a toolset that there is not before a message names it: a turn for the message would fail."""
    if name is not None:
        from weft.programs import Programs
        from weft.runtime.tool.toolsets import find_toolset

        find_toolset(Programs(ledger), name)


def read_configuration(
    call: Call,
    ledger: Ledger,
    session: str | None,
    overrides: MessageOverrides,
    message: str = "",
    persona: str | None = None,
) -> TurnConfiguration:
    """What the next turn of a session, or of an agent, would be configured with. Variables are looked up in a
    trusted ledger alone."""
    from weft.programs import Programs
    from weft.runtime.assembly.turn_configuration import LayerReader, TurnRequest
    from weft.runtime.inference.inference import Inference

    def variable(name: str) -> str | None:
        ledger.trust.ensure("look up variables of the environment")
        return os.environ.get(name)

    programs = Programs(ledger)
    reader = LayerReader(programs, Inference(), variable, acting_for(call, programs, call.actor))
    return reader.configuration(TurnRequest(session=session, persona=persona, overrides=overrides, message=message))


def configured_turn(label: str, configuration: TurnConfiguration) -> ConfiguredTurn:
    """A configuration as it goes out."""
    effective, model = configuration.effective, configuration.model
    granted = effective.permissions
    return ConfiguredTurn(
        session=label,
        persona=configuration.persona_name,
        model=None if model is None else model.id,
        provider=None if model is None else model.provider.id,
        situation=effective.situation,
        values=tuple(_values(effective, None if model is None else model.id)),
        limits=tuple(map(_limits, granted.layers)),
        credentials=None if granted.credentials is None else tuple(sorted(granted.credentials)),
        files=granted.sandbox.files,
        network=granted.sandbox.network,
        hosts=granted.sandbox.hosts,
    )


def _values(effective: EffectiveConfig, model: str | None) -> Iterator[ConfiguredValue]:
    """The model and the situation, then parameters in the order in which configurations list them. The model is shown
    by its name, however it was addressed."""
    from weft.runtime.assembly.configuration_layers import CHOICES, PARAMETER_NAMES

    names = {name: name for name in CHOICES} | PARAMETER_NAMES
    for name, key in names.items():
        if (sourced := effective.values.get(key)) is not None:
            yield ConfiguredValue(
                key=name,
                value=model if key == "model" else sourced.value,
                layer=sourced.layer,
                source=sourced.source,
                sent=key not in effective.not_sent,
            )


def _limits(layer: LimitingLayer) -> ConfiguredLimits:
    limits = layer.limits
    return ConfiguredLimits(
        layer=layer.layer,
        source=layer.source,
        allow=limits.allow,
        deny=limits.deny,
        credentials=limits.credentials,
        files=limits.sandbox.files,
        network=limits.sandbox.network,
        hosts=limits.sandbox.hosts,
    )


def configuration_rows(turn: ConfiguredTurn) -> Iterator[Row]:
    """One row for each value and each limit: what it is, how it is set, and where."""
    for value in turn.values:
        note = "" if value.sent else " (not sent)"
        yield [Span(value.key, "label"), _text(value.value), _place(value.layer, value.source) + note]
    for limits in turn.limits:
        place = _place(limits.layer, limits.source)
        for key, text in _limit_texts(limits):
            yield [Span(key, "label"), text, place]
    if not any(limits.allow is not None or limits.deny for limits in turn.limits):
        yield [Span("tools", "label"), "all", "no layer limits them"]


def _limit_texts(limits: ConfiguredLimits) -> Iterator[tuple[str, str]]:
    if limits.allow is not None:
        yield "tools allowed", ", ".join(limits.allow) or "none"
    if limits.deny:
        yield "tools denied", ", ".join(limits.deny)
    if limits.credentials is not None:
        yield "credentials", ", ".join(limits.credentials) or "none"
    if limits.files is not None:
        yield "sandbox files", limits.files
    if limits.network is not None:
        yield "sandbox network", "open" if limits.network else "closed"
    if limits.hosts is not None:
        yield "sandbox hosts", ", ".join(limits.hosts) or "none"


def _place(layer: str, source: str) -> str:
    return f"{layer} {source}".rstrip()


def _text(value: Any) -> str:
    from weft.surfaces.wire.json_text import document

    return value if isinstance(value, str) else document(value)
