"""`--limit` and `--after`: lists page by page, with the cursor of the next page on the error stream."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.sizes import share
from tests.surfaces.shell import Shell, on_terminal

LISTS = {
    "log": ["log"],
    "log of a thread": ["log", "main"],
    "log of a session": ["log", "--session", "main"],
    "search": ["search", "question"],
    "sessions": ["sessions"],
}


def filled(weft: Shell) -> Shell:
    for number in range(5):
        weft.record(f"question {number}")
        weft.record(f"question {number}", session=f"other-{number}")
    return weft


@pytest.mark.parametrize("name", share(list(LISTS), test=2))
def test_pages_join_to_the_whole_list(weft: Shell, name: str) -> None:
    whole = filled(weft).json(*LISTS[name])
    items, cursor, pages = [], list[str](), 0
    while True:
        answer = weft(*LISTS[name], "--json", "-n", "2", *cursor)
        items += answer.json
        pages += 1
        if not answer.err:
            break
        cursor = ["--after", json.loads(answer.err)["next"]]
    assert items == whole
    assert pages == (len(whole) + 1) // 2 > 2


@pytest.mark.parametrize("name", share(list(LISTS), test=2))
def test_people_are_told_the_cursor_of_the_next_page(weft: Shell, name: str) -> None:
    whole = filled(weft)(*LISTS[name]).out
    first = weft(*LISTS[name], "-n", "2")
    found = re.search(r"--after (\S+)$", first.err.strip())
    assert found is not None
    rest = weft(*LISTS[name], "-n", "99", "--after", found[1])
    assert "--after" not in rest.err
    between = "" if name == "sessions" else "\n"
    assert first.out + between + rest.out == whole


def test_a_log_without_a_limit_goes_on_to_the_end(weft: Shell) -> None:
    whole = filled(weft).json("log")
    cursor = json.loads(weft("log", "--json", "-3").err)["next"]
    assert weft.json("log", "--after", cursor) == whole[3:]


def test_a_cursor_that_does_not_fit_is_wrong_input(weft: Shell) -> None:
    cursor = json.loads(filled(weft)("log", "--json", "-n", "1").err)["next"]
    refused = weft("search", "question", "--after", cursor)
    assert refused.code != 0
    assert "the cursor belongs to log, not to search" in refused.err
    assert "is no cursor" in weft("log", "--after", "abc").err
    assert "no further pages" in weft("search", "question", "--rank", "--after", cursor).err


def test_nobody_at_a_terminal_is_given_a_cursor_to_type(weft: Shell, folder: Path) -> None:
    for label in ("a", "b", "c"):
        weft.record(f"question {label}", session=label)
    for command in (("sessions", "-n", "1"), ("log", "-n", "1"), ("search", "question", "-n", "1")):
        shown = on_terminal(folder, *command)[1]
        assert "--after" not in shown, command
        assert "more" in shown, command


@pytest.mark.parametrize("name", ["log", "sessions", "search"])
def test_the_help_says_what_a_page_ends_with_on_a_terminal_and_elsewhere(weft: Shell, folder: Path, name: str) -> None:
    told = "cursor of the next page stands on the error stream, unless that is a terminal: there a larger -n shows more"
    assert told in " ".join(weft(name, "--help").out.split())
    for number in range(3):
        weft.record(f"hello {number}", session=f"session {number}")
    words = (name, *(("hello",) if name == "search" else ()), "-n", "1")
    assert "--after " in weft(*words).err
    code, screen = on_terminal(folder, *words)
    assert (code, " more" in screen, "-n" in screen, "--after" in screen) == (0, True, True, False), screen
