"""Tables on a terminal: what is cut and what is left out where it is narrow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.surfaces.shell import Shell, on_terminal
from weft.surfaces.cli.screen import fitting
from weft.surfaces.plain_text import width

LONG = "worktree-" + "of-a-very-long-branch-" * 5
USAGE = {"input_tokens": 1_234_567, "output_tokens": 123_456}
HEADER = ("name", "count", "title")


def work(weft: Shell, session: str, folder: str) -> None:
    weft.record(f"in {folder}", session=session, workspace=folder, model="claude-sonnet-4-5", usage=USAGE)


def table(folder: Path, columns: int, *arguments: str) -> list[str]:
    """The lines of a table on a terminal of so many columns, none of which is wider."""
    code, shown = on_terminal(folder, *arguments, "--no-color", COLUMNS=str(columns))
    assert code == 0
    lines = shown.split("\n\n")[0].splitlines()
    assert [line for line in lines if width(line) > columns] == []
    return lines


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (80, {0: 30, 1: 5, 2: 40}),
        (70, {0: 30, 1: 5, 2: 31}),
        (60, {0: 25, 1: 5, 2: 25}),
        (49, {0: 20, 1: 5, 2: 20}),
        (48, {0: 23, 2: 23}),
        (30, {0: 20, 2: 20}),
    ],
)
def test_columns_are_cut_the_widest_first_before_one_is_left_out(columns: int, expected: dict[int, int]) -> None:
    assert fitting(HEADER, (30, 5, 40), columns, ("count",), {"name": 20, "title": 20}) == expected


def test_a_column_that_may_not_be_cut_stays_whole() -> None:
    assert fitting(HEADER, (30, 5, 40), 60, (), {"title": 20}) == {0: 30, 1: 5, 2: 21}


def test_the_name_of_a_project_is_cut_so_that_tokens_and_cost_stay(weft: Shell, folder: Path) -> None:
    work(weft, "a", "/src/app")
    work(weft, "b", f"/src/{LONG}")
    for columns in (60, 80, 100):
        header, *rows = table(folder, columns, "projects")
        assert {"PROJECT", "TOKENS", "COST"} <= set(header.split())
        assert [row.split()[0][-1] for row in rows] == ["…", "p"]
        assert all("1.4M" in row and "$" in row for row in rows)
    assert LONG in weft("projects").out


def test_the_key_of_usage_is_cut_before_its_figures_are_left_out(weft: Shell, folder: Path) -> None:
    work(weft, "a", f"/src/{LONG}")
    header, row = table(folder, 60, "usage", "--by", "project")[:2]
    assert header.split() == ["PROJECT", "TOKENS", "INPUT", "OUTPUT", "COST"]
    assert row.split()[0].endswith("…")
    assert row.split()[1:-1] == ["1,358,023", "1,234,567", "123,456"]


def test_a_reflog_fits_a_narrow_terminal(weft: Shell, folder: Path) -> None:
    work(weft, LONG, "/src/app")
    work(weft, LONG, "/src/app")
    header, *rows = table(folder, 60, "reflog", LONG)
    assert header.split() == ["NAME", "TURN", "WHEN", "WHY", "REASON"]
    assert [row.split()[0][-5:] for row in rows] == ["…@{0}", "…@{1}"]
    wide = table(folder, 200, "reflog", LONG)
    assert wide[1].split()[0] == f"{LONG}@{{0}}"
    assert weft("reflog", LONG).out.startswith(f"{LONG}@{{0}}\t")


def test_sessions_and_projects_show_the_same_last_change(weft: Shell, folder: Path) -> None:
    work(weft, "a", "/src/app")
    sessions, projects = table(folder, 120, "sessions"), table(folder, 120, "projects")
    place = sessions[0].index("LAST CHANGE")
    changed = sessions[1][place : place + len("2026-11-15 09:30")]
    place = projects[0].index("LAST CHANGE")
    assert projects[1][place:].split("  ")[0] == changed
