"""Fields of configurations: each is checked and brought to one form, or refused with its path.

References come in any spelling and are kept as `@(id)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from weft.kernel.enums import ReferenceField
from weft.kernel.errors import InvalidConfig
from weft.programs.addresses import ProgramAddress, parse_address
from weft.programs.placeholders import PLACEHOLDER, is_placeholder

Check = Callable[[str, Any], Any]
"""Takes a path and a value; returns the value in its one form, or raises InvalidConfig."""
RIGHTS = ("approve", "assign", "configure")
RIGHT_PATTERN = re.compile(
    r"(session|turn|content|compaction|program):[a-z*]+(\(.+\))?|(ledger|upkeep|facts|history|secret|remote):[a-z*]+",
    re.DOTALL,
)
"""Rights over sessions, turns and programs, if need be those whose names fit a pattern, and over the whole ledger."""
RUNTIME_FIELDS = ("currentTask", "currentSession", "turnCount", "lastCheckpoint")
"""Read from events, never kept; a configuration that was shown may be given again with them."""
_KEY_ENDINGS = ("key", "token", "secret", "password", "passwd", "authorization")
"""What the names of fields end with that hold keys, however they are spelt."""


class NamedProgram(Struct, frozen=True):
    """A program that a configuration names: as what, where, and of which kind it must be."""

    field: ReferenceField
    path: str
    address: ProgramAddress
    kinds: tuple[str, ...]


def text(path: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidConfig(path, f"{value!r:.80} is no text", "give text")
    return value


def filled(path: str, value: Any) -> str:
    if not text(path, value).strip():
        raise InvalidConfig(path, "is empty", "give text")
    return str(value)


def flag(path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidConfig(path, f"{value!r:.80} is neither true nor false", "give true or false")
    return value


def object_(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidConfig(path, f"{value!r:.80} is no object", "give an object")
    return value


def texts(path: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InvalidConfig(path, f"{value!r:.80} is no list", "give a list of texts")
    return [text(f"{path}[{i}]", item) for i, item in enumerate(value)]


def number(low: float, high: float | None = None) -> Check:
    def check(path: str, value: Any) -> Any:
        if isinstance(value, str) and PLACEHOLDER.fullmatch(value):
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or value < low or (high and value > high):
            raise InvalidConfig(path, f"{value!r:.80} is out of range", f"give a number from {low} to {high or 'any'}")
        return value

    return check


def count(path: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise InvalidConfig(path, f"{value!r:.80} is no count", "give a whole number from 1")
    return value


def member(*of: str) -> Check:
    def check(path: str, value: Any) -> str:
        if value not in of:
            raise InvalidConfig(path, f"{value!r:.80} is not known", f"one of {', '.join(of)}")
        return str(value)

    return check


def members(*of: str) -> Check:
    check_item = member(*of)

    def check(path: str, value: Any) -> list[str]:
        return [check_item(f"{path}[{i}]", item) for i, item in enumerate(texts(path, value))]

    return check


def right_patterns(path: str, value: Any) -> list[str]:
    """Rights that a person or an agent is given."""
    patterns = texts(path, value)
    for i, pattern in enumerate(patterns):
        if pattern not in RIGHTS and RIGHT_PATTERN.fullmatch(pattern) is None:
            hint = f"one of {', '.join(RIGHTS)}, or a right such as session:read(LABEL)"
            raise InvalidConfig(f"{path}[{i}]", f"{pattern!r:.80} is not known", hint)
    return patterns


def fields_of(**fields: Check) -> Check:
    def check(path: str, value: Any) -> dict[str, Any]:
        return {
            name: fields[name](f"{path}.{name}", field) if name in fields else field
            for name, field in object_(path, value).items()
        }

    return check


def reference(path: str, value: Any) -> str:
    return str(parse_address(value, path))


def reference_list(path: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InvalidConfig(path, f"{value!r:.80} is no list", "give a list of addresses")
    return [reference(f"{path}[{i}]", address) for i, address in enumerate(value)]


def no_secret(path: str, value: Any) -> Any:
    """A key stands in the environment, and the configuration names the variable."""
    if not is_placeholder(value):
        raise InvalidConfig(
            path, "would store a secret in the ledger", "write ${VARIABLE}; the key is read from there when it is used"
        )
    return value


def refuse_secrets(path: str, value: Any) -> None:
    """Whatever a field for a key is called, and wherever it stands, it names a variable."""
    for name, field in value.items() if isinstance(value, dict) else ():
        if isinstance(field, str) and name.casefold().endswith(_KEY_ENDINGS):
            no_secret(f"{path}.{name}", field)
        refuse_secrets(f"{path}.{name}", field)
    for i, item in enumerate(value) if isinstance(value, list) else ():
        refuse_secrets(f"{path}[{i}]", item)
