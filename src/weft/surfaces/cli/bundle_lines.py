"""A bundle as people read it: what is in it, what is not, what that proves and what it does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from weft.exchange.bundles.creation import CreatedBundle
from weft.exchange.bundles.report import VISIBLE, AbsentContent, BundleReport
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.shapes import to_json
from weft.surfaces.cli.turn_lines import counted

PLACES = 40
WORDS = {
    "withheld": "withheld",
    "erased": "erased where it comes from",
    "missing": "missing where it comes from",
    "outside": "no part of the thread, left out",
}


def report_shape(report: BundleReport) -> dict[str, Any]:
    shape: dict[str, Any] = to_json(report)
    shape["absent"] = report.absent
    return {**shape, "proves": list(report.proves), "does_not_prove": list(report.does_not_prove)}


def created_lines(made: CreatedBundle) -> Iterator[Line]:
    report = made.report
    yield [
        f"wrote {counted(len(report.threads), 'thread')}, {counted(report.turns, 'turn')},"
        f" {counted(report.contents, 'content')}, {made.bytes:,} bytes to ",
        Span(made.path, "heading"),
    ]
    yield ["bundle ", Span(report.digest, "id")]
    yield from signature_lines(report)
    yield from _absent(report)
    if report.absent.get("withheld"):
        yield [f"{VISIBLE}."]
    for place in made.shows:
        yield [Span("withheld words also stand in ", "bad"), place]


def report_lines(report: BundleReport) -> Iterator[Line]:
    yield [Span("it holds", "good"), ": bundle ", Span(report.digest, "id")]
    for thread in report.threads:
        yield [f"thread {thread.digest}, {counted(thread.turns, 'turn')}, ends with turn ", Span(thread.turn_id, "id")]
    counts = (counted(report.turns, "turn"), counted(report.events, "event"), counted(report.contents, "content"))
    yield [", ".join(counts)]
    if report.first_time is not None:
        yield [f"its events say that they are from {report.first_time} to {report.last_time}"]
    yield from signature_lines(report)
    yield from _absent(report)
    yield ["It proves"]
    yield from ([f"  {each}"] for each in report.proves)
    yield ["It does not prove"]
    yield from ([f"  {each}"] for each in report.does_not_prove)


def signature_lines(report: BundleReport) -> Iterator[Line]:
    if not report.signatures:
        yield ["unsigned: nobody vouches for it"]
    for each in report.signatures:
        known = f"{each.name}, a key that you trust" if each.trusted else "a key that you do not know"
        yield [f"signed with {known} ({each.key[:16]})"]


def _absent(report: BundleReport) -> Iterator[Line]:
    for why, count in report.absent.items():
        yield [f"{counted(count, 'content')} {WORDS[why]}:"]
        places = [place for place in report.places if place.why == why]
        yield from ([f"  {told}"] for told in _told(places[:PLACES]))
        if len(places) > PLACES:
            yield [f"  and {len(places) - PLACES:,} more places (--json lists them)"]


def _told(places: Iterable[AbsentContent]) -> Iterator[str]:
    for place in places:
        where = f"message {place.message_id}" if place.message_id else place.stream.replace("run:", "turn ")
        yield f"{where}: {place.what}"
