"""Which importers there are: every entry point of the group `weft.importers`, ours among them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from weft.exchange.importers.port import Importer
from weft.kernel.errors import InvalidInput

GROUP = "weft.importers"


def importer_names() -> list[str]:
    return sorted({point.name for point in _points()})


def load_importers(only: str | None = None) -> list[Importer]:
    """All of them, or the one called `only`."""
    points = {point.name: point for point in _points()}
    if only is not None and only not in points:
        raise InvalidInput(f"there is no importer {only!r:.80}", f"known: {', '.join(sorted(points))}")
    return [points[name].load()() for name in sorted(points) if only in (None, name)]


@cache
def _points() -> tuple[EntryPoint, ...]:
    """Looked for once: every package that is installed has to be asked."""
    return tuple(entry_points(group=GROUP))
