"""Files that appear whole or not at all, whoever fails in between and wherever the power goes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.system_calls import missing
from weft.store.private_files import aside_of, new_file


def test_a_file_is_there_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl"
    with new_file(path) as file:
        file.write(b"all of it")
        assert not path.exists()
    assert path.read_bytes() == b"all of it"
    assert not aside_of(path).exists()


@pytest.mark.parametrize("failure", [OSError("no room"), KeyboardInterrupt()])
def test_whoever_fails_leaves_what_was_there(tmp_path: Path, failure: BaseException) -> None:
    path = tmp_path / "facts.jsonl"
    path.write_bytes(b"before")
    with pytest.raises(type(failure)):
        _fail_halfway(path, failure)
    assert path.read_bytes() == b"before"
    assert not aside_of(path).exists()


def _fail_halfway(path: Path, failure: BaseException) -> None:
    with new_file(path) as file:
        file.write(b"half")
        raise failure


def test_what_a_dead_process_left_gives_way(tmp_path: Path) -> None:
    path = tmp_path / "key"
    aside_of(path).write_bytes(b"left behind by somebody, for all to read")
    with new_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_file_is_synced_before_it_is_in_its_place_and_its_folder_after(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    program = (
        "import sys; from pathlib import Path; from weft.store.private_files import new_file\n"
        "with new_file(Path(sys.argv[1])) as file: file.write(b'data')"
    )
    run = ["strace", "-y", "-e", "trace=/^(write|fsync|rename).*", "-o", str(trace)]
    subprocess.run([*run, sys.executable, "-c", program, str(tmp_path / "made")], check=True, env=os.environ)
    calls = [line for line in trace.read_text().splitlines() if str(tmp_path) in line]
    names = [line.partition("(")[0] for line in calls]
    assert [re.sub("renameat2?", "rename", name) for name in names] == ["write", "fsync", "rename", "fsync"]
    assert "made.partial" in calls[1]
    assert f"<{tmp_path}>" in calls[3]
