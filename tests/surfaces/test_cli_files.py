"""files and blame."""

from pathlib import Path

from tests.surfaces.shell import Shell, masked


def edit(weft: Shell, path: str, **arguments: object) -> str:
    call = {"id": "c1", "name": "edit", "arguments": {"file_path": path, **arguments}, "result": "ok"}
    answer = {"role": "assistant", "content": "done", "files": [{"kind": "written", "path": path}]}
    return weft.record(f"edit {arguments}", tool_calls=[call], response=answer)


def story(weft: Shell, path: str) -> None:
    edit(weft, path, content="one\ntwo\nthree\n")
    edit(weft, path, old_string="two", new_string="2")


def test_blame_of_what_the_edits_leave(weft: Shell) -> None:
    story(weft, "/home/ann/notes.txt")
    lines = [line.split("  ") for line in masked(weft("blame", "notes.txt").out).splitlines()]
    assert [(line[0], line[-2], line[-1]) for line in lines] == [
        ("T1", "1", "one"),
        ("T2", "2", "2"),
        ("T1", "3", "three"),
    ]


def test_blame_of_the_file_as_it_is(weft: Shell, folder: Path) -> None:
    file = folder / "notes.txt"
    story(weft, str(file))
    file.write_text("by hand\none\n2\n")
    found = weft("blame", "./notes.txt")
    assert [line.split()[-1] for line in found.out.splitlines()] == ["hand", "one", "2"]
    assert found.out.startswith("?")
    assert "1 line of ./notes.txt: no turn is known to have written it" in found.err
    shown = weft.json("blame", "./notes.txt")
    assert [line["turn_id"] is None for line in shown] == [True, False, False]
    assert [line["text"] for line in weft.json("blame", "--recorded", "./notes.txt")] == ["one", "2", "three"]


def test_an_edit_that_something_else_overwrote_is_named(weft: Shell, folder: Path) -> None:
    file = folder / "notes.txt"
    story(weft, str(file))
    file.write_text("one\nreplaced\nthree\n")
    assert "are not found any more" in weft("blame", "./notes.txt").err


def test_blame_says_when_there_is_nothing_to_say(weft: Shell, folder: Path) -> None:
    answer = weft("blame", "nowhere.txt")
    assert answer.code != 0
    assert "no recorded text of 'nowhere.txt'" in answer.err
    (folder / "image").write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in weft("blame", "image").err


def test_files_lists_notes_of_all_kinds(weft: Shell) -> None:
    story(weft, "/home/ann/notes.txt")
    assert len(weft("files", "notes.txt").out.splitlines()) == 2
    assert weft("files", "notes.txt", "--kind", "read").out == ""
    assert len(weft.json("files", "notes.txt", "-n", "1")) == 1
    assert "1 more" in weft("files", "notes.txt", "-n", "1").err
    assert "no turn is known to have touched other.txt" in weft("files", "other.txt").err
