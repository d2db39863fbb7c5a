"""Databases, stores and transcripts that are cut, odd or hostile: what can be read is read, everything is counted."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exchange.fixtures.cursor.sessions import (
    AGENT,
    COMPOSER,
    EXPORT,
    TEXT,
    answer,
    composer,
    dialogue,
    read,
    rows_of,
    session_rows,
    store_messages,
    tool,
    transcript_lines,
    transcript_path,
    uri,
    user,
    write_lines,
    write_state,
    write_store,
)
from tests.exchange.mutating import changed, mutations
from tests.exchange.reading import said
from weft.exchange.importers.cursor import Cursor
from weft.exchange.importers.testing import as_source


def everything() -> dict[str, Any]:
    """A session with something in every place that is read."""
    context = {
        "fileSelections": [{"uri": uri("/shop/a.py")}],
        "selections": [{"uri": uri("/shop/b.py"), "range": {"selectionStartLineNumber": 1, "positionLineNumber": 2}}],
        "selectedImages": [{"path": "/shop/shot.png"}],
    }
    summary = {"summary": {"summary": "s", "truncationLastBubbleIdInclusive": "b1"}, "lastBubbleId": "b4"}
    blocks = [{"uri": uri("/shop/a.py"), "version": 0}]
    bubbles = [
        user("b1", "See", context=context, supportedTools=[5], images=[{"data": "iVBORw=="}]),
        answer("b2", "!", codeBlocks=blocks, thinking={"text": "t"}, timingInfo={"clientRpcSendTime": 1}),
        tool("b3", additionalData={"x": 1}),
        tool("b4", status="error", error="{}"),
        user("b5", "More", lints=[{"message": "m", "range": {}}]),
        answer("b6", "So.", errorDetails={"message": "broken"}, tokenCount={"inputTokens": 1, "outputTokens": 2}),
    ]
    told = composer(
        *bubbles, latestConversationSummary=summary, codeBlockData={"f": blocks}, subagentInfo={"parentComposerId": "p"}
    )
    return rows_of(told, bubbles) | {f"messageRequestContext:{COMPOSER}:b1": {"cursorRules": [1]}}


ROWS = everything()


@given(mutations(ROWS, 1))
def test_mutated_rows_are_never_fatal_and_always_counted(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    with TemporaryDirectory() as folder:
        read(write_state(Path(folder), changed(ROWS, changes)))


LINES = transcript_lines()


@given(mutations(LINES, 0))
def test_mutated_transcripts_are_never_fatal_and_always_counted(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    with TemporaryDirectory() as folder:
        read(write_lines(transcript_path(Path(folder), COMPOSER), changed(LINES, changes)))


STORED = store_messages()


@given(mutations(STORED, 0))
def test_mutated_stores_are_never_fatal_and_always_counted(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    with TemporaryDirectory() as folder:
        read(write_store(Path(folder) / AGENT, changed(STORED, changes)))


@given(st.integers(0, 400), st.binary(max_size=6), st.sampled_from([TEXT, EXPORT]))
def test_texts_with_bytes_put_in_are_never_fatal(at: int, junk: bytes, base: str) -> None:
    data = base.encode()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "agent-transcripts" / ("t.txt" if base is TEXT else "cursor_t.md")
        path.parent.mkdir()
        path.write_bytes(data[:at] + junk + data[at:])
        if Cursor().recognises(as_source(path)):
            read(path)


@pytest.mark.parametrize("value", ["", "{", "[]", "7", "null", "words", b"\xff\xfe", b"", '"{broken"'])
def test_rows_that_are_no_objects_harm_no_others(tmp_path: Path, value: Any) -> None:
    rows = session_rows(*dialogue()) | {f"bubbleId:{COMPOSER}:b6": value}
    (found,), report = read(write_state(tmp_path, rows))
    assert [len(said(turn)) for turn in found.turns] == [3, 1]
    assert report.damaged == 1
    assert len(report.problems) == 1


@pytest.mark.parametrize("value", ["{", "[]", "7", "words"])
def test_a_session_whose_own_row_is_damaged_keeps_its_bubbles(tmp_path: Path, value: str) -> None:
    (found,), report = read(write_state(tmp_path, session_rows(*dialogue()) | {f"composerData:{COMPOSER}": value}))
    assert [turn.key for turn in found.turns] == ["b1", "b5"]
    assert report.damaged == 1


@pytest.mark.parametrize("value", [None, 7, "x", {}, [7, None, "x", []], {"bubbleId": "b1"}])
def test_odd_headers_are_not_fatal(tmp_path: Path, value: Any) -> None:
    read(write_state(tmp_path, session_rows(*dialogue(), fullConversationHeadersOnly=value)))


def test_bubbles_of_unknown_types_are_kept_and_counted(tmp_path: Path) -> None:
    odd = {"bubbleId": "b9", "type": 9, "text": "?"}
    (found,), report = read(write_state(tmp_path, session_rows(*dialogue(), odd)))
    assert report.unknown == {"bubble.type 9": 1}
    assert len(found.turns) == 2


def test_glued_cut_and_foreign_lines_harm_no_others(tmp_path: Path) -> None:
    first, *rest = (json.dumps(line) for line in transcript_lines())
    path = transcript_path(tmp_path, COMPOSER)
    path.parent.mkdir(parents=True)
    path.write_text("\n".join([first + rest[0], "[1]", *rest[1:]])[:-5])
    (found,), report = read(path)
    assert report.damaged == 1
    assert report.open_tail
    assert len(found.turns) == 2


def test_lone_surrogates_and_deep_nesting_are_not_fatal(tmp_path: Path) -> None:
    rows = session_rows(*dialogue())
    rows[f"bubbleId:{COMPOSER}:b1"] = json.dumps(user("b1", "x")).replace('"x"', '"\\ud800!"')
    rows[f"bubbleId:{COMPOSER}:b4"] = '{"type": 2, "text": "deep", "x": ' + "[" * 100_000 + "]" * 100_000 + "}"
    read(write_state(tmp_path, rows))


def test_recognising_never_raises(tmp_path: Path) -> None:
    odd = (b"SQLite format 3\0", b"SQLite format 3\0" + b"ItemTable" * 99, b"{" * 70_000, bytes(range(256)) * 300)
    for number, data in enumerate(odd):
        path = tmp_path / f"{number}.vscdb"
        path.write_bytes(data)
        Cursor().recognises(as_source(path))
        Cursor().is_part(as_source(path))


def test_a_thousand_turns_are_read_in_order(tmp_path: Path) -> None:
    bubbles = [user(f"b{number}", str(number)) for number in range(1000)]
    (found,), _ = read(write_state(tmp_path, session_rows(*bubbles)))
    assert [turn.parent for turn in found.turns] == [None, *range(999)]
