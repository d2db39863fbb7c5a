"""Programs as values: what the verbs give back, addresses, placeholders, JSON values, their reach.

`@(id)` names a program, `@(id:version)` one version of its configuration. `${VAR}` in a
configuration is kept as written and put in at use by whoever may look variables up. Nothing here
reads or writes a ledger.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.clock import is_ulid
from weft.kernel.errors import InvalidConfig, InvalidInput, LimitExceeded, VariableMissing, quoted
from weft.kernel.program_events import PROGRAM_KINDS
from weft.ledger.arguments import checked_label
from weft.ledger.model import DEFAULT_AGENT, IMPORTED_AGENT
from weft.ledger.views.rows import RequestRow
from weft.store.port import ReadTxn
from weft.store.replicas import AuthoredEvent, authored_event

# --- What the verbs give back: programs, their history, verdicts and requests.


class UnvouchedName(Struct, frozen=True, kw_only=True):
    """A folder, a command or the like that a configuration names at a place. `by` are the names of those who set it and
    may not name it, whoever acted first."""

    path: str
    sort: str
    text: str
    by: tuple[str, ...]


class Program(Struct, frozen=True, kw_only=True):
    """One program as it is now. `name` is its id as people type it, `id` the one that was minted for it."""

    id: str
    name: str
    kind: str
    state: str
    """As it is now. Of an agent, what its open turns make of the state that its own events left it in."""
    config: Any
    """As it was given, placeholders included; None where nobody described it, a word where it was erased."""
    version: int
    tags: list[str]
    created_at: int
    updated_at: int
    created_by: str
    deleted: bool = False
    applied: bool = False
    foreign: bool = False
    """This configuration is what another ledger says: nobody here wrote it or took it over, and nothing uses it."""
    unvouched: tuple[UnvouchedName, ...] = ()
    """What it names of the machine and was set by somebody who may not: nothing uses such a configuration."""
    pending_version: int | None = None
    """The newest version, where another ledger wrote it and nobody here has taken it over."""
    current_task: str | None = None
    current_session: str | None = None
    turn_count: int | None = None
    last_checkpoint: int | None = None
    result: str | None = None
    shared_with: tuple[str, ...] = ()
    """The people and agents that an agent was shared with: it works for them though it is private."""
    state_by_events: str | None = None
    """The state that an agent's own events left it in, where its open turns make it another."""

    @property
    def recorded_state(self) -> str:
        """What steps start from, and what work on a task is decided by."""
        return self.state_by_events or self.state

    @property
    def address(self) -> str:
        return f"@({self.name})"

    @property
    def visibility(self) -> str:
        """`private`, or `public` where its configuration says nothing."""
        config = self.config if isinstance(self.config, dict) else {}
        return str(config.get("visibility", "public"))

    @property
    def activity(self) -> dict[str, Any]:
        """What an agent is doing, as far as it does anything."""
        fields = {
            "currentTask": self.current_task,
            "currentSession": self.current_session,
            "turnCount": self.turn_count,
            "lastCheckpoint": self.last_checkpoint,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def shape(self) -> dict[str, Any]:
        """The program as one JSON object: what is going on stands in its configuration, as far as there is any."""
        state_field = "state" if PROGRAM_KINDS[self.kind].is_activity else "lifecycle"
        config = {**(self.config or {}), **self.activity} if isinstance(self.config, dict | None) else self.config
        shape = {
            "id": self.name,
            "type": "program",
            "programType": self.kind,
            state_field: self.state,
            "config": config,
            "version": self.version,
            "tags": self.tags,
            "ulid": self.id,
            "createdAt": self.created_at,
            "updatedAt": self.updated_at,
            "createdBy": self.created_by,
        }
        return {
            **shape,
            **({"deleted": True} if self.deleted else {}),
            **({"foreign": True} if self.foreign else {}),
            **({"pendingVersion": self.pending_version} if self.pending_version is not None else {}),
            **({"result": self.result} if self.result else {}),
            **({"sharedWith": list(self.shared_with)} if self.shared_with else {}),
        }


class ProgramChange(Struct, frozen=True, kw_only=True):
    """One event of a program's history; `config` where it brought one."""

    n: int
    kind: str
    state: str
    version: int
    at: int
    actor: str
    reason: str | None = None
    config: Any = None
    replica: str | None = None
    """The replica that wrote it."""
    foreign: bool = False
    """A configuration or an answer of another ledger, which nobody here has taken over."""


class Difference(Struct, frozen=True):
    """One place at which two configurations differ; what is not there is None, and `before` or `after` says so."""

    path: str
    before: Any
    after: Any
    how: str
    """added, removed or changed"""


class CriterionVerdict(Struct, frozen=True, kw_only=True):
    """A success criterion held against what is there."""

    criterion: int
    type: str
    passed: bool
    observed: Any
    told: str = ""


class RecordedVerdict(Struct, frozen=True, kw_only=True):
    """A verdict that was recorded."""

    criterion: int
    type: str
    passed: bool
    observed: Any
    version: int
    at: int
    n: int
    """The arrival number of its event."""
    turn: str | None = None
    """The turn whose answer was judged; None where none is named, or where another ledger says so and nobody here took
    that over."""


class PersonRequest(Struct, frozen=True, kw_only=True):
    """What a person was told, or asked. Pending, approved and rejected are those that ask. An answer counts that was
    given here, or taken over here."""

    id: str
    human: str
    text: str | None
    asks: bool
    status: str
    asked_by: str
    asked_at: int
    program: str | None = None
    data: Any = None
    decided_at: int | None = None
    reason: str | None = None
    pending_answer: str | None = None
    """What another ledger says was answered, where nobody here has taken that over."""


class PendingItem(Struct, frozen=True, kw_only=True):
    """One decision of another ledger, by the id of its event."""

    id: str
    kind: str
    """A kind of program whose configuration it is, `approval` or `erasure`."""
    name: str
    """The program's name, the request's id, or the reference of the content."""
    what: str
    """In a few words: `version 5`, `approved`, `erased`."""
    status: str
    """waiting, taken or refused"""
    replica: str | None
    """The replica that wrote it."""
    actor: str
    at: int
    number: int
    """The arrival number of its event."""
    node: str
    """The ulid of the program, session or person; of an erasure the content's reference."""
    version: int | None = None
    counted_version: int | None = None
    """The version of the program that counts here; None where none does."""
    config: Any = None
    text: str | None = None
    """What the person was asked, or why it was erased."""


class TaggedNode(Struct, frozen=True, kw_only=True):
    """A node with a tag: what it is, and what people call it."""

    id: str
    kind: str
    name: str
    tags: list[str]


# --- Addresses of programs: `@(id)`, and `@(id:version)` for one version of its configuration.

_ADDRESS = re.compile(r"@\((.*)\)", re.DOTALL)
_VERSION = re.compile(r"(.+):([1-9][0-9]{0,8})", re.DOTALL)
_SLUG = re.compile(r"[\W_]+")
SLUG_LETTERS = 48


class ProgramAddress(Struct, frozen=True):
    """A program by its name or its ulid, and a version of it where one is meant."""

    name: str
    version: int | None = None

    def __str__(self) -> str:
        return f"@({self.name})" if self.version is None else f"@({self.name}:{self.version})"


def is_address(text: Any) -> bool:
    return isinstance(text, str) and _ADDRESS.fullmatch(text) is not None


def parse_address(text: Any, what: str = "address") -> ProgramAddress:
    """`@(id)`, `@(id:version)`, or either without the brackets."""
    if not isinstance(text, str):
        raise InvalidInput(f"{what} is {quoted(text)}, not an address", "write it as @(id) or @(id:version)")
    match = _ADDRESS.fullmatch(text)
    inside = match[1] if match else text
    versioned = _VERSION.fullmatch(inside)
    name = versioned[1] if versioned else inside
    if not name or name != name.strip() or any(mark in name for mark in "()"):
        raise InvalidInput(f"{what} {quoted(text)} names no program", "write it as @(id) or @(id:version)")
    return ProgramAddress(name, int(versioned[2]) if versioned else None)


def checked_name(text: Any) -> str:
    """A program's name is a label that cannot be taken for an address, a version or an id."""
    name = checked_label(text, "program's name")
    if any(mark in name for mark in "()") or _VERSION.fullmatch(name) or name.startswith("@"):
        raise InvalidInput(f"program's name {quoted(name)} looks like an address", "leave out @, brackets and :number")
    if is_ulid(name.upper()):
        raise InvalidInput(f"program's name {quoted(name)} looks like an id", "use words")
    if name in (DEFAULT_AGENT, IMPORTED_AGENT):
        raise InvalidInput(f"{name!r} is an agent that every ledger has", "choose another name")
    return name


def name_from(text: str, prefix: str) -> str:
    """A name made of a title: `Research quantum computing` as `task-research-quantum-computing`."""
    slug = _SLUG.sub("-", text.casefold()).strip("-")[:SLUG_LETTERS].strip("-")
    return f"{prefix}-{slug}" if slug else prefix


# --- `${VAR}` in a configuration: kept as written, put in at use by whoever may look variables up, never stored.

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


# --- JSON values: compared, changed in part, found by their place, and checked against a JSON Schema.

_STEP = re.compile(
    r"(?P<deep>\.\.)?(?:\.?(?P<name>[^\W\d][\w-]*)|\.?(?P<any>\*)|\[(?P<index>-?\d+)\]|\[(?P<each>\*)\]"
    r"|\[(?P<quote>['\"])(?P<in_quotes>.*?)(?P=quote)\])"
)
PathStep = tuple[bool, str | int | None]
"""Whether it goes any depth down, and a name, a place in a list, or None for all."""
MAX_SHOWN_PROBLEMS = 20


def is_same(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(is_same(value, right[name]) for name, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Every place at which two values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in [*before, *(name for name in after if name not in before)]:
            place = f"{path}.{name}" if path else name
            if name not in after:
                yield Difference(place, before[name], None, "removed")
            elif name not in before:
                yield Difference(place, None, after[name], "added")
            else:
                yield from differences(before[name], after[name], place)
    elif not is_same(before, after):
        yield Difference(path, before, after, "changed")


def merged(before: Any, changes: Any) -> Any:
    """JSON Merge Patch (RFC 7396): objects field by field, null takes away, anything else stands in its place."""
    if not isinstance(changes, dict):
        return changes
    result = dict(before) if isinstance(before, dict) else {}
    for name, value in changes.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def parse_path(text: str) -> list[PathStep]:
    if not isinstance(text, str) or not text:
        raise InvalidInput(f"path is {quoted(text)}", "write it as $.name[0]")
    at, steps = int(text.startswith("$")), []
    if at == 0:
        text = f".{text}"
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or match.end() == at:
            raise InvalidInput(f"path {quoted(text)} cannot be read at letter {at + 1}", "write it as $.name[0]")
        steps.append((match["deep"] is not None, _wanted_key(match)))
        at = match.end()
    return steps


def _wanted_key(match: re.Match[str]) -> str | int | None:
    if match["any"] or match["each"]:
        return None
    if match["index"] is not None:
        return int(match["index"])
    return match["in_quotes"] if match["quote"] else match["name"]


def found_at(value: Any, path: list[PathStep]) -> Iterator[Any]:
    """Every value at such a place."""
    if not path:
        yield value
        return
    (deep, wanted), rest = path[0], path[1:]
    for place in _values_below(value) if deep else (value,):
        for inner in _child_values(place, wanted):
            yield from found_at(inner, rest)


def _values_below(value: Any) -> Iterator[Any]:
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _values_below(inner)


def _child_values(value: Any, wanted: str | int | None) -> Iterator[Any]:
    if isinstance(value, dict):
        if wanted is None:
            yield from value.values()
        elif isinstance(wanted, str) and wanted in value:
            yield value[wanted]
    elif isinstance(value, list):
        if wanted is None:
            yield from value
        elif isinstance(wanted, int) and -len(value) <= wanted < len(value):
            yield value[wanted]


MOST_SCHEMA_STEPS = 200_000
"""Pairs of a part of a schema and a part of the value that it is held against."""
_OF_SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
_OF_INNER_VALUES = (
    "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames", "items", "prefixItems",
    "contains", "additionalItems", "unevaluatedItems",
)  # fmt: skip
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def problems_with(value: Any, schema: Any, path: str = "schema") -> list[str]:
    """Where and why a value does not fit; empty where it does. A schema that is none is refused. Raises LimitExceeded
    where holding the value against it would take too many steps: schemas are other people's, and a few lines of one
    that names its own parts over and over take a validator for ever."""
    validator = _schema_validator(schema, path)
    _ensure_few_steps(value, schema)
    if validator.is_valid(value):  # the validator makes all errors before it gives the first
        return []
    problems = []
    for error in validator.iter_errors(value):
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
        problems.append(f"${where}: {error.message:.200}")
        if len(problems) == MAX_SHOWN_PROBLEMS:
            break
    return problems


def _ensure_few_steps(value: Any, schema: Any) -> None:
    """The steps are counted, not taken: no less than a validator takes, who looks no further at some of them. Without
    references each part is held against each value once at most, and nothing is counted."""
    parts = [inner for inner in _values_below(schema) if isinstance(inner, dict)]
    if all(part.keys().isdisjoint(_REFERENCES) for part in parts):
        return
    anchors = {
        f"#{part[name]}": part
        for part in parts
        for name in ("$anchor", "$dynamicAnchor")
        if isinstance(part.get(name), str)
    }
    waiting, steps = [(schema, value)], 0
    while waiting:
        steps += 1
        if steps + len(waiting) > MOST_SCHEMA_STEPS:
            raise LimitExceeded(
                "the steps of holding a value against a schema",
                steps + len(waiting),
                MOST_SCHEMA_STEPS,
                "name each part of the schema less often within it",
            )
        part, inner = waiting.pop()
        if isinstance(part, dict):
            waiting += islice(_next_steps(part, inner, schema, anchors), MOST_SCHEMA_STEPS)


def _next_steps(part: dict[str, Any], value: Any, schema: Any, anchors: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for name in _REFERENCES:
        if isinstance(reference := part.get(name), str):
            yield _referred_part(reference, schema, anchors), value
    for name in _OF_SAME_VALUE:
        yield from ((one, value) for one in _parts_at(part, name))
    named = part.get("properties")
    if isinstance(value, dict) and isinstance(named, dict):
        yield from ((one, value[name]) for name, one in named.items() if name in value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    parts = [one for name in _OF_INNER_VALUES for one in _parts_at(part, name)]
    yield from ((one, item) for one in parts for item in inner)


def _parts_at(part: dict[str, Any], name: str) -> list[Any]:
    """The schemas that a word of one holds: itself one, a list or a table of them."""
    held = part.get(name)
    if isinstance(held, list):
        return held
    if not isinstance(held, dict):
        return []
    return list(held.values()) if name in ("patternProperties", "dependentSchemas", "dependencies") else [held]


def _referred_part(reference: str, schema: Any, anchors: dict[str, Any]) -> Any:
    """The part of a schema that a reference leads to; where that cannot be told, all of it."""
    if reference in anchors:
        return anchors[reference]
    part = schema
    for step in unquote(reference.partition("#")[2]).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict) and key in part:
            part = part[key]
        elif isinstance(part, list) and key.isdecimal() and len(key) < 10 and int(key) < len(part):
            part = part[int(key)]
        else:
            return schema
    return part


def check_schema(schema: Any, path: str = "schema") -> None:
    _schema_validator(schema, path)


def _schema_validator(schema: Any, path: str) -> Any:
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(schema, retriever=_refuse_reference)
    except (ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidConfig(path, f"is no JSON Schema: {reason:.200}", "see json-schema.org") from error


def _refuse_reference(uri: str) -> Any:
    raise InvalidConfig("$ref", f"{uri} lies outside of the schema and is not fetched", "put what it names into $defs")


# --- Answers of people to what they were asked: the first that was given or taken over here counts.

STATUS_OF = {"human_approved": "approved", "human_rejected": "rejected"}


class ForeignAnswer(Struct, frozen=True):
    """An answer that another ledger wrote, and that nobody here has taken over."""

    event: AuthoredEvent
    status: str
    at: int
    actor: str


def counted_request(txn: ReadTxn, row: RequestRow) -> tuple[RequestRow, ForeignAnswer | None]:
    """The request as it stands here, and what others say was answered where it is open here."""
    if row.status not in STATUS_OF.values():
        return row, None
    answers = txn.sql.fetch_rows(
        "SELECT n, kind, at, actor, reason FROM program_history"
        " WHERE program = ? AND kind IN ('human_approved', 'human_rejected') ORDER BY n",
        (row.human,),
    )
    foreign: ForeignAnswer | None = None
    for n, kind, at, actor, reason in answers:
        event = authored_event(txn, n)
        if event is None or event.fields.get("request") != row.id:  # None: it is being written right now
            continue
        if event.counts:
            return replace(row, status=STATUS_OF[kind], decided_at=at, reason=reason), None
        foreign = foreign or ForeignAnswer(event, STATUS_OF[kind], at, actor)
    if foreign is None:
        return row, None
    return replace(row, status="pending", decided_at=None, reason=None), foreign


# --- What programs reach outside of their ledger, as their configurations say: servers, variables, folders, commands.

FOLDER_FIELDS = frozenset({"workspace", "folder", "cwd"})
COMMAND_FIELDS = frozenset({"command", "run"})


class ProgramReach(Struct, frozen=True, kw_only=True):
    """One thing outside that one program names: a `server`, a `variable`, a `folder`, a `command`, or `code`."""

    kind: str
    program: str
    what: str
    value: str


def reach_of(program: Program) -> Iterator[ProgramReach]:
    """Everything outside the ledger that a program's configuration names; code is named as such."""
    for variable in dict.fromkeys(variables_in(program.config)):
        yield _program_reach(program, "variable", variable)
    for what, value in dict.fromkeys(_named_values(program.config, "")):
        yield _program_reach(program, what, value)
    if isinstance(program.config, dict) and "language" in program.config:
        yield _program_reach(program, "code", str(program.config["language"]))


def _program_reach(program: Program, what: str, value: str) -> ProgramReach:
    return ProgramReach(kind=program.kind, program=program.name, what=what, value=value)


def _named_values(value: Any, field: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _named_values(inner, str(name))
    elif isinstance(value, list):
        if field in COMMAND_FIELDS and all(isinstance(word, str) for word in value):
            yield "command", " ".join(value)
            return
        for inner in value:
            yield from _named_values(inner, field)
    elif isinstance(value, str):
        if "://" in value:
            yield "server", value
        elif field in FOLDER_FIELDS:
            yield "folder", value
        elif field in COMMAND_FIELDS:
            yield "command", value
