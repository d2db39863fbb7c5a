"""One run of an import: what is found, taken, passed over and reported."""

import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import zstandard

import weft
from tests.exchange.conftest import take, written
from tests.exchange.toy import Toy
from tests.sizes import sized
from weft import Ledger
from weft.exchange.importers.foreign_files import records
from weft.exchange.importers.port import Problem, Report, Source, importer_names, load_importers
from weft.exchange.importers.testing import as_source
from weft.exchange.importing.run import ImportRun, ImportStep
from weft.exchange.importing.sources import SourceCandidate
from weft.kernel.clock import SystemClock
from weft.kernel.errors import InvalidInput
from weft.ledger.imports import ImportWriter

SESSION = {"session": "s1", "title": "First"}
ONE = {"id": "t1", "ask": "hi", "answer": "yo", "at": 1_700_000_000_000}
TWO = {"id": "t2", "parent": "t1", "ask": "and?", "answer": "so", "at": 1_700_000_100_000}


def texts(ledger: Ledger, session: str = "s1") -> list[str]:
    return [message.text for message in ledger.thread(session).messages]


def facts(ledger: Ledger) -> bytes:
    out = io.BytesIO()
    ledger.upkeep.export_facts(out)
    return out.getvalue()


def test_a_folder_is_walked_and_only_its_sessions_are_taken(ledger: Ledger, sources: Path) -> None:
    written(sources / "deep" / "er" / "a.jsonl", SESSION, ONE)
    written(sources / "other.json", {"hello": "world"})
    written(sources / "a.part.json", {"session": "never read by itself"})
    written(sources / "notes.txt", SESSION)
    summary = take(ledger, sources)
    assert (summary.of("toy").files, len(summary.unrecognised), summary.problems) == (1, 1, [])
    assert texts(ledger) == ["hi", "yo"]
    assert ledger.session("s1").title == "First"


def test_importing_again_opens_nothing_and_writes_nothing(ledger: Ledger, sources: Path) -> None:
    written(sources / "a.jsonl", SESSION, ONE)
    take(ledger, sources)
    before = facts(ledger)
    again = take(ledger, sources).of("toy")
    assert (again.files, again.unchanged, again.records, again.counts.turns) == (1, 1, 0, 0)
    assert facts(ledger) == before


def test_a_file_that_has_not_changed_is_not_opened(
    ledger: Ledger, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(sources / "a.jsonl", SESSION, ONE)
    take(ledger, sources)

    def refuse(candidate: SourceCandidate, now: float) -> None:
        raise AssertionError(f"{candidate.name} was opened")

    monkeypatch.setattr(SourceCandidate, "open", refuse)
    assert take(ledger, sources).of("toy").unchanged == 1


def test_a_file_whose_time_alone_changed_is_not_read_again(ledger: Ledger, sources: Path) -> None:
    path = written(sources / "a.jsonl", SESSION, ONE)
    take(ledger, sources)
    os.utime(path, (1_100_000_000, 1_100_000_000))
    assert take(ledger, sources).of("toy").unchanged == 1


def test_a_file_that_has_grown_brings_what_is_new(ledger: Ledger, sources: Path) -> None:
    path = written(sources / "a.jsonl", SESSION, ONE)
    take(ledger, sources)
    written(path, SESSION, ONE, TWO, age=1)
    counts = take(ledger, sources).of("toy").counts
    assert (counts.turns, counts.known, counts.superseded) == (1, 1, 0)
    kept = ledger.imports.kept_sources(str(path))
    assert b"".join(part.data for part in kept) == path.read_bytes()
    assert [part.start for part in kept] == sorted(part.start for part in kept)


def test_a_file_that_was_rewritten_supersedes(ledger: Ledger, sources: Path) -> None:
    path = written(sources / "a.jsonl", SESSION, ONE, TWO)
    take(ledger, sources)
    written(path, SESSION, {**ONE, "answer": "REDACTED"}, TWO, age=1)
    assert take(ledger, sources).of("toy").counts.superseded == 2
    assert texts(ledger) == ["hi", "REDACTED", "and?", "so"]
    assert list(ledger.verify()) == []


def test_growing_step_by_step_ends_where_the_last_step_alone_does(tmp_path: Path, sources: Path) -> None:
    lines = [
        SESSION,
        ONE,
        TWO,
        {"id": "t3", "parent": "t1", "ask": "or?", "answer": "this", "calls": [{"id": "c", "name": "r"}]},
    ]
    stepwise, alone = weft.open(tmp_path / "steps.db"), weft.open(tmp_path / "alone.db")
    alone.imports.share_with(stepwise)
    for step in range(1, len(lines) + 1):
        written(sources / "a.jsonl", *lines[:step], age=step)
        take(stepwise, sources)
    take(alone, sources)
    assert {turn.id: turn.digest for turn in stepwise.log()} == {turn.id: turn.digest for turn in alone.log()}
    assert stepwise.session("s1").head == alone.session("s1").head


@pytest.mark.parametrize("packing", ["zst", "zip", "zst in zip"])
def test_archives_and_compressed_files(ledger: Ledger, sources: Path, packing: str) -> None:
    data = written(sources / "a.jsonl", SESSION, ONE).read_bytes()
    (sources / "a.jsonl").unlink()
    packed = zstandard.ZstdCompressor().compress(data)
    if packing == "zst":
        (sources / "a.jsonl.zst").write_bytes(packed)
    else:
        with zipfile.ZipFile(sources / "all.zip", "w") as archive:
            archive.writestr(
                "deep/a.jsonl.zst" if "zst" in packing else "deep/a.jsonl", packed if "zst" in packing else data
            )
    assert take(ledger, sources).of("toy").counts.turns == 1
    assert take(ledger, sources).of("toy").unchanged == 1


def test_a_broken_archive_is_reported_and_harms_nobody(ledger: Ledger, sources: Path) -> None:
    (sources / "a.zip").write_bytes(b"PK\x03\x04 no")
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(os.urandom(5_000)))
    packed[2_000] ^= 0xFF
    (sources / "b.jsonl.zst").write_bytes(packed)
    written(sources / "c.jsonl", SESSION, ONE)
    summary = take(ledger, sources)
    assert summary.of("toy").counts.turns == 1
    assert {Path(problem.source).name for problem in summary.problems} == {"a.zip", "b.jsonl.zst"}


def test_a_compressed_file_that_ends_too_early_is_taken_so_far_and_reported(ledger: Ledger, sources: Path) -> None:
    turns = [{"id": f"t{i}", "ask": os.urandom(3_000).hex(), "answer": "yes"} for i in range(90)]
    packed = zstandard.ZstdCompressor().compress(written(sources / "a.jsonl", SESSION, *turns).read_bytes())
    (sources / "a.jsonl").unlink()
    (sources / "a.jsonl.zst").write_bytes(packed[: len(packed) // 2])
    summary = take(ledger, sources)
    assert [problem.what.split(";")[0] for problem in summary.problems] == ["it ends too early"]
    assert 0 < summary.of("toy").counts.turns < 90


def test_every_frame_of_a_compressed_file_is_read(ledger: Ledger, sources: Path) -> None:
    packed = [zstandard.ZstdCompressor().compress(f"{json.dumps(line)}\n".encode()) for line in (SESSION, ONE, TWO)]
    (sources / "a.jsonl.zst").write_bytes(b"\x50\x2a\x4d\x18\x03\0\0\0abc".join(packed))
    assert take(ledger, sources).of("toy").counts.turns == 2


@pytest.mark.parametrize("damage", ["member", "name"])
def test_a_damaged_member_of_an_archive_harms_nobody(ledger: Ledger, sources: Path, damage: str) -> None:
    path = sources / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("\u00e9.jsonl", json.dumps(SESSION) * 50)
    data = path.read_bytes()
    unreadable, misnamed = data[:45] + b"\xff" * 12 + data[57:], data.replace(b"\xc3\xa9", b"\xff\xff")
    path.write_bytes(unreadable if damage == "member" else misnamed)
    written(sources / "c.jsonl", SESSION, ONE)
    summary = take(ledger, sources)
    assert summary.of("toy").counts.turns == 1
    assert [Path(problem.source).name for problem in summary.problems] == ["a.zip"]


def test_what_is_no_file_of_this_folder_is_not_followed(ledger: Ledger, sources: Path, tmp_path: Path) -> None:
    written(tmp_path / "elsewhere.jsonl", SESSION, ONE)
    (sources / "link.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    os.mkfifo(sources / "pipe.jsonl")
    written(sources / "real" / "a.jsonl", {"session": "s2"}, TWO)
    (sources / "within.jsonl").symlink_to(sources / "real" / "a.jsonl")
    summary = take(ledger, sources)
    assert {Path(problem.source).name for problem in summary.problems} == {"link.jsonl", "pipe.jsonl"}
    assert [session.label for session in ledger.sessions()] == ["s2"]


def test_a_file_with_a_name_that_is_no_text(ledger: Ledger, sources: Path) -> None:
    path = written(sources / "a.jsonl", SESSION, ONE)
    path.rename(os.fsdecode(os.fsencode(sources) + b"/\xff.jsonl"))
    assert take(ledger, sources).problems == []
    assert take(ledger, sources).of("toy").unchanged == 1


def test_an_importer_that_fails_to_recognise_harms_no_other_source(ledger: Ledger, sources: Path) -> None:
    class Clumsy(Toy):
        def recognises(self, source):  # type: ignore[no-untyped-def]
            return super().recognises(source) or 1 // (source.path.name != "a.jsonl")

    written(sources / "a.jsonl", {"other": 1})
    written(sources / "b.jsonl", SESSION, ONE)
    summary = ImportRun(ledger, [Clumsy()], SystemClock()).run([sources])
    assert len(summary.problems) == 1
    assert texts(ledger) == ["hi", "yo"]


@pytest.mark.parametrize("title", list("abcdef"))
def test_a_title_that_came_after_the_last_turn_counts(ledger: Ledger, sources: Path, title: str) -> None:
    path = written(sources / "a.jsonl", SESSION, ONE)
    take(ledger, sources)
    written(path, SESSION, ONE, {"session": "s1", "title": title}, age=1)
    take(ledger, sources)
    assert ledger.session("s1").title == title


def test_a_file_that_grows_while_others_are_read_is_kept_once(ledger: Ledger, sources: Path) -> None:
    path = written(sources / "a.jsonl", SESSION, ONE)
    take(ledger, sources, progress=lambda step: written(path, SESSION, ONE, TWO, age=1))
    written(path, SESSION, ONE, TWO, {"id": "t3", "parent": "t2", "ask": "more", "answer": "here"}, age=2)
    take(ledger, sources)
    assert b"".join(part.data for part in ledger.imports.kept_sources(str(path))) == path.read_bytes()


def test_an_import_that_was_cut_short_keeps_nothing_twice(
    ledger: Ledger, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"id": f"t{i}", "ask": f"q{i}" * 50, "answer": f"a{i}" * 200} for i in range(200)]
    path = written(sources / "a.jsonl", SESSION, *lines)
    with monkeypatch.context() as patch:
        patch.setattr(ImportWriter, "_write_session_sighting", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            take(ledger, sources)
    take(ledger, sources)
    assert b"".join(part.data for part in ledger.imports.kept_sources(str(path))) == path.read_bytes()


def being_written() -> dict[str, object]:
    """A turn that somebody adds to now."""
    return {**TWO, "open": True, "at": int(time.time() * 1000)}


def test_a_copy_of_an_old_session_is_not_being_written(ledger: Ledger, sources: Path) -> None:
    """Its file is new, and its records tell when they were written."""
    undated = {"id": "t9", "ask": "when?", "answer": "who knows", "open": True}
    for path in (
        written(sources / "a.jsonl", SESSION, ONE, {**TWO, "open": True}),
        written(sources / "b.jsonl", {"session": "s2"}, undated),
    ):
        os.utime(path)
    assert take(None, sources).of("toy").counts.open_turns == 1
    counts = take(ledger, sources).of("toy").counts
    assert (counts.turns, counts.open_turns) == (2, 1)
    assert texts(ledger) == ["hi", "yo", "and?", "so"]


def test_a_turn_left_open_shifts_no_other(ledger: Ledger, sources: Path) -> None:
    three = {"id": "t3", "parent": "t1", "ask": "or?", "answer": "this"}
    four, five = {**three, "id": "t4", "parent": "t3"}, {**three, "id": "t5", "parent": "t2"}
    path = written(sources / "a.jsonl", SESSION, ONE, being_written(), three, four, five)
    os.utime(path)
    summary = take(ledger, sources)
    assert (summary.problems, summary.of("toy").counts.open_turns) == ([], 2)
    assert {turn.native_id: turn.depth for turn in ledger.log()} == {"t1": 1, "t3": 2, "t4": 3}
    os.utime(path, (1_100_000_000, 1_100_000_000))
    take(ledger, sources)
    assert {turn.native_id: turn.depth for turn in ledger.log()} == {"t1": 1, "t2": 2, "t3": 2, "t4": 3, "t5": 3}


@pytest.mark.slow("reads a hundred thousand objects")
def test_objects_glued_into_one_long_line(sources: Path) -> None:
    """Each costs as much as it is long."""
    path = sources / "a.jsonl"
    path.write_bytes('{"é":1}\0'.encode() * 100_000)
    found = list(records(as_source(path), Report("a")))
    assert [(record.offset, record.end) for record in found] == [(i * 9, i * 9 + 8) for i in range(100_000)]


def test_what_cannot_be_read_is_reported_with_its_line(ledger: Ledger, sources: Path) -> None:
    written(sources / "a.jsonl", SESSION, "{nonsense\n", "[1]\n", ONE)
    summary = take(ledger, sources)
    assert [(problem.line, problem.what.split(":")[0][:8]) for problem in summary.problems] == [
        (2, "not JSON"),
        (3, "a JSON l"),
    ]
    assert texts(ledger) == ["hi", "yo"]


def test_an_importer_that_fails_harms_no_other_source(ledger: Ledger, sources: Path) -> None:
    class Clumsy(Toy):
        def read(self, source, report):  # type: ignore[no-untyped-def]
            if source.path.name == "a.jsonl":
                raise LookupError("oops")
            return super().read(source, report)

    written(sources / "a.jsonl", SESSION, ONE)
    written(sources / "b.jsonl", {"session": "s2"}, ONE)
    summary = ImportRun(ledger, [Clumsy()], SystemClock()).run([sources])
    assert [problem.what for problem in summary.problems] == ["the toy importer failed: LookupError: oops"]
    assert texts(ledger, "s2") == ["hi", "yo"]


CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}


class Blind(Toy):
    """Recognises nothing; to read a file it has to be forced."""

    def recognises(self, source: Source) -> bool:
        return False


@pytest.mark.parametrize("way", ["dry", "once", "follow"])
def test_a_forced_importer_that_makes_no_turn_of_anothers_file_writes_nothing(
    tmp_path: Path, sources: Path, way: str
) -> None:
    path = written(sources / "chat.json", CHAT)
    written(sources / "mine.jsonl", SESSION, ONE)
    with weft.open(tmp_path / "forced.db") as ledger:
        into, is_followed = None if way == "dry" else ledger, way == "follow"
        summary = ImportRun(into, [Toy()], SystemClock(), force=True, follow=is_followed).run([sources])
        what = "no turn could be read as toy: it looks like messages"
        assert summary.problems == [Problem(source=str(path), line=None, what=what)]
        assert (summary.mistaken, summary.of("toy").counts.sessions, summary.of("toy").counts.turns) == (
            {"messages"},
            1,
            1,
        )
        assert ledger.imports.kept_sources(str(path)) == []
        later = ImportRun(ledger, load_importers(), SystemClock()).run([path])
        assert (later.of("messages").unchanged, later.of("messages").counts.turns) == (0, 1)
        assert later.problems == []


def test_a_worker_that_reads_files_of_another_format_is_passed_over(ledger: Ledger, sources: Path) -> None:
    paths = [written(sources / name, CHAT) for name in ("a.json", "b.json", "c.json")]
    summary = ImportRun(ledger, load_importers("codex"), SystemClock(), force=True, processes=2).run([sources])
    assert {problem.source for problem in summary.problems} == {str(path) for path in paths}
    assert (summary.lost_worker, summary.of("codex").counts.sessions, list(ledger.sessions())) == (None, 0, [])


def test_a_forced_importer_reads_anothers_file_of_which_it_makes_turns(ledger: Ledger, sources: Path) -> None:
    path = written(sources / "chat.jsonl", {**SESSION, **CHAT}, {**ONE, **CHAT})
    assert ImportRun(None, load_importers(), SystemClock()).run([path]).of("messages").files == 1
    summary = ImportRun(ledger, [Blind()], SystemClock(), force=True).run([sources])
    assert (summary.problems, summary.mistaken, summary.of("toy").counts.turns) == ([], set(), 1)
    assert texts(ledger) == ["hi", "yo"]


def test_a_forced_importer_keeps_a_session_without_turns_that_nobody_else_recognises(
    ledger: Ledger, sources: Path
) -> None:
    written(sources / "a.jsonl", SESSION)
    summary = ImportRun(ledger, [Blind()], SystemClock(), force=True).run([sources])
    assert (summary.problems, summary.of("toy").counts.sessions) == ([], 1)


def test_another_importer_that_cannot_be_asked_does_not_stop_a_forced_one(
    ledger: Ledger, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.exchange.importing.run.load_importers", Mock(side_effect=ImportError("a plugin")))
    written(sources / "a.jsonl", SESSION, ONE)
    summary = ImportRun(ledger, [Toy()], SystemClock(), force=True).run([sources])
    assert (summary.problems, summary.of("toy").counts.turns) == ([], 1)


def test_every_file_that_was_met_is_counted(ledger: Ledger, sources: Path) -> None:
    written(sources / "a.jsonl", SESSION, ONE)
    written(sources / "b.json", {"hello": "world"})
    written(sources / "c.part.json", {"session": "never read by itself"})
    written(sources / "deep" / "d.png", "")
    with zipfile.ZipFile(sources / "e.zip", "w") as archive:
        archive.writestr("f.png", b"")
    with zipfile.ZipFile(sources / "g.zip", "w") as archive:
        archive.writestr("h.json", b"{}")
        archive.writestr("i.json", b"{}")
    assert take(ledger, sources).looked_at == 7


def test_a_tail_that_is_still_written_waits_until_it_is_quiet(ledger: Ledger, sources: Path) -> None:
    path = written(sources / "a.jsonl", SESSION, ONE, being_written())
    now = time.time()
    os.utime(path, (now, now))
    summary = take(ledger, sources)
    assert (summary.of("toy").counts.turns, summary.of("toy").counts.open_turns) == (1, 1)
    assert take(ledger, sources).of("toy").unchanged == 1
    os.utime(path, (now - 3_600, now - 3_600))
    assert take(ledger, sources).of("toy").counts.turns == 1
    assert texts(ledger) == ["hi", "yo", "and?", "so"]


def test_a_dry_run_reads_everything_and_needs_no_ledger(sources: Path) -> None:
    written(sources / "a.jsonl", SESSION, ONE, TWO)
    counts = take(None, sources).of("toy").counts
    assert (counts.sessions, counts.turns) == (1, 2)


def test_only_files_changed_since(ledger: Ledger, sources: Path) -> None:
    written(sources / "old.jsonl", SESSION, ONE)
    written(sources / "new.jsonl", {"session": "s2"}, TWO, age=1_000)
    assert take(ledger, sources, since=(1_000_000_000 + 500) * 1000).of("toy").files == 1


def test_progress_tells_files_bytes_sessions_and_turns(ledger: Ledger, sources: Path) -> None:
    written(sources / "a.jsonl", SESSION, ONE)
    written(sources / "b.jsonl", {"session": "s2"}, TWO)
    steps: list[ImportStep] = []
    take(ledger, sources, progress=steps.append)
    assert (steps[0].files, steps[0].of_files, steps[0].sessions) == (0, 2, 0)
    assert steps[-1].bytes == steps[-1].of_bytes
    assert (steps[-1].sessions, steps[-1].turns) == (2, 2)


KILLED = """
import sys
from pathlib import Path
import weft
from tests.exchange.conftest import take
from tests.exchange.toy import Toy
with weft.open(sys.argv[1]) as ledger:
    print("ready", flush=True)
    take(ledger, Path(sys.argv[2]))
"""


@pytest.mark.slow("kills three processes and verifies 1,200 turns")
def test_a_killed_import_is_simply_run_again(tmp_path: Path, sources: Path) -> None:
    turns = sized(test=200, prove=400)
    lines = [{"id": f"t{i}", "parent": f"t{i - 1}", "ask": f"q{i}" * 50, "answer": f"a{i}" * 200} for i in range(turns)]
    for name in "abcdef":
        written(
            sources / f"{name}.jsonl",
            {"session": name},
            *({**line, "id": f"{name}{line['id']}", "parent": f"{name}{line['parent']}"} for line in lines),
        )
    path = tmp_path / "ledger.db"
    weft.open(path).close()
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(path), str(sources)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        with weft.open(path, read_only=True) as watching:
            before = watching.upkeep.stats()["turns"]
            while child.poll() is None and watching.upkeep.stats()["turns"] <= before + 60:
                time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.communicate()
    with weft.open(path) as ledger:
        assert take(ledger, sources).problems == []
        assert ledger.upkeep.stats()["turns"] == 6 * turns
        assert ledger.upkeep.stats()["superseded_turns"] == 0
        assert list(ledger.verify()) == []


def test_every_importer_of_ours_is_a_plugin() -> None:
    assert {"claude-code", "codex", "opencode", "pi"} <= set(importer_names())
    assert [importer.origin for importer in load_importers("pi")] == ["pi"]
    with pytest.raises(InvalidInput, match="no importer"):
        load_importers("nobody")
