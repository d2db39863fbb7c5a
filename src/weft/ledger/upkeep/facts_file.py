"""Facts out and in as JSON lines: an event with its `event_id`, or a content with its salt;
rules that a stranger's run must keep to; and events of other ledgers that are refused here,
remembered and left out.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import orjson
from msgspec import UNSET, Struct
from msgspec.structs import astuple

from weft.kernel import contents as kernel_contents
from weft.kernel.clock import offset
from weft.kernel.contents import MAX_CONTENT_BYTES, ROW_BYTES, SALT_BYTES, content_ref, imported_turn_id
from weft.kernel.enums import RunExit, TurnType
from weft.kernel.errors import FactDamaged, InvalidFact, InvalidInput, NotFound, ReplicaDiverged, StoreError, quoted
from weft.kernel.events import (
    GENESIS,
    AgentForked,
    ApprovalDenied,
    ApprovalGranted,
    ApprovalRequested,
    Event,
    HistoryAppend,
    MessageFact,
    ModelResponse,
    RunFinished,
    RunStarted,
    Substitution,
    ToolResult,
    UnknownEvent,
    encode,
    extend,
    kind_of,
    ledger_stream,
    run_stream,
)
from weft.kernel.foreign_input import KINDS, check_event, check_unknown, content_refs, json_values
from weft.kernel.ledger_events import (
    AliasAdded,
    CompactionRecorded,
    ContentErased,
    SessionArchived,
    SessionCreated,
    SessionMoved,
    SessionRenamed,
    Sighting,
    TurnLinked,
    TurnSuperseded,
)
from weft.ledger.upkeep.verify import VIEWS_STALE
from weft.ledger.views import Projector
from weft.ledger.views.projector import when_of
from weft.ledger.views.rows import TurnRow, stream_of
from weft.ledger.write.transaction import MESSAGE_ROOM
from weft.store.fact_log import EXCERPT, KEY_BYTES, LACKS, LEDGER_SCOPE, FactReader, is_erased_content
from weft.store.fact_log import REFUSED_EVENT as EVENT
from weft.store.fact_log import REFUSED_NAME as NAME
from weft.store.port import Progress, Store, WriteTxn
from weft.store.private_files import new_file
from weft.store.replicas import NOTE, last_copied_event, own_names
from weft.store.sql import Sql, rows_in

# --- What a stranger's run must keep to, beyond the form of each event: the rules that recording here keeps by itself.

ANSWERS = (ApprovalRequested, ApprovalGranted, ApprovalDenied)


def check_run_event(view: Projector, turn: TurnRow, event: Event | UnknownEvent) -> None:
    """May this event follow in its run, as the run stands now?"""
    if goes_on_here(view.sql, turn, event):
        raise InvalidFact(f"run:{turn.id}", "is being answered here")
    if isinstance(event, HistoryAppend):
        _check_message(turn, event.message)
    elif isinstance(event, ModelResponse) and event.output is not UNSET:
        _check_message(turn, event.output)
    elif isinstance(event, CompactionRecorded):
        _check_compaction(view, turn)
    elif isinstance(event, RunFinished):
        _check_end(view, turn, event)


def goes_on_here(sql: Sql, turn: TurnRow, event: Event | UnknownEvent) -> bool:
    """Whether an event of another ledger goes on with a turn that a broker of this one has open. What a copy took along
    open is its origin's. Answers to questions are taken: they count where they were asked alone."""
    if turn.inbox is None or turn.n <= last_copied_event(sql) or isinstance(event, ANSWERS):
        return False
    row = sql.fetch_row("SELECT replica FROM open_run WHERE turn = ?", (turn.id,))
    return row is not None and row[0] in own_names(sql)


def _check_message(turn: TurnRow, message: MessageFact) -> None:
    """The k-th message of a turn has the id `turn + k`; so a message's turn is found without an index."""
    k = turn.messages + 1
    if k >= MESSAGE_ROOM:
        raise InvalidFact(f"run:{turn.id}", f"holds more than {MESSAGE_ROOM - 1} messages")
    if message.id != offset(turn.id, k):
        raise InvalidFact(f"run:{turn.id}", f"its message {k} is {message.id}, not {offset(turn.id, k)}")
    notes = [noted for noted in (message.files, message.lints, message.codeblocks) if noted is not UNSET]
    if any(len(noted) >= MESSAGE_ROOM for noted in notes):
        raise InvalidFact(f"run:{turn.id}", f"its message {k} carries more than {MESSAGE_ROOM - 1} notes of a kind")


def _check_compaction(view: Projector, turn: TurnRow) -> None:
    if turn.type != TurnType.COMPACTION:
        raise InvalidFact(f"run:{turn.id}", f"is a {turn.type} turn and takes no compaction")
    if _has_compaction(view, turn):
        raise InvalidFact(f"run:{turn.id}", "has its compaction already")


def _check_end(view: Projector, turn: TurnRow, event: RunFinished) -> None:
    if turn.type == TurnType.COMPACTION and not _has_compaction(view, turn):
        raise InvalidFact(f"run:{turn.id}", "is a compaction turn and ends without its compaction")
    if event.exit == RunExit.SUCCESS and turn.calls and turn.source is None and _has_open_calls(view, turn):
        raise InvalidFact(f"run:{turn.id}", "ends well with a tool call that has no outcome")


def _has_compaction(view: Projector, turn: TurnRow) -> bool:
    return view.sql.fetch_row("SELECT 1 FROM compaction WHERE turn = ?", (turn.id,)) is not None


def _has_open_calls(view: Projector, turn: TurnRow) -> bool:
    """As the rows of this turn are, or will be once they are written."""
    stored = view.sql.fetch_rows("SELECT event, outcome FROM tool_call WHERE turn = ?", (turn.n,))
    outcomes = {bytes(event): outcome for event, outcome in stored}
    for row in view.calls.values():
        if row.turn == turn.n:
            outcomes[row.event] = row.outcome
    return None in outcomes.values()


# --- Events that other ledgers told and that are refused here: they contradict what is here, or say that this ledger
# wrote them, or build on such events.

_hashes = re.compile(rb'"([0-9a-f]{64})"').findall
_names = re.compile(rb'"([0-9A-Za-z_-]{16,64})"').findall


class RefusedEvent(Struct, frozen=True):
    """An event that is refused, by its id, and the replica that told it."""

    event: str
    peer: str


class RefusedEvents:
    """What was refused so far, and what one transaction adds to it."""

    def __init__(self, sql: Sql, peer: str) -> None:
        self._sql, self._peer = sql, peer
        self._has_any = sql.fetch_row("SELECT 1 FROM local WHERE key LIKE ? LIMIT 1", (f"{EVENT}%",)) is not None
        self.reasons: list[str] = []
        """Why events were refused now that do not merely build on refused ones."""
        self.count = 0

    def add(self, event_id: bytes, begun: str | None, reason: str | None = None) -> None:
        """`begun` is the turn or session that the event would have begun."""
        keys = [EVENT + event_id.hex(), *([NAME + begun] if begun else [])]
        for key in keys:
            self._sql.run(NOTE, (key, self._peer))
        self._has_any = True
        self.count += 1
        if reason is not None:
            self.reasons.append(reason)

    def has_foundation_of(self, line: bytes, is_here: Callable[[str], bool]) -> bool:
        """Whether this event names a refused one, or a turn or session that only a refused one began."""
        if not self._has_any:
            return False
        keys = {EVENT + event.decode() for event in _hashes(line)} | {NAME + name.decode() for name in _names(line)}
        rows = rows_in(self._sql, "SELECT key FROM local WHERE key IN", sorted(keys))
        return any(key.startswith(EVENT) or not is_here(key.removeprefix(NAME)) for (key,) in rows)


def refused_among(sql: Sql, ids: Iterable[bytes]) -> set[bytes]:
    keys = [EVENT + event.hex() for event in ids]
    return {
        bytes.fromhex(key.removeprefix(EVENT)) for (key,) in rows_in(sql, "SELECT key FROM local WHERE key IN", keys)
    }


def count_refused(sql: Sql, replica: str) -> int:
    """How many events that this replica told were refused."""
    row = sql.fetch_row("SELECT count(*) FROM local WHERE key LIKE ? AND value = ?", (f"{EVENT}%", replica))
    return int(row[0]) if row else 0


def load_refused(sql: Sql) -> list[RefusedEvent]:
    rows = sql.fetch_rows("SELECT key, value FROM local WHERE key LIKE ? ORDER BY key", (f"{EVENT}%",))
    return [RefusedEvent(key.removeprefix(EVENT), peer) for key, peer in rows]


# --- Facts out and in as JSON lines: an event with its `event_id`, or a content with its salt.

BATCH_LINES = 512
BATCH_BYTES = 4 * 1024 * 1024
ROW_EVENTS = 128
LINE_LIMIT = 16 * 1024 * 1024
LINE_VALUES = 2**19
"""A line of so many JSON values takes some 40 MB once it is parsed."""
LinesRead = Callable[[int], None]


class ImportedFacts(Struct, frozen=True):
    """What an import brought."""

    events: int
    contents: int
    known: int
    erased: int = 0
    """Contents that were passed over, since they were erased."""


def export_lines(store: Store, progress: Progress | None = None) -> Iterator[bytes]:
    """Every fact of one moment as a line, hashed on its way out. `progress` is told how many are out, of how many."""
    report = progress or _no_progress
    with store.read() as txn:
        facts, after, done = txn.facts, 0, 0
        (contents,) = txn.sql.fetch_row("SELECT count(*) FROM content WHERE length(salt) > 0") or (0,)
        total = contents + facts.tip().n
        query = "SELECT n FROM content WHERE n > ? AND length(salt) > 0 ORDER BY n LIMIT 512"
        while numbers := txn.sql.fetch_rows(query, (after,)):
            for (n,) in numbers:
                yield from content_lines(facts, n)
            after, done = numbers[-1][0], done + len(numbers)
            report(done, total)
        chain = GENESIS
        for row in facts.rows():
            lines = row.lines()
            chain = extend(chain, (sha256(line).digest() for line in lines))
            if chain != row.chain:
                raise FactDamaged("log row", str(row.n), "its events do not hash to the chain of arrival")
            yield from map(event_line, lines)
            report(contents + row.n, total)


def _no_progress(done: int, of: int) -> None:
    """No progress wanted."""


def write_lines(out: Any, lines: Iterable[bytes]) -> int:
    count = 0
    for line in lines:
        out.write(line + b"\n")
        count += 1
    return count


def write_new(path: Path, lines: Iterable[bytes]) -> int:
    """Aside and renamed: either the file is complete or it is not there."""
    if path.exists():
        raise StoreError(f"{path} exists already", "choose a new file; exports are never overwritten")
    with new_file(path) as out:
        return write_lines(out, lines)


def limited_lines(file: Any) -> Iterator[bytes]:
    while line := file.readline(LINE_LIMIT + 2):
        yield line


def event_line(line: bytes) -> bytes:
    """The event with its id in front; taken away, the line is canonical again."""
    return b'{"event_id":"' + sha256(line).hexdigest().encode() + b'",' + line[1:]


def content_lines(facts: FactReader, n: int) -> Iterator[bytes]:
    row = facts.sql.fetch_row("SELECT ref, salt, size FROM content WHERE n = ?", (n,))
    if row is None:
        raise FactDamaged("content", str(n), "its row was here a moment ago and is not found by its number")
    name = {"ref": bytes(row[0]).hex(), "salt": bytes(row[1]).hex()}
    if row[2] > ROW_BYTES:
        pieces = -(-row[2] // ROW_BYTES)
        for i, piece in enumerate(facts.stream_content(n)):
            yield orjson.dumps({**name, "piece": i, "pieces": pieces, "base64": base64.b64encode(piece).decode()})
        return
    data = facts.content(n)
    try:
        yield orjson.dumps({**name, "text": data.decode()})
    except UnicodeDecodeError:
        yield orjson.dumps({**name, "base64": base64.b64encode(data).decode()})


class NewContent(Struct, frozen=True):
    """A content read from a facts file."""

    ref: bytes
    salt: bytes
    data: bytes


class NewLargeContent(Struct, frozen=True):
    """One that waits in a file, hashed already."""

    ref: bytes
    salt: bytes
    size: int
    file: IO[bytes]
    start: int

    def pieces(self) -> Iterator[bytes]:
        for at in range(0, self.size, ROW_BYTES):
            self.file.seek(self.start + at)
            yield self.file.read(min(ROW_BYTES, self.size - at))


class NewEvent(Struct, frozen=True):
    """An event read from a facts file."""

    line: bytes
    id: bytes
    event: Event | UnknownEvent


Fact = NewContent | NewLargeContent | NewEvent
LineFact = NewContent | NewEvent


def import_lines(
    store: Store, lines: Iterable[bytes], progress: LinesRead | None = None, *, excerpts: bool = False
) -> ImportedFacts:
    """Bring facts in, batch by batch; a line that is not what it says stops the import and undoes its batch, as does an
    event that says this ledger wrote it where it did not.

    With `excerpts`, events of a ledger's own stream may come without those before them, as bundles bring them.
    """
    total = ImportedFacts(0, 0, 0)
    for batch, last_line in _fact_batches(_facts_of_lines(lines)):
        store.catch_up()
        brought = store.write(partial(take_batch, batch, excerpts=excerpts, own=store.replica))
        total = ImportedFacts(*(a + b for a, b in zip(_fact_counts(total), _fact_counts(brought), strict=True)))
        if progress is not None:
            progress(last_line)
    store.catch_up()
    return total


def views_are_stale(store: Store) -> bool:
    """Has a content come after an event that names it? The rebuild that the views then wait for takes the mark away."""
    with store.read() as txn:
        return txn.sql.fetch_row("SELECT 1 FROM local WHERE key = ?", (VIEWS_STALE,)) is not None


def take_batch(
    batch: list[tuple[int, Fact]],
    txn: WriteTxn,
    *,
    excerpts: bool = False,
    own: str | None = None,
    refused: RefusedEvents | None = None,
) -> ImportedFacts:
    """Numbered facts, in one transaction: all of them, or InvalidFact with the number of one that has no place.

    `own` is the replica id under which nothing new may come: ReplicaDiverged. With `refused`, events that contradict
    what is here are noted there and left out, with all that build on them."""
    return _Batch(txn, excerpts, own, refused).take(batch)


def refuse_forged(new: NewEvent, own: str) -> None:
    if says_written_by(new, own):
        raise ReplicaDiverged(forgery_of(new, own))


def says_written_by(new: NewEvent, own: str) -> bool:
    """What a replica wrote is in its ledger. An event that says it is its own and is not known there is a copy's, or
    forged."""
    event = new.event
    writer = event.fields.get("replica") if isinstance(event, UnknownEvent) else event.replica
    return writer == own or event.stream == ledger_stream(own)


def forgery_of(new: NewEvent, own: str) -> str:
    return f"event {new.id.hex()} says that replica {own} wrote it, which is this ledger, and it did not"


def begun_by(event: Event | UnknownEvent) -> str | None:
    """The turn or session that an event begins."""
    kind, _, name = event.stream.partition(":")
    return name if event.prev is None and kind in ("run", "session") else None


def _fact_counts(brought: ImportedFacts) -> tuple[int, ...]:
    return astuple(brought)


def _fact_batches(facts: Iterable[tuple[int, LineFact]]) -> Iterator[tuple[list[tuple[int, Fact]], int]]:
    batch: list[tuple[int, Fact]] = []
    size = 0
    for number, fact in facts:
        batch.append((number, fact))
        size += len(fact.line) if isinstance(fact, NewEvent) else len(fact.data)
        if len(batch) >= BATCH_LINES or size >= BATCH_BYTES:
            yield batch, number
            batch, size = [], 0
    if batch:
        yield batch, batch[-1][0]


def _facts_of_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, LineFact]]:
    """Each line checked against the hash that it carries."""
    pieces: list[bytes] = []
    for number, line in enumerate(lines, 1):
        where = f"line {number}"
        if not line.strip():
            continue
        _check_size(line, where)
        try:
            value = kernel_contents.loads(line)
        except InvalidInput as error:
            raise InvalidFact(where, str(error)) from error
        if not isinstance(value, dict):
            raise InvalidFact(where, "is not an object")
        if "event_id" in value:
            yield number, _event_fact(value, where)
        elif "ref" in value:
            content = content_of_line(value, where, pieces)
            if content is not None:
                yield number, content
        else:
            raise InvalidFact(where, "is neither an event with its event_id nor a content with its ref")
    if pieces:
        raise InvalidFact("the last line", "ends in the middle of a content")


def _check_size(line: bytes, where: str) -> None:
    if len(line) > LINE_LIMIT:
        raise InvalidFact(where, f"is longer than {LINE_LIMIT} bytes")
    if (count := json_values(line, LINE_VALUES)) > LINE_VALUES:
        raise InvalidFact(where, f"holds {count} values or more; {LINE_VALUES} is the most")


def _event_fact(value: dict[str, Any], where: str) -> NewEvent:
    claimed = value.pop("event_id")
    line = kernel_contents.dumps(value)
    digest = sha256(line).digest()
    if digest.hex() != claimed:
        raise InvalidFact(where, f"the event hashes to {digest.hex()}, not to {quoted(claimed)}")
    return NewEvent(line, digest, _decoded_event(line, where))


def _decoded_event(line: bytes, where: str) -> Event | UnknownEvent:
    """A stranger's event, which keeps to the form of its kind."""
    try:
        event = KINDS.decode(line)
        if isinstance(event, Event):
            check_event(event)
        else:
            check_unknown(event, KINDS.kinds.get(event.kind))
    except (ValueError, RecursionError, InvalidFact) as error:
        raise InvalidFact(where, str(error)) from error
    return event


def checked_line(line: bytes, where: str) -> NewEvent:
    """An event as a stranger's log holds it: its canonical bytes and nothing else."""
    _check_size(line, where)
    event = _decoded_event(line, where)
    if (isinstance(event, UnknownEvent) or encode(event) != line) and not kernel_contents.is_canonical(line):
        raise InvalidFact(where, "is not in canonical form")
    return NewEvent(line, sha256(line).digest(), event)


def content_of_line(value: dict[str, Any], where: str, pieces: list[bytes]) -> NewContent | None:
    """A whole content, or None until the last of its pieces has come."""
    try:
        ref, salt = bytes.fromhex(value["ref"]), bytes.fromhex(value["salt"])
        data = value["text"].encode() if "text" in value else base64.b64decode(value["base64"], validate=True)
        piece, of = int(value.get("piece", 0)), int(value.get("pieces", 1))
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise InvalidFact(where, f"is not a content: {quoted(error, 120)}") from error
    if piece != len(pieces) or (piece + 1) * ROW_BYTES > MAX_CONTENT_BYTES + ROW_BYTES:
        raise InvalidFact(where, f"is piece {piece} of a content, not piece {len(pieces)}")
    pieces.append(data)
    if piece + 1 < of:
        return None
    whole = b"".join(pieces)
    pieces.clear()
    if len(salt) != SALT_BYTES or content_ref(salt, whole) != ref:
        raise InvalidFact(where, f"the content does not hash to {ref.hex()}")
    return NewContent(ref, salt, whole)


def _check_import(event: Event | UnknownEvent) -> None:
    """What sources tell is a set: nothing in it follows anything, and only that is in it."""
    if event.prev is not None:
        raise InvalidFact(event.stream, "is a set; no event of it follows another")
    if isinstance(event, Event) and not isinstance(event, Sighting | TurnLinked | TurnSuperseded):
        raise InvalidFact(event.stream, f"takes no {kind_of(event)}")


def _check_imported_id(event: RunStarted) -> None:
    """An imported turn is named by what it is made of."""
    grows_from = None if event.fork is UNSET else event.fork.event
    if event.mapping is UNSET or event.origin is UNSET or event.native is UNSET:
        raise InvalidFact(event.stream, "has a source, and no origin, mapping or native id")
    if event.stream != run_stream(imported_turn_id(grows_from, event.mapping, str(event.source))):
        raise InvalidFact(event.stream, "is not the name that its source gives it")


class _Batch:
    """Some facts on their way into one transaction."""

    def __init__(self, txn: WriteTxn, excerpts: bool, own: str | None, refused: RefusedEvents | None) -> None:
        self.txn, self.facts = txn, txn.facts
        self._excerpts, self._own, self._refused = excerpts, own, refused
        self._view = Projector(txn.sql, txn.facts, self)
        self._first = self.facts.tip().n + 1
        self._lines: list[bytes] = []
        self._ids: list[bytes] = []
        self._numbers = self._recent_contents()
        lines = self.facts.lines(self.facts.watermark("lookup_event"))
        self._recent = {sha256(line).digest(): stream_of(n, line) for n, line in lines}
        self._lacking: set[str] = set()
        self.events = self.contents = self.known = self.erased = 0

    def _recent_contents(self) -> dict[str, int]:
        """What came since the lookup views were brought up to date, a moment ago."""
        mark = self.facts.watermark("lookup_content")
        rows = self.txn.sql.fetch_rows("SELECT n, ref FROM content WHERE n > ?", (mark,))
        return {bytes(ref).hex(): n for n, ref in rows}

    def take(self, batch: list[tuple[int, Fact]]) -> ImportedFacts:
        for number, fact in batch:
            if isinstance(fact, NewEvent):
                self._take_event(fact, f"line {number}")
            else:
                self._take_content(fact)
        self._flush_views()
        self._note_lacking()
        return ImportedFacts(self.events, self.contents, self.known, self.erased)

    def _take_content(self, fact: NewContent | NewLargeContent) -> None:
        ref = fact.ref.hex()
        if n := self._content_number(ref):
            gone = is_erased_content(self.txn.sql, n)
            self.known, self.erased = self.known + (not gone), self.erased + gone
            return
        self._numbers[ref] = n = self._put_content(fact)
        self.contents += 1
        if ref in self._lacking or self.txn.sql.fetch_row("SELECT 1 FROM local WHERE key = ?", (LACKS + ref,)):
            self._note_stale(ref, n)

    def _put_content(self, fact: NewContent | NewLargeContent) -> int:
        if isinstance(fact, NewContent):
            return self.facts.put(fact.data, LEDGER_SCOPE, fact.salt).n
        if fact.size > ROW_BYTES:
            return self.facts.put_stream(fact.pieces(), LEDGER_SCOPE, fact.salt).n
        n = self.facts.put(b"".join(fact.pieces()), LEDGER_SCOPE, fact.salt).n
        self.facts.flush()
        return n

    def _put_erased(self, ref: str) -> None:
        """A content that was erased elsewhere and never came here: events that name it find that it is gone."""
        self._numbers[ref] = n = self.facts.put_erased(bytes.fromhex(ref)).n
        if ref in self._lacking or self.txn.sql.fetch_row("SELECT 1 FROM local WHERE key = ?", (LACKS + ref,)):
            self._note_stale(ref, n)

    def _note_stale(self, ref: str, n: int) -> None:
        """An event that named this content is in the views already, without it."""
        self._lacking.discard(ref)
        self.txn.sql.run("DELETE FROM local WHERE key = ?", (LACKS + ref,))
        self.txn.sql.run(
            "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (VIEWS_STALE, str(n)),
        )

    def _note_lacking(self) -> None:
        self.txn.sql.run_many(
            "INSERT INTO local(key, value) VALUES (?, '') ON CONFLICT (key) DO NOTHING",
            [(LACKS + ref,) for ref in sorted(self._lacking)],
        )

    def _take_event(self, fact: NewEvent, where: str) -> None:
        if self._stream_with(fact.id) is not None:
            self.known += 1
            return
        if self._own is not None:
            refuse_forged(fact, self._own)
        if self._refused is not None and self._is_refused(fact, self._refused):
            return
        try:
            self._check_place(fact.event)
            if self._looks_back(fact.event):
                self._flush_views()
            self._view.apply(
                self._first + len(self._lines), when_of(fact.event, self.facts.now_ms), fact.id, fact.event
            )
        except (InvalidFact, NotFound) as error:
            raise InvalidFact(where, str(error)) from error
        self._lines.append(fact.line)
        self._ids.append(fact.id)
        self._recent[fact.id] = fact.event.stream
        self.events += 1
        self._adopt_contents(fact.event)
        if isinstance(fact.event, ContentErased) and not self._content_number(fact.event.content):
            self._put_erased(fact.event.content)
        if len(self._lines) >= ROW_EVENTS:
            self._flush_views()

    def _stream_with(self, event: bytes) -> str | None:
        """The stream that holds this event; None when it is not here."""
        if event in self._recent:
            return self._recent[event]
        for (n,) in self.txn.sql.fetch_rows("SELECT n FROM lookup_event WHERE key = ?", (event[:KEY_BYTES],)):
            line = self.facts.line(n)
            if line is not None and sha256(line).digest() == event:
                return stream_of(n, line)
        return None

    def _is_refused(self, fact: NewEvent, refused: RefusedEvents) -> bool:
        reason = self._contradiction_of(fact.event)
        if reason is None and not refused.has_foundation_of(fact.line, self._is_here):
            return False
        begun = begun_by(fact.event)
        absent = begun if begun is not None and not self._is_here(begun) else None
        refused.add(fact.id, absent, reason and f"event {fact.id.hex()}: {fact.event.stream} {reason}")
        return True

    def _is_here(self, name: str) -> bool:
        return self._view.find_turn(name) is not None or self._view.session_number(name) is not None

    def _contradiction_of(self, event: Event | UnknownEvent) -> str | None:
        """How an event says something else than what its stream says here; None where it does not."""
        kind, _, name = event.stream.partition(":")
        if event.prev is None:
            if kind in ("import", "ledger") or self._starts_stream(kind, name):
                return None  # two copies that went on under one name may both have begun the ledger's own stream
            return "begins a second time"
        row = self._view.find_turn(name) if kind == "run" else None
        if row is not None and goes_on_here(self.txn.sql, row, event):
            return "is being answered here"
        if row is None or (row.digest == event.prev and not row.closed):
            return None
        if row.digest == event.prev:
            return "has ended and takes no more events"
        goes_on = self._stream_with(bytes.fromhex(event.prev)) == event.stream
        return f"goes on from {event.prev} in another way" if goes_on else None

    def _check_place(self, event: Event | UnknownEvent) -> None:
        """A run's chain is one line; other streams may have branches, but each grows from an event of its own."""
        kind, _, name = event.stream.partition(":")
        if kind == "import":
            _check_import(event)
            return
        if event.prev is None:
            if reason := self._contradiction_of(event):
                raise InvalidFact(event.stream, reason)
            if isinstance(event, RunStarted) and event.source is not UNSET:
                _check_imported_id(event)
        elif kind == "run":
            self._check_run(name, event)
        elif (found := self._stream_with(bytes.fromhex(event.prev))) != event.stream:
            if found is None and self._excerpts and kind == "ledger":
                self._note_excerpt(event.stream)
                return
            where = "which is not here" if found is None else f"an event of {found}"
            raise InvalidFact(event.stream, f"grows from {event.prev}, {where}")

    def _note_excerpt(self, stream: str) -> None:
        """Of this stream something came without its beginning, which may still come."""
        self.txn.sql.run(
            "INSERT INTO local(key, value) VALUES (?, '') ON CONFLICT (key) DO NOTHING", (EXCERPT + stream,)
        )

    def _check_run(self, turn: str, event: Event | UnknownEvent) -> None:
        row = self._view.find_turn(turn)
        if row is None or row.digest != event.prev:
            raise InvalidFact(event.stream, f"does not end at {event.prev}")
        if row.closed:
            raise InvalidFact(event.stream, "has ended and takes no more events")
        check_run_event(self._view, row, event)

    def _looks_back(self, event: Event | UnknownEvent) -> bool:
        """Will its view read earlier events in their rows, or compare its label with those of other sessions?"""
        if isinstance(event, RunStarted) and event.fork is not UNSET:
            parent = self._view.find_turn(event.fork.turn)
            return parent is not None and not (parent.closed and parent.digest == event.fork.event)
        if isinstance(event, SessionMoved) and event.at is not UNSET:
            return True
        if isinstance(event, ToolResult | Substitution):
            return not event.stream.startswith("run:")
        if event.stream.startswith("session:") and event.prev is not None:
            session = self._view.find_session_id(event.stream[8:])
            if session is not None and bytes.fromhex(event.prev) != session.last_event:
                return True
        return isinstance(event, AgentForked | SessionCreated | SessionRenamed | SessionArchived | AliasAdded)

    def _starts_stream(self, kind: str, name: str) -> bool:
        """Is this the first event of its stream?"""
        if kind == "run":
            return self._view.find_turn(name) is None
        if kind == "session":
            return self._view.session_number(name) is None
        stream = f"{kind}:{name}"
        begun = self.txn.sql.fetch_row("SELECT 1 FROM stream_tip WHERE stream = ?", (stream,)) is not None
        return not begun or self.txn.sql.fetch_row("SELECT 1 FROM local WHERE key = ?", (EXCERPT + stream,)) is not None

    def _adopt_contents(self, event: Event | UnknownEvent) -> None:
        """Contents of a run belong to its tree, where later equal bytes will find them."""
        numbers = [self.number(ref) for ref in content_refs(event)]
        if isinstance(event, UnknownEvent) or not event.stream.startswith("run:"):
            return
        turn = self._view.turn(event.stream[4:])
        self.facts.flush()
        for n in numbers:
            row = self.txn.sql.fetch_row("SELECT digest FROM content WHERE n = ? AND scope = ?", (n, LEDGER_SCOPE))
            if row is not None:
                self.txn.sql.run("UPDATE content SET scope = ? WHERE n = ?", (turn.root, n))
                self.txn.sql.run(
                    "UPDATE lookup_bytes SET scope = ? WHERE scope = ? AND key = ? AND n = ?",
                    (turn.root, LEDGER_SCOPE, bytes(row[0])[:KEY_BYTES], n),
                )

    def _flush_views(self) -> None:
        self.facts.flush()
        if self._lines:
            self.facts.append(self._lines, self._ids)
            self._first += len(self._lines)
            self._lines, self._ids = [], []
        self._view.flush()

    def number(self, ref: str) -> int:
        found = self._content_number(ref)
        if not found:
            self._lacking.add(ref)
        return found

    def _content_number(self, ref: str) -> int:
        known = self._numbers.get(ref)
        if known is None:
            key = bytes.fromhex(ref)
            row = self.txn.sql.fetch_row(
                "SELECT c.n FROM lookup_content l JOIN content c ON c.n = l.n WHERE l.key = ? AND c.ref = ?",
                (key[:KEY_BYTES], key),
            )
            known = int(row[0]) if row else 0
            if known:
                self._numbers[ref] = known
        return known

    def content_text(self, n: int) -> str | None:
        return self.facts.text(n)

    def readable_text(self, n: int) -> str | None:
        return self.facts.readable_text(n)
