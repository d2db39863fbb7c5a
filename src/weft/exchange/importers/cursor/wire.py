"""Just enough of protobuf's wire format to follow the nodes of a store: fields by number, bytes and numbers alone."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Each field with its number; raises ValueError where the bytes are no such message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise ValueError("a field without a number")
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        size = 8 if kind == EIGHT else 4 if kind == FOUR else None
        if kind == BYTES:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError("a field of no known kind or size")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number without an end")


def as_field(number: int, value: bytes) -> bytes:
    """A field of bytes, as it is written."""
    return _as_varint(number << 3 | BYTES) + _as_varint(len(value)) + value


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
