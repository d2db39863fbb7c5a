"""`${VAR}` in a configuration: kept as written, put in at use by whoever may look variables up, never stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from weft.kernel.errors import VariableMissing

PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
Resolver = Callable[[str], str | None]
"""The value of a variable; None where it is not set, or not for this caller."""


def resolve_config(config: Any, resolver: Resolver, path: str = "config") -> Any:
    """The same value with every variable in its place. The answer may hold secrets: it is not to be kept."""
    if isinstance(config, str):
        return PLACEHOLDER.sub(lambda match: _looked_up(match[1], resolver, path), config)
    if isinstance(config, dict):
        return {name: resolve_config(value, resolver, f"{path}.{name}") for name, value in config.items()}
    if isinstance(config, list):
        return [resolve_config(value, resolver, f"{path}[{i}]") for i, value in enumerate(config)]
    return config


def _looked_up(variable: str, resolver: Resolver, path: str) -> str:
    value = resolver(variable)
    if value is None:
        raise VariableMissing(variable, path)
    return value


def variables_in(config: Any) -> Iterator[str]:
    """Every variable that a configuration names."""
    if isinstance(config, str):
        yield from PLACEHOLDER.findall(config)
    for value in config.values() if isinstance(config, dict) else config if isinstance(config, list) else ():
        yield from variables_in(value)


def is_placeholder(value: Any) -> bool:
    return isinstance(value, str) and PLACEHOLDER.fullmatch(value.removeprefix("Bearer ")) is not None
