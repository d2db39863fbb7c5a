"""The change feed, figures, backups, reading only, and streams of bytes in and out."""

import io
from pathlib import Path
from threading import Thread

import pytest

import weft
from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import exported, grow, problems, queries, texts
from tests.ledger.imported import native_call, native_turn, take
from tests.ledger.test_verifying import rich
from weft.kernel.contents import ROW_BYTES
from weft.kernel.errors import LedgerMissing, NotFound, ReadOnlyLedger, StoreError, Unsupported
from weft.ledger.api import AuditTally
from weft.ledger.api.ledger import Ledger
from weft.ledger.imports.imported_turns import NativeCompaction


def test_the_feed_has_every_event_once_in_order_of_arrival(ledger: Ledger) -> None:
    rich(ledger)
    found = list(ledger.changes())
    assert [change.n for change in found] == list(range(1, ledger.upkeep.stats()["events"] + 1))
    assert sum(len(ledger.events(turn.id)) for turn in ledger.log()) == sum(
        change.event.stream.startswith("run:") for change in found
    )


def test_the_feed_resumes_after_any_event(ledger: Ledger) -> None:
    rich(ledger)
    whole = list(ledger.changes())
    for after in (0, 1, 2, 7, len(whole) - 1, len(whole), len(whole) + 5):
        assert list(ledger.changes(after)) == whole[after:]


def test_a_reader_of_the_feed_sees_what_is_written_meanwhile(ledger: Ledger) -> None:
    grow(ledger, "main", "a")
    feed = ledger.changes()
    seen = [next(feed).n]
    grow(ledger, "main", *(f"{i}" for i in range(80)))
    seen += [change.n for change in feed]
    assert seen == list(range(1, ledger.upkeep.stats()["events"] + 1))


def test_a_reader_of_the_feed_can_wait(path: Path) -> None:
    with weft.open(path) as ours, weft.open(path) as theirs:
        writer = Thread(target=lambda: grow(ours, "main", "a"))
        writer.start()
        found = list(theirs.changes(0, wait=30))
        writer.join()
        assert found
        assert list(theirs.changes(theirs.upkeep.stats()["events"], wait=0.05)) == []


def test_figures_count_what_is_there(ledger: Ledger) -> None:
    empty = ledger.upkeep.stats()
    assert (empty["events"], empty["turns"], empty["log"], empty["deepest"]) == (0, 0, "00" * 32, 0)
    rich(ledger)
    stats = ledger.upkeep.stats()
    assert stats["replica"] == ledger.replica
    assert (stats["turns"], stats["sessions"], stats["compactions"]) == (7, 4, 1)
    assert (stats["trees"], stats["forks"], stats["deepest"], stats["tool_calls"]) == (2, 1, 6, 3)
    assert stats["turns_by_status"] == {"completed": 7}
    assert stats["total_tokens"] == 12
    assert stats["messages"] == sum(len(ledger.messages(turn.id)) for turn in ledger.log())
    assert stats["contents"] == exported(ledger).count(b'"ref"')
    ledger.labels.delete("alt")
    assert ledger.upkeep.stats()["sessions"] == 3


def test_figures_count_what_stands_and_superseded_turns_by_themselves(ledger: Ledger) -> None:
    root = native_turn("t1", started=1_000, end=1)
    for answer in ("this way", "that way"):
        second = native_turn("t2", answer, parent=0, calls=[native_call("c1")], offset=1, end=2)
        take(ledger, "main", root, second, reread=answer == "that way")
    stats = ledger.upkeep.stats()
    assert (stats["turns"], stats["superseded_turns"], stats["sessions"]) == (2, 1, 1)
    assert stats["messages"] == sum(len(ledger.messages(turn.id)) for turn in ledger.log())
    tally = AuditTally()
    assert list(ledger.audit.findings(tally=tally))
    assert stats["tool_calls"] == tally.calls == 1
    assert (stats["trees"], stats["forks"], stats["deepest"]) == (1, 0, 2)
    ledger.fork("main", label="fork")
    ledger.record_turn(session="main", query="on")
    ledger.record_turn(session="fork", query="elsewhere")
    stats = ledger.upkeep.stats()
    assert (stats["trees"], stats["forks"], stats["deepest"]) == (1, 1, 3)


def test_figures_do_not_count_a_compaction_that_was_superseded(ledger: Ledger) -> None:
    root = native_turn("t1", end=1)
    for words in ("all of it", "all of it, and more"):
        summary = native_turn("t2", words, parent=0, compaction=NativeCompaction(summary=words), offset=1, end=2)
        take(ledger, "main", root, summary, reread=words != "all of it")
    stats = ledger.upkeep.stats()
    assert (stats["turns"], stats["superseded_turns"], stats["compactions"]) == (2, 1, 1)


def test_a_backup_is_a_ledger_of_its_own(ledger: Ledger, tmp_path: Path) -> None:
    rich(ledger)
    target, steps = tmp_path / "backup.db", list[tuple[int, int]]()
    ledger.upkeep.backup(target, progress=lambda done, of: steps.append((done, of)))
    grow(ledger, "main", "after the backup")
    assert steps[-1][0] == steps[-1][1]
    with weft.open(target) as copy:
        assert copy.replica != ledger.replica
        assert queries(copy, "main") == queries(ledger, "main")[:-1]
        assert exported(ledger).startswith(exported(copy)[:100])
        assert problems(copy) == []
        grow(copy, "main", "its own way")
    with pytest.raises(StoreError, match="exists already"):
        ledger.upkeep.backup(target)


def test_a_ledger_in_memory_and_one_on_disk_tell_the_same_story(open_ledger: OpenLedger) -> None:
    disk, memory = open_ledger(), open_ledger(":memory:")
    for ledger in (disk, memory):
        rich(ledger)
    for name in ("main", "alt", "main@{1}", "alt@{1}"):
        assert texts(disk.thread(name).messages) == texts(memory.thread(name).messages)
        assert texts(disk.context(name).messages) == texts(memory.context(name).messages)
    ours, theirs = disk.upkeep.stats(), memory.upkeep.stats()
    assert {key: ours[key] for key in ours.keys() - {"replica", "log"}} == {
        key: theirs[key] for key in theirs.keys() - {"replica", "log"}
    }


def test_two_ledgers_in_memory_are_two_ledgers(open_ledger: OpenLedger) -> None:
    one, other = open_ledger(":memory:"), open_ledger(":memory:")
    grow(one, "main", "a")
    assert other.upkeep.stats()["events"] == 0
    assert one.replica != other.replica


def test_a_ledger_opened_for_reading_reads_everything_and_writes_nothing(open_ledger: OpenLedger, path: Path) -> None:
    writer = open_ledger()
    rich(writer)
    made = writer.record_turn(session="main", query="q", response="```py\nnot yet in the view\n```")
    before = sorted(file.name for file in path.parent.iterdir())
    reader = open_ledger(read_only=True)
    assert queries(reader, "main") == queries(writer, "main")
    assert reader.codeblocks(str(made.response_message_id)) == writer.codeblocks(str(made.response_message_id))
    assert reader.context(session="alt") == writer.context(session="alt")
    assert exported(reader) == exported(writer)
    assert problems(reader) == []
    for verb in (
        lambda: grow(reader, "main", "x"),
        lambda: reader.create_session("x"),
        lambda: reader.begin_turn(session="main"),
        lambda: reader.put_content(b"x"),
        reader.upkeep.rebuild,
    ):
        with pytest.raises(ReadOnlyLedger):
            verb()
    grow(writer, "main", "seen by the reader at once")
    assert queries(reader, "main")[-1] == "seen by the reader at once"
    assert sorted(file.name for file in path.parent.iterdir()) == before


@pytest.mark.parametrize("options", [{"read_only": True}, {"create": False}])
def test_a_ledger_that_is_not_there_is_not_made_by_looking(
    open_ledger: OpenLedger, path: Path, options: dict[str, bool]
) -> None:
    with pytest.raises(LedgerMissing):
        open_ledger(**options)
    assert list(path.parent.iterdir()) == []


def test_other_addresses_are_not_pretended(open_ledger: OpenLedger) -> None:
    with pytest.raises(Unsupported, match="mysql"):
        open_ledger("mysql://localhost/weft")


def test_a_closed_ledger_says_so(ledger: Ledger) -> None:
    grow(ledger, "main", "a")
    ledger.close()
    ledger.close()
    for verb in (lambda: grow(ledger, "main", "b"), lambda: ledger.session("main"), ledger.upkeep.stats):
        with pytest.raises(StoreError, match="closed"):
            verb()


@pytest.mark.parametrize("size", [0, 1, ROW_BYTES - 1, ROW_BYTES, ROW_BYTES + 1, 3 * ROW_BYTES + 5])
def test_bytes_stream_in_and_out(ledger: Ledger, size: int) -> None:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    for source in (data, io.BytesIO(data), (data[i : i + 100_000] for i in range(0, size, 100_000))):
        stored = ledger.put_content(source)
        assert stored.size == size
        pieces = list(ledger.read_content(stored.ref))
        assert b"".join(pieces) == data
        assert all(len(piece) <= ROW_BYTES for piece in pieces)
        ledger.upkeep.catch_up()
        assert list(ledger.read_content(stored.ref)) == pieces
    assert problems(ledger) == []
    assert len(exported(ledger).splitlines()) >= 3


def test_a_content_read_half_way_holds_nobody_up(ledger: Ledger) -> None:
    stored = ledger.put_content(b"x" * (3 * ROW_BYTES))
    pieces = ledger.read_content(stored.ref)
    assert next(pieces) == b"x" * ROW_BYTES
    others = [Thread(target=work, daemon=True) for work in (ledger.upkeep.stats, lambda: grow(ledger, "main", "a"))]
    for other in others:
        other.start()
    for other in others:
        other.join(300)
    assert not any(other.is_alive() for other in others)
    assert b"".join(pieces) == b"x" * (2 * ROW_BYTES)


def test_a_content_read_half_way_when_the_ledger_is_closed_ends_with_a_word(ledger: Ledger) -> None:
    pieces = ledger.read_content(ledger.put_content(b"x" * (3 * ROW_BYTES)).ref)
    next(pieces)
    ledger.close()
    with pytest.raises(StoreError, match="closed"):
        list(pieces)


@pytest.mark.parametrize("ref", ["0" * 64, "zz", "", "0" * 63])
def test_a_content_that_is_not_there_is_not_found(ledger: Ledger, ref: str) -> None:
    with pytest.raises(NotFound):
        list(ledger.read_content(ref))


def test_a_stream_that_breaks_leaves_nothing(ledger: Ledger) -> None:
    def broken() -> object:
        yield b"x" * (2 * ROW_BYTES)
        raise OSError("the wire broke")

    with pytest.raises(OSError, match="wire"):
        ledger.put_content(broken())
    assert ledger.upkeep.stats()["contents"] == 0
    assert problems(ledger) == []
