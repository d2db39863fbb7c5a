"""Exports with many conversations in one document, read one after another: each with what is to be kept of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from weft.exchange.importers.loading import loaded
from weft.exchange.importers.pieces import Piece, pieces
from weft.exchange.importers.port import Report, Source

WHOLE_LIMIT = 256 * 1024 * 1024


class Conversation(Struct, frozen=True):
    """One conversation of an export: what it says, and its bytes."""

    value: dict[str, Any]
    data: bytes


def conversations(
    source: Source, report: Report, sign: re.Pattern[bytes], is_one: Callable[[dict[str, Any]], bool], inside: str
) -> Iterator[Conversation]:
    """Those of a document that is a list of them, one of them, or an object that has the list as its member. What is
    damaged is kept with the conversation before it."""
    held: Conversation | None = None
    spoiled = b""
    for piece in _pieces(source, sign, is_one, inside):
        if isinstance(piece.value, dict):
            if held is not None:
                yield Conversation(held.value, held.data + spoiled)
                spoiled = b""
            held = Conversation(piece.value, piece.data)
            continue
        report.found += 1
        report.damaged += 1
        report.problem(None, f"what lies from byte {piece.offset} to {piece.end} is no conversation that can be read")
        spoiled += b"\n" + piece.data
    if held is not None:
        yield Conversation(held.value, held.data + spoiled)


def _pieces(
    source: Source, sign: re.Pattern[bytes], is_one: Callable[[dict[str, Any]], bool], inside: str
) -> Iterator[Piece]:
    if source.head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        whole = source.path.read_bytes() if source.size <= WHOLE_LIMIT else b""
        try:
            value = loaded(whole)
        except ValueError:
            value = None
        if isinstance(value, dict) and is_one(value):
            yield Piece(0, len(whole), whole, value=value)
            return
    for piece in pieces(source.path, inside, sign):
        if piece.name is None or not piece.is_whole:
            yield piece
