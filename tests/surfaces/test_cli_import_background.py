"""A large home the first time: what is found, in the background, stopped and gone on with."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import weft as library
from tests.surfaces.shell import Shell, running
from tests.surfaces.test_cli_import import SESSION, line
from weft.exchange.importing.run import ImportStep
from weft.kernel.clock import FixedClock, SystemClock
from weft.surfaces.cli.ledgers.import_job import ImportJob, ImportWork, Order, start, time_text
from weft.verbs.exchange_answers import ImportStatus

LONG_AGO = 1_000_000_000
HOLD = """
import sys
from weft.surfaces.cli.ledgers.import_job import ImportJob
from weft.verbs.exchange_answers import ImportStatus
with ImportJob(sys.argv[1]).held():
    print("held", flush=True)
    input()
"""


@pytest.fixture
def home(folder: Path) -> Path:
    """Sessions of Claude Code, one a day."""
    for day in range(20):
        name = f"0a1b2c3d-{day:04d}-4111-8111-000000000001"
        path = folder.parent / "home" / ".claude" / "projects" / "-home-dev-shop" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        said = line(f"u{day}", None, "user", f"question {day}") + line(f"a{day}", f"u{day}", "assistant", "answer")
        path.write_text(said.replace(SESSION, name))
        os.utime(path, (LONG_AGO + 86_400 * day, LONG_AGO + 86_400 * day))
    return folder.parent / "home"


def ended(shell: Shell) -> dict[str, object]:
    """Its last word. The lock is given back when the process ends, so taking it is waiting."""
    job = ImportJob(str(shell.folder / ".weft" / "ledger.db"))
    while job.is_held():
        SystemClock().sleep(0.02)
    status: dict[str, object] = json.loads(shell("import", "--status", "--json").out)
    return status


def test_what_lies_where_is_told_without_reading_it(shell: Shell, home: Path) -> None:
    answer = shell("import", "--discover")
    assert answer.code == 0
    origin, files, size, newest, path = answer.out.rstrip("\n").split("\t")
    assert (origin, files) == ("claude-code", "20")
    assert path == str(home / ".claude" / "projects")
    assert int(size) == sum(file.stat().st_size for file in home.rglob("*.jsonl"))
    assert newest.startswith("2001-09-28")
    assert "a few seconds" in answer.err
    found = {each["path"]: each for each in shell.json("import", "--discover")}
    assert found[path]["files"] == 20
    assert not found[str(home / ".codex" / "sessions")]["exists"]
    assert not (home / ".local").exists()


@pytest.mark.parametrize("how", [(), ("--discover",)])
def test_where_nothing_is_found_it_is_told_where_one_looked(shell: Shell, how: tuple[str, ...]) -> None:
    answer = shell("import", *how)
    assert answer.code == 0
    assert "nothing found" in answer.err
    assert "  ~/.claude/projects  (claude-code)" in answer.err.splitlines()
    assert "  ~/.codex/sessions  (codex)" in answer.err.splitlines()


def test_an_import_of_the_usual_places_tells_first_what_it_will_read(weft: Shell, home: Path) -> None:
    answer = weft("import")
    assert "20 files" in answer.err
    assert "to read: a few seconds, the latest first" in answer.err
    assert "to read" not in weft("import").err


def test_the_latest_sessions_come_first(weft: Shell, home: Path) -> None:
    assert weft("import").code == 0
    with library.open(weft.folder / ".weft" / "ledger.db", read_only=True) as ledger, ledger._store.read() as txn:
        labels = {session.id: session.label for session in ledger.sessions()}
        arrived = [labels[id] for (id,) in txn.sql.fetch_rows("SELECT id FROM session ORDER BY n")]
    assert len(arrived) == 20
    assert arrived == sorted(arrived, reverse=True)


def test_an_import_in_the_background_ends_and_says_so(weft: Shell, home: Path) -> None:
    begun = weft.json("import", "--background")
    assert begun["state"] in ("running", "finished")
    status = ended(weft)
    assert (status["state"], status["files"], status["of_files"]) == ("finished", 20, 20)
    assert (status["sessions"], status["turns"], status["problems"]) == (20, 20, 0)
    assert len(weft.json("sessions")) == 20
    told = weft("import", "--status")
    assert told.code == 0
    assert told.out.startswith("finished: 20 of 20 files")
    assert Path(str(status["log"])).read_text().startswith("import of ")


def test_how_far_an_import_is_tells_its_turns_and_problems_too(weft: Shell) -> None:
    ledger = weft.folder / ".weft" / "ledger.db"
    work = ImportWork(ImportJob(str(ledger)), Order(ledger=str(ledger), paths=[]))
    work._progress(ImportStep(3, 9, 1_000, 9_000, 3, "a.jsonl", turns=12, problems=1))
    assert "3 sessions, 12 turns; 1 problem" in weft("import", "--status").out


def test_a_second_one_brings_nothing_and_says_so(weft: Shell, home: Path) -> None:
    assert weft("import", "--background").code == 0
    ended(weft)
    assert weft("import", "--background").code == 0
    status = ended(weft)
    assert (status["state"], status["of_files"]) == ("finished", 0)
    assert weft("import", "--status").out.startswith("finished: nothing new")


@contextmanager
def held(ledger: Path) -> Iterator[int]:
    """Another process that has the lock, as a job has."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(ledger)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def status_of(shell: Shell, pid: int, **fields: object) -> ImportStatus:
    told = {"state": "running", "pid": pid, "started_at": 1, "updated_at": 2, "ledger": "x", "log": "y", **fields}
    return ImportStatus(**told)  # type: ignore[arg-type]


def test_only_one_runs_at_a_time(weft: Shell, home: Path) -> None:
    with held(weft.folder / ".weft" / "ledger.db"):
        answer = weft("import", "--background")
    assert answer.code == 4
    assert "going on already" in answer.err


def test_the_list_of_sessions_says_that_an_import_is_going_on(weft: Shell) -> None:
    ledger = weft.folder / ".weft" / "ledger.db"
    with held(ledger) as pid:
        far = {"files": 3, "of_files": 9, "bytes": 1_000_000, "of_bytes": 9_000_000, "seconds_left": 125.0}
        ImportJob(str(ledger)).write_status(status_of(weft, pid, **far))
        answer = weft("sessions")
        assert "an import is going on: 3 of 9 files, 1.0 MB of 9.0 MB, about 2 minutes left" in answer.err
        assert weft("import", "--status").out.startswith("running: 3 of 9 files")
        assert weft("sessions", "-q").err == ""
    assert "import" not in weft("sessions").err.replace("weft import", "")


def test_a_killed_one_is_told_as_killed_and_the_next_goes_on(weft: Shell, home: Path) -> None:
    ledger = weft.folder / ".weft" / "ledger.db"
    ImportJob(str(ledger)).write_status(status_of(weft, 999_999_999, of_files=9))
    answer = weft("import", "--status")
    assert answer.code == 1
    assert answer.out.startswith("killed")
    assert weft("import", "--background").code == 0
    assert ended(weft)["state"] == "finished"


def test_a_watch_in_the_background_is_stopped_on_request(weft: Shell, home: Path) -> None:
    assert weft("import", "--watch", "--background").code == 0
    stopped = weft.json("import", "--stop")
    assert stopped["state"] == "stopped"
    assert not ImportJob(str(weft.folder / ".weft" / "ledger.db")).is_held()
    again = weft("import", "--stop")
    assert (again.code, again.out) == (0, "")
    assert "no import is going on" in again.err


def test_a_watch_in_the_background_keeps_folders(weft: Shell, home: Path) -> None:
    weft("import")
    assert weft("import", "--watch", "--background", "--files", str(home)).code == 0
    job = ImportJob(str(weft.folder / ".weft" / "ledger.db"))
    while (status := job.status()) is not None and status.state == "running":
        SystemClock().sleep(0.02)
    assert weft.json("import", "--stop")["problems"] == 0
    trees = weft.folder / ".weft" / "ledger.db-files" / "trees"
    assert any(trees.iterdir()), "what the folder was like when the watch began is kept before it ends"


def test_none_is_begun_where_the_ledger_cannot_be_opened(weft: Shell, home: Path) -> None:
    ledger = weft.folder / ".weft" / "ledger.db"
    with ledger.open("r+b") as file:
        file.write(b"no database any more")
    answer = weft("import", "--background")
    assert answer.code in (6, 7)
    assert weft("import", "--status").out == ""


def test_a_job_that_fails_says_why(tmp_path: Path, shell: Shell) -> None:
    missing = tmp_path / "none.db"
    start(Order(ledger=str(missing), paths=[str(tmp_path)]))
    job = ImportJob(str(missing))
    while job.is_held():
        SystemClock().sleep(0.02)
    answer = shell("import", "--status", "--ledger", str(missing))
    assert answer.code == 1
    assert answer.out.startswith("failed")
    assert "LedgerMissing" in answer.out
    assert "Traceback" in job.log.read_text()


def test_nothing_was_started_yet(weft: Shell) -> None:
    assert weft.json("import", "--status") == {"state": "none"}
    assert weft.json("import", "--stop") == {"state": "none"}


def test_ways_to_import_exclude_each_other(weft: Shell) -> None:
    answer = weft("import", "--watch", "--dry-run")
    assert answer.code == 2
    assert "--dry-run and --watch exclude each other" in answer.err


def test_an_import_that_is_interrupted_keeps_what_it_has(weft: Shell, home: Path) -> None:
    """Stopped at its first file by Ctrl-C, however far it is then; the next one brings the rest."""
    with running(weft.folder, "import", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for told in process.stderr:
            if b"to read" in told:
                process.send_signal(signal.SIGINT)
                break
        _, rest = process.communicate()
    assert process.returncode in (0, 130)
    assert (process.returncode == 130) == (b"stopped: what was read is in the ledger" in rest)
    assert weft("import").code == 0
    assert len(weft.json("sessions")) == 20
    assert weft("verify").code == 0


def test_times_are_told_as_people_guess_them() -> None:
    told = [time_text(seconds) for seconds in (1, 42, 125, 3600, 3600 * 5)]
    assert told == ["a few seconds", "about 40 seconds", "about 2 minutes", "about 60 minutes", "about 5 hours"]


def test_a_guess_learns_from_what_was_measured() -> None:
    from weft.exchange.importing.run import USUAL_RATE, ReadingPace

    clock = FixedClock()
    pace = ReadingPace(clock)
    assert pace.seconds_left(0, int(USUAL_RATE * 60)) == 60
    clock.sleep(1000)
    slow = pace.rate(int(USUAL_RATE * 100))
    assert USUAL_RATE / 10 < slow < USUAL_RATE / 8
    assert pace.seconds_left(10, 10) == 0
