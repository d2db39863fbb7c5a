"""Files of programs: YAML, one document or several, or JSON. PyYAML is loaded when a YAML file is read.

YAML is read as its version 1.2 says: `yes`, `on` and `12:30` are texts, and so are dates. Tags that would make objects
are refused, and so is a name that stands twice.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson

from weft.kernel.errors import InvalidInput, InvalidJson
from weft.programs.applying import WantedProgram, wanted_in

MAX_FILE = 16 * 1024 * 1024
_SCALARS = {
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "tag:yaml.org,2002:null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "tag:yaml.org,2002:int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "tag:yaml.org,2002:float": (r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    "tag:yaml.org,2002:merge": (r"<<", "<"),
}


def read_files(paths: list[Path]) -> list[WantedProgram]:
    """Every program that these files describe, in order."""
    return [one for path in paths for one in read_text(_text(path), str(path), is_json=path.suffix == ".json")]


def _text(path: Path) -> str:
    if path.stat().st_size > MAX_FILE:
        raise InvalidInput(f"{path} is larger than {MAX_FILE} bytes", "split it")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not valid UTF-8: {error.reason}", "save it as UTF-8") from error


def read_text(text: str, where: str, *, is_json: bool = False) -> list[WantedProgram]:
    documents = [_json(text, where)] if is_json else _yaml(text, where)
    places = [where] if len(documents) == 1 else [f"{where}#{i + 1}" for i in range(len(documents))]
    return [one for document, place in zip(documents, places, strict=True) for one in wanted_in(document, place)]


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
        told = " ".join(str(error).split())
        raise InvalidInput(f"{where} is no YAML: {told:.200}", "mend it; JSON is YAML, too") from error


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
            made: dict[Any, Any] = super().construct_mapping(node, deep)
            return made

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1
                raise InvalidInput(f"{where}: line {line} has an alias, which is not read", "write it out")
            return super().compose_node(parent, index)

    for tag, (pattern, first) in _SCALARS.items():
        Loader.add_implicit_resolver(tag, re.compile(f"^(?:{pattern})$"), list(first))
    return Loader
