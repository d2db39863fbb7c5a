"""Chats that are cut, odd or hostile: what can be read is read, and everything is counted."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exchange.fixtures.gemini_cli.chats import GEMINI, dialogue, everything, header, id_of, lines, write_document
from tests.exchange.mutating import spoiled
from tests.exchange.reading import read, said
from weft.exchange.importers.testing import as_source
from weft.ledger.model import TextPart

EVERY = json.loads(json.dumps(everything()))
MESSAGES = [line for line in EVERY if "type" in line]


def read_bytes(folder: Path, data: bytes, name: str = "chat.jsonl") -> tuple[list[Any], Any]:
    path = folder / name
    path.write_bytes(data)
    GEMINI.recognises(as_source(path))
    return read(GEMINI, path)


@given(spoiled(EVERY))
def test_a_log_with_other_values_is_never_fatal_and_always_counted(records: list[Any]) -> None:
    with TemporaryDirectory() as folder:
        read_bytes(Path(folder), "".join(f"{json.dumps(record)}\n" for record in records).encode())


@given(spoiled({**header(), "messages": MESSAGES}))
def test_a_document_with_other_values_is_never_fatal_and_always_counted(document: Any) -> None:
    with TemporaryDirectory() as folder:
        read_bytes(Path(folder), json.dumps(document).encode(), "chat.json")


@given(st.integers(0, 4000), st.binary(max_size=4), st.booleans())
def test_bytes_put_in_anywhere_are_never_fatal(at: int, junk: bytes, is_log: bool) -> None:
    data = lines(*EVERY) if is_log else orjson.dumps({**header(), "messages": MESSAGES})
    with TemporaryDirectory() as folder:
        read_bytes(Path(folder), data[:at] + junk + data[at:], "chat.jsonl" if is_log else "chat.json")


def test_glued_lines_are_two_records(tmp_path: Path) -> None:
    data = lines(*dialogue()).replace(b"}\n", b"}", 2)
    (found,), report = read_bytes(tmp_path, data)
    assert len(found.turns) == 2
    assert report.damaged == 0


def test_an_unfinished_last_line_is_left_for_the_next_time(tmp_path: Path) -> None:
    (found,), report = read_bytes(tmp_path, lines(*dialogue())[:-30])
    assert report.open_tail
    assert [len(said(turn)) for turn in found.turns] == [2, 1]


@pytest.mark.parametrize("share", range(0, 100, 9))
def test_a_document_cut_anywhere_is_taken_as_far_as_it_goes(tmp_path: Path, share: int) -> None:
    data = write_document(tmp_path, *MESSAGES).read_bytes()
    read_bytes(tmp_path, data[: len(data) * share // 100], "cut.json")


def test_a_damaged_message_of_a_document_harms_no_others(tmp_path: Path) -> None:
    messages = [line for line in dialogue() if "type" in line]
    data = orjson.dumps({**header(), "messages": messages}).replace(b'"A test."', b'"A "test."')
    (found,), report = read_bytes(tmp_path, data, "chat.json")
    assert [turn.key for turn in found.turns] == [id_of("u1"), id_of("u2")]
    assert [len(said(turn)) for turn in found.turns] == [1, 2]
    assert report.damaged == 1


def test_bytes_that_are_no_utf8_stay_what_they_are(tmp_path: Path) -> None:
    (found,), _ = read_bytes(tmp_path, lines(*dialogue()).replace(b"A test.", b"A \xff test."))
    assert said(found.turns[0])[1].parts[-1] == TextPart("A \udcff test.")


def test_deep_nesting_is_not_fatal(tmp_path: Path) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    read_bytes(tmp_path, lines(*dialogue()).replace(b'"Thanks."', deep))
    data = orjson.dumps({**header(), "messages": dialogue()[1:]}).replace(b'"Thanks."', deep)
    read_bytes(tmp_path, data, "chat.json")
