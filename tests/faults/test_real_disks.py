"""Small disks that fill up, disks and files that cannot be written: real ones, where the system lets us mount them."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import weft
from tests.faults import scenarios
from tests.faults.checks import answers, assert_kept, assert_sound, copy_ledger
from tests.faults.processes import KILLED, Say, run, run_well
from tests.faults.scenarios import Ack, ack, make_ledger
from tests.sizes import Record
from weft.kernel.errors import ReadOnlyLedger, StoreFailed, WeftError
from weft.ledger.api.ledger import Ledger

ROOM = 6 * 1024 * 1024
TIMES = 3
NOBODY = 65534


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"only root may mount a disk of its own: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    if shutil.which("mount") is None:
        pytest.skip("there is no `mount` here")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"size={ROOM},mode=0755", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """The rest of the disk is somebody else's."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\xff" * 4096)
    return filler


def record_for_ever(ledger: Ledger, kept: list[Ack]) -> None:
    while True:
        kept.append(ack(ledger.record_turn(session="main", query="x" * 3000)))


def test_a_disk_that_is_full_refuses_appends_lets_readers_go_on_and_serves_again_once_there_is_room(
    small_disk: Path, record_property: Record
) -> None:
    path, kept = small_disk / "ledger.db", list[Ack]()
    with weft.open(path) as ledger:
        kept.append(ack(ledger.record_turn(session="main", query="before")))
        for _ in range(TIMES):
            filler = fill(small_disk)
            with pytest.raises(StoreFailed) as refused:
                record_for_ever(ledger, kept)
            assert refused.value.hint
            assert ledger.thread("main").depth == len(kept)
            assert_kept(ledger, kept)
            with pytest.raises(StoreFailed):
                ledger.put_content(b"x" * 1_000_000 for _ in range(3))
            filler.unlink()
            kept.append(ack(ledger.record_turn(session="main", query="again")))
        fill(small_disk)  # closing has to copy the log into the database now, and cannot
    (small_disk / "filler").unlink()
    assert_sound(path, kept)
    record_property("measured", f"full {TIMES} times, {len(kept)} turns kept")


@pytest.fixture(scope="module")
def unclosed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger whose facts lie in the write-ahead log."""
    path = tmp_path_factory.mktemp("unclosed") / "ledger.db"
    assert run(scenarios.leave_unclosed, str(path)) == (KILLED, [])
    return path


def test_a_ledger_on_a_read_only_disk_is_read_and_verified(small_disk: Path) -> None:
    path = small_disk / "ledger.db"
    with make_ledger(path) as ledger:
        truth = answers(ledger)
    mount("-o", "remount,ro", str(small_disk))
    with weft.open(path, read_only=True) as ledger:
        assert answers(ledger) == truth
        assert list(ledger.verify()) == []
        with pytest.raises(ReadOnlyLedger):
            ledger.record_turn(session="main", query="cannot be")
    with pytest.raises(WeftError) as refused:
        weft.open(path)
    assert refused.value.hint


def test_a_ledger_on_a_read_only_disk_whose_log_was_never_copied_is_refused_with_what_to_do(
    small_disk: Path, unclosed: Path
) -> None:
    """Without the log it would be another ledger: rather none than that."""
    path = copy_ledger(unclosed, small_disk / "ledger.db")
    mount("-o", "remount,ro", str(small_disk))
    with pytest.raises(StoreFailed) as refused:
        weft.open(path, read_only=True)
    assert "copy" in refused.value.hint


def read_as_nobody(say: Say, path: str) -> None:
    """Somebody who may read the file and nothing else."""
    with weft.open(":memory:") as ledger:  # whatever is loaded on first use may lie where nobody can read
        ledger.record_turn(session="main", query="q", response="r")
        answers(ledger), list(ledger.verify())
    os.setuid(NOBODY)
    with weft.open(path, read_only=True) as ledger:
        say((answers(ledger), list(ledger.verify())))
    for use in (lambda: weft.open(path), lambda: weft.open(Path(path).with_name("new.db"))):
        say(_refusal(use))


def _refusal(use: Callable[[], object]) -> str:
    try:
        use()
    except WeftError as error:
        return f"{type(error).__name__}: {error.hint}"
    return "no refusal"


def test_a_ledger_that_may_only_be_read_is_read_and_nothing_else() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with make_ledger(folder / "ledger.db") as ledger:
            truth = answers(ledger)
        for file in folder.iterdir():
            file.chmod(0o444)
        folder.chmod(0o555)
        before = sorted(folder.iterdir())
        (found, problems), *refusals = run_well(read_as_nobody, str(folder / "ledger.db"))
        assert (found, problems) == (truth, [])
        assert all(": " in refusal and not refusal.endswith(": ") for refusal in refusals), refusals
        assert sorted(folder.iterdir()) == before
