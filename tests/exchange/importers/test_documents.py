"""Documents that are cut or damaged, and messages in the shapes of chat APIs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exchange.fuzzing import ODD, as_json
from weft.exchange.importers.foreign_files import read_document
from weft.exchange.importers.foreign_values import json_in_text
from weft.exchange.importers.native_turns import chat_tokens, content_of
from weft.exchange.importers.port import Tokens
from weft.ledger.dialects import plain_result
from weft.ledger.model import ImagePart, ReasoningPart, TextPart


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, 2, {"b": 3}, {"c": 4', {"a": [1, 2, {"b": 3}]}),
        ('{"a": {"b": 1, "c": "half', {"a": {"b": 1}}),
        ('{"a": 1} {"b": 2}', {"a": 1}),
        ('{"a": {"x": 1 "y": 2,}, "b": [1,, 2]}', {"a": {"x": 1, "y": 2}, "b": [1]}),
        ('{"a": {"x": 1 "y": 2}, "b": 3}', {"a": {"x": 1, "y": 2}, "b": 3}),
        ("[1, 2, oops, 3]", [1, 2]),
        ("", None),
        ("{", {}),
        ("nonsense", None),
    ],
)
def test_of_a_broken_document_what_came_before_is_taken(text: str, value: Any) -> None:
    found = read_document(text.encode())
    assert found.damage is not None
    assert found.value == value


def test_what_a_strict_reader_refuses_is_no_damage() -> None:
    assert read_document(b'\xef\xbb\xbf{"a": "\\ud800", "b": NaN}').value == {"a": "\ud800", "b": "NaN"}
    assert read_document(b'["\xff"]').value == ["\udcff"]
    assert read_document(b'["\xff"]').damage is None


def test_deep_nesting_is_damage_and_not_fatal() -> None:
    found = read_document(b'{"a": 1, "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    assert found.damage == "nested too deeply"
    assert found.value["a"] == 1


@given(ODD, st.integers(0, 200))
def test_a_prefix_of_a_document_is_read_without_harm(value: Any, end: int) -> None:
    data = as_json({"list": [value, value], "last": value})
    found = read_document(data[:end])
    assert (found.damage is None) == (end >= len(data))
    if isinstance(found.value, dict) and "last" in found.value and isinstance(value, str):
        assert found.value["last"] == value


def test_content_of_every_shape_becomes_parts() -> None:
    blocks = [
        "plain",
        {"type": "text", "text": "said"},
        {"type": "thinking", "thinking": "thought"},
        {"type": "reasoning", "summary": [{"text": "one"}, {"text": "two"}]},
        {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        {"type": "image", "base64": "BB==", "mime_type": "image/gif"},
        {"type": "tool_use", "id": "t"},
        {"type": "hologram"},
        7,
    ]
    found = content_of(blocks)
    assert found.parts == [
        TextPart("plain"),
        TextPart("said"),
        ReasoningPart("thought"),
        ReasoningPart("one\n\ntwo"),
        ImagePart("https://example.org/x.png"),
        ImagePart("data:image/png;base64,AA=="),
        ImagePart("data:image/gif;base64,BB=="),
    ]
    assert (found.calls, found.other_blocks) == ([{"type": "tool_use", "id": "t"}], [{"type": "hologram"}, 7])
    assert (content_of(None).parts, content_of("").parts) == ([], [])


def test_arguments_are_json_where_they_can_be_and_results_a_text_where_they_are_one() -> None:
    assert json_in_text('{"a": 1}') == {"a": 1}
    assert json_in_text("{broken") == "{broken"
    assert json_in_text({"a": 1}) == {"a": 1}
    assert plain_result([{"type": "text", "text": "x"}]) == "x"
    assert plain_result(["x", "y"]) == ["x", "y"]


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (None, None),
        ({"total_tokens": 3}, None),
        ({"prompt_tokens": 5, "completion_tokens": 2}, Tokens(input=5, output=2)),
        (
            {"prompt_tokens": 100, "completion_tokens": 2, "cache_read_input_tokens": 60,
             "cache_creation_input_tokens": 30},
            Tokens(input=10, output=2, cached=60, cache_write=30),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 60}},
            Tokens(input=5, output=2, cached=60),
        ),
        (
            {"input_tokens": 9, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}},
            Tokens(input=5, output=3, cached=4),
        ),
        (
            {"input_tokens": 9, "output_tokens": 3, "cache_read_input_tokens": 40},
            Tokens(input=9, output=3, cached=40),
        ),
        (
            {"input_tokens": 9, "output_tokens": 3, "cache_creation_input_tokens": 8,
             "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 6}},
            Tokens(input=9, output=3, cache_write=8, cache_write_1h=6),
        ),
        (
            {"prompt_tokens": 20, "completion_tokens": 2, "cache_creation_input_tokens": 8,
             "prompt_tokens_details": {"cache_creation_token_details": {"ephemeral_1h_input_tokens": 6}}},
            Tokens(input=12, output=2, cache_write=8, cache_write_1h=6),
        ),
    ],
)  # fmt: skip
def test_tokens_are_disjoint_whoever_counted_them(usage: Any, tokens: Tokens | None) -> None:
    assert chat_tokens(usage) == tokens


@pytest.mark.parametrize(
    ("text", "place", "fault"),
    [
        ("hello", "line 1, column 1", "there is no value where one is expected"),
        ('{"a":\n', "line 1, column 6", "there is no value where one is expected"),
        ("{nonsense}", "line 1, column 2", "there is no name in double quotes where one is expected"),
        ('{"a" 1}', "line 1, column 6", "a colon is missing"),
        ('{"a": 1\n2}', "line 2, column 1", "a comma is missing, or the end of a list or an object"),
        ('{"a": "b', "line 1, column 7", "a text has no end"),
        (r'"a\qb"', "line 1, column 3", "a backslash stands before a letter that it does not escape"),
        (r'"\u12"', "line 1, column 3", "a \\u is not followed by four digits"),
        ("1 2", "line 1, column 3", "more follows where it should end"),
    ],
)
def test_what_is_wrong_with_a_text_is_told_in_plain_words(text: str, place: str, fault: str) -> None:
    assert read_document(text.encode()).damage == f"not JSON from {place} on: {fault}"
