"""Lists of things to do, as check marks."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.surfaces.cli.rendering.page import ASCII, PageLayout
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.plain_text import safe

LISTS = ("todos", "plan", "tasks", "items")
WORDS = ("content", "step", "text", "title", "subject", "description")
DONE = frozenset({"completed", "done", "complete"})
DOING = frozenset({"in_progress", "in-progress", "active", "doing"})
DROPPED = frozenset({"cancelled", "canceled", "abandoned", "deleted"})


class Item(Struct):
    text: str
    state: str


def plan_of(arguments: Any) -> tuple[str, list[Item]] | None:
    """The argument that is such a list, with its items; None where there is none."""
    if not isinstance(arguments, dict):
        return None
    for name in LISTS:
        items = arguments.get(name)
        if isinstance(items, list) and items and all(isinstance(item, dict) and "status" in item for item in items):
            return name, [Item(_words(item), str(item["status"])) for item in items]
    return None


def _words(item: dict[str, Any]) -> str:
    return next((item[name] for name in WORDS if isinstance(item.get(name), str)), "")


def plan_lead(items: list[Item]) -> str:
    return f"{sum(item.state in DONE for item in items)} of {len(items)} done"


def plan_lines(items: list[Item], page: PageLayout) -> list[Line]:
    return [_item_line(item, page) for item in items]


def _item_line(item: Item, page: PageLayout) -> Line:
    marks = page.marks
    text = page.cut(item.text, page.room(4))
    plain = marks is ASCII
    if item.state in DONE:
        return [Span("[x] " if plain else f"{marks.ok} ", "good"), Span(text, "dim")]
    if item.state in DOING:
        return [Span("[>] " if plain else f"{marks.doing} ", "warn"), text]
    if item.state in DROPPED:
        return [Span("[-] " if plain else f"{marks.failed} ", "dim"), Span(text, "dim")]
    return ["[ ] " if plain else f"{marks.waiting} ", safe(text)]
