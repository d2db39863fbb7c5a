"""Checking a bundle line by line, as docs/bundles.md specifies. Everything in it is a stranger's.

A content, or the word that it is absent, comes before the first event that names it and right before that event; so
what is here and what is not is known at every event, and nothing is here that no event names.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any, Self

import apsw
from msgspec import Struct

from weft.exchange.bundles import form
from weft.exchange.bundles.form import EVENT_PREFIX, is_digest, is_salt, is_signature, is_stream, is_turn, parsed
from weft.exchange.bundles.keys import PublicKey, holds
from weft.exchange.bundles.report import AbsentContent, BundleReport, SignedBy, ThreadProof
from weft.kernel.contents import CONTENT_DOMAIN, MAX_CONTENT_BYTES
from weft.kernel.errors import InvalidBundle, quoted
from weft.ledger.read.thread_events import ThreadHead

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

    def __init__(self, known: KnownNames, keys: Sequence[PublicKey] = ()) -> None:
        self._known, self._keys = known, {key.bytes.hex(): key for key in keys}
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
                self._take_event(*form.event_of(line))
            elif line.startswith((b'{"absent":"', b'{"base64":', b'{"ref":')):
                self._take_content_line(form.spelled(line))
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
        if header.get("bundle") != form.VERSION or type(header["bundle"]) is not int or not isinstance(heads, list):
            raise InvalidBundle("its first line is not that of a bundle")
        if not 0 < len(heads) <= form.HEADS_LIMIT:
            raise InvalidBundle(f"it names {len(heads)} threads")
        for head in heads:
            fields = head if isinstance(head, dict) else {}
            turn, event = _text(fields, "turn", is_turn), _text(fields, "event", is_digest)
            self._heads.append(ThreadHead(turn, event))
        if form.header_line(self._heads) != line or sorted(set(self._heads)) != self._heads:
            raise InvalidBundle("its first line is not in canonical form")
        self._lines.update(line + b"\n")

    def _take_content_line(self, value: dict[str, Any]) -> None:
        if "absent" in value:
            self._take_absent(value)
        else:
            self._take_content(value)

    def _take_absent(self, value: dict[str, Any]) -> None:
        if self._pieces is not None or value.keys() != {"absent", "why"} or value["why"] not in form.WHYS:
            raise InvalidBundle("a line that says that a content is absent is not in its form")
        self._give(_text(value, "absent", is_digest), value["why"])
        self._absent[value["why"]] += 1

    def _give(self, ref: str, presence: str) -> None:
        if self._known.get(ref) is not None:
            raise InvalidBundle(f"{ref} comes twice")
        if len(self._given) >= form.GIVEN_LIMIT:
            raise InvalidBundle(f"more than {form.GIVEN_LIMIT} contents come before one event")
        self._known.add(ref, presence)
        self._given.add(ref)

    def _take_content(self, value: dict[str, Any]) -> None:
        """A whole content, or one of its pieces."""
        ref, salt = _text(value, "ref", is_digest), _text(value, "salt", is_salt)
        piece, of = value.get("piece", 0), value.get("pieces", 1)
        held = self._pieces or _Pieces(ref, salt, of, sha256(CONTENT_DOMAIN + bytes.fromhex(salt)))
        fields = {"ref", "salt", "text"} if "text" in value else {"ref", "salt", "base64"}
        numbered = {"piece", "pieces"} if "base64" in value and "pieces" in value else set()
        if value.keys() != fields | numbered or type(piece) is not int or type(of) is not int or of < 1:
            raise InvalidBundle(f"content {ref} is not in its form")
        if (held.ref, held.salt, held.of, held.next) != (ref, salt, of, piece):
            raise InvalidBundle(f"the pieces of content {held.ref} do not follow each other")
        data = _data(value)
        held.hasher.update(data)
        held.next, held.size = held.next + 1, held.size + len(data)
        if held.size > MAX_CONTENT_BYTES:
            raise InvalidBundle(f"content {ref} holds more than {MAX_CONTENT_BYTES} bytes")
        self._pieces = held if held.next < of else None
        if self._pieces is None:
            if held.hasher.hexdigest() != ref:
                raise InvalidBundle(f"a content does not hash to {ref}")
            self._give(ref, HERE)
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
        if self._known.get(id) is not None:
            raise InvalidBundle(f"{id} comes twice")
        self._place(id, stream, prev, event)
        self._refuse_programs(id, stream, prev, event)
        self._known.add(id, stream)
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
            if (self._known.get(stream) or "").partition(" ")[0] != (prev or ""):
                raise InvalidBundle(f"event {id} follows {prev} in {stream}, which does not end there")
            self._count["rooms"] += kind == "conversation" and prev is None
            depth = self._depth(stream[4:]) if kind == "run" else 0
            if prev is None and kind == "run":
                depth = self._begin_run(id, event)
            self._known.add(stream, f"{id} {depth}")

    def _refuse_programs(self, id: str, stream: str, prev: str | None, event: dict[str, Any]) -> None:
        """Of programs a bundle holds the names of whoever acts in it, and no configuration of anything."""
        is_program, kind = stream.startswith("program:"), event["kind"]
        if is_program and (prev is not None or kind not in form.NAMING_KINDS):
            raise InvalidBundle(f"event {id} is about a program ({quoted(kind, 40)}), and no name of an agent")
        configures = is_program or kind == "session_configured"
        if configures and any(ref != event.get("name") and self._known.get(ref) == HERE for ref in self._given):
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
        if self._known.get(point) != f"run:{turn}":
            raise InvalidBundle(f"event {id} grows from {point}, which is no event of turn {turn} before it")
        return self._depth(turn) + 1

    def _depth(self, turn: str) -> int:
        return int((self._known.get(f"run:{turn}") or "0").rpartition(" ")[2])

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
        known = self._known.get(call) if isinstance(call, str) and is_digest(call) else None
        if event["kind"] != "tool_result" or not (known or "").startswith("run:"):
            raise InvalidBundle(f"event {id} of {event['stream']} is about nothing that is here")

    def _is_known(self, reference: Any) -> bool:
        return (self._known.get(_event_id(reference)) or "").startswith(("run:", "ledger:"))

    def _name_contents(self, stream: str, event: dict[str, Any]) -> None:
        for path, ref in form.references(event):
            self._given.discard(ref)
            presence = self._known.get(ref)
            if presence is None or presence not in (HERE, *form.WHYS):
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
        whole = form.end_line(count["events"], count["contents"], sum(self._absent.values()), self._lines.hexdigest())
        if self._pieces is not None or self._given:
            raise InvalidBundle("it ends with a content that no event names")
        if self._unnamed:
            raise InvalidBundle(f"event {min(self._unnamed)} of a ledger's own stream is about nothing that is here")
        if line != whole:
            raise InvalidBundle("its last line does not say what came before it")
        for head in self._heads:
            if self._known.get(head.event) != f"run:{head.turn}":
                raise InvalidBundle(f"the head {head.event} of turn {head.turn} is not in it")
        self._lines.update(line + b"\n")
        self._ended = end

    def _take_signature(self, line: bytes) -> None:
        value = parsed(line)
        key, signature = _text(value, "key", is_digest), _text(value, "signature", is_signature)
        before = self._signatures[-1].key if self._signatures else ""
        if line != form.signature_line(bytes.fromhex(key), bytes.fromhex(signature)) or not before < key:
            raise InvalidBundle("its signatures are not in their form or order")
        if len(self._signatures) >= form.SIGNATURES_LIMIT:
            raise InvalidBundle(f"it has more than {form.SIGNATURES_LIMIT} signatures")
        if not holds(
            bytes.fromhex(key), bytes.fromhex(signature), form.statement(self._lines.hexdigest(), self._heads)
        ):
            raise InvalidBundle(f"the signature with the key {key[:16]}… does not hold")
        known = self._keys.get(key)
        self._signatures.append(SignedBy(key=key, name=known.name if known else None, trusted=known is not None))


def _event_id(reference: Any) -> str:
    """What a reference to an event names; nothing that any event is called, where it is none."""
    id = reference.get("event_id") if isinstance(reference, dict) else None
    return id if isinstance(id, str) and is_digest(id) else ""


def _text(value: dict[str, Any], field: str, fits: Callable[[str], object]) -> str:
    found = value.get(field)
    if not isinstance(found, str) or not fits(found):
        raise InvalidBundle(f"{field} is {quoted(found)}")
    return found


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
