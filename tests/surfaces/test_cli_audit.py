"""weft audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.surfaces.shell import Shell, on_terminal

ALLOWED: dict[str, Any] = {"tools_available": ["Read"], "tool_calls": [{"name": "Read", "result": 1}]}
NOT_ALLOWED: dict[str, Any] = {"tools_available": ["Read"], "tool_calls": [{"name": "Bash", "result": 1}]}
NOBODY_KNOWS: dict[str, Any] = {"tool_calls": [{"name": "Bash", "result": 1}]}


def test_an_empty_ledger_says_that_there_is_nothing(weft: Shell) -> None:
    answer = weft("audit")
    assert (answer.code, answer.out) == (0, "")
    assert "no turns to audit" in answer.err


def test_what_was_allowed_is_fine(weft: Shell) -> None:
    weft.record("q", **ALLOWED)
    answer = weft("audit", "--strict")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == "1 turn, 1 call: 1 allowed, 0 not allowed, 0 not known\n"


def test_what_was_not_allowed_is_shown_and_the_exit_code_says_so(weft: Shell) -> None:
    turn = weft.record("q", **NOT_ALLOWED)
    answer = weft("audit")
    assert answer.code == 1
    first, second = (line.split("\t") for line in answer.out.splitlines())
    assert first[:4] == ["tool_not_available", "main", turn[-8:], "Bash"]
    assert second[0] == "tool_unused"
    assert weft("audit", "--problems").out.count("\n") == 1
    found = weft("audit", "main", "--json")
    assert found.code == 1
    assert found.json["ok"] is False
    assert found.json["summary"]["problems"] == 1
    assert found.json["findings"][0]["turn_id"] == turn
    assert found.json["findings"][0]["started_at"].endswith("Z")


def test_what_is_not_known_counts_only_if_asked_to(weft: Shell) -> None:
    weft.record("q", **NOBODY_KNOWS)
    assert weft("audit").code == 0
    assert weft("audit", "--strict").code == 1


def test_everything_an_actor_did(weft: Shell) -> None:
    weft.record("q", persona="ann", **ALLOWED)
    lines = weft("audit", "--events", "--actor", "ann").out.splitlines()
    assert any("tool_call" in line and line.endswith("Read") for line in lines)
    found = weft.json("audit", "--events", "--actor", "ann")
    assert [deed["n"] for deed in found] == sorted(deed["n"] for deed in found)
    assert len(found) == len(lines)
    assert weft("audit", "--events", "--tool", "x").code == 2
    assert weft("audit", "--actor", "nobody").code == 3
    assert weft("audit", "nothing").code == 3


def test_a_terminal_gets_a_table(weft: Shell, folder: Path) -> None:
    weft.record("q", **NOT_ALLOWED)
    code, shown = on_terminal(folder, "audit")
    assert code == 1
    assert "FINDING" in shown
    assert "tool_not_available" in shown
    assert "tool_unused" in on_terminal(folder, "audit", "--list")[1]


def test_a_terminal_gets_a_summary_first(weft: Shell, folder: Path) -> None:
    for turn in (NOT_ALLOWED, NOBODY_KNOWS, ALLOWED):
        weft.record("q", session=f"s{len(turn['tool_calls'])}", **turn)
    shown = on_terminal(folder, "audit")[1]
    first, _, head, *rows = shown.splitlines()
    assert first.startswith("3 turns, 3 calls: 1 allowed, ")
    assert "FINDINGS" in head
    assert any("called, but not among its tools" in row and "Bash (1)" in row for row in rows)
    assert any("whether allowed is not known" in row for row in rows)
    assert sum("tool_not_available" in row for row in rows) == 1
    assert not any("tool_unused" in row for row in rows)


def test_rights_whose_use_was_not_recorded_are_no_calls_that_are_not_known(weft: Shell, folder: Path) -> None:
    weft.record("q", **NOBODY_KNOWS)
    weft.record("q", permissions_granted=["repo:read"])
    first, _, _, *rows = on_terminal(folder, "audit", NO_COLOR="1")[1].splitlines()
    assert first == "2 turns, 1 call: 0 allowed, 0 not allowed, 1 not known"
    assert [row.split("  ")[0] for row in rows[:2]] == [
        "called; whether allowed is not known",
        "rights granted; which were used is not recorded",
    ]
    assert [row.split("  ")[-1] for row in rows[:2]] == ["any tool (1)", "any right (1)"]


def test_the_same_finding_of_one_turn_is_one_line_of_the_summary(weft: Shell, folder: Path) -> None:
    calls = [{"name": name, "result": 1} for name in ["Bash"] * 25 + ["Edit"]]
    weft.record("q", **{**NOT_ALLOWED, "tool_calls": calls})
    shown = on_terminal(folder, "audit", NO_COLOR="1")[1]
    rows = [line.split() for line in shown.splitlines() if line.startswith("tool_not_available")]
    assert [row[3:5] for row in rows] == [["Bash", "25"], ["Edit", "1"]]
    assert "more were not allowed" not in shown
    assert len(weft("audit", "--problems").out.splitlines()) == 26


def test_events_are_lines_on_a_terminal(weft: Shell, folder: Path) -> None:
    weft.record("q", **NOT_ALLOWED)
    assert "tool_call" in on_terminal(folder, "audit", "--events")[1]
