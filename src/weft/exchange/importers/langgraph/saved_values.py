"""Values as savers write them, read as plain data. They name classes of Python: a name is all that is taken of them.
Nothing is imported, called or revived here, and what was pickled or encrypted stays unread.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
from msgspec import Raw, Struct

from weft.exchange.importers.documents import read_document
from weft.kernel.errors import quoted

BROKEN = (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError)
"""What reading damaged values raises."""
METHOD, NUMPY, SNAPSHOT = 3, 6, 7
CLASSES = range(6)
"""Codes of extensions: an object of a class, with its arguments; 3 is one made by a method, such as a date."""


class Tagged(Struct, frozen=True, eq=False):
    """An object: the name of its class, and what it was made of."""

    name: str
    value: Any

    @property
    def kind(self) -> str:
        return self.name.rpartition(".")[2]


class Snapshot(Struct, frozen=True, eq=False):
    """The whole value of a channel that otherwise keeps only what was added."""

    data: bytes


class Unreadable(ValueError):
    """A kind of value that is not read."""


def decoded(kind: str | None, data: bytes | None) -> Any:
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
        return tagged(document.value)
    raise Unreadable(f"values of the kind {quoted(kind, 40)} are not read")


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
    return inner[2] if code == METHOD else Tagged(f"{inner[0]}.{inner[1]}", inner[2])


def tagged(value: Any) -> Any:
    """JSON in which LangChain's objects stand as `{lc, type, id, kwargs}`."""
    if isinstance(value, list):
        return [tagged(each) for each in value]
    if not isinstance(value, dict):
        return value
    id = value.get("id")
    if "lc" in value and value.get("type") == "constructor" and isinstance(id, list):
        arguments = value.get("kwargs", value.get("args"))
        return Tagged(".".join(str(each) for each in id), tagged(arguments))
    return {name: tagged(each) for name, each in value.items()}


def plain(value: Any) -> Any:
    """Without the classes, for showing."""
    if isinstance(value, Tagged):
        return plain(value.value)
    if isinstance(value, Snapshot):
        return {"snapshot": len(value.data)}
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
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
    channels: dict[str, Stored]
    versions: dict[str, Any]


class Stored(Struct, frozen=True):
    """A channel's value as it lies in the database."""

    kind: str | None
    data: bytes


_checkpoint = msgspec.msgpack.Decoder(_Checkpoint, ext_hook=_extension)
_elements = msgspec.msgpack.Decoder(list[Raw])


def checkpoint(kind: str | None, data: bytes) -> Checkpoint:
    """Raises one of `BROKEN`."""
    if kind == "msgpack":
        found = _checkpoint.decode(data)
        channels = {name: Stored("msgpack", bytes(value)) for name, value in found.channel_values.items()}
        return Checkpoint(found.ts, channels, found.channel_versions)
    if kind not in ("json", None):
        raise Unreadable(f"checkpoints of the kind {quoted(kind, 40)} are not read")
    document = read_document(data)
    if document.damage is not None or not isinstance(document.value, dict):
        raise ValueError(document.damage or "no object")
    values, versions = (document.value.get(name) for name in ("channel_values", "channel_versions"))
    channels = {
        name: Stored("json", orjson.dumps(value, default=str))
        for name, value in (values.items() if isinstance(values, dict) else ())
    }
    return Checkpoint(document.value.get("ts"), channels, versions if isinstance(versions, dict) else {})


def elements(stored: Stored) -> list[Stored] | None:
    """Of a list, one by one and unread; None where the value is no list. Raises one of `BROKEN`."""
    if stored.kind == "msgpack":
        first = stored.data[:1]
        if first and 0xC7 <= first[0] <= 0xD8:
            value = decoded("msgpack", stored.data)
            return elements(Stored("msgpack", value.data)) if isinstance(value, Snapshot) else None
        if not first or not (0x90 <= first[0] <= 0x9F or first[0] in (0xDC, 0xDD)):
            return None
        return [Stored("msgpack", bytes(each)) for each in _elements.decode(stored.data)]
    if stored.kind == "json":
        value = orjson.loads(stored.data)
        return [Stored("json", orjson.dumps(each)) for each in value] if isinstance(value, list) else None
    return None
