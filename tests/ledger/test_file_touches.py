"""Which turns touched a file, however they and whoever asks call it."""

import pytest

import weft
from weft import Ledger
from weft.kernel.errors import InvalidInput


def note(ledger: Ledger, path: str, kind: str = "written", workspace: str | None = None, **lines: int) -> str:
    message = {"role": "assistant", "content": "done", "files": [{"kind": kind, "path": path, **lines}]}
    made = ledger.record_turn(session="main", query="do it", response=message, workspace=workspace)
    return str(made.id)


def test_the_newest_comes_first_with_its_lines(ledger: Ledger) -> None:
    first = note(ledger, "/home/ann/app/src/a.py", "read")
    second = note(ledger, "/home/ann/app/src/a.py", line_start=3, line_end=9)
    note(ledger, "/home/ann/app/src/b.py")
    found = ledger.files("/home/ann/app/src/a.py")
    assert [(touch.turn_id, touch.kind, touch.line_start, touch.line_end) for touch in found] == [
        (second, "written", 3, 9),
        (first, "read", None, None),
    ]
    assert {touch.session_id for touch in found} == {ledger.session("main").id}


@pytest.mark.parametrize("wanted", ["a.py", "src/a.py", "app/src/a.py", "/home/ann/app/src/a.py", "src/../src/a.py"])
def test_a_file_is_found_by_the_end_of_its_path(ledger: Ledger, wanted: str) -> None:
    turns = [note(ledger, "/home/ann/app/src/a.py"), note(ledger, "src/a.py", workspace="/home/ann/app")]
    assert [touch.turn_id for touch in ledger.files(wanted)] == turns[::-1]
    assert {touch.full_path for touch in ledger.files(wanted)} == {"/home/ann/app/src/a.py"}


@pytest.mark.parametrize("wanted", ["/src/a.py", "/home/bob/app/src/a.py", "ya.py", "src/a", "src"])
def test_another_file_is_not_found(ledger: Ledger, wanted: str) -> None:
    note(ledger, "/home/ann/app/src/a.py")
    note(ledger, "src/a.py", workspace="/home/ann/app")
    assert ledger.files(wanted) == []


def test_a_windows_path_is_a_path(ledger: Ledger) -> None:
    turn = note(ledger, "C:\\app\\src\\a.py")
    assert [touch.turn_id for touch in ledger.files("src/a.py")] == [turn]
    assert [touch.turn_id for touch in ledger.files("C:/app/src/a.py")] == [turn]


@pytest.mark.parametrize("wanted", ["", "/", "//"])
def test_what_names_no_file_is_refused(wanted: str) -> None:
    with weft.open(":memory:") as ledger, pytest.raises(InvalidInput):
        ledger.files(wanted)
