"""A second name for a ledger, a link in the place of what lies beside it, and a file that is gone when a turn comes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from weft.kernel.errors import Action, LedgerMoved, SeveralNames, StoreError
from weft.store.sqlite.connection import FileLock, HeadFile, HeadSlot


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "ledger.db"
    with weft.open(file) as ledger:
        ledger.record_turn(session="main", query="hello", response="hi")
    return file


def texts(path: Path) -> list[str]:
    with weft.open(path, read_only=True) as ledger:
        return [message.text for message in ledger.thread("main").messages]


# --- several names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True])
def test_a_second_name_of_a_ledger_is_refused_before_turns_are_lost_through_it(path: Path, read_only: bool) -> None:
    second = path.with_name("second.db")
    os.link(path, second)
    for name in (path, second):
        with pytest.raises(SeveralNames, match="2 names") as refused:
            weft.open(name, read_only=read_only)
        assert refused.value.action is Action.KEEP_ONE_NAME
    assert not Path(f"{second}-wal").exists()
    (found,) = [one for one in weft.examine(second) if one.check == "names"]
    assert found.grade == "error"
    second.unlink()
    assert texts(path) == ["hello", "hi"]


def test_a_second_name_that_comes_while_the_ledger_is_open_stops_the_next_turn(path: Path) -> None:
    second = path.with_name("second.db")
    with weft.open(path) as ledger:
        os.link(path, second)
        with pytest.raises(SeveralNames):
            ledger.record_turn(session="main", query="more", response="no")
        second.unlink()
        ledger.record_turn(session="main", query="more", response="yes")
    assert texts(path) == ["hello", "hi", "more", "yes"]


def test_two_links_to_a_ledger_share_its_lock_its_log_and_its_head(path: Path, tmp_path: Path) -> None:
    links = [tmp_path / "elsewhere" / "a.db", tmp_path / "b.db"]
    links[0].parent.mkdir()
    for link in links:
        link.symlink_to(path)
    with weft.open(links[0]) as first, weft.open(links[1]) as second:
        assert first.path == second.path == str(path)
        for i in range(10):
            (first, second)[i % 2].record_turn(session="main", query=f"{i}")
        assert [turn.depth for turn in second.thread("main").turns] == list(range(1, 12))
    assert {file.name for file in links[0].parent.iterdir()} == {"a.db"}
    assert not [file.name for file in tmp_path.iterdir() if file.name.startswith("b.db-")]
    assert {one.grade for one in weft.examine(links[1])} == {"good"}


def test_a_link_to_nothing_makes_no_file(tmp_path: Path) -> None:
    link, target = tmp_path / "ledger.db", tmp_path / "elsewhere.db"
    link.symlink_to(target)
    with pytest.raises(StoreError, match="is a link to"):
        weft.open(link)
    assert {file.name for file in tmp_path.iterdir()} == {"ledger.db"}


# --- what lies beside it ----------------------------------------------------------------------------------------


def as_link(place: Path, victim: Path) -> None:
    place.symlink_to(victim)


def as_second_name(place: Path, victim: Path) -> None:
    os.link(victim, place)


def as_pipe(place: Path, victim: Path) -> None:
    os.mkfifo(place)


def as_folder(place: Path, victim: Path) -> None:
    place.mkdir()


@pytest.mark.parametrize("suffix", ["-head", "-lock"])
@pytest.mark.parametrize("put", [as_link, as_second_name, as_pipe, as_folder])
def test_nothing_is_written_through_what_lies_in_the_place_of_a_file_beside_the_ledger(
    path: Path, tmp_path: Path, suffix: str, put: Callable[[Path, Path], None]
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    place = Path(f"{path}{suffix}")
    place.unlink()
    put(place, victim)
    with pytest.raises(StoreError, match=place.name):
        weft.open(path)
    assert victim.read_bytes() == b""


@pytest.mark.parametrize("put", [as_link, as_pipe])
def test_a_reader_does_not_follow_or_wait_for_a_head_file_that_is_none(
    path: Path, tmp_path: Path, put: Callable[[Path, Path], None]
) -> None:
    place = Path(f"{path}-head")
    place.rename(tmp_path / "victim")
    put(place, tmp_path / "victim")
    with pytest.raises(StoreError, match="-head is"):
        weft.open(path, read_only=True)


def test_a_long_head_file_is_read_no_further_than_its_slots(tmp_path: Path) -> None:
    path = tmp_path / "head"
    head = HeadSlot("01JBZ0000000000000000000AA", 7, bytes(32))
    file = HeadFile(path)
    file.write(head)
    file.close()
    os.truncate(path, 1 << 40)  # takes no room, and no memory
    assert HeadFile.load(path) == [head]
    path.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_lock_that_another_user_put_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db-lock"
    path.touch()
    os.chown(path, 12345, -1)
    with pytest.raises(StoreError, match="belongs to user 12345"):
        FileLock(path)
    os.chown(tmp_path, 12345, -1)  # the folder's owner could do anything here anyway
    FileLock(path).close()


# --- the file under the name --------------------------------------------------------------------------------------


def moved(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def deleted(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    shutil.copyfile(path, path.with_name("other.db"))
    path.with_name("other.db").rename(path)


def moved_behind_a_link(path: Path) -> None:
    path.rename(path.with_name("moved.db"))
    path.symlink_to("moved.db")


def moved_with_its_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


CHANGES = [moved, deleted, replaced, moved_behind_a_link, moved_with_its_folder]


@pytest.mark.parametrize("change", CHANGES)
def test_a_turn_is_not_acknowledged_where_nobody_would_find_it(tmp_path: Path, change: Callable[[Path], None]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "ledger.db"
    with weft.open(path) as ledger:
        ledger.record_turn(session="main", query="before")
        change(path)
        for _ in range(2):
            with pytest.raises(LedgerMoved, match="not acknowledged") as refused:
                ledger.record_turn(session="main", query="after")
            assert refused.value.action is Action.OPEN_WHERE_IT_IS
        assert [message.text for message in ledger.thread("main").messages] == ["before"]
    if change in (moved, deleted):
        assert not path.exists()  # it was not made anew


def test_a_ledger_that_is_put_back_is_written_to_again(path: Path) -> None:
    with weft.open(path) as ledger:
        moved(path)
        with pytest.raises(LedgerMoved):
            ledger.record_turn(session="main", query="no")
        path.with_name("moved.db").rename(path)
        ledger.record_turn(session="main", query="more", response="yes")
    assert texts(path) == ["hello", "hi", "more", "yes"]


def test_a_relative_path_means_the_same_file_after_the_folder_was_changed(path: Path, tmp_path: Path) -> None:
    program = (
        "import os, weft\n"
        "ledger = weft.open('ledger.db')\n"
        "os.chdir('/')\n"
        "ledger.record_turn(session='main', query='more', response='yes')\n"
        "ledger.close()\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=path.parent, check=True)
    assert texts(path) == ["hello", "hi", "more", "yes"]
