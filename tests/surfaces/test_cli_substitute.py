"""`weft substitute`: what readers are shown afterwards, and what was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.surfaces.shell import Shell

CALL = {"id": "c1", "name": "look", "arguments": {"at": "x"}, "result": "old result"}


@pytest.fixture
def town(weft: Shell) -> Shell:
    weft.record("which town?", response="it is Lyon", tool_calls=[CALL])
    return weft


def test_readers_are_shown_the_other_words_and_the_original_on_request(town: Shell, folder: Path) -> None:
    digest = town.json("show", "main")["digest"]
    note = town.json("substitute", "main", "--with", "it is Paris", "--reason", "Lyon is not the capital")
    assert (note["by"], note["reason"]) == ("local", "Lyon is not the capital")
    shown = town("show", "main").out
    assert "assistant substituted by local: Lyon is not the capital" in shown
    assert "it is Paris" in shown
    assert "it is Lyon" not in shown
    assert town.json("show", "main")["messages"][1]["substituted"] == note
    assert "substituted" not in town("show", "main", "--original").out
    assert "it is Lyon" in town("show", "main", "--original").out
    assert town.json("show", "main")["digest"] == digest
    for form, mark in (("markdown", "**Assistant · substituted**"), ("html", "substituted"), ("jsonl", "substitutes")):
        page, original = (town("export", "main", "--as", form, *more).out for more in ((), ("--original",)))
        assert ("it is Paris" in page, "it is Lyon" in page, mark in page) == (True, False, True)
        assert ("it is Paris" in original, "it is Lyon" in original, mark in original) == (False, True, False)
    assert town("export", "main", "--original", "-o", "a.md").code == 0
    assert "it is Lyon" in (folder / "a.md").read_text()
    assert "it is Paris" in town("context").out
    assert "it is Lyon" in town("context", "--original").out
    assert "it is Paris" in town("read").out
    assert "it is Lyon" in town("read", "--original").out
    assert "it is Lyon" in town("read", "--original", "--json").out
    assert "Paris" in town("search", "Paris").out
    assert town("verify").code == 0


def test_a_prompt_is_what_log_says_of_its_turn(town: Shell) -> None:
    prompt = town.json("show", "main")["messages"][0]["id"]
    assert town("substitute", prompt, "--with", "which city?").code == 0
    assert "which city?" in town("log").out
    assert "[substituted]" in town("log").out
    assert "substituted" in town("read").out
    assert "user substituted" in town("search", "city").out


def test_a_tools_result_comes_from_a_file_or_a_pipe_and_is_undone(town: Shell, folder: Path) -> None:
    call = town.json("show", "main")["tool_calls"][0]["id"]
    (folder / "new.txt").write_text("new result")
    answer = town("substitute", call, "--with", "@new.txt")
    assert answer.code == 0
    assert " is shown as " in answer.out
    shown = town("show", "main").out
    assert "result substituted" in shown
    assert "new result" in shown
    assert town("substitute", call, "--with", "-", stdin="piped result").code == 0
    assert town.json("show", "main")["tool_calls"][0]["result"] == "piped result"
    undone = town("substitute", call, "--undo")
    assert undone.out.endswith(" is shown as it was recorded\n")
    assert town.json("show", "main")["tool_calls"][0]["result"] == "old result"


def test_another_event_can_stand_in(town: Shell) -> None:
    town.record("which one?", response="it is Rome")
    note = town.json("substitute", "main~1", "--with-event", "main")
    assert town.json("show", "main~1")["messages"][1]["content"][0]["text"] == "it is Rome"
    assert town("substitute", note["original"][:9], "--undo").code == 0
    assert "it is Lyon" in town("show", "main~1").out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("main",), 2, "one of --with, --with-event and --undo"),
        (("main", "--with", "x", "--undo"), 2, "one of --with, --with-event and --undo"),
        (("main", "--with", "@none.txt"), None, "none.txt"),
        (("main", "--with", "@odd"), 2, "not UTF-8"),
        (("nobody", "--with", "x"), None, "nobody"),
        (("main", "--undo"), None, "nothing to undo"),
    ],
)
def test_what_cannot_be_done_is_refused(
    town: Shell, folder: Path, arguments: tuple[str, ...], code: int | None, said: str
) -> None:
    (folder / "odd").write_bytes(b"\xff\xfe")
    answer = town("substitute", *arguments)
    assert answer.code not in (0, 70)
    assert code in (None, answer.code)
    assert said in answer.err
    assert "it is Lyon" in town("show", "main").out
