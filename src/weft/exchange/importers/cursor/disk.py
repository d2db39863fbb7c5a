"""A session of rows: its headers alone tell the order of its bubbles, and which of them stand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.exchange.importers.cursor import messages
from weft.exchange.importers.cursor.bubbles import Bubble, begun, role_of
from weft.exchange.importers.cursor.rows import KNOWN, Found, Row, Rows
from weft.exchange.importers.cursor.values import decoded
from weft.exchange.importers.lines import Lines
from weft.exchange.importers.port import Report
from weft.exchange.importers.values import mapping, sequence, text


class Reading(Struct):
    """Reads the records of one session: each is counted, and kept on a line."""

    report: Report
    lines: Lines

    def inline(self, values: list[Any]) -> list[Bubble]:
        """Bubbles that lie in the session's own record."""
        found: list[Bubble] = []
        for value in values:
            self.report.found += 1
            number = self.lines.add_value("bubble", value)
            if isinstance(value, dict):
                found.append(
                    Bubble(text(value.get("bubbleId")) or text(value.get("id")), value, role_of(value), number=number)
                )
            else:
                self._damaged(f"a bubble is a JSON {type(value).__name__}")
        return found

    def row(self, row: Row, kind: str) -> dict[str, Any] | None:
        """The object in a row. One that was deleted left its key behind."""
        self.report.found += 1
        self.lines.add(row.key, row.data, place=row.place)
        if row.error is not None:
            self._damaged(f"{row.key} is not readable: {row.error}")
            return None
        if row.data is None:
            self.report.kept[f"{kind}.deleted"] += 1
            return None
        try:
            value = decoded(row.data)
        except ValueError as error:
            self._damaged(f"{row.key} is not readable: {error}")
            return None
        if not isinstance(value, dict):
            self._damaged(f"{row.key} is a JSON {type(value).__name__}, not an object")
            return None
        return value

    def _damaged(self, what: str) -> None:
        self.report.damaged += 1
        self.report.problem(None, what[:300])

    def keep(self, kind: str, is_unknown: bool = False) -> None:
        self.report.kept[kind] += 1
        if is_unknown:
            self.report.unknown[kind] += 1

    def said(self, found: list[Bubble]) -> list[Bubble]:
        """Those that are messages."""
        said = []
        for bubble in found:
            if bubble.role is None:
                self.keep(f"bubble.type {bubble.value.get('type')!r:.20}", is_unknown=True)
            elif bubble.role == "user" and messages.is_empty(bubble):
                self.keep("bubble.draft")
            else:
                self.report.mapped[f"bubble.{bubble.role}"] += 1
                said.append(bubble)
        return said

    def transcript(self, path: Path) -> None:
        """The lesser copy of the same session, line by line."""
        try:
            data = path.read_bytes()
        except OSError as error:
            self.report.problem(None, f"{path.name}: {error.strerror}")
            return
        for line in data.splitlines():
            self.report.found += 1
            self.report.kept["transcript"] += 1
            self.lines.add(f"transcript:{path.name}", line)


class DiskSession:
    """One session's rows, read and put in order."""

    def __init__(self, keys: Found, rows: Rows, reading: Reading) -> None:
        self.reading, self._rows = reading, rows
        self.composer = self._read_composer(keys)
        bubbles, places = self._read_bubbles(keys)
        inline = reading.inline(sequence(self.composer.get("conversation")))
        named, self.missing = in_order(sequence(self.composer.get("fullConversationHeadersOnly")), bubbles)
        chosen = {bubble.number for bubble in named}
        self.standing = reading.said([*inline, *named])
        rest = [bubble for bubble in bubbles if bubble.number not in chosen]
        self.left = reading.said(by_age(rest, places))
        """Bubbles that no header names."""
        for key in keys.others:
            self._keep(key)

    def _read_composer(self, keys: Found) -> dict[str, Any]:
        if keys.composer is None:
            return {}
        value = self.reading.row(self._rows.row(keys.composer), "composer")
        if value is not None:
            self.reading.report.mapped["composer"] += 1
        return value or {}

    def _read_bubbles(self, keys: Found) -> tuple[list[Bubble], dict[int, int]]:
        """Also by where their rows lie, for those whose order nothing else tells."""
        requests = self._read_requests(keys)
        found, places = [], {}
        for key in keys.bubbles:
            row, number = self._rows.row(key), self.reading.lines.count
            value = self.reading.row(row, "bubble")
            if value is not None:
                name = key.split(":", 2)[2]
                found.append(Bubble(name or None, value, role_of(value), requests.get(name, {}), number))
                places[number] = row.place
        return found, places

    def _read_requests(self, keys: Found) -> dict[str, dict[str, Any]]:
        """What was sent along with a prompt, by the id of its bubble."""
        found = {}
        for key in keys.requests:
            value = self.reading.row(self._rows.row(key), "request")
            if value is not None:
                self.reading.report.mapped["request"] += 1
                found[key.rpartition(":")[2]] = value
        return found

    def _keep(self, key: str) -> None:
        row, kind = self._rows.row(key), key.partition(":")[0]
        self.reading.report.found += 1
        self.reading.keep(kind, is_unknown=kind not in KNOWN)
        self.reading.lines.add(row.key, row.data, place=row.place)

    def starts(self) -> set[int]:
        """Of the bubbles without headers, those that begin anew: since the one before, another prompt was sent."""
        sent = [when for bubble in self.standing if messages.prompts(bubble) and (when := begun(bubble.value))]
        times = [(begun(bubble.value), bubble.number) for bubble in self.left]
        return {
            number
            for (before, _), (when, number) in pairwise(times)
            if before is not None and when is not None and any(before < each <= when for each in sent)
        }


def in_order(headers: list[Any], bubbles: list[Bubble]) -> tuple[list[Bubble], list[str]]:
    """Bubbles as headers name them, and names that no bubble has."""
    named = {bubble.id: bubble for bubble in bubbles}
    inside = {
        bubble.value.get("bubbleId"): bubble for bubble in bubbles if isinstance(bubble.value.get("bubbleId"), str)
    }
    found: dict[int, Bubble] = {}
    missing: list[str] = []
    for header in map(mapping, headers):
        name = header.get("bubbleId")
        bubble = named.get(name) or inside.get(name) if isinstance(name, str) else None
        if bubble is not None:
            bubble.role = bubble.role or (role_of({}, header) if "type" not in bubble.value else None)
            found.setdefault(bubble.number, bubble)
        elif isinstance(name, str) and name:
            missing.append(name)
    return list(found.values()), missing


def by_age(bubbles: list[Bubble], places: dict[int, int]) -> list[Bubble]:
    """By their times where all have one, else by where their rows lie."""
    times = {bubble.number: begun(bubble.value) for bubble in bubbles}
    if all(when is not None for when in times.values()):
        return sorted(bubbles, key=lambda bubble: (times[bubble.number] or 0, places[bubble.number]))
    return sorted(bubbles, key=lambda bubble: places[bubble.number])
