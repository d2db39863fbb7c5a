"""The usual places of every tool: what lies there, and how long it will take to read it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.shapes import to_json
from weft.surfaces.cli.sizes import size_text
from weft.surfaces.cli.turn_lines import counted

if TYPE_CHECKING:
    from weft.exchange.importers.port import Importer
    from weft.exchange.importing.sweep import FoundPlace

HEADER = ("origin", "files", "size", "newest", "where")
MINUTE, HOUR = 60, 3600


def all_places(importers: Iterable[Importer]) -> list[Path]:
    """Where the tools keep their sessions by themselves, whether or not there is something."""
    home = Path.home()
    places = [place.path for importer in importers for place in importer.places(home, os.environ)]
    return list(dict.fromkeys(places))


def found_places(importers: Iterable[Importer]) -> list[FoundPlace]:
    from weft.exchange.importing.sweep import discover

    return discover(importers, Path.home(), dict(os.environ))


def show_places(call: Call, found: Sequence[FoundPlace]) -> None:
    """`weft import --discover`."""
    if call.json:
        call.documents(map(to_json, found))
        return
    there = [each for each in found if each.files]
    if there:
        call.screen.table([_row(each, call.screen.terminal) for each in there], HEADER, numbers=("files", "size"))
        call.note(total_of(there, "how long an import would take at most"))
    else:
        tell_nothing(call, found)


def _row(found: FoundPlace, terminal: bool) -> list[Span | str]:
    from weft.surfaces.cli.zones import local_time

    newest = "" if found.newest_ms is None else local_time(found.newest_ms)
    if not terminal:
        return [found.origin, str(found.files), str(found.bytes), newest, found.path]
    return [Span(found.origin, "label"), f"{found.files:,}", size_text(found.bytes), newest[:10], shortened(found.path)]


def tell_places(call: Call, found: Sequence[FoundPlace], files: int, size: int, seconds: float) -> None:
    """Before an import of the usual places: what is where, what of it is new, and how long that takes."""
    there = [each for each in found if each.files]
    width = max((len(each.origin) for each in there), default=0)
    for each in there:
        about = f"{counted(each.files, 'file'):>14} {size_text(each.bytes):>10}"
        call.note(Span(f"{each.origin:{width}}", "label"), f" {about}  {shortened(each.path)}")
    call.note(f"{counted(files, 'file')}, {size_text(size)} to read: {time_text(seconds)}, the latest first")
    if seconds > MINUTE:
        call.note("it can be stopped and run again at any time; `weft import --background` goes on by itself")


def total_of(found: Sequence[FoundPlace], what: str) -> str:
    from weft.exchange.importing.run import USUAL_RATE

    size = sum(each.bytes for each in found)
    files = counted(sum(each.files for each in found), "file")
    return f"{files}, {size_text(size)}; {what}: {time_text(size / USUAL_RATE)}"


def tell_nothing(call: Call, found: Sequence[FoundPlace]) -> None:
    call.note("nothing found in the usual places; name a file or a folder: `weft import PATH`")
    call.note("looked in:")
    for each in found:
        call.note(f"  {shortened(each.path)}  ({each.origin})")


def shortened(path: str) -> str:
    home = str(Path.home())
    return f"~{path.removeprefix(home)}" if path == home or path.startswith(f"{home}{os.sep}") else path


def time_text(seconds: float) -> str:
    """As people guess: no more exact than it is."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 100:
        return f"about {round(seconds, -1):.0f} seconds"
    if seconds < 100 * MINUTE:
        return f"about {counted(round(seconds / MINUTE), 'minute')}"
    return f"about {counted(round(seconds / HOUR), 'hour')}"
