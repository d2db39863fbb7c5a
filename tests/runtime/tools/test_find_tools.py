"""What `list`, `glob` and `grep` find, what they leave out, and that no pattern takes long."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.tools.conftest import CANARY, call, plan, tree_digest
from tests.runtime.tools.hostile_paths import hostile_paths, lay_traps
from weft.kernel.enums import FileKind
from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import ReadLimits
from weft.ledger.model import FileNote
from weft.runtime.tool.tool_contract import PlannedTool, ToolFailure
from weft.runtime.tool.workspace import PathPattern, WorkspaceFolder
from weft.runtime.tools.reading_tools import MOST_ENTRIES, GlobTool, GrepTool, ListTool

FINDING: dict[str, tuple[Callable[[WorkspaceFolder], PlannedTool], dict[str, str]]] = {
    "list": (ListTool, {}),
    "glob": (GlobTool, {"pattern": "**"}),
    "grep": (GrepTool, {"pattern": "."}),
}


def lay_files(place: Path, **files: str) -> None:
    for path, text in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)


@pytest.mark.usefixtures("each_opening")
@pytest.mark.parametrize("name", FINDING)
def test_no_hostile_path_is_looked_through(name: str, place: Path, workspace: WorkspaceFolder) -> None:
    lay_traps(place)
    before = tree_digest(place.parent)
    tool = FINDING[name][0](workspace)
    for path in hostile_paths(place):
        with pytest.raises((ToolFailure, LimitExceeded)):
            call(tool, path=path, **FINDING[name][1])
    assert tree_digest(place.parent) == before


@pytest.mark.parametrize("name", FINDING)
def test_links_and_the_ledger_are_not_looked_into(name: str, place: Path, workspace: WorkspaceFolder) -> None:
    lay_traps(place)
    result = call(FINDING[name][0](workspace), **FINDING[name][1]).result
    assert CANARY not in str(result)
    assert "canary" not in str(result).replace("link_to_canary@", "")
    assert "ledger.db" not in str(result)
    if name == "list":
        assert {"README.txt", "src/", "link_to_outside@", "pipe"} <= set(result["entries"])
        assert ".weft/" not in result["entries"]


@pytest.mark.parametrize("pattern", ["../**", "../outside/*", "src/../../outside/*", "{..,src}/**", "/../**"])
def test_a_pattern_does_not_lead_out(pattern: str, place: Path, workspace: WorkspaceFolder) -> None:
    with pytest.raises(ToolFailure, match="goes back"):
        call(GlobTool(workspace), pattern=pattern)
    with pytest.raises(ToolFailure, match="goes back"):
        call(GrepTool(workspace), pattern="a", include=[pattern])


def test_a_long_folder_is_listed_in_parts(place: Path, workspace: WorkspaceFolder) -> None:
    (place / "many").mkdir()
    names = [f"{number:04}" for number in range(MOST_ENTRIES + 5)]
    for name in names:
        (place / "many" / name).touch()
    first = call(ListTool(workspace), path="many").result
    assert (first["total"], first["more"]) == (1005, "5 more: read on with offset 1001")
    rest = call(ListTool(workspace), path="many", offset=1001).result
    assert first["entries"] + rest["entries"] == names
    assert "more" not in rest


def test_a_name_that_is_no_utf_8_is_shown_with_marks(place: Path, workspace: WorkspaceFolder) -> None:
    (Path(str(place)) / "a").touch()
    with open(str(place).encode() + b"/\xff.txt", "wb"):
        pass
    assert "\\xff.txt" in call(ListTool(workspace)).result["entries"]
    assert call(GlobTool(workspace), pattern="*").result["files"] == ["a"]


@pytest.mark.parametrize(
    ("pattern", "fitting"),
    [
        ("**/*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("*.py", ["a.py"]),
        ("src/**", ["src/b.py", "src/c.txt", "src/deep/c.py"]),
        ("src/*/*.py", ["src/deep/c.py"]),
        ("**/[bc].py", ["src/b.py", "src/deep/c.py"]),
        ("**/[!b].{py,txt}", ["a.py", "src/c.txt", "src/deep/c.py"]),
        ("{a,src/b}.py", ["a.py", "src/b.py"]),
        ("src/?.py", ["src/b.py"]),
        ("**/deep/**/c.py", ["src/deep/c.py"]),
        ("none/**", []),
    ],
)
def test_glob_finds_sorted_paths(pattern: str, fitting: list[str], place: Path, workspace: WorkspaceFolder) -> None:
    lay_files(place, **{"a.py": "", "src/b.py": "", "src/c.txt": "", "src/deep/c.py": ""})
    output = call(GlobTool(workspace), pattern=pattern)
    assert output.result["files"] == fitting
    assert output.files == tuple(FileNote(kind=FileKind.REFERENCED, path=path) for path in fitting)


def test_glob_leaves_out_what_git_leaves_out(place: Path, workspace: WorkspaceFolder) -> None:
    rules = "# a comment\n*.log\n!keep.log\n/build\nout/\ndocs/*.html\n\\#literal\n**/cache/x\n[Tt]mp\n"
    names = [
        "a.log", "keep.log", "build/a", "src/build/a", "out/a", "src/out/a", "x/out", "docs/a.html", "docs/in/a.html",
        "#literal", "cache/x", "src/cache/x", "src/cache/y", "tmp", "src/Tmp/a", "src/inner.txt", "src/deep/inner.txt",
    ]  # fmt: skip
    lay_files(place, **dict.fromkeys(names, ""), **{".gitignore": rules, "src/.gitignore": "/inner.txt\n!a.log\n"})
    lay_files(place, **{"src/a.log": ""})
    subprocess.run(["git", "init", "--quiet", str(place)], check=True)
    command = ["git", "-C", str(place), "ls-files", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    expected = sorted(path for path in listed if not path.startswith(".weft/"))
    assert call(GlobTool(workspace), pattern="**").result["files"] == expected
    assert call(GlobTool(workspace), pattern="**", path="src").result["files"] == [
        path for path in expected if path.startswith("src/")
    ]


def test_a_walk_that_meets_a_limit_says_so(place: Path) -> None:
    lay_files(place, **{f"{number}/a": "word" for number in range(30)})
    workspace = WorkspaceFolder(place, limits=ReadLimits(entries=40))
    assert call(GlobTool(workspace), pattern="**").result["note"].startswith("not everything")
    assert call(GrepTool(workspace), pattern="word").result["note"].startswith("not everything")
    ticks = itertools.count(step=100)
    slow = GlobTool(WorkspaceFolder(place))
    slow._monotonic = lambda: float(next(ticks))
    assert call(slow, pattern="**").result["note"].startswith("not everything")


def test_patterns_and_names_that_fit_in_many_ways_are_matched_at_once() -> None:
    assert not PathPattern("/".join(["**"] * 100) + "/b").matches(["a"] * 300)
    assert not PathPattern("*a" * 200 + "[b]").matches(["a" * 250])
    assert not PathPattern("[a]*" * 200 + "b").matches(["a" * 250])
    with pytest.raises(ToolFailure, match="choices"):
        PathPattern("{a,b}" * 20)
    with pytest.raises(ToolFailure, match="characters"):
        PathPattern("a" * 2000)


def test_grep_shows_lines_with_their_surroundings(place: Path, workspace: WorkspaceFolder) -> None:
    lay_files(place, **{"a.py": "one\ntwo\nthree\nfour\nfive\nsix\nseven\ntwo\n", "src/b.txt": "Two\r\n"})
    output = call(GrepTool(workspace), pattern="^two$", context=1)
    assert output.result["text"].split("\n") == [
        "a.py-1- one", "a.py:2: two", "a.py-3- three", "--", "a.py-7- seven", "a.py:8: two",
    ]  # fmt: skip
    assert (output.result["matches"], output.result["files"]) == (2, 1)
    assert output.files == (
        FileNote(kind=FileKind.READ, path="a.py", line_start=1, line_end=3),
        FileNote(kind=FileKind.READ, path="a.py", line_start=7, line_end=8),
    )
    loud = call(GrepTool(workspace), pattern="t(w)o", ignore_case=True, exclude=["*.py"]).result
    assert loud["text"] == "src/b.txt:1: Two"
    assert call(GrepTool(workspace), pattern="two", include=["src/**"]).result["matches"] == 0
    assert call(GrepTool(workspace), pattern="two", path="a.py").result["matches"] == 2
    assert plan(GrepTool(workspace), pattern="two", path="src/../a.py").subjects == ("a.py",)


def test_grep_is_read_on_by_offset(place: Path, workspace: WorkspaceFolder) -> None:
    lay_files(place, **{f"{number}.txt": "fits\nnot\nfits\n" for number in range(5)})
    whole = call(GrepTool(workspace), pattern="fits").result["text"].split("\n")
    parts: list[str] = []
    for offset in (1, 4, 7, 10):
        result = call(GrepTool(workspace), pattern="fits", limit=3, offset=offset).result
        parts += result["text"].split("\n")
        assert result.get("more") == (
            f"{10 - offset - 2} more lines fit: read on with offset {offset + 3}" if offset < 10 else None
        )
    assert parts == whole
    assert len(whole) == 10


def test_grep_counts_lines_as_the_program_grep_does(place: Path, workspace: WorkspaceFolder) -> None:
    lay_files(place, **{"a.txt": "\n\nx\n\ny", "b.txt": "", "c.txt": "z\n", "d.txt": "a\0b"})
    for pattern in ("^", "$", "x*", ".", "y$", "^$", "[^x]", r"\s"):
        command = ["grep", "-cP", pattern, str(place / "a.txt")]
        counted = subprocess.run(command, check=False, capture_output=True, text=True)
        assert call(GrepTool(workspace), pattern=pattern, path="a.txt").result["matches"] == int(counted.stdout)


@pytest.mark.parametrize(
    "pattern", [r"(a+)+$b", r"(a|a)*b", r"(.*)*(.*)*[^a]", r"^(([a-z])+.)+[A-Z]([a-z])+$", r"(?:a?){200}a{200}b"]
)
def test_hostile_expressions_end(pattern: str, place: Path, workspace: WorkspaceFolder) -> None:
    """Each of them takes a backtracking matcher longer than the universe is old."""
    lay_files(place, **{"a.txt": "a" * 20_000 + "\n" + "a" * 20_000})
    assert call(GrepTool(workspace), pattern=pattern).result["matches"] == 0


TOO_LARGE = (r"(?:.{0,100}a){8}z", r".{1000}a.{900}z", r"((a{30}){30}){30}")
NO_EXPRESSIONS = (r"(a", r"\1", r"(?=a)", "", "a\0", "\ud800")


@pytest.mark.parametrize("pattern", [*TOO_LARGE, *NO_EXPRESSIONS])
def test_expressions_that_are_none_or_too_large_are_refused(pattern: str, workspace: WorkspaceFolder) -> None:
    with pytest.raises(ToolFailure) as failure:
        plan(GrepTool(workspace), pattern=pattern)
    assert failure.value.code == "invalid_pattern"


def test_what_grep_shows_is_bounded(place: Path, workspace: WorkspaceFolder) -> None:
    lay_files(place, **{"wide.txt": ("x" * 5000 + "\n") * 300, "long.txt": "x\n" * 20_000})
    result = call(GrepTool(workspace), pattern="x", limit=1000, context=3, path="wide.txt").result
    assert len(result["text"]) < 400_000
    assert result["matches"] == 300
    assert "[the rest of this line is left out: it has 5000 bytes]" in result["text"]
    long = call(GrepTool(workspace), pattern="x", path="long.txt").result
    assert long["note"].startswith("not everything")
    assert (long["matches"], long["files"], len(long["text"].split("\n"))) == (10_000, 1, 200)


def test_grep_shows_nothing_of_files_that_may_not_be_read(place: Path, workspace: WorkspaceFolder) -> None:
    lay_files(place, **{"open.txt": "word\n", "secrets/key.txt": f"word {CANARY}\n"})
    tool = GrepTool(workspace, lambda path: not path.startswith("secrets/"))
    result = call(tool, pattern="word").result
    assert (result["text"], result["matches"]) == ("open.txt:1: word", 1)
    with pytest.raises(ToolFailure, match="may not be read"):
        call(tool, pattern="word", path="secrets/key.txt")
    (place / "alias").symlink_to("secrets/key.txt")
    with pytest.raises(ToolFailure, match="may not be read"):
        call(tool, pattern="word", path="alias")


def test_grep_looks_through_files_of_secrets_only_where_one_is_named(place: Path, workspace: WorkspaceFolder) -> None:
    for name in (".env", "src/server.pem", "src/app.py"):
        (place / name).write_text("key = 1\n")
    tool = GrepTool(workspace)
    for include in ([], [".env", "*.pem", "*.py"]):
        result = call(tool, pattern="key", path=".", include=include).result
        assert result["text"] == "src/app.py:1: key = 1"
        assert "2 files or folders" in result["note"]
    assert call(tool, pattern="key", path=".env").result["text"] == ".env:1: key = 1"
    assert plan(tool, pattern="key", path=".env").subjects == (".env",), "so the policy is shown its name"
