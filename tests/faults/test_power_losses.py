"""The power goes at any moment: what was acknowledged survives, whatever became of writes that were not yet synced.

The same harness must find losses where syncs are left out; otherwise it would prove nothing.
"""

import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import apsw
import pytest

import weft
from tests.faults.checks import assert_kept, assert_unbroken, kinds_after
from tests.faults.power import (
    PowerLoss,
    RecordedVfs,
    Recording,
    image_of,
    put_image,
    recorded_head_file,
    recorded_ledger_file,
)
from tests.faults.scenarios import SCENARIOS, Ack, ack, make_ledger
from tests.sizes import Record, chance, sized
from weft.kernel.clock import SystemClock, UlidSource, system_random
from weft.kernel.errors import LogCut, WeakDurability, WeftError
from weft.ledger.api.ledger import Ledger
from weft.store.replicas import NOBODY
from weft.store.sqlite import SqliteStore
from weft.store.sqlite import store as sqlite_store

PARTS = sized(test=1, prove=10)
RECORDINGS = sized(test=2, prove=20)
LOSSES = sized(test=8, prove=50)
WEAK_LOSSES = sized(test=10, prove=500)
ACTIONS = 10
OUTCOMES = ("kept", "refused", "damaged", "lost")
SWEPT = {"Interruption", "RunFinished"}  # how the next opener closes a turn that was left open
numbers = count()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints come after some dozens of pages, so that a short recording has several."""
    monkeypatch.setattr("weft.store.sqlite.connection.CHECKPOINT_PAGES", 60)


@contextmanager
def recorded(path: Path) -> Iterator[tuple[Recording, str]]:
    """While this lasts, stores opened with this VFS are written down."""
    recording = Recording(path)
    name = f"recorded {next(numbers)}"
    vfs = RecordedVfs(name, recording)
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sqlite_store, "HeadFile", recorded_head_file(recording))
            patched.setattr(sqlite_store, "LedgerFile", recorded_ledger_file(recording))
            yield recording, name
    finally:
        vfs.unregister()


def open_recorded(path: Path, vfs: str) -> Ledger:
    clock = SystemClock()
    return Ledger(SqliteStore(path, vfs=vfs), clock, UlidSource(clock.now_ms, system_random), owner=NOBODY)


def stream(ledger: Ledger, k: int) -> Iterator[Ack]:
    stored = ledger.put_content([f"{k}".encode() * 20_000, b"x" * 50_000])
    yield ack(ledger.record_turn(session="main", query=stored))


def at_once(ledger: Ledger, k: int) -> Iterator[Ack]:
    """Four callers who share commits."""
    made: list[Ack] = []
    threads = [
        threading.Thread(
            target=lambda n=n: made.append(ack(ledger.record_turn(session=f"{n}", query=f"{k}", response="yes")))
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield from made


def checkpoint(ledger: Ledger, vfs: str, dice: random.Random) -> None:
    """As another program might that has the file open."""
    connection = apsw.Connection(ledger.path, vfs=vfs)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_checkpoint({dice.choice(('PASSIVE', 'RESTART', 'TRUNCATE'))})").fetchall()
    connection.close()


ACTS: dict[str, Callable[[Ledger, int], Iterator[Ack | None]]] = {**SCENARIOS, "stream": stream, "at_once": at_once}
LIKELY = {"whole_turn": 8, "turn_by_steps": 4, "fork": 3, "compaction": 2, "stream": 2, "at_once": 3}
LIKELY |= {"large_content": 1, "checkpoint": 2, "reopen": 2}


def work(recording: Recording, vfs: str, dice: random.Random) -> None:
    """This and that, as an agent's programs would; each acknowledgement goes into the recording."""
    ledger = open_recorded(recording.path, vfs)
    for k in range(2):
        recording.tell(ack(ledger.record_turn(session="main", query=f"first {k}", response="yes")))
    for _ in range(ACTIONS):
        name = dice.choices([*LIKELY], [*LIKELY.values()])[0]
        if name == "reopen":
            ledger.close()
            ledger = open_recorded(recording.path, vfs)
        elif name == "checkpoint":
            checkpoint(ledger, vfs, dice)
        else:
            for made in ACTS[name](ledger, next(numbers)):
                recording.tell(made)
    ledger.close()


def log_of(path: Path) -> list[tuple[int, bytes]]:
    """Every append by its last arrival number, with the chain up to it."""
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    rows = [(int(n), bytes(chain)) for n, chain in connection.execute("SELECT n, chain FROM log ORDER BY n")]
    connection.close()
    return rows


def assert_survived(path: Path, loss: PowerLoss, promised: list[Ack], log: list[tuple[int, bytes]]) -> None:
    """It opens, nothing acknowledged is gone, whole appends are there or nothing of them, and it goes on."""
    with weft.open(path) as ledger:
        found = log_of(path)
        whole = [row for row in found if row in log]
        assert whole == log[: len(whole)]
        assert whole == found[: len(whole)]
        assert SWEPT.issuperset(kinds_after(ledger, whole[-1][0] if whole else 0)), "half of an append is there"
        assert_kept(ledger, [*promised, *loss.acks])
        assert list(ledger.verify()) == []
        made = ledger.record_turn(session="main", query="after the power loss", response="yes")
        assert_kept(ledger, [ack(made)])
        assert_unbroken(path)


@pytest.mark.slow("verifies a ledger after each of 16 power losses")
@pytest.mark.usefixtures("often", "turn_path")
@pytest.mark.parametrize("part", range(PARTS))
def test_a_power_loss_takes_nothing_that_was_acknowledged(quick_path: Path, part: int, record_property: Record) -> None:
    """Each recording goes on from what the last power loss of the one before left; every fourth makes a new ledger."""
    dice, source, target = chance("power", part), quick_path / "ledger.db", quick_path / "left" / "ledger.db"
    target.parent.mkdir()
    promised, acknowledged, losses = list[Ack](), 0, 0
    for n in range(RECORDINGS):
        if n % 4 == 0:
            promised = []
            put_image({}, source)
        with recorded(source) as (recording, vfs):
            work(recording, vfs, dice)
        log = log_of(source)
        for loss in recording.power_losses(LOSSES, dice):
            assert_survived(put_image(loss.image, target), loss, promised, log)
            losses, acknowledged = losses + 1, acknowledged + len(promised) + len(loss.acks)
        promised = [*promised, *loss.acks]
        put_image(image_of(target), source)
    assert losses == RECORDINGS * LOSSES
    record_property("measured", f"{losses} power losses, {acknowledged} acknowledged turns looked for")


@contextmanager
def weakened(synchronous: str) -> Iterator[None]:
    """The product asserts FULL; this is the only way around it."""

    def make_weak(connection: apsw.Connection) -> None:
        connection.execute(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}").fetchall()
        connection.wal_autocheckpoint(60)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sqlite_store, "make_durable", make_weak)
        yield


def outcome(path: Path, loss: PowerLoss) -> str:
    """What became of what was acknowledged, as the user is told."""
    try:
        with weft.open(path) as ledger:
            checks = (ledger.verify(facts=False, views=False, receipt=ack.receipt) for ack in loss.acks)
            return "lost" if any(True for problems in checks for _ in problems) else "kept"
    except LogCut:
        return "refused"
    except WeftError:
        return "damaged"


@pytest.mark.slow("opens a ledger after each of dozens of power losses")
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("weakness", ["NORMAL", "OFF", "a disk that lies"])
def test_the_same_power_losses_take_turns_where_syncs_are_missing(
    quick_path: Path, weakness: str, record_property: Record
) -> None:
    """And where the head file came through, opening says so."""
    dice, source, target = chance("weak", weakness), quick_path / "ledger.db", quick_path / "left" / "ledger.db"
    target.parent.mkdir()
    lies, found = weakness == "a disk that lies", Counter[str]()
    for _ in range(2):
        make_ledger(put_image({}, source)).close()
        with recorded(source) as (recording, vfs), weakened("FULL" if lies else weakness):
            work(recording, vfs, dice)
        for loss in recording.power_losses(WEAK_LOSSES, dice, lies=lies):
            told = outcome(put_image(loss.image, target), loss)
            found[told] += 1
            if weakness == "NORMAL":  # the others leave mixtures of pages, which are for verify to find
                assert not (told == "lost" and loss.heads_survived), "a loss that the head file knows of"
    assert found["lost"] + found["refused"] + found["damaged"] > 0, "this harness finds nothing, so it proves nothing"
    record_property(
        "measured", f"{found.total()} power losses: " + ", ".join(f"{found[told]} {told}" for told in OUTCOMES)
    )


def test_an_accepted_loss_stays_accepted_after_a_power_loss(quick_path: Path, record_property: Record) -> None:
    """The head file still names the replica that was given up: nobody cleared it on the disk itself."""
    path, target = quick_path / "ledger.db", quick_path / "left.db"
    make_ledger(path).close()
    shutil.copyfile(path, quick_path / "older.db")
    with weft.open(path) as ledger:
        ledger.record_turn(session="main", query="lost with the disk")
    shutil.copyfile(quick_path / "older.db", path)
    with recorded(path) as (recording, vfs):
        store = SqliteStore(path, vfs=vfs, accept_rollback=True)
        recording.tell(None)
        accepted = len(recording.steps)
        store.close()
    dice, refused = chance("accepted"), 0
    for moment in range(len(recording.steps) + 1):
        for _ in range(sized(test=1, prove=50)):
            put_image(recording.left_at(moment, dice), target)
            try:
                weft.open(target).close()
            except LogCut:
                refused += 1
                assert moment < accepted, "it was accepted, and is refused again"
    assert refused
    record_property("measured", f"{len(recording.steps) + 1} moments, refused again only before the answer")


def test_a_database_that_syncs_less_than_it_should_is_refused(tmp_path: Path) -> None:
    """Something between us and SQLite keeps the setting from taking effect."""

    def ignore(connection: apsw.Connection) -> None:
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.authorizer = lambda operation, name, value, *_: (
            apsw.SQLITE_IGNORE if (operation, name) == (apsw.SQLITE_PRAGMA, "synchronous") and value else apsw.SQLITE_OK
        )

    apsw.connection_hooks.append(ignore)
    try:
        with pytest.raises(WeakDurability) as refused:
            weft.open(tmp_path / "ledger.db")
    finally:
        apsw.connection_hooks.remove(ignore)
    assert (refused.value.setting, refused.value.found) == ("synchronous", "1")
