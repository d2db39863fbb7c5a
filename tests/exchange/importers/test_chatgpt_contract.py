"""The importers' contract, and damaged exports, for ChatGPT."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.exchange.fixtures.chatgpt.conversations import CHATGPT, conversation, dialogue, everything, id_of, write
from tests.exchange.mutating import spoiled
from tests.exchange.reading import read
from weft.exchange.testing import ImporterContract, as_source

EVERY = [conversation(*everything()), conversation(*dialogue(), id="other")]


class TestChatGpt(ImporterContract):
    importer = CHATGPT
    open = staticmethod(weft.open)
    whole = True

    def samples(self, folder: Path) -> list[Path]:
        return [
            write(folder, *EVERY),
            write(folder, conversation(*dialogue(), id="third"), name="conversations-001.json"),
        ]


def read_bytes(folder: Path, data: bytes) -> tuple[list[Any], Any]:
    path = folder / "conversations.json"
    path.write_bytes(data)
    CHATGPT.recognises(as_source(path))
    return read(CHATGPT, path)


@given(spoiled(EVERY))
def test_an_export_with_other_values_is_never_fatal_and_always_counted(document: Any) -> None:
    with TemporaryDirectory() as folder:
        read_bytes(Path(folder), json.dumps(document).encode())


@given(st.integers(0, 8000), st.binary(max_size=4))
def test_bytes_put_in_anywhere_are_never_fatal(at: int, junk: bytes) -> None:
    data = orjson.dumps(EVERY)
    with TemporaryDirectory() as folder:
        read_bytes(Path(folder), data[:at] + junk + data[at:])


@pytest.mark.parametrize("share", range(0, 100, 9))
def test_an_export_cut_anywhere_is_taken_as_far_as_it_goes(tmp_path: Path, share: int) -> None:
    data = orjson.dumps(EVERY)
    read_bytes(tmp_path, data[: len(data) * share // 100])


def test_a_damaged_conversation_harms_no_others_and_its_bytes_are_kept(tmp_path: Path) -> None:
    told = [conversation(*dialogue(), id=f"c-{k}") for k in range(4)]
    data = orjson.dumps(told).replace(b'"A test."', b'"A "test."', 2).replace(b'"A "test."', b'"A test."', 1)
    found, report = read_bytes(tmp_path, data)
    assert [each.session.id for each in found] == ["c-0", "c-2", "c-3"]
    assert report.damaged >= 1
    assert b'"c-1"' in b"".join(each.raw or b"" for each in found)


def test_parents_that_lead_in_a_circle_are_not_followed_for_ever(tmp_path: Path) -> None:
    told = conversation(*dialogue())
    told["mapping"][id_of("r")]["parent"] = id_of("a2")
    (found,), _ = read_bytes(tmp_path, orjson.dumps([told]))
    assert len(found.turns) == 2
