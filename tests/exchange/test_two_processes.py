"""An import in two processes: the same ledger as one process makes, whatever happens to the worker or to the writer."""

import enum
import gc
import io
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from msgspec.structs import replace

import weft
from tests.exchange.contracts import TWO_PROCESSES, own_contracts
from tests.exchange.corpus import CORPUS, ORIGINS, aged, needs_corpus, opened
from tests.exchange.fixtures.claude_code.lines import Lines, use
from tests.exchange.worker_processes import assert_ends
from tests.sizes import PROVING, share
from weft import Ledger
from weft.exchange.importers.aider import Aider
from weft.exchange.importers.claude_code import ClaudeCode
from weft.exchange.importers.foreign_values import SOURCE_LIMITS
from weft.exchange.importers.port import Report, Source, Transcript, load_importers, registered_name
from weft.exchange.importers.testing import damage
from weft.exchange.importing import reading_ahead, run
from weft.exchange.importing.reading_ahead import (
    OpenedSource,
    ReadingEnd,
    SessionBegin,
    WorkerLost,
    pack,
    unpack,
    usable_cores,
)
from weft.exchange.importing.run import ImportRun, ImportStep, ImportSummary
from weft.exchange.importing.sources import SourceCandidate, digests, file_state
from weft.kernel.clock import FixedClock, SystemClock
from weft.kernel.contents import PreparedContent
from weft.kernel.enums import AgentRole, EventClass, TurnType
from weft.kernel.errors import InvalidInput
from weft.kernel.events import Event, RunStarted
from weft.kernel.foreign_input import ReadBudget
from weft.ledger.imports.imported_turns import (
    EncodedEvents,
    NativeCall,
    NativeSession,
    NativeTurn,
    PackedStretch,
    PreparedTurn,
    TurnDraft,
)
from weft.ledger.model import StoredContent
from weft.surfaces.cli.ledgers.import_job import _summary_notes

NOW = FixedClock(10**13)
FILES = 3
"""Of each origin."""
KILLED = """
import os, sys
from pathlib import Path
from weft.exchange.importers.port import load_importers
from weft.exchange.importing.run import ImportRun
from weft.kernel.clock import FixedClock
from tests.exchange.corpus import opened
from weft.ledger.imports.import_writer import ImportWriter

left, write = int(sys.argv[3]), ImportWriter._run
def killed(self, work, weight=0):
    global left
    left -= 1
    if left < 0:
        print(run._ahead.worker_pid, flush=True)
        os.kill(os.getpid(), 9)
    write(self, work, weight)
ImportWriter._run = killed
with opened(Path(sys.argv[1])) as ledger:
    run = ImportRun(ledger, load_importers("claude-code"), FixedClock(10**13), processes=2)
    run.run([Path(sys.argv[2])])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sessions of which one is longer than a frame, and one is a copy of another's beginning. To import them takes
    eight writes."""
    sources = tmp_path / "sources"
    sources.mkdir()
    for number in range(6):
        lines = Lines(f"s{number}")
        for k in range(80 if number == 4 else 9):
            lines = lines.user(f"p{number}-{k}", f"question {k} \\ud800 of {number} " + f"word{k} " * 300)
            lines = lines.answer(f"a{number}-{k}", use(f"c{number}-{k}")).result(f"r{number}-{k}", f"c{number}-{k}")
            lines = lines.answer(f"b{number}-{k}", "done")
        data = lines.bytes()
        aged(_written(sources / f"s{number}.jsonl", data), number)
    aged(_written(sources / "copy.jsonl", (sources / "s0.jsonl").read_bytes()[:20_000] + b'\n{"broken'), 9)
    return sources


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def imported(ledger: Ledger, place: Path | Sequence[Path], processes: int, **options: Any) -> ImportSummary:
    places = [place] if isinstance(place, Path) else place
    return ImportRun(ledger, load_importers(), NOW, processes=processes, **options).run(places)


def facts(ledger: Ledger) -> list[bytes]:
    out = io.BytesIO()
    ledger.upkeep.export_facts(out)
    return out.getvalue().splitlines()


@contextmanager
def pair(tmp_path: Path) -> Iterator[tuple[Ledger, Ledger]]:
    with opened(tmp_path / "one.db") as one, opened(tmp_path / "two.db") as two:
        yield one, two


def assert_alike(one: Ledger, two: Ledger) -> None:
    assert facts(one) == facts(two)
    columns = "SELECT name, origin, mapping, size, stamp, digest, open, kept FROM import_source ORDER BY name"
    with one._store.read() as first, two._store.read() as second:
        assert first.sql.fetch_rows(columns) == second.sql.fetch_rows(columns)
    assert list(two.verify()) == []


@pytest.mark.slow("starts a worker, and imports and verifies two ledgers")
def test_two_processes_make_the_ledger_that_one_makes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead: list[str] = []
    turn_frames: list[int] = []  # of each source
    transcripts, receive = reading_ahead.SourceAhead.transcripts, reading_ahead.WorkerProcess.frame

    def noted(source: reading_ahead.SourceAhead, *arguments: Any) -> Iterator[Transcript]:
        ahead.append(source.candidate.name)
        return transcripts(source, *arguments)

    def counted(worker: reading_ahead.WorkerProcess) -> tuple[reading_ahead.FrameKind, bytes]:
        kind, data = receive(worker)
        if kind is reading_ahead.FrameKind.OPENED:
            turn_frames.append(0)
        elif kind is reading_ahead.FrameKind.TURNS:
            turn_frames[-1] += 1
        return kind, data

    monkeypatch.setattr(reading_ahead.SourceAhead, "transcripts", noted)
    monkeypatch.setattr(reading_ahead.WorkerProcess, "frame", counted)
    with pair(tmp_path) as (one, two):
        assert imported(one, folder, 1) == imported(two, folder, 2)
        assert len(ahead) == len(list(folder.iterdir()))  # the worker read them all
        assert max(turn_frames) > 1
        assert_alike(one, two)
        assert [hit.turn_id for hit in one.search("word7")] == [hit.turn_id for hit in two.search("word7")]


@needs_corpus
@pytest.mark.parametrize("origin", share(ORIGINS, test=4))
def test_real_sessions_are_imported_alike(origin: str, tmp_path: Path) -> None:
    files = sorted(path for path in (CORPUS / origin).rglob("*") if path.is_file())
    places = [CORPUS / origin] if PROVING else share(files, test=FILES)
    with pair(tmp_path) as (one, two):
        assert imported(one, places, 1) == imported(two, places, 2)
        assert_alike(one, two)


@pytest.mark.slow("imports hundreds of samples twice")
def test_two_processes_import_samples_of_all_formats_alike(tmp_path: Path) -> None:
    """Sound and damaged ones, read for the first time and again. Formats whose samples need fixtures pass the test of
    the contract itself."""
    contracts = own_contracts()
    assert {contract.importer.origin for contract in contracts} == {importer.origin for importer in load_importers()}
    plain = [contract for contract in contracts if not callable(vars(contract).get(TWO_PROCESSES))]
    folder, origins = tmp_path / "samples", set[str]()
    for contract in share(plain, test=3):
        place = folder / f"{contract.__module__}.{contract.__name__}"
        place.mkdir(parents=True)
        damage(contract().samples(place))
        origins.add(contract.importer.origin)
    with pair(tmp_path) as (one, two):
        for _ in range(2):
            first, second = imported(one, folder, 1), imported(two, folder, 2)
            assert first == second
            assert all(first.of(origin).files for origin in origins)
            assert_alike(one, two)
            for path in folder.rglob("damaged-*"):
                path.unlink()


@pytest.mark.slow("starts a worker, and imports and verifies two ledgers")
@pytest.mark.parametrize("frames", share([0, 1, 2, 3, 5, 9, 14], test=2))
def test_a_worker_that_is_killed_is_not_missed(
    frames: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = frames
    receive = reading_ahead.WorkerProcess.frame

    def killed(worker: reading_ahead.WorkerProcess) -> Any:
        nonlocal left
        if left == 0:
            worker._process.kill()
            worker._process.wait()
            assert worker._process.stdout is not None
            while worker._process.stdout.read(65_536):  # or all the rest might lie in the pipe already
                pass
        left -= 1
        return receive(worker)

    monkeypatch.setattr(reading_ahead.WorkerProcess, "frame", killed)
    with pair(tmp_path) as (one, two):
        alone, helped = imported(one, folder, 1), imported(two, folder, 2)
        assert (alone.lost_worker, helped.lost_worker) == (None, "it ended by signal 9")
        assert replace(helped, lost_worker=None) == alone
        assert left < 0
        assert_alike(one, two)


@pytest.mark.slow("starts a process, and imports and verifies two ledgers")
def test_a_worker_that_cannot_begin_says_why(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_ahead, "_BEGIN", "raise OSError('no room')")
    with pair(tmp_path) as (one, two):
        alone, helped = imported(one, folder, 1), imported(two, folder, 2)
        assert helped.lost_worker == "it ended with code 1: OSError: no room"
        assert replace(helped, lost_worker=None) == alone
        assert_alike(one, two)
        (note,) = _summary_notes(ImportSummary(lost_worker=helped.lost_worker))
        assert note.endswith("read without it: it ended with code 1: OSError: no room")


@pytest.mark.slow("starts a process to be killed and imports three times")
@pytest.mark.parametrize("batches", share([0, 1, 3, 7], test=1))
def test_an_import_whose_writer_was_killed_is_run_again_and_leaves_no_worker(
    batches: int, folder: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "two.db"), str(folder), str(batches)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=False, cwd=Path(__file__).parents[2])
    assert ended.returncode == -signal.SIGKILL
    assert_ends(int(ended.stdout))
    with pair(tmp_path) as (one, two):
        imported(one, folder, 1)
        imported(two, folder, 2)
        assert {turn.id: turn.digest for turn in one.log()} == {turn.id: turn.digest for turn in two.log()}
        assert set(facts(one)) == set(facts(two))
        assert list(two.verify()) == []


@pytest.mark.slow("starts two workers, and verifies what they read")
def test_an_interrupted_import_leaves_no_worker(folder: Path, tmp_path: Path) -> None:
    with opened(tmp_path / "two.db") as ledger:
        importing = ImportRun(ledger, load_importers(), NOW, processes=2, progress=lambda step: interrupt(step.files))
        pids: list[int] = []

        def interrupt(files: int) -> None:
            if files == 2 and importing._ahead is not None:
                pids.append(importing._ahead.worker_pid or 0)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            importing.run([folder])
        assert len(pids) == 1
        with pytest.raises(ProcessLookupError):
            os.kill(pids[0], 0)
        again = imported(ledger, folder, 2)
        assert again.of("claude-code").unchanged == 2
        assert list(ledger.verify()) == []


@pytest.mark.slow("starts a worker, and imports 10 MB")
@pytest.mark.parametrize("number", share([signal.SIGKILL, signal.SIGTERM], test=1))
def test_what_a_worker_unpacked_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """It is ended while it has a member of an archive before it, of which more is read than may wait for the writer."""
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    lines = Lines("large")
    for k in range(32):
        lines = lines.user(f"p{k}", f"question {k} " + "word " * 60_000).answer(f"a{k}", "done")
    with zipfile.ZipFile(tmp_path / "sessions.zip", "w") as archive:
        archive.writestr("large.jsonl", lines.bytes())
    frame = reading_ahead.WorkerProcess.frame
    unpacked: list[str] = []

    def ended(worker: reading_ahead.WorkerProcess) -> tuple[reading_ahead.FrameKind, bytes]:
        got = frame(worker)
        if got[0] is reading_ahead.FrameKind.TURNS and not unpacked:
            os.kill(worker.pid, signal.SIGSTOP)
            unpacked.extend(str(path) for path in Path(worker._folder).rglob("*.jsonl"))
            os.kill(worker.pid, number)
            os.kill(worker.pid, signal.SIGCONT)
        return got

    monkeypatch.setattr(reading_ahead.WorkerProcess, "frame", ended)
    with opened(tmp_path / "two.db") as ledger:
        assert imported(ledger, tmp_path / "sessions.zip", 2).of("claude-code").counts.turns == 32
    assert unpacked
    assert list(room.iterdir()) == []


def test_without_room_for_what_a_worker_unpacks_all_is_read_here(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(**_: object) -> str:
        raise OSError("no room")

    monkeypatch.setattr(reading_ahead, "mkdtemp", no_room)
    with opened(tmp_path / "two.db") as ledger:
        assert imported(ledger, folder, 2).of("claude-code").counts.sessions > 3
    gc.collect()  # a file that was left open would be a warning


def test_nothing_of_the_environment_runs_in_the_worker(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, mark = tmp_path / "evil", tmp_path / "ran"
    place.mkdir()
    (place / "sitecustomize.py").write_text(f"open({str(mark)!r}, 'w').close()")
    monkeypatch.setenv("PYTHONPATH", str(place))
    with opened(tmp_path / "two.db") as ledger:
        assert imported(ledger, folder, 2).lost_worker is None
    assert not mark.exists()


@pytest.mark.slow("starts two workers, and imports and verifies two ledgers")
@pytest.mark.parametrize("year", share([9000, 1600], test=1))
def test_a_file_from_a_year_that_no_database_holds_is_imported(folder: Path, tmp_path: Path, year: int) -> None:
    seconds = int((year - 1970) * 365.25 * 86_400)
    try:
        os.utime(folder / "s1.jsonl", (seconds, seconds))
    except OverflowError:
        pytest.skip("the file system has no such year")
    with pair(tmp_path) as (one, two):
        assert imported(one, folder, 1) == imported(two, folder, 2)
        assert_alike(one, two)
        assert imported(two, folder, 2).of("claude-code").unchanged == len(list(folder.iterdir()))


@pytest.mark.slow("starts a worker, and imports and verifies two ledgers")
def test_a_source_that_changed_since_the_worker_read_it_is_read_as_it_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grown, rewritten or gone, after the worker has read it and before its turns are taken."""
    plans: list[ImportSummary] = []
    for number in (1, 2):
        place = tmp_path / f"{number}"
        place.mkdir()
        for path in folder.iterdir():
            target = place / path.name
            target.write_bytes(path.read_bytes())
            os.utime(target, ns=(path.stat().st_mtime_ns, path.stat().st_mtime_ns))
    with pair(tmp_path) as (one, two):
        for number, ledger in ((1, one), (2, two)):
            place = tmp_path / f"{number}"
            progress = partial(change, place)
            importing = ImportRun(ledger, load_importers(), NOW, processes=number, progress=progress)
            plans.append(importing.run([place]))

        def turns(ledger: Ledger) -> set[str]:
            return {turn.digest for turn in ledger.log()}

        assert turns(one) == turns(two)
        assert [p.what for p in plans[0].problems] == [p.what for p in plans[1].problems]
        assert plans[0].of("claude-code").counts == plans[1].of("claude-code").counts
        assert list(two.verify()) == []


def change(place: Path, step: ImportStep) -> None:
    """When so many files are done, by the latest first: copy, s5, s4, ..."""
    if step.files == 1:
        more = Lines("s4").user("new", "one more").answer("newer", "yes").bytes()
        (place / "s4.jsonl").write_bytes((place / "s4.jsonl").read_bytes() + more)
        (place / "s3.jsonl").write_bytes((place / "s3.jsonl").read_bytes().replace(b"question 3", b"question X"))
        (place / "s2.jsonl").unlink()


class Failing(ClaudeCode):
    """Cannot go on after some turns."""

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        raise ValueError("no")


def test_an_importer_that_another_process_cannot_load_is_used_here(folder: Path, tmp_path: Path) -> None:
    assert registered_name(Failing()) is None
    with opened(tmp_path / "ledger.db") as ledger:
        summary = ImportRun(ledger, [Failing()], NOW, processes=2).run([folder / "s1.jsonl"])
    assert [problem.what for problem in summary.problems] == ["the claude-code importer failed: ValueError: no"]


def test_what_exceeds_a_limit_is_told_alike(tmp_path: Path) -> None:
    source = tmp_path / "sources" / "s.jsonl"
    source.parent.mkdir()
    many = b'{"type":"user","uuid":"x","message":{"content":[' + b"1," * (4 * 1024 * 1024 + 9) + b"1]}}\n"
    source.write_bytes(Lines("s").user("p", "hi").answer("a", "yes").bytes() + many)
    aged(source)
    with pair(tmp_path) as (one, two):
        first, second = imported(one, source, 1), imported(two, source, 2)
        assert first.problems
        assert first == second
        assert_alike(one, two)


def test_what_the_worker_says_makes_records_and_nothing_else() -> None:
    turn = NativeTurn(key="k\ud800", records=())
    assert unpack(pack([turn])) == [turn]
    prepared = PreparedContent(b"said", b"", b"salt", b"ref", None)
    made = EncodedEvents((prepared,), (b"{}",), (b"id",))
    draft = TurnDraft("t", None, (None, None), "s", "f", made, made)
    stretch = PackedStretch(0, 4, b"packed")
    turn.prepared = PreparedTurn("digest", 4, (), None, (b"key",), draft, (stretch,), pack(()))
    assert unpack(pack([turn])) == [turn]
    started = RunStarted(stream="run:t", prev=None, actor="imported", turn_type=TurnType.NORMAL, role=AgentRole.UNIFIED)
    for strange in (b"", b"\x80\x05garbage", pack(os.getcwd), pack(Path("/")), pack(started)):
        with pytest.raises(WorkerLost):
            unpack(strange)


def classes_in(hint: Any, known: set[Any]) -> set[Any]:
    """Records and enumerations that a value of this type may hold."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct | enum.Enum) and hint not in known:
        known.add(hint)
        for inner in get_type_hints(hint).values() if issubclass(hint, msgspec.Struct) else ():
            classes_in(inner, known)
    for inner in get_args(hint):
        classes_in(inner, known)
    return known


def test_all_that_a_turn_may_hold_is_handed_over() -> None:
    records = (OpenedSource, SessionBegin, NativeSession, NativeTurn, ReadingEnd)
    held = set[Any]().union(*(classes_in(record, set()) for record in records))
    assert NativeCall in held
    left = {Event, EventClass, StoredContent}  # events go as lines, and no importer has a content of the ledger
    assert held - left <= set(reading_ahead._CLASSES)


def test_a_file_that_grew_since_it_was_opened_has_no_state(folder: Path) -> None:
    path = folder / "s1.jsonl"
    candidate = SourceCandidate(path, path.stat().st_size, path.stat().st_mtime_ns)
    with candidate.open(1e10, ReadBudget(SOURCE_LIMITS)) as source:
        assert file_state(source, candidate) is not None
        path.write_bytes(path.read_bytes() + b"\n")
        assert file_state(source, candidate) is None


@pytest.mark.slow("starts two workers")
def test_a_new_file_is_hashed_by_the_worker_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it was written to, or replaced, since the worker opened it; or was read before."""
    hashed: list[str] = []

    def noted(path: Path, size: int, start: int) -> tuple[bytes, bytes | None]:
        hashed.append(path.name)
        return digests(path, size, start)

    opened_by_worker = reading_ahead.SourceAhead.opened

    def touched(source: reading_ahead.SourceAhead) -> OpenedSource | None:
        found = opened_by_worker(source)
        if source.candidate.path.name == "s2.jsonl":
            os.utime(source.candidate.path, (1, 1))
        return found

    monkeypatch.setattr(run, "digests", noted)
    monkeypatch.setattr(reading_ahead.SourceAhead, "opened", touched)
    with opened(tmp_path / "two.db") as ledger:
        imported(ledger, folder, 2)
        assert hashed == ["s2.jsonl"]
        (folder / "s4.jsonl").write_bytes((folder / "s4.jsonl").read_bytes() + b"\n")
        imported(ledger, folder, 2)
        assert sorted(hashed) == ["s2.jsonl", "s2.jsonl", "s4.jsonl"]


@pytest.mark.parametrize(
    ("size", "cores", "expected"), share([(1, 2.0, False), (1 << 40, 1.0, False), (0, 2.0, True)], test=1)
)
def test_a_worker_is_started_where_it_helps(
    size: int, cores: float, expected: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`size`: what an import must have at least is so much more than this one."""
    held = sum(path.stat().st_size for path in folder.iterdir())
    monkeypatch.setattr(run, "TWO_PROCESSES_BYTES", held + size)
    monkeypatch.setattr(run, "usable_cores", lambda: cores)
    started: list[int] = []
    begin: Callable[..., None] = reading_ahead.WorkerProcess.__init__

    def noted(worker: reading_ahead.WorkerProcess) -> None:
        begin(worker)
        started.append(worker.pid)

    monkeypatch.setattr(reading_ahead.WorkerProcess, "__init__", noted)
    with opened(tmp_path / "ledger.db") as ledger:
        ImportRun(ledger, load_importers(), SystemClock()).run([folder])
    assert bool(started) is expected


@pytest.mark.slow("starts a worker, and imports and verifies two ledgers")
def test_the_first_sources_of_a_large_import_are_read_while_the_worker_starts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered: list[str] = []
    order = reading_ahead.WorkerProcess.order

    def noted(worker: reading_ahead.WorkerProcess, wanted: reading_ahead.ReadOrder) -> None:
        ordered.append(os.fsdecode(wanted.path))
        order(worker, wanted)

    monkeypatch.setattr(reading_ahead.WorkerProcess, "order", noted)
    latest = sorted(folder.iterdir(), key=lambda path: -path.stat().st_mtime)
    monkeypatch.setattr(run, "HEAD_START_BYTES", sum(path.stat().st_size for path in latest[:2]))
    with pair(tmp_path) as (one, two):
        monkeypatch.setattr(run, "TWO_PROCESSES_BYTES", 1)
        assert imported(one, folder, 1) == imported(two, folder, 2)
        assert ordered == [str(path) for path in latest[2:]]
        assert_alike(one, two)


@pytest.mark.parametrize(
    ("sizes", "left"),
    [((4, 8, 3), 1), ((10, 3), 1), ((4, 20, 3), 1), ((4, 21, 3), 2), ((21, 3), 2), ((4, 3), 0)],
)
def test_the_writer_reads_the_source_in_which_its_head_start_ends(
    sizes: tuple[int, ...], left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "HEAD_START_BYTES", 10)
    sources = [reading_ahead.WantedSource(SourceCandidate(Path("a"), size, 0), "toy", b"") for size in sizes]
    assert len(run._after_head_start(sources)) == left


def test_the_worker_starts_while_sources_are_looked_for_and_goes_with_a_plan_that_fails(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "TWO_PROCESSES_BYTES", 1)
    workers: list[reading_ahead.WorkerProcess] = []
    begin: Callable[..., None] = reading_ahead.WorkerProcess.__init__
    recognise = ImportRun.recognise

    def noted(worker: reading_ahead.WorkerProcess) -> None:
        workers.append(worker)
        begin(worker)

    def interrupted(importing: ImportRun, candidate: Any) -> Any:
        if workers:
            raise KeyboardInterrupt
        return recognise(importing, candidate)

    monkeypatch.setattr(reading_ahead.WorkerProcess, "__init__", noted)
    monkeypatch.setattr(ImportRun, "recognise", interrupted)
    with weft.open(tmp_path / "ledger.db") as ledger, pytest.raises(KeyboardInterrupt):
        imported(ledger, folder, 2)
    (worker,) = workers
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)
    assert not Path(worker._folder).exists()


def test_a_number_of_processes_is_one_or_two(tmp_path: Path) -> None:
    with weft.open(tmp_path / "ledger.db") as ledger, pytest.raises(InvalidInput):
        ImportRun(ledger, [], NOW, processes=3)


def test_cores_are_those_that_control_groups_allow(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n")
    inner = tmp_path / "groups" / "outer" / "inner"
    inner.mkdir(parents=True)
    plain = usable_cores(tmp_path / "groups", own)
    assert plain == len(os.sched_getaffinity(0))
    (inner / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path / "groups", own) == plain
    (inner.parent / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path / "groups", own) == 0.5
    assert usable_cores(tmp_path / "groups", tmp_path / "missing") == plain


def test_frames_wait_for_the_reader_within_a_bound() -> None:
    """Of more frames than fit, whoever puts them waits until some are read; they come in order."""
    reading, writing = os.pipe()
    frames = reading_ahead.FrameQueue(writing, lambda: None)
    piece = bytes(reading_ahead.QUEUE_BYTES // 2)
    sizes: list[int] = []

    def put() -> None:
        for number in range(8):
            frames.put(reading_ahead.FrameKind.RAW, bytes([number]) + piece)
            sizes.append(frames._size)

    thread = threading.Thread(target=put)
    thread.start()
    with open(reading, "rb") as pipe:
        received = [reading_ahead.receive_frame(pipe)[1][0] for _ in range(8)]
    thread.join()
    assert received == list(range(8))
    assert max(sizes) <= reading_ahead.QUEUE_BYTES
    os.close(writing)


def test_frames_wait_for_the_writer_in_the_pipe_too() -> None:
    reading, writing = os.pipe()
    frames = reading_ahead.FrameQueue(writing, lambda: None)
    assert not frames.has_unread_frames
    frames.put(reading_ahead.FrameKind.RAW, b"piece")
    assert frames.has_unread_frames
    with open(reading, "rb", buffering=0) as pipe:
        assert select.select([pipe], [], [], 60)[0]  # the frame has left the queue
        assert frames.has_unread_frames
        assert reading_ahead.receive_frame(pipe) == (reading_ahead.FrameKind.RAW, b"piece")
    os.close(writing)


def test_search_catches_up_while_the_worker_is_waited_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is stopped before it can say anything, and goes on once the writer uses the time."""
    begin, between = reading_ahead.WorkerProcess.__init__, ImportRun._index_between
    workers: list[int] = []
    lags: list[int] = []

    def stopped(worker: reading_ahead.WorkerProcess) -> None:
        begin(worker)
        workers.append(worker.pid)
        os.kill(worker.pid, signal.SIGSTOP)

    def index_between(importing: ImportRun, is_idle: bool) -> None:
        between(importing, is_idle)
        if is_idle and not lags:
            lags.append(ledger.upkeep.search_lag())
            os.kill(workers[0], signal.SIGCONT)

    monkeypatch.setattr(reading_ahead.WorkerProcess, "__init__", stopped)
    monkeypatch.setattr(ImportRun, "_index_between", index_between)
    monkeypatch.setattr(run, "SPARE_LAG_EVENTS", 0)
    with weft.open(tmp_path / "ledger.db") as ledger:
        ledger.record_turn(session="before", query="Is it indexed?")
        assert ledger.upkeep.search_lag() > 0
        ImportRun(ledger, load_importers(), NOW, processes=2).run([folder])
    assert lags == [0]


def test_an_importer_may_count_by_an_enumeration_of_its_own(tmp_path: Path) -> None:
    lines = ["# aider chat started at 2026-01-02 03:04:05", "", "#### hello", "", "Hello back.", ""]
    (tmp_path / ".aider.chat.history.md").write_text("\n".join(lines))
    with weft.open(tmp_path / "ledger.db") as ledger:
        summary = ImportRun(ledger, [Aider()], NOW, processes=2).run([tmp_path])
    assert (summary.lost_worker, summary.of("aider").counts.turns) == (None, 1)
