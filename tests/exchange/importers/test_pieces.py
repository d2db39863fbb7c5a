"""A JSON document read piece by piece is what it would be read as a whole."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sizes import sized
from weft.exchange.importers import foreign_files as streaming
from weft.exchange.importers.foreign_files import document_elements
from weft.exchange.importers.foreign_values import json_value

SIGN = re.compile(rb'[,\[]\s*(\{\s*"title")')
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)  # beyond, what importers read with makes a float of it
    | st.text(max_size=8)
    | st.sampled_from(['"', "\\", '\\"', "]", "}", ","]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def found(folder: Path, data: str | bytes, inside: str | None = None) -> list[tuple[str | None, Any, bool]]:
    path = folder / "document.json"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    whole = path.read_bytes()
    told = []
    for piece in document_elements(path, inside, SIGN):
        assert whole[piece.offset : piece.end] == piece.data
        assert not piece.is_whole or json_value(piece.data) == piece.value
        told.append((piece.name, piece.value, piece.is_whole))
    return told


@given(st.lists(JSON, max_size=5), st.booleans(), st.sampled_from([None, 1, 4]), st.integers(1, 64))
def test_a_list_is_its_elements(values: list[Any], is_ascii: bool, indent: int | None, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(streaming, "CHUNK", chunk)
        data = json.dumps(values, ensure_ascii=is_ascii, indent=indent).encode("utf-8", "surrogatepass")
        assert found(Path(folder), data) == [(None, value, True) for value in json.loads(json.dumps(values))]


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_an_integer_beyond_64_bits_is_what_it_is_in_the_whole_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    data = json.dumps([{"title": number}, number, [number]])
    whole = [(None, repr(value), True) for value in json_value(data.encode())]  # an equal float is not the same
    assert len(whole) == 3
    for chunk in (1, 7, 64):
        monkeypatch.setattr(streaming, "CHUNK", chunk)
        assert [(name, repr(value), is_whole) for name, value, is_whole in found(tmp_path, data)] == whole


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=5), st.lists(JSON, max_size=3), st.integers(1, 64))
def test_an_object_is_its_members_and_the_elements_of_one(
    members: dict[str, Any], values: list[Any], chunk: int
) -> None:
    members = {name: value for name, value in members.items() if name != "inside"}
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(streaming, "CHUNK", chunk)
        told = found(Path(folder), json.dumps({**members, "inside": values, "last": 1}), "inside")
    assert [each for each in told if each[0] is None] == [(None, value, True) for value in values]
    assert {name: value for name, value, _ in told if name is not None} == {**members, "last": 1}


@pytest.mark.parametrize("data", ["", " ", "[]", "{}", "7", '"x"', "]", '{"a"', "\x00"])
def test_what_holds_no_pieces_gives_none(tmp_path: Path, data: str) -> None:
    assert found(tmp_path, data) == []


def test_a_document_that_is_cut_gives_its_last_piece_as_cut(tmp_path: Path) -> None:
    assert found(tmp_path, '[{"title": 1}, {"title": "tw') == [(None, {"title": 1}, True), (None, None, False)]


def test_a_damaged_element_harms_no_others(tmp_path: Path) -> None:
    told = found(tmp_path, '[{"title": "a"}, {"title": "b"c"}, {"title": "d"}, {"title": "e"}]')
    assert [value for _, value, is_whole in told if is_whole] == [{"title": "a"}, {"title": "d"}, {"title": "e"}]
    assert [is_whole for _, _, is_whole in told].count(False) == 1


def test_a_sign_across_two_chunks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for chunk in range(1, 40):
        monkeypatch.setattr(streaming, "CHUNK", chunk)
        told = found(tmp_path, '[{"title": "b"c"}, {"title": "d"}]')
        assert (None, {"title": "d"}, True) in told


def test_a_byte_order_mark_is_no_part_of_it(tmp_path: Path) -> None:
    assert found(tmp_path, b"\xef\xbb\xbf[1, 2]") == [(None, 1, True), (None, 2, True)]


def test_memory_grows_with_the_largest_piece_and_not_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    element = json.dumps({"title": "x", "text": "lorem ipsum " * 2000}).encode()
    elements = sized(test=400, prove=1200)
    path.write_bytes(b"[" + b",".join([element] * elements) + b"]")
    tracemalloc.start()
    try:
        assert sum(1 for _ in document_elements(path)) == elements
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * streaming.CHUNK < path.stat().st_size
