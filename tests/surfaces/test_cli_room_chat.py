"""`weft room chat` and `weft room follow`: a room at a terminal, in a pipe and as records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

import weft as library
from tests.runtime.scripted import CLOSE, HANG, HOLD, STREAM_HEAD, Script, chat_saying, chunk, events
from tests.surfaces.shell import Shell, running
from tests.surfaces.talking import Served, screen_of, serving, typing, use
from weft.ledger.api import Participant


def saying(*pieces: str, held: bool = False) -> Script:
    """A stream of an answer; one that is held waits before its last piece."""
    first, *rest = [chunk({"content": piece}) for piece in pieces]
    hold = [HOLD] if held else []
    return [STREAM_HEAD, *events(first), *hold, *events(*rest, chunk({}, "stop"), "[DONE]"), CLOSE]


def by_agent(**scripts: Script) -> Callable[[Any], Script]:
    """The script of the agent that a request is made for, by what it is told of itself."""

    def chosen(body: Any) -> Script:
        system = str(body["messages"][0]["content"])
        return next(script for name, script in scripts.items() if f"I am {name}." in system)

    return chosen


@pytest.fixture
def room(weft: Shell) -> Shell:
    """The room plans, with the person at the machine, bob, helper and reviewer."""
    for words in (
        ("human", "create", "bob"),
        ("room", "create", "plans", "--person", "bob"),
    ):
        made = weft(*words)
        assert made.code == 0, made.err
    return weft


def with_agents(room: Shell, served: Served) -> None:
    use(room, served)
    for name in ("helper", "reviewer"):
        made = room("agent", "create", name, "--model", "scripted", "--prompt", f"I am {name}.")
        assert made.code == 0, made.err
        made = room("room", "add", "plans", name)
        assert made.code == 0, made.err


def said(room: Shell) -> list[str]:
    with library.open(room.folder / ".weft" / "ledger.db", read_only=True) as ledger:
        return [one.text for one in ledger.rooms.messages("plans", limit=100) if one.kind == "participant"]


def participants(room: Shell) -> list[Participant]:
    with library.open(room.folder / ".weft" / "ledger.db", read_only=True) as ledger:
        found: list[Participant] = ledger.rooms.participants("plans")
        return found


def post(room: Shell, person: str, text: str) -> None:
    with library.open(room.folder / ".weft" / "ledger.db") as ledger:
        ledger.acting_as(person).rooms.post("plans", text)


def test_two_agents_answer_at_once_below_the_line_that_is_typed(room: Shell) -> None:
    with serving(saying("x")) as served:
        with_agents(room, served)
        served.answer_by(by_agent(helper=saying("I say ", "so", held=True), reviewer=saying("I do ", "not", held=True)))
        with typing(room.folder, "room", "chat", "plans") as person:
            person.wait("plans> ")
            person.type("@he\t@rev\tnow?\r")
            person.wait("@helper @reviewer now?")
            while not all(words in screen_of(person.raw) for words in ("helper │ I say", "reviewer │ I do")):
                person.wait("I ")
            person.type("half a l")
            person.wait("plans> half a l")
            assert screen_of(person.raw).splitlines()[-1] == "plans> half a l"
            post(room, "bob", "@[local](user:local) I am here too")
            person.wait("I am here too")
            served.release()
            while not all(words in screen_of(person.raw) for words in ("      I say so", "      I do not")):
                person.wait("I ")
            person.type("\x15/quit\r")
            assert person.end() == 0
    lines = [line.split("  20")[0].strip() for line in screen_of(person.raw).splitlines()]
    assert lines[5:9] == ["4  local", "@helper @reviewer now?", "5  bob", "@local I am here too"]
    answers = {lines[9]: lines[10], lines[11]: lines[12]}
    assert sorted(name.split()[1] + ": " + text for name, text in answers.items()) == [
        "helper: I say so",
        "reviewer: I do not",
    ]
    assert not any("│" in line or line.startswith("plans>") for line in lines), "nothing that was drawn is left"
    assert len(said(room)) == 4


def test_ctrl_c_cuts_the_answers_short_and_the_room_stays_open(room: Shell) -> None:
    with serving([STREAM_HEAD, *events(chunk({"content": "Half an "})), HANG], saying("Whole")) as served:
        with_agents(room, served)
        with typing(room.folder, "room", "chat", "plans") as person:
            person.wait("plans> ")
            person.type("dropped\x03\x03")
            person.wait("nothing is being answered to you")
            person.line("@helper?")
            person.wait("helper │ Half an")
            person.type("\x04")
            person.wait("you are being answered; Ctrl-D again")
            person.type("\x03")
            before = person.wait("interrupted; what had come is kept")
            assert "      Half an" in before or person.wait("      Half an")
            person.line("@helper again")
            person.wait("      Whole")
            person.line("/quit")
            assert person.end() == 0
    assert [text.partition(")")[2] or text for text in said(room)] == ["?", "Half an ", " again", "Whole"]


def test_commands_change_the_room_and_unread_messages_are_marked(room: Shell) -> None:
    with serving(saying("x")) as served:
        with_agents(room, served)
        post(room, "bob", "@[local](user:local) read me")
        with typing(room.folder, "room", "chat", "plans") as person:
            person.wait("1 unread message")
            assert "unread:" in person.wait("read me")
            person.line("/help")
            person.wait("take part no longer")
            person.line("/remove reviewer")
            person.wait("@reviewer was removed")
            person.line("/who")
            person.wait("helper  agent  inactive")
            person.line("/add reviewer")
            assert "reviewer  agent" not in person.wait("@reviewer joined")
            person.line("/add nobody")
            person.wait("nobody")
            person.line("/remov bob")
            person.wait("did you mean /remove?")
            person.line("/title deeds")
            person.wait("deeds> ")
            person.line("/read 1")
            person.wait("changed the title")
            person.line("@zed and me@example.org")
            person.wait("nobody is called 'zed'")
            person.line("/leave")
            person.wait("you left this room")
            assert person.end() == 0
    (listed,) = room.json("room", "list", "--as", "bob")
    assert listed["title"] == "deeds"
    assert "read me" not in room("room", "read", "deeds").err


def test_a_tool_call_is_asked_about_and_answered_in_the_room(room: Shell) -> None:
    arguments = json.dumps({"path": "notes.txt", "content": "new\n"})
    call = {"id": "call-1", "type": "function", "function": {"name": "write", "arguments": arguments}}
    calling = chat_saying({"content": None, "tool_calls": [call]}, finish="tool_calls")
    done, done_too = chat_saying({"content": "Done"}), chat_saying({"content": "Done too"})
    with serving(calling, done, calling, done_too, calling, done) as served:
        served.stream_whole_replies()
        with_agents(room, served)
        (session,) = [one.session for one in participants(room) if one.name == "helper"]
        fields = ("--set", "toolset=worker", "--set", f"workspace={room.folder}")
        assert room("session", "configure", str(session), *fields).code == 0
        assert room("trust", ".").code == 0
        with typing(room.folder, "room", "chat", "plans") as person:
            person.wait("plans> ")
            person.line("@helper do it")
            assert "+new" in person.wait("[a]bort the turn?")
            person.line("y")
            person.wait("is granted")
            person.wait("      Done")
            person.line("/approve")
            person.wait("no such tool call is shown here")
            with running(room.folder, "room", "post", "plans", "@helper once more", stdin=DEVNULL, stdout=DEVNULL):
                person.wait("[a]bort the turn?")
                person.line("n")
                person.wait("is denied")
                person.wait("      Done too")
            person.line("/quit")
            assert person.end() == 0
        assert room("program", "configure", "helper", "--set", "unattended_writes=true").code == 0
        with typing(room.folder, "room", "chat", "plans", "--as", "bob") as bob:
            bob.wait("plans> ")
            bob.line("@helper again")
            bob.wait("[a]bort the turn?")
            bob.line("y")
            bob.wait("bob may not answer for the call of 'write'")
            assert room("program", "configure", "bob", "--set", 'permissions=["approve"]').code == 0
            bob.wait("[a]bort the turn?")
            bob.line("y")
            bob.wait("is granted")
            bob.wait("      Done")
            bob.line("/quit")
            assert bob.end() == 0
    assert room.json("approvals", "--all")[-1]["answered_by"] == "bob"
    assert (room.folder / "notes.txt").read_text() == "new\n"
    assert sorted(one["state"] for one in room.json("approvals", "--all")) == ["denied", "granted", "granted"]


def test_a_pipe_says_line_by_line_and_waits_for_answers(room: Shell) -> None:
    with serving(saying("First"), saying("Second")) as served:
        with_agents(room, served)
        answer = room("room", "chat", "plans", stdin="@helper one\n@bob psst\n@helper two\n/who\n")
    assert answer.code == 0, answer.err
    lines = [line.split("  20")[0].strip() for line in answer.out.splitlines()]
    start = lines.index("@helper one")
    assert lines[start:] == [
        "@helper one", "5  helper", "First",
        "6  local", "@bob psst",
        "7  local", "@helper two", "8  helper", "Second",
        "👤 local  person", "🧭 triage  system agent  inactive", "👤 bob  person",
        "🤖 helper  agent  inactive", "🤖 reviewer  agent  inactive",
    ]  # fmt: skip


def test_a_terminal_that_cannot_be_drawn_on_is_read_line_by_line(room: Shell) -> None:
    with serving(saying("Plain")) as served:
        with_agents(room, served)
        with typing(room.folder, "room", "chat", "plans", TERM="dumb") as person:
            person.wait("Ctrl-D closes this.")
            person.line("@helper?")
            person.wait("      Plain")
            person.type("\x04")
            assert person.end() == 0
    assert "\x1b" not in person.raw


def test_the_example_of_the_page_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rooms.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "docs/rooms.md", "exec"), {})


def test_following_tells_messages_once_and_goes_on_from_any_position(room: Shell) -> None:
    post(room, "bob", "@[local](user:local) one")
    post(room, "bob", "@[local](user:local) two")
    shown = room("room", "follow", "plans", "--after", "1", "--wait", "0")
    assert [line.strip() for line in shown.out.splitlines()][1::2] == ["@local one", "@local two"]
    assert "weft room follow plans --after 3" in shown.err
    records = [
        json.loads(line)
        for line in room("--json", "room", "follow", "plans", "--after", "0", "--wait", "0").out.splitlines()
    ]
    messages = [one for one in records if one["type"] == "room_message"]
    assert [one["position"] for one in messages] == [1, 2, 3]
    assert {one["participant"]["name"] for one in records if one["type"] == "room_participant"} == {
        "local",
        "triage",
        "bob",
    }
    for number, record in enumerate(messages):
        rest = room("--json", "room", "follow", "plans", "--after", str(record["position"]), "--wait", "0").out
        later = [json.loads(line) for line in rest.splitlines()]
        assert [one for one in later if one["type"] == "room_message"] == messages[number + 1 :]
    assert room("room", "remove", "plans", "bob").code == 0
    ended = room("room", "follow", "plans", "--as", "bob", "--after", "2")
    assert "you take part in this room no longer" in ended.out
    refused = room("room", "follow", "plans", "--after", "99", "--wait", "0")
    assert "beyond the newest message" in refused.err
