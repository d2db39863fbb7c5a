"""Files that describe programs: YAML, one document or several, or JSON. PyYAML is loaded when a YAML file is read.

YAML is read as its version 1.2 says: `yes`, `on` and `12:30` are texts, and so are dates. Tags that would make objects
are refused, and so is a name that stands twice.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct

from weft.kernel.errors import InvalidConfig, InvalidInput, InvalidJson, WeftError, quoted
from weft.programs.kinds.kind import KindRow
from weft.programs.kinds.table import KINDS
from weft.programs.nodes import checked_tags

MAX_FILE_BYTES = 16 * 1024 * 1024
_SCALARS = {
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "tag:yaml.org,2002:null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "tag:yaml.org,2002:int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "tag:yaml.org,2002:float": (r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    "tag:yaml.org,2002:merge": (r"<<", "<"),
}


PARTS = ("id", "name", "programType", "kind", "config", "lifecycle", "state", "tags")
"""What a program in a file consists of."""
SHOWN_FIELDS = ("version", "ulid", "createdAt", "updatedAt", "createdBy", "result", "sharedWith", "type")
"""What a program is shown with and nobody decides: a program that was printed can be applied."""


class WantedProgram(Struct, frozen=True, kw_only=True):
    """One program as a file describes it; `where` says in which file and where in it."""

    kind: str
    name: str
    config: dict[str, Any]
    state: str | None = None
    tags: list[str] | None = None
    where: str = ""
    shown_state: str | None = None
    """A state that no file brings about: of an agent, a task, a person or a session."""
    activity: dict[str, Any] = {}
    """Fields of its configuration that are computed from events."""
    faults: tuple[WeftError, ...] = ()
    """What is wrong with the description, but for the fields of its configuration, which applying looks at. One that
    says neither name nor kind has them empty."""


def read_files(paths: list[Path]) -> list[WantedProgram]:
    """Every program that these files describe, in order. What is wrong with a file stands in `faults`; applying raises
    all of it at once."""
    programs: list[WantedProgram] = []
    for path in paths:
        try:
            programs += read_text(_text(path), str(path), is_json=path.suffix == ".json")
        except InvalidInput as error:
            programs.append(_faulty(str(path), error))
    return programs


def _faulty(where: str, *faults: WeftError, kind: str = "", name: str = "") -> WantedProgram:
    return WantedProgram(kind=kind, name=name, config={}, where=where, faults=faults)


def _text(path: Path) -> str:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InvalidInput(f"{path} is larger than {MAX_FILE_BYTES} bytes", "split it")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not valid UTF-8: {error.reason}", "save it as UTF-8") from error


def read_text(text: str, where: str, *, is_json: bool = False) -> list[WantedProgram]:
    documents = [_json(text, where)] if is_json else _yaml(text, where)
    places = [where] if len(documents) == 1 else [f"{where}#{i + 1}" for i in range(len(documents))]
    return [
        program for document, place in zip(documents, places, strict=True) for program in wanted_in(document, place)
    ]


def _json(text: str, where: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(f"{where}: {error}") from error


def _yaml(text: str, where: str) -> list[Any]:
    import yaml

    try:
        return list(yaml.load_all(text, Loader=_loader(where)))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InvalidInput(f"{where} is no YAML: {reason:.200}", "mend it; JSON is YAML, too") from error


def _loader(where: str) -> Any:
    """A safe loader with the scalars of YAML 1.2, and without names that stand twice."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names = [key.value for key, _ in node.value if key.value != "<<"]
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                line = node.start_mark.line + 1
                raise InvalidInput(
                    f"{where}: {twice[0]!r} stands twice in what begins at line {line}", "keep one of them"
                )
            mapping: dict[Any, Any] = super().construct_mapping(node, deep)
            return mapping

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1
                raise InvalidInput(f"{where}: line {line} has an alias, which is not read", "write it out")
            return super().compose_node(parent, index)

    for tag, (pattern, first) in _SCALARS.items():
        Loader.add_implicit_resolver(tag, re.compile(f"^(?:{pattern})$"), list(first))
    return Loader


def wanted_in(document: Any, where: str) -> list[WantedProgram]:
    """The programs of one document: an object, a list of them, or `programs:` with one."""
    if document is None:
        return []
    if isinstance(document, dict) and set(document) == {"programs"}:
        document = document["programs"]
    entries = document if isinstance(document, list) else [document]
    return [_wanted(entry, f"{where}[{i}]" if len(entries) > 1 else where) for i, entry in enumerate(entries)]


def _wanted(entry: Any, where: str) -> WantedProgram:
    if not isinstance(entry, dict):
        return _faulty(
            where, InvalidConfig(where, f"{quoted(entry)} is no program", "write id, programType and config")
        )
    names = [entry[name] for name in ("id", "name") if name in entry]
    kinds = [entry[name] for name in ("programType", "kind") if name in entry]
    faults = [_unknown_part(str(part), where) for part in entry if part not in (*PARTS, *SHOWN_FIELDS)]
    if len(names) != 1 or len(kinds) != 1 or not isinstance(names[0], str):
        faults.append(InvalidConfig(where, "needs one id and one programType", "write id, programType and config"))
        return _faulty(where, *faults)
    if not isinstance(kinds[0], str) or kinds[0] not in KINDS:
        hint = f"one of {', '.join(KINDS)}"
        faults.append(InvalidConfig(f"{where}.programType", f"{quoted(kinds[0])} is not known", hint))
        return _faulty(where, *faults, name=names[0])
    return _described(entry, KINDS[kinds[0]], names[0], where, faults)


def _described(entry: dict[str, Any], kind: KindRow, name: str, where: str, faults: list[WeftError]) -> WantedProgram:
    """A program of a known kind; what else is wrong with it stands in its `faults`."""
    config, tags = entry.get("config", {}), entry.get("tags")
    states = [entry[state] for state in ("lifecycle", "state") if state in entry]
    activity = {field: config[field] for field in kind.activity_fields if isinstance(config, dict) and field in config}
    rest = {field: value for field, value in config.items() if field not in activity} if activity else config
    checked = rest if isinstance(rest, dict) else {}
    state, wanted_tags = None, None
    try:
        checked = kind.checked_values(rest)
    except InvalidConfig as error:  # of an object, applying says what is wrong with its fields
        faults = faults if isinstance(rest, dict) else [*faults, *located(error, where)]
    try:
        state = _state(kind, states, where)
        wanted_tags = None if tags is None else checked_tags(tags) if tags else []
    except InvalidInput as error:
        faults = [*faults, error]
    shown_state = str(states[0]) if states and not kind.file_states else None
    return WantedProgram(
        kind=kind.name,
        name=name,
        config=checked,
        state=state,
        tags=wanted_tags,
        where=where,
        shown_state=shown_state,
        activity=activity,
        faults=tuple(faults),
    )


def _unknown_part(part: str, where: str) -> WeftError:
    near = get_close_matches(part, PARTS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"write {', '.join(PARTS)}"
    return InvalidConfig(f"{where}.{part}", "is not known", hint)


def located(error: WeftError, where: str) -> list[WeftError]:
    """A refusal of a configuration, or several, with the place of the program before the path."""
    if isinstance(error, InvalidConfig) and error.faults:
        return [fault for one in error.faults for fault in located(one, where)]
    if isinstance(error, InvalidConfig):
        return [InvalidConfig(f"{where}.{error.path}", error.reason, error.advice)]
    return [error]


def _state(kind: KindRow, states: list[Any], where: str) -> str | None:
    """The state that its lifecycle is to be brought to. What an agent or a person is doing no file says."""
    if not kind.file_states:
        return None
    state = states[0] if states else kind.state_in_use
    if state not in kind.file_states:
        raise InvalidConfig(
            f"{where}.lifecycle", f"{quoted(state)} is not known", f"one of {', '.join(kind.file_states)}"
        )
    return str(state)
