"""What Codex prints (`codex exec --json`) instead of what it keeps, in each of the three forms that it has had.

First lines of settings and of the prompt, then events, `{"id", "msg"}`; then `session.created` and `item.*`
(`--experimental-json`); now `thread.started`, `turn.*` and `item.*`. All become the entries of a rollout.

A run that goes on with a thread tells nothing of what came before, and counts its items from nought again. So it is a
session of its own, `<thread>/print-<digest>`, by the first line that tells something: a file may hold several, and two
of one thread may begin alike. That is why a turn is known by all that it says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.codex.groups import Assembler
from weft.exchange.importers.codex.kinds import Entry, Sort
from weft.exchange.importers.codex.printed_lines import CALLS, EVENTS, MESSAGES, NOTES, OPENINGS, Lines, thread_of
from weft.exchange.importers.codex.session import Thread
from weft.exchange.importers.codex.turns import Turns
from weft.exchange.importers.codex.values import digest, moment
from weft.exchange.importers.jsonl import Record, first_objects, records
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.transcript import NativeSession, NativeTurn, Transcript
from weft.exchange.importers.values import mapping, text

_ITEMS = CALLS.keys() | MESSAGES | NOTES
_QUIET = frozenset({"turn.started", "task_started", "session_configured"})


def is_printed(head: bytes) -> bool:
    """Does a file that begins like this hold what Codex printed?"""
    objects = first_objects(head)
    if any(each.get("type") == "thread.started" and text(each.get("thread_id")) for each in objects):
        return True
    return bool(objects) and sum(map(_is_sign, objects)) * 2 >= len(objects)


def _is_sign(record: dict[str, Any]) -> bool:
    message, item = mapping(record.get("msg")), mapping(record.get("item"))
    if message:
        return text(message.get("type")) in EVENTS and isinstance(record.get("id"), str)
    stage, kind = text(record.get("type")), text(item.get("type")) or text(item.get("item_type"))
    return stage in ("item.started", "item.updated", "item.completed") and kind in _ITEMS


class _Run(Struct):
    """The lines of one run."""

    lines: list[Record] = field(default_factory=list)
    is_opening: bool = True

    def takes(self, record: Record) -> bool:
        """Is this line one more of it?"""
        return self.is_opening or not _opens(record.value)

    def add(self, record: Record) -> None:
        self.lines.append(record)
        self.is_opening &= _opens(record.value)


def _opens(value: dict[str, Any]) -> bool:
    top = value.get("type")
    return top in OPENINGS if isinstance(top, str) else "msg" not in value and ("prompt" in value or "workdir" in value)


def _says(value: dict[str, Any]) -> bool:
    return not _opens(value) and (text(mapping(value.get("msg")).get("type")) or text(value.get("type"))) not in _QUIET


def transcripts(source: Source, report: Report) -> Iterator[Transcript]:
    """Every run of a file, one in memory at a time."""
    run = _Run()
    for record in records(source, report):
        if not run.takes(record):
            yield from _transcript(run, source, report, record.offset)
            run = _Run()
        run.add(record)
    yield from _transcript(run, source, report, None)


def _transcript(run: _Run, source: Source, report: Report, until: int | None) -> Iterator[Transcript]:
    first = next((line.value for line in run.lines if _says(line.value)), None)
    native = next((found for line in run.lines if (found := thread_of(line.value)) is not None), None)
    if first is None:
        report.kept.update("opening" for _ in run.lines)
        return
    mark = digest(first)
    session = NativeSession(id=f"print-{mark[:16]}" if native is None else f"{native}/print-{mark[:8]}")
    times = (moment(line.value.get("timestamp")) for line in run.lines)
    session.created = next(filter(None, times), None)
    thread = Thread(session)
    thread.printed_of = native or session.id
    turns = _turns(run, Turns(thread, report, source.quiet), Lines(session.id, native))
    yield Transcript(session=session, turns=turns, until=until)


def _turns(run: _Run, turns: Turns, lines: Lines) -> Iterator[NativeTurn]:
    assembler = Assembler()
    for entry in _entries(run, lines):
        yield from turns.take(assembler.feed(entry))
    yield from turns.take(assembler.finish())


def _entries(run: _Run, lines: Lines) -> Iterator[Entry]:
    """The session's own line first, wherever it stands."""
    found = [entry for record in run.lines for entry in lines.entries(record)]
    yield from (entry for entry in found if entry.sort == Sort.META)
    yield from (entry for entry in found if entry.sort != Sort.META)
