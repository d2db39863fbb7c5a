"""The answer of `config`: what the next turn of a session is configured with."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class ConfiguredValue(Struct, frozen=True, kw_only=True):
    """One value that counts, by its name in configurations, and where it comes from. `sent` is false for what the model
    does not take."""

    key: str
    value: Any
    layer: str
    source: str
    sent: bool


class ConfiguredLimits(Struct, frozen=True, kw_only=True):
    """What one layer leaves of tools, credentials and the sandbox; what is null it does not limit."""

    layer: str
    source: str
    allow: tuple[str, ...] | None
    deny: tuple[str, ...]
    credentials: tuple[str, ...] | None
    files: str | None
    network: bool | None
    hosts: tuple[str, ...] | None


class ConfiguredTurn(Struct, frozen=True, kw_only=True):
    """`config`: how the next message to a session would be answered. `credentials`, `files`, `network` and `hosts` are
    what all layers together leave."""

    session: str
    persona: str
    model: str | None
    provider: str | None
    situation: str | None
    values: tuple[ConfiguredValue, ...]
    limits: tuple[ConfiguredLimits, ...]
    credentials: tuple[str, ...] | None
    files: str | None
    network: bool | None
    hosts: tuple[str, ...] | None
