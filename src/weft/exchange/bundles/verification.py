"""Checking a bundle as docs/sharing.md specifies, and taking it in. Everything in it is a
stranger's.

- The form of its lines, and the file around them.
- The check of every line, and what a bundle that was verified proves and does not.
- It is verified as a whole first, then taken into a ledger through the way that all facts take.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Self

import apsw
import orjson
from msgspec import Struct

from weft.exchange.bundles.keys import PublicKey, holds
from weft.exchange.importers.foreign_files import regular_descriptor
from weft.kernel import contents as kernel_contents
from weft.kernel.clock import ALPHABET
from weft.kernel.contents import CONTENT_DOMAIN, MAX_CONTENT_BYTES, MAX_INTEGER, ROW_BYTES
from weft.kernel.errors import InvalidBundle, LimitExceeded, quoted
from weft.kernel.foreign_input import GIB, MIB, ReadBudget, ReadLimits, json_values
from weft.ledger.api import Ledger
from weft.ledger.arguments import checked_path, path_error
from weft.ledger.read.thread_events import ThreadHead
from weft.ledger.upkeep.facts_file import LINE_LIMIT, LINE_VALUES, ImportedFacts

# --- The form of a bundle's lines: how each kind is written, and which strings of an event are references.

VERSION = 1
MAGIC = b"weft bundle 1\n"
STATEMENT = b"weft.bundle.1\n"
LIMITS = ReadLimits(
    bytes=16 * GIB,
    free_bytes=256 * MIB,
    ratio=200,
    held_bytes=LINE_LIMIT,
    values=LINE_VALUES,
    nesting=32,
    advice="ask whoever made it for bundles of fewer turns",
)
"""`held_bytes` and `values` are those of one line; `nesting` is that of an event."""
GIVEN_LIMIT = 2**18
HEADS_LIMIT, SIGNATURES_LIMIT = 1024, 64
EVENT_PREFIX = b'{"event_id":"'

WITHHELD, ERASED, MISSING, OUTSIDE = "withheld", "erased", "missing", "outside"
WHYS = (WITHHELD, ERASED, MISSING, OUTSIDE)

NAMING_KINDS = ("agent_created", "human_created")
"""The only events of programs that a bundle holds: they give whoever acts in it a name."""
NOT_CONTENTS = frozenset(
    "prev event event_id request_id base at bound policy_ref resource_ref snapshot_ref new_resource_ref"
    " materialization node to resource".split()
)
"""Fields whose 64 hex digits name an event or a node. Any other string of that form is a content's reference, but for
the `source` of a run, which is a digest that only the importing ledger can make."""

is_digest = re.compile(r"[0-9a-f]{64}").fullmatch
is_salt = re.compile(r"[0-9a-f]{32}").fullmatch
is_signature = re.compile(r"[0-9a-f]{128}").fullmatch
is_turn = re.compile(f"[0-7][{ALPHABET}]{{25}}").fullmatch
is_stream = re.compile(f"(run|session|program|import|ledger|conversation):[0-7][{ALPHABET}]{{25}}").fullmatch


def header_line(heads: Iterable[ThreadHead]) -> bytes:
    head_fields = [{"event": head.event, "turn": head.turn} for head in heads]
    return kernel_contents.dumps({"bundle": VERSION, "heads": head_fields})


def absent_line(ref: str, why: str) -> bytes:
    return kernel_contents.dumps({"absent": ref, "why": why})


def content_lines(ref: str, salt: bytes, size: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A content as text, or as base64 where it is none; more than 1 MiB piece by piece."""
    name = {"ref": ref, "salt": salt.hex()}
    if size > ROW_BYTES:
        piece_count = -(-size // ROW_BYTES)
        for i, piece in enumerate(pieces):
            yield orjson.dumps({**name, "base64": base64.b64encode(piece).decode(), "piece": i, "pieces": piece_count})
        return
    data = b"".join(pieces)
    try:
        yield orjson.dumps({**name, "text": data.decode()})
    except UnicodeDecodeError:
        yield orjson.dumps({**name, "base64": base64.b64encode(data).decode()})


def end_line(events: int, contents: int, absent: int, digest: str) -> bytes:
    return kernel_contents.dumps({"absent": absent, "contents": contents, "events": events, "sha256": digest})


def signature_line(key: bytes, signature: bytes) -> bytes:
    return kernel_contents.dumps({"key": key.hex(), "signature": signature.hex()})


def statement(digest: str, heads: Iterable[ThreadHead]) -> bytes:
    """What is signed: the digest of all lines through the last that is no signature, and the threads' digests."""
    return STATEMENT + "".join(f"{signed_line}\n" for signed_line in (digest, *(head.event for head in heads))).encode()


def event_of(line: bytes) -> tuple[str, dict[str, Any]]:
    """The id and the fields of an event's line; refuses what is not the canonical bytes that the id is of."""
    claimed, stored = line[len(EVENT_PREFIX) : len(EVENT_PREFIX) + 64], b"{" + line[len(EVENT_PREFIX) + 66 :]
    if line[len(EVENT_PREFIX) + 64 : len(EVENT_PREFIX) + 66] != b'",':
        raise InvalidBundle("an event's id is no digest")
    event_id = sha256(stored).hexdigest()
    if event_id.encode() != claimed:
        raise InvalidBundle(f"an event hashes to {event_id}, not to {claimed.decode(errors='replace')}")
    event = parsed(stored)
    _check_values(event)
    if not kernel_contents.is_canonical(stored):
        raise InvalidBundle(f"event {event_id} is not in canonical form")
    return event_id, event


def spelled(line: bytes) -> dict[str, Any]:
    """The fields of a line that is spelled in the one way there is, so that nothing stands in it unseen: no name twice,
    no spaces, no letter escaped that need not be. Their order is free."""
    value = parsed(line)
    try:
        same = orjson.dumps(value) == line
    except TypeError:  # deeper than it can be written
        same = False
    if not same:
        raise InvalidBundle("a content is told in another spelling")
    return value


def parsed(line: bytes) -> dict[str, Any]:
    if (count := json_values(line, LIMITS.values)) > LIMITS.values:
        raise InvalidBundle(f"a line holds {count} values or more; {LIMITS.values} is the most")
    try:
        value = orjson.loads(line)
    except ValueError as error:
        raise InvalidBundle(f"a line is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidBundle("a line is no JSON object")
    return value


def _check_values(event: dict[str, Any]) -> None:
    """Whole numbers below 2^53, and not nested without end."""
    waiting: list[Iterator[Any]] = [iter((event,))]
    while waiting:
        value = next(waiting[-1], _END)
        if value is _END:
            waiting.pop()
        elif len(waiting) > LIMITS.nesting:
            raise InvalidBundle(f"an event is nested deeper than {LIMITS.nesting}")
        elif isinstance(value, float) or (isinstance(value, int) and abs(value) > MAX_INTEGER):
            raise InvalidBundle("an event holds a number that is not a whole one below 2^53")
        elif isinstance(value, dict | list):
            waiting.append(iter(value.values() if isinstance(value, dict) else value))


_END = object()


def references(event: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every reference to a content, with its place in the event."""
    digests = NOT_CONTENTS | {"source"} if event.get("kind") == "run_started" else NOT_CONTENTS
    yield from _references(event, "", digests)


def _references(value: Any, path: str, digests: frozenset[str]) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if not (isinstance(inner, str) and name in digests):
                yield from _references(inner, f"{path}.{name}" if path else name, digests)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _references(inner, f"{path}[{i}]", digests)
    elif isinstance(value, str) and is_digest(value):
        yield path, value


# --- The file itself: a first line that names the form, one zlib stream of lines, and the SHA-256 of all bytes before
# it.

CHUNK = 256 * 1024
DIGEST = 32
LEVEL = 6


class BundleWriter:
    """Writes a bundle's lines to an open file."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._whole = out, sha256()
        self._zlib = zlib.compressobj(LEVEL, zlib.DEFLATED, 15, 8)
        self.lines = sha256()
        """Over all lines so far."""
        self._write(MAGIC)

    def add(self, line: bytes) -> None:
        self.lines.update(line + b"\n")
        self._write(self._zlib.compress(line + b"\n"))

    def finish(self) -> None:
        self._write(self._zlib.flush())
        self._out.write(self._whole.digest())

    def _write(self, data: bytes) -> None:
        if data:
            self._whole.update(data)
            self._out.write(data)


def unpacked_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines, each without its end. Refuses whatever is not exactly one such file; holds one line at a time."""
    buffered, chunks = bytearray(), _unpacked(file)
    for chunk in chunks:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            line = bytes(buffered) + chunk[start:end] if buffered else chunk[start:end]
            buffered.clear()
            start = end + 1
            _check_line(len(line))
            yield line
        buffered += chunk[start:]
        _check_line(len(buffered))
    if buffered:
        raise InvalidBundle("the last line has no end")


def _check_line(size: int) -> None:
    if size > LIMITS.held_bytes:
        raise InvalidBundle(f"a line is longer than {LIMITS.held_bytes} bytes")


def _unpacked(file: BinaryIO) -> Iterator[bytes]:
    """The unpacked bytes in pieces of a bounded size, however well they were packed."""
    unpacker, budget = zlib.decompressobj(15), ReadBudget(LIMITS)
    for packed in _sealed(file, budget):
        if unpacker.eof:
            raise InvalidBundle("something follows its last line")
        waiting = packed
        while waiting and not unpacker.eof:
            try:
                chunk = unpacker.decompress(waiting, CHUNK)
                budget.take_bytes(len(chunk))
            except zlib.error as error:
                raise InvalidBundle(f"it cannot be unpacked: {error}") from error
            except LimitExceeded as error:
                raise InvalidBundle(f"it unpacks to more than its size allows: {error}") from error
            waiting = unpacker.unconsumed_tail
            yield chunk
    if not unpacker.eof or unpacker.unused_data:
        raise InvalidBundle("it was cut short" if not unpacker.eof else "something follows its last line")


def _sealed(file: BinaryIO, budget: ReadBudget) -> Iterator[bytes]:
    """What lies between the first line and the digest, which must be of everything before it."""
    hasher, buffered = sha256(), file.read(len(MAGIC))
    if buffered != MAGIC:
        raise InvalidBundle("it does not begin as a bundle of a form that is known here")
    hasher.update(buffered)
    budget.note_read(len(buffered))
    buffered = b""
    while data := file.read(CHUNK):
        budget.note_read(len(data))
        buffered += data
        if len(buffered) > DIGEST:
            body, buffered = buffered[:-DIGEST], buffered[-DIGEST:]
            hasher.update(body)
            yield body
    if buffered != hasher.digest():
        raise InvalidBundle("its bytes do not hash to the digest at its end: it was changed or cut short")


# --- What a bundle that was verified proves, and what it does not.

PROVES = (
    "no event, and no content that is here, has changed since the digests of its threads were known",
    "each thread is whole, from its root to its head, in this order",
)
DOES_NOT_PROVE = (
    "that the times are true: the ledger's own clock wrote them",
    "that what models, tools and people are said to have said was said by them",
    "that nothing else happened: other threads, and what came later, are not here",
)
VISIBLE = (
    "times, models, tool names, token counts, ids, statuses and the order of all messages and calls stay visible,"
    " also of what is withheld"
)
LINKED = "that chains joined by a link belong together: a link is what an importer found, and in no digest"
EXCERPT = (
    "that late results, substitutions and tombstones are all there are: they stand alone, without the stream they are"
    " from"
)


class ThreadProof(Struct, frozen=True, kw_only=True):
    """One thread of a bundle."""

    turn_id: str
    digest: str
    turns: int
    """How many turns its chain has; those before a link are not counted."""


class AbsentContent(Struct, frozen=True, kw_only=True):
    """A place whose content is not in the bundle."""

    ref: str
    why: str
    """`withheld`; `erased`; `missing`: the ledger itself did not have it; `outside`: no part of the thread."""
    stream: str
    message_id: str | None
    what: str
    """The kind of event, and where in it."""


class SignedBy(Struct, frozen=True, kw_only=True):
    """A signature that holds."""

    key: str
    name: str | None
    """Of the key, where it is trusted or one's own."""
    trusted: bool


class BundleReport(Struct, frozen=True, kw_only=True):
    """A bundle whose every hash and link holds."""

    digest: str
    """Of all its lines but the signatures: the name of what it says."""
    threads: tuple[ThreadProof, ...]
    turns: int
    rooms: int
    """Conversations that go along."""
    events: int
    contents: int
    absent: dict[str, int]
    """How many contents are not here, by why."""
    places: tuple[AbsentContent, ...]
    """Where, a thousand of them at most."""
    signatures: tuple[SignedBy, ...]
    links: int
    excerpts: int
    """Late results and tombstones out of a ledger's own stream."""
    first_time: str | None
    last_time: str | None
    heads: tuple[ThreadHead, ...]

    @property
    def proves(self) -> tuple[str, ...]:
        signed = [f"it was signed with the key {signature.key[:16]}…" for signature in self.signatures]
        return (*PROVES, *signed)

    @property
    def does_not_prove(self) -> tuple[str, ...]:
        unsigned = () if self.signatures else ("who made it: it is unsigned",)
        linked = (LINKED,) if self.links else ()
        excerpts = (EXCERPT,) if self.excerpts else ()
        return (*unsigned, *DOES_NOT_PROVE, *linked, *excerpts)


# --- Checking a bundle line by line, as docs/sharing.md specifies.

MOST_UNNAMED = 10_000
"""So many events of a ledger's own stream may wait for the substitution that names them."""
PLACES = 1000
HERE = "content"


class _Pieces(Struct):
    """A content of which some pieces have come."""

    ref: str
    salt: str
    of: int
    hasher: Any
    next: int = 0
    size: int = 0


class BundleCheck:
    """One walk over a bundle's lines. `facts` gives those that a ledger takes in; then `report` is there."""

    def __init__(self, known_names: KnownNames, keys: Sequence[PublicKey] = ()) -> None:
        self._known_names, self._keys = known_names, {key.bytes.hex(): key for key in keys}
        self._lines = sha256()
        self._heads: list[ThreadHead] = []
        self._given: set[str] = set()
        """Contents and absences that the next event must name."""
        self._unnamed: set[str] = set()
        """Events that were recorded to be shown instead of others, whose substitution has not come yet."""
        self._pieces: _Pieces | None = None
        self._count = Counter[str]()
        self._absent = Counter[str]()
        self._places: list[AbsentContent] = []
        self._times: list[str] = []
        self._ended: dict[str, Any] | None = None
        self._signatures: list[SignedBy] = []

    def facts(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        """The lines of events and contents, each checked before it is given on. What stands at the end of a bundle
        speaks for all of it: whoever acts on a line before the last one acts on a promise."""
        self._take_header(next(lines, b""))
        for line in lines:
            if self._ended is not None:
                self._take_signature(line)
                continue
            if line.startswith(EVENT_PREFIX):
                self._take_event(*event_of(line))
            elif line.startswith((b'{"absent":"', b'{"base64":', b'{"ref":')):
                self._take_content_line(spelled(line))
            else:
                self._take_end(line)
                continue
            self._lines.update(line + b"\n")
            if not line.startswith(b'{"absent":'):
                yield line
        if self._ended is None:
            raise InvalidBundle("it has no end")

    def report(self) -> BundleReport:
        return BundleReport(
            digest=self._lines.hexdigest(),
            threads=tuple(
                ThreadProof(turn_id=head.turn, digest=head.event, turns=self._depth(head.turn)) for head in self._heads
            ),
            turns=self._count["turns"],
            rooms=self._count["rooms"],
            events=self._count["events"],
            contents=self._count["contents"],
            absent=dict(sorted(self._absent.items())),
            places=tuple(self._places),
            signatures=tuple(self._signatures),
            links=self._count["links"],
            excerpts=self._count["excerpts"],
            first_time=min(self._times, default=None),
            last_time=max(self._times, default=None),
            heads=tuple(self._heads),
        )

    def _take_header(self, line: bytes) -> None:
        header = parsed(line)
        heads = header.get("heads")
        if header.get("bundle") != VERSION or type(header["bundle"]) is not int or not isinstance(heads, list):
            raise InvalidBundle("its first line is not that of a bundle")
        if not 0 < len(heads) <= HEADS_LIMIT:
            raise InvalidBundle(f"it names {len(heads)} threads")
        for head in heads:
            fields = head if isinstance(head, dict) else {}
            turn, event = _text(fields, "turn", is_turn), _text(fields, "event", is_digest)
            self._heads.append(ThreadHead(turn, event))
        if header_line(self._heads) != line or sorted(set(self._heads)) != self._heads:
            raise InvalidBundle("its first line is not in canonical form")
        self._lines.update(line + b"\n")

    def _take_content_line(self, value: dict[str, Any]) -> None:
        if "absent" in value:
            self._take_absent(value)
        else:
            self._take_content(value)

    def _take_absent(self, value: dict[str, Any]) -> None:
        if self._pieces is not None or value.keys() != {"absent", "why"} or value["why"] not in WHYS:
            raise InvalidBundle("a line that says that a content is absent is not in its form")
        self._note_given(_text(value, "absent", is_digest), value["why"])
        self._absent[value["why"]] += 1

    def _note_given(self, ref: str, presence: str) -> None:
        if self._known_names.get(ref) is not None:
            raise InvalidBundle(f"{ref} comes twice")
        if len(self._given) >= GIVEN_LIMIT:
            raise InvalidBundle(f"more than {GIVEN_LIMIT} contents come before one event")
        self._known_names.add(ref, presence)
        self._given.add(ref)

    def _take_content(self, value: dict[str, Any]) -> None:
        """A whole content, or one of its pieces."""
        ref, salt = _text(value, "ref", is_digest), _text(value, "salt", is_salt)
        piece, piece_count = value.get("piece", 0), value.get("pieces", 1)
        pieces_so_far = self._pieces or _Pieces(ref, salt, piece_count, sha256(CONTENT_DOMAIN + bytes.fromhex(salt)))
        fields = {"ref", "salt", "text"} if "text" in value else {"ref", "salt", "base64"}
        numbered = {"piece", "pieces"} if "base64" in value and "pieces" in value else set()
        if (
            value.keys() != fields | numbered
            or type(piece) is not int
            or type(piece_count) is not int
            or piece_count < 1
        ):
            raise InvalidBundle(f"content {ref} is not in its form")
        if (pieces_so_far.ref, pieces_so_far.salt, pieces_so_far.of, pieces_so_far.next) != (
            ref,
            salt,
            piece_count,
            piece,
        ):
            raise InvalidBundle(f"the pieces of content {pieces_so_far.ref} do not follow each other")
        data = _data(value)
        pieces_so_far.hasher.update(data)
        pieces_so_far.next, pieces_so_far.size = pieces_so_far.next + 1, pieces_so_far.size + len(data)
        if pieces_so_far.size > MAX_CONTENT_BYTES:
            raise InvalidBundle(f"content {ref} holds more than {MAX_CONTENT_BYTES} bytes")
        self._pieces = pieces_so_far if pieces_so_far.next < piece_count else None
        if self._pieces is None:
            if pieces_so_far.hasher.hexdigest() != ref:
                raise InvalidBundle(f"a content does not hash to {ref}")
            self._note_given(ref, HERE)
            self._count["contents"] += 1

    def _take_event(self, id: str, event: dict[str, Any]) -> None:
        stream, prev = event.get("stream"), event.get("prev", "")
        if self._pieces is not None:
            raise InvalidBundle(f"content {self._pieces.ref} ends before its last piece")
        if event.get("v") != 1 or type(event["v"]) is not int or not isinstance(event.get("kind"), str):
            raise InvalidBundle(f"event {id} is of a version that is not known here")
        if not isinstance(stream, str) or not is_stream(stream):
            raise InvalidBundle(f"event {id} belongs to no stream that a bundle holds")
        if not (prev is None or (isinstance(prev, str) and is_digest(prev))):
            raise InvalidBundle(f"event {id} does not say what it follows")
        if self._known_names.get(id) is not None:
            raise InvalidBundle(f"{id} comes twice")
        self._place(id, stream, prev, event)
        self._refuse_programs(id, stream, prev, event)
        self._known_names.add(id, stream)
        self._count["events"] += 1
        self._name_contents(stream, event)
        self._note_time(event.get("ts"))

    def _place(self, id: str, stream: str, prev: str | None, event: dict[str, Any]) -> None:
        kind = stream.partition(":")[0]
        if kind == "import":
            if prev is not None:
                raise InvalidBundle(f"event {id} follows another in {stream}, which is a set")
            self._count["links"] += event["kind"] == "turn_linked"
        elif kind == "ledger":
            self._place_excerpt(id, event)
        else:
            if (self._known_names.get(stream) or "").partition(" ")[0] != (prev or ""):
                raise InvalidBundle(f"event {id} follows {prev} in {stream}, which does not end there")
            self._count["rooms"] += kind == "conversation" and prev is None
            depth = self._depth(stream[4:]) if kind == "run" else 0
            if prev is None and kind == "run":
                depth = self._begin_run(id, event)
            self._known_names.add(stream, f"{id} {depth}")

    def _refuse_programs(self, id: str, stream: str, prev: str | None, event: dict[str, Any]) -> None:
        """Of programs a bundle holds the names of whoever acts in it, and no configuration of anything."""
        is_program, kind = stream.startswith("program:"), event["kind"]
        if is_program and (prev is not None or kind not in NAMING_KINDS):
            raise InvalidBundle(f"event {id} is about a program ({quoted(kind, 40)}), and no name of an agent")
        configures = is_program or kind == "session_configured"
        if configures and any(ref != event.get("name") and self._known_names.get(ref) == HERE for ref in self._given):
            raise InvalidBundle(f"event {id} brings the configuration of a program")

    def _begin_run(self, id: str, event: dict[str, Any]) -> int:
        """How deep the new turn lies: its fork point must be an event of the turn that it names."""
        if event["kind"] != "run_started":
            raise InvalidBundle(f"a turn begins with {quoted(event['kind'], 40)}")
        self._count["turns"] += 1
        if "fork" not in event:
            return 1
        fork = event["fork"] if isinstance(event["fork"], dict) else {}
        turn, point = _text(fork, "turn", is_turn), _text(fork, "event", is_digest)
        if self._known_names.get(point) != f"run:{turn}":
            raise InvalidBundle(f"event {id} grows from {point}, which is no event of turn {turn} before it")
        return self._depth(turn) + 1

    def _depth(self, turn: str) -> int:
        return int((self._known_names.get(f"run:{turn}") or "0").rpartition(" ")[2])

    def _place_excerpt(self, id: str, event: dict[str, Any]) -> None:
        """Out of a ledger's own stream come late results of calls that are here, tombstones, and substitutions of what
        is here, with what they show instead."""
        self._count["excerpts"] += 1
        if event["kind"] == "content_erased" and is_digest(str(event.get("content"))):
            return
        if event["kind"] in ("history_append", "model_response") and len(self._unnamed) < MOST_UNNAMED:
            self._unnamed.add(id)
            return
        if event["kind"] == "substitution" and self._is_known(event.get("original_event")):
            self._unnamed.discard(_event_id(event.get("replacement_event")))
            return
        call = event["call"].get("event_id") if isinstance(event.get("call"), dict) else None
        call_place = self._known_names.get(call) if isinstance(call, str) and is_digest(call) else None
        if event["kind"] != "tool_result" or not (call_place or "").startswith("run:"):
            raise InvalidBundle(f"event {id} of {event['stream']} is about nothing that is here")

    def _is_known(self, reference: Any) -> bool:
        return (self._known_names.get(_event_id(reference)) or "").startswith(("run:", "ledger:"))

    def _name_contents(self, stream: str, event: dict[str, Any]) -> None:
        for path, ref in references(event):
            self._given.discard(ref)
            presence = self._known_names.get(ref)
            if presence is None or presence not in (HERE, *WHYS):
                raise InvalidBundle(f"content {ref} is neither here nor said to be absent")
            if presence != HERE and len(self._places) < PLACES:
                self._places.append(_absent(ref, presence, stream, event, path))
        if self._given:
            raise InvalidBundle(f"no event names content {min(self._given)}")

    def _note_time(self, ts: Any) -> None:
        if isinstance(ts, str):
            self._times = [min([*self._times, ts]), max([*self._times, ts])]

    def _take_end(self, line: bytes) -> None:
        end, count = parsed(line), self._count
        expected = end_line(count["events"], count["contents"], sum(self._absent.values()), self._lines.hexdigest())
        if self._pieces is not None or self._given:
            raise InvalidBundle("it ends with a content that no event names")
        if self._unnamed:
            raise InvalidBundle(f"event {min(self._unnamed)} of a ledger's own stream is about nothing that is here")
        if line != expected:
            raise InvalidBundle("its last line does not say what came before it")
        for head in self._heads:
            if self._known_names.get(head.event) != f"run:{head.turn}":
                raise InvalidBundle(f"the head {head.event} of turn {head.turn} is not in it")
        self._lines.update(line + b"\n")
        self._ended = end

    def _take_signature(self, line: bytes) -> None:
        value = parsed(line)
        key, signature = _text(value, "key", is_digest), _text(value, "signature", is_signature)
        before = self._signatures[-1].key if self._signatures else ""
        if line != signature_line(bytes.fromhex(key), bytes.fromhex(signature)) or not before < key:
            raise InvalidBundle("its signatures are not in their form or order")
        if len(self._signatures) >= SIGNATURES_LIMIT:
            raise InvalidBundle(f"it has more than {SIGNATURES_LIMIT} signatures")
        if not holds(bytes.fromhex(key), bytes.fromhex(signature), statement(self._lines.hexdigest(), self._heads)):
            raise InvalidBundle(f"the signature with the key {key[:16]}… does not hold")
        known_key = self._keys.get(key)
        self._signatures.append(
            SignedBy(key=key, name=known_key.name if known_key else None, trusted=known_key is not None)
        )


def _event_id(reference: Any) -> str:
    """What a reference to an event names; nothing that any event is called, where it is none."""
    id = reference.get("event_id") if isinstance(reference, dict) else None
    return id if isinstance(id, str) and is_digest(id) else ""


def _text(value: dict[str, Any], field: str, fits: Callable[[str], object]) -> str:
    text = value.get(field)
    if not isinstance(text, str) or not fits(text):
        raise InvalidBundle(f"{field} is {quoted(text)}")
    return text


def _data(value: dict[str, Any]) -> bytes:
    text = value.get("text", value.get("base64"))
    if not isinstance(text, str):
        raise InvalidBundle(f"content {value.get('ref')} is no text")
    try:
        data = text.encode() if "text" in value else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidBundle(f"content {value.get('ref')} cannot be read: {error}") from error
    if "text" not in value and base64.b64encode(data) != text.encode():
        raise InvalidBundle(f"content {value.get('ref')} is in another spelling of base64")
    return data


def _absent(ref: str, why: str, stream: str, event: dict[str, Any], path: str) -> AbsentContent:
    message = event.get("message" if path.startswith("message.") else "output")
    id = message.get("id") if isinstance(message, dict) and path.startswith(("message.", "output.")) else None
    return AbsentContent(
        ref=ref, why=why, stream=stream, message_id=id if isinstance(id, str) else None, what=f"{event['kind']} {path}"
    )


CACHE_KIB = 16 * 1024


class KnownNames:
    """Hashes and names of streams, and a word about each."""

    def __init__(self) -> None:
        self._database = apsw.Connection("")  # SQLite's own temporary file, gone with the connection
        self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE known (name TEXT PRIMARY KEY, told TEXT NOT NULL) WITHOUT ROWID; BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def get(self, name: str) -> str | None:
        """The note on it; None where it has not come yet."""
        row = self._database.execute("SELECT told FROM known WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def add(self, name: str, note: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO known VALUES (?, ?)", (name, note))


# --- Bundles on their way in: verified as a whole first, then taken into a ledger through the way that all facts take.


def verify_bundle(path: str | Path, keys: Sequence[PublicKey] = ()) -> BundleReport:
    """What the bundle proves. Raises InvalidBundle for one that is not exactly what it says. `keys` are believed."""
    with opened(path) as file, KnownNames() as known_names:
        check = BundleCheck(known_names, keys)
        for _ in check.facts(unpacked_lines(file)):
            pass
        return check.report()


def import_bundle(
    ledger: Ledger, path: str | Path, keys: Sequence[PublicKey] = (), *, progress: Any = None
) -> tuple[BundleReport, ImportedFacts]:
    """Verify a bundle, then bring its facts into a ledger. What is absent stays so; what is known is passed over."""
    proved = verify_bundle(path, keys)
    with opened(path) as file, KnownNames() as known_names:
        check = BundleCheck(known_names, keys)
        brought = ledger.upkeep.import_facts(
            _Lines(check.facts(unpacked_lines(file))), excerpts=True, progress=progress
        )
        if check.report().digest != proved.digest:
            raise InvalidBundle("the file was changed while it was read")
    return proved, brought


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """The file of a bundle. It is read more than once, so a pipe or a device is refused, and not waited for."""
    file = checked_path(path, "bundle")
    try:
        descriptor = regular_descriptor(file)
    except OSError as error:
        raise path_error(file, error) from error
    with os.fdopen(descriptor, "rb") as opened_file:
        yield opened_file


class _Lines:
    """Lines as a file that is read line by line."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines

    def readline(self, _: int = -1) -> bytes:
        line = next(self._lines, None)
        return b"" if line is None else line + b"\n"
