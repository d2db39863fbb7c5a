"""LangGraph: a database of checkpoints, whoever's agents they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from weft.exchange.importers.databases import MAGIC, UNREADABLE, opened, peek
from weft.exchange.importers.langgraph.rows import Place as Row
from weft.exchange.importers.langgraph.rows import Rows
from weft.exchange.importers.langgraph.threads import Thread, ThreadReader, turns_of
from weft.exchange.importers.port import NativeSession, Place, Report, Source, Transcript
from weft.exchange.importers.records.values import present, text

_RANDOM = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")
"""A thread's id that a program made, and that says nothing to a person."""
COLUMNS = "SELECT name FROM pragma_table_info('checkpoints')"
SIGNS = {"thread_id", "checkpoint_id", "checkpoint"}


class LangGraph:
    origin = "langgraph"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        """Only their programs know where: name the database."""
        return []

    def recognises(self, source: Source) -> bool:
        if not source.head.startswith(MAGIC):
            return False
        return {name for (name,) in peek(source.path, COLUMNS)} >= SIGNS

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        with opened(source.path, report) as database:
            if database is None:
                return
            rows = Rows(database)
            try:
                places = rows.places() if rows.is_there else []
            except UNREADABLE as error:
                report.problem(None, f"the database is not readable: {error}"[:300])
                return
            roots: dict[str, str] = {}
            for place in places:
                try:
                    thread = ThreadReader(rows, place, report).read()
                except UNREADABLE as error:
                    report.problem(None, f"the thread {place.thread} is not readable: {error}"[:300])
                else:
                    yield _transcript(thread, place, roots)


def _transcript(thread: Thread, place: Row, roots: dict[str, str]) -> Transcript:
    """Threads of different databases are often called the same, such as `1`; their first checkpoint is their own."""
    if not place.namespace:
        roots[place.thread] = thread.root
    id = f"{place.thread}@{roots.get(place.thread) or thread.root}"
    parent, agent = None, None
    if place.namespace:
        parent, agent = id, place.namespace.rpartition("|")[2].partition(":")[0]
        id = f"{id}|{place.namespace}"
    session = NativeSession(
        id=id,
        title=None if _RANDOM.fullmatch(place.thread) else place.thread,
        created=thread.created,
        parent=parent,
        agent=agent,
        metadata=present(
            thread=place.thread, namespace=place.namespace, assistant=text(thread.metadata.get("assistant_id"))
        ),
    )
    return Transcript(session=session, turns=turns_of(thread, id), raw=thread.raw)
