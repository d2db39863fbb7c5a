"""A clone that begins as a copy of the file is the one that would have been told every fact; and any other is told."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from shutil import copyfile
from typing import Any

import apsw
import pytest

import weft
from tests.descriptors import open_below
from tests.exchange.sync.conftest import NOON, Make
from tests.exchange.sync.test_syncing import assert_same, opens
from tests.exchange.sync.wire import events, heads, pull, push
from tests.ledger.histories import grow, large_bytes, problems
from tests.ledger.imported import rich_import
from tests.sizes import share
from weft.exchange import sync
from weft.exchange.sync import CopiedFacts, FileClone, Remote
from weft.kernel.clock import FixedClock
from weft.kernel.errors import Damaged, FactDamaged
from weft.ledger.api import store_of
from weft.ledger.api.ledger import Ledger
from weft.ledger.reports.usage_totals import TABLES
from weft.ledger.secrets.scan import MARK
from weft.ledger.upkeep import ledger_copy
from weft.ledger.upkeep.facts_file import export_lines, import_lines
from weft.ledger.upkeep.ledger_copy import OWN_WORD_TABLES, STATE_TABLES
from weft.ledger.upkeep.verify import VIEW_TABLES
from weft.programs import Programs
from weft.store.private_files import LedgerFile
from weft.store.replicas import CLONED, TrustStore
from weft.store.sqlite import connection as sqlite_connection

FACT_TABLES = ("log", "content", "content_part", "pack", "packed")
FILLED_TABLES = (
    "lookup_event", "lookup_content", "lookup_bytes", "passage", "arrival", "session_change", "local", "watermark",
)  # fmt: skip
"""What is filled after an append, and what is written anew row by row."""
TOTALS_TABLES = (
    *(name for table in TABLES for name in table.tables), "response_turn", "usage_cut", "usage_session",
)  # fmt: skip
COLUMNS = "label id status origin origin_session persona created_at head head_digest"


def plain(ledger: Ledger) -> None:
    """A little of all that a ledger can record that is cloned by its file."""
    grow(ledger, "main", "one", "two", persona="ann")
    ledger.fork("main~1", label="alt")
    grow(ledger, "alt", "three")
    ledger.record_turn(session="alt", tool_calls=[{"id": "c1", "name": "t", "status": "interrupted"}])
    ledger.record_late_result("alt", "c1", "at last")
    ledger.compactions.record(session="alt", summary="short")
    ledger.labels.add_alias("nick", "main")
    ledger.labels.rename("alt", "other")
    ledger.labels.archive("other")
    ledger.labels.delete(ledger.create_session("short-lived").id)
    ledger.record_turn(session="main", query=ledger.put_content(large_bytes(1_500_000)), response="noted")
    programs = Programs(ledger)
    programs.create("code", "tool", {"source": "mine"})
    programs.configure("tool", {"source": "newer"})
    rich_import(ledger)
    ledger.upkeep.pack(["main"])
    ledger.upkeep.catch_up()


def copied(
    source: Ledger, place: Path, *, secret: bool = True, trust: TrustStore | None = None, report: Any = None
) -> CopiedFacts | None:
    origin = Remote(name=sync.ORIGIN, address=source.path, shares_imports=secret)
    clone = FileClone(source, origin, report or (lambda stage, done, of: None), FixedClock(NOON))
    return clone.make_clone(place, trust)


@contextmanager
def cloned(source: Ledger, place: Path, *, secret: bool = True) -> Iterator[Ledger]:
    """As the command makes it: the file, then what is missing."""
    assert copied(source, place, secret=secret) is not None
    with weft.open(place, clock=FixedClock(NOON)) as ledger:
        assert sync.clone(ledger, source.path, opens, secret=secret).events == 0
        yield ledger


def rows(ledger: Ledger, query: str) -> list[Any]:
    with store_of(ledger).read() as txn:
        return list(txn.sql.fetch_rows(query))


def answers(ledger: Ledger) -> dict[str, Any]:
    """What people are shown."""
    return {
        "sessions": [[getattr(one, name, None) for name in COLUMNS.split()] for one in ledger.sessions(every=True)],
        "threads": {one.label: list(ledger.thread(one.id).messages) for one in ledger.sessions() if one.head},
        "search": [hit.turn_id for hit in ledger.search("one")],
        "heads": heads(ledger),
        "programs": [(one.name, one.foreign, one.version) for one in Programs(ledger).all("code")],
        "pending": len(Programs(ledger).pending()),
        "local": {key for (key,) in rows(ledger, "SELECT key FROM local")},
        "remote": rows(ledger, "SELECT name, address, sessions, shares_imports FROM remote"),
        "peer": rows(ledger, "SELECT replica, n, chain, seen, seen_chain FROM peer"),
        "came from": rows(ledger, "SELECT * FROM came_from"),
        "state": {name: len(rows(ledger, f"SELECT * FROM {name}")) for name in STATE_TABLES},
    }


@pytest.mark.parametrize("secret", share([True, False], test=1))
def test_a_copied_file_is_the_clone_that_would_have_been_told_every_fact(
    here: Ledger, make: Make, tmp_path: Path, secret: bool
) -> None:
    plain(here)
    slow = make("slow")
    sync.clone(slow, here.path, opens, secret=secret)
    slow.upkeep.catch_up()
    with cloned(here, tmp_path / "quick.db", secret=secret) as quick:
        assert_same(here, quick)  # its views are what its own facts say: `verify` makes them anew
        assert_same(slow, quick)
        assert answers(quick) == answers(slow)
        assert (quick.usage.lag(), quick.usage.report()) == (0, here.usage.report())
        assert len({repr(rows(one, "SELECT view FROM watermark ORDER BY view")) for one in (slow, quick)}) == 1
        secrets = [rows(one, "SELECT value FROM local WHERE key = 'import_secret'") for one in (here, slow, quick)]
        assert (secrets[0] == secrets[1], secrets[0] == secrets[2]) == (secret, secret)
        names = {store_of(one).replica for one in (here, slow, quick)}
        assert len(names) == 3
        assert quick.trust.pinned_replica(here.path) == here.replica


def test_every_table_is_a_fact_or_a_view_or_is_emptied(here: Ledger) -> None:
    """A new table is put where it belongs, or a clone would carry it."""
    named = rows(here, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'word%'")
    sorted_out = {*FACT_TABLES, *VIEW_TABLES, *FILLED_TABLES, *TOTALS_TABLES, *STATE_TABLES}
    assert {name for (name,) in named} - sorted_out == set()
    assert sorted_out - {name for (name,) in named} == set()
    assert set(OWN_WORD_TABLES) - {"came_from"} < VIEW_TABLES.keys()


def test_what_a_ledger_keeps_to_itself_stays_there(here: Ledger, tmp_path: Path) -> None:
    plain(here)
    drafts = f"nobody-saw-{'x' * 300}"

    def keep(txn: Any) -> None:
        txn.sql.run("INSERT INTO local(key, value) VALUES ('trust:token-of-theirs', '')")
        txn.sql.run("INSERT INTO watermark(view, n) VALUES (?, 3)", (MARK,))
        query = "INSERT INTO secret_ignored(fingerprint, ignored_at) VALUES (?, 1)"
        txn.sql.run_many(query, [(f"{drafts}{i}",) for i in range(500)])

    store_of(here).write(keep)
    query = "DELETE FROM secret_ignored WHERE fingerprint > ?"
    store_of(here).write(lambda txn: txn.sql.run(query, (f"{drafts}3",)))
    assert rows(here, "PRAGMA freelist_count") > [(10,)]
    with cloned(here, tmp_path / "quick.db") as quick:
        assert rows(quick, "SELECT * FROM secret_ignored") == []
        assert rows(quick, f"SELECT * FROM watermark WHERE view = '{MARK}'") == []
    lies = (tmp_path / "quick.db").read_bytes()
    assert b"nobody-saw-" not in lies
    assert b"token-of-theirs" not in lies
    assert b"nobody-saw-" in (tmp_path / "here.db").read_bytes() + (tmp_path / "here.db-wal").read_bytes()


def erased(ledger: Ledger, _: Make) -> None:
    ledger.erasure.erase(grow(ledger, "main", "forget this")[0], reason="asked to")


def substituted(ledger: Ledger, _: Make) -> None:
    ledger.substitute(grow(ledger, "main", "two")[0], "another answer")


def told_by_another(ledger: Ledger, make: Make) -> None:
    pull(ledger, other(make))


def other(make: Make) -> Ledger:
    ledger = make("other")
    grow(ledger, "elsewhere", "hello")
    return ledger


def given_up_a_name(ledger: Ledger, _: Make) -> None:
    grow(ledger, "main", "one")
    sync.mark_as_copy(ledger)


def brought_in(ledger: Ledger, make: Make) -> None:
    """Facts of another ledger that no sync noted."""
    import_lines(store_of(ledger), list(export_lines(store_of(other(make)))))


@pytest.mark.parametrize("before", [erased, substituted, told_by_another, given_up_a_name, brought_in])
def test_a_ledger_whose_views_go_by_who_wrote_what_is_told_fact_by_fact(
    here: Ledger, make: Make, tmp_path: Path, before: Callable[[Ledger, Make], None]
) -> None:
    grow(here, "main", "one")
    assert copied(here, tmp_path / "before.db") is not None
    before(here, make)
    assert copied(here, tmp_path / "quick.db") is None
    assert not list(tmp_path.glob("quick.db?*partial*"))
    assert not (tmp_path / "quick.db").exists()


class Untrusted:
    is_trusted = False


def test_only_a_trusted_ledger_in_a_file_is_copied_to_a_place_where_nothing_lies(
    here: Ledger, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(here, "main", "one")
    for end in ("", "-head", "-wal"):
        (tmp_path / f"taken.db{end}").write_bytes(b"")
        assert copied(here, tmp_path / "taken.db") is None
        (tmp_path / f"taken.db{end}").unlink()
    with weft.open(":memory:") as memory:
        assert copied(memory, tmp_path / "quick.db") is None
    monkeypatch.setattr(type(here), "trust", property(lambda _: Untrusted()))
    assert copied(here, tmp_path / "quick.db") is None


def test_a_ledger_on_a_server_is_told_fact_by_fact(make: Make, tmp_path: Path) -> None:
    there = make("there", "postgres")
    grow(there, "main", "one")
    assert copied(there, tmp_path / "quick.db") is None


@pytest.mark.parametrize(("stage", "is_quiet"), [("file", False), ("log", False), ("log", True)])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_copy_that_is_cut_leaves_nothing(
    here: Ledger, tmp_path: Path, stage: str, is_quiet: bool, error: BaseException
) -> None:
    plain(here)
    if is_quiet:
        assert store_of(here).empty_log()

    def cut(name: str, done: int, of: int) -> None:
        if name == stage:
            raise error

    with pytest.raises((KeyboardInterrupt, OSError)):
        copied(here, tmp_path / "quick.db", report=cut)
    assert {path.name for path in tmp_path.glob("quick*")} <= {"quick.db-lock"}
    with cloned(here, tmp_path / "quick.db") as quick:
        assert_same(here, quick)


def test_a_ledger_that_others_write_to_is_copied_as_it_was_at_one_moment(
    here: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where some of it lies in the log, SQLite copies the pages; else the file is copied, and later writes wait."""
    ways: list[bool] = []
    is_whole = sqlite_connection.is_whole_in_file

    def watched(file: LedgerFile) -> bool:
        ways.append(is_whole(file))
        return ways[-1]

    monkeypatch.setattr(sqlite_connection, "is_whole_in_file", watched)
    grow(here, "main", *(f"question {i}" for i in range(20)))
    with cloned(here, tmp_path / "busy.db") as quick:
        assert_same(here, quick)
    store_of(here).empty_log()
    said: list[int] = []

    def write(stage: str, done: int, of: int) -> None:
        if stage == "log" and not said:
            grow(here, "main", "meanwhile")
            said.append(store_of(here).empty_log(patience=0.1))

    before = events(here)
    assert copied(here, tmp_path / "quiet.db", report=write) is not None
    assert (ways, said) == ([False, True], [False])
    with weft.open(tmp_path / "quiet.db", clock=FixedClock(NOON)) as quick:
        assert (events(quick), problems(quick)) == (before, [])
        assert sync.clone(quick, here.path, opens).events == 6
        assert_same(here, quick)


def test_a_copied_clone_pulls_and_pushes_only_what_is_new(here: Ledger, tmp_path: Path) -> None:
    plain(here)
    with cloned(here, tmp_path / "quick.db") as quick:
        grow(quick, "mine", "hello")
        sent, wire = push(quick, here)
        assert (sent.events, sent.known) == (7, 0)
        assert wire.bytes < 6000
        grow(here, "theirs", "hello")
        assert pull(quick, here)[0].events == 7
        assert push(quick, here)[0].events == 0
        assert_same(here, quick)
        tips = {one.replica: len(events(one)) for one in (here, quick)}
        for one, other in ((here, quick), (quick, here)):
            assert rows(one, f"SELECT n FROM peer WHERE replica = '{other.replica}'") == [(tips[other.replica],)]


def test_a_full_disk_is_said_and_leaves_nothing(here: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(here, "main", "one")
    store_of(here).empty_log()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "quick.db.partial"))

    monkeypatch.setattr(sqlite_connection, "_move_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        copied(here, tmp_path / "quick.db")
    assert {path.name for path in tmp_path.glob("quick*")} == {"quick.db-lock"}


@pytest.mark.parametrize("is_quiet", [False, True])
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_what_a_killed_copy_left_beside_it_is_no_journal_of_the_next_one(
    here: Ledger, tmp_path: Path, mode: str, is_quiet: bool
) -> None:
    plain(here)
    if is_quiet:
        assert store_of(here).empty_log()
    leave_unfinished(tmp_path / "killed.db", tmp_path / "quick.db.partial", mode)
    assert len(list(tmp_path.glob("quick.db.partial-*"))) > 0
    with cloned(here, tmp_path / "quick.db") as quick:
        assert_same(here, quick)
    assert not list(tmp_path.glob("quick.db.partial*"))


def leave_unfinished(database: Path, aside: Path, mode: str) -> None:
    """Put beside a name what a process leaves that dies while it writes to a database."""
    with closing(apsw.Connection(str(database))) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}; PRAGMA cache_size = 1; CREATE TABLE t(bytes)").fetchall()
        connection.execute("INSERT INTO t VALUES (zeroblob(100000)); BEGIN").fetchall()
        connection.execute("UPDATE t SET bytes = randomblob(200000)").fetchall()
        for file in database.parent.glob(f"{database.name}*"):
            copyfile(file, f"{aside}{file.name.removeprefix(database.name)}")


def test_an_error_of_the_copy_names_it_and_not_the_source(
    here: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(here, "main", "one")

    def damage(copy: apsw.Connection) -> None:
        raise apsw.CorruptError("database disk image is malformed")

    monkeypatch.setattr(sqlite_connection, "_clear_free_pages", damage)
    with pytest.raises(Damaged, match=re.escape(str(tmp_path / "quick.db"))):
        copied(here, tmp_path / "quick.db")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a call")
def test_a_file_system_without_sendfile_is_read_and_written(
    here: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain(here)
    assert store_of(here).empty_log()

    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("weft.store.sqlite.connection.os.sendfile", refuse)
    with cloned(here, tmp_path / "quick.db") as quick:
        assert_same(here, quick)


def test_a_log_that_is_not_what_its_chain_says_is_not_cloned(here: Ledger, tmp_path: Path) -> None:
    grow(here, "main", "one", "two")
    store_of(here).write(lambda txn: txn.sql.run("UPDATE log SET chain = zeroblob(32) WHERE n = 7"))
    with pytest.raises(FactDamaged):
        copied(here, tmp_path / "quick.db")
    assert not (tmp_path / "quick.db").exists()


def test_a_copied_clone_is_trusted_before_it_has_its_name(here: Ledger, tmp_path: Path) -> None:
    grow(here, "main", "one")
    trust = TrustStore(tmp_path / "trusted.json", FixedClock(NOON))
    assert copied(here, tmp_path / "quick.db", trust=trust) is not None
    (known,) = trust.ledgers()
    assert (known.how, known.identity.place) == (CLONED, str(tmp_path / "quick.db"))
    with weft.open(tmp_path / "quick.db", trust=trust) as quick:
        assert quick.trust.is_trusted
        assert known.identity.replica == quick.replica


def test_a_ledger_that_nobody_writes_to_is_copied_as_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with weft.open(tmp_path / "here.db") as ledger:
        grow(ledger, "main", "one")
    monkeypatch.setattr(sqlite_connection, "_copy_pages", None)
    with weft.open(tmp_path / "here.db", read_only=True) as ledger:
        assert copied(ledger, tmp_path / "quick.db") is not None


def test_nothing_stays_open(tmp_path: Path) -> None:
    with weft.open(tmp_path / "here.db") as ledger:
        grow(ledger, "main", "one")
    with weft.open(tmp_path / "here.db", read_only=True) as ledger, weft.open(tmp_path / "here.db") as other:
        assert copied(ledger, tmp_path / "quick.db") is not None
        held = open_below(tmp_path)
        ledger.close()
        assert str(tmp_path / "here.db") in open_below(tmp_path), "closing it would take the other one's locks away"
        assert len(open_below(tmp_path)) < len(held)
        other.close()
        assert open_below(tmp_path) == []


def test_views_are_neither_computed_nor_contents_hashed_again(
    here: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work counts instead of a clock: the last events are hashed once, and none is decoded."""
    plain(here)
    hashed: list[int] = []

    def counting(line: bytes) -> Any:
        hashed.append(len(line))
        return sha256(line)

    count = len(events(here))
    monkeypatch.setattr(ledger_copy, "sha256", counting)
    monkeypatch.setattr("weft.ledger.views.projector.Projector.apply", None)
    monkeypatch.setattr("weft.kernel.contents.ContentHasher.feed", None)
    assert copied(here, tmp_path / "quick.db") is not None
    assert len(hashed) == count
    hashed.clear()
    monkeypatch.setattr(ledger_copy, "PROVEN_EVENTS", 10)
    assert copied(here, tmp_path / "long.db") is not None
    assert 10 <= len(hashed) < 30
