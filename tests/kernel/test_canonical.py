"""Canonical JSON against the RFC's own vectors, against another implementation, and against hostile input."""

import inspect
import json
import math
import struct
import sys
from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import orjson
import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sizes import PROVING
from weft.kernel.contents import MAX_DEPTH, _exact_dumps, _exact_loads, dumps, is_canonical, loads
from weft.kernel.errors import InvalidInput, InvalidJson, NoCanonicalForm


def examples(quick: int, full: int) -> settings:
    return settings(max_examples=full if PROVING else quick)


def double(bits: int) -> float:
    value: float = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
    return value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


bit_floats = st.integers(0, 2**64 - 1).map(double).filter(math.isfinite)
round_floats = st.builds(lambda digits, power: float(f"{digits}e{power}"), st.integers(-999, 999), st.integers(-25, 25))
edges = [1e-7, 1e-6, 1e-5, 1e-4, 1e15, 1e16, float(2**53), 1e20, 1e21, 1e22, 1e23, 295147905179352825856.0]
edge_floats = st.builds(
    lambda edge, towards, sign: sign * math.nextafter(edge, towards * edge),
    st.sampled_from(edges),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([1, -1]),
)
floats = bit_floats | round_floats | edge_floats | st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**53) + 1, 2**53 - 1)
nasty_letters = 'aZ_0é\x00\x1f\x7f"\\/ \n\t\b\u0080\u2028\ud7ff\ue000\uf8ff\ufb33\ufe0f\uffff𐀀😀\U0010ffff'
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.text(st.sampled_from(nasty_letters))
leaves = st.none() | st.booleans() | integers | floats | texts
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner) | st.lists(inner).map(tuple),
    max_leaves=20,
)

APPENDIX_B = [
    (0x0000000000000000, "0"),
    (0x8000000000000000, "0"),
    (0x0000000000000001, "5e-324"),
    (0x8000000000000001, "-5e-324"),
    (0x7FEFFFFFFFFFFFFF, "1.7976931348623157e+308"),
    (0xFFEFFFFFFFFFFFFF, "-1.7976931348623157e+308"),
    (0x4340000000000000, "9007199254740992"),
    (0xC340000000000000, "-9007199254740992"),
    (0x4430000000000000, "295147905179352830000"),
    (0x44B52D02C7E14AF5, "9.999999999999997e+22"),
    (0x44B52D02C7E14AF6, "1e+23"),
    (0x44B52D02C7E14AF7, "1.0000000000000001e+23"),
    (0x444B1AE4D6E2EF4E, "999999999999999700000"),
    (0x444B1AE4D6E2EF4F, "999999999999999900000"),
    (0x444B1AE4D6E2EF50, "1e+21"),
    (0x3EB0C6F7A0B5ED8C, "9.999999999999997e-7"),
    (0x3EB0C6F7A0B5ED8D, "0.000001"),
    (0x41B3DE4355555553, "333333333.3333332"),
    (0x41B3DE4355555554, "333333333.33333325"),
    (0x41B3DE4355555555, "333333333.3333333"),
    (0x41B3DE4355555556, "333333333.3333334"),
    (0x41B3DE4355555557, "333333333.33333343"),
    (0xBECBF647612F3696, "-0.0000033333333333333333"),
    (0x43143FF3C1CB0959, "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), APPENDIX_B)
def test_numbers_are_written_as_in_appendix_b(bits: int, text: str) -> None:
    assert dumps(double(bits)) == _exact_dumps(double(bits)) == text.encode()
    assert dumps({"n": [double(bits), "beside"]}) == f'{{"n":[{text},"beside"]}}'.encode()
    assert loads(text) == double(bits)
    assert is_canonical(text.encode())


@pytest.mark.parametrize("bits", [0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000, 0xFFF0000000000000])
def test_the_rows_of_appendix_b_without_a_number_are_refused(bits: int) -> None:
    with pytest.raises(NoCanonicalForm) as refusal:
        dumps({"a": [1, double(bits)]})
    assert refusal.value.path == "$.a[1]"


def test_the_sample_object_of_section_3_2_2_gives_the_bytes_of_section_3_2_4() -> None:
    sample = r"""{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"""
    expected = bytes.fromhex(
        "7b226c69746572616c73223a5b6e756c6c2c747275652c66616c73655d2c226e"
        "756d62657273223a5b3333333333333333332e333333333333332c31652b3330"
        "2c342e352c302e3030322c31652d32375d2c22737472696e67223a22e282ac24"
        "5c75303030665c6e4127425c225c5c5c5c5c222f227d"
    )
    assert dumps(loads(sample)) == _exact_dumps(loads(sample)) == expected
    assert is_canonical(expected)
    assert not is_canonical(sample.encode())


def test_members_are_sorted_as_in_section_3_2_3() -> None:
    sample = r"""{
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\ud83d\ude00": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis"
    }"""
    assert list(loads(dumps(loads(sample))).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


@pytest.mark.parametrize("astral", ["\U00010000", "\U00040000", "\U00080000", "\U000c0000", "\U0010ffff"])
@pytest.mark.parametrize("private", ["\ue000", "\uffff"])
def test_a_key_outside_the_basic_plane_sorts_before_the_last_ones_within(astral: str, private: str) -> None:
    assert list(loads(dumps([{private: 1.0, astral: 2, "\ud7ff": 3}]))[0]) == ["\ud7ff", astral, private]


@examples(60, 10_000)
@given(documents)
@example({"\ue000": 1, "𐀀": 2})
@example([{"a": "\ufe0f"}, {"b": "😀"}])
@example({"a": [1.0, {"b": 1e20, "\uffff": 0.5, "😀": -0.0}]})
def test_the_fast_path_the_exact_path_and_another_implementation_write_the_same_bytes(value: Any) -> None:
    assert dumps(value) == _exact_dumps(value) == rfc8785.dumps(value)


@examples(200, 100_000)
@given(floats)
def test_a_number_keeps_its_value_and_another_implementation_spells_it_alike(number: float) -> None:
    text = dumps(number)
    assert text == rfc8785.dumps(number)
    assert float(text) == number
    assert dumps([loads(text)]) == b"[%s]" % text


@examples(40, 5_000)
@given(documents)
def test_what_was_written_is_canonical_and_reads_back_equal(value: Any) -> None:
    text = dumps(value)
    assert is_canonical(text)
    assert loads(text) == json.loads(json.dumps(value))
    assert dumps(loads(text)) == text


@examples(40, 5_000)
@given(
    documents,
    st.booleans(),
    st.sampled_from([None, 0, 2]),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :\t")]),
)
def test_every_spelling_of_a_document_reads_as_that_document(
    value: Any, ascii_only: bool, indent: int | None, separators: tuple[str, str]
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent, separators=separators)
    assert loads(text) == loads(text.encode()) == _exact_loads(text) == json.loads(text)


def test_a_value_is_left_as_it_was() -> None:
    value = {"b": 1.0, "a": [1e20, (2.0, {"c": 0.0})]}
    dumps(value)
    assert repr(value) == repr({"b": 1.0, "a": [1e20, (2.0, {"c": 0.0})]})


class Color(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int


class Shout(str):
    def __str__(self) -> str:
        return self.upper()


def test_a_subclass_of_str_is_the_string_it_holds() -> None:
    assert dumps({Color.RED: Color.RED, "a": Shout("quiet")}) == b'{"a":"quiet","red":"red"}'


class Alone(str):
    """Equal to nothing else, so that a dict takes it beside the same letters."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


UNWRITABLE: list[tuple[object, str, str]] = [
    (math.nan, "$", "nan is not a JSON number"),
    ({"a": [0, 1, 2, -math.inf]}, "$.a[3]", "-inf is not a JSON number"),
    ({"a": [0, 1, 2, {"odd key": math.inf}]}, '$.a[3]["odd key"]', "inf is not a JSON number"),
    ({"a b": {'"': {"": [2**53]}}}, r'$["a b"]["\""][""][0]', "an integer beyond ±(2^53-1)"),
    ([-(2**53)], "$[0]", "an integer beyond ±(2^53-1)"),
    ({"_1": 2**64}, "$._1", "an integer beyond ±(2^53-1)"),
    ((1, 10**400_000), "$[1]", "an integer beyond ±(2^53-1)"),
    ({"é": ["\ud800"]}, r'$["\u00e9"][0]', "a lone surrogate"),
    ([{"x\udfff": 1}], r'$[0]["x\udfff"]', "a lone surrogate in the key"),
    ({"a": {1: 2}}, "$.a", "a key of type int, not str"),
    ({None: 1}, "$", "a key of type NoneType, not str"),
    ([{"a": b"bytes"}], "$[0].a", "bytes is not a JSON type"),
    ({"a": {1, 2}}, "$.a", "set is not a JSON type"),
    ([Decimal(1)], "$[0]", "Decimal is not a JSON type"),
    ([datetime(2026, 11, 15, tzinfo=UTC)], "$[0]", "datetime is not a JSON type"),
    ([UUID(int=0)], "$[0]", "UUID is not a JSON type"),
    ([1.0, Level.HIGH], "$[1]", "Level is not a JSON type"),
    ([Point(1)], "$[0]", "Point is not a JSON type"),
    ({"a": OrderedDict(b=1)}, "$.a", "OrderedDict is not a JSON type"),
    ([orjson.Fragment(b"1")], "$[0]", "Fragment is not a JSON type"),
    ({"a": {Alone("k"): 1, "k": 2}}, "$.a.k", "the key is given twice"),
]


@pytest.mark.parametrize(("value", "path", "reason"), UNWRITABLE, ids=[reason for _, _, reason in UNWRITABLE])
def test_what_has_no_canonical_form_is_refused_with_its_path(value: object, path: str, reason: str) -> None:
    for write in (dumps, _exact_dumps):
        with pytest.raises(NoCanonicalForm) as refusal:
            write(value)
        assert (refusal.value.path, refusal.value.reason) == (path, reason)


def test_nesting_is_taken_up_to_the_limit_and_refused_beyond() -> None:
    deepest = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert dumps(nested(MAX_DEPTH)) == deepest
    assert loads(deepest) == nested(MAX_DEPTH)
    assert is_canonical(deepest)
    for refused in (lambda: dumps(nested(MAX_DEPTH + 1)), lambda: loads(b"[%s]" % deepest)):
        with pytest.raises(NoCanonicalForm, match="nested deeper than 256 levels") as refusal:
            refused()
        assert refusal.value.path == "$" + "[0]" * MAX_DEPTH


def test_a_cycle_is_refused() -> None:
    ring: dict[str, Any] = {}
    ring["a"] = [ring]
    with pytest.raises(NoCanonicalForm, match="nested deeper"):
        dumps(ring)


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000, "[1," * 300])
def test_a_text_that_nests_without_end_is_refused(text: str) -> None:
    with pytest.raises(NoCanonicalForm, match="nested deeper"):
        loads(text)


def test_a_value_that_nests_without_end_is_refused() -> None:
    value = nested(100_000)
    with pytest.raises(NoCanonicalForm, match="nested deeper"):
        dumps(value)
    while value:
        value = value.pop()  # one level at a time: freeing it at once would be deep as well


def test_depth_is_our_limit_even_when_the_stack_is_nearly_used_up() -> None:
    text = dumps(nested(MAX_DEPTH)).replace(b"[]", b"[ 1.0 ]")

    def far_down(frames: int) -> bytes:
        return far_down(frames - 1) if frames else dumps(loads(text))

    used = len(inspect.stack(0))
    assert far_down(sys.getrecursionlimit() - used - 40).count(b"[") == MAX_DEPTH


UNREADABLE_VALUES = [
    (r'{"a":1,"a":2}', "$.a", "the key is given twice"),
    (r'{"a":1,"\u0061":1}', "$.a", "the key is given twice"),
    (r'[{"b":{"c d":[1],"e":2,"c d":[1]}}]', '$[0].b["c d"]', "the key is given twice"),
    (r'{"a":{"b":1},"b":{"a":1},"a":{"b":1}}', "$.a", "the key is given twice"),
    (r'{"a":1,"a":2', "$.a", "the key is given twice"),
    ("[9007199254740993]", "$[0]", "an integer beyond ±(2^53-1)"),
    ('{"a":[-12345678901234567890]}', "$.a[0]", "an integer beyond ±(2^53-1)"),
    ("18446744073709551615", "$", "an integer beyond ±(2^53-1)"),
    ("[1, 1000000000000000000000]", "$[1]", "an integer beyond ±(2^53-1)"),
    ("[" + "9" * 400_000 + "]", "$[0]", "an integer beyond ±(2^53-1)"),
    ("[0,-" + "9" * 400_000, "$[1]", "an integer beyond ±(2^53-1)"),
    ('{"a":1e400}', "$.a", "a number beyond the range of a double"),
    ("[-1.5E999]", "$[0]", "a number beyond the range of a double"),
    (r'{"é":["\ud800"]}', r'$["\u00e9"][0]', "a lone surrogate"),
    (r'["\ud83d\ude00","x\udc00y"]', "$[1]", "a lone surrogate"),
    (r'["\ud800\u0041"]', "$[0]", "a lone surrogate"),
    (r'[1,{"a":{"\udfff":1}}]', r'$[1].a["\udfff"]', "a lone surrogate in the key"),
]


@pytest.mark.parametrize(("text", "path", "reason"), UNREADABLE_VALUES, ids=lambda text: text[:40])
def test_a_value_in_a_text_without_canonical_form_is_refused_with_its_path(text: str, path: str, reason: str) -> None:
    for data in (text, text.encode()):
        with pytest.raises(NoCanonicalForm) as refusal:
            loads(data)
        assert (refusal.value.path, refusal.value.reason) == (path, reason)
    assert not is_canonical(text.encode())


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"", 0),
        (b"NaN", 0),
        (b"[Infinity]", 1),
        (b"[1,-Infinity]", 4),
        (b"\xef\xbb\xbf1", 0),
        ("\ufeff1", 0),
        (b'["a","\xff"]', 6),
        (b'["\xc3\xa9","\xed\xa0\x80"]', 7),
        ('["é","\ud800"]', 7),
        ('["é",nul]'.encode(), 6),
        ('{"é":1,é:2}', 8),
        (b'["\x01"]', 2),
        (rb'["\x"]', 2),
        (b"01", 0),
        (b"1 2", 2),
        (b'"abc', 4),
        (b'"[[[' + b"[" * 300, 304),
        (b"['a']", 1),
    ],
)
def test_a_text_that_is_not_json_is_refused_with_the_byte_where_it_goes_wrong(data: bytes | str, offset: int) -> None:
    with pytest.raises(InvalidJson) as refusal:
        loads(data)
    assert refusal.value.offset == offset
    if isinstance(data, bytes):
        assert not is_canonical(data)


def test_an_integer_beyond_the_exact_ones_is_read_only_in_its_canonical_spelling() -> None:
    assert loads("[9007199254740992,-100000000000000000000]") == [2.0**53, -1e20]
    assert type(loads("9007199254740992")) is float
    assert type(loads("9007199254740991")) is int
    assert loads("1e20") == 1e20


@pytest.mark.parametrize(
    "text",
    [
        '{"b":1,"a":2}',
        '{"a": 1}',
        "1.0",
        "-0",
        "1e3",
        r'"\u0041"',
        r'"\/"',
        " 1",
        '{"𐀀":1,"\ue000":2} ',
        "1E30",
    ],
)
def test_another_spelling_is_json_but_not_canonical(text: str) -> None:
    loads(text)
    assert not is_canonical(text.encode())


def refuse(_: str) -> Any:
    raise ValueError


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError
    return dict(pairs)


def exact(literal: str) -> int | float:
    if abs(int(literal)) < 2**53:
        return int(literal)
    return float(literal) if rfc8785.dumps(float(literal)).decode() == literal else refuse(literal)


def finite(literal: str) -> float:
    return float(literal) if math.isfinite(float(literal)) else refuse(literal)


def by_the_standard_library(text: str) -> Any:
    value = json.loads(text, object_pairs_hook=once, parse_constant=refuse, parse_int=exact, parse_float=finite)
    json.dumps(value, ensure_ascii=False).encode()
    return value


pieces = st.sampled_from(list('{}[],:"\\-01 \n\0é😀')) | st.sampled_from(
    [
        '"a":',
        '"b":',
        '"a"',
        r"\u0061",
        r"\ud800",
        r"\udc00",
        ".5",
        "e9",
        "1e400",
        "null",
        "NaN",
        str(2**53),
        "9" * 16,
    ]
)


@st.composite
def broken_texts(draw: st.DrawFn) -> str:
    text: str = draw(st.lists(pieces, max_size=12).map("".join) | documents.map(json.dumps))
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(pieces) + text[at + draw(st.integers(0, 1)) :]


@examples(120, 10_000)
@given(broken_texts())
def test_a_broken_text_is_read_or_refused_as_by_the_standard_library(text: str) -> None:
    try:
        expected = by_the_standard_library(text)
    except ValueError:
        with pytest.raises(InvalidInput):
            loads(text)
    else:
        assert loads(text) == expected


@examples(120, 10_000)
@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        value = loads(data)
    except InvalidInput:
        assert not is_canonical(data)
    else:
        assert loads(dumps(value)) == value
