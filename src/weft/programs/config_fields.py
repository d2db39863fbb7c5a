"""Fields of configurations: each is checked and brought to one form, or refused with its path.

What a configuration names of the machine (folders, commands, variables, hosts, sandboxes,
credentials, toolsets) is marked here as such. Whether whoever set a name may use it is decided in
`program_writer`.
"""

from __future__ import annotations

import os.path
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from weft.kernel.authority import CONFIGURE, SandboxFiles
from weft.kernel.enums import CriterionType, ReferenceField
from weft.kernel.errors import InvalidConfig, InvalidInput, WeftError, quoted
from weft.kernel.permission_subjects import ANY_HOST, endpoints_of, host_name, line_subjects
from weft.kernel.typed_names import shell_line
from weft.programs.program_records import (
    PLACEHOLDER,
    ProgramAddress,
    is_placeholder,
    is_same,
    parse_address,
    variables_in,
)

# --- What a configuration says of the machine: folders, commands, variables, hosts, sandboxes, credentials, toolsets.

MACHINE_PREFIX = "machine:"
EVERY_NAME = "**"
"""The subject of a name that cannot be compared: the pattern `*` alone covers it."""


class MachineSort(StrEnum):
    """The sort of a machine's name: folder, command, variable, host, sandbox, credential or toolset."""

    FOLDER = "folder"
    COMMAND = "command"
    VARIABLE = "variable"
    HOST = "host"
    SANDBOX = "sandbox"
    CREDENTIAL = "credential"
    TOOLSET = "toolset"
    UNATTENDED_WRITES = "unattended_writes"
    """The ledger's owner alone sets this; no right stands for it."""


GRANTED_SORTS = tuple(sort for sort in MachineSort if sort is not MachineSort.UNATTENDED_WRITES)
"""The sorts that a permission can be given for."""


class MachineName(Struct, frozen=True, order=True):
    """One name that a field of a configuration holds. `text` is how it is told, `subjects` what a right must cover."""

    path: str
    sort: str
    text: str
    subjects: tuple[str, ...]

    @property
    def right(self) -> str:
        return MACHINE_PREFIX + self.sort

    @property
    def permission(self) -> str:
        """The narrowest permission that covers it."""
        return f"{self.right}({self.text})" if self.subjects == (self.text,) else self.right


Named = tuple[MachineSort, str, tuple[str, ...]]
"""The sort of a name, how it is told, and what a right must cover."""
NamesOf = Callable[[Any], Iterable[Named]]
Widening = Callable[[Any, Any], Iterable[Named]]
"""What a change opens beyond the names of the new value: a limit that is taken away names what it kept closed."""


def _no_names(value: Any) -> Iterable[Named]:
    return ()


def _nothing_more(before: Any, after: Any) -> Iterable[Named]:
    return ()


class MachineField(Struct, frozen=True):
    """What one field names. `within` are the fields of its object, where it is declared as a whole: a new one in the
    object has to be declared as well."""

    names: NamesOf = _no_names
    widened: Widening = _nothing_more
    within: tuple[str, ...] = ()


def _texts_in(value: Any) -> Iterator[str]:
    """Every text in a value, whatever form it has."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _texts_in(item)


# --- names of each sort -------------------------------------------------------------------------------------------


def variables(value: Any) -> Iterator[Named]:
    for name in dict.fromkeys(variables_in(value)):
        yield MachineSort.VARIABLE, name, (name,)


def folders(value: Any) -> Iterator[Named]:
    """A folder as it is written, and where its links lead: both have to be covered."""
    for text in _texts_in(value):
        yield MachineSort.FOLDER, text, folder_subjects(text)
    yield from variables(value)


def folder_subjects(text: str) -> tuple[str, ...]:
    if not text.startswith("/") or "\0" in text or posixpath.normpath(text) != (text.rstrip("/") or "/"):
        return (EVERY_NAME,)
    return tuple(dict.fromkeys((posixpath.normpath(text), os.path.realpath(text))))


def commands(value: Any) -> Iterator[Named]:
    """A command is one text, which a shell reads, or a list of words, which none does. Of a text each command in it has
    to be covered; where it is not known what a shell would run of it, only a right to every command covers it."""
    if isinstance(value, str):
        yield MachineSort.COMMAND, value, line_subjects(value) or (EVERY_NAME,)
    else:
        text = shell_line([str(word) for word in (value if isinstance(value, list) else [value])])
        yield MachineSort.COMMAND, text, (text,)


_PLAIN_CRITERION_FIELDS = frozenset(
    ("type", "path", "min", "max", "exitCode", "timeout", "stdout", "schema", "text", "ignoreCase")
)
"""Fields of success criteria that name nothing of the machine: paths in them lie in the workspace."""


def criterion_commands(value: Any) -> Iterator[Named]:
    """Of success criteria: those that are commands. One of an unknown form, or with an unknown field, may be any."""
    for criterion in value if isinstance(value, list) else [value]:
        if not isinstance(criterion, dict) or criterion.keys() - _PLAIN_CRITERION_FIELDS - {"command"}:
            yield MachineSort.COMMAND, quoted(criterion), (EVERY_NAME,)
        elif criterion.get("type") == CriterionType.COMMAND or "command" in criterion:
            yield from commands(criterion.get("command"))


def urls(value: Any) -> Iterator[Named]:
    """The hosts of URLs."""
    for text in _texts_in(value):
        yield MachineSort.HOST, text, (_host_of_url(text),)
    yield from variables(value)


def _host_of_url(url: str) -> str:
    if any(sign in url for sign in "\\@${}") or any(sign.isspace() for sign in url):
        return EVERY_NAME  # readers of URLs differ on where the host of such a text ends
    try:
        return host_name(urlsplit(url).hostname or "")
    except (InvalidInput, ValueError):
        return EVERY_NAME


def services(value: Any) -> Iterator[Named]:
    """A vendor, or an account there: a host by another name."""
    for text in _texts_in(value):
        yield MachineSort.HOST, text, (text if text and text.isascii() and text.isprintable() else EVERY_NAME,)
    yield from variables(value)


def private_hosts(value: Any) -> Iterator[Named]:
    """Whether hosts of one's own network may be reached."""
    if value not in (None, False):
        yield MachineSort.HOST, "private addresses", (EVERY_NAME,)
    yield from variables(value)


def credentials(value: Any) -> Iterator[Named]:
    for text in _texts_in(value):
        yield MachineSort.CREDENTIAL, text, (text,)
    yield from variables(value)


def toolsets(value: Any) -> Iterator[Named]:
    for text in _texts_in(value):
        yield MachineSort.TOOLSET, text, (text,)


def channels(value: Any) -> Iterator[Named]:
    """How a person is told: `command` runs the command of this machine."""
    if value not in (None, "terminal", "webhook"):
        yield MachineSort.COMMAND, f"notificationChannel={value}", (EVERY_NAME,)


def unattended_writes(value: Any) -> Iterator[Named]:
    if value not in (None, False):
        yield MachineSort.UNATTENDED_WRITES, "true", (EVERY_NAME,)


# --- limits: what narrows, and names something where it is wider than without it, or is taken away -------------------

_WIDTH = {None: 3, SandboxFiles.EVERYTHING: 2, SandboxFiles.WORKSPACE: 1, SandboxFiles.READ_ONLY: 0}
"""How much a layer leaves open of the files; one that says nothing leaves all to the others."""


def _field_of(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def sandboxes(value: Any) -> Iterator[Named]:
    """What a sandbox opens beyond one that nothing is said of: files outside, and hosts."""
    files, hosts, network = (_field_of(value, name) for name in ("files", "hosts", "network"))
    if files not in (None, *SandboxFiles) or files == SandboxFiles.EVERYTHING:
        yield MachineSort.SANDBOX, str(files), (str(files),)
    if hosts is not None:
        for host in _texts_in(hosts):
            yield MachineSort.HOST, host, _host_subjects(host)
    elif network not in (None, False):
        yield MachineSort.HOST, ANY_HOST, (EVERY_NAME,)
    yield from variables(value)


def _host_subjects(text: str) -> tuple[str, ...]:
    """A right to a host is one to all its ports."""
    try:
        hosts = {endpoint.host for endpoint in endpoints_of([text])}
    except InvalidInput:
        return (EVERY_NAME,)
    return tuple(EVERY_NAME if host == ANY_HOST else host for host in sorted(hosts))


def _widened_sandbox(before: Any, after: Any) -> Iterator[Named]:
    old, new = _field_of(before, "files"), _field_of(after, "files")
    if _WIDTH.get(new, 3) > _WIDTH.get(old, 3):
        subject = SandboxFiles.EVERYTHING.value if new is None else str(new)
        yield MachineSort.SANDBOX, subject, (subject,)
    was_closed = _field_of(before, "network") is False and _field_of(after, "network") is not False
    was_listed = _field_of(before, "hosts") is not None and _field_of(after, "hosts") is None
    if was_closed or (was_listed and _field_of(after, "network") is not False):
        yield MachineSort.HOST, ANY_HOST, (EVERY_NAME,)


def _widened_credentials(before: Any, after: Any) -> Iterator[Named]:
    """A list of credentials narrows: more are named where one is added to it, and all where it is taken away."""
    if isinstance(before, list) and not isinstance(after, list):
        yield MachineSort.CREDENTIAL, "*", (EVERY_NAME,)
    elif isinstance(before, list):
        for text in _texts_in([name for name in after if name not in before]):
            yield MachineSort.CREDENTIAL, text, (text,)


NOTHING = MachineField()
"""Nothing of the machine, and nothing puts a variable in: a title, a text, the source of a program."""
TEMPLATE = MachineField(_no_names, _nothing_more)
"""A text in which `${…}` stands for something else than a variable."""
VARIABLES = MachineField(variables)
"""Nothing but the variables that stand in it."""
FOLDER, COMMAND_LIST = MachineField(folders), MachineField(criterion_commands)
URL, SERVICE, PRIVATE_HOSTS = MachineField(urls), MachineField(services), MachineField(private_hosts)
CREDENTIAL, TOOLSET, CHANNEL = MachineField(credentials), MachineField(toolsets), MachineField(channels)
UNATTENDED = MachineField(unattended_writes)
SANDBOX = MachineField(sandboxes, _widened_sandbox, within=("files", "network", "hosts"))
CREDENTIAL_LIMIT = MachineField(widened=_widened_credentials)


def command_or_variable(value: Any) -> Iterator[Named]:
    """The variable that holds a command, or a command."""
    yield from commands(value)
    yield from variables(value)


COMMAND = MachineField(command_or_variable)


def value_at(config: Any, path: str) -> Any:
    """What stands at a place; None where there is nothing."""
    for name in path.split("."):
        if not isinstance(config, dict) or name not in config:
            return None
        config = config[name]
    return config


def names_in(fields: Mapping[str, MachineField], config: Any) -> frozenset[MachineName]:
    """Everything of the machine that a configuration names."""
    names: set[MachineName] = set()
    for path, field in fields.items():
        value = value_at(config, path)
        if value is not None:
            names.update(_machine_names(path, field.names(value)))
    return frozenset(names)


def names_of_change(fields: Mapping[str, MachineField], before: Any, after: Any) -> list[MachineName]:
    """What a change names: what was not named there before, and what limits kept closed that are wider now."""
    names = set(names_in(fields, after) - names_in(fields, before))
    for path, field in fields.items():
        names.update(_machine_names(path, field.widened(value_at(before, path), value_at(after, path))))
    return sorted(names)


def is_kept(fields: Mapping[str, MachineField], before: Any, after: Any) -> bool:
    """Whether a change leaves everything alone that concerns the machine: every name, every limit, and every variable,
    also where nothing puts one in."""

    def concerns(config: Any) -> Any:
        limits = [value_at(config, path) for path, field in fields.items() if field.widened is not _nothing_more]
        templates = {path for path, field in fields.items() if field is TEMPLATE}
        texts = {name: value for name, value in config.items() if name not in templates}
        return names_in(fields, config), limits, frozenset(variables_in(texts))

    return bool(concerns(before) == concerns(after))


def _machine_names(path: str, names: Iterable[Named]) -> Iterator[MachineName]:
    for sort, text, subjects in names:
        yield MachineName(path, sort.value, text, subjects)


# --- Fields of configurations: each is checked and brought to one form, or refused with its path.

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
    faults = ConfigFaults()
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


class ConfigFaults:
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


class ConfigFields:
    """The check of an object, field by field. Fields that it does not know pass; `unknown_fields` finds those."""

    def __init__(self, fields: Mapping[str, Check]) -> None:
        self.fields = fields

    def __call__(self, path: str, value: Any) -> dict[str, Any]:
        faults = ConfigFaults()
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
            elif isinstance(check, ConfigFields | NamedObjects):
                yield from check.unknown_in(field, (*above, name))

    def names(self, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """The places of all known fields, those of objects in it after it."""
        for name, check in self.fields.items():
            yield (*above, name)
            if isinstance(check, ConfigFields):
                yield from check.names((*above, name))


class NamedObjects:
    """The check of an object whose values are objects of one form, under names of the user's own."""

    def __init__(self, form: ConfigFields) -> None:
        self.form = form

    def __call__(self, path: str, value: Any) -> dict[str, Any]:
        return ConfigFields(dict.fromkeys(object_(path, value), self.form))(path, value)

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

    def refusal(self, kind: str, form: ConfigFields) -> InvalidConfig:
        meant = self._meant_field(form)
        if meant is not None:
            hint = f"did you mean {meant}? What is your own stands under {METADATA}"
        else:
            known = ", ".join(name for name in self.known if name != METADATA)
            hint = f"what is your own stands under {METADATA}; {'.'.join((kind, *self.place[:-1]))} takes {known}"
        return InvalidConfig(self.path, "is a field that nothing reads", hint)

    def _meant_field(self, form: ConfigFields) -> str | None:
        """The field of this name, nearly, beside it; else elsewhere in the configuration."""
        near = get_close_matches(self.place[-1], self.known, n=1)
        if near:
            return ".".join((*self.place[:-1], near[0]))
        places = {place[-1]: ".".join(place) for place in form.names()}
        near = get_close_matches(self.place[-1], places, n=1)
        return places[near[0]] if near else None


def unknown_fields(form: ConfigFields, config: dict[str, Any], earlier: Iterable[Any]) -> Iterator[UnknownField]:
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


COMPACTION = ConfigFields(
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
