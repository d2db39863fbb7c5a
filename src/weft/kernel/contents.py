"""Contents and their names: canonical JSON, exactly as RFC 8785 has it (one value, one sequence
of bytes); bytes named by a salted hash; ids and salts of imported things, the same in every ledger
that shares the import secret.
"""

from __future__ import annotations

import hmac
import json
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from json import dumps as exact_dumps
from json import loads as exact_loads
from math import isfinite
from operator import itemgetter
from typing import Any, NoReturn

import orjson
from msgspec import Struct

from weft.kernel.clock import from_digest
from weft.kernel.errors import ContentTooLarge, InvalidInput, InvalidJson, NoCanonicalForm

# --- Long runs of bytes of one sort, found in one pass: a regular expression takes ten times as long.


class ByteRun:
    """So many of these bytes in a row, in whatever order."""

    def __init__(self, sort: bytes, length: int) -> None:
        self._alike = bytes(48 if code in sort else 32 for code in range(256))
        self._run = b"0" * length

    def is_in(self, data: bytes) -> bool:
        return len(data) >= len(self._run) and self._run in data.translate(self._alike)


# --- Canonical JSON, exactly as RFC 8785 has it: one value, one sequence of bytes.

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
        return orjson.dumps(_with_canonical_floats(value), option=_SORTED)
    return text


def loads(data: bytes | str) -> Any:
    """The value of a JSON text. Raises InvalidJson for its grammar, NoCanonicalForm for a value in it."""
    text = data if isinstance(data, bytes) else _utf8_bytes(data)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        _refuse_json(text, error)
    try:
        again = orjson.dumps(value, option=_AS_GIVEN)
    except TypeError:
        return _exact_loads(text.decode())
    if (
        again == text
        or _without_space(again) == _without_space(text)
        or _without_strings(again) == _without_strings(text)
    ):
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


def _with_canonical_floats(value: object) -> object:
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
    return orjson.Fragment(_ecmascript_number(number))


def _ecmascript_number(number: float) -> str:
    """Number::toString of ECMAScript; Python's repr already finds the shortest digits."""
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    padded = (whole + fraction).rstrip("0")
    digits = padded.lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(padded) - len(digits))
    return sign + _place_decimal_point(digits, point)


def _place_decimal_point(digits: str, point: int) -> str:
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
            opening, members, closing = _open_box(value, labels)
            out += opening
            boxes.append((members, closing))
            labels.append(None)
        else:
            out += _scalar_bytes(value, labels)
        while boxes and (member := next(boxes[-1][0], None)) is None:
            out += boxes.pop()[1]
            labels.pop()
        if not boxes or member is None:
            return bytes(out)
        labels[-1], lead, value = member
        out += lead


def _open_box(box: Any, labels: list[_Label]) -> tuple[bytes, Iterator[_Member], bytes]:
    if len(labels) == MAX_DEPTH:
        raise NoCanonicalForm(_json_path(labels), _TOO_DEEP)
    if type(box) is dict:
        return b"{", _object_members(_ordered_members(box, labels)), b"}"
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


def _ordered_members(box: dict[object, object], labels: list[_Label]) -> list[tuple[bytes, str, object]]:
    """The members by the UTF-16 units of their names."""
    members: dict[bytes, tuple[bytes, str, object]] = {}
    for key, item in box.items():
        if not isinstance(key, str):
            raise NoCanonicalForm(_json_path(labels), f"a key of type {type(key).__name__}, not str")
        name = str.__str__(key)
        try:
            units = name.encode("utf-16-be")
        except UnicodeEncodeError:
            raise NoCanonicalForm(_json_path([*labels, name]), f"{_LONE_SURROGATE} in the key") from None
        if units in members:
            raise NoCanonicalForm(_json_path([*labels, name]), "the key is given twice")
        members[units] = units, name, item
    return sorted(members.values(), key=itemgetter(0))


def _scalar_bytes(value: object, labels: list[_Label]) -> bytes:
    if isinstance(value, str):
        try:
            return orjson.dumps(str.__str__(value))
        except TypeError:
            raise NoCanonicalForm(_json_path(labels), _LONE_SURROGATE) from None
    if value is None or value is True or value is False:
        return orjson.dumps(value)
    if type(value) is int:
        if abs(value) > MAX_INTEGER:
            raise NoCanonicalForm(_json_path(labels), _TOO_LARGE)
        return b"%d" % value
    if type(value) is float:
        if not isfinite(value):
            raise NoCanonicalForm(_json_path(labels), f"{value} is not a JSON number")
        return _ecmascript_number(value).encode()
    raise NoCanonicalForm(_json_path(labels), f"{type(value).__name__} is not a JSON type")


def _json_path(labels: list[_Label]) -> str:
    return "$" + "".join(_path_step(label) for label in labels if label is not None)


def _path_step(label: str | int) -> str:
    if isinstance(label, int):
        return f"[{label}]"
    return f".{label}" if _IDENTIFIER.fullmatch(label) else f"[{json.dumps(label)}]"


def _utf8_bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidJson(_LONE_SURROGATE, len(text[: error.start].encode())) from None


def _without_space(text: bytes) -> bytes:
    """The text without its white space, also in strings: it has the same tokens in the same order."""
    return text.translate(None, _WHITE)


def _without_strings(text: bytes) -> bytes:
    """The text without what its strings say: it has the same members, and the same numbers in them."""
    return _without_space(_STRING.sub(b'"', text))


def _exact_loads(text: str) -> Any:
    """The value of a text whose grammar is right, token by token and without recursion."""
    reader = _Reader()
    for token in _TOKEN.findall(text):
        reader.take(token)
    return reader.value


def _refuse_json(data: bytes, error: json.JSONDecodeError) -> NoReturn:
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
                raise NoCanonicalForm(_json_path(self._labels), "a number beyond the range of a double") from None
            raise

    def _string(self, token: str) -> Any:
        try:
            return orjson.loads(token)
        except orjson.JSONDecodeError:
            text = json.loads(token)
        if self._at_key():
            raise NoCanonicalForm(_json_path([*self._labels, text]), f"{_LONE_SURROGATE} in the key")
        raise NoCanonicalForm(_json_path(self._labels), _LONE_SURROGATE)

    def _integer(self, token: str) -> int | float:
        if len(token) <= _LONGEST_INTEGER:
            number = int(token)
            if abs(number) <= MAX_INTEGER:
                return number
            if _ecmascript_number(float(number)) == token:
                return float(number)
        raise NoCanonicalForm(_json_path(self._labels), _TOO_LARGE)

    def _open(self, box: _Box, label: _Label) -> None:
        if len(self._boxes) == MAX_DEPTH:
            raise NoCanonicalForm(_json_path(self._labels), _TOO_DEEP)
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
            raise NoCanonicalForm(_json_path(self._labels), "the key is given twice")

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


# --- Contents: bytes somebody wrote, named by a salted hash.

SALT_BYTES = 16
MAX_CONTENT_BYTES = 256 * 1024 * 1024
ROW_BYTES = 1024 * 1024
SHOWN_BROKEN = 1024
MAX_INTEGER_BITS = 8192  # what the interpreter still writes and reads as decimal digits
CONTENT_DOMAIN = b"weft.content.1\n"
_UNSHOWABLE = re.compile("[\0\ud800-\udfff]")
_split_pair = re.compile("[\ud800-\udbff][\udc00-\udfff]").search
_LONG_INTEGER = ByteRun(b"0123456789", 19)


def content_ref(salt: bytes, data: bytes) -> bytes:
    return sha256(CONTENT_DOMAIN + salt + data).digest()


class PreparedContent(Struct, frozen=True, gc=False):
    """Bytes to be kept, with all that can be known of them before they have a place."""

    data: bytes
    digest: bytes
    salt: bytes
    ref: bytes
    shown: str | None


def prepare(data: bytes, salt: bytes) -> PreparedContent:
    if len(data) > MAX_CONTENT_BYTES:
        raise ContentTooLarge(MAX_CONTENT_BYTES)
    ref = sha256(CONTENT_DOMAIN + salt + data).digest()
    return PreparedContent(data, sha256(data).digest(), salt, ref, readable(data))


class SaltSource:
    """Fresh random bytes, drawn for many contents at a time; safe to share between threads."""

    AT_ONCE = 16

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._random_bytes = random_bytes
        self._drawn: list[bytes] = []

    def draw(self) -> bytes:
        try:
            return self._drawn.pop()
        except IndexError:
            fresh = self._random_bytes(SALT_BYTES * self.AT_ONCE)
            first, *rest = (fresh[i : i + SALT_BYTES] for i in range(0, len(fresh), SALT_BYTES))
            self._drawn += rest
            return first

    def give_back(self, drawn: Sequence[bytes]) -> None:
        """What came of these was never kept: they are drawn again, in the same order."""
        self._drawn += reversed(drawn)


class BorrowedSalts(SaltSource):
    """Salts of another one, which gets them back where nothing came of them."""

    def __init__(self, source: SaltSource) -> None:
        self._source = source
        self._borrowed: list[bytes] = []

    def draw(self) -> bytes:
        self._borrowed.append(self._source.draw())
        return self._borrowed[-1]

    def return_all(self) -> None:
        self._source.give_back(self._borrowed)
        self._borrowed = []


class ContentHasher:
    """Names a content while it streams past, without holding it."""

    def __init__(self, salt: bytes) -> None:
        self._ref = sha256(CONTENT_DOMAIN + salt)
        self._plain = sha256()
        self.size = 0

    def feed(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size > MAX_CONTENT_BYTES:
            raise ContentTooLarge(MAX_CONTENT_BYTES)
        self._ref.update(chunk)
        self._plain.update(chunk)

    def ref(self) -> bytes:
        return self._ref.digest()

    def plain_digest(self) -> bytes:
        return self._plain.digest()


class TextCheck:
    """Tells, while bytes stream past, whether a database can hold them as text."""

    def __init__(self) -> None:
        self._decode = getincrementaldecoder("utf-8")().decode
        self.holds = True

    def feed(self, chunk: bytes, last: bool = False) -> None:
        try:
            self.holds = self.holds and "\0" not in self._decode(chunk, last)
        except UnicodeDecodeError:
            self.holds = False


def rows_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in rows of exactly 1 MiB, the last one shorter."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) >= ROW_BYTES:
            yield bytes(held[:ROW_BYTES])
            del held[:ROW_BYTES]
    if held:
        yield bytes(held)


def text_bytes(text: str) -> bytes:
    """UTF-8; lone surrogates, which UTF-8 has no form for, stay exact as the three bytes of their code point."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def bytes_text(data: bytes) -> str:
    """The text of these bytes; of bytes that are no text, one letter for each, so that they can still be shown."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        pass
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogateescape")


def showable(text: str) -> str:
    """The same number of letters, with replacement characters for those that no database holds as text."""
    return _UNSHOWABLE.sub("\ufffd", text)


def readable(data: bytes) -> str | None:
    """What a text column shows where the bytes themselves are not database text; None where they are."""
    if data.isascii() and b"\0" not in data:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _readable_anyway(data)
    return showable(text) if "\0" in text else None


BINARY = "(binary, or text that a database cannot hold)"
ERASED = "[erased]"
"""What stands in the place of a content that was erased, wherever one is read."""
ABSENT = "[not here]"
"""What stands in the place of a content that did not come with the events that name it, such as one withheld."""


def _readable_anyway(data: bytes) -> str:
    """A text with lone surrogates, or a short text of which some bytes are broken; anything else is binary, and so is
    what has both broken bytes and a NUL."""
    try:
        return showable(data.decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError:
        return showable(bytes_text(data)) if len(data) <= SHOWN_BROKEN and b"\0" not in data else BINARY


def json_bytes(value: Any, what: str) -> bytes:
    """JSON that reads back as the same value: key order kept, integers of any size, surrogates escaped."""
    try:
        if _plain_floats(value):
            return orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_SUBCLASS)
    except (TypeError, ValueError, RecursionError):
        pass
    return _slow_json_bytes(value, what)


def _plain_floats(value: Any) -> bool:
    """orjson writes NaN and infinities as null: only scalars and containers without floats take the fast way."""
    if type(value) is str:
        return True
    if isinstance(value, float):
        return False
    if isinstance(value, dict):
        return all(map(_plain_floats, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_plain_floats, value))
    return isinstance(value, str | int | None)


def _exact_json(value: Any) -> bytes:
    return exact_dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def _slow_json_bytes(value: Any, what: str) -> bytes:
    check_json(value, what)
    return _exact_json(value)


def check_json(value: Any, path: str) -> None:
    """Refuse what JSON has no form for, naming the place. Iterative, so that depth bombs are refused, not felt."""
    waiting: list[tuple[Any, str, int]] = [(value, path, 0)]
    while waiting:
        node, where, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise NoCanonicalForm(where[:200], f"nested deeper than {MAX_DEPTH}")
        if isinstance(node, dict):
            for key, child in node.items():
                if not isinstance(key, str):
                    raise NoCanonicalForm(where, f"a key is {type(key).__name__}, not a string")
                waiting += [(key, where, depth), (child, f"{where}.{key}", depth + 1)]
        elif isinstance(node, list | tuple):
            waiting += [(child, f"{where}[{i}]", depth + 1) for i, child in enumerate(node)]
        elif isinstance(node, float) and (node != node or node in (float("inf"), float("-inf"))):
            raise NoCanonicalForm(where, f"{node} has no JSON form")
        elif not isinstance(node, str | int | float | None):
            raise NoCanonicalForm(where, f"{type(node).__name__} has no JSON form")
        elif isinstance(node, str) and _split_pair(node):
            raise NoCanonicalForm(where, "two surrogates in a row, which JSON reads as one character")
        elif isinstance(node, int) and node.bit_length() > MAX_INTEGER_BITS:
            raise NoCanonicalForm(where, f"an integer of more than {MAX_INTEGER_BITS} bits")


def json_value(data: bytes) -> Any:
    """The value that these bytes spell; an integer of any size stays one, where the fast way would round it."""
    if data[:1] == b'"' or not _LONG_INTEGER.is_in(data):  # many digits may also be part of a text inside
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            pass
    return exact_loads(data, parse_constant=_refuse_constant)


def json_values(contents: Sequence[bytes]) -> list[Any]:
    """The value of each of these contents."""
    if not _LONG_INTEGER.is_in(b" ".join([data for data in contents if data[:1] != b'"'])):
        try:
            return list(map(orjson.loads, contents))
        except orjson.JSONDecodeError:
            pass
    return list(map(json_value, contents))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def decode_utf8(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{what} is not UTF-8 (byte {error.start})", "decode it first, or record it as an attached file"
        ) from error


# --- Names of imported things, the same in every ledger that shares the import secret, whatever came first.

TURN_DOMAIN = b"weft.turn.1\n"
SESSION_DOMAIN = b"weft.session.1\n"
NODE_DOMAIN = b"weft.node.1\n"
SOURCE_DOMAIN = b"weft.source.1\n"
UNDIGESTED = 256
"""An imported content up to this size is found by its reference alone, which its bytes determine."""
REPEATED_CONTENTS = 4096
"""So many short contents are remembered: paths, versions and branches come again with every turn."""


def imported_turn_id(grows_from: str | None, mapping: str, source: str) -> str:
    """The id of a turn: of the event that it grows from, the mapping's name and the digest of its source records."""
    named = "\n".join([grows_from or "", mapping, source])
    return from_digest(sha256(TURN_DOMAIN + named.encode()).digest())


class ImportSecret:
    """Everything that is derived from one ledger's import secret for one origin."""

    def __init__(self, secret: bytes, origin: str) -> None:
        self._secret = self.key = secret
        self._origin = origin.encode() + b"\0"
        self._repeated: dict[bytes, PreparedContent] = {}

    def salt(self, digest: bytes) -> bytes:
        """The salt of a content with this plain digest."""
        return self._mac(self._origin + digest)[:SALT_BYTES]

    def prepare(self, data: bytes) -> PreparedContent:
        """A content of this origin. The same bytes are one content in every ledger that shares the secret."""
        if len(data) > UNDIGESTED:
            digest = sha256(data).digest()
            salt = self.salt(digest)
            return PreparedContent(data, digest, salt, content_ref(salt, data), readable(data))
        known = self._repeated.get(data)
        if known is None:
            salt = self.salt(sha256(data).digest())
            known = PreparedContent(data, b"", salt, content_ref(salt, data), readable(data))
            if len(self._repeated) >= REPEATED_CONTENTS:
                self._repeated.clear()
            self._repeated[data] = known
        return known

    def reference(self, data: bytes) -> bytes:
        """Of a content of this origin: derived from its bytes, so they need not be here."""
        return content_ref(self.salt(sha256(data).digest()), data)

    def session_id(self, native: str) -> str:
        return from_digest(self._mac(SESSION_DOMAIN + self._origin + native.encode("utf-8", "surrogatepass")))

    def node_id(self, kind: str, native: str) -> str:
        """The id of a node of the graph that the origin calls so."""
        named = f"{kind}\0{native}".encode("utf-8", "surrogatepass")
        return from_digest(self._mac(NODE_DOMAIN + self._origin + named))

    def source(self, records: Iterable[bytes]) -> str:
        """The digest of a turn's normalised records; lengths keep neighbours apart."""
        mac = hmac.new(self._secret, SOURCE_DOMAIN + self._origin, sha256)
        for record in records:
            mac.update(b"%d:" % len(record))
            mac.update(record)
        return mac.hexdigest()

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self._secret, data, "sha256")
