"""Checkpoints that LangGraph's savers keep in SQLite or PostgreSQL.

Rows come in either of two layouts. Their values name classes of Python: a name is all that is taken
of them, and what they hold is read as plain data.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec
import orjson
from msgspec import Raw, Struct

from weft.exchange.importers.foreign_files import Database, RowLines, read_document
from weft.exchange.importers.foreign_values import mapping, text
from weft.kernel.errors import quoted

# --- Values as savers write them, read as plain data.

BROKEN = (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError)
"""What reading damaged values raises."""
METHOD, NUMPY, SNAPSHOT = 3, 6, 7
CLASSES = range(6)
"""Codes of extensions: an object of a class, with its arguments; 3 is one made by a method, such as a date."""


class TaggedObject(Struct, frozen=True, eq=False):
    """An object: the name of its class, and what it was made of."""

    name: str
    value: Any

    @property
    def kind(self) -> str:
        return self.name.rpartition(".")[2]


class Snapshot(Struct, frozen=True, eq=False):
    """The whole value of a channel that otherwise keeps only what was added."""

    data: bytes


class UnreadableValue(ValueError):
    """A kind of value that is not read."""


def decode_value(kind: str | None, data: bytes | None) -> Any:
    """A value of one of the savers' kinds; raises one of `BROKEN`."""
    if data is None or kind in ("null", "empty"):
        return None
    if kind in ("bytes", "bytearray"):
        return data
    if kind == "msgpack":
        return msgspec.msgpack.decode(data, ext_hook=_extension)
    if kind in ("json", None):
        document = read_document(data)
        if document.damage is not None:
            raise ValueError(document.damage)
        return tag_objects(document.value)
    raise UnreadableValue(f"values of the kind {quoted(kind, 40)} are not read")


def _extension(code: int, data: memoryview) -> Any:
    if code == SNAPSHOT:
        return Snapshot(bytes(data))
    if code not in CLASSES and code != NUMPY:
        return {"extension": code, "size": len(data)}
    inner = msgspec.msgpack.decode(data, ext_hook=_extension)
    if code == NUMPY:
        return {"array": list(inner[:2])} if isinstance(inner, list) else None
    if not isinstance(inner, list) or len(inner) < 3:
        return inner
    return inner[2] if code == METHOD else TaggedObject(f"{inner[0]}.{inner[1]}", inner[2])


def tag_objects(value: Any) -> Any:
    """JSON in which LangChain's objects stand as `{lc, type, id, kwargs}`."""
    if isinstance(value, list):
        return [tag_objects(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    id = value.get("id")
    if "lc" in value and value.get("type") == "constructor" and isinstance(id, list):
        arguments = value.get("kwargs", value.get("args"))
        return TaggedObject(".".join(str(inner) for inner in id), tag_objects(arguments))
    return {name: tag_objects(inner) for name, inner in value.items()}


def plain_value(value: Any) -> Any:
    """Without the classes, for showing."""
    if isinstance(value, TaggedObject):
        return plain_value(value.value)
    if isinstance(value, Snapshot):
        return {"snapshot": len(value.data)}
    if isinstance(value, dict):
        return {str(name): plain_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner) for inner in value]
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


class _Checkpoint(Struct):
    ts: Any = None
    v: Any = None
    channel_values: dict[str, Raw] = {}
    channel_versions: dict[str, Any] = {}


class Checkpoint(Struct):
    """A checkpoint, its channels unread."""

    at: Any
    channels: dict[str, StoredChannel]
    versions: dict[str, Any]


class StoredChannel(Struct, frozen=True):
    """A channel's value as it lies in the database."""

    kind: str | None
    data: bytes


_checkpoint = msgspec.msgpack.Decoder(_Checkpoint, ext_hook=_extension)
_elements = msgspec.msgpack.Decoder(list[Raw])


def decode_checkpoint(kind: str | None, data: bytes) -> Checkpoint:
    """Raises one of `BROKEN`."""
    if kind == "msgpack":
        decoded_checkpoint = _checkpoint.decode(data)
        channels = {
            name: StoredChannel("msgpack", bytes(value)) for name, value in decoded_checkpoint.channel_values.items()
        }
        return Checkpoint(decoded_checkpoint.ts, channels, decoded_checkpoint.channel_versions)
    if kind not in ("json", None):
        raise UnreadableValue(f"checkpoints of the kind {quoted(kind, 40)} are not read")
    document = read_document(data)
    if document.damage is not None or not isinstance(document.value, dict):
        raise ValueError(document.damage or "no object")
    values, versions = (document.value.get(name) for name in ("channel_values", "channel_versions"))
    channels = {
        name: StoredChannel("json", orjson.dumps(value, default=str))
        for name, value in (values.items() if isinstance(values, dict) else ())
    }
    return Checkpoint(document.value.get("ts"), channels, versions if isinstance(versions, dict) else {})


def list_elements(stored: StoredChannel) -> list[StoredChannel] | None:
    """Of a list, one by one and unread; None where the value is no list. Raises one of `BROKEN`."""
    if stored.kind == "msgpack":
        first = stored.data[:1]
        if first and 0xC7 <= first[0] <= 0xD8:
            value = decode_value("msgpack", stored.data)
            return list_elements(StoredChannel("msgpack", value.data)) if isinstance(value, Snapshot) else None
        if not first or not (0x90 <= first[0] <= 0x9F or first[0] in (0xDC, 0xDD)):
            return None
        return [StoredChannel("msgpack", bytes(element)) for element in _elements.decode(stored.data)]
    if stored.kind == "json":
        value = orjson.loads(stored.data)
        return [StoredChannel("json", orjson.dumps(element)) for element in value] if isinstance(value, list) else None
    return None


# --- Rows of checkpoints, in either of two layouts: SqliteSaver keeps a checkpoint with all its values in one row;
# PostgresSaver keeps values apart, one row for each version of a channel.

KEY = ("thread_id", "checkpoint_ns", "checkpoint_id")


class Row(Struct, frozen=True):
    """A checkpoint."""

    thread: str
    namespace: str
    id: str
    parent: str | None
    kind: str | None
    data: bytes
    metadata: bytes


class ChannelWrite(Struct, frozen=True):
    """What a task wrote to a channel."""

    checkpoint: str
    task: str
    path: str
    index: int
    channel: str
    kind: str | None
    data: bytes


class ChannelBlob(Struct, frozen=True):
    """A version of a channel's value, where those lie apart."""

    channel: str
    version: str
    kind: str | None
    data: bytes


class ThreadPlace(Struct, frozen=True):
    """A thread, or what a subgraph keeps of its own within one."""

    thread: str
    namespace: str


class Rows:
    """The checkpoints and writes of one LangGraph database, in either of its layouts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.is_apart = database.has("checkpoint_blobs", "thread_id", "checkpoint_ns", "channel", "version", "blob")
        self._writes = "checkpoint_writes" if self.is_apart else "writes"
        self._value = "blob" if self.is_apart else "value"

    @property
    def is_there(self) -> bool:
        return self._database.has("checkpoints", *KEY, "parent_checkpoint_id", "checkpoint")

    def places(self) -> list[ThreadPlace]:
        sql = "SELECT DISTINCT thread_id, checkpoint_ns FROM checkpoints ORDER BY thread_id, checkpoint_ns"
        return [ThreadPlace(_text(thread), _text(namespace)) for thread, namespace in self._database.rows(sql)]

    def parents(self, place: ThreadPlace) -> dict[str, str | None]:
        """Every checkpoint's parent, in order of their ids, which is that of time."""
        sql = (
            "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY checkpoint_id"
        )
        rows = self._database.rows(sql, (place.thread, place.namespace))
        return {_text(id): text(parent) for id, parent in rows}

    def checkpoint(self, place: ThreadPlace, id: str) -> Row:
        kind = "type" if self._database.has("checkpoints", "type") else "NULL"
        metadata = "metadata" if self._database.has("checkpoints", "metadata") else "NULL"
        rows = self._database.rows(
            f"SELECT parent_checkpoint_id, {kind}, checkpoint, {metadata} FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            (place.thread, place.namespace, id),
        )
        parent, words, data, about = rows[0] if rows else (None, None, None, None)
        words = text(words) if isinstance(data, bytes) and not self.is_apart else "json"
        return Row(place.thread, place.namespace, id, text(parent), words, _bytes(data), _bytes(about))

    def read(self, row: Row) -> Checkpoint:
        """Raises one of `values.BROKEN`."""
        return decode_checkpoint(row.kind, row.data)

    def blob(self, place: ThreadPlace, channel: str, version: Any) -> StoredChannel | None:
        """A channel's value, where those lie apart."""
        if not self.is_apart:
            return None
        rows = self._database.rows(
            "SELECT type, blob FROM checkpoint_blobs"
            " WHERE thread_id = ? AND checkpoint_ns = ? AND channel = ? AND version = ?",
            (place.thread, place.namespace, channel, str(version)),
        )
        return next((StoredChannel(text(kind), _bytes(data)) for kind, data in rows), None)

    def blobs(self, place: ThreadPlace) -> Iterator[ChannelBlob]:
        if not self.is_apart:
            return
        sql = (
            "SELECT channel, version, type, blob FROM checkpoint_blobs"
            " WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY channel, version"
        )
        for channel, version, kind, data in self._database.walk(sql, (place.thread, place.namespace)):
            yield ChannelBlob(_text(channel), _text(version), text(kind), _bytes(data))

    def writes(self, place: ThreadPlace, checkpoint_id: str | None = None) -> list[ChannelWrite]:
        """In the order in which they were applied; of one checkpoint, or of all."""
        if not self._database.has(self._writes, *KEY, "task_id", "idx", "channel", self._value):
            return []
        path = "task_path" if self._database.has(self._writes, "task_path") else "''"
        condition = "" if checkpoint_id is None else " AND checkpoint_id = ?"
        rows = self._database.rows(
            f"SELECT checkpoint_id, task_id, {path}, idx, channel, type, {self._value} FROM {self._writes}"
            f" WHERE thread_id = ? AND checkpoint_ns = ?{condition} ORDER BY checkpoint_id, {path}, task_id, idx",
            (place.thread, place.namespace, *([] if checkpoint_id is None else [checkpoint_id])),
        )
        return [
            ChannelWrite(_text(id), _text(task), _text(task_path), index if isinstance(index, int) else 0,
                         _text(channel), text(kind), _bytes(data))
            for id, task, task_path, index, channel, kind, data in rows
        ]  # fmt: skip


def about(row: Row) -> dict[str, Any]:
    """A checkpoint's metadata."""
    return mapping(read_document(row.metadata).value) if row.metadata else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return b"" if value is None else str(value).encode("utf-8", "surrogatepass")


Columns = dict[str, Any]


class Verbatim:
    def __init__(self) -> None:
        self.lines = RowLines()
        self._written: set[str] = set()
        self._before: list[str] = []

    def add_row(self, table: str, columns: Columns, data: bytes, listed: list[StoredChannel] | None = None) -> None:
        """A row, whose `data` may hold a list of messages one after the other."""
        filled_columns: Columns = {name: value for name, value in columns.items() if value is not None}
        inner = b"".join(stored.data for stored in listed or ())
        list_offset = data.find(inner) if inner else -1
        if list_offset < 0 or listed is None:
            self.lines.add_value(table, {**filled_columns, "data": _packed(data)})
            return
        digests = [self._message(stored.data) for stored in listed]
        before = self._before
        shared_count = next((n for n, (a, b) in enumerate(zip(before, digests, strict=False)) if a != b), None)
        shared_count = min(len(before), len(digests)) if shared_count is None else shared_count
        self._before = digests
        pieces_of_row = {
            "head": _packed(data[:list_offset]),
            "keep": shared_count,
            "then": digests[shared_count:],
            "tail": _packed(data[list_offset + len(inner) :]),
        }
        self.lines.add_value(table, {**filled_columns, **pieces_of_row})

    def _message(self, data: bytes) -> str:
        digest = sha256(data).hexdigest()[:32]
        if digest not in self._written:
            self._written.add(digest)
            self.lines.add_value("message", {"digest": digest, "data": _packed(data)})
        return digest

    def finish(self) -> bytes:
        return self.lines.finish()


def rows_of(raw: bytes) -> Iterator[tuple[str, Columns, bytes]]:
    """Every row again: its table, its other columns, and its value to the letter."""
    messages: dict[str, bytes] = {}
    listed: list[str] = []
    for line in raw.splitlines():
        record = orjson.loads(line)
        table, columns = record["key"], record["data"]
        if table == "message":
            messages[columns["digest"]] = _unpacked(columns["data"])
            continue
        if "data" in columns:
            yield table, columns, _unpacked(columns.pop("data"))
            continue
        listed = [*listed[: columns.pop("keep")], *columns.pop("then")]
        head, tail = (_unpacked(columns.pop(name)) for name in ("head", "tail"))
        yield table, columns, head + b"".join(messages[digest] for digest in listed) + tail


def _packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unpacked(words: str) -> bytes:
    return base64.b64decode(words)
