"""Everything that still verifies in a damaged file is in the new ledger, which verifies; nothing is invented."""

import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import orjson
import pytest

import weft
from tests.ledger.histories import exported, grow, import_into, problems
from tests.ledger.imported import rich_import
from tests.ledger.test_verifying import rich
from tests.sizes import chance, points, share, sized
from weft.kernel.errors import LedgerMissing, StoreError
from weft.ledger.api.ledger import Ledger
from weft.ledger.upkeep.ledger_copy import SalvageResult

PAGE = 4096
TREES, TURNS = sized(test=(6, 4), prove=(12, 6))
PARTS = 400
"""Of each kind of damage, with a random choice of its own."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed ledger with rows in every table, several trees, a large content and its head file."""
    path = tmp_path_factory.mktemp("whole") / "ledger.db"
    with weft.open(path) as ledger:
        rich(ledger)
        rich_import(ledger)
        for i in range(TREES):
            grow(ledger, f"tree {i}", *(f"question {i}.{k} " + "word " * 60 for k in range(TURNS)))
        big = ledger.put_content([bytes([i]) * 300_000 for i in range(5)])
        ledger.record_turn(session="big", response=big)
        ledger.upkeep.catch_up()
    return path


@pytest.fixture(scope="module")
def facts(whole: Path) -> set[bytes]:
    with weft.open(whole, read_only=True) as ledger:
        return set(exported(ledger).splitlines())


@pytest.fixture
def damaged(whole: Path, tmp_path: Path) -> Path:
    for file in whole.parent.glob("ledger.db*"):
        shutil.copy(file, tmp_path / file.name)
    return tmp_path / "ledger.db"


def hashes(path: Path) -> dict[str, str]:
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in path.parent.glob("ledger.db*")}


def save(damaged: Path, *others: Path) -> tuple[SalvageResult, Path]:
    before, new = hashes(damaged), damaged.parent / "new.db"
    saved = weft.salvage(damaged, new, others=others)
    assert hashes(damaged) == before
    return saved, new


def check(saved: SalvageResult, new: Path, facts: set[bytes]) -> set[bytes]:
    """It verifies, and all it has, and all that is left over, was written once."""
    with weft.open(new) as ledger:
        assert problems(ledger) == []
        kept = set(exported(ledger).splitlines())
        grow(ledger, "afterwards", "it goes on")
        assert problems(ledger) == []
    assert kept <= facts
    left = set() if saved.unplaced_file is None else set(Path(saved.unplaced_file).read_bytes().splitlines())
    assert left <= facts
    assert len(left) == saved.unplaced_events
    return kept | left


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.slow("the first to need a ledger with everything in it, which it saves")
def test_a_whole_file_is_saved_whole(damaged: Path, facts: set[bytes]) -> None:
    saved, new = save(damaged)
    assert saved.is_whole
    assert check(saved, new, facts) == facts


def test_so_is_one_whose_first_pages_are_gone(damaged: Path, facts: set[bytes]) -> None:
    """The header, the schema, and with them every root."""
    overwrite(damaged, 0, bytes(PAGE))
    with pytest.raises(StoreError):
        weft.open(damaged)
    saved, new = save(damaged)
    assert saved.is_whole
    assert check(saved, new, facts) == facts


def test_facts_that_are_only_in_the_log_are_saved(tmp_path: Path) -> None:
    path, state = tmp_path / "ledger.db", tmp_path / "killed"
    state.mkdir()
    with weft.open(path) as ledger:
        rich(ledger)
        for file in tmp_path.glob("ledger.db*"):
            shutil.copy(file, state / file.name)
        facts = set(exported(ledger).splitlines())
    overwrite(state / "ledger.db", 0, bytes((state / "ledger.db").stat().st_size))
    saved, new = save(state / "ledger.db")
    assert check(saved, new, facts) == facts


def test_what_was_never_committed_is_not_saved(tmp_path: Path) -> None:
    path, state = tmp_path / "ledger.db", tmp_path / "killed"
    state.mkdir()
    with weft.open(path) as ledger:
        grow(ledger, "main", "a", "b")
        for file in tmp_path.glob("ledger.db*"):
            shutil.copy(file, state / file.name)
        before = set(exported(ledger).splitlines())
    log = (state / "ledger.db-wal").read_bytes()
    frame = PAGE + 24
    frames = [log[at : at + frame] for at in range(32, len(log), frame)]
    last = max(i for i, one in enumerate(frames) if one[4:8] != bytes(4))
    frames[last] = frames[last][:4] + bytes(4) + frames[last][8:]
    (state / "ledger.db-wal").write_bytes(log[:32] + b"".join(frames))
    saved, new = save(state / "ledger.db")
    assert check(saved, new, before) < before


def cut(path: Path, part: int) -> None:
    size = path.stat().st_size
    os.truncate(path, size * (part % 10) // 10 + part)


def zero(path: Path, part: int) -> None:
    pages = path.stat().st_size // PAGE
    for page in chance("zero", part).sample(range(pages), 3):
        overwrite(path, page * PAGE, bytes(PAGE))


def flip(path: Path, part: int) -> None:
    random = chance("flip", part)
    data = bytearray(path.read_bytes())
    for _ in range(40):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def scramble(path: Path, part: int) -> None:
    random = chance("scramble", part)
    pages = path.stat().st_size // PAGE
    for page in random.sample(range(pages), pages // 4):
        overwrite(path, page * PAGE + random.randrange(PAGE // 2), random.randbytes(PAGE // 2))


DAMAGES = [(damage, part) for damage in (cut, zero, flip, scramble) for part in range(PARTS)]


@pytest.mark.parametrize(("damage", "part"), share(DAMAGES, test=2))
def test_what_still_verifies_is_saved_and_nothing_is_invented(
    damaged: Path, facts: set[bytes], damage: Callable[[Path, int], None], part: int
) -> None:
    damage(damaged, part)
    saved, new = save(damaged)
    kept = check(saved, new, facts)
    lost = facts - kept
    events = {line for line in lost if b'"event_id"' in line}
    numbers = sum(last - first + 1 for first, last in saved.lost_events)
    assert len(events) == numbers, "what is told to be lost is what is lost"


def readable(path: Path) -> set[bytes]:
    """The contents that SQLite itself still reads and that verify, row by row."""
    import apsw

    from weft.kernel.contents import content_ref

    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    found = set()
    try:
        for n in range(1, 2000):
            try:
                for ref, salt, data in connection.execute("SELECT ref, salt, bytes FROM content WHERE n = ?", (n,)):
                    if isinstance(data, bytes) and content_ref(salt, data) == ref:
                        found.add(bytes(ref))
            except apsw.Error:
                continue
    finally:
        connection.close()
    return found


@pytest.mark.parametrize("part", points(3, test=1))
def test_no_content_that_sqlite_can_still_read_is_left_behind(damaged: Path, part: int) -> None:
    zero(damaged, 100 + part)
    readable_before = readable(damaged)
    _, new = save(damaged)
    assert readable_before <= readable(new)


@pytest.mark.slow("saves a ledger with everything in it twice")
def test_an_older_copy_fills_the_holes(damaged: Path, whole: Path, facts: set[bytes], tmp_path: Path) -> None:
    scramble(damaged, 7)
    alone, _ = save(damaged)
    assert not alone.is_whole
    (tmp_path / "new.db").unlink()
    for file in tmp_path.glob("new.db*"):
        file.unlink()
    saved, new = save(damaged, whole)
    assert saved.lost_events == ()
    assert saved.unplaced_events == 0
    assert check(saved, new, facts) == facts


def test_what_had_no_place_is_taken_once_the_rest_turns_up(damaged: Path, whole: Path, facts: set[bytes]) -> None:
    def first_events(path: Path) -> None:
        data = path.read_bytes()
        for line in sorted(facts):
            value = orjson.loads(line)
            if value.get("kind") == "run_started":
                data = data.replace(line[len(b'{"event_id":"') + 66 :], b"x" * (len(line) - len(b'{"event_id":"') - 66))
                break
        path.write_bytes(data)

    first_events(damaged)
    saved, new = save(damaged)
    assert saved.unplaced_events > 0
    assert saved.unplaced_file is not None
    check(saved, new, facts)
    with weft.open(new) as ledger, weft.open(whole, read_only=True) as origin:
        import_into(ledger, exported(origin))
        import_into(ledger, Path(saved.unplaced_file).read_bytes())
        assert problems(ledger) == []
        assert facts <= set(exported(ledger).splitlines())


def test_imports_go_on_under_the_same_names(damaged: Path) -> None:
    saved, new = save(damaged)
    assert saved.is_whole

    def grown(ledger: Ledger) -> int:
        before = int(ledger.upkeep.stats()["events"])
        rich_import(ledger)
        return int(ledger.upkeep.stats()["events"]) - before

    with weft.open(damaged) as origin, weft.open(new) as made:
        assert grown(made) == grown(origin)


def test_packed_contents_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with weft.open(path) as ledger:
        for i in range(4):
            grow(ledger, f"tree {i}", *(f"question {i}.{k} " + "word " * 200 for k in range(8)))
        ledger.record_turn(session="big", response=ledger.put_content([b"large " * 100_000] * 3))
        packed = ledger.upkeep.pack(["tree 0", "tree 1", "big"])
        assert packed.contents > 0
        facts = set(exported(ledger).splitlines())
    overwrite(path, 0, bytes(PAGE))
    saved, new = save(path)
    assert saved.is_whole
    assert check(saved, new, facts) == facts


def test_what_was_erased_stays_erased_though_an_older_copy_has_it(tmp_path: Path) -> None:
    path, older = tmp_path / "ledger.db", tmp_path / "older.db"
    with weft.open(path) as ledger:
        grow(ledger, "main", "a secret canary", "kept")
        ledger.upkeep.backup(older)
        ledger.erasure.erase(ledger.resolve("main~1"), reason="asked for")
    _, new = save(path, older)
    assert b"canary" not in new.read_bytes()
    with weft.open(new) as ledger:
        assert problems(ledger) == []
        assert b"kept" in exported(ledger)


def test_nothing_is_overwritten(damaged: Path, tmp_path: Path) -> None:
    (tmp_path / "new.db").write_text("mine")
    with pytest.raises(StoreError):
        weft.salvage(damaged, tmp_path / "new.db")
    assert (tmp_path / "new.db").read_text() == "mine"
    with pytest.raises(LedgerMissing):
        weft.salvage(tmp_path / "none.db", tmp_path / "other.db")


def test_a_file_with_nothing_in_it_gives_an_empty_ledger(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(os.urandom(50_000))
    saved, new = save(tmp_path / "ledger.db")
    assert (saved.events, saved.contents) == (0, 0)
    with weft.open(new) as ledger:
        assert problems(ledger) == []
