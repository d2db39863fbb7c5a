"""Which exporters there are: every entry point of the group `weft.exporters`, ours among them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from weft.exchange.exporters.port import Exporter
from weft.kernel.errors import InvalidInput, quoted

GROUP = "weft.exporters"


def exporter_names() -> list[str]:
    return sorted({point.name for point in _points()})


def load_exporter(form: str) -> Exporter:
    points = {point.name: point for point in _points()}
    if form not in points:
        raise InvalidInput(f"there is no exporter {quoted(form)}", f"known: {', '.join(sorted(points))}")
    found: Exporter = points[form].load()()
    return found


@cache
def _points() -> tuple[EntryPoint, ...]:
    """Looked for once: every package that is installed has to be asked."""
    return tuple(entry_points(group=GROUP))
