"""What programs reach outside of their ledger, as their configurations say: servers, variables, folders, commands.

It is listed to a person who decides whether a ledger is trusted, so it errs on the long side: nothing is resolved, and
programs that were configured elsewhere are listed like all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from weft.programs.model import Program
from weft.programs.placeholders import variables_in

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
        yield _reach(program, "variable", variable)
    for what, value in dict.fromkeys(_named(program.config, "")):
        yield _reach(program, what, value)
    if isinstance(program.config, dict) and "language" in program.config:
        yield _reach(program, "code", str(program.config["language"]))


def _reach(program: Program, what: str, value: str) -> ProgramReach:
    return ProgramReach(kind=program.kind, program=program.name, what=what, value=value)


def _named(value: Any, field: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _named(inner, str(name))
    elif isinstance(value, list):
        if field in COMMAND_FIELDS and all(isinstance(word, str) for word in value):
            yield "command", " ".join(value)
            return
        for inner in value:
            yield from _named(inner, field)
    elif isinstance(value, str):
        if "://" in value:
            yield "server", value
        elif field in FOLDER_FIELDS:
            yield "folder", value
        elif field in COMMAND_FIELDS:
            yield "command", value
