"""`weft search`: hits for people and for programs."""

from __future__ import annotations

import pytest

import weft as library
from tests.ledger.imported import native_turn, take
from tests.surfaces.shell import Shell, masked
from tests.surfaces.test_cli_reading import story
from weft.surfaces.cli import command_line
from weft.surfaces.cli.reading import search
from weft.surfaces.cli.screen import Screen, Span

__all__ = ["story"]
DAY_MS = 1_767_312_000_000
"""2026-01-02."""


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
    monkeypatch.setattr(command_line, "MOST_UNINDEXED_EVENTS", 3)
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


@pytest.fixture
def titled(weft: Shell) -> Shell:
    with library.open(weft.folder / ".weft" / "ledger.db") as ledger:
        for number, title in enumerate(("Fix the dates", "Another thing", "More dates")):
            turns = [
                native_turn(
                    f"{title} {n}",
                    "an offset of dates " * n,
                    started=DAY_MS + 10 * number + n,
                    parent=n - 1 if n else None,
                    end=10 + n,
                )
                for n in range(5)
            ]
            take(ledger, f"s{number}", *turns, file=f"{number}.jsonl", title=title, workspace="/src/shop")
    return weft


def test_a_terminal_gets_the_best_hits_under_their_sessions(titled: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(color=False, unicode=True, terminal=True, columns=60, rows=24, paging=False)
    monkeypatch.setattr(command_line, "stdout_screen", lambda **_: screen)
    answer = titled("search", "dates", "offset", "-n", "7")
    groups = answer.out.split("\n\n")
    headings = [group.split("\n")[:2] for group in groups]
    assert all(len(group) == 2 and group[1].endswith(", toy, shop, 2026-01-02") for group in headings)
    assert sorted(group[0] for group in headings) == ["Another thing", "Fix the dates", "More dates"]
    assert answer.out.count(" assistant\n") == 7
    assert all(
        len(line) <= 60 and line == line.rstrip() for line in answer.out.split("\n") if "weft search" not in line
    )
    assert "  … more in this session: weft search dates offset --session s2\n" in answer.out
    named = titled("search", "dates", "-n", "2").out
    assert named.startswith("More dates\ns2, toy, shop, 2026-01-02\n")
    assert "Fix the dates\ns0, " in named
    assert titled("search", "dates", "-n", "1").out.startswith("More dates\ns2, toy, shop, 2026-01-02\n")
    assert "Fix the dates" not in titled("search", "dates", "-n", "1").out
    newest = titled("search", "offset", "--newest", "-n", "1").out
    assert newest.count("\n") == 2
    assert ' s2 "More dates" assistant\n' in newest


def test_programs_get_the_sessions_that_are_named_so_and_then_the_newest(titled: Shell) -> None:
    hits = titled.json("search", "dates", "-n", "4")
    assert [(hit["session"], hit["place"]) for hit in hits] == [
        ("s2", "title"), ("s0", "title"), ("s2", "text"), ("s2", "text"),
    ]  # fmt: skip
    assert [(hit["session"], hit["place"]) for hit in titled.json("search", "dates", "-n", "1")] == [("s2", "title")]
    assert " s2 session, its title\n    More dates\n" in titled("search", "dates", "-n", "1").out
    assert [hit["place"] for hit in titled.json("search", "dates", "--role", "user")] == ["text"] * 10
    assert titled("search", "shop").out.count("session, its project") == 3


def test_wrapped_spans_keep_their_styles_and_their_words() -> None:
    spans: list[Span | str] = ["one two ", Span("three", "match"), "four five  six"]
    lines = ["".join(span.text for span in line) for line in search.wrapped_spans(spans, 12)]
    assert lines == ["one two", "threefour", "five six"]
    marked = [span for line in search.wrapped_spans(spans, 12) for span in line if span.style]
    assert marked == [Span("three", "match")]


def test_a_terminal_gets_the_newest_where_not_everything_may_be_read(
    titled: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen(color=False, unicode=True, terminal=True, columns=60, rows=24, paging=False)
    monkeypatch.setattr(command_line, "stdout_screen", lambda **_: screen)
    assert titled("human", "create", "eve", "--permission=session:read(s0)", "--permission=session:read(s1)").code == 0
    best = titled("search", "offset", "-n", "2").out
    assert best.startswith("More dates\ns2, ")
    answer = titled("--as", "eve", "search", "offset", "-n", "2")
    assert (answer.code, answer.out.split("\n")[:2]) == (0, ["Another thing", "s1, toy, shop, 2026-01-02"])
    assert answer.out.count(" assistant\n") == 2
    assert "there are more" in answer.err
    assert titled("--as", "eve", "search", "offset", "--rank").code == 4
    assert titled("--as", "eve", "read").out.startswith("Another thing\ns1, ")


def test_the_title_stands_beside_the_label_of_a_hit(titled: Shell) -> None:
    hit = titled.json("search", "offset", "-n", "1")[0]
    assert (hit["session"], hit["session_title"]) == ("s2", "More dates")
    assert ' s2 "More dates" assistant\n' in titled("search", "offset", "-n", "1").out
    titled.record("an offset", session="mine")
    assert titled.json("search", "offset", "--session", "mine")[0]["session_title"] is None
    assert " mine user\n" in titled("search", "offset", "--session", "mine").out


def test_a_terminal_and_a_pipe_name_the_place_of_a_hit_alike(story: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "main assistant, arguments of edit_file\n" in story("search", "strptime", "--tool", "edit_file").out
    screen = Screen(color=False, unicode=True, terminal=True, columns=60, rows=24, paging=False)
    monkeypatch.setattr(command_line, "stdout_screen", lambda **_: screen)
    assert " assistant arguments of edit_file\n" in story("search", "strptime", "--tool", "edit_file").out


def test_a_phrase_that_stands_nowhere_is_looked_for_as_its_words_and_the_answer_says_so(weft: Shell) -> None:
    weft.record("the whale in the bay is blue")
    weft.record("a blue whale was seen")
    together = weft("search", "blue whale")
    assert (together.code, "a blue whale" in together.out, "in the bay" in together.out) == (0, True, False)
    assert "stands nowhere" not in together.err
    for typed in (("whale blue",), ('"whale blue"',), ("whale blue", "--role", "user")):
        apart = weft("search", *typed)
        assert apart.code == 0
        assert "in the bay" in apart.out
        assert '"whale blue" stands nowhere: these hold its words, not together' in apart.err
    assert [hit["snippet"] for hit in weft.json("search", "whale blue", "--role", "user")] != []
    assert weft("search", "whale banana").err.startswith("nothing holds all these words")
