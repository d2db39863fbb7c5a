"""llm: one SQLite database for everything that was ever asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from weft.exchange.importers.databases import MAGIC, UNREADABLE, Database, opened, peek
from weft.exchange.importers.llm.classic import Classic, joined
from weft.exchange.importers.llm.rows import Session, utc
from weft.exchange.importers.llm.store import Store
from weft.exchange.importers.llm.turns import turns_of
from weft.exchange.importers.port import NativeSession, Place, Report, Source, Transcript
from weft.exchange.importers.records.values import JsonObject, present, text

TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table'"
SIGNS = (
    frozenset({"conversations", "responses", "_llm_migrations"}),
    frozenset({"messages", "parts", "threads", "turns", "part_fragments"}),
    frozenset({"logs", "_llm_migrations"}),
)


class Llm:
    origin = "llm"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        if user_path := environment.get("LLM_USER_PATH"):
            return [Place(Path(user_path) / "logs.db", "llm")]
        config = environment.get("XDG_CONFIG_HOME")
        folders = [Path(config) if config else home / ".config", home / "Library/Application Support"]
        return [Place(folder / "io.datasette.llm" / "logs.db", "llm") for folder in folders]

    def recognises(self, source: Source) -> bool:
        if not source.head.startswith(MAGIC):
            return False
        tables = {name for (name,) in peek(source.path, TABLES)}
        is_at_home = source.path.name == "logs.db" and source.path.parent.name == "io.datasette.llm"
        return any(signs <= tables for signs in SIGNS) or (is_at_home and not tables)

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        with opened(source.path, report) as database:
            if database is not None:
                yield from _Reading(database, report).transcripts()


class _Reading:
    def __init__(self, database: Database, report: Report) -> None:
        self._store, self._classic = Store(database, report), Classic(database)
        self._report = report

    def transcripts(self) -> Iterator[Transcript]:
        try:
            threads = {str(row["id"]): row for row in self._store.threads()} if self._store.is_there else {}
            conversations = self._classic.conversations() if self._classic.is_there else {}
        except UNREADABLE as error:
            self._report.problem(None, f"the database is not readable: {error}"[:300])
            return
        for id in dict.fromkeys((*conversations, *threads)):
            try:
                found = self._transcript(self._session(id, threads.get(id), conversations.get(id)))
            except UNREADABLE as error:
                self._report.problem(None, f"the conversation {id} is not readable: {error}"[:300])
            else:
                yield found
        yield from self._rest()

    def _session(self, id: str, thread: JsonObject | None, conversation: JsonObject | None) -> Session:
        session = Session(id, self._report)
        for kind, row in (("conversation", conversation), ("thread", thread)):
            if row and "name" in row:
                session.keep(kind, row)
                session.name = text(row.get("name")) or session.name
        older = self._classic.responses(id, self._store.is_there)
        tip = self._classic.read(older, session)
        legacy = list(session.parents)
        if thread is not None:
            session.created = utc(thread.get("datetime_utc"))
            session.forked_from = text(thread.get("forked_from"))
            session.tip = text(thread.get("tip_message_hash"))
            self._store.read(thread, session)
            _join(session, legacy, tip)
        return session

    def _rest(self) -> Iterator[Transcript]:
        """The first table of all, and messages that belong to no conversation."""
        try:
            chats: dict[str, list[JsonObject]] = {}
            for row in self._classic.logs():
                chats.setdefault(f"log-{row.get('chat_id') or row.get('id')}", []).append(row)
            for id, rows in chats.items():
                session = Session(id, self._report)
                self._classic.read_logs(rows, session)
                yield self._transcript(session)
            if self._store.is_there:
                session = Session("messages without a thread", self._report)
                self._store.orphans(session)
                if session.lines.count:
                    yield self._transcript(session)
        except UNREADABLE as error:
            self._report.problem(None, f"the database is not readable: {error}"[:300])

    def _transcript(self, session: Session) -> Transcript:
        turns = turns_of(session, self._store.goes_on)
        native_session = NativeSession(
            id=session.id,
            title=session.name,
            created=session.created or (turns[0].started if turns else None),
            metadata=present(forked_from=session.forked_from),
        )
        return Transcript(session=native_session, turns=turns, raw=session.lines.finish())


def _join(session: Session, legacy: list[str], tip: str | None) -> None:
    """Newer messages that repeat older ones give way to those."""
    if not legacy:
        return
    children: dict[str, str | None] = {}
    for root in [id for id, parent in session.parents.items() if parent is None and id not in legacy]:
        chain = _first_chain(session, root)
        count = joined(chain, legacy, session)
        if count:
            for id in chain[:count]:
                del session.parents[id]
            repeated = set(chain[:count])
            children |= {id: tip for id, parent in session.parents.items() if parent in repeated}
    session.parents |= children


def _first_chain(session: Session, root: str) -> list[str]:
    """From a root down, as long as nothing forks."""
    below: dict[str | None, list[str]] = {}
    for id, parent in session.parents.items():
        below.setdefault(parent, []).append(id)
    chain = [root]
    while len(next_ := below.get(chain[-1], [])) == 1:
        chain += next_
    return chain
