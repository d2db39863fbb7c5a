"""A disk that fails or fills up: the caller gets a typed error, nothing acknowledged is lost, and it heals by itself."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

import weft
from tests.faults.checks import assert_kept, assert_sound
from tests.faults.scenarios import Ack, ack, whole_turn
from tests.faults.sizes import Record, chance, sized
from tests.faults.tripwires import Half, WatchedVfs
from weft.kernel.ambient import SystemClock, system_random
from weft.kernel.errors import StoreError, StoreFailed
from weft.kernel.ulid import UlidSource
from weft.ledger.ledger import Ledger
from weft.store.owners import process_owner
from weft.store.sqlite import SqliteStore

FULL, SYNC_FAILS, WRITE_FAILS = apsw.SQLITE_FULL, apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_WRITE
Choice = Callable[[str, str], bool]


class Disk:
    """A disk that fails where and when it is told to."""

    def __init__(self) -> None:
        self._fails: Choice = lambda operation, file: False
        self._code, self._torn, self.failures = FULL, False, 0

    def fail(self, code: int, when: Choice, *, torn: bool = False) -> None:
        self._fails, self._code, self._torn, self.failures = when, code, torn, 0

    def heal(self) -> None:
        self._fails = lambda operation, file: False

    def watch(self, operation: str, file: str, half: Half) -> None:
        if self._fails(operation, file):
            self.failures += 1
            if half is not None and self._torn:
                half()
            raise apsw.exception_for(self._code)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    vfs = WatchedVfs("failing", disk.watch)
    yield disk
    vfs.unregister()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path, disk: Disk) -> Iterator[Ledger]:
    clock = SystemClock()
    store = SqliteStore(path, vfs="failing")
    made = Ledger(store, clock, UlidSource(clock.now_ms, system_random), owner=process_owner())
    made.record_turn(session="main", query="before", response="yes")
    yield made
    disk.heal()
    made.close()


def writes_to(suffix: str) -> Choice:
    return lambda operation, file: operation == "write" and file.endswith(suffix)


def syncs_of(suffix: str) -> Choice:
    return lambda operation, file: operation == "sync" and file.endswith(suffix)


def only(numbers: set[int], choice: Choice) -> Choice:
    """The first, second, … time that the choice fits, if it is one of these."""
    times = 0

    def chosen(operation: str, file: str) -> bool:
        nonlocal times
        times += choice(operation, file)
        return choice(operation, file) and times in numbers

    return chosen


def queries(ledger: Ledger) -> list[str]:
    return [message.text for message in ledger.thread("main").messages if message.role == "user"]


def assert_healthy(ledger: Ledger, asked: list[str]) -> None:
    """The session says exactly this, and goes on."""
    assert queries(ledger) == asked
    made = ledger.record_turn(session="main", query="after", response="yes")
    assert queries(ledger) == [*asked, "after"]
    assert_kept(ledger, [ack(made)])
    assert list(ledger.verify()) == []


@pytest.mark.parametrize(
    ("code", "when"),
    [(SYNC_FAILS, syncs_of("-wal")), (FULL, writes_to("-wal")), (WRITE_FAILS, writes_to("-wal"))],
    ids=["sync", "full", "write"],
)
def test_a_failing_disk_refuses_appends_lets_readers_go_on_and_heals(
    ledger: Ledger, disk: Disk, code: int, when: Choice
) -> None:
    disk.fail(code, when)
    for k in range(3):
        with pytest.raises(StoreFailed) as refused:
            ledger.record_turn(session="main", query=f"lost {k}", response="no")
        assert refused.value.hint
        assert queries(ledger) == ["before"]
    assert disk.failures >= 3
    disk.heal()
    assert_healthy(ledger, ["before"])


@pytest.mark.parametrize("torn", [False, True])
def test_a_disk_that_fills_up_at_any_write_of_an_append_keeps_none_of_it(
    ledger: Ledger, disk: Disk, torn: bool, record_property: Record
) -> None:
    asked, k, refused = ["before"], 0, True
    while refused:
        k += 1
        disk.fail(FULL, only({k}, writes_to("-wal")), torn=torn)
        try:
            list(whole_turn(ledger, k))
            refused = False
        except StoreFailed:
            disk.heal()
            assert queries(ledger) == asked
            assert list(ledger.verify(views=False)) == []
    disk.heal()
    assert k > 10
    assert_healthy(ledger, [*asked, f"query {k}"])
    record_property("measured", f"{k - 1} writes")


def test_a_sync_that_fails_once_is_never_taken_for_a_success(ledger: Ledger, disk: Disk, path: Path) -> None:
    disk.fail(SYNC_FAILS, only({1}, syncs_of("-wal")))
    with pytest.raises(StoreFailed):
        ledger.record_turn(session="main", query="lost", response="no")
    assert_healthy(ledger, ["before"])
    ledger.close()
    assert_sound(path)


def test_a_step_that_the_disk_refused_can_be_tried_again(ledger: Ledger, disk: Disk) -> None:
    turn = ledger.begin_turn(session="main")
    turn.message("step by step")
    disk.fail(FULL, writes_to("-wal"))
    with pytest.raises(StoreFailed):
        turn.request("m")
    disk.heal()
    turn.request("m")
    turn.response("yes")
    turn.finish()
    assert_healthy(ledger, ["before", "step by step"])


def test_a_stream_that_the_disk_refused_leaves_nothing(ledger: Ledger, disk: Disk) -> None:
    before = ledger.stats()
    disk.fail(FULL, only({300}, writes_to("-wal")))
    with pytest.raises(StoreFailed):
        ledger.put_content([b"x" * 1_000_000] * 3)
    disk.heal()
    assert ledger.stats() == before
    assert list(ledger.verify()) == []


def test_a_commit_shared_by_many_writers_fails_for_all_of_them_or_for_none(
    ledger: Ledger, disk: Disk, record_property: Record
) -> None:
    dice, writers, turns = chance("shared commits"), 8, sized(test=15, prove=200)
    kept: list[Ack] = []
    lost: list[str] = []
    guard = threading.Lock()

    def write(k: int) -> None:
        for i in range(turns):
            try:
                made = ack(ledger.record_turn(session=f"writer {k}", query=f"{k} {i}", response="yes"))
                with guard:
                    kept.append(made)
            except StoreFailed:
                with guard:
                    lost.append(f"{k} {i}")

    disk.fail(SYNC_FAILS, lambda operation, file: operation == "sync" and dice.random() < 0.3)
    with ThreadPoolExecutor(writers) as pool:
        assert list(pool.map(write, range(writers))) == [None] * writers
    disk.heal()
    assert lost
    assert len(kept) + len(lost) == writers * turns
    assert_kept(ledger, kept)
    found = [message.text for turn in ledger.log() for message in ledger.messages(turn.id)]
    assert not set(lost) & set(found)
    assert len(ledger.log()) == len(kept) + 1
    assert list(ledger.verify()) == []
    record_property("measured", f"{len(kept)} kept, {len(lost)} refused")


def test_a_checkpoint_that_fails_harms_no_append(ledger: Ledger, disk: Disk, path: Path) -> None:
    disk.fail(FULL, lambda operation, file: operation == "write" and file.endswith(".db"))
    big = ledger.record_turn(session="main", query="x" * 20_000_000, response="yes")
    small = ledger.record_turn(session="main", query="small", response="yes")
    assert disk.failures
    assert_kept(ledger, [ack(big), ack(small)])
    ledger.close()
    disk.heal()
    assert_sound(path, [ack(big), ack(small)])


def test_a_ledger_cannot_be_made_on_a_full_disk_and_can_once_there_is_room(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "new.db"
    for k in range(1, 100, 7):
        disk.fail(FULL, only(set(range(k, 10_000)), lambda operation, file: operation == "write"))
        with pytest.raises(StoreError):
            SqliteStore(path, vfs="failing")
        assert disk.failures
    disk.heal()
    SqliteStore(path, vfs="failing").close()
    assert_sound(path)


def test_a_backup_that_finds_no_room_leaves_no_file(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(weft.WeftError):
        ledger.backup(tmp_path / "no such folder" / "backup.db")
    assert_healthy(ledger, ["before"])
