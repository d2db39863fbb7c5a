"""Contents: salted names, exact texts, exact JSON, and what columns show of them."""

from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.kernel import contents
from weft.kernel.contents import (
    BINARY,
    MAX_DEPTH,
    ROW_BYTES,
    SALT_BYTES,
    ContentHasher,
    TextCheck,
    bytes_text,
    content_ref,
    decode_utf8,
    json_bytes,
    json_value,
    json_values,
    readable,
    rows_of,
    showable,
    text_bytes,
)
from weft.kernel.errors import ContentTooLarge, InvalidInput, NoCanonicalForm

salts = st.binary(min_size=SALT_BYTES, max_size=SALT_BYTES)
any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text
any_json = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(any_text, inner), max_leaves=12)
ODD_TEXTS = ["\0", "a\0b", "\ud800", "x\udfffy", "\ud83d", "\U0001f600", "é€", "", "\ufffd", "\r\n"]


def same(left: Any, right: Any) -> bool:
    """Equal in value and in type: 1 is not 1.0 and not True."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_a_reference_is_the_hash_of_domain_salt_and_bytes() -> None:
    salt = bytes(range(16))
    assert content_ref(salt, b"hello") == sha256(b"weft.content.1\n" + salt + b"hello").digest()


@given(salts, salts, st.binary(max_size=64))
def test_the_same_bytes_under_two_salts_have_two_names(one: bytes, other: bytes, data: bytes) -> None:
    assert (content_ref(one, data) == content_ref(other, data)) == (one == other)


@given(salts, st.lists(st.binary(max_size=64), max_size=8))
def test_a_content_that_streams_past_gets_the_name_of_the_whole(salt: bytes, chunks: list[bytes]) -> None:
    hasher = ContentHasher(salt)
    for chunk in chunks:
        hasher.feed(chunk)
    whole = b"".join(chunks)
    assert hasher.ref() == content_ref(salt, whole)
    assert hasher.plain_digest() == sha256(whole).digest()
    assert hasher.size == len(whole)


def test_a_stream_that_grows_too_large_is_refused_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_CONTENT_BYTES", 10)
    hasher = ContentHasher(bytes(16))
    hasher.feed(b"1234567890")
    with pytest.raises(ContentTooLarge, match="at most 10 bytes"):
        hasher.feed(b"1")


@pytest.mark.parametrize("size", [0, 1, ROW_BYTES - 1, ROW_BYTES, ROW_BYTES + 1, 2 * ROW_BYTES, 2 * ROW_BYTES + 7])
@pytest.mark.parametrize("step", [ROW_BYTES // 3, ROW_BYTES, 5 * ROW_BYTES])
def test_rows_hold_exactly_one_mebibyte_but_for_the_last(size: int, step: int) -> None:
    data = bytes(i % 251 for i in range(1000)) * (size // 1000 + 1)
    data = data[:size]
    rows = list(rows_of(data[i : i + step] for i in range(0, size, step)))
    assert b"".join(rows) == data
    assert all(len(row) == ROW_BYTES for row in rows[:-1])
    assert all(0 < len(row) <= ROW_BYTES for row in rows)


@given(any_text)
def test_every_text_comes_back_from_its_bytes(text: str) -> None:
    assert bytes_text(text_bytes(text)) == text


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_odd_texts_come_back_from_their_bytes(text: str) -> None:
    assert bytes_text(text_bytes(text)) == text


@given(st.binary(max_size=40))
def test_bytes_that_are_no_text_can_still_be_shown(data: bytes) -> None:
    shown = showable(bytes_text(data))
    assert shown.encode().decode() == shown
    assert "\0" not in shown


def test_a_column_shows_a_short_broken_text_but_no_binary() -> None:
    assert readable(b"caf\xe9") == "caf\ufffd"
    assert readable(b"caf\xe9\0") == BINARY
    assert readable(b"\xe9" * 2000) == BINARY


@given(any_text)
def test_a_column_shows_a_text_letter_by_letter(text: str) -> None:
    shown = readable(text_bytes(text))
    if shown is None:
        assert "\0" not in text
        assert text.encode().decode() == text
    else:
        assert len(shown) == len(text)
        assert all(ours in (theirs, "\ufffd") for ours, theirs in zip(shown, text, strict=True))
        assert shown.encode().decode() == shown


@given(st.lists(st.binary(max_size=6), max_size=6) | any_text.map(lambda text: [bytes([b]) for b in text_bytes(text)]))
def test_whether_a_stream_is_database_text_does_not_depend_on_its_chunks(chunks: list[bytes]) -> None:
    check = TextCheck()
    for chunk in chunks:
        check.feed(chunk)
    check.feed(b"", last=True)
    assert check.holds == (readable(b"".join(chunks)) is None)


@given(any_json)
def test_json_reads_back_as_the_same_value(value: Any) -> None:
    assert same(json_value(json_bytes(value, "value")), value)


@given(st.lists(any_json | st.sampled_from([2**64, [10**30], "9" * 40])))
def test_many_values_are_read_like_one_by_one(values: list[Any]) -> None:
    read = json_values([json_bytes(value, "value") for value in values])
    assert len(read) == len(values)
    assert all(map(same, read, values))


def test_one_of_many_that_spells_no_value_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        json_values([b"1", b"no JSON"])


@pytest.mark.parametrize("value", [2**53, 2**64, -(2**64), 10**40, [2**63], {"a": 2**1000}, 1.0, -0.0, 1e300, 5e-324])
def test_numbers_of_any_size_keep_their_value_and_type(value: Any) -> None:
    assert same(json_value(json_bytes(value, "value")), value)


def test_key_order_and_empty_keys_are_kept() -> None:
    value = {"b": 1, "": 2, "a": {"\ud800": 3}}
    assert list(json_value(json_bytes(value, "value"))) == ["b", "", "a"]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "args"),
        ({"a": [1, float("inf")]}, "args.a[1]"),
        ({"a": {"b": -float("inf")}}, "args.a.b"),
        ({"a": b"bytes"}, "args.a"),
        ([{1, 2}], "args[0]"),
        ({"a": {1: 2}}, "args.a"),
        ([object()], "args[0]"),
    ],
)
def test_what_json_has_no_form_for_is_refused_with_its_place(value: Any, path: str) -> None:
    with pytest.raises(NoCanonicalForm) as refused:
        json_bytes(value, "args")
    assert refused.value.path == path


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 2_000, 100_000])
def test_a_depth_bomb_is_refused(depth: int) -> None:
    with pytest.raises(NoCanonicalForm, match="nested deeper"):
        json_bytes(nested(depth), "args")


def test_json_of_the_allowed_depth_reads_back() -> None:
    assert json_value(json_bytes(nested(MAX_DEPTH), "args")) == nested(MAX_DEPTH)


@pytest.mark.parametrize("data", [b"NaN", b'{"a":Infinity}', b"[-Infinity]", b"{", b""])
def test_text_that_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        json_value(data)


def test_invalid_utf8_is_refused_with_the_byte() -> None:
    assert decode_utf8("é".encode(), "query") == "é"
    with pytest.raises(InvalidInput, match=r"query is not UTF-8 \(byte 1\)"):
        decode_utf8(b"a\xff", "query")
