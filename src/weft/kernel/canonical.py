"""Canonical JSON, exactly as RFC 8785 has it: one value, one sequence of bytes.

`dumps` lets orjson write first and then proves with one walk that those bytes are canonical. Floats that
orjson spells differently are respelled in a copy. What is left (keys whose order depends on UTF-16,
subclasses of str, every refusal) goes value by value through `_exact_dumps`, which knows the path.

`loads` lets orjson read first. If orjson writes the same text again, but for white space and escapes, then no
key was given twice and no integer was rounded; otherwise `_exact_loads` reads token by token. An integer
literal beyond 2^53-1 is read, as a float, only if it is the canonical form of that float: so `loads` takes
all that `dumps` writes and still rounds no integer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import isfinite
from operator import itemgetter
from typing import Any, NoReturn

import orjson

from weft.kernel.errors import InvalidInput, InvalidJson, NoCanonicalForm

MAX_DEPTH = 256
MAX_INTEGER = 2**53 - 1

_AS_GIVEN = orjson.OPT_STRICT_INTEGER
_SORTED = orjson.OPT_STRICT_INTEGER | orjson.OPT_SORT_KEYS
_LEAVES = frozenset((str, int, bool, type(None)))
_WHITE = b" \t\r\n"

_PLAIN_FLOAT_FROM, _PLAIN_FLOAT_TO = 1e-4, 1e15
_RESPELL, _EXACT = 1, 2

_LONGEST_INTEGER = len("-999999999999999900000")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)

_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_TOO_LARGE = "an integer beyond ±(2^53-1)"
_LONE_SURROGATE = "a lone surrogate"

_Label = str | int | None
_Box = list[Any] | dict[str, Any]
_Member = tuple[str | int, bytes, object]


def dumps(value: object) -> bytes:
    """The canonical bytes of `value`. Raises NoCanonicalForm with the path of what has none."""
    try:
        text = orjson.dumps(value, option=_SORTED)
    except TypeError:
        return _exact_dumps(value)
    oddity = _oddity(value)
    if oddity == _EXACT or (not text.isascii() and _key_order_is_open(text, value)):
        return _exact_dumps(value)
    if oddity == _RESPELL:
        return orjson.dumps(_respelled(value), option=_SORTED)
    return text


def loads(data: bytes | str) -> Any:
    """The value of a JSON text. Raises InvalidJson for its grammar, NoCanonicalForm for a value in it."""
    text = data if isinstance(data, bytes) else _utf8(data)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        _refuse(text, error)
    try:
        again = orjson.dumps(value, option=_AS_GIVEN)
    except TypeError:
        return _exact_loads(text.decode())
    if again == text or _packed(again) == _packed(text) or _skeleton(again) == _skeleton(text):
        return value
    return _exact_loads(text.decode())


def is_canonical(data: bytes) -> bool:
    """Whether these are the very bytes that `dumps` gives for what they say."""
    try:
        return dumps(loads(data)) == data
    except InvalidInput:
        return False


def _oddity(value: object) -> int:
    """What keeps orjson's text from being canonical; called only after orjson found no cycle."""
    oddity = 0
    pending: list[Any] = [value]
    for item in pending:
        kind = type(item)
        if kind is str or kind is int:
            continue
        if kind is dict:
            pending += item.values()
        elif kind is list or kind is tuple:
            pending += item
        elif kind is float:
            if not isfinite(item):
                return _EXACT
            if not _is_plain(item):
                oddity = _RESPELL
        elif kind not in _LEAVES:
            return _EXACT
    return oddity


def _key_order_is_open(text: bytes, value: object) -> bool:
    """UTF-16 units order keys unlike code points only where U+E000 to U+FFFF meets U+10000 and above."""
    if not any(lead in text for lead in (b"\xee", b"\xef")):
        return False
    if not any(lead in text for lead in (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4")):
        return False
    pending: list[Any] = [value]
    for item in pending:
        if type(item) is dict:
            if not "".join(item).isascii():
                return True
            pending += item.values()
        elif type(item) in (list, tuple):
            pending += item
    return False


def _respelled(value: object) -> object:
    """A copy in which orjson writes every float as ECMAScript does."""
    root: list[Any] = [value]
    boxes: list[Any] = [root]
    for box in boxes:
        for place, item in box.items() if type(box) is dict else enumerate(box):
            kind = type(item)
            if kind is float:
                box[place] = _float_for_orjson(item)
            elif kind is dict or kind is list or kind is tuple:
                box[place] = copy = item.copy() if kind is dict else list(item)
                boxes.append(copy)
    return root[0]


def _is_plain(number: float) -> bool:
    """Whether it needs no exponent and has a fraction: there, all spellings of the shortest digits agree."""
    return _PLAIN_FLOAT_FROM <= abs(number) < _PLAIN_FLOAT_TO and not number.is_integer()


def _float_for_orjson(number: float) -> float | orjson.Fragment:
    if _is_plain(number):
        return number
    if number.is_integer() and abs(number) <= MAX_INTEGER:
        return int(number)
    return orjson.Fragment(_ecmascript(number))


def _ecmascript(number: float) -> str:
    """Number::toString of ECMAScript; Python's repr already finds the shortest digits."""
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    padded = (whole + fraction).rstrip("0")
    digits = padded.lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(padded) - len(digits))
    return sign + _placed(digits, point)


def _placed(digits: str, point: int) -> str:
    """The digits with the decimal point after the first `point` of them."""
    if len(digits) <= point <= 21:
        return digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{tail}e{point - 1:+d}"


def _exact_dumps(value: object) -> bytes:
    """The bytes of `dumps`, value by value and without recursion."""
    out = bytearray()
    labels: list[_Label] = []
    boxes: list[tuple[Iterator[_Member], bytes]] = []
    while True:
        if type(value) in (dict, list, tuple):
            opening, members, closing = _opened(value, labels)
            out += opening
            boxes.append((members, closing))
            labels.append(None)
        else:
            out += _scalar(value, labels)
        while boxes and (member := next(boxes[-1][0], None)) is None:
            out += boxes.pop()[1]
            labels.pop()
        if not boxes or member is None:
            return bytes(out)
        labels[-1], lead, value = member
        out += lead


def _opened(box: Any, labels: list[_Label]) -> tuple[bytes, Iterator[_Member], bytes]:
    if len(labels) == MAX_DEPTH:
        raise NoCanonicalForm(_path(labels), _TOO_DEEP)
    if type(box) is dict:
        return b"{", _object_members(_ordered(box, labels)), b"}"
    return b"[", _array_members(box), b"]"


def _array_members(items: list[object]) -> Iterator[_Member]:
    lead = b""
    for index, item in enumerate(items):
        yield index, lead, item
        lead = b","


def _object_members(members: list[tuple[bytes, str, object]]) -> Iterator[_Member]:
    lead = b""
    for _, name, item in members:
        yield name, b"%s%s:" % (lead, orjson.dumps(name)), item
        lead = b","


def _ordered(box: dict[object, object], labels: list[_Label]) -> list[tuple[bytes, str, object]]:
    """The members by the UTF-16 units of their names."""
    members: dict[bytes, tuple[bytes, str, object]] = {}
    for key, item in box.items():
        if not isinstance(key, str):
            raise NoCanonicalForm(_path(labels), f"a key of type {type(key).__name__}, not str")
        name = str.__str__(key)
        try:
            units = name.encode("utf-16-be")
        except UnicodeEncodeError:
            raise NoCanonicalForm(_path([*labels, name]), f"{_LONE_SURROGATE} in the key") from None
        if units in members:
            raise NoCanonicalForm(_path([*labels, name]), "the key is given twice")
        members[units] = units, name, item
    return sorted(members.values(), key=itemgetter(0))


def _scalar(value: object, labels: list[_Label]) -> bytes:
    if isinstance(value, str):
        try:
            return orjson.dumps(str.__str__(value))
        except TypeError:
            raise NoCanonicalForm(_path(labels), _LONE_SURROGATE) from None
    if value is None or value is True or value is False:
        return orjson.dumps(value)
    if type(value) is int:
        if abs(value) > MAX_INTEGER:
            raise NoCanonicalForm(_path(labels), _TOO_LARGE)
        return b"%d" % value
    if type(value) is float:
        if not isfinite(value):
            raise NoCanonicalForm(_path(labels), f"{value} is not a JSON number")
        return _ecmascript(value).encode()
    raise NoCanonicalForm(_path(labels), f"{type(value).__name__} is not a JSON type")


def _path(labels: list[_Label]) -> str:
    return "$" + "".join(_step(label) for label in labels if label is not None)


def _step(label: str | int) -> str:
    if isinstance(label, int):
        return f"[{label}]"
    return f".{label}" if _IDENTIFIER.fullmatch(label) else f"[{json.dumps(label)}]"


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidJson(_LONE_SURROGATE, len(text[: error.start].encode())) from None


def _packed(text: bytes) -> bytes:
    """The text without its white space, also in strings: it has the same tokens in the same order."""
    return text.translate(None, _WHITE)


def _skeleton(text: bytes) -> bytes:
    """The text without what its strings say: it has the same members, and the same numbers in them."""
    return _packed(_STRING.sub(b'"', text))


def _exact_loads(text: str) -> Any:
    """The value of a text whose grammar is right, token by token and without recursion."""
    reader = _Reader()
    for token in _TOKEN.findall(text):
        reader.take(token)
    return reader.value


def _refuse(data: bytes, error: json.JSONDecodeError) -> NoReturn:
    """Whatever comes first in the text is the error: a value without canonical form, or the grammar."""
    try:
        text = data.decode()
    except UnicodeDecodeError as wrong:
        raise InvalidJson("not UTF-8", wrong.start) from None
    reader = _Reader()
    try:
        for match in _TOKEN.finditer(text):
            if match.end() > error.pos:
                reader.decode(match[0])
                break
            reader.take(match[0])
    except json.JSONDecodeError:
        pass  # the broken token itself; orjson's words for it are better
    raise InvalidJson(error.msg, len(text[: error.pos].encode())) from None


class _Reader:
    """Builds a value from tokens in the right grammar; refuses what that allows and RFC 8785 does not."""

    def __init__(self) -> None:
        self.value: Any = None
        self._boxes: list[_Box] = []
        self._labels: list[_Label] = []

    def take(self, token: str) -> None:
        if token == "{":
            self._open({}, None)
        elif token == "[":
            self._open([], 0)
        elif token in ("}", "]"):
            self._boxes.pop()
            self._labels.pop()
        elif token == ",":
            self._next_member()
        elif token != ":":
            self._leaf(token)

    def decode(self, token: str) -> Any:
        """The string, number or word that this token spells."""
        if token[0] == '"':
            return self._string(token)
        if _INTEGER.fullmatch(token):
            return self._integer(token)
        try:
            return orjson.loads(token)
        except orjson.JSONDecodeError:
            if _NUMBER.fullmatch(token):
                raise NoCanonicalForm(_path(self._labels), "a number beyond the range of a double") from None
            raise

    def _string(self, token: str) -> Any:
        try:
            return orjson.loads(token)
        except orjson.JSONDecodeError:
            text = json.loads(token)
        if self._at_key():
            raise NoCanonicalForm(_path([*self._labels, text]), f"{_LONE_SURROGATE} in the key")
        raise NoCanonicalForm(_path(self._labels), _LONE_SURROGATE)

    def _integer(self, token: str) -> int | float:
        if len(token) <= _LONGEST_INTEGER:
            number = int(token)
            if abs(number) <= MAX_INTEGER:
                return number
            if _ecmascript(float(number)) == token:
                return float(number)
        raise NoCanonicalForm(_path(self._labels), _TOO_LARGE)

    def _open(self, box: _Box, label: _Label) -> None:
        if len(self._boxes) == MAX_DEPTH:
            raise NoCanonicalForm(_path(self._labels), _TOO_DEEP)
        self._place(box)
        self._boxes.append(box)
        self._labels.append(label)

    def _next_member(self) -> None:
        label = self._labels[-1]
        self._labels[-1] = label + 1 if isinstance(label, int) else None

    def _leaf(self, token: str) -> None:
        value = self.decode(token)
        if not self._at_key():
            self._place(value)
            return
        self._labels[-1] = value
        if value in self._boxes[-1]:
            raise NoCanonicalForm(_path(self._labels), "the key is given twice")

    def _at_key(self) -> bool:
        return bool(self._labels) and self._labels[-1] is None

    def _place(self, value: Any) -> None:
        if not self._boxes:
            self.value = value
            return
        box, label = self._boxes[-1], self._labels[-1]
        if isinstance(box, list):
            box.append(value)
        elif isinstance(label, str):
            box[label] = value
