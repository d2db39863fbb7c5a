"""fork, move, restore, rename, alias, archive and delete."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft as library
from tests.sizes import share
from tests.surfaces.shell import Shell


@pytest.fixture
def turns(weft: Shell) -> list[str]:
    return [weft.record(f"q{i}") for i in range(3)]


def head(weft: Shell, session: str) -> str | None:
    heads: list[str | None] = [item["head"] for item in weft.json("sessions") if item["label"] == session]
    return heads[0]


@pytest.mark.parametrize("arguments", [("main~1", "alt"), ("main~1", "--label", "alt")])
def test_a_fork_is_a_new_session_at_any_turn(weft: Shell, turns: list[str], arguments: tuple[str, ...]) -> None:
    answer = weft("fork", *arguments)
    assert (answer.code, answer.out) == (0, f"alt stands at {turns[1][-8:]}\n")
    assert "`weft chat alt`" in answer.err
    assert weft.json("show", "alt")["id"] == turns[1]
    assert weft("log", "alt", "--oneline").out.count("\n") == 2


def test_a_fork_can_start_inside_a_turn(weft: Shell, folder: Path) -> None:
    turn = weft.record("q", tool_calls=[{"id": "c", "name": "rm", "result": "gone"}])
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        call = next(found.id for found in ledger.events(turn) if '"kind":"tool_call"' in found.line.decode())
    forked = weft.json("fork", call, "before")
    assert f"(before at event {forked['head_event']}, main)" in weft("log", "--oneline").out
    assert weft.json("log")[0]["heads"] == ["before", "main"]
    shown = weft.json("context", "--session", "before")["messages"]
    assert shown[-1]["content"][0]["output"] == "interrupted"


@pytest.fixture
def call(weft: Shell, folder: Path) -> str:
    """The digest of a tool call, the fourth of its turn's seven events."""
    turn = weft.record("q", tool_calls=[{"id": "c", "name": "rm", "result": "gone"}])
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        return next(found.id for found in ledger.events(turn) if '"kind":"tool_call"' in found.line.decode())


def test_a_head_can_be_moved_inside_a_turn(weft: Shell, call: str) -> None:
    turn = weft.json("show", "main")["id"]
    answer = weft("move", "main", call[:12])
    assert answer.out == f"main: {turn[-8:]} -> {turn[-8:]} at event 4\n"
    assert weft.json("sessions")[0]["head_event"] == 4
    assert weft("fork", "main", "there").code == 0
    assert weft("move", "main", turn).out == f"main: {turn[-8:]} at event 4 -> {turn[-8:]}\n"
    assert weft("move", "main", "there").out == f"main: {turn[-8:]} -> {turn[-8:]} at event 4\n"
    assert weft("restore", "main").code == 0
    assert weft.json("sessions")[0]["head_event"] is None


def test_an_event_inside_a_turn_is_shown_with_the_turn_up_to_it(weft: Shell, call: str) -> None:
    weft("fork", call, "there")
    for rev in (call, call[:9], "there"):
        shown = weft("show", rev)
        assert f"Event:   {call}, tool_call, 4 of 7; the turn up to it\n" in shown.out
        assert "rm() interrupted" in shown.out
        assert "re: q" not in shown.out
        document = weft.json("show", rev)
        assert document["event"] == {"id": call, "kind": "tool_call", "number": 4, "of": 7}
        assert [message["role"] for message in document["messages"]] == ["user"]
        assert [found["outcome"] for found in document["tool_calls"]] == ["interrupted"]
    whole = weft("show", weft.json("show", "main")["digest"])
    assert "Event:" not in whole.out
    assert "re: q" in whole.out
    assert weft.json("show", "main")["event"] is None


def test_a_compaction_is_shown_up_to_an_event_too(weft: Shell, turns: list[str], folder: Path) -> None:
    weft("compact", "main", "--summary", "in short")
    turn = weft.json("log", "-n", "1")[0]["id"]
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        begun, recorded, _ = (found.id for found in ledger.events(turn))
    assert "in short" in weft("show", recorded).out
    assert "in short" not in weft("show", begun).out.partition("\n\n")[2]


def test_a_fork_keeps_its_persona_or_takes_another(weft: Shell, turns: list[str]) -> None:
    assert weft.json("fork", "main", "a")["persona_id"] == "local"
    assert weft.json("fork", "main", "b", "--agent", "reviewer")["persona_id"] == "reviewer"


def test_a_fork_wants_one_free_label(weft: Shell, turns: list[str]) -> None:
    assert weft("fork", "main").code == 2
    assert weft("fork", "main", "a", "--label", "b").code == 2
    assert weft("fork", "main", "main").code == 4
    assert weft("fork", "main", "a~b").code == 5
    assert weft("fork", "nowhere", "a").code == 3


def test_a_move_says_from_where_to_where_and_how_to_undo_it(weft: Shell, turns: list[str]) -> None:
    answer = weft("move", "main", "main~2", "--reason", "start over")
    assert answer.out == f"main: {turns[2][-8:]} -> {turns[0][-8:]}\n"
    assert answer.err == "undo: weft restore main\n"
    assert weft.json("reflog", "main")[0]["reason"] == "start over"
    assert weft("restore", "main").out == f"main stands at {turns[2][-8:]}\n"


def test_a_move_with_a_wrong_expectation_changes_nothing(weft: Shell, turns: list[str]) -> None:
    answer = weft("move", "main", "main~1", "--expect", "main~2", "--json")
    assert answer.code == 4
    assert answer.error["code"] == "head_moved"
    assert head(weft, "main") == turns[2]
    assert weft("move", "main", "main~1", "--expect", "main").code == 0
    assert weft("move", "main", "main", "--expect", "-").code == 4


def test_a_reset_session_has_no_turn_and_remembers(weft: Shell, turns: list[str]) -> None:
    answer = weft("move", "main", "--reset")
    assert answer.out == f"main: {turns[2][-8:]} -> no turn\n"
    assert answer.err == "undo: weft restore main\n"
    assert weft("move", "main", turns[0], "--expect", "-").code == 0
    assert weft("move", "main", "--reset", "--expect", turns[1]).code == 4
    assert weft("move", "main", "--reset", "--expect", turns[0]).code == 0
    assert weft("restore", "main", "3").code == 0
    assert head(weft, "main") == turns[2]


@pytest.mark.parametrize("arguments", [("main",), ("main", "main~1", "--reset")])
def test_a_move_wants_one_goal(weft: Shell, turns: list[str], arguments: tuple[str, ...]) -> None:
    assert weft("move", *arguments).code == 2


def test_restore_goes_back_by_the_lines_of_the_reflog(weft: Shell, turns: list[str]) -> None:
    weft("restore", "main", "2")
    assert head(weft, "main") == turns[0]
    assert weft("restore", "main", "99").code == 3
    assert weft("restore", "main", "-1").code == 2
    assert weft("restore", "nobody").code == 3


def test_restore_takes_a_line_of_the_reflog_by_its_name(weft: Shell, turns: list[str]) -> None:
    assert weft("restore", "main@{2}").code == 0
    assert head(weft, "main") == turns[0]
    assert weft("restore", "main@{99}").code == 3
    assert weft("restore", "main@{1}", "2").code == 3


def test_a_deleted_session_comes_back_where_it_stood(weft: Shell, turns: list[str]) -> None:
    answer = weft("delete", "main", "--reason", "done")
    assert "its turns stay" in answer.out
    assert answer.err == "undo: weft restore main\n"
    assert weft("show", "main").code == 3
    assert weft("sessions").out == ""
    assert weft.json("sessions", "--all")[0]["status"] == "deleted"
    assert weft("reflog", "main").out.count("\n") == 3
    assert weft.json("show", turns[1])["id"] == turns[1]
    assert weft("restore", "main").code == 0
    assert head(weft, "main") == turns[2]


def test_a_deleted_label_can_be_used_again(weft: Shell, turns: list[str]) -> None:
    weft("delete", "main")
    fresh = weft.record("new life")
    assert weft.json("show", fresh)["parent_id"] is None
    assert weft("restore", "main", "0").code == 0
    assert head(weft, "main") == fresh


def test_an_archived_session_is_out_of_sight_until_it_is_taken_back(weft: Shell, turns: list[str]) -> None:
    answer = weft("archive", "main")
    assert (answer.out, answer.err) == ("main is archived\n", "undo: weft archive --undo main\n")
    assert weft.json("sessions") == []
    assert weft("record", "--query", "x").code == 4
    assert weft("archive", "main", "--undo").out == "main is active\n"
    weft("archive", "main")
    assert weft("restore", "main").code == 0
    assert head(weft, "main") == turns[2]


def test_a_renamed_session_keeps_everything_but_its_label(weft: Shell, turns: list[str]) -> None:
    answer = weft("rename", "main", "trunk")
    assert (answer.out, answer.err) == ("main is now trunk\n", "undo: weft rename trunk main\n")
    assert weft.json("show", "trunk")["id"] == turns[2]
    assert weft("show", "main").code == 3
    weft("fork", "trunk", "alt")
    assert weft("rename", "alt", "trunk").code == 4


def test_an_alias_is_a_second_name(weft: Shell, turns: list[str]) -> None:
    assert weft("alias", "m", "main", "--reason", "identity_merge").out == "m is another name for main\n"
    assert weft.json("show", "m")["id"] == turns[2]
    assert weft("alias", "m", "main").code == 4
    assert weft("alias", "x", "nobody").code == 3
    assert weft("alias", "x", "main", "--reason", "whim").code == 2


def test_aliases_are_listed(weft: Shell, turns: list[str]) -> None:
    empty = weft("alias")
    assert (empty.out, empty.code) == ("", 0)
    assert "no session has a second name: weft alias ALIAS SESSION gives one" in empty.err
    assert weft.json("alias") == []
    weft("alias", "m", "main")
    assert weft("alias").out == "m\tmain\tmanual\n"
    (listed,) = weft.json("alias")
    assert (listed["alias"], listed["session"], listed["reason"]) == ("m", "main", "manual")
    assert weft("alias", "--reason", "manual").code == 2
    alone = weft("alias", "m")
    assert alone.code == 2
    assert "name the session too: weft alias ALIAS SESSION" in alone.err


@pytest.mark.parametrize(
    "arguments",
    share(
        [
            ("fork", "main", "alt"),
            ("move", "main", "main~1"),
            ("move", "main", "--reset"),
            ("restore", "main", "1"),
            ("rename", "main", "trunk"),
            ("alias", "m", "main"),
            ("archive", "main"),
            ("delete", "main"),
            ("compact", "--undo"),
        ],
        test=3,
    ),
)
def test_every_change_answers_with_the_session_as_json(
    weft: Shell, turns: list[str], arguments: tuple[str, ...]
) -> None:
    made = weft.json(*arguments)
    assert {"id", "label", "head", "status", "created_at"} <= made.keys()
    assert made["created_at"].endswith("Z")


def test_labels_in_hints_are_quoted_for_the_shell(weft: Shell) -> None:
    weft.record("q", session="my notes; rm -rf")
    assert weft("delete", "my notes; rm -rf").err == "undo: weft restore 'my notes; rm -rf'\n"


def test_a_session_without_a_turn_is_listed_and_the_help_says_which_are_not(weft: Shell) -> None:
    assert weft("session", "create", "plans").code == 0
    assert weft("sessions").out.startswith("plans\t")
    shown = " ".join(weft("sessions", "--help").out.split())
    assert "those of imports and rooms that have no turn, are shown only when asked for" in shown
