"""Fields of configurations: each is checked and brought to one form, or refused with its path.

References come in any spelling and are kept as `@(id)`. All faults of a configuration are collected before it is
refused. A field that nothing reads is a fault, too; the refusal names the field that was probably meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct

from weft.kernel.authority import CONFIGURE
from weft.kernel.enums import ReferenceField
from weft.kernel.errors import InvalidConfig, InvalidInput, WeftError, quoted
from weft.kernel.permission_subjects import endpoints_of
from weft.programs.addresses import ProgramAddress, parse_address
from weft.programs.json_values import is_same
from weft.programs.machine_names import GRANTED_SORTS
from weft.programs.placeholders import PLACEHOLDER, is_placeholder

Check = Callable[[str, Any], Any]
"""Takes a path and a value; returns the value in its one form, or raises InvalidConfig."""
RIGHTS = ("approve", "assign", CONFIGURE)
RIGHT_PATTERN = re.compile(
    r"(session|turn|content|compaction|program|resource|machine):[a-z*]+(\(.+\))?|configure\(.+\)|"
    r"(ledger|upkeep|facts|history|secret|remote|policy|approval):[a-z*]+",
    re.DOTALL,
)
"""Rights over sessions, turns and programs, if need be those whose names fit a pattern, and over the whole ledger."""
RIGHTS_BY_NAME = tuple(
    f"{what}:{verb}"
    for what, verbs in {
        "session": "read create move rename archive delete settle",
        "turn": "record merge",
        "compaction": "record choose",
        "content": "put erase",
        "program": "read",
        "resource": "change",
        "machine": " ".join(GRANTED_SORTS),
    }.items()
    for verb in verbs.split()
)
"""Rights that can be given for some sessions, programs or names alone: `session:read(notes-*)`."""
WHOLE_RIGHTS = (
    "ledger:read", "upkeep:rebuild", "upkeep:pack", "facts:import", "history:import", "secret:ignore", "remote:change",
    "policy:propose", "policy:activate", "approval:answer",
    *(f"room:{verb}" for verb in "read create post add invite remove leave title archive fork".split()),
)  # fmt: skip
"""Rights over the whole ledger."""
METADATA = "metadata"
"""The field that holds what users keep for themselves."""
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
        raise InvalidConfig(path, f"{quoted(value)} is no text", "give text")
    return value


def filled(path: str, value: Any) -> str:
    if not text(path, value).strip():
        raise InvalidConfig(path, "is empty", "give text")
    return str(value)


def email(path: str, value: Any) -> str:
    address = filled(path, value)
    name, at, host = address.partition("@")
    if not (name and at and host) or "@" in host or any(letter.isspace() for letter in address):
        raise InvalidConfig(path, f"{quoted(address)} is no address of mail", "write it as NAME@HOST")
    return address


def flag(path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidConfig(path, f"{quoted(value)} is neither true nor false", "give true or false")
    return value


def object_(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidConfig(path, f"{quoted(value)} is no object", "give an object")
    return value


def texts(path: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InvalidConfig(path, f"{quoted(value)} is no list", "give a list of texts")
    return [text(f"{path}[{i}]", item) for i, item in enumerate(value)]


def host_list(path: str, value: Any) -> list[str]:
    """Names of servers: `HOST`, `HOST:PORT` or `*`."""
    hosts = texts(path, value)
    for i, host in enumerate(hosts):
        try:
            endpoints_of([host])
        except InvalidInput as error:
            raise InvalidConfig(f"{path}[{i}]", f"{quoted(host)} is no host", error.hint) from None
    return hosts


def number(low: float, high: float | None = None) -> Check:
    def check(path: str, value: Any) -> Any:
        if isinstance(value, str) and PLACEHOLDER.fullmatch(value):
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or value < low or (high and value > high):
            raise InvalidConfig(
                path, f"{quoted(value)} is out of range", f"give a number from {low} to {high or 'any'}"
            )
        return value

    return check


def count(path: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise InvalidConfig(path, f"{quoted(value)} is no count", "give a whole number from 1")
    return value


def amount(path: str, value: Any) -> float:
    """Of money, in dollars."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InvalidConfig(path, f"{quoted(value)} is no amount", "give a number of dollars above 0")
    return value


def whole_number(path: str, value: Any) -> int:
    if type(value) is not int:
        raise InvalidConfig(path, f"{quoted(value)} is no whole number", "give a whole number")
    return value


def anything(path: str, value: Any) -> Any:
    """Any JSON value."""
    return value


def member(*of: str) -> Check:
    def check(path: str, value: Any) -> str:
        if value not in of:
            raise InvalidConfig(path, f"{quoted(value)} is not known", f"one of {', '.join(of)}")
        return str(value)

    return check


def right_patterns(path: str, value: Any) -> list[str]:
    """Rights that a person or an agent is given. One that allows nothing, as it fits no right, is refused."""
    patterns = texts(path, value)
    faults = Faults()
    for i, pattern in enumerate(patterns):
        name, subject, _ = pattern.partition("(")
        rights = (*RIGHTS_BY_NAME, CONFIGURE) if subject else (*RIGHTS_BY_NAME, *WHOLE_RIGHTS)
        fits = RIGHT_PATTERN.fullmatch(pattern) is not None and any(fnmatchcase(right, name) for right in rights)
        if pattern not in RIGHTS and not fits:
            near = get_close_matches(name, (*RIGHTS, *rights), n=1)
            hint = f"one of {', '.join(RIGHTS)}, or a right such as session:read(LABEL)"
            hint = f"did you mean {near[0]}{pattern.removeprefix(name)}?" if near else hint
            faults.errors.append(InvalidConfig(f"{path}[{i}]", f"{quoted(pattern)} is not known", hint))
    faults.raise_any()
    return patterns


def one_of(*checks: Check) -> Check:
    """The first check that a value passes; where it passes none, the last refusal."""

    def check(path: str, value: Any) -> Any:
        for first in checks[:-1]:
            try:
                return first(path, value)
            except InvalidConfig:
                continue
        return checks[-1](path, value)

    return check


def or_variable(check: Check) -> Check:
    """What the check takes, or the variable that holds it."""

    def check_value(path: str, value: Any) -> Any:
        return value if is_placeholder(value) else check(path, value)

    return check_value


class Faults:
    """The refusals of several checks, raised together. `place` is what they are about."""

    def __init__(self, place: str = "config") -> None:
        self.place, self.errors = place, list[WeftError]()

    def check(self, check: Check, path: str, value: Any) -> Any:
        """The value in its one form; a refusal is noted, and the value returned as it is."""
        try:
            return check(path, value)
        except InvalidConfig as error:
            self.errors += error.faults or (error,)
        return value

    def raise_any(self) -> None:
        """A single refusal as it is, several as one."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            lines = [f"{fault} ({fault.hint})" if fault.hint else str(fault) for fault in self.errors]
            listed = "\n".join([f"{len(lines)} faults", *(" ".join(line.split("\n")) for line in lines)])
            raise InvalidConfig(self.place, listed, faults=self.errors)


class Fields:
    """The check of an object, field by field. Fields that it does not know pass; `unknown_fields` finds those."""

    def __init__(self, fields: Mapping[str, Check]) -> None:
        self.fields = fields

    def __call__(self, path: str, value: Any) -> dict[str, Any]:
        faults = Faults()
        checked = {
            name: faults.check(self.fields[name], f"{path}.{name}", field) if name in self.fields else field
            for name, field in object_(path, value).items()
        }
        faults.raise_any()
        return checked

    def unknown_in(self, value: Any, above: tuple[str, ...]) -> Iterator[UnknownField]:
        for name, field in value.items() if isinstance(value, dict) else ():
            check = self.fields.get(name)
            if check is None:
                yield UnknownField((*above, name), field, tuple(self.fields))
            elif isinstance(check, Fields | NamedObjects):
                yield from check.unknown_in(field, (*above, name))

    def names(self, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """The places of all known fields, those of objects in it after it."""
        for name, check in self.fields.items():
            yield (*above, name)
            if isinstance(check, Fields):
                yield from check.names((*above, name))


class NamedObjects:
    """The check of an object whose values are objects of one form, under names of the user's own."""

    def __init__(self, form: Fields) -> None:
        self.form = form

    def __call__(self, path: str, value: Any) -> dict[str, Any]:
        return Fields(dict.fromkeys(object_(path, value), self.form))(path, value)

    def unknown_in(self, value: Any, above: tuple[str, ...]) -> Iterator[UnknownField]:
        for name, field in value.items() if isinstance(value, dict) else ():
            yield from self.form.unknown_in(field, (*above, name))


class UnknownField(Struct, frozen=True):
    """A field that nothing reads: where it stands, what it holds, and the fields that could stand there."""

    place: tuple[str, ...]
    value: Any
    known: tuple[str, ...]

    @property
    def path(self) -> str:
        return ".".join(("config", *self.place))

    def stands_in(self, config: Any) -> bool:
        """Whether a configuration holds the same at the same place."""
        for name in self.place:
            if not isinstance(config, dict) or name not in config:
                return False
            config = config[name]
        return is_same(config, self.value)

    def refusal(self, kind: str, form: Fields) -> InvalidConfig:
        meant = self._meant(form)
        if meant is not None:
            hint = f"did you mean {meant}? What is your own stands under {METADATA}"
        else:
            known = ", ".join(name for name in self.known if name != METADATA)
            hint = f"what is your own stands under {METADATA}; {'.'.join((kind, *self.place[:-1]))} takes {known}"
        return InvalidConfig(self.path, "is a field that nothing reads", hint)

    def _meant(self, form: Fields) -> str | None:
        """The field of this name, nearly, beside it; else elsewhere in the configuration."""
        near = get_close_matches(self.place[-1], self.known, n=1)
        if near:
            return ".".join((*self.place[:-1], near[0]))
        places = {place[-1]: ".".join(place) for place in form.names()}
        near = get_close_matches(self.place[-1], places, n=1)
        return places[near[0]] if near else None


def unknown_fields(form: Fields, config: dict[str, Any], earlier: Iterable[Any]) -> Iterator[UnknownField]:
    """Fields that nothing reads, but for those that an earlier version holds likewise: another ledger may have
    written them, and they are kept."""
    fields = list(form.unknown_in(config, ()))
    versions = list(earlier) if fields else []
    yield from (field for field in fields if not any(field.stands_in(version) for version in versions))


def reference(path: str, value: Any) -> str:
    return str(parse_address(value, path))


def reference_list(path: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InvalidConfig(path, f"{quoted(value)} is no list", "give a list of addresses")
    return [reference(f"{path}[{i}]", address) for i, address in enumerate(value)]


def no_secret(path: str, value: Any) -> Any:
    """A key stands in the environment, and the configuration names the variable."""
    if not is_placeholder(value):
        raise plain_key(path)
    return value


def plain_keys(path: str, value: Any) -> Iterator[InvalidConfig]:
    """Fields for keys that hold one. Whatever such a field is called, and wherever it stands, it names a variable."""
    for name, field in value.items() if isinstance(value, dict) else ():
        if isinstance(field, str) and name.casefold().endswith(_KEY_ENDINGS) and not is_placeholder(field):
            yield plain_key(f"{path}.{name}")
        yield from plain_keys(f"{path}.{name}", field)
    for i, item in enumerate(value) if isinstance(value, list) else ():
        yield from plain_keys(f"{path}[{i}]", item)


def plain_key(path: str) -> InvalidConfig:
    return InvalidConfig(
        path, "would store a secret in the ledger", "write ${VARIABLE}; the key is read from there when it is used"
    )


COMPACTION = Fields(
    {
        "model": reference,
        "strategy": filled,
        "threshold": number(0.05, 1),
        "everyTurns": or_variable(count),
        "everyTokens": or_variable(count),
        "keep": or_variable(whole_number),
        "focus": filled,
        "automatic": or_variable(flag),
    }
)
"""How a session is compacted by itself: a field of sessions and of agents."""
