"""The structure of other tools' session files, as data: which records there are, what each must hold, what it holds by
default, and what the format has no place for. A new structure of a tool is a new file beside the others."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from weft.kernel.errors import InvalidInput, quoted

FORMATS: Final = {"claude-code": "claude-code-2.1.json", "codex": "codex-0.144.json"}
"""The structure that is written for each tool."""


class Shape(Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of record: it has all of `fixed` and `given`, perhaps some of `optional`; `of` is what it adds to."""

    of: str | None = None
    fixed: dict[str, Any] = msgspec.field(default_factory=dict)
    given: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


class Format(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The structure of a tool's session files, as data."""

    tool: str
    structure: str
    """The tool's versions whose structure this is."""
    version: str
    """The version that written records name."""
    verified: tuple[str, ...]
    """Versions of the tool that a person has resumed such a file with; the others are checked by their structure."""
    command: str
    records: dict[str, Shape]
    lost: dict[str, str]
    """What the format cannot carry, by a short name."""

    def make(self, kind: str, **fields: Any) -> dict[str, Any]:
        """A record of a kind, with exactly what belongs to it."""
        shape = self.shape(kind)
        unknown = fields.keys() - {*shape.given, *shape.optional, *shape.fixed}
        missing = set(shape.given) - fields.keys() - shape.fixed.keys()
        assert not unknown | missing, f"{self.tool} {kind}: unknown {unknown}, missing {missing}"
        return {**json.loads(json.dumps(shape.fixed)), **fields}

    def shape(self, kind: str) -> Shape:
        own = self.records[kind]
        if own.of is None:
            return own
        base = self.shape(own.of)
        return Shape(None, {**base.fixed, **own.fixed}, (*base.given, *own.given), (*base.optional, *own.optional))

    def needs(self, kind: str) -> frozenset[str]:
        """What every record of this kind has."""
        shape = self.shape(kind)
        return frozenset((*shape.given, *shape.fixed))


@lru_cache
def load_format(tool: str) -> Format:
    if tool not in FORMATS:
        raise InvalidInput(f"no session is written for {quoted(tool)}", f"it is one of {', '.join(FORMATS)}")
    return msgspec.json.decode(Path(__file__).with_name(FORMATS[tool]).read_bytes(), type=Format)
