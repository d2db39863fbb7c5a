"""What tests of an importer do with it: read a file, look at what it gives, and spoil the file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct

from weft.exchange.importers.port import Importer, Report
from weft.exchange.importers.transcript import NativeCall, NativeMessage, NativeSession, NativeTurn
from weft.exchange.testing import as_source, assert_accounted, assert_well_formed
from weft.ledger.model import ReasoningPart, TextPart


class Read(Struct):
    """A transcript, walked."""

    session: NativeSession
    turns: list[NativeTurn]
    raw: bytes | None = None


def read(importer: Importer, path: Path, *, quiet: bool = True) -> tuple[list[Read], Report]:
    """Every session of a file, with the rules that hold for all of them."""
    report = Report(str(path))
    source = as_source(path, quiet=quiet)
    found = [Read(each.session, list(each.turns), each.raw) for each in importer.read(source, report)]
    assert_accounted(report)
    for each in found:
        assert_sound(each.turns)
    return found, report


def read_one(importer: Importer, path: Path) -> Read:
    (found,), _ = read(importer, path)
    return found


def assert_sound(turns: list[NativeTurn]) -> None:
    assert_well_formed(turns)
    for number, turn in enumerate(turns):
        if turn.compaction is not None:
            assert all(each is None or each < number for each in (turn.compaction.through, turn.compaction.first_kept))


def said(turn: NativeTurn) -> list[NativeMessage]:
    return [item for item in turn.items if isinstance(item, NativeMessage)]


def called(turn: NativeTurn) -> list[NativeCall]:
    return [item for item in turn.items if isinstance(item, NativeCall)]


def words(turn: NativeTurn) -> list[str]:
    """What was said in a turn, thinking included."""
    parts = [part for message in said(turn) for part in message.parts]
    return [str(part.text) for part in parts if isinstance(part, TextPart | ReasoningPart)]


def shape(turns: list[NativeTurn]) -> list[tuple[str, int | None]]:
    return [(turn.key, turn.parent) for turn in turns]


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inner for found in places(each, (*path, key)))]


@st.composite
def spoiled(draw: st.DrawFn, document: Any) -> Any:
    """The document with some of its values changed to others, or taken out."""
    result = copy.deepcopy(document)
    chosen = [place for place in places(document) if place]
    for place in draw(st.lists(st.sampled_from(chosen), min_size=1, max_size=6)):
        target = result
        try:
            for key in place[:-1]:
                target = target[key]
            if draw(st.booleans()):
                del target[place[-1]]
            else:
                target[place[-1]] = draw(ODD)
        except (KeyError, IndexError, TypeError):
            continue
    return result
