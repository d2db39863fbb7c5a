"""resume, cherry-pick, summarize, session promote and session unify."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.surfaces.shell import Shell


@pytest.fixture
def homes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where both tools keep their things, away from anybody's own."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(folder / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(folder / "codex"))
    return folder


@pytest.fixture
def work(folder: Path) -> Path:
    """The folder that the sessions were recorded in."""
    work = folder / "work"
    work.mkdir()
    return work


@pytest.fixture
def branched(weft: Shell, work: Path) -> list[str]:
    first = weft.record("hello", workspace=str(work))
    weft("fork", "main", "side")
    return [first, weft.record("where is it?", session="side", response="at line 42")]


@pytest.mark.parametrize(("tool", "below"), [("claude-code", "claude/projects/{}"), ("codex", "codex/sessions")])
def test_a_session_is_written_where_its_tool_looks(
    weft: Shell, homes: Path, work: Path, branched: list[str], tool: str, below: str
) -> None:
    made = weft.json("resume", "side", "--as", tool, "--in", str(work))
    assert made["written"]
    named = "".join(letter if letter.isalnum() else "-" for letter in str(work.resolve()))
    assert Path(made["path"]).is_relative_to(homes / below.format(named))
    assert made["command"].startswith(f"cd {work.resolve()} && ")
    assert made["session"] in made["command"]
    assert made["turn_id"] == branched[-1]
    lines = [json.loads(line) for line in Path(made["path"]).read_text().splitlines()]
    assert len(lines) == made["records"]


def test_a_person_gets_the_command_to_run(weft: Shell, homes: Path, work: Path, branched: list[str]) -> None:
    answer = weft("resume", "main", "--as", "codex")
    assert answer.code == 0
    assert f"run      cd {work.resolve()} && codex resume " in answer.out
    assert "compared with real files, not yet tried in the tool itself" in answer.out
    quiet = weft("resume", "main", "--as", "codex", "--quiet").out
    assert quiet.startswith(f"cd {work.resolve()} && codex resume ")


def test_for_a_folder_that_is_not_there_nothing_is_written(weft: Shell, homes: Path) -> None:
    weft.record("hello", workspace="/srv/not-there")
    refused = weft("resume", "main", "--as", "codex")
    assert refused.code == 5
    assert "/srv/not-there is no folder here" in refused.err
    assert "--in DIR" in refused.err
    assert not (homes / "codex").exists()
    planned = weft("resume", "main", "--as", "codex", "--dry-run")
    assert planned.code == 0
    assert "/srv/not-there is no folder here" in planned.err


def test_without_a_tool_it_is_the_one_that_the_session_comes_from(
    weft: Shell, homes: Path, branched: list[str]
) -> None:
    refused = weft("resume", "side")
    assert refused.code == 2
    assert "side comes from weft: say which tool to go on in" in refused.err
    made = weft.json("resume", "side", "--as", "codex")
    assert weft("import", made["path"]).code == 0
    assert weft.json("resume", made["session"], "--dry-run")["tool"] == "codex"


def test_a_fork_names_a_command_to_go_on_with_that_runs(weft: Shell, homes: Path, branched: list[str]) -> None:
    noted = weft("fork", "side", "by hand").err
    assert "or in Claude Code with `weft resume 'by hand' --tool claude-code` (Codex: `--tool codex`)" in noted
    assert weft("resume", "by hand", "--as", "claude-code").code == 0
    made = weft.json("resume", "side", "--as", "codex")
    Path(made["path"]).write_text(Path(made["path"]).read_text().replace("at line 42", "at line 43"))
    assert weft("import", made["path"]).code == 0
    assert weft("fork", made["session"], "imported").err.endswith(", or in Codex with `weft resume imported`\n")
    assert weft.json("resume", "imported")["tool"] == "codex"


def test_a_dry_run_writes_nothing_and_lists_what_is_lost(weft: Shell, homes: Path) -> None:
    thought = {"content": [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "yes"}]}
    weft.record("think", response=thought)
    answer = weft("resume", "main", "--as", "claude-code", "--in", ".", "--dry-run")
    assert answer.code == 0
    assert "lost     1 × thinking: Thinking of other tools" in answer.out
    assert "would be " in answer.out
    assert weft.json("resume", "main", "--as", "claude-code", "--in", ".", "--dry-run")["lost"] == {"thinking": 1}
    assert not (homes / "claude").exists()


def test_what_was_resumed_is_imported_as_the_same_turns(weft: Shell, homes: Path, branched: list[str]) -> None:
    made = weft.json("resume", "side", "--as", "claude-code")
    before = weft.json("log")
    weft("import", made["path"])
    assert [turn["id"] for turn in weft.json("log")] == [turn["id"] for turn in before]
    heads = {session["label"]: session["head"] for session in weft.json("sessions")}
    assert heads[made["session"]] == heads["side"]


def test_a_session_without_a_folder_is_refused_with_what_to_do(weft: Shell, homes: Path) -> None:
    weft.record("q")
    answer = weft("resume", "main", "--as", "codex")
    assert answer.code == 5
    assert "--in DIR" in answer.err


def test_a_picked_turn_is_told_with_its_source(weft: Shell, branched: list[str]) -> None:
    answer = weft("cherry-pick", "side", "--onto", "main")
    made = weft.json("show", "main")
    assert answer.out == f"{made['id'][-8:]} on main from {branched[-1][-8:]}\n"
    assert answer.err == "undo: weft restore main\n"
    assert made["provenance"][0]["source_id"] == branched[-1]
    assert f"From:    turn {branched[-1][-8:]}" in weft("show", "main").out
    assert f"Into:    turn {made['id'][-8:]}" in weft("show", "side").out
    assert f"From:  turn {branched[-1][-8:]}" in weft("log", "main").out


def test_several_picks_are_undone_together(weft: Shell, branched: list[str]) -> None:
    head = weft.json("show", "main")["id"]
    weft.record("and then?", session="side")
    answer = weft("cherry-pick", "side~1", "side", "--onto", "main")
    assert answer.err == "undo: weft restore main 2\n"
    weft("restore", "main", "2")
    assert weft.json("show", "main")["id"] == head


def test_a_summary_is_told_with_its_branch(weft: Shell, branched: list[str]) -> None:
    answer = weft("summarize", "side", "--into", "main", stdin="It is at line 42.\n")
    made = weft.json("show", "main")
    left = f"which left at {branched[0][-8:]}"
    assert answer.out == f"{made['id'][-8:]} on main sums up the branch to {branched[-1][-8:]}, {left}\n"
    assert made["messages"][0]["content"][0]["text"] == "It is at line 42."
    assert f"From:    the branch to {branched[-1][-8:]}, {left}" in weft("show", "main").out
    assert f"Into:    turn {made['id'][-8:]}, as a summary" in weft("show", "side").out
    assert f"From:  the branch to {branched[-1][-8:]}" in weft("log", "main").out


def test_a_summary_may_come_from_a_file(weft: Shell, folder: Path, branched: list[str]) -> None:
    (folder / "found.md").write_text("line 42\n")
    told = weft.json("summarize", "side", "--into", "main", "--file", "found.md")
    assert (told["source_id"], told["left_id"]) == (branched[-1], branched[0])
    assert weft("summarize", "side", "--into", "main", "--file", "found.md", "--text", "x").code == 2


def test_a_command_repeated_with_its_key_does_nothing_more(weft: Shell, branched: list[str]) -> None:
    for arguments in (
        ("cherry-pick", "side", "--onto", "main"),
        ("summarize", "side", "--into", "main", "--text", "t"),
    ):
        first = weft.json(*arguments, "--key", arguments[0])
        assert weft.json(*arguments, "--key", arguments[0]) == first
    answer = weft("summarize", "side", "--into", "main", "--text", "other", "--key", "summarize")
    assert "was used for something else" in answer.err


def test_a_key_is_promoted_once(weft: Shell, branched: list[str]) -> None:
    for _ in range(2):
        assert weft("session", "promote", "side", "person:ann").out == "person:ann leads to side\n"
    assert weft.json("session", "promote", "side", "person:ann")["label"] == "side"
    assert "main" in weft("session", "promote", "side", "main").err


def test_two_sessions_become_one_and_the_note_undoes_it(weft: Shell, folder: Path, branched: list[str]) -> None:
    weft("session", "promote", "side", "person:ann")
    answer = weft("session", "unify", "side", "--into", "main")
    turn = weft.json("show", "main")
    told = f"{turn['id'][-8:]} on main tells of unified/side, which is archived"
    assert answer.out == f"side, person:ann lead to main\n{told}\n"
    assert "- where is it?" in turn["messages"][0]["content"][0]["text"]
    assert f"From:    the branch to {branched[-1][-8:]}" in weft("show", "main").out
    assert weft.json("show", "person:ann")["id"] == turn["id"]
    assert answer.err == "undo: weft session unify unified/side --undo\n"
    assert weft("session", "unify", "unified/side", "--undo").out == "side is a session of its own again\n"
    assert weft.json("show", "person:ann")["id"] == branched[-1]
    (folder / "told.md").write_text("It is at line 42.\n")
    arguments = ("session", "unify", "side", "--into", "main", "--summary-from", "told.md", "--key", "k")
    document = weft.json(*arguments)
    assert weft.json(*arguments) == document
    assert (document["session"]["label"], document["archived"]["label"]) == ("main", "unified/side")
    assert document["names"] == ["side", "person:ann"]
    assert weft.json("show", document["summary"]["id"])["messages"][0]["content"][0]["text"] == "It is at line 42."


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--into", "main", "--summary", "x", "--summary-from", "y"),
        ("--undo", "--into", "main"),
        ("--undo", "--key", "k"),
    ],
)
def test_a_merge_that_is_not_said_plainly_is_refused(
    weft: Shell, branched: list[str], options: tuple[str, ...]
) -> None:
    assert weft("session", "unify", "side", *options).code == 2


def test_a_session_that_moved_is_left_alone(weft: Shell, branched: list[str]) -> None:
    weft.record("meanwhile")
    answer = weft("cherry-pick", "side", "--onto", "main", "--expected", branched[0])
    assert answer.code == 4
    assert "session 'main' is at" in answer.err
    assert weft.json("show", "main")["messages"][0]["content"][0]["text"] == "meanwhile"
