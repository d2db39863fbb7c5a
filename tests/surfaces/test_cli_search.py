"""`weft search`: hits for people and for programs."""

from __future__ import annotations

import pytest

import weft as library
from tests.surfaces.shell import Shell, masked
from tests.surfaces.test_cli_reading import story
from weft.surfaces.cli.commands import search
from weft.surfaces.cli.screen import Span

__all__ = ["story"]


def test_hits_stand_under_where_they_were_found(story: Shell) -> None:
    answer = story("search", "strptime", "-n", "2")
    assert (
        masked(answer.out)
        == """\
T1 2026-03-02 13:26:00 +0000 by-hand user
    Could we keep strptime and cut the offset off instead?

T2 2026-03-02 13:19:00 +0000 main assistant, arguments of edit_file
    path: src/parser.py old: strptime(text, new: fromisoformat(text
"""
    )
    assert "there are more: `-n 4`" in answer.err


def test_hits_as_json_carry_marks(weft: Shell) -> None:
    turn = weft.record("look at the Config file")
    hits = weft.json("search", "config", "--role", "user")
    assert [(hit["turn_id"], hit["place"], hit["session"]) for hit in hits] == [(turn, "text", "main")]
    [[low, high]] = hits[0]["marks"]
    assert hits[0]["snippet"][low:high] == "Config"
    assert hits[0]["created_at"].endswith("Z")


def test_an_argument_with_spaces_is_a_phrase(weft: Shell) -> None:
    weft.record("the red door")
    weft.record("door, red the")
    assert len(weft.json("search", "red door", "--role", "user")) == 1
    assert len(weft.json("search", "red", "door", "--role", "user")) == 2
    assert len(weft.json("search", '"the red" door', "--role", "user")) == 1


def test_filters_are_passed_on(weft: Shell) -> None:
    call = {"id": "c1", "name": "Bash", "arguments": {"command": "cat src/app.py"}, "result": "needle"}
    weft.record("find the needle", model="opus-4", workspace="/home/me/shop", tool_calls=[call])
    for filters, count in (
        (["--tool", "bash"], 1),
        (["--tool", "read"], 0),
        (["--model", "opus"], 3),
        (["--project", "shop"], 3),
        (["--path", "src/app.py"], 1),
        (["--origin", "weft", "--session", "main"], 3),
        (["--since", "1 hour ago"], 3),
        (["--until", "1 hour ago"], 0),
        (["--role", "user", "--rank"], 1),
        (["-n", "1"], 1),
        (["-n", "0"], 0),
    ):
        assert len(weft.json("search", "needle", *filters)) == count, filters


def test_nothing_found_says_what_to_try(weft: Shell) -> None:
    assert "no turns yet" in weft("search", "x").err
    weft.record("something")
    assert "try fewer, or a beginning" in weft("search", "zebra").err
    assert "fewer filters" in weft("search", "something", "--tool", "bash").err
    assert "nothing fits" in weft("search", "--tool", "bash").err
    assert weft.json("search", "zebra") == []


def test_a_search_for_nothing_is_refused_with_a_hint(weft: Shell) -> None:
    answer = weft("search")
    assert (answer.code, answer.out) == (5, "")
    assert "nothing to search for" in answer.err
    assert weft("search", "x", "--role", "king").code == 2
    assert weft("search", "x", "--session", "nowhere").code == weft("show", "nowhere").code


def test_an_archived_session_is_marked(weft: Shell) -> None:
    weft.record("needle")
    assert weft("archive", "main").code == 0
    assert " main [archived] user" in weft("search", "needle", "--role", "user").out


def test_a_long_lag_is_indexed_first(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "WORTH_INDEXING", 3)
    weft.record("needle")
    assert len(weft.json("search", "needle")) == 2
    with library.open(weft.folder / ".weft" / "ledger.db", read_only=True) as ledger:
        assert ledger.upkeep.search_lag() == 0


def test_no_stored_text_drives_the_terminal(weft: Shell) -> None:
    weft.record("needle \x1b[31mred\x1b]0;title\x07 \u202e reversed")
    out = weft("search", "needle").out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert r"\x1b[31mred" in out


def test_matches_stand_out_in_pieces_of_the_text() -> None:
    pieces = list(search.marked("a needle here", [(2, 8)]))
    assert pieces == ["a ", Span("needle", "match"), " here"]
