"""projects and story."""

import json
import time
from datetime import date
from pathlib import Path

import pytest

from tests.surfaces.shell import Shell
from weft.surfaces.cli.periods import period_ends


def work(weft: Shell, query: str, folder: str, *files: str, session: str = "main", model: str = "none-such") -> None:
    answer = {"role": "assistant", "content": "ok", "files": [{"kind": "written", "path": path} for path in files]}
    usage = {"input_tokens": 1000, "output_tokens": 100}
    weft.record(query, session=session, response=answer, workspace=folder, model=model, usage=usage)


def test_projects_are_listed(weft: Shell) -> None:
    assert "no turns yet" in weft("projects").err
    work(weft, "Fix the date.", "/src/app", "a.py")
    work(weft, "Write a page.", "/src/site", session="other")
    rows = [line.split("\t") for line in weft("projects").out.splitlines()]
    assert {(row[0], row[1], row[2], row[-1]) for row in rows} == {
        ("app", "1", "1", "/src/app"),
        ("site", "1", "1", "/src/site"),
    }
    (one,) = weft.json("projects", "-n", "1")
    assert (one["sessions"], one["turns"], one["spending"]["total"]) == (1, 1, 1100)
    assert "1 more" in weft("projects", "-n", "1").err
    assert "no work in that time" in weft("projects", "--until", "2001-01-01").err


def test_a_story_tells_sessions_files_and_cost(weft: Shell) -> None:
    work(weft, "Fix the date.", "/src/app", "a.py")
    work(weft, "Again.", "/src/app", "a.py", "b.py")
    for n in range(3):
        work(weft, "Look for mistakes.", "/src/app", session=f"look-{n}")
    out = weft("story").out
    assert "4 sessions, 1 project, 5 turns" in out
    assert "5.5k tokens, ?" in out
    assert "Fix the date.  [2 turns, none-such, ?]" in out
    assert "Look for mistakes.  [3 sessions, 3 turns, none-such, ?]" in out
    assert "2 files written:\n    a.py  (2x)\n    b.py\n" in out
    assert weft.json("story")["projects"][0]["path"] == "/src/app"


def test_a_story_adds_up_the_cost_of_sessions_that_it_tells_as_one(weft: Shell) -> None:
    for n in range(3):
        work(weft, "Look for mistakes.", "/src/app", session=f"look-{n}", model="claude-opus-4-5")
    work(weft, "Look for mistakes.", "/src/app", session="look-3")
    out = weft("story").out
    assert "[4 sessions, 4 turns, none-such, claude-opus-4-5, $0.0225+]" in out


def test_a_long_story_is_folded(weft: Shell) -> None:
    for n in range(14):
        work(weft, f"Task {n}.", "/src/app", f"{n}.py", session=f"s{n}")
    out = weft("story").out
    assert "… 2 more sessions (--full)" in out
    assert "… 6 more (--full)" in out
    assert "(--full)" not in weft("story", "--full").out


def test_a_story_without_anything_says_so(weft: Shell) -> None:
    assert "no turns yet: `weft import`" in weft("story").err
    work(weft, "Fix the date.", "/src/app")
    assert weft("story", "last", "week").out == ""
    assert "nothing was recorded in the period 'last week': `weft story all`" in weft("story", "last week").err
    assert "Fix the date." in weft("story", "all").out
    assert "Fix the date." in weft("story", "today").out
    assert weft.json("story", "..yesterday")["projects"] == []


def test_a_story_tells_sessions_without_a_date_apart(weft: Shell, folder: Path) -> None:
    """A run that `codex exec --json` printed tells no time."""
    printed = [
        {"type": "thread.started", "thread_id": "0199a213-81c0-7800-8aa1-bbab2a035a53"},
        {"type": "turn.started"},
        {"type": "item.completed", "item": {"id": "item_0", "type": "agent_message", "text": "All is well."}},
        {"type": "turn.completed", "usage": {"input_tokens": 7, "cached_input_tokens": 0, "output_tokens": 3}},
    ]
    (folder / "run.jsonl").write_text("".join(json.dumps(event) + "\n" for event in printed))
    assert weft("import", str(folder / "run.jsonl")).code == 0
    assert weft("story", "all").out.splitlines()[0] == "no dates"
    work(weft, "Fix the date.", "/src/app")
    lines = weft("story", "all").out.splitlines()
    assert lines[0] == date.today().isoformat()
    at = lines.index("  without a date (their tools noted none):")
    assert lines[at - 1].startswith("(none)")
    assert lines[at + 1].startswith("              ")
    assert "All is well." not in weft("story", "today").out
    assert [line.split()[0] for line in weft("projects").out.splitlines()] == ["app", "(none)"]
    assert "Fix the date." in weft("log", "--oneline").out.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        ("today", ("today", "today")),
        ("2026-02-03", ("2026-02-03", "2026-02-03")),
        ("2026-02", ("2026-02-01", "2026-02-28")),
        ("2026-12", ("2026-12-01", "2026-12-31")),
        ("2024", ("2024-01-01", "2024-12-31")),
        ("Last  Week", ("2026-11-09", "2026-11-15")),
        ("this week", ("2026-11-16", "2026-11-22")),
        ("last month", ("2026-10-01", "2026-10-31")),
        ("this month", ("2026-11-01", "2026-11-30")),
        ("last year", ("2025-01-01", "2025-12-31")),
        ("2 weeks ago", ("2 weeks ago", None)),
        ("2026-02..2026-03", ("2026-02-01", "2026-03-31")),
        ("2026-02..", ("2026-02-01", None)),
        ("..yesterday", (None, "yesterday")),
        ("2026-02-01..2 days ago", ("2026-02-01", "2 days ago")),
        ("all", (None, None)),
    ],
)
def test_a_period_is_read_as_people_write_it(words: str, ends: tuple[str | None, str | None]) -> None:
    assert period_ends(words, date(2026, 11, 17)) == ends


@pytest.mark.parametrize("day", ["0001", "0001-01-01"])
def test_a_day_at_the_end_of_the_calendar_is_refused_in_words(
    weft: Shell, monkeypatch: pytest.MonkeyPatch, day: str
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        answer = weft("story", day)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert answer.code != 0
    assert "is beyond the calendar" in answer.err
