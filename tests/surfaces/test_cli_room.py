"""Rooms on the command line: made, shown, talked in, answered by several agents, left, forked and put away."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import weft as library
from tests.ledger.rooms import begin
from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import HANG, HOLD, Script, chat, chat_saying, failure
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell, masked
from tests.surfaces.test_cli_broker import beside, stock, wait_until
from tests.surfaces.test_cli_docs import run_example
from weft.chat.triage import FailedAnswer
from weft.kernel.errors import NotFound
from weft.kernel.message_text import write_mention
from weft.ledger.api import AgentProfile, Ledger, Participant, PersonProfile, ReachedAgent, Room, RoomMessage
from weft.ledger.room_records import ROOM_LIMITS
from weft.surfaces.cli.chat.rooms import _end_with
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.main import run
from weft.surfaces.cli.screen import Screen

PAGE = (Path(__file__).parents[2] / "docs" / "rooms.md").read_text()
TIMES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}")
LINES = (
    "human create alice",
    "human create bob",
    "agent create helper --as alice --set identity.emoji=🦉 --set identity.avatar=https://example.org/owl.png",
    "agent create reviewer --as alice",
    "agent create secret --as alice --set visibility=private",
)


@pytest.fixture
def rooms(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """alice and bob in the room plans, with helper; reviewer is public, secret alice's own."""
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")
    for line in LINES:
        answer = weft(*line.split())
        assert answer.code == 0, answer.err
    assert weft("--as", "alice", "room", "create", "plans", "--agent", "helper", "--person", "bob").code == 0
    return weft


def by_agent(**answers: Script) -> Callable[[Any], Script]:
    """Whoever's soul a request begins with answers as that agent."""

    def chosen(body: Any) -> Script:
        system = str(body["messages"][0]["content"])
        return next(script for name, script in answers.items() if f"I am {name}." in system)

    return chosen


def give_models(weft: Shell, url: str, *agents: str) -> None:
    stock(weft, url)
    for agent in agents:
        line = ("agent", "configure", agent, "--model", "fast", "--prompt", f"I am {agent}.", "--as", "alice")
        assert weft(*line).code == 0


def id_of(weft: Shell, agent: str) -> str:
    return next(str(one["ulid"]) for one in weft.json("agent", "list") if one["id"] == agent)


def said(answer: str) -> list[str]:
    """The lines of messages without times."""
    return [TIMES.sub("", line).rstrip() for line in answer.splitlines()]


def test_a_room_is_listed_and_shown_with_who_takes_part(rooms: Shell) -> None:
    posted = rooms("room", "post", "plans", "@helper see, @alice", "--no-wait", "--as", "bob")
    assert (posted.code, " is message 3" in posted.out) == (0, True), posted.err
    assert "helper will answer when a broker runs: `weft broker` is one" in posted.err
    assert "weft room read plans --as bob" in posted.err
    (room,) = rooms.json("room", "list", "--as", "alice")
    assert (room["title"], room["participants"], room["unread"], room["unread_mentions"]) == ("plans", 4, 1, 1)
    assert room["last_message_time"].endswith("Z")
    listed = rooms("room", "list", "--as", "alice").out.rstrip("\n").split("\t")
    assert [listed[0], *listed[1:4], listed[5]] == [room["id"][-8:], "4", "1", "1", "plans"]
    shown = rooms("room", "show", "plans", "--as", "alice")
    assert "  🦉 helper  agent  thinking  https://example.org/owl.png" in shown.out
    assert re.search(r"^  \S+ triage  system agent  inactive$", shown.out, re.MULTILINE)
    assert "3, 1 not read, 1 mention of you" in shown.out
    members = {one["name"]: one for one in rooms.json("room", "show", room["id"])["members"]}
    assert (members["helper"]["emoji"], members["helper"]["status"]) == ("🦉", "thinking")
    assert members["helper"]["avatar_url"] == "https://example.org/owl.png"
    assert (members["bob"]["kind"], members["triage"]["system_kind"]) == ("user", "triage")


def test_sessions_of_a_room_are_listed_with_their_first_turn(rooms: Shell) -> None:
    assert rooms.json("sessions") == []
    assert "2 sessions of imports or rooms without a turn are not shown: --all lists them" in rooms("sessions").err
    every = [session["label"].rpartition(":")[2] for session in rooms.json("sessions", "--all")]
    assert sorted(every) == ["helper", "triage"]
    assert "no turns yet" in rooms("context").err
    rooms("session", "create", "mine")
    rooms.record("hello")
    assert [session["label"] for session in rooms.json("sessions")] == ["main", "mine"]
    room = rooms.json("room", "list", "--as", "alice")[0]["id"]
    label = f"room:{room[-8:].lower()}:helper"
    rooms.record("answer", session=label)
    assert rooms.json("sessions")[0]["label"] == label


def test_a_profile_is_shown_to_whoever_may_see_it(rooms: Shell) -> None:
    helper = rooms.json("room", "profile", "helper", "--as", "bob")
    assert (helper["kind"], helper["emoji"], helper["public"]) == ("user_agent", "🦉", True)
    lines = rooms("room", "profile", "helper", "--as", "bob").out.splitlines()
    assert (lines[0], "  created by name   alice" in lines) == ("🦉 helper", True)
    assert rooms.json("room", "profile", "bob", "--as", "alice")["name"] == "bob"
    assert rooms.json("room", "profile", "secret", "--as", "alice")["private"] is True
    hidden, missing = (rooms("room", "profile", name, "--as", "bob") for name in ("secret", "nobody"))
    assert (hidden.code, hidden.err.replace("secret", "nobody")) == (3, missing.err)


def test_what_was_said_is_printed_in_pages_and_marked_as_read(rooms: Shell) -> None:
    for number in range(4, 8):
        assert rooms("room", "post", "plans", f"@alice {number - 3}", "--no-wait", "--as", "bob").code == 0
    assert rooms("room", "read", "plans", "--as", "alice", "-n", "2", "--keep-unread").code == 0
    older = rooms("room", "read", "plans", "--as", "alice", "-n", "2", "--before", "5")
    assert said(older.out) == ["   3  bob", "      @alice 1", "   4  bob", "      @alice 2"]
    assert "weft room read plans --before 3 --as alice" in older.err
    newer = rooms("room", "read", "plans", "--as", "alice", "-n", "2", "--after", "2")
    assert newer.out == older.out
    assert "weft room read plans --after 4 --as alice" in newer.err
    assert rooms.json("room", "list", "--as", "alice")[0]["unread"] == 4
    messages = rooms.json("room", "read", "plans", "--as", "alice", "--all")
    assert [one["position"] for one in messages] == [1, 2, 3, 4, 5, 6]
    assert [one["kind"] for one in messages[:3]] == ["system", "system", "participant"]
    assert (messages[2]["author_name"], messages[2]["mentions"][0]["name"]) == ("bob", "alice")
    assert rooms.json("room", "list", "--as", "alice")[0]["unread"] == 0
    assert rooms("room", "read", "plans", "--all", "-n", "1").code == 2
    assert rooms("room", "read", "plans", "--before", "3", "--after", "1").code == 2
    assert said(rooms("room", "read", "plans", "-n", "6").out)[0] == "   1  @bob joined."


def test_names_behind_an_at_sign_become_mentions_and_others_are_noted(rooms: Shell) -> None:
    assert rooms("agent", "create", "two words", "--as", "alice").code == 0
    text = '@helper, @"two words" and @nobody: `@alice` @secret'
    posted = rooms("room", "post", "plans", text, "--no-wait", "--as", "bob")
    assert "nobody is called 'nobody'" in posted.err
    assert "nobody is called 'secret'" in posted.err
    message = rooms.json("room", "read", "plans", "--as", "bob")[2]
    assert [one["name"] for one in message["mentions"]] == ["helper", "two words"]
    assert "      @helper, @two words and @nobody: `@alice` @secret" in rooms("room", "read", "plans").out


def test_agents_answer_and_those_whom_they_mention_answer_them(rooms: Shell) -> None:
    with serving(chat()) as server:
        give_models(rooms, server.url, "helper", "reviewer")
        reviewer = id_of(rooms, "reviewer")
        server.script_of = by_agent(
            helper=chat_saying({"content": f"{write_mention('agent', reviewer, 'reviewer')} please look"}),
            reviewer=chat_saying({"content": "It is\nfine."}),
        )
        assert rooms("room", "add", "plans", "reviewer", "--as", "alice").code == 0
        posted = rooms("room", "post", "plans", "@helper what now?", "--as", "bob")
        assert posted.code == 0, posted.err
        assert said(posted.out) == [
            "   5  helper",
            "      @reviewer please look",
            "   6  reviewer",
            "      It is",
            "      fine.",
        ]
        both = rooms.json("room", "post", "plans", "@helper @reviewer again", "--as", "bob")
    assert {one["name"] for one in both["reached"]} == {"helper", "reviewer"}
    assert sorted(one["author_name"] for one in both["answers"]) == ["helper", "reviewer", "reviewer"]
    assert (both["waiting"], both["position"]) == ([], 7)
    assert rooms.json("inbox") == []


def test_several_agents_answer_at_once(rooms: Shell) -> None:
    def held_until_both_ask(body: Any) -> Script:
        if len(server.received) == 2:
            server.released.set()
        return [HOLD, *chat_saying({"content": "Both."})]

    with serving(chat()) as server:
        server.script_of = held_until_both_ask
        give_models(rooms, server.url, "helper", "reviewer")
        both = rooms.json("room", "post", "plans", "@helper @reviewer go", "--as", "bob")
    assert sorted(one["author_name"] for one in both["answers"] if one["text"] == "Both.") == ["helper", "reviewer"]


def test_whoever_acts_with_a_token_leaves_the_answers_to_a_broker(rooms: Shell) -> None:
    with serving(chat()) as server:
        give_models(rooms, server.url, "helper")
        assert rooms("token", "create", "--as", "bob", "--out", "bob.token").code == 0
        posted = rooms("--token-file", "bob.token", "room", "post", "plans", "@helper go")
        assert (posted.code, "helper will answer when a broker runs" in posted.err) == (0, True), posted.err
        assert server.received == []
    assert rooms.json("room", "read", "plans", "-n", "1")[0]["author_name"] == "bob"
    assert [one["state"] for one in rooms.json("inbox")] == ["queued"]


def test_a_message_that_mentions_nobody_is_answered_by_whom_triage_finds(rooms: Shell) -> None:
    with serving(chat()) as server:
        give_models(rooms, server.url, "helper")
        helper = id_of(rooms, "helper")
        for_helper = write_mention("agent", helper, "helper")
        configured = rooms("agent", "configure", "triage", "--model", "slow", "--prompt", "I am triage.")
        assert configured.code == 0, configured.err
        server.script_of = by_agent(
            helper=chat_saying({"content": "The helper helps."}), triage=chat_saying({"content": for_helper})
        )
        posted = rooms("room", "post", "plans", "helper: what is next?", "--as", "bob")
    assert posted.code == 0, posted.err
    assert said(posted.out)[-2:] == ["   5  helper", "      The helper helps."]


def test_an_agent_that_cannot_answer_is_told_of_in_the_room_and_ends_the_command(
    rooms: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(chat()) as server:
        give_models(rooms, server.url, "helper", "reviewer")
        server.script_of = by_agent(helper=failure(400, "too odd"), reviewer=chat_saying({"content": "Fine."}))
        posted = rooms("room", "post", "plans", "@helper @reviewer go", "--as", "bob")
        assert (posted.code, "too odd" in posted.err) == (8, True), posted.err
        assert "@helper could not answer: " in posted.out
        assert "      Fine." in posted.out
        monkeypatch.delenv("THERE_KEY")
        keyless = rooms("room", "post", "plans", "@helper @reviewer go", "--as", "bob", "--json")
    assert (keyless.code, "THERE_KEY" in keyless.error["message"]) == (8, True), keyless.err
    assert [one["notice"] for one in keyless.json["answers"]] == ["error", "error"]
    assert " could not answer: credential 'THERE_KEY'" in rooms("room", "read", "plans", "-n", "1").out


def test_ctrl_c_ends_what_is_being_answered(rooms: Shell) -> None:
    def interrupt(ledger: Ledger) -> None:
        wait_until(ledger, lambda: any(message.state == "taken" for message in ledger.inbox.list()))
        os.kill(os.getpid(), signal.SIGINT)

    with serving([HANG]) as server:
        give_models(rooms, server.url, "helper")
        with beside(rooms, interrupt):
            assert run(["room", "post", "plans", "@helper go", "--as", "bob"]) == 130
    assert rooms.json("inbox") == []
    assert "helper" in rooms("room", "read", "plans", "-n", "1").out


def test_people_and_agents_come_and_go(rooms: Shell) -> None:
    assert rooms("human", "create", "carol").code == 0
    added = rooms("room", "add", "plans", "reviewer", "secret", "--as", "alice")
    assert (added.code, added.out.endswith("plans: reviewer, secret take part\n")) == (0, True), added.err
    assert "undo: weft room remove plans reviewer --as alice" in added.err
    removed = rooms("room", "remove", "plans", "reviewer", "--as", "bob")
    assert "undo: weft room add plans reviewer --as bob" in removed.err
    refused = rooms("room", "add", "plans", "secret", "--as", "bob")
    assert (refused.code, "no agent 'secret'" in refused.err) == (3, True), refused.err
    assert rooms("room", "remove", "plans", "triage", "--as", "alice").code == 4
    assert rooms("room", "remove", "plans", "alice", "--as", "bob").code == 4
    assert rooms("room", "post", "plans", "@carol come", "--as", "bob", "--no-wait").code == 0
    (invitation,) = rooms.json("room", "invitations", "--as", "carol")
    assert (invitation["name"], invitation["invited_by"]) == ("carol", "bob")
    assert "1 invitation open" in rooms("room", "list", "--as", "carol").err
    shown = rooms("room", "show", "plans", "--as", "bob")
    assert "carol  person  was mentioned by bob, not let in" in shown.out
    assert "`weft room invite plans carol --as bob` lets them in" in shown.err
    declined = rooms("room", "decline", "plans", "--as", "carol")
    assert (declined.code, declined.out) == (0, "the invitation of carol is over\n"), declined.err
    assert "nobody waits" in rooms("room", "invitations", "--as", "bob").err
    assert rooms("room", "invite", "plans", "carol", "--as", "bob").code == 0
    assert rooms("room", "post", "plans", "@alice hear", "--as", "bob", "--no-wait").code == 0
    left = rooms("room", "leave", "plans", "--as", "carol")
    assert "weft room invite plans carol" in left.err
    assert rooms("room", "post", "plans", "@alice hear", "--as", "bob", "--no-wait").code == 0
    assert [room["unread"] for room in rooms.json("room", "list", "--as", "carol")] == [1]
    read = rooms("room", "read", "plans", "--as", "carol")
    assert said(read.out) == ["   8  @carol joined.", "   9  bob", "      @alice hear"]
    assert read.err == ""
    assert [room["unread"] for room in rooms.json("room", "list", "--as", "carol")] == [0]
    gone = rooms.json("room", "show", "plans", "--removed")["members"]
    assert [one["name"] for one in gone if one["is_removed"]] == ["reviewer", "carol"]
    assert "carol" not in rooms("room", "show", "plans").out


def test_a_room_is_retitled_forked_archived_and_restored(rooms: Shell) -> None:
    assert rooms("room", "post", "plans", "@alice one", "--no-wait", "--as", "bob").code == 0
    titled = rooms("room", "title", "plans", "spring plans", "--as", "bob")
    undo = titled.err.strip().removeprefix("undo: weft ").split()
    assert undo[-1:] == ["bob"]
    forked = rooms.json("room", "fork", "spring plans", "3", "--title", "aside", "--as", "bob")
    assert (forked["title"], forked["fork_position"]) == ("aside", 3)
    assert [line for line in said(rooms("room", "read", "aside", "--as", "bob").out) if "one" in line] == [
        "      @alice one"
    ]
    assert f"at message {3}" in rooms("room", "show", "aside", "--as", "bob").out
    assert rooms(*undo).code == 0
    assert {room["title"] for room in rooms.json("room", "list")} == {"plans", "aside"}
    archived = rooms("room", "archive", "aside", "--as", "bob")
    assert rooms("room", "post", "aside", "@helper x", "--no-wait", "--as", "bob").code == 4
    assert [room["title"] for room in rooms.json("room", "list", "--as", "bob")] == ["plans"]
    assert [room["status"] for room in rooms.json("room", "list", "--archived")] == ["archived"]
    assert len(rooms.json("room", "list", "--all")) == 2
    assert rooms(*archived.err.strip().removeprefix("undo: weft ").split()).code == 0
    assert rooms("room", "archive", "plans", "--as", "bob").code == 4


def test_errors_say_what_to_do_next(rooms: Shell) -> None:
    missing = rooms("room", "read", "nowhere")
    assert (missing.code, missing.err) == (
        3,
        "weft: no room 'nowhere' in this ledger\nhint: `weft room list` lists them\n",
    )
    outside = rooms("room", "post", "plans", "hello", "--no-wait")
    assert (outside.code, "hint: `weft room invite plans local` lets you in" in outside.err) == (4, True), outside.err
    assert rooms("room", "invite", "plans", "local").code == 0
    assert rooms("room", "post", "plans", "@alice hello", "--no-wait").code == 0
    assert rooms("room", "post", "plans", " ", "--as", "bob").code == 5
    (rooms.folder / "notes.txt").write_text("@[helper](agent:X)")
    assert rooms("room", "post", "plans", "look", "--attach", "notes.txt").code == 5
    assert rooms("--as", "alice", "room", "list", "--as", "bob").code == 2
    assert "you are in no room; `weft room create TITLE` makes one" in rooms("room", "list", "--as", "secret").err
    assert rooms("room", "list", "--all", "--archived").code == 2


def test_those_who_are_in_or_have_left_are_told_so_by_name(rooms: Shell) -> None:
    again = rooms("room", "invite", "plans", "bob", "--as", "alice")
    assert (again.code, again.err.splitlines()[0]) == (4, "weft: 'bob' takes part already")
    left = rooms("room", "leave", "plans", "--as", "helper")
    assert left.err == "a participant can let you in again: weft room add plans helper\n"
    assert rooms("room", "leave", "plans", "--as", "bob").code == 0
    absent = rooms("room", "leave", "plans", "--as", "bob")
    assert (absent.code, absent.err.splitlines()[0]) == (4, "weft: you take no part in the room")
    uninvited = rooms("room", "decline", "plans", "--as", "bob")
    assert (uninvited.code, uninvited.err) == (
        3,
        "weft: no open invitation to 'plans' in this ledger\nhint: list the invitations\n",
    )
    assert rooms("human", "create", "carol").code == 0
    assert rooms("room", "invite", "plans", "carol", "--as", "alice").code == 0
    first = rooms("room", "read", "plans", "--as", "carol")
    assert (said(first.out), first.err) == (["   5  @carol joined."], "")


def test_a_title_that_two_rooms_have_is_answered_with_how_to_name_one(rooms: Shell) -> None:
    assert rooms("room", "create", "plans", "--as", "alice").code == 0
    ambiguous = rooms("room", "read", "plans", "--as", "alice")
    assert (ambiguous.code, ambiguous.err.splitlines()[1]) == (
        3,
        "hint: several rooms have that title: name one by its id",
    )


def test_whoever_sits_down_sees_all_that_is_unread_however_much_lies_between(rooms: Shell) -> None:
    assert rooms("room", "post", "plans", "@alice first", "--no-wait", "--as", "bob").code == 0
    for number in range(12):
        assert rooms("room", "post", "plans", f"@bob {number}", "--no-wait", "--as", "alice").code == 0
    assert rooms("room", "archive", "plans", "--as", "alice").code == 0
    lines = rooms("room", "chat", "plans", "--as", "alice", stdin="/help\n").out.splitlines()
    assert lines[0].endswith("; 1 unread message; archived: nothing is said in it until it is restored")
    assert "first" in lines[lines.index("unread:") + 2]


COMPLETIONS = {
    "weft room post --as bob pl": ["plans"],
    "weft room post --as secret pl": [],
    "weft room remove plans he": ["helper"],
    "weft room remove plans tri": [],
    "weft room post plans @h": ["@helper"],
    "weft room post --as bob plans @s": [],
}


def test_rooms_and_participants_are_completed_as_far_as_whoever_acts_knows_them(
    rooms: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_WEFT_COMPLETE", "bash_complete")
    capsys.readouterr()
    for line, completed in COMPLETIONS.items():
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
        with pytest.raises(SystemExit):
            run([])
        names = [one.partition(",")[2] for one in capsys.readouterr().out.split("\n") if one]
        assert names == completed, line


def test_the_examples_of_the_page_do_what_it_says(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    (block,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    documented = printed = ""
    with serving(chat()) as server:
        stock(weft, server.url)
        for line, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            answer = run_example(weft, line)
            assert answer.code == 0, answer.err
            documented, printed = documented + output, printed + answer.out
    assert masked(TIMES.sub("TIME", printed)) == masked(TIMES.sub("TIME", documented))


def test_the_page_lists_the_fields_and_limits_that_there_are() -> None:
    for record in (PersonProfile, AgentProfile, Room, Participant, RoomMessage):
        fields = re.findall(rf"`{record.__name__}\.(\w+)`", PAGE.split("## Fields")[1])
        assert sorted(fields) == sorted(record.__struct_fields__)
    limits = re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE.split("## Limits")[1], re.MULTILINE)
    assert {name: int(value) for name, value in limits} == {
        name: getattr(ROOM_LIMITS, name) for name in ROOM_LIMITS.__struct_fields__
    }


def test_what_is_printed_of_the_answers_is_read(rooms: Shell) -> None:
    with serving(chat()) as server:
        give_models(rooms, server.url, "helper")
        server.script_of = by_agent(helper=chat_saying({"content": "Here."}))
        assert rooms("room", "post", "plans", "@helper go", "--as", "bob").code == 0
        assert rooms.json("room", "show", "plans", "--as", "bob")["unread"] == 0
        assert rooms.json("room", "show", "plans", "--as", "alice")["unread"] == 2
        assert rooms("room", "post", "plans", "@helper go", "--as", "alice").code == 0
    assert rooms.json("room", "show", "plans", "--as", "alice")["unread"] == 3


def test_an_agent_that_nobody_works_for_is_shown_with_how_to_go_on(rooms: Shell) -> None:
    with library.open(rooms.folder / ".weft" / "ledger.db") as ledger:
        rooms_of_bob = ledger.acting_as("bob").rooms
        (reached,) = rooms_of_bob.post("plans", write_mention("agent", id_of(rooms, "helper"), "helper")).reached
        begin(ledger, reached).leave()
    shown = rooms("room", "show", "plans", "--as", "bob")
    assert "helper  agent  thinking, but nobody works on it" in shown.out
    assert "`weft broker` goes on with it" in shown.err


def test_refusals_and_hints_name_people_and_say_what_to_do(rooms: Shell) -> None:
    posted = rooms("room", "post", "plans", "hi @local", "--no-wait", "--as", "bob")
    assert "let them in: weft room invite plans local --as bob" in posted.err
    assert "a participant lets you in; `weft room decline ROOM` ends" in rooms("room", "invitations").err
    for words, hint in (
        (("invite", "plans", "reviewer", "--as", "bob"), "it is an agent: `weft room add` lets it in"),
        (("add", "plans", "bob", "--as", "alice"), "that is a person: `weft room invite` lets them in"),
        (("invite", "plans", "secret", "--as", "bob"), "`weft program list` lists them"),
        (("archive", "plans", "--as", "bob"), "bob may not archive the room"),
        (("post", "plans", "hi", "--no-wait"), "local may not post to the room"),
        (("list", "--as", "nobody"), "`weft human create` makes a person"),
        (("read", "plans", "--after", "999"), "nothing to read behind message 999; the room has 4 messages"),
        (("fork", "plans", "999", "--as", "bob"), "no message 999 in room 'plans'"),
        (("fork", "plans", "999", "--as", "bob"), "the newest message there that you can read is 4"),
    ):
        assert hint in rooms("room", *words).err, words
    assert id_of(rooms, "helper") in rooms("room", "profile", "helper").out
    alice = next(one["ulid"] for one in rooms.json("human", "list") if one["id"] == "alice")
    assert alice not in rooms("room", "profile", "helper").out
    assert rooms("room", "leave", "plans", "--as", "bob").code == 0
    assert rooms("room", "list", "--as", "bob").out.rstrip("\n").endswith("plans\tleft")


def test_at_a_terminal_a_failed_answer_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reached = ReachedAgent(agent="a", name="helper", message="m", session="s", session_id="i")
    failures = [FailedAnswer(reached, NotFound("model", name, "choose another")) for name in ("one", "two")]
    call = Call()
    call.screen = Screen(color=False, unicode=True, terminal=True, columns=80, rows=20, paging=False)
    with pytest.raises(NotFound, match="two"):
        _end_with(call, failures)
    assert capsys.readouterr().err == "weft: no model 'one' in this ledger\nhint: choose another\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with click.Context(click.Command("post")), pytest.raises(click.exceptions.Exit) as ended:
        _end_with(call, failures)
    assert (ended.value.exit_code, capsys.readouterr().err) == (3, "hint: choose another\n" * 2)


def test_a_mention_reaches_the_channel_that_a_person_prefers(
    rooms: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told, script = tmp_path / "told.txt", tmp_path / "tell"
    script.write_text(f"#!/bin/sh\ncat >> {told}\n")
    script.chmod(0o755)
    monkeypatch.setenv("WEFT_NOTIFY_COMMAND", str(script))
    assert rooms("program", "configure", "bob", "--set", "preferences.notificationChannel=command").code == 0
    assert rooms("human", "create", "carol", "--channel", "command").code == 0
    assert rooms("room", "post", "plans", "@bob see this, @carol", "--as", "alice").code == 0
    assert told.read_text().splitlines() == [
        "alice mentions you in the room “plans”: @bob see this, @carol",
        "alice mentions you in the room “plans”. You take no part in it: a participant can let you in.",
    ]
    requests = rooms.json("human", "requests", "bob")
    assert [(one["status"], one["asks"]) for one in requests] == [("told", False)]
    with serving(chat_saying({"content": "Ask @bob."})) as server:
        give_models(rooms, server.url, "helper")
        assert rooms("room", "post", "plans", "@helper who?", "--as", "bob").code == 0
    assert told.read_text().splitlines()[2:] == ["helper mentions you in the room “plans”: Ask @bob."]


def test_an_agent_whose_owner_keeps_it_and_a_system_agent_stay_and_it_is_said_why(rooms: Shell) -> None:
    assert rooms("agent", "configure", "helper", "--set", "removal=owner", "--as", "alice").code == 0
    kept = rooms("room", "remove", "plans", "helper", "--as", "bob")
    assert kept.code != 0
    assert "its owner restricted that" in kept.err
    system = rooms("room", "remove", "plans", "triage", "--as", "alice")
    assert system.code != 0
    assert "'triage' is a system agent" in system.err
    assert rooms("room", "remove", "plans", "triage").code != 0
    shown = rooms("room", "show", "plans", "--as", "alice").out
    assert "helper" in shown
    assert "triage" in shown
    assert rooms("room", "remove", "plans", "helper", "--as", "alice").code == 0
