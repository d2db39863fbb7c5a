"""One conversation as it is gathered from rows: messages and their parents, calls, and a verbatim copy of the rows."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.lines import Lines
from weft.exchange.importers.llm.rows import Call, Json, Node
from weft.exchange.importers.port import Report
from weft.exchange.importers.values import canonical


class Session(Struct):
    id: str
    report: Report
    name: str | None = None
    created: int | None = None
    forked_from: str | None = None
    tip: str | None = None
    """The message that the conversation stands on, where one is named."""
    nodes: dict[str, Node] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)
    """Every node's parent, parents first."""
    calls: dict[str, Call] = field(default_factory=dict)
    lines: Lines = field(default_factory=Lines)
    _known: set[tuple[str, Any]] = field(default_factory=set)

    def is_new(self, kind: str, id: Any) -> bool:
        """Is this the first time that a row which many refer to comes up?"""
        is_new = (kind, id) not in self._known
        self._known.add((kind, id))
        return is_new

    def keep(
        self, kind: str, row: Json, *, is_mapped: bool = True, is_unknown: bool = False, is_new: bool = True
    ) -> None:
        """A row: counted, and written down to the letter."""
        if not is_new:
            return
        self.report.found += 1
        (self.report.mapped if is_mapped else self.report.kept)[kind] += 1
        if is_unknown:
            self.report.unknown[kind] += 1
        self.lines.add(kind, canonical({name: _shown(value) for name, value in row.items()}))


def _shown(value: Any) -> Any:
    """Bytes as their hexadecimal digits: JSON has no other place for them."""
    return {"bytes": value.hex()} if isinstance(value, bytes) else value
