"""Contents: bytes somebody wrote, named by a salted hash.

`ref = sha256("weft.content.1\\n" + salt + bytes)`. The salt travels only with its bytes, so that a short text cannot be
guessed from its reference once both are gone.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from json import dumps as exact_dumps
from json import loads as exact_loads
from typing import Any

import orjson
from msgspec import Struct

from weft.kernel.byte_runs import ByteRun
from weft.kernel.canonical import MAX_DEPTH
from weft.kernel.errors import ContentTooLarge, InvalidInput, NoCanonicalForm

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


class Prepared(Struct, frozen=True, gc=False):
    """Bytes to be kept, with all that can be known of them before they have a place."""

    data: bytes
    digest: bytes
    salt: bytes
    ref: bytes
    shown: str | None


def prepare(data: bytes, salt: bytes) -> Prepared:
    if len(data) > MAX_CONTENT_BYTES:
        raise ContentTooLarge(MAX_CONTENT_BYTES)
    ref = sha256(CONTENT_DOMAIN + salt + data).digest()
    return Prepared(data, sha256(data).digest(), salt, ref, readable(data))


class Salts:
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


class BorrowedSalts(Salts):
    """Salts of another one, which gets them back where nothing came of them."""

    def __init__(self, source: Salts) -> None:
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


def _exact(value: Any) -> bytes:
    return exact_dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def _slow_json_bytes(value: Any, what: str) -> bytes:
    check_json(value, what)
    return _exact(value)


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
