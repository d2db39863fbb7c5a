"""Files of turns, put together from what a session tells: exact where it says so, and open about the rest."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.exchange.conftest import take, written
from tests.surfaces.test_cli_import import line
from weft import Ledger
from weft.exchange import file_reconstruction as module
from weft.exchange.file_reconstruction import (
    GapReason,
    Reconstruction,
    effect_of,
    reconstruct,
    shell_command,
    write_reconstruction,
)
from weft.exchange.importers.port import load_importers
from weft.exchange.importing.run import ImportRun
from weft.kernel.clock import SystemClock
from weft.kernel.errors import InvalidInput, NotApplicable, StoreFailed

SHOP = "/home/dev/shop"


def write(path: str, text: str) -> dict[str, Any]:
    return {"name": "Write", "arguments": {"file_path": path, "content": text}, "result": "written"}


def edit(path: str, old: str, new: str, **more: Any) -> dict[str, Any]:
    arguments = {"file_path": path, "old_string": old, "new_string": new, **more}
    return {"name": "Edit", "arguments": arguments, "result": "edited"}


def shell(command: str) -> dict[str, Any]:
    return {"name": "Bash", "arguments": {"command": command}, "result": ""}


def patch(text: str) -> dict[str, Any]:
    return {"name": "apply_patch", "arguments": f"*** Begin Patch\n{text}*** End Patch\n", "result": "Done!"}


def numbered(path: str, text: str) -> dict[str, Any]:
    lines = text.split("\n")
    detail = {"file": {"filePath": path, "startLine": 1, "numLines": len(lines), "totalLines": len(lines)}}
    result = "\n".join(f"{number:6}→{one}" for number, one in enumerate(lines, 1)) + "\n\n<system-reminder>…"
    return {"name": "Read", "arguments": {"file_path": path}, "result": result, "detail": detail}


def told(ledger: Ledger, sources: Path, *turns: list[dict[str, Any]], workspace: str | None = SHOP) -> Reconstruction:
    """After the last of these turns."""
    lines: list[dict[str, Any]] = [{"session": "s", "workspace": workspace}]
    for number, calls in enumerate(turns):
        named = [{"id": f"c{number}-{place}", **call} for place, call in enumerate(calls)]
        parent = {"parent": f"t{number - 1}"} if number else {}
        lines.append(
            {"id": f"t{number}", "ask": "do", "answer": "ok", "calls": named, "workspace": workspace, **parent}
        )
    assert take(ledger, written(sources / "s.jsonl", *lines)).problems == []
    return reconstruct(ledger, "s")


def gaps(found: Reconstruction) -> dict[str | None, GapReason]:
    return {gap.path: gap.why for gap in found.gaps}


def test_texts_that_were_written_and_edited_are_known_exactly(ledger: Ledger, sources: Path) -> None:
    found = told(
        ledger,
        sources,
        [write(f"{SHOP}/a.py", "one\ntwo\n"), write("sub/b", "no end")],
        [edit(f"{SHOP}/a.py", "two", "2"), edit(f"{SHOP}/new", "", "fresh\r\n")],
    )
    assert found.files == {"a.py": b"one\n2\n", "new": b"fresh\r\n", "sub/b": b"no end"}
    assert (found.gaps, found.deleted, found.workspace) == ((), (), SHOP)
    assert reconstruct(ledger, "s~1").files["a.py"] == b"one\ntwo\n", "each turn has its own"


def test_a_file_that_was_read_whole_is_what_edits_begin_with(ledger: Ledger, sources: Path) -> None:
    path = f"{SHOP}/a"
    part = numbered(f"{SHOP}/b", "x\ny\n")
    part["detail"]["file"]["totalLines"] = 9
    calls = [numbered(path, "x\ny\n"), edit(path, "y", "z"), part, edit(f"{SHOP}/b", "y", "z")]
    found = told(ledger, sources, calls)
    assert found.files == {"a": b"x\nz\n"}
    assert gaps(found) == {"b": GapReason.BASE_UNKNOWN}


def test_what_is_not_told_exactly_is_a_gap_until_it_is_told_again(ledger: Ledger, sources: Path) -> None:
    found = told(
        ledger,
        sources,
        [
            edit("unknown", "a", "b"),
            write("twice", "x x"),
            edit("twice", "x", "y"),
            write("everywhere", "x x"),
            edit("everywhere", "x", "y", replace_all=True),
            write("missing", "x"),
            edit("missing", "nowhere", "y"),
            {"name": "NotebookEdit", "arguments": {"notebook_path": "book", "new_source": "1"}, "result": "ok"},
            {"name": "Write", "arguments": {"file_path": "pending", "content": "x"}},
            edit("healed", "a", "b"),
            write("healed", "whole"),
        ],
    )
    assert found.files == {"everywhere": b"y y", "healed": b"whole"}
    assert gaps(found) == {
        "unknown": GapReason.BASE_UNKNOWN,
        "twice": GapReason.NO_MATCH,
        "missing": GapReason.NO_MATCH,
        "book": GapReason.CHANGE_UNKNOWN,
        "pending": GapReason.NO_OUTCOME,
    }


def test_a_patch_that_shows_another_text_tells_that_somebody_changed_it(ledger: Ledger, sources: Path) -> None:
    changed = edit("a", "two", "2")
    hunk = {"oldStart": 1, "oldLines": 2, "newStart": 1, "newLines": 2, "lines": [" by hand", "-two", "+2"]}
    changed["detail"] = {"structuredPatch": [hunk]}
    assert gaps(told(ledger, sources, [write("a", "one\ntwo\n"), changed])) == {"a": GapReason.NO_MATCH}


def test_patches_add_update_move_and_delete(ledger: Ledger, sources: Path) -> None:
    added = patch("*** Add File: a\n+one\n+two\n*** Add File: b\n+x\n*** Add File: c\n+y\n*** Add File: d/e\n+z\n")
    changed = patch(
        "*** Delete File: b\n*** Update File: a\n@@\n one\n-two\n+2\n"
        "*** Update File: c\n*** Move to: moved\n@@\n-y\n+Y\n*** Update File: d/e\n@@\n-nothing\n+z\n"
    )
    found = told(ledger, sources, [added, changed])
    assert found.files == {"a": b"one\n2\n"}
    assert found.deleted == ("b", "c")
    assert gaps(found) == {"moved": GapReason.CHANGE_UNKNOWN, "d/e": GapReason.NO_MATCH}


def test_a_table_of_changes_is_taken_before_the_patch_that_was_asked_for(ledger: Ledger, sources: Path) -> None:
    def done(changes: dict[str, Any]) -> dict[str, Any]:
        call = patch("*** Add File: asked\n+x\n")
        return {**call, "detail": {"events": [{"event": "patch_apply_end", "success": True, "changes": changes}]}}

    diff = "@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    found = told(
        ledger,
        sources,
        [
            done({f"{SHOP}/a": {"type": "add", "content": "one\ntwo"}, f"{SHOP}/b": {"add": {"content": "b\n"}}}),
            done({f"{SHOP}/a": {"type": "update", "unified_diff": diff}, f"{SHOP}/b": {"type": "delete"}}),
        ],
    )
    assert (found.files, found.deleted, found.gaps) == ({"a": b"one\n2"}, ("b",), ())


def test_commands_that_may_write_leave_gaps_and_readers_leave_none(ledger: Ledger, sources: Path) -> None:
    calls = [write("a", "1"), write("b", "2"), write("dir/c", "3")]
    assert told(ledger, sources, [*calls, shell("cat a && git status | head -3 2>/dev/null")]).gaps == ()
    found = told(ledger, sources, [*calls, shell("sed -i s/1/2/ a; make; rm -r ./dir")])
    assert found.files == {"b": b"2"}
    assert gaps(found) == {None: GapReason.SHELL, "a": GapReason.SHELL, "dir/c": GapReason.SHELL}
    found = told(ledger, sources, [*calls, shell("git reset --hard")])
    assert found.files == {}


@pytest.mark.parametrize(
    ("command", "is_reading"),
    [
        ("ls -la", True),
        ("grep -rni 'x' src", True),
        ("cd /tmp && pwd; wc -l a | sort", True),
        ("LANG=C rg x 2>&1", True),
        ("git log --oneline | head", True),
        ("git commit -m x", False),
        ("echo hi > a", False),
        ("find . -name x -delete", False),
        ("sort -o a a", False),
        ("cat $(make)", False),
        ("npm test", False),
        ("", True),
    ],
)
def test_a_command_only_reads_where_all_of_it_surely_does(command: str, is_reading: bool) -> None:
    assert effect_of(command).is_reading is is_reading


def test_commands_are_found_in_every_form() -> None:
    assert shell_command("shell", '{"command": ["bash", "-lc", "ls -l"]}') == "ls -l"
    assert shell_command("shell", {"command": ["rm", "a"]}) == "rm a"
    assert shell_command("exec_command", {"cmd": "ls"}) == "ls"
    assert shell_command("Bash", {"command": None}) == ""
    assert shell_command("Bash", None) == ""
    assert shell_command("Read", {"file_path": "a"}) is None


def test_nothing_outside_of_the_workspace_is_told(ledger: Ledger, sources: Path) -> None:
    odd = ["/etc/passwd", "../up", f"{SHOP}/../up", f"{SHOP}-not/a", ".git/config", "sub/.GIT/hooks/x", "nul\0", SHOP]
    found = told(ledger, sources, [write(path, "x") for path in odd])
    assert found.files == {}
    assert gaps(found) == {None: GapReason.OUTSIDE}
    assert told(ledger, sources, [write("/a", "x")], workspace=None).files == {}


def test_subagents_edits_count_where_they_are_known(ledger: Ledger, sources: Path) -> None:
    inner = [{"session": "sub", "parent": "s", "workspace": SHOP}]
    inner.append({"id": "i0", "ask": "do", "calls": [{"id": "x", **write("a", "inner")}], "workspace": SHOP})  # type: ignore[dict-item]
    take(ledger, written(sources / "sub.jsonl", *inner))
    task = {"name": "Task", "arguments": {}, "result": "done", "spawned": "sub"}
    found = told(ledger, sources, [task])
    assert found.files == {"a": b"inner"}
    assert found.gaps == ()


def test_limits_are_gaps(ledger: Ledger, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TEXT", 8)
    found = told(ledger, sources, [write("a", "x" * 9), write("b", "xx"), edit("b", "x", "y" * 5, replace_all=True)])
    assert gaps(found) == {"a": GapReason.TOO_LARGE, "b": GapReason.NO_MATCH}


def test_a_session_of_claude_code_gives_its_files(ledger: Ledger, tmp_path: Path) -> None:
    def call(number: int, name: str, given: dict[str, Any], result: str, detail: dict[str, Any]) -> str:
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given}
        back = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": result}
        return line(f"a{number}", f"r{number - 1}", "assistant", [use]) + line(
            f"r{number}", f"a{number}", "user", [back], toolUseResult=detail
        )

    path = f"{SHOP}/src/a.py"
    hunk = {"oldStart": 1, "oldLines": 2, "newStart": 1, "newLines": 2, "lines": [" one", "-two", "+2"]}
    file = {"filePath": path, "content": "one\ntwo\n", "startLine": 1, "numLines": 3, "totalLines": 3}
    said = (
        line("r0", None, "user", "please")
        + call(1, "Read", {"file_path": path}, "1\tone\n2\ttwo\n3\t", {"type": "text", "file": file})
        + call(
            2,
            "Edit",
            {"file_path": path, "old_string": "two", "new_string": "2"},
            "updated",
            {"filePath": path, "originalFile": "one\ntwo\n", "structuredPatch": [hunk], "userModified": False},
        )
        + line("a9", "r2", "assistant", [{"type": "text", "text": "done"}])
    )
    (tmp_path / "claude.jsonl").write_text(said)
    os.utime(tmp_path / "claude.jsonl", (1_000_000_000, 1_000_000_000))
    ImportRun(ledger, load_importers("claude-code"), SystemClock()).run([tmp_path / "claude.jsonl"])
    (session,) = ledger.sessions()
    found = reconstruct(ledger, session.label)
    assert (found.files, found.gaps) == ({"src/a.py": b"one\n2\n"}, ())


# --- written ---------------------------------------------------------------------------------------------------------


def made(**files: bytes) -> Reconstruction:
    return Reconstruction(turn="T", workspace=SHOP, files=files, deleted=(), gaps=())


def test_files_are_written_into_a_new_or_empty_folder(tmp_path: Path) -> None:
    found = replace(made(), files={"a": b"1", "deep/er/b": b"2", "deep/c": b""})
    write_reconstruction(found, tmp_path / "new")
    assert (tmp_path / "new" / "deep" / "er" / "b").read_bytes() == b"2"
    with pytest.raises(NotApplicable, match="is not empty"):
        write_reconstruction(found, tmp_path / "new")
    with pytest.raises(StoreFailed, match="No such file"):
        write_reconstruction(found, tmp_path / "no" / "where")


def test_nothing_is_written_through_a_link_or_outside(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(StoreFailed):
        write_reconstruction(made(a=b"1"), tmp_path / "link")
    for path in ("../up", "/abs", "a/../../up", "a//b", ".", "", "nul\0"):
        with pytest.raises(InvalidInput, match="no path below"):
            write_reconstruction(replace(made(), files={path: b"x"}), tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    with pytest.raises(StoreFailed, match="Not a directory"):
        write_reconstruction(replace(made(), files={"a": b"1", "a/b": b"2"}), tmp_path / "clash")
    assert json.dumps(sorted(os.listdir(tmp_path / "real"))) == "[]"


@pytest.mark.parametrize("folder", ["", "deep/er/"])
@pytest.mark.parametrize("marks", [("objects/a", "refs/a"), ("commondir",), ("OBJECTS/a", "Refs/a")])
def test_what_a_stranger_tells_of_becomes_no_repository(
    ledger: Ledger, sources: Path, folder: str, marks: tuple[str, ...]
) -> None:
    """Git takes any folder with these files for one, and a command there runs what its settings name."""
    paths = [f"{folder}{name}" for name in ("HEAD", "config", *marks)]
    found = told(ledger, sources, [write(path, "x") for path in paths])
    assert sorted(found.files) == sorted(paths[1:])
    assert gaps(found) == {paths[0]: GapReason.REPOSITORY}


@pytest.mark.parametrize("path", [".weft/ledger.db", ".g\u200cit/config", ".git./config", "git~1/config", "a/.WEFT/x"])
def test_what_a_stranger_tells_of_makes_no_folder_that_git_or_weft_obeys(
    ledger: Ledger, sources: Path, path: str
) -> None:
    found = told(ledger, sources, [write(path, "x"), write("HEAD", "about heads")])
    assert sorted(found.files) == ["HEAD"]
