"""Files that describe programs: YAML, one document or several, or JSON. PyYAML is loaded when a YAML file is read.

YAML is read as its version 1.2 says: `yes`, `on` and `12:30` are texts, and so are dates. Tags that would make objects
are refused, and so is a name that stands twice.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct

from weft.kernel.errors import InvalidConfig, InvalidInput, InvalidJson
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


SHOWN_FIELDS = ("version", "ulid", "createdAt", "updatedAt", "createdBy", "result", "type")
"""What a program is shown with and nobody decides: a program that was printed can be applied."""


class WantedProgram(Struct, frozen=True, kw_only=True):
    """One program as a file describes it."""

    kind: str
    name: str
    config: dict[str, Any]
    state: str | None = None
    tags: list[str] | None = None
    where: str = ""


def read_files(paths: list[Path]) -> list[WantedProgram]:
    """Every program that these files describe, in order."""
    return [program for path in paths for program in read_text(_text(path), str(path), is_json=path.suffix == ".json")]


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
        raise InvalidConfig(where, f"{entry!r:.80} is no program", "write id, programType and config")
    entry = {name: value for name, value in entry.items() if name not in SHOWN_FIELDS}
    names = [entry.pop(name) for name in ("id", "name") if name in entry]
    kinds = [entry.pop(name) for name in ("programType", "kind") if name in entry]
    states = [entry.pop(name) for name in ("lifecycle", "state") if name in entry]
    config, tags = entry.pop("config", {}), entry.pop("tags", None)
    if entry:
        raise InvalidConfig(f"{where}.{min(map(str, entry))}", "is not known", "write id, programType, config, tags")
    if len(names) != 1 or len(kinds) != 1 or not isinstance(names[0], str):
        raise InvalidConfig(where, "needs one id and one programType", "write id, programType and config")
    if not isinstance(kinds[0], str) or kinds[0] not in KINDS:
        raise InvalidConfig(f"{where}.programType", f"{kinds[0]!r:.80} is not known", f"one of {', '.join(KINDS)}")
    kind = KINDS[kinds[0]]
    return WantedProgram(
        kind=kind.name,
        name=names[0],
        config=_config(kind, config, where),
        state=_state(kind, states, where),
        tags=None if tags is None else checked_tags(tags) if tags else [],
        where=where,
    )


def _config(kind: KindRow, config: Any, where: str) -> dict[str, Any]:
    try:
        return kind.checked_config(config)
    except InvalidConfig as error:
        raise InvalidConfig(f"{where}.{error.path}", error.reason, error.advice) from error


def _state(kind: KindRow, states: list[Any], where: str) -> str | None:
    """The state that its lifecycle is to be brought to. What an agent or a person is doing no file says."""
    if not kind.file_states:
        return None
    state = states[0] if states else kind.state_in_use
    if state not in kind.file_states:
        raise InvalidConfig(
            f"{where}.lifecycle", f"{state!r:.80} is not known", f"one of {', '.join(kind.file_states)}"
        )
    return str(state)
