"""`store.db` of the command line's agent: contents by their hash, and a root that lists the messages that stand.

A root is a protobuf message: its first field repeats the hashes of messages, in order. Messages that it does not list
were summed up, taken back, or written for another root.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.exchange.importers.cursor.database import session_without_header
from weft.exchange.importers.cursor.dialogue import Dialogue, Message
from weft.exchange.importers.cursor.encodings import decoded, path_of, wire_fields
from weft.exchange.importers.cursor.homes import transcripts_of
from weft.exchange.importers.cursor.rows import RowReader
from weft.exchange.importers.databases import UNREADABLE, Database, RowLines, opened
from weft.exchange.importers.port import NativeSession, Report, Transcript
from weft.exchange.importers.records.values import json_value, mapping, millis, present, text

MESSAGES, TOKENS, WORKSPACE = 1, 5, 9
"""Fields of a root."""
ROLES = frozenset({"system", "user", "assistant", "tool"})


class Root(Struct):
    """What the newest root tells."""

    messages: list[str]
    workspace: str | None = None
    context_tokens: int | None = None
    context_limit: int | None = None


def read_store(path: Path, report: Report) -> Iterator[Transcript]:
    with opened(path, report) as database:
        if database is None or not database.has("blobs", "id", "data"):
            return
        try:
            made = list(_Store(path, database, report).transcripts())
        except UNREADABLE as error:
            report.problem(None, f"the store is not readable: {error}"[:300])
        else:
            yield from made


class _Store:
    def __init__(self, path: Path, database: Database, report: Report) -> None:
        self._path, self._database, self._report = path, database, report
        self._lines = RowLines()
        self._meta = self._read_meta()
        self._nodes: dict[str, bytes] = {}
        self._messages = self._read_blobs()

    def _read_meta(self) -> dict[str, Any]:
        """One row of JSON in hexadecimal digits; older stores have a row a name."""
        fields: dict[str, Any] = {}
        rows = (
            self._database.rows("SELECT key, value FROM meta ORDER BY key")
            if self._database.has("meta", "key", "value")
            else []
        )
        for key, value in rows:
            self._report.found += 1
            self._report.mapped["meta"] += 1
            self._lines.add_value(f"meta:{key}", value if isinstance(value, str | int | float) else None)
            unhexed = _unhexed(value)
            fields |= unhexed if isinstance(unhexed, dict) else {str(key): unhexed}
        return fields

    def _read_blobs(self) -> dict[str, Message]:
        """Messages by their hash, in the order in which they were written."""
        messages: dict[str, Message] = {}
        for number, (id, data) in enumerate(
            self._database.walk("SELECT id, CAST(data AS BLOB) FROM blobs ORDER BY rowid")
        ):
            self._report.found += 1
            self._lines.add(f"blob:{id}", data or b"")
            value = _object(data or b"")
            if value is not None and str(value.get("role")) in ROLES:
                fields = {name: each for name, each in value.items() if name not in ("role", "content", "id")}
                messages[str(id)] = Message(str(value["role"]), value.get("content"), number, number + 1, fields)
                self._report.mapped[str(value["role"])] += 1
            else:
                self._nodes[str(id)] = data or b""
                self._report.kept["node" if value is None else "content"] += 1
        return messages

    def transcripts(self) -> Iterator[Transcript]:
        root = self._root()
        id = text(self._meta.get("agentId")) or self._path.parent.name
        if (beside := transcripts_of(self._path).get(id)) is not None:
            RowReader(self._report, self._lines).transcript(beside)
        session = self._session(id, root)
        model = text(self._meta.get("lastUsedModel"))
        standing = [self._messages[each] for each in root.messages if each in self._messages]
        chosen = set(root.messages)
        left = [message for each, message in self._messages.items() if each not in chosen]
        if standing or not left:
            dialogue = Dialogue(session, id, model=model)
            placed = [Message(each.role, each.content, at, at + 1, each.fields) for at, each in enumerate(standing)]
            yield Transcript(session=session, turns=dialogue.turns(placed), raw=self._lines.finish())
        if left:
            apart = session_without_header(session)
            raw = b"" if standing else self._lines.finish()
            yield Transcript(session=apart, turns=Dialogue(apart, apart.id, model=model).turns(left), raw=raw)

    def _session(self, id: str, root: Root) -> NativeSession:
        name = text(self._meta.get("name"))
        return NativeSession(
            id=id,
            title=None if name == "New Agent" else name,
            workspace=root.workspace or text(self._meta.get("cwd")),
            created=millis(self._meta.get("createdAt")),
            metadata=present(
                mode=self._meta.get("mode"),
                model=self._meta.get("lastUsedModel"),
                context_tokens=root.context_tokens,
                context_limit=root.context_limit,
            ),
        )

    def _root(self) -> Root:
        root = Root([])
        id = text(self._meta.get("latestRootBlobId"))
        if id is None:
            return root
        try:
            for number, value in wire_fields(self._nodes.get(id, b"")):
                if number == MESSAGES and isinstance(value, bytes):
                    root.messages.append(value.hex())
                elif number == WORKSPACE and isinstance(value, bytes):
                    root.workspace = root.workspace or path_of(value.decode("utf-8", "replace"))
                elif number == TOKENS and isinstance(value, bytes):
                    counts = {name: count for name, count in wire_fields(value) if isinstance(count, int)}
                    root.context_tokens, root.context_limit = counts.get(1), counts.get(2)
        except ValueError as error:
            self._report.problem(None, f"the root of the store is damaged: {error}")
        return root


def _unhexed(value: Any) -> Any:
    words = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if not isinstance(words, str):
        return words
    try:
        return decoded(bytes.fromhex(words))
    except ValueError:
        pass
    try:
        return decoded(words)
    except ValueError:
        return words


def _object(data: bytes) -> dict[str, Any] | None:
    if data.lstrip()[:1] != b"{":
        return None
    try:
        value = json_value(data)
    except ValueError:
        return None
    return mapping(value) or None
