"""read: a conversation on a terminal, in the pager, as plain text and as JSON."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.surfaces.shell import PROGRAM, Shell, masked, on_terminal
from tests.surfaces.test_cli_terminal import FORBIDDEN, HOSTILE, plain
from weft.surfaces.cli import command_line
from weft.surfaces.cli.reading import read
from weft.surfaces.cli.reading.read import find_less, less_arguments, markdown_lines
from weft.surfaces.cli.screen import Screen
from weft.surfaces.plain_text import cut_at_word, width, wrapped_line

ANSWER = """\
# Done

I changed **two** files, see `src/dates.py`:

- the parser keeps offsets such as `+02:00`
- a test covers it

| file | lines |
|---|---|
| dates.py | 3 |

```python
def parse(text):
    return fromisoformat(text)
```
"""
TYPED = "Fix C:\\Users\\_me\\.ssh and *keep*\n    this indented line, <b>please</b> " + "word " * 30


def work(weft: Shell) -> str:
    """Two turns, with steps and with a long prompt; and one that failed, whose id is returned."""
    calls: list[dict[str, Any]] = [
        {"name": "Bash", "arguments": {"command": f"ls {n}"}, "result": "x"} for n in range(9)
    ]
    calls += [{"name": "Edit", "arguments": {"file_path": "/w/dates.py"}, "result": "edited"} for _ in range(2)]
    weft.record("test_dates fails. Why?", response=ANSWER, tool_calls=calls, workspace="/w")
    weft.record(TYPED.strip(), response="Kept.")
    return weft.record("And now?", error="out of quota", response=None)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output is a terminal of 60 columns, without a pager."""
    screen = Screen(color=True, unicode=True, terminal=True, columns=60, rows=24, paging=False)
    monkeypatch.setattr(command_line, "stdout_screen", lambda **_: screen)


@pytest.mark.usefixtures("terminal")
def test_a_conversation_is_read_in_full_with_its_steps_in_a_line(weft: Shell) -> None:
    failed = work(weft)
    shown = masked(re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "DATE", plain(weft("read").out)))
    assert shown.startswith(
        """\
test_dates fails. Why?
main, w, DATE, 2 turns

── turn 1 of 2, DATE, T1 ────────"""
    )
    assert (
        """
▌ test_dates fails. Why?

  ▸ 11 steps: 9 Bash, 2 Edit

  Done

  I changed two files, see src/dates.py:

   • the parser keeps offsets such as +02:00
   • a test covers it


   file      lines
   ───────────────
   dates.py  3


    python
    def parse(text):
        return fromisoformat(text)

── turn 2 of 2,"""
        in shown
    )
    assert "▌ Fix C:\\Users\\_me\\.ssh and *keep*\n▌     this indented line, <b>please</b> word word word" in shown
    assert all(width(line) <= 60 for line in shown.splitlines())
    assert "ls 3" not in shown
    apart = plain(weft("read", failed).out)
    assert ", failed ──" in apart
    assert apart.endswith("▌ And now?\n\n  error: out of quota\n")


def test_a_fork_is_headed_with_its_own_name(weft: Shell) -> None:
    weft.record("one")
    turn = weft.record("two")
    weft("fork", "main", "aside")
    heads = [weft("read", name).out.splitlines()[1].split(", ")[0] for name in ("aside", "aside~1", "main", turn)]
    assert heads == ["aside", "aside", "main", "main"]


def test_a_deleted_session_is_headed_with_its_own_title(weft: Shell) -> None:
    weft.record("an old question")
    (old,) = weft.json("sessions")
    weft("delete", "main", "--yes")
    weft.record("a new question")
    assert weft("read", old["id"]).out.splitlines()[0] == "an old question"
    weft("delete", "main", "--yes")
    assert weft("read", old["id"]).out.splitlines()[0] == "an old question"


@pytest.mark.usefixtures("terminal")
def test_steps_are_unfolded(weft: Shell) -> None:
    work(weft)
    shown = plain(weft("read", "--steps").out)
    assert "  ▸ 11 steps: 9 Bash, 2 Edit\n  │   ✓ Bash ls 0" in shown
    assert "  │   ✓ Edit dates.py" in shown


def test_a_conversation_that_is_piped_is_plain_text(weft: Shell) -> None:
    work(weft)
    shown = weft("read", "main").out
    assert "-- turn 2 of 2, " in shown
    assert "turn 2" not in weft("read", "main~1").out
    assert f"> {TYPED.splitlines()[1].rstrip()}\n" in shown
    assert "  | dates.py | 3 |\n" in shown
    assert "  + 11 steps: 9 Bash, 2 Edit\n\n  # Done\n" in shown


def test_a_conversation_as_json_has_every_turn(weft: Shell) -> None:
    work(weft)
    first, second = weft.json("read")
    assert [turn["depth"] for turn in (first, second)] == [1, 2]
    assert [message["role"] for message in first["messages"]] == ["user", "assistant"]
    assert len(first["tool_calls"]) == 11
    assert first["session"] == "main"
    alone = weft.json("show", "main~1")
    assert {name: value for name, value in first.items() if name != "session"}.items() <= alone.items()


def test_without_a_name_the_latest_session_is_read(weft: Shell) -> None:
    assert weft("read").out == ""
    assert "no turns yet: `weft import`" in weft("read").err
    assert weft.json("read") == []
    weft.record("first")
    weft.record("second", session="other")
    assert "> second" in weft("read").out
    weft.record("third")
    assert "> third" in weft("read").out
    assert weft("read", "none-such").code == 3


@pytest.mark.usefixtures("terminal")
def test_what_a_tool_added_to_a_prompt_is_folded(weft: Shell) -> None:
    weft.record("<system-reminder>\nBe brief.\n</system-reminder>\nWhat is left?", response="Nothing.")
    weft.record("<command-name>/review</command-name>\n<command-args>12</command-args>")
    shown = plain(weft("read").out)
    assert "  ▸ added by the tool: system-reminder, 3 lines\n▌ What is left?\n" in shown
    assert "Be brief." not in shown
    assert "  │ Be brief.\n" in plain(weft("read", "--steps").out)
    assert "▌ /review 12\n" in shown


@pytest.mark.usefixtures("terminal")
def test_no_stored_text_drives_the_terminal_of_a_reader(weft: Shell) -> None:
    weft.record(
        HOSTILE, response=f"# {HOSTILE}\n\n{HOSTILE}\n\n```{HOSTILE}\n{HOSTILE}\n```\n", tool_calls=[{"name": HOSTILE}]
    )
    for options in ((), ("--steps",)):
        shown = weft("read", *options).out
        assert not FORBIDDEN.search(plain(shown).replace("\n", ""))
        assert "evil" in shown


MARKS = st.sampled_from(
    ["word", "C:\\x\\_y", "\n", "\n\n", "# ", "- ", "1. ", "> ", "`", "```\n", "**", "_", "[a](b)", "![i](u)", "<b>",
     "</b>", "&lt;", "|", "|-|-|\n", "[r]: http://x\n", "<!-- no -->", "    ", "~~", "***\n", "\\*", "日本語", "é",
     "<details>\n"]
)  # fmt: skip


@given(st.lists(MARKS, max_size=40).map("".join), st.integers(12, 60))
def test_no_letter_of_an_answer_is_lost_in_its_formatting(text: str, columns: int) -> None:
    lines = [
        "".join(span if isinstance(span, str) else span.text for span in line) for line in markdown_lines(text, columns)
    ]

    def letters(source: str) -> str:
        return "".join(sorted(re.sub(r"[\W_]", "", source)))

    missing = list(letters(text))
    for letter in letters("".join(lines)):
        if letter in missing:
            missing.remove(letter)
    assert missing == []


@given(st.text(st.sampled_from("ab -日é.\u200d"), max_size=80), st.integers(4, 30))
def test_a_wrapped_line_keeps_its_text_and_its_width(line: str, columns: int) -> None:
    pieces = wrapped_line(line, columns)
    assert all(width(piece) <= columns for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(line.split())
    words = [word for word in line.split() if width(word) <= columns // 2]
    assert all(word in " ".join(pieces) for word in words)


def test_a_text_is_cut_at_the_end_of_a_word() -> None:
    assert cut_at_word("one two three", 9) == "one two…"
    assert cut_at_word("one two three", 13) == "one two three"
    assert cut_at_word("x incomprehensibilities", 12) == "x incompreh…"


@pytest.mark.usefixtures("terminal")
def test_show_and_notes_wrap_at_words(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    weft.record("word " * 30, response="other " * 30)
    shown = plain(weft("show", "main").out)
    assert "\nuser\n" + ("  " + "word " * 10 + "word\n") * 2 in shown
    assert f"Digest:  {weft.json('show')['digest']}\n" in shown
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    noted = weft("search", "other", "-n", "0").err
    assert plain(noted).startswith("there are more: `-n 20` shows them,\nfilters such as --since show fewer")


# --- the pager ----------------------------------------------------------------------------------------------------


class Pager:
    """`weft read` in `less` on a terminal, as a person uses it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._terminal, theirs = pty.openpty()
        settings = {"TERM": "xterm", "COLUMNS": "60", "LINES": "12", "PYTHONIOENCODING": "utf-8", "LANG": "C.UTF-8"}
        self._child = subprocess.Popen(
            [*PROGRAM, *arguments],
            cwd=folder,
            env={**os.environ, **settings},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def until(self, words: str) -> str:
        """What the terminal is sent until these words come."""
        shown = b""
        while words not in plain(shown.decode(errors="replace")):
            shown += os.read(self._terminal, 65536)
        return plain(shown.decode(errors="replace"))

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def leave(self) -> int:
        self.press("q")
        try:
            while os.read(self._terminal, 65536):
                pass
        except OSError:  # the other side is closed
            pass
        os.close(self._terminal)
        return self._child.wait(timeout=300)


@pytest.mark.skipif(find_less() is None, reason="less is not installed")
def test_the_pager_goes_from_prompt_to_prompt_and_shows_steps(weft: Shell) -> None:
    long = "\n\n".join(f"answer {n}" for n in range(30))
    weft.record("Look!", response=long, tool_calls=[{"name": "Bash", "arguments": {"command": "ls 3"}, "result": 1}])
    weft.record("And?", response=long)
    weft.record("Last words?", response=long)
    reading = Pager(weft.folder, "read", "main")
    first = reading.until("q: quit")
    assert "▸ 1 step: Bash" in first
    assert "ls 3" not in first
    reading.press("n")
    reading.until("q: quit")
    for number in (2, 3):
        reading.press("n")
        assert f"turn {number} of 3" in reading.until("q: quit")
    reading.press("g")
    reading.until("q: quit")
    reading.press("&\r")
    assert "│   ✓ Bash ls" in reading.until("q: quit")
    reading.press("/answer 7\r")
    assert "answer 7" in reading.until("q: quit")
    assert reading.leave() == 0


def test_a_pager_that_cannot_be_read_means_the_usual_one(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAGER", raising=False)
    usual = find_less()
    monkeypatch.setenv("PAGER", 'less "')
    assert find_less() == usual
    monkeypatch.setenv("PAGER", 'less "')
    paged: list[str] = []
    monkeypatch.setattr("click.echo_via_pager", lambda texts, **_: paged.extend(texts))
    Screen(color=False, unicode=True, terminal=True, columns=60, rows=2, paging=True).page([["a"], ["b"], ["c"]])
    assert "PAGER" not in os.environ
    assert "".join(paged).split() == ["a", "b", "c"]


def test_another_pager_gets_no_folded_lines(weft: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work(weft)
    monkeypatch.setenv("PAGER", "cat")
    assert find_less() is None
    small = tmp_path / "less"
    small.write_text("#!/bin/sh\necho BusyBox\n")
    small.chmod(0o755)
    monkeypatch.setenv("PAGER", str(small))
    assert find_less() is None
    _, shown = on_terminal(weft.folder, "read", LINES="10")
    assert "11 steps" in shown
    assert "ls 3" not in shown
    assert read.HEADING in shown


def test_the_keys_that_less_starts_with_suit_the_terminal() -> None:
    assert less_arguments(unicode=True, unfold=False)[-1] == "+&!^  │\n/^── \ng"
    assert less_arguments(unicode=False, unfold=True)[-1] == "+/^-- \ng"
    assert json.dumps(less_arguments(unicode=False, unfold=False)[2:5]).count("&, Enter") == 3
