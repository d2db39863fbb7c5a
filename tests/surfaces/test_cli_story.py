"""What was worked on, as `weft story` and `weft projects` show it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import weft as library
from tests.ledger.imported import native_turn, take
from tests.surfaces.shell import Shell

DAY = 86_400_000


def test_a_session_that_worked_in_two_projects_is_counted_once(weft: Shell) -> None:
    weft.record("one", session="both", workspace="/src/app")
    weft.record("two", session="both", workspace="/src/lib")
    weft.record("three", session="other", workspace="/src/lib")
    assert weft("story", "all").out.splitlines()[1] == "2 sessions, 2 projects, 3 turns"


def test_a_subagent_that_worked_in_two_projects_is_counted_once(weft: Shell, folder: Path) -> None:
    first = native_turn("k1", started=DAY, end=1, workspace="/src/app")
    second = native_turn("k2", parent=0, started=DAY, offset=1, end=2, workspace="/src/lib")
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        take(ledger, "main", native_turn("t1", started=DAY, workspace="/src/app"))
        take(ledger, "main/child", first, second, file="b.jsonl", parent="main")
    assert weft("story", "all").out.splitlines()[1] == "1 session and 1 subagent, 2 projects, 3 turns"


def test_the_heading_of_a_period_ends_with_it(weft: Shell, folder: Path) -> None:
    """A turn that began in the period is part of it, also where it ended later."""
    begun = int(datetime(2025, 12, 30, 12).timestamp() * 1000)
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        take(ledger, "main", native_turn("t1", started=begun, ended=begun + 90 * DAY, workspace="/src/app"))
    assert weft("story", "2025").out.splitlines()[0] == "2025-01-01 to 2025-12-31"
    assert weft("story", "2025-12-30").out.splitlines()[0] == "2025-12-30"
    assert weft("story", "all").out.splitlines()[0] == "2025-12-30 to 2026-03-30"


def test_a_pipe_gets_whole_tokens_and_micro_dollars_of_projects(weft: Shell) -> None:
    usage = {"input_tokens": 1_234_567, "output_tokens": 123_456}
    weft.record("q", session="a", workspace="/src/app", model="claude-sonnet-4-5", usage=usage)
    weft.record("q", session="b", workspace="/src/lib", model="nobody-sells-this", usage=usage)
    weft.record("q", session="c", workspace="/src/new")
    rows = [line.split("\t")[:5] for line in weft("projects").out.splitlines()]
    totals = {project["name"]: project for project in weft.json("projects")}
    assert rows == [
        ["new", "1", "1", "0", "0"],
        ["lib", "1", "1", "1358023", ""],
        ["app", "1", "1", "1358023", str(totals["app"]["spending"]["cost"])],
    ]
