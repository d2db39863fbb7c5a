"""Peers that speak for others, claim what they do not have, stay silent or never come to an end."""

import shlex
import sys
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256, shake_256
from pathlib import Path

import pytest

import weft
from tests.attacks.lying_peer import (
    Batch,
    changed,
    hello_as,
    ids_of,
    peers_of,
    place_after,
    pull_from_liar,
    push_from_liar,
    rechained,
    stream_in,
)
from tests.exchange.sync.wire import Wire, events, pull, push
from tests.ledger.histories import grow, lines, problems, queries
from tests.sizes import share
from weft.exchange import sync
from weft.exchange.sync.commands import ServePermissions, SyncClient, SyncServer, start
from weft.exchange.sync.fact_transfer import (
    PREAMBLE,
    BatchEnd,
    Channel,
    Frame,
    HelloFrame,
    KnownLog,
    LocalConversation,
    SkippedRun,
    SyncFrameKind,
    Talk,
    encode,
    framed,
    receive_frame,
)
from weft.kernel.clock import FixedClock, SystemClock
from weft.kernel.errors import ConnectionCut, NotTrusted, ProtocolBroken, ReplicaDiverged
from weft.ledger.api import store_of
from weft.ledger.api.ledger import Ledger
from weft.store.replicas import TrustStore

LIAR = "01M7E81W00RGHTHTD1FJHKE0KC"
JUNK = "cd" * 32
Lie = Callable[..., None]
WAYS = pytest.mark.parametrize("lie", [pull_from_liar, push_from_liar])


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[list[Ledger]]:
    clock = FixedClock(1_794_700_800_000)
    opened: list[Ledger] = [weft.open(tmp_path / f"{name}.db", clock=clock) for name in ("alice", "carol")]
    yield opened
    for ledger in opened:
        ledger.close()


@pytest.fixture
def alice(ledgers: list[Ledger]) -> Ledger:
    grow(ledgers[0], "alice", "what is here")
    return ledgers[0]


@pytest.fixture
def carol(ledgers: list[Ledger]) -> Ledger:
    grow(ledgers[1], "carol", "one", "two")
    return ledgers[1]


def opens(address: str) -> Ledger:
    return weft.open(address, create=False)


def sync_patiently(here: Ledger, there: Ledger, refusals: int = 3) -> int:
    """Both ways, again after each refusal. Says how many there were."""
    for count in range(refusals + 1):
        try:
            pull(here, there)
            push(here, there)
        except ReplicaDiverged:
            continue
        return count
    raise AssertionError("it is refused for ever")


def stranger(after_hello: Talk[None], hello: HelloFrame) -> Talk[None]:
    yield from receive_frame(SyncFrameKind.HELLO)
    yield framed(SyncFrameKind.HELLO, hello)
    yield framed(SyncFrameKind.KNOWN, KnownLog())
    yield from receive_frame(SyncFrameKind.KNOWN)
    yield from after_hello


# --- a HELLO for another replica ----------------------------------------------------------------------------------


@WAYS
def test_a_hello_under_another_replicas_name_keeps_nothing_and_locks_nobody_out(
    alice: Ledger, carol: Ledger, lie: Lie
) -> None:
    lie(alice, hello_as(carol.replica, (1 << 40)))
    assert peers_of(alice) == []
    assert sync_patiently(alice, carol, 0) == 0
    assert events(alice) == events(carol)


@pytest.mark.parametrize("n", [-1, (1 << 40) + 1, (1 << 53) - 1, 1 << 70])
@WAYS
def test_a_hello_with_a_number_that_no_log_has_is_a_damaged_message(alice: Ledger, lie: Lie, n: int) -> None:
    with pytest.raises(ProtocolBroken, match="HELLO"):
        lie(alice, hello_as(LIAR, n))
    assert peers_of(alice) == []


@pytest.mark.parametrize("n", share([3, 5000, 1 << 39], test=2))
@WAYS
def test_a_place_that_the_events_do_not_prove_is_not_kept(alice: Ledger, carol: Ledger, lie: Lie, n: int) -> None:
    """The events are real, and the place in the log of the one whose name is used is not."""
    lie(alice, hello_as(carol.replica), Batch(lines(carol)[:5], BatchEnd(n=n, chain=JUNK)))
    assert peers_of(alice) == []
    assert sync_patiently(alice, carol, 0) == 0
    assert events(alice) == events(carol)


@WAYS
def test_a_real_place_without_the_events_before_it_is_not_kept(alice: Ledger, carol: Ledger, lie: Lie) -> None:
    """Whoever syncs with carol knows where her log ends; alice must not take that for having taken it."""
    lie(alice, hello_as(carol.replica), Batch((), place_after(lines(carol))))
    lie(alice, hello_as(carol.replica), Batch(lines(carol)[:1], place_after(lines(carol))))
    skipped = tuple(SkippedRun(i, 1, ids_of(lines(alice))[0].hex()) for i in range(1, 4))
    place = place_after(lines(carol))
    lie(alice, hello_as(carol.replica), Batch((), BatchEnd(n=place.n, chain=place.chain, skipped=skipped)))
    assert peers_of(alice) == []
    pull(alice, carol)
    assert events(carol) <= events(alice)


@WAYS
def test_a_whole_log_forged_under_another_name_costs_the_real_one_a_single_refusal(
    alice: Ledger, carol: Ledger, lie: Lie
) -> None:
    """The forged log proves itself, so it is kept; carol says that it is not hers, and it is dropped."""
    with weft.open(":memory:") as other:
        grow(other, "forged", "not carol's")
        forged = lines(other)
        lie(alice, hello_as(carol.replica, len(forged)), Batch(forged, place_after(forged)))
    assert peers_of(alice) == [(carol.replica, len(forged))]
    assert sync_patiently(alice, carol) == 1
    assert events(alice) == events(carol) >= set(forged)
    assert sync_patiently(alice, carol, 0) == 0
    assert problems(alice) == problems(carol) == []


@WAYS
def test_whoever_goes_on_where_another_replicas_log_ended_does_not_keep_it_out(
    alice: Ledger, carol: Ledger, lie: Lie
) -> None:
    pull(alice, carol)
    end = place_after(lines(carol))
    with weft.open(":memory:") as other:
        grow(other, "forged", "not carol's")
        forged = lines(other)
    longer = place_after([*lines(carol), *forged])
    lie(alice, hello_as(carol.replica), Batch(forged, longer))
    assert peers_of(alice) == [(carol.replica, end.n + len(forged))]
    grow(carol, "carol", "three")
    assert sync_patiently(alice, carol) == 1
    assert events(alice) == events(carol) >= set(forged)


def test_a_ledger_that_is_only_read_and_was_told_a_forged_log_keeps_nobody_out(alice: Ledger, carol: Ledger) -> None:
    """It cannot drop what it remembers under alice's name; alice passes over it from the second time on."""
    with weft.open(":memory:") as other:
        grow(other, "forged", "not alice's")
        forged = lines(other)
    push_from_liar(carol, hello_as(alice.replica, len(forged)), Batch(forged, place_after(forged)))

    def opens_read_only(address: str) -> Ledger:
        return weft.open(address, create=False, read_only=True)

    with pytest.raises(ReplicaDiverged, match="said something else once"):
        sync.pull(alice, carol.path, opens_read_only)
    for _ in range(2):
        grow(carol, "carol", "more")
        sync.pull(alice, carol.path, opens_read_only)
        assert events(carol) <= events(alice)
    assert problems(alice) == []


def test_a_peer_that_goes_by_our_own_name_is_refused_before_anything_is_sent(alice: Ledger, carol: Ledger) -> None:
    for lie in (pull_from_liar, push_from_liar):
        with pytest.raises(ReplicaDiverged, match="both ledgers go by"):
            lie(alice, hello_as(alice.replica), Batch(lines(carol), place_after(lines(carol))))
    assert peers_of(alice) == []


# --- events of a third replica ------------------------------------------------------------------------------------


def forged_move(ledger: Ledger) -> bytes:
    """A move of a ledger's session which says that the ledger wrote it."""
    last = [line for line in lines(ledger) if b'"kind":"session_moved"' in line][-1]
    return changed(last, prev=sha256(last).hexdigest(), ts="2027-01-01T00:00:00.000Z")


@WAYS
def test_a_forged_event_of_a_third_replica_keeps_it_out_of_nothing(alice: Ledger, carol: Ledger, lie: Lie) -> None:
    """Told to alice it is kept as what the liar told. Carol refuses it and takes everything else."""
    pull(alice, carol)
    forged = forged_move(carol)
    lie(alice, hello_as(LIAR), Batch([forged]))
    assert forged in events(alice)
    grow(alice, "alice", "after the forged one")
    grow(carol, "carol", "three")
    assert sync_patiently(carol, alice) == 1
    assert events(alice) - events(carol) == {forged}
    assert events(carol) <= events(alice)
    (refused,) = sync.refused_events(carol)
    assert (refused.event, refused.peer) == (sha256(forged).hexdigest(), alice.replica)
    assert queries(carol, "carol") == ["one", "two", "three"]
    grow(alice, "alice", "and later")
    assert sync_patiently(carol, alice, 0) == 0
    assert problems(alice) == problems(carol) == []


def test_many_forged_events_cost_a_ledger_no_more_than_three_refusals(alice: Ledger, carol: Ledger) -> None:
    pull(alice, carol)
    forged = [forged_move(carol)]
    for day in range(2, 30):
        forged.append(changed(forged[-1], prev=sha256(forged[-1]).hexdigest(), ts=f"2027-01-{day:02}T00:00:00.000Z"))
        lie = pull_from_liar if day % 2 else push_from_liar
        lie(alice, hello_as(LIAR), Batch(forged))
        grow(alice, f"session {day}", "between two forged ones")
    assert sync_patiently(carol, alice) <= 3
    assert events(alice) - events(carol) == set(forged)


@WAYS
def test_another_version_of_a_turn_is_noticed_and_keeps_nobody_out(alice: Ledger, carol: Ledger, lie: Lie) -> None:
    """The liar tells carol's turn to alice, changed, before carol does. Alice keeps what came first, says so, and takes
    the rest of what carol wrote."""
    run = [line for line in lines(carol) if stream_in(line).startswith("run:")]
    real = [line for line in run if stream_in(line) == stream_in(run[0])]
    twin = rechained(real, 0, ts="2027-01-01T00:00:00.000Z")
    lie(alice, hello_as(LIAR), Batch(twin))
    with pytest.raises(ReplicaDiverged, match=f"refused what replica {carol.replica} told: .*begins a second time"):
        pull(alice, carol)
    assert set(real).isdisjoint(events(alice))
    assert sync_patiently(alice, carol) <= 1
    assert sync_patiently(alice, carol, 0) == 0
    missing = events(carol) - events(alice)
    assert {sha256(line).hexdigest() for line in missing} == {event.event for event in sync.refused_events(alice)}
    grow(carol, "another", "nothing to do with it")
    assert sync_patiently(alice, carol, 0) == 0
    assert queries(alice, "another") == ["nothing to do with it"]
    assert problems(alice) == problems(carol) == []


def test_another_end_of_an_open_turn_is_noticed_and_keeps_nobody_out(alice: Ledger, carol: Ledger) -> None:
    run = [line for line in lines(carol) if stream_in(line).startswith("run:")]
    real = [line for line in run if stream_in(line) == stream_in(run[0])]
    push_from_liar(alice, hello_as(LIAR), Batch([lines(carol)[0], *real[:2]]))
    push_from_liar(alice, hello_as(LIAR), Batch(rechained(real, 2, ts="2027-01-01T00:00:00.000Z")))
    with pytest.raises(ReplicaDiverged, match=r"goes on from .* in another way"):
        pull(alice, carol)
    assert sync_patiently(alice, carol) <= 1
    assert sync_patiently(alice, carol, 0) == 0
    assert problems(alice) == problems(carol) == []


def test_what_was_refused_under_a_name_may_come_under_another(alice: Ledger, carol: Ledger) -> None:
    pull(alice, carol)
    forged = forged_move(carol)
    push_from_liar(alice, hello_as(LIAR), Batch([forged]))
    sync_patiently(carol, alice)
    path = carol.path
    sync.mark_as_copy(carol)
    carol.close()
    with weft.open(path) as renamed:
        assert sync.refused_events(renamed) == []
        pull(renamed, alice)
        assert forged in events(renamed)


# --- silence and endless talk -------------------------------------------------------------------------------------


def test_a_program_that_says_nothing_is_given_up_and_ended(alice: Ledger) -> None:
    words = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with pytest.raises(ConnectionCut, match=r"said nothing for 0\.2 seconds"):
        sync.pull(alice, f"cmd:{shlex.join(words)}", opens, silence_seconds=0.2)


SILENT_AFTER = """
import os, subprocess, sys, time
served, left = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE), int(sys.argv[1])
while left:
    left -= os.write(1, os.read(served.stdout.fileno(), left))
time.sleep(1000)
"""


def test_a_program_that_falls_silent_loses_nothing_and_the_next_pull_goes_on(alice: Ledger, carol: Ledger) -> None:
    grow(carol, "carol", *(shake_256(b"%d" % i).hexdigest(1000) for i in range(40)))
    serves = [sys.executable, "-m", "weft.surfaces.cli", "sync-stdio", "--ledger", carol.path]
    words = [sys.executable, "-c", SILENT_AFTER, "30000", *serves]
    with pytest.raises(ConnectionCut, match="said nothing for 2 seconds"):
        sync.pull(alice, f"cmd:{shlex.join(words)}", opens, silence_seconds=2)
    assert problems(alice) == []
    assert queries(alice, "alice") == ["what is here"]
    sync.pull(alice, f"cmd:{shlex.join(serves)}", opens)
    assert events(carol) <= events(alice)


def test_a_program_that_takes_nothing_in_is_given_up_and_ended() -> None:
    channel = start([sys.executable, "-c", "import time; time.sleep(1000)"], SystemClock(), 0.2)
    try:
        with pytest.raises(ConnectionCut, match=r"took nothing in for 0\.2 seconds"):
            channel.write(Frame(SyncFrameKind.OFFER, bytes(1 << 20)))
    finally:
        channel.close()


class Trickle:
    """A stream that gives one byte of a frame at a time, each after a minute."""

    def __init__(self, data: bytes, clock: FixedClock) -> None:
        self._left, self._clock = data, clock

    def read(self, most: int) -> bytes:
        self._clock.sleep(60)
        byte, self._left = self._left[:1], self._left[1:]
        return byte

    def write(self, data: bytes) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Nothing is open."""


def test_a_frame_that_comes_byte_by_byte_is_given_up() -> None:
    clock = FixedClock(0)
    stream = Trickle(PREAMBLE + encode(Frame(SyncFrameKind.OFFER, bytes(64_000))), clock)
    with pytest.raises(ConnectionCut, match="6 bytes and no whole frame in 300 seconds"):
        Channel(stream, clock).read()
    assert clock.monotonic() < 1000


@pytest.mark.parametrize(
    "frames",
    [
        [framed(SyncFrameKind.MARK, BatchEnd())],
        [framed(SyncFrameKind.MARK, BatchEnd(n=1, chain=JUNK))],
        ["known"],
        [Frame(SyncFrameKind.PULL)],
    ],
)
def test_small_frames_without_end_are_refused(alice: Ledger, frames: list[Frame | str]) -> None:
    known = Frame(SyncFrameKind.OFFER, b"".join(ids_of(lines(alice))))

    def endless() -> Talk[None]:
        yield from receive_frame(SyncFrameKind.PULL)
        yield from receive_frame(SyncFrameKind.LACK)
        for _ in range(10_000):
            for frame in frames:
                if isinstance(frame, str):
                    yield known
                    yield from receive_frame(SyncFrameKind.WANT)
                    yield framed(SyncFrameKind.MARK, BatchEnd())
                else:
                    yield frame
                yield from receive_frame(SyncFrameKind.TAKEN)
        raise AssertionError("nobody stopped it")

    with pytest.raises(ProtocolBroken):
        ask(alice, endless())


def test_contents_that_hold_nothing_are_refused(alice: Ledger, carol: Ledger) -> None:
    def endless() -> Talk[None]:
        yield from receive_frame(SyncFrameKind.PULL)
        yield from receive_frame(SyncFrameKind.LACK)
        yield Frame(SyncFrameKind.OFFER, b"".join(ids_of(lines(carol))))
        yield from receive_frame(SyncFrameKind.WANT)
        yield Frame(SyncFrameKind.EVENTS, b"\n".join(lines(carol)))
        yield from receive_frame(SyncFrameKind.NEED)
        for _ in range(10_000):
            yield Frame(SyncFrameKind.CONTENTS)
        raise AssertionError("nobody stopped it")

    before = events(alice)
    with pytest.raises(ProtocolBroken, match="CONTENTS holds none"):
        ask(alice, endless())
    assert events(alice) == before


def test_requests_without_end_are_refused(alice: Ledger) -> None:
    def endless() -> Talk[None]:
        yield framed(SyncFrameKind.HELLO, hello_as(LIAR))
        yield from receive_frame(SyncFrameKind.HELLO)
        yield from receive_frame(SyncFrameKind.KNOWN)
        yield framed(SyncFrameKind.KNOWN, KnownLog())
        for _ in range(10_000):
            yield Frame(SyncFrameKind.IMPORTS)
            yield from receive_frame(SyncFrameKind.IMPORTS)
        raise AssertionError("nobody stopped it")

    with pytest.raises(ProtocolBroken, match="requests in one conversation"):
        LocalConversation(SyncServer(store_of(alice), ServePermissions()).serve()).converse(endless())


def ask(here: Ledger, after_hello: Talk[None]) -> None:
    asking, wire = SyncClient(store_of(here)), Wire(stranger(after_hello, hello_as(LIAR)))
    wire.converse(asking.greeting())
    wire.converse(asking.pulling())


# --- which replica answers at an address --------------------------------------------------------------------------


def test_another_replica_at_an_address_is_refused_before_anything_is_taken(
    alice: Ledger, carol: Ledger, tmp_path: Path
) -> None:
    address, elsewhere = carol.path, str(tmp_path / "mallory.db")
    sync.pull(alice, address, opens)
    with weft.open(elsewhere) as forged:
        grow(forged, "forged", "not carol's")
        now = forged.replica

    def opens_another(_: str) -> Ledger:
        return opens(elsewhere)

    before = events(alice)
    for act in (sync.pull, sync.push, sync.share_imports):
        with pytest.raises(ReplicaDiverged, match=f"{now}; it was {carol.replica}") as refused:
            act(alice, address, opens_another)
        assert refused.value.action == "repin_remote"
    assert events(alice) == before
    with opens(elsewhere) as other:
        assert not events(other) & before
    assert sync.repin_remote(alice, address) == carol.replica
    sync.pull(alice, address, opens_another)
    assert sync.repin_remote(alice, address) == now


def test_a_replica_is_pinned_without_the_password_of_its_address(alice: Ledger) -> None:
    alice.trust.pin_replica("ssh://user@host/x.db", LIAR)
    assert sync.repin_remote(alice, "ssh://user:secret@host/x.db") == LIAR
    assert alice.trust.pinned_replica("ssh://user@host/x.db") is None


def test_a_pin_lasts_beyond_the_process_and_outside_of_the_ledger(carol: Ledger, tmp_path: Path) -> None:
    trust, here, elsewhere = TrustStore(tmp_path / "trust.json"), tmp_path / "here.db", tmp_path / "mallory.db"
    with weft.open(here, trust=trust) as ledger:
        sync.pull(ledger, carol.path, opens)
    assert carol.replica.encode() in trust.path.read_bytes()
    weft.open(elsewhere).close()
    with weft.open(here, trust=trust) as ledger, pytest.raises(ReplicaDiverged, match=f"it was {carol.replica}"):
        sync.pull(ledger, carol.path, lambda _: opens(str(elsewhere)))


def test_a_ledger_that_is_not_trusted_starts_no_program_opens_no_address_and_shares_no_secret(tmp_path: Path) -> None:
    def never(address: str) -> Ledger:
        raise AssertionError(address)

    weft.open(tmp_path / "strange.db").close()
    with weft.open(tmp_path / "strange.db", trust=TrustStore(tmp_path / "trust.json")) as ledger:
        for address in (f"cmd:touch {tmp_path / 'started'}", str(tmp_path / "other.db")):
            for act in (sync.pull, sync.push, sync.share_imports, sync.clone):
                with pytest.raises(NotTrusted):
                    act(ledger, address, never)
        wire = LocalConversation(
            SyncServer(store_of(ledger), ServePermissions(), partial(ledger.trust.ensure, "share")).serve()
        )
        with weft.open(":memory:") as other:
            asking = SyncClient(store_of(other))
            wire.converse(asking.greeting())
            with pytest.raises(NotTrusted):
                wire.converse(asking.sharing())
    assert not (tmp_path / "started").exists()


def test_a_copy_leaves_out_what_its_origin_refused(alice: Ledger, carol: Ledger, tmp_path: Path) -> None:
    """It goes on where its origin was, so what builds on a refused event comes to it as well."""
    pull(alice, carol)
    forged = forged_move(carol)
    push_from_liar(alice, hello_as(LIAR), Batch([forged]))
    sync_patiently(carol, alice)
    weft.copy(carol, tmp_path / "copy.db")
    grow(alice, "carol", "on top of the forged one")
    grow(alice, "alice", "and elsewhere")
    with weft.open(tmp_path / "copy.db") as copy:
        assert [event.event for event in sync.refused_events(copy)] == [sha256(forged).hexdigest()]
        assert sync_patiently(copy, alice, 0) == 0
        assert queries(copy, "alice") == ["what is here", "and elsewhere"]
        assert problems(copy) == []
