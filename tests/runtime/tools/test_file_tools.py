"""What `read`, `write` and `edit` give and refuse."""

from __future__ import annotations

import base64
import itertools
from pathlib import Path

import pytest

from tests.runtime.tools.conftest import call, perform, plan
from weft.kernel.contents import dumps
from weft.kernel.enums import FileKind
from weft.ledger.model import FileNote, ImagePart
from weft.runtime.tool.tool_contract import PlannedTool, ToolFailure
from weft.runtime.tool.workspace import WorkspaceFolder
from weft.runtime.tools.reading_tools import LINE_CHARACTERS, TEXT_CHARACTERS, ReadTool
from weft.runtime.tools.workspace_tools import EditTool, WriteTool

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def failure_of(tool: PlannedTool, **arguments: object) -> ToolFailure:
    with pytest.raises(ToolFailure) as failure:
        call(tool, **arguments)
    return failure.value


def test_read_numbers_lines_and_says_how_to_read_on(place: Path, workspace: WorkspaceFolder) -> None:
    (place / "a.txt").write_bytes(b"one\r\ntwo\nthree\nfour")
    output = call(ReadTool(workspace), path="a.txt", offset=2, limit="2")
    assert output.result == {
        "path": "a.txt",
        "total_lines": 4,
        "first_line": 2,
        "last_line": 3,
        "text": "2\ttwo\n3\tthree",
        "more": "1 lines follow: read on with offset 4",
    }
    assert output.files == (FileNote(kind=FileKind.READ, path="a.txt", line_start=2, line_end=3),)
    whole = call(ReadTool(workspace), path="a.txt").result
    assert whole["text"] == "1\tone\n2\ttwo\n3\tthree\n4\tfour"
    assert "more" not in whole


def test_reading_on_shows_every_line_of_a_long_file_once(place: Path, workspace: WorkspaceFolder) -> None:
    lines = [f"{number} {'x' * (number % 97)}" for number in range(1, 5001)]
    (place / "long.txt").write_text("\n".join(lines) + "\n")
    shown: list[str] = []
    while len(shown) < len(lines):
        result = call(ReadTool(workspace), path="long.txt", offset=len(shown) + 1).result
        assert len(result["text"]) < TEXT_CHARACTERS * 1.5
        shown += [line.partition("\t")[2] for line in result["text"].split("\n")]
    assert shown == lines


@pytest.mark.parametrize("column", [1, 2])
@pytest.mark.parametrize("data", [b"\n" * 5, b"a\n\n\nb\n\n", b"\n\n\n\nb", b"a\r\n\r\n\r\nb\r\nc"])
def test_empty_lines_are_lines(data: bytes, column: int, place: Path, workspace: WorkspaceFolder) -> None:
    (place / "a.txt").write_bytes(data)
    lines = [line[column - 1 :] for line in data.decode().replace("\r", "").split("\n")][:5]
    for offset, limit in itertools.product(range(1, 6), range(1, 7)):
        result = call(ReadTool(workspace), path="a.txt", offset=offset, limit=limit, column=column).result
        last = min(5, offset + limit - 1)
        shown = [f"{number}\t{lines[number - 1]}" for number in range(offset, last + 1)]
        assert (result["text"].split("\n"), result["last_line"], "more" in result) == (shown, last, last < 5)


def test_a_long_line_is_cut_and_can_be_read_on(place: Path, workspace: WorkspaceFolder) -> None:
    (place / "wide.txt").write_text("a" * LINE_CHARACTERS + "b" * 10)
    text = call(ReadTool(workspace), path="wide.txt").result["text"]
    assert text.endswith("[10 characters of this line left out; column 2001 reads on]")
    assert call(ReadTool(workspace), path="wide.txt", column=2001).result["text"] == f"1\t{'b' * 10}"


def test_bytes_that_are_no_utf_8_are_marked(place: Path, workspace: WorkspaceFolder) -> None:
    (place / "latin.txt").write_bytes(b"caf\xe9\nna\xc3\xafve\n")
    result = call(ReadTool(workspace), path="latin.txt").result
    assert result["text"] == "1\tcaf\\xe9\n2\tnaïve"
    assert result["note"] == "1 bytes are no UTF-8, and are shown as \\xNN"
    dumps(result)


def test_images_are_shown_and_binary_files_are_told(place: Path, workspace: WorkspaceFolder) -> None:
    (place / "picture").write_bytes(PIXEL)
    (place / "program").write_bytes(b"\x7fELF\0\0")
    (place / "empty").touch()
    image = call(ReadTool(workspace), path="picture")
    assert image.images == (ImagePart("data:image/png;base64," + base64.b64encode(PIXEL).decode()),)
    assert image.result == {
        "path": "picture", "bytes": len(PIXEL), "media_type": "image/png", "note": "the image is shown"
    }  # fmt: skip
    assert call(ReadTool(workspace), path="program").result["note"] == "a binary file; its bytes are not shown"
    assert call(ReadTool(workspace), path="empty").result["note"] == "the file is empty"


def test_reading_beyond_the_end_and_what_is_no_file_is_told(place: Path, workspace: WorkspaceFolder) -> None:
    (place / "a.txt").write_text("one\n")
    assert call(ReadTool(workspace), path="a.txt", offset=10**15).result["note"] == "the file has only 1 lines"
    assert failure_of(ReadTool(workspace), path="src").code == "is_folder"
    assert failure_of(ReadTool(workspace), path="none.txt").code == "not_found"
    assert failure_of(ReadTool(workspace), path="a.txt", offset=0).code == "invalid_arguments"
    assert failure_of(ReadTool(workspace), path="a.txt", follow="yes").code == "invalid_arguments"


def test_write_plans_a_difference_and_makes_folders(place: Path, workspace: WorkspaceFolder) -> None:
    planned = plan(WriteTool(workspace), path="new/deep/a.txt", content="one\ntwo\n")
    assert planned.shown == "--- /dev/null\n+++ b/new/deep/a.txt\n@@ -0,0 +1,2 @@\n+one\n+two\n"
    assert planned.exact["before"] is None
    assert not (place / "new").exists()
    output = perform(WriteTool(workspace), planned)
    assert output.result == {"path": "new/deep/a.txt", "bytes": 8, "created": True, "changed_lines": ["1-2"]}
    assert output.files == (FileNote(kind=FileKind.WRITTEN, path="new/deep/a.txt", line_start=1, line_end=2),)
    assert (place / "new" / "deep" / "a.txt").read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize("change", [None, b"other", b""])
def test_a_file_that_changed_since_the_plan_is_not_written(
    change: bytes | None, place: Path, workspace: WorkspaceFolder
) -> None:
    file = place / "a.txt"
    for tool, arguments in (
        (WriteTool(workspace), {"content": "new"}),
        (EditTool(workspace), {"old_text": "present", "new_text": "new"}),
    ):
        file.write_bytes(b"present")
        planned = plan(tool, path="a.txt", **arguments)
        if change is None:
            file.unlink()
        else:
            file.write_bytes(change)
        with pytest.raises(ToolFailure, match="has changed"):
            perform(tool, planned)
        assert (file.read_bytes() if file.exists() else None) == change


def test_a_file_that_appeared_since_the_plan_is_not_written(place: Path, workspace: WorkspaceFolder) -> None:
    planned = plan(WriteTool(workspace), path="a.txt", content="new")
    (place / "a.txt").write_text("appeared")
    with pytest.raises(ToolFailure, match="has changed"):
        perform(WriteTool(workspace), planned)
    assert (place / "a.txt").read_text() == "appeared"


def test_each_field_of_a_plan_is_bound(place: Path, workspace: WorkspaceFolder) -> None:
    (place / "a.txt").write_text("a")
    (place / "b.txt").write_text("a")
    tool = EditTool(workspace)
    plans = [
        plan(tool, path="a.txt", old_text="a", new_text="b"),
        plan(tool, path="b.txt", old_text="a", new_text="b"),
        plan(tool, path="a.txt", old_text="a", new_text="c"),
        plan(tool, path="a.txt", old_text="a", new_text="b", replace_all=True),
    ]
    (place / "a.txt").write_text("aq")
    plans.append(plan(tool, path="a.txt", old_text="a", new_text="b"))
    assert len({planned.plan_digest for planned in plans}) == len(plans)


def test_a_plan_performed_again_after_a_crash_does_nothing_more(place: Path, workspace: WorkspaceFolder) -> None:
    (place / "a.txt").write_text("a\nb\n")
    tool = EditTool(workspace)
    planned = plan(tool, path="a.txt", old_text="a", new_text="aa")
    first = perform(tool, planned)
    assert perform(tool, planned) == first
    assert (place / "a.txt").read_text() == "aa\nb\n"
    assert (tool.is_repeatable, tool.is_idempotent) == (True, False)
    written = plan(WriteTool(workspace), path="b.txt", content="x")
    assert perform(WriteTool(workspace), written) == perform(WriteTool(workspace), written)
    assert (WriteTool(workspace).is_repeatable, WriteTool(workspace).is_idempotent) == (True, True)


def test_edit_replaces_one_text_and_tells_the_lines(place: Path, workspace: WorkspaceFolder) -> None:
    (place / "a.py").write_text("def f():\n    return 1\n\ndef g():\n    return 2\n")
    planned = plan(EditTool(workspace), path="a.py", old_text="    return 2", new_text="    x = 2\n    return x")
    assert planned.shown.endswith(" def g():\n-    return 2\n+    x = 2\n+    return x\n")
    output = perform(EditTool(workspace), planned)
    assert output.result["changed_lines"] == ["5-6"]
    assert output.files == (FileNote(kind=FileKind.WRITTEN, path="a.py", line_start=5, line_end=6),)
    assert (place / "a.py").read_text().endswith("    x = 2\n    return x\n")


def test_edit_says_why_a_text_cannot_be_replaced(place: Path, workspace: WorkspaceFolder) -> None:
    (place / "a.txt").write_text("one\ntwo one\n\nfoo  bar\n")
    tool = EditTool(workspace)
    twice = failure_of(tool, path="a.txt", old_text="one", new_text="1")
    assert (twice.code, twice.message) == (
        "text_not_unique",
        "old_text stands in 'a.txt' 2 times, in lines 1, 2: give more of its surroundings, or replace_all",
    )
    absent = failure_of(tool, path="a.txt", old_text="three", new_text="3")
    assert (absent.code, absent.message) == ("text_not_found", "old_text does not stand in 'a.txt'")
    assert "other white space" in failure_of(tool, path="a.txt", old_text="foo bar", new_text="3").message
    assert failure_of(tool, path="a.txt", old_text="one", new_text="one").code == "no_change"
    assert failure_of(tool, path="a.txt", old_text="", new_text="one").code == "invalid_arguments"
    assert failure_of(tool, path="b.txt", old_text="a", new_text="one").code == "not_found"
    (place / "a.txt").write_text("aaa")
    assert failure_of(tool, path="a.txt", old_text="aa", new_text="b").code == "text_not_unique"
    (place / "a.txt").write_text("a" * 100)
    assert "more than 10 times" in failure_of(tool, path="a.txt", old_text="a", new_text="b").message


@pytest.mark.parametrize(
    ("before", "old_text", "new_text", "after"),
    [
        (b"a\r\nb\r\nc", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc"),
        (b"a\r\nb\r\n", "b", "b\nc", b"a\r\nb\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "c", b"c\r\n"),
        (b"a\r\nb\nc", "b\nc", "x\ny", b"a\r\nx\ny"),
        (b"a\nb", "b", "c", b"a\nc"),
        (b"a\xff\nb", "b", "c", b"a\xff\nc"),
    ],
)
def test_edit_keeps_line_ends_and_other_bytes(
    before: bytes, old_text: str, new_text: str, after: bytes, place: Path, workspace: WorkspaceFolder
) -> None:
    (place / "a.txt").write_bytes(before)
    call(EditTool(workspace), path="a.txt", old_text=old_text, new_text=new_text)
    assert (place / "a.txt").read_bytes() == after


def test_replace_all_replaces_every_occurrence(place: Path, workspace: WorkspaceFolder) -> None:
    (place / "a.txt").write_text("a b a\n")
    call(EditTool(workspace), path="a.txt", old_text="a", new_text="c", replace_all=True)
    assert (place / "a.txt").read_text() == "c b c\n"
