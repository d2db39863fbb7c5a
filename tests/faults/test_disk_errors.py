"""A disk that fails or fills up: callers get a typed error, nothing acknowledged is lost, and it heals by itself."""

import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

import weft
from tests.faults.checks import assert_kept, assert_sound
from tests.faults.processes import Say, run_well
from tests.faults.scenarios import Ack, ack, whole_turn
from tests.faults.tripwires import Half, WatchedVfs
from tests.sizes import Record, chance, sized
from weft.kernel.clock import SystemClock, UlidSource, system_random
from weft.kernel.errors import StoreFailed
from weft.ledger.api.ledger import Ledger
from weft.store.replicas import process_owner
from weft.store.sqlite import SqliteStore

FULL, SYNC_FAILS, WRITE_FAILS = apsw.SQLITE_FULL, apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_WRITE
ROOMS = (0, 100, 1_000, 4_096, 20_000, 100_000)  # bytes that a file may have: too few for a ledger
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


@contextmanager
def no_room(path: str, spare: int) -> Iterator[None]:
    """No file of this process grows beyond the ledger's largest one and a few bytes more."""
    largest = max(Path(f"{path}{suffix}").stat().st_size for suffix in ("", "-wal"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + spare, resource.RLIM_INFINITY))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def fill_up(say: Say, path: str) -> None:
    with weft.open(path) as ledger:
        kept, lost = [ack(ledger.record_turn(session="main", query="kept 0"))], list[str]()
        with no_room(path, 200_000):
            while len(lost) < 3:
                try:
                    kept.append(ack(ledger.record_turn(session="main", query=f"kept {len(kept)}", response="x" * 9000)))
                except StoreFailed:
                    lost.append(f"lost {len(lost)}")
                    assert len(queries(ledger)) == len(kept)
        for said in (kept, lost, ack(ledger.record_turn(session="main", query="later"))):
            say(said)


def close_without_room(say: Say, path: str) -> None:
    ledger = weft.open(path)
    say([ack(ledger.record_turn(session="main", query=f"{k}", response="x" * 9000)) for k in range(20)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    ledger.close()


def make_without_room(say: Say, path: str) -> None:
    refused = 0
    for room in ROOMS:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        try:
            weft.open(path).close()
        except StoreFailed:
            refused += 1
    say(refused)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with weft.open(path) as ledger:
        say(ack(ledger.record_turn(session="main", query="at last")))


def stream_without_room(say: Say, path: str) -> None:
    with weft.open(path) as ledger:
        for room in (100_000, 10_000_000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
            try:
                ledger.put_content(b"x" * 1_000_000 for _ in range(20))
            except StoreFailed:
                say("refused")
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        say(ledger.put_content(b"x" * 1_000_000 for _ in range(20)).size)


def back_up_without_room(say: Say, path: str) -> None:
    target = Path(path).with_name("backup.db")
    with weft.open(path) as ledger:
        ledger.record_turn(session="main", query="x" * 100_000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
        try:
            ledger.upkeep.backup(target)
        except StoreFailed:
            say("refused")
        assert not target.exists()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        ledger.upkeep.backup(target)
        say("made")


def assert_healthy(ledger: Ledger, asked: list[str]) -> None:
    """The session says exactly this, and goes on."""
    assert queries(ledger) == asked
    made = ledger.record_turn(session="main", query="after", response="yes")
    assert queries(ledger) == [*asked, "after"]
    assert_kept(ledger, [ack(made)])
    assert list(ledger.verify()) == []


@pytest.mark.usefixtures("turn_path")
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


@pytest.mark.usefixtures("turn_path")
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


@pytest.mark.usefixtures("turn_path")
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
    before = ledger.upkeep.stats()
    disk.fail(FULL, only({300}, writes_to("-wal")))
    with pytest.raises(StoreFailed):
        ledger.put_content([b"x" * 1_000_000] * 3)
    disk.heal()
    assert ledger.upkeep.stats() == before
    assert list(ledger.verify()) == []


def test_a_large_stream_that_finds_no_room_is_taken_once_there_is_some(path: Path) -> None:
    assert run_well(stream_without_room, str(path)) == ["refused", "refused", 20_000_000]
    assert_sound(path)


@pytest.mark.usefixtures("turn_path")
@pytest.mark.parametrize("run", range(sized(test=1, prove=20)))
def test_a_commit_shared_by_many_writers_fails_for_all_of_them_or_for_none(
    ledger: Ledger, disk: Disk, run: int, record_property: Record
) -> None:
    dice, writers, turns = chance("shared commits", run), 8, 15  # too few for a checkpoint, whose errors are ignored
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


@pytest.mark.usefixtures("turn_path")
def test_files_that_cannot_grow_refuse_appends_until_they_can(path: Path) -> None:
    first, refused, later = run_well(fill_up, str(path))
    assert refused == ["lost 0", "lost 1", "lost 2"]
    assert_sound(path, [*first, later])
    with weft.open(path) as ledger:
        assert queries(ledger) == [*(f"kept {k}" for k in range(len(first))), "later", "still there?"]


def test_a_checkpoint_that_finds_no_room_loses_nothing(path: Path) -> None:
    (acks,) = run_well(close_without_room, str(path))
    assert Path(f"{path}-wal").stat().st_size > 0
    assert_sound(path, acks)


def test_a_ledger_cannot_be_made_without_room_and_can_once_there_is_some(path: Path) -> None:
    refused, made = run_well(make_without_room, str(path))
    assert refused == len(ROOMS)
    assert_sound(path, [made])


def test_a_backup_that_finds_no_room_is_not_taken_for_one(path: Path) -> None:
    assert run_well(back_up_without_room, str(path)) == ["refused", "made"]
    assert_sound(path.with_name("backup.db"))
    assert not list(path.parent.glob("*.partial"))
