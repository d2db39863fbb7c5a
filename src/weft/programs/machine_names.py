"""What a configuration says of the machine: folders, commands, variables, hosts, sandboxes, credentials, toolsets.

Every kind of program declares for each of its fields what the field names, or that it names nothing; a field without
such a declaration is refused when the kind is made. A name is asked about as the right `machine:SORT` with the name as
its subject: `machine:folder(/srv/notes*)`, `machine:host(*.example.com)`. What cannot be read with certainty stands for
every name of its sort, so that only a right to all of them covers it.
"""

from __future__ import annotations

import os.path
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from weft.kernel.authority import SandboxFiles
from weft.kernel.enums import CriterionType
from weft.kernel.errors import InvalidInput, quoted
from weft.kernel.permission_subjects import ANY_HOST, endpoints_of, host_name, line_subjects
from weft.kernel.typed_names import shell_line
from weft.programs.placeholders import variables_in

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


def _nothing(value: Any) -> Iterable[Named]:
    return ()


def _nothing_more(before: Any, after: Any) -> Iterable[Named]:
    return ()


class MachineField(Struct, frozen=True):
    """What one field names. `within` are the fields of its object, where it is declared as a whole: a new one in the
    object has to be declared as well."""

    names: NamesOf = _nothing
    widened: Widening = _nothing_more
    within: tuple[str, ...] = ()


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, whatever form it has."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _texts(item)


# --- names of each sort -------------------------------------------------------------------------------------------


def variables(value: Any) -> Iterator[Named]:
    for name in dict.fromkeys(variables_in(value)):
        yield MachineSort.VARIABLE, name, (name,)


def folders(value: Any) -> Iterator[Named]:
    """A folder as it is written, and where its links lead: both have to be covered."""
    for text in _texts(value):
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
    for text in _texts(value):
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
    for text in _texts(value):
        yield MachineSort.HOST, text, (text if text and text.isascii() and text.isprintable() else EVERY_NAME,)
    yield from variables(value)


def private_hosts(value: Any) -> Iterator[Named]:
    """Whether hosts of one's own network may be reached."""
    if value not in (None, False):
        yield MachineSort.HOST, "private addresses", (EVERY_NAME,)
    yield from variables(value)


def credentials(value: Any) -> Iterator[Named]:
    for text in _texts(value):
        yield MachineSort.CREDENTIAL, text, (text,)
    yield from variables(value)


def toolsets(value: Any) -> Iterator[Named]:
    for text in _texts(value):
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


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def sandboxes(value: Any) -> Iterator[Named]:
    """What a sandbox opens beyond one that nothing is said of: files outside, and hosts."""
    files, hosts, network = (_part(value, name) for name in ("files", "hosts", "network"))
    if files not in (None, *SandboxFiles) or files == SandboxFiles.EVERYTHING:
        yield MachineSort.SANDBOX, str(files), (str(files),)
    if hosts is not None:
        for host in _texts(hosts):
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
    old, new = _part(before, "files"), _part(after, "files")
    if _WIDTH.get(new, 3) > _WIDTH.get(old, 3):
        subject = SandboxFiles.EVERYTHING.value if new is None else str(new)
        yield MachineSort.SANDBOX, subject, (subject,)
    was_closed = _part(before, "network") is False and _part(after, "network") is not False
    was_listed = _part(before, "hosts") is not None and _part(after, "hosts") is None
    if was_closed or (was_listed and _part(after, "network") is not False):
        yield MachineSort.HOST, ANY_HOST, (EVERY_NAME,)


def _widened_credentials(before: Any, after: Any) -> Iterator[Named]:
    """A list of credentials narrows: more are named where one is added to it, and all where it is taken away."""
    if isinstance(before, list) and not isinstance(after, list):
        yield MachineSort.CREDENTIAL, "*", (EVERY_NAME,)
    elif isinstance(before, list):
        for text in _texts([name for name in after if name not in before]):
            yield MachineSort.CREDENTIAL, text, (text,)


NOTHING = MachineField()
"""Nothing of the machine, and nothing puts a variable in: a title, a text, the source of a program."""
TEMPLATE = MachineField(_nothing, _nothing_more)
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
            names.update(_made(path, field.names(value)))
    return frozenset(names)


def names_of_change(fields: Mapping[str, MachineField], before: Any, after: Any) -> list[MachineName]:
    """What a change names: what was not named there before, and what limits kept closed that are wider now."""
    names = set(names_in(fields, after) - names_in(fields, before))
    for path, field in fields.items():
        names.update(_made(path, field.widened(value_at(before, path), value_at(after, path))))
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


def _made(path: str, names: Iterable[Named]) -> Iterator[MachineName]:
    for sort, text, subjects in names:
        yield MachineName(path, sort.value, text, subjects)
