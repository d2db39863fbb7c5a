"""Addresses of programs: `@(id)`, and `@(id:version)` for one version of its configuration."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from weft.kernel.clock import is_ulid
from weft.kernel.errors import InvalidInput, quoted
from weft.ledger.arguments import checked_label
from weft.ledger.model import DEFAULT_AGENT, IMPORTED_AGENT

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
