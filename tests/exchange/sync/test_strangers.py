"""A peer that lies: whatever it sends is refused with a typed error, and nothing of it can be seen."""

import struct
from collections.abc import Callable, Sequence
from hashlib import sha256

import msgspec
import pytest
import zstandard

import weft
from tests.exchange.sync.wire import Wire, contents, events, over_wire
from tests.ledger.histories import grow, lines, problems
from weft.exchange.sync.commands import SyncClient
from weft.exchange.sync.fact_transfer import (
    HEADER,
    LARGE,
    MAX_BODY,
    MOST_OFFERED,
    PREAMBLE,
    RECORD,
    BatchEnd,
    Frame,
    FrameReader,
    HelloFrame,
    KnownLog,
    ReceiverReady,
    SyncFrameKind,
    Talk,
    bitmap,
    encode,
    framed,
    mentioned,
    receive_frame,
)
from weft.kernel import contents as kernel_contents
from weft.kernel.errors import InvalidFact, PeerRefused, ProtocolBroken, ReplicaDiverged, WeftError
from weft.kernel.events import GENESIS
from weft.kernel.events import encode as encode_event
from weft.kernel.foreign_input import KINDS
from weft.ledger.api import store_of
from weft.ledger.api.ledger import Ledger

STRANGER = "01M7E81W00RGHTHTD1FJHKE0KC"
Script = Sequence[Frame | SyncFrameKind]


def stranger(script: Script, hello: HelloFrame | None = None) -> Talk[None]:
    """A peer that greets politely, and then says what it was told to say."""
    yield from receive_frame(SyncFrameKind.HELLO)
    yield framed(SyncFrameKind.HELLO, hello or HelloFrame(replica=STRANGER, n=5000, chain="00" * 32))
    yield framed(SyncFrameKind.KNOWN, KnownLog())
    yield from receive_frame(SyncFrameKind.KNOWN)
    for step in script:
        if isinstance(step, Frame):
            yield step
        else:
            yield from receive_frame(step)
    yield from receive_frame(*SyncFrameKind)


def ask(here: Ledger, script: Script, hello: HelloFrame | None = None, *, pushes: bool = False) -> None:
    asking = SyncClient(store_of(here))
    wire = Wire(stranger(script, hello))
    wire.converse(asking.greeting())
    wire.converse(asking.pushing() if pushes else asking.pulling())


def refused(here: Ledger, error: type[WeftError], script: Script, hello: HelloFrame | None = None) -> None:
    before = events(here)
    with pytest.raises(error):
        ask(here, [SyncFrameKind.PULL, SyncFrameKind.LACK, *script], hello)
    assert events(here) == before
    assert problems(here) == []


@pytest.fixture
def honest() -> list[bytes]:
    """The events of a ledger that did nothing wrong."""
    with weft.open(":memory:") as donor:
        grow(donor, "main", "hello", "again")
        return lines(donor)


def offer(batch: Sequence[bytes], *more: Frame | SyncFrameKind) -> Script:
    """To a ledger that has something already."""
    ids = b"".join(sha256(line).digest() for line in batch)
    return [Frame(SyncFrameKind.OFFER, ids), SyncFrameKind.WANT, Frame(SyncFrameKind.EVENTS, b"\n".join(batch)), *more]


def changed(line: bytes, **fields: object) -> bytes:
    return kernel_contents.dumps({**kernel_contents.loads(line), **fields})


@pytest.fixture
def busy(here: Ledger) -> Ledger:
    grow(here, "mine", "something is here")
    return here


MARK = framed(SyncFrameKind.MARK, BatchEnd(n=10, chain="11" * 32))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda batch: [batch[0].replace(b"Z", b"Y", 1), *batch[1:]],
        lambda batch: batch[:-1],
        lambda batch: [*batch, batch[-1]],
        lambda batch: batch[::-1],
    ],
)
def test_events_that_are_not_those_that_were_offered(
    busy: Ledger, honest: list[bytes], spoil: Callable[[list[bytes]], list[bytes]]
) -> None:
    first, asked, *_ = offer(honest)
    refused(
        busy,
        InvalidFact,
        [first, asked, Frame(SyncFrameKind.EVENTS, b"\n".join(spoil(honest))), SyncFrameKind.NEED, MARK],
    )


@pytest.mark.parametrize(
    "invent",
    [
        lambda lines: lines[1:],  # parents are missing
        lambda lines: lines[2:],
        lambda lines: [lines[0], changed(lines[1], prev="00" * 32)],
        lambda lines: [b'{"kind": "spaced out"}'],
        lambda lines: [changed(lines[0], actor="plain words, which are a content")],
        lambda lines: [changed(lines[0], stream="nowhere")],
        lambda lines: [changed(lines[0], v=2)],
        lambda lines: [b"[" * 5000 + b"]" * 5000],
        lambda lines: [b'{"a":' * 5000 + b"1" + b"}" * 5000],
        lambda lines: [b"\xff\xfe"],
        lambda lines: [b""],
        lambda lines: [b"null"],
        lambda lines: [*lines[:2], changed(lines[2], message={"id": STRANGER, "parts": [], "role": "user"})],
    ],
)
@pytest.mark.parametrize("empty", [True, False])
def test_events_that_have_no_place(
    here: Ledger, honest: list[bytes], invent: Callable[[list[bytes]], list[bytes]], empty: bool
) -> None:
    if not empty:
        grow(here, "mine", "something is here")
    batch = invent(honest)
    plain = [Frame(SyncFrameKind.EVENTS, b"\n".join(batch))]
    refused(here, InvalidFact, [*(plain if empty else offer(batch)), SyncFrameKind.NEED, MARK])


def test_events_that_say_this_ledger_wrote_them(busy: Ledger, honest: list[bytes]) -> None:
    forged = changed(honest[0], replica=busy.replica)
    refused(busy, ReplicaDiverged, offer([forged], SyncFrameKind.NEED, MARK))
    tomb = {
        "kind": "content_erased", "v": 1, "stream": f"ledger:{busy.replica}", "prev": None, "actor": "local",
        "content": "ab" * 32, "reason": "cd" * 32, "ts": "2026-11-15T00:00:00.000Z", "replica": STRANGER,
    }  # fmt: skip
    refused(busy, ReplicaDiverged, offer([kernel_contents.dumps(tomb)], SyncFrameKind.NEED, MARK))


PIECE, EMPTY_PIECE = Frame(SyncFrameKind.PIECE, b"x" * (1 << 20)), Frame(SyncFrameKind.PIECE, b"")
READY = framed(SyncFrameKind.READY, ReceiverReady())
WAITING = (SyncFrameKind.PUSH, READY, Frame(SyncFrameKind.LACK), SyncFrameKind.OFFER)
"""What is said until a batch was offered to a receiver."""


def record(index: int, data: bytes, salt: bytes = b"s" * 16) -> bytes:
    return RECORD.pack(index, salt, len(data)) + data


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ([Frame(SyncFrameKind.CONTENTS, record(0, b"not what it says"))], InvalidFact),
        ([Frame(SyncFrameKind.CONTENTS, record(4000, b"nobody asked"))], ProtocolBroken),
        ([Frame(SyncFrameKind.CONTENTS, record(0, b"x")[:-1])], ProtocolBroken),
        ([Frame(SyncFrameKind.CONTENTS, b"short")], ProtocolBroken),
        ([Frame(SyncFrameKind.CONTENTS, RECORD.pack(0, b"s" * 16, 1 << 31) + b"x")], ProtocolBroken),
        ([Frame(SyncFrameKind.LARGE, LARGE.pack(0, b"s" * 16, 1 << 40))], ProtocolBroken),
        ([Frame(SyncFrameKind.LARGE, LARGE.pack(0, b"s" * 16, 5))], ProtocolBroken),
        ([Frame(SyncFrameKind.LARGE, b"x")], ProtocolBroken),
        ([Frame(SyncFrameKind.LARGE, LARGE.pack(0, b"s" * 16, 2 << 20)), EMPTY_PIECE], ProtocolBroken),
        ([Frame(SyncFrameKind.LARGE, LARGE.pack(0, b"s" * 16, 2 << 20)), PIECE, PIECE], InvalidFact),
        ([Frame(SyncFrameKind.PIECE, b"x")], ProtocolBroken),
        ([Frame(SyncFrameKind.EVENTS, b"x")], ProtocolBroken),
    ],
)  # fmt: skip
def test_contents_that_are_not_what_was_needed(
    busy: Ledger, honest: list[bytes], frames: list[Frame], error: type[WeftError]
) -> None:
    refused(busy, error, offer(honest, SyncFrameKind.NEED, *frames, MARK))


def test_a_content_that_comes_twice(busy: Ledger) -> None:
    with weft.open(":memory:") as donor:
        grow(donor, "main", "hello")
        batch = lines(donor)
        with store_of(donor).read() as txn:
            rows = txn.sql.fetch_rows("SELECT ref, salt, bytes FROM content")
    needed = [ref for ref in mentioned(batch) if ref in {bytes(row[0]) for row in rows}]
    twice = [record(needed.index(bytes(ref)), bytes(data), bytes(salt)) for ref, salt, data in rows[:1]] * 2
    refused(
        busy, ProtocolBroken, offer(batch, SyncFrameKind.NEED, Frame(SyncFrameKind.CONTENTS, b"".join(twice)), MARK)
    )


def test_streams_that_never_end(busy: Ledger) -> None:
    def unknown(i: int) -> Frame:
        return Frame(SyncFrameKind.OFFER, b"".join(sha256(b"%d %d" % (i, k)).digest() for k in range(100)))

    known = b"".join(sha256(line).digest() for line in lines(busy))
    again: Script = [
        Frame(SyncFrameKind.OFFER, known),
        SyncFrameKind.WANT,
        framed(SyncFrameKind.MARK, BatchEnd()),
        SyncFrameKind.TAKEN,
    ]
    refused(busy, ProtocolBroken, [*again] * 1000)
    refused(busy, ProtocolBroken, [framed(SyncFrameKind.MARK, BatchEnd()), SyncFrameKind.TAKEN] * 100)
    refused(busy, ProtocolBroken, [unknown(1), SyncFrameKind.WANT, framed(SyncFrameKind.MARK, BatchEnd())])
    refused(busy, ProtocolBroken, [Frame(SyncFrameKind.OFFER, b"x" * 32 * (MOST_OFFERED + 1))])
    refused(busy, ProtocolBroken, [Frame(SyncFrameKind.OFFER, b"x" * 33)])
    refused(busy, ProtocolBroken, [Frame(SyncFrameKind.OFFER)])


@pytest.mark.parametrize("n", [-1, 5001, 1 << 60])
def test_places_that_its_log_does_not_have(busy: Ledger, honest: list[bytes], n: int) -> None:
    refused(
        busy,
        ProtocolBroken,
        offer(honest, SyncFrameKind.NEED, framed(SyncFrameKind.MARK, BatchEnd(n=n, chain="11" * 32))),
    )


@pytest.mark.parametrize("said", [b"", b"[]", b'{"n": "many"}', b"\xff", b'{"n": 1, "chain": 7}'])
def test_messages_that_are_none(busy: Ledger, said: bytes) -> None:
    refused(busy, ProtocolBroken, [Frame(SyncFrameKind.MARK, said)])


def test_frames_that_have_no_place(busy: Ledger) -> None:
    for kind in set(SyncFrameKind) - {SyncFrameKind.OFFER, SyncFrameKind.MARK, SyncFrameKind.DONE, SyncFrameKind.ERROR}:
        refused(busy, ProtocolBroken, [Frame(kind, b"x")])
    with pytest.raises(PeerRefused, match="no reason given"):
        ask(busy, [SyncFrameKind.PULL, Frame(SyncFrameKind.ERROR, b'{"error": "X", "message": "no reason given"}')])


def test_a_chain_that_is_no_hash_is_not_kept(busy: Ledger) -> None:
    refused(busy, ProtocolBroken, [framed(SyncFrameKind.MARK, BatchEnd(n=10, chain="not hex"))])


@pytest.mark.parametrize(
    "hello",
    [
        HelloFrame(version=2, replica=STRANGER, n=1, chain="00" * 32),
        HelloFrame(replica="nobody", n=1, chain="00" * 32),
        HelloFrame(replica=STRANGER, n=-1, chain="00" * 32),
        HelloFrame(replica=STRANGER, n=1, chain="none"),
    ],
)
def test_peers_that_are_nobody(here: Ledger, hello: HelloFrame) -> None:
    refused(here, ProtocolBroken, [], hello)


def test_a_peer_that_goes_by_our_own_name(here: Ledger) -> None:
    refused(here, ReplicaDiverged, [], HelloFrame(replica=here.replica, n=0, chain=GENESIS.hex()))


@pytest.mark.parametrize(
    "script",
    [
        [SyncFrameKind.PUSH, READY, Frame(SyncFrameKind.LACK, b"short")],
        [*WAITING, Frame(SyncFrameKind.WANT, b"x" * 100)],
        [*WAITING, Frame(SyncFrameKind.NEED, b"")],
        [SyncFrameKind.PUSH, Frame(SyncFrameKind.READY, b"{")],
        [*WAITING, Frame(SyncFrameKind.WANT, bitmap([True] * 7)),
         SyncFrameKind.EVENTS, Frame(SyncFrameKind.NEED, b"")],
    ],
)  # fmt: skip
def test_a_receiver_that_talks_nonsense(busy: Ledger, script: Script) -> None:
    with pytest.raises(ProtocolBroken):
        ask(busy, script, pushes=True)


def test_a_receiver_that_remembers_something_else(busy: Ledger) -> None:
    with pytest.raises(ReplicaDiverged):
        ask(
            busy,
            [
                SyncFrameKind.PUSH,
                framed(SyncFrameKind.READY, ReceiverReady(after=3, chain="11" * 32)),
                Frame(SyncFrameKind.LACK),
            ],
            pushes=True,
        )


def raw(kind: int, flags: int, body: bytes) -> bytes:
    return HEADER.pack(kind, flags, len(body)) + body


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"Welcome to Ubuntu!\n",
        PREAMBLE + raw(200, 0, b""),
        PREAMBLE + raw(SyncFrameKind.MARK, 2, b""),
        PREAMBLE + struct.pack(">BBI", SyncFrameKind.MARK, 0, MAX_BODY + 1),
        PREAMBLE + struct.pack(">BBI", SyncFrameKind.MARK, 0, 0xFFFFFFFF),
        PREAMBLE + raw(SyncFrameKind.MARK, 1, b"not packed"),
        PREAMBLE + raw(SyncFrameKind.MARK, 1, zstandard.ZstdCompressor().compress(bytes(MAX_BODY + 1))),
        PREAMBLE + raw(SyncFrameKind.MARK, 1, zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))),
        PREAMBLE + raw(SyncFrameKind.MARK, 1, zstandard.ZstdCompressor().compress(bytes(1000))[:-3]),
    ],
)
def test_bytes_that_are_no_frames(data: bytes) -> None:
    with pytest.raises(ProtocolBroken):
        list(FrameReader().feed(data))


def test_frames_come_out_whole_however_their_bytes_come_in() -> None:
    frames = [
        Frame(SyncFrameKind.EVENTS, b"x" * 5000),
        Frame(SyncFrameKind.DONE),
        Frame(SyncFrameKind.OFFER, bytes(range(256)) * 4),
    ]
    data = PREAMBLE + b"".join(map(encode, frames))
    for step in (1, 7, 1000, len(data)):
        reader = FrameReader()
        got = [frame for i in range(0, len(data), step) for frame in reader.feed(data[i : i + step])]
        assert got == frames
        assert reader.is_between


def test_an_event_of_a_kind_that_is_not_known_travels_with_its_contents(here: Ledger, there: Ledger) -> None:
    """A newer program wrote it; which of its hashes are contents nobody here can tell, and all are asked for."""
    grow(there, "main", "hello")
    ref = there.put_content(b"a newer program's words").ref
    event = msgspec.json.decode(encode_event(KINDS.decode(lines(there)[0])))
    strange = kernel_contents.dumps(
        {**event, "kind": "from_the_future", "stream": f"wish:{STRANGER}", "words": ref, "prev": None}
    )

    store_of(there).write(lambda txn: txn.facts.append([strange], [sha256(strange).digest()]))
    over_wire(here, there, lambda asking: asking.pulling())
    assert strange in events(here)
    assert bytes.fromhex(ref) in contents(here)
