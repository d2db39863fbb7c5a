"""The doctor names what is wrong and what mends it, in whatever state a ledger is, and changes not a byte."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

import weft
from tests.conftest import NewPostgresLedger
from tests.ledger.conftest import NOON, OpenLedger
from tests.ledger.histories import change, exported, grow, import_into, problems
from tests.ledger.test_verifying import rich
from tests.postgres import shared_server
from tests.sizes import share
from weft.kernel.clock import FixedClock
from weft.kernel.errors import Damaged, LedgerMissing, StoreFailed
from weft.ledger.api.ledger import Ledger
from weft.ledger.secrets.scan import SecretTrace
from weft.store.port import Diagnosis, DiagnosisSeverity
from weft.store.postgres import PostgresStore
from weft.store.postgres.connection import parse_address
from weft.store.postgres.migrations import shipped_schema
from weft.store.sqlite import SqliteStore, examination
from weft.store.sqlite.examination import holders_of
from weft.store.sqlite.migrations import shipped_schema as shipped_file_schema
from weft.surfaces.wire.hints import phrase


def hashes(path: Path) -> dict[str, str]:
    """Of every file of the ledger."""
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in sorted(path.parent.glob("ledger.db*"))}


def examined(path: Path, clock: FixedClock, *, full: bool = False) -> list[Diagnosis]:
    """What the doctor says; that no file changes is checked every time."""
    before = hashes(path)
    found = list(weft.examine(path, full=full, clock=clock))
    assert hashes(path) == before
    assert all(
        one.mend and one.why for one in found if one.grade in (DiagnosisSeverity.ERROR, DiagnosisSeverity.WARNING)
    )
    return found


def bad(path: Path, clock: FixedClock, *, full: bool = False) -> list[str]:
    return [one.check for one in examined(path, clock, full=full) if one.grade is DiagnosisSeverity.ERROR]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "ledger.db"
    with weft.open(path, clock=FixedClock(NOON)) as ledger:
        rich(ledger)
    return path


@pytest.fixture
def closed(history: Path, path: Path) -> Path:
    """A ledger with a history, that nobody has open."""
    for file in history.parent.iterdir():
        shutil.copy(file, path.parent)
    return path


@pytest.mark.parametrize("full", [False, True])
def test_a_sound_ledger_is_well(closed: Path, clock: FixedClock, full: bool) -> None:
    found = examined(closed, clock, full=full)
    assert {one.grade for one in found} == {DiagnosisSeverity.GOOD}
    assert {one.check for one in found} >= {"schema", "structure", "head file", "facts", "views", "clock", "copy"}


def test_a_ledger_in_use_is_well_and_the_doctor_says_who_uses_it(disk: Ledger, path: Path, clock: FixedClock) -> None:
    rich(disk)
    found = list(weft.examine(path, clock=clock))
    assert not [one for one in found if one.grade in (DiagnosisSeverity.ERROR, DiagnosisSeverity.WARNING)]
    assert any(f"process {os.getpid()}" in one.what for one in found)
    grow(disk, "main", "and it goes on")


def test_a_ledger_that_was_looked_through_for_secrets_is_well(disk: Ledger, path: Path, clock: FixedClock) -> None:
    """That counts contents, of which there can be more than events."""
    calls = [{"name": f"tool {i}", "arguments": {"n": i}, "result": f"r{i}"} for i in range(8)]
    disk.record_turn(session="main", query="q", tool_calls=calls)
    disk.erasure.erase(disk.record_turn(session="main", query="gone").id, reason="why")
    disk.secrets.find(scanner=Blind())
    disk.close()
    with weft.open(path) as again:
        assert again.upkeep.stats()["contents"] > again.upkeep.stats()["events"]
    (found,) = (one for one in examined(path, clock) if one.check == "watermarks")
    assert found.grade is DiagnosisSeverity.GOOD
    assert "secrets" not in found.what
    assert found.what.startswith("these views catch up by themselves: ")
    change(path, "UPDATE watermark SET n = 99999 WHERE view = 'secrets'")
    (found,) = (one for one in examined(path, clock) if one.check == "watermarks")
    assert (found.grade, phrase(found.advice)) == (DiagnosisSeverity.ERROR, "weft secrets --all")


def test_a_session_that_another_ledger_moved_too_is_well(disk: Ledger, path: Path, clock: FixedClock) -> None:
    grow(disk, "main", "start")
    with weft.open(":memory:", clock=clock) as other:
        import_into(other, exported(disk))
        grow(other, "main", "there")
        grow(disk, "main", "here")
        import_into(disk, exported(other))
    assert disk.merges.branches("main")
    disk.close()
    assert bad(path, clock) == bad(path, clock, full=True) == []


class Blind:
    """A scanner that finds nothing."""

    rules = "none"

    def scan(self, data: bytes, key: bytes) -> list[SecretTrace]:
        return []

    def values(self, data: bytes, key: bytes) -> Iterator[tuple[str, str]]:
        return iter(())

    def kind(self, rule: str) -> str:
        return rule


def test_a_ledger_whose_writer_was_killed_is_read_with_its_log(disk: Ledger, path: Path, clock: FixedClock) -> None:
    grow(disk, "main", "in the log only")
    copy = path.parent / "other"
    copy.mkdir()
    for file in path.parent.glob("ledger.db*"):
        shutil.copy(file, copy / file.name)
    (copy / "ledger.db-shm").unlink()
    found = examined(copy / "ledger.db", clock, full=True)
    assert not [one for one in found if one.grade is DiagnosisSeverity.ERROR]
    assert not (copy / "ledger.db-shm").exists()


def test_a_writer_who_turns_up_meanwhile_is_not_taken_for_damage(
    closed: Path, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that nobody has open is read without locks, so pages may change while they are read."""
    sound = examination.ExaminedStore.check_quickly

    def disturbed(store: examination.ExaminedStore) -> list[str]:
        monkeypatch.setattr(examination.ExaminedStore, "check_quickly", sound)
        with weft.open(closed, clock=clock) as ledger:
            grow(ledger, "main", "meanwhile")
        return ["row 5 missing from index turn_id"]

    monkeypatch.setattr(examination.ExaminedStore, "check_quickly", disturbed)
    found = list(weft.examine(closed, clock=clock))
    assert [one for one in found if one.grade in (DiagnosisSeverity.ERROR, DiagnosisSeverity.WARNING)] == []
    assert "the engine finds nothing wrong" in [one.what for one in found]


def fault(name: str, path: Path) -> None:
    if name in CHANGES:
        change(path, CHANGES[name])
    elif name == "gone with its head":
        for file in path.parent.glob("ledger.db*"):
            file.unlink()
    elif name == "gone":
        path.unlink()
    elif name == "text":
        path.write_text("not a database at all")
    elif name == "header":
        overwrite(path, 0, bytes(16))
    elif name == "pages":
        overwrite(path, 8192, bytes(path.stat().st_size - 8192))
    else:
        os.truncate(path, {"empty": 0, "cut": path.stat().st_size // 2}[name])


CHANGES = {
    "version": "PRAGMA user_version = 999",
    "foreign": "PRAGMA application_id = 7",
    "view": "UPDATE session SET last_event = zeroblob(32)",
    "content": "UPDATE content SET bytes = CAST('x' AS BLOB)",
    "log": "UPDATE log SET chain = zeroblob(32)",
    "tail": "DELETE FROM log WHERE n > 30",
    "mark": "UPDATE watermark SET n = 99999",
    "stale": "INSERT INTO local VALUES ('views_stale', '1')",
    "older rules": "DELETE FROM local WHERE key = 'view_rules'",
    "table": "DROP TABLE message",
    "index": "DROP INDEX turn_role",
    "replica": "DELETE FROM local WHERE key = 'replica'",
    "words": "DELETE FROM word_data WHERE id > 10",
    "half a copy": "INSERT INTO local VALUES ('copying', 'x')",
}


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize(
    ("name", "check"),
    share(
        [
            ("gone", "file"),
            ("gone with its head", "file"),
            ("empty", "file"),
            ("text", "file"),
            ("header", "file"),
            ("version", "schema"),
            ("foreign", "database"),
            ("cut", "structure"),
            ("pages", "structure"),
            ("view", "views"),
            ("content", "facts"),
            ("log", "facts"),
            ("tail", "head file"),
            ("mark", "watermarks"),
            ("stale", "views"),
            ("older rules", "views"),
            ("table", "structure"),
            ("index", "structure"),
            ("replica", "database"),
            ("words", "structure"),
            ("half a copy", "copy"),
        ],
        test=7,
    ),
)
def test_a_fault_is_named_and_nothing_changes(closed: Path, clock: FixedClock, name: str, check: str) -> None:
    fault(name, closed)
    assert check in bad(closed, clock)
    assert bad(closed, clock, full=True)


@pytest.mark.parametrize("name", ["table", "index", "replica", "content", "log"])
def test_what_no_rebuild_mends_is_never_said_to_be_mended_by_one(closed: Path, clock: FixedClock, name: str) -> None:
    fault(name, closed)
    told = [
        one
        for one in examined(closed, clock, full=True)
        if one.grade is DiagnosisSeverity.ERROR and one.check != "views"
    ]
    assert told
    assert not [one for one in told if "rebuild" in phrase(one.advice)]
    assert any("weft recover --from" in phrase(one.advice) for one in told)


def test_a_content_that_is_gone_is_a_fact_that_is_gone(
    closed: Path, clock: FixedClock, open_ledger: OpenLedger
) -> None:
    change(closed, "DELETE FROM content WHERE n = (SELECT text FROM message LIMIT 1)")
    assert "views" in bad(closed, clock, full=True)
    open_ledger(closed).upkeep.rebuild()
    (found,) = (one for one in examined(closed, clock, full=True) if one.grade is DiagnosisSeverity.ERROR)
    assert "is not here" in found.what
    assert "backup" in found.mend


def test_an_index_of_words_that_cannot_be_read_is_made_anew(
    closed: Path, clock: FixedClock, open_ledger: OpenLedger
) -> None:
    with weft.open(closed, clock=clock, read_only=True) as sound:
        before = [message.text for message in sound.find_messages(role="user")]
    fault("words", closed)
    assert {phrase(one.advice) for one in examined(closed, clock) if one.check == "structure"} == {"weft rebuild"}
    ledger = open_ledger(closed)
    with pytest.raises(Damaged):
        ledger.find_messages(role="user")
    assert ledger.upkeep.rebuild()
    assert problems(ledger) == []
    assert [message.text for message in ledger.find_messages(role="user")] == before
    assert before


def test_what_is_no_file_or_may_not_be_read_is_told(tmp_path: Path, clock: FixedClock, closed: Path) -> None:
    assert [one.check for one in weft.examine(tmp_path, clock=clock)] == ["file"]
    if os.geteuid():
        closed.chmod(0)
        assert "file" in [one.check for one in weft.examine(closed, clock=clock)]
        closed.chmod(0o600)


@pytest.mark.parametrize("suffix", ["", "-lock", "-head"])
def test_a_file_beside_it_that_belongs_to_somebody_else_is_named(
    closed: Path, clock: FixedClock, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    theirs = f"{closed}{suffix}"
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != theirs or not mode & os.W_OK)
    (found,) = [one for one in examined(closed, clock) if one.grade is DiagnosisSeverity.WARNING]
    assert (found.check, found.what) == ("permissions", f"{theirs} may not be written")
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != theirs)
    assert ("file" in bad(closed, clock)) == (suffix != "-lock")


def test_a_path_that_cannot_be_looked_at_is_refused_in_words(tmp_path: Path, clock: FixedClock) -> None:
    path = tmp_path / ("x" * 300)
    assert [(one.grade, one.check) for one in weft.examine(path, clock=clock)] == [(DiagnosisSeverity.ERROR, "file")]
    for read_only in (False, True):
        with pytest.raises(StoreFailed, match="too long"):
            weft.open(path, clock=clock, read_only=read_only)
    with pytest.raises(LedgerMissing):
        weft.salvage(path, tmp_path / "saved.db")


def notes(path: Path, clock: FixedClock) -> str:
    return "\n".join(
        one.what for one in examined(path, clock) if one.grade in (DiagnosisSeverity.NOTE, DiagnosisSeverity.WARNING)
    )


def test_an_older_schema_is_told_before_it_is_upgraded(path: Path, clock: FixedClock) -> None:
    first = shipped_file_schema()
    SqliteStore(path, clock=clock, schema=replace(first, migrations=first.migrations[:-1], surface="")).close()
    found = [one for one in examined(path, clock) if one.check == "schema"]
    assert [one.grade for one in found] == [DiagnosisSeverity.WARNING]
    assert "backup" in found[0].why


def test_an_erasure_that_is_not_finished_is_told(closed: Path, clock: FixedClock) -> None:
    change(closed, "INSERT INTO local VALUES ('erasing', '7')")
    assert "an erasure is not finished" in notes(closed, clock)


def test_leftovers_are_listed_with_their_size(closed: Path, clock: FixedClock) -> None:
    Path(f"{closed}.partial").write_bytes(bytes(1234))
    Path(f"{closed}.schema-1.backup").write_bytes(bytes(99))
    assert "1,234 bytes" in notes(closed, clock)
    assert "before an upgrade" in notes(closed, clock)


def test_a_copy_says_that_it_is_one(disk: Ledger, tmp_path: Path, clock: FixedClock) -> None:
    grow(disk, "main", "a")
    disk.upkeep.backup(tmp_path / "copy.db")
    found = [one.what for one in weft.examine(tmp_path / "copy.db", clock=clock)]
    assert any("nobody has written to" in what for what in found)
    weft.open(tmp_path / "copy.db").close()
    assert any("1 other replica id" in one.what for one in weft.examine(tmp_path / "copy.db", clock=clock))


def test_a_missing_or_lagging_head_file_is_a_note(closed: Path, clock: FixedClock, open_ledger: OpenLedger) -> None:
    head = Path(f"{closed}-head")
    before = head.read_bytes()
    ledger = open_ledger()
    grow(ledger, "main", "later")
    ledger.close()
    head.write_bytes(before)
    assert "it knows of event" in notes(closed, clock)
    head.unlink()
    assert "there is none" in notes(closed, clock)


def test_events_from_the_future_are_told(disk: Ledger, path: Path, clock: FixedClock) -> None:
    now = clock.now_ms()
    clock.set(now + 10 * 86_400_000)
    grow(disk, "main", "tomorrow")
    disk.close()
    clock.set(now)
    assert [one.grade for one in examined(path, clock) if one.check == "clock"] == [DiagnosisSeverity.WARNING]


HOLDER = """
import os, signal, sys, weft
ledger = weft.open(sys.argv[1])
if sys.argv[2] == "turn":
    ledger.begin_turn(session="main").message("half")
else:
    ledger._store._exclusive().__enter__()
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def holder(path: Path, what: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path), what], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    os.waitpid(process.pid, os.WUNTRACED)
    return process


SERVED = {
    "DROP TABLE message CASCADE": ("structure", "message is missing"),
    "DROP TABLE log CASCADE": ("structure", '"log" does not exist'),
    "DROP INDEX turn_role": ("structure", "turn_role is missing"),
    "UPDATE weft_schema SET number = 999": ("database", "schema 999"),
    "DROP TABLE weft_schema": ("database", "not a Weft ledger"),
    "DELETE FROM local WHERE key = 'replica'": ("database", "lost its replica"),
    "INSERT INTO local VALUES ('copying', 'x')": ("copy", "not finished"),
    "UPDATE content SET bytes = 'x'": ("facts", "does not hash"),
}


@pytest.mark.parametrize("harm", share(list(SERVED), test=3))
def test_a_fault_of_a_ledger_in_a_server_is_named_with_what_to_do(
    clock: FixedClock, new_postgres_ledger: NewPostgresLedger, harm: str
) -> None:
    address = new_postgres_ledger()
    with weft.open(address, clock=clock) as ledger:
        grow(ledger, "main", "a", "b")
    assert {one.grade for one in weft.examine(address, clock=clock)} == {DiagnosisSeverity.GOOD}
    named = parse_address(address)
    with psycopg.connect(named.conninfo, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {named.quoted}")
        connection.execute(harm.encode())
    check, words = SERVED[harm]
    found = [one for one in weft.examine(address, clock=clock) if one.grade is DiagnosisSeverity.ERROR]
    assert [one for one in found if one.check == check and words in one.what and one.why and one.mend]
    assert not [one for one in found if "weft recover" in phrase(one.advice) and one.check in ("facts", "structure")]


def test_an_older_schema_in_a_server_is_told_before_it_is_upgraded(clock: FixedClock) -> None:
    address = shared_server().address()
    first = shipped_schema()
    older = replace(first, migrations=first.migrations[:-1], surface="")
    PostgresStore(address, clock=clock, schema=older).close()
    (found,) = [one for one in weft.examine(address, clock=clock) if one.check == "schema"]
    assert (found.grade, phrase(found.advice).split(",")[0]) == (DiagnosisSeverity.WARNING, "`weft backup` it")


@pytest.mark.parametrize(
    ("change", "mend"),
    [
        (("/postgres?", "/nothing?"), "createdb"),
        (("weft@", "nobody@"), "check the user"),
        (("host=", "host=/no"), "start it"),
    ],
)
def test_a_server_that_cannot_be_asked_is_a_finding(clock: FixedClock, change: tuple[str, str], mend: str) -> None:
    (found,) = weft.examine(shared_server().address().replace(*change), clock=clock)
    assert (found.grade, found.check) == (DiagnosisSeverity.ERROR, "database")
    assert mend in found.mend


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="this system does not tell who holds a lock")
def test_a_stopped_holder_of_the_lock_is_named(closed: Path, clock: FixedClock) -> None:
    process = holder(closed, "lock")
    try:
        found = [one for one in weft.examine(closed, clock=clock) if one.check == "lock"]
        assert [one.grade for one in found] == [DiagnosisSeverity.WARNING]
        assert str(process.pid) in found[0].what
        assert [one.pid for one in holders_of(Path(f"{closed}-lock")) or ()] == [process.pid]
    finally:
        process.kill()
        process.communicate()
    assert holders_of(Path(f"{closed}-lock")) == []


def test_a_turn_that_a_dead_writer_left_open_is_told_and_stays(closed: Path, clock: FixedClock) -> None:
    process = holder(closed, "turn")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "left open by a writer that is gone" in notes(closed, clock)
    assert "left open by a writer that is gone" in notes(closed, clock)


def test_a_long_log_is_told(disk: Ledger, path: Path, clock: FixedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "LONG_LOG_BYTES", 10)
    grow(disk, "main", "a")
    assert "log file" in [
        one.check for one in weft.examine(path, clock=clock) if one.grade is DiagnosisSeverity.WARNING
    ]


def test_little_room_is_told(closed: Path, clock: FixedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "LITTLE_ROOM", 1 << 62)
    assert "disk" in bad(closed, clock)


def test_a_ledger_on_a_network_file_system_is_told(
    closed: Path, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "file_system_of", lambda _: "nfs4")
    assert "file system" in bad(closed, clock)


def test_a_large_file_is_not_searched_unless_asked_for(
    closed: Path, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "QUICK_BYTES", 10)
    assert "not looked at" in notes(closed, clock)
