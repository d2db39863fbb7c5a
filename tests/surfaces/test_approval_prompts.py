"""People are told of tool calls that wait for them, while the turn runs, and answer at the terminal or elsewhere."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import Script, answer, chat, chat_saying
from tests.surfaces import talking
from tests.surfaces.approving import opened, waiting
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell, running
from tests.surfaces.test_cli_broker import beside, stock, wait_until
from weft.ledger.api import Ledger
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.screen import plain_line
from weft.surfaces.cli.work.approvals import YES, ApprovalPrompts

SECRET = "the-words-of-an-argument"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")


def calling(tool: str, **arguments: Any) -> Script:
    call = {"id": "call-1", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
    return chat_saying({"content": None, "tool_calls": [call]}, finish="tool_calls")


def writing(text: str) -> Script:
    return calling("write", path="notes.txt", content=text)


def equip(weft: Shell, url: str) -> None:
    """A session whose turns have tools, in a folder that is trusted."""
    stock(weft, url, "talk")
    assert weft("session", "configure", "talk", "--set", "toolset=worker").code == 0
    assert weft("trust", ".").code == 0
    (weft.folder / "notes.txt").write_text("old\n")


@contextmanager
def answered(weft: Shell, *scripts: Script) -> Iterator[Any]:
    with serving(*scripts) as server:
        equip(weft, server.url)
        yield server


def test_who_may_approve_is_told_by_their_channel_and_a_line_says_what_waits(
    weft: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = tmp_path / "told.txt"
    script = tmp_path / "tell"
    script.write_text(f"#!/bin/sh\ncat > {told}\n")
    script.chmod(0o755)
    monkeypatch.setenv("WEFT_NOTIFY_COMMAND", str(script))
    with serving(answer(200, {})) as hook, answered(weft, writing(f"new {SECRET}\n"), chat()):
        right = ("--permission", "approve", "--channel")
        assert weft("human", "create", "ann", *right, "command").code == 0
        web = ("--set", f"preferences.webhook={hook.url}/hook")
        assert weft("human", "create", "bob", *right, "webhook", *web).code == 0
        lost = ("--set", "preferences.webhook=http://127.0.0.1:9/lost")
        assert weft("human", "create", "cid", *right, "webhook", *lost).code == 0
        assert weft("human", "create", "dan", "--channel", "command").code == 0

        def approve(ledger: Ledger) -> None:
            wait_until(ledger, lambda: bool(ledger.approvals.list()))
            ledger.approvals.grant(ledger.approvals.list()[0].id)

        with beside(weft, approve):
            sent = weft("send", "--session", "talk", "Begin")
        (approval,) = weft.json("approvals", "--all")
        id = approval["id"][:12]
        assert (sent.code, sent.out) == (0, "Hello there\n"), sent.err
        assert f"`weft approve {id}` shows and allows it" in sent.err
        assert "cid was not told of it" in sent.err
        body = hook.received[0].body
        assert (body["human"], body["request"], body["asks"]) == ("bob", approval["id"], True)
        for text in (body["text"], told.read_text()):
            assert "'write'" in text
            assert f"weft approve {id}" in text
            assert "notes.txt" not in text
        assert len(hook.received) == 1
    assert (weft.folder / "notes.txt").read_text() == f"new {SECRET}\n"
    shown = weft("approvals", approval["id"]).out
    assert f"  | +new {SECRET}" in shown  # whoever decides sees all of it
    assert CANARY not in json.dumps([approval, body]) + sent.err + sent.out + shown + told.read_text()
    listed = (
        weft("approvals", "--all").out + weft("human", "requests").out + weft("approve", approval["id"], "--yes").err
    )
    assert SECRET not in json.dumps(body) + sent.err + sent.out + listed + told.read_text()


@pytest.mark.parametrize("how", ["--quiet", "--json"])
def test_what_waits_is_said_where_no_notes_are(weft: Shell, how: str) -> None:
    with answered(weft, writing(f"new {SECRET}\n"), chat()):

        def approve(ledger: Ledger) -> None:
            wait_until(ledger, lambda: bool(ledger.approvals.list()))
            ledger.approvals.grant(ledger.approvals.list()[0].id)

        with beside(weft, approve):
            sent = weft("send", "--session", "talk", "Begin", how)
        (approval,) = weft.json("approvals", "--all")
        id = approval["id"][:12]
        assert sent.code == 0, sent.err
        (line,) = sent.err.splitlines()  # nothing else
        assert SECRET not in line
        if how == "--quiet":
            assert (f"`weft approve {id}`" in line, f"`weft reject {id}`" in line) == (True, True), line
            return
        told = json.loads(line)["waiting"]
        assert (told["approval"], told["tool"], told["session"]) == (approval["id"], "write", "talk")
        assert (told["approve"], told["reject"]) == (f"weft approve {id}", f"weft reject {id}")
        assert sent.json["text"] == "Hello there"


def test_who_sends_behind_a_request_of_a_run_that_is_gone_is_told_of_it(weft: Shell) -> None:
    with answered(weft, writing("new\n"), chat(), chat(), chat()):
        gone = running(weft.folder, "send", "--session", "talk", "Begin", stderr=subprocess.DEVNULL)
        with gone, opened(weft) as ledger:
            wait_until(ledger, lambda: bool(ledger.approvals.list()))
            approval = ledger.approvals.list()[0]
        assert weft("send", "--session", "talk", "Second", "--no-wait").code == 0
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with running(weft.folder, "send", "--session", "talk", "Third", **pipes) as sender, opened(weft) as ledger:
            assert sender.stderr is not None
            first, second = (sender.stderr.readline().decode() for _ in range(2))
            ledger.approvals.grant(approval.id)
            out, err = sender.communicate()
            assert (sender.wait(), out) == (0, b"Hello there\n"), err
        assert first == "before this message in session talk: the turn that is open and 1 earlier message\n"
        assert second.startswith("waits for a person: ")
        assert f"`weft approve {approval.id[:12]}` shows and allows it" in second
        queued = len(weft.json("inbox"))
        assert weft("send", "--session", "talk", "Fourth", "--toolset", "nothing", "--no-wait").code == 3
        assert len(weft.json("inbox")) == queued
    assert (weft.folder / "notes.txt").read_text() == "new\n"


def test_a_call_is_answered_at_the_terminal_that_sends(weft: Shell) -> None:
    command = ("send", "--session", "talk", "Begin")
    with answered(weft, writing("new\n"), chat()), talking.typing(weft.folder, *command) as typist:
        shown = typist.wait("[a]bort the turn?")
        assert "| -old" in shown
        assert "| +new" in shown
        assert '"content":"new\\n"' in shown
        typist.line("maybe")
        typist.wait("[a]bort the turn?")
        typist.line("y")
        typist.wait("is granted")
        typist.wait("Hello there")
        assert typist.end() == 0
    assert (weft.folder / "notes.txt").read_text() == "new\n"
    (approval,) = weft.json("approvals", "--all")
    assert approval["answered_by"] == "local"


def test_a_conversation_shows_the_difference_and_takes_the_answers(weft: Shell) -> None:
    scripts = [writing("one\n"), chat(), writing("two\n"), chat(), writing("three\n"), chat()]
    with answered(weft, *scripts), talking.typing(weft.folder, "chat", "talk", "--model", "fast") as typist:
        typist.wait("talk>")
        typist.line("Begin")
        assert "| +one" in typist.wait("[a]bort the turn?")
        typist.line("/approve")
        typist.wait("is granted")
        typist.wait("talk>")
        assert (weft.folder / "notes.txt").read_text() == "one\n"
        typist.line("Again")
        typist.wait("[a]bort the turn?")
        typist.line("/reject")
        typist.wait("is denied")
        typist.wait("talk>")
        typist.line("Once more")
        typist.wait("[a]bort the turn?")
        typist.line("a")
        typist.wait("is denied")
        typist.wait("talk>")
        typist.line("/approve")
        typist.wait("no tool call waits here")
        typist.line("/quit")
        assert typist.end() == 0
    assert (weft.folder / "notes.txt").read_text() == "one\n"
    assert [one["state"] for one in weft.json("approvals", "--all")] == ["granted", "denied", "denied"]
    assert weft("verify").code == 0


class AnsweredHere:
    """Prompts of one process over a ledger in which two calls wait."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.lines = ledger, list[str]()
        people = SimpleNamespace(across=self.across, programs=SimpleNamespace(all=lambda _: []))
        self.prompts = ApprovalPrompts(Call(), ledger, lambda: people)  # type: ignore[arg-type,return-value]
        self.prompts.show = lambda lines: self.lines.extend(plain_line(line) for line in lines)

    async def across(self, work: Any) -> Any:
        await asyncio.sleep(0)
        return work()

    def questions(self) -> list[str]:
        """The requests that were shown, by their tools."""
        return [line.split()[-1] for line in self.lines if line.startswith("  tool")]


def test_an_answer_is_for_the_request_that_is_shown_and_for_no_other(weft: Shell) -> None:
    with opened(weft) as ledger:
        waiting(ledger, "light", "door", "send")
        light, door, send = ledger.approvals.list()

        async def body() -> None:
            here = AnsweredHere(ledger)
            prompts = here.prompts
            with prompts.answered_here():
                assert not prompts.take("y")  # typed before anything was shown
                for approval in (light, door, send):
                    prompts.asked(approval.id)
                await prompts.aclose()
                assert here.questions() == ["light"]
                prompts.answer(door.id[:12], YES)
                assert "no such tool call is shown here" in here.lines[-1]
                assert [prompts.take(key) for key in ("maybe", "y", "y")] == [False, True, False]
                await prompts.aclose()
                assert here.questions() == ["light", "door"]
                ledger.approvals.deny(door.id)  # somebody else, meanwhile
                assert prompts.take("s")
                await prompts.aclose()
                assert any("denied already" in line for line in here.lines)
                assert here.questions() == ["light", "door", "send"]
                assert prompts.take("abort")
                await prompts.aclose()
            assert not prompts.take("y")

        asyncio.run(body())
        assert [one.state for one in ledger.approvals.list(states=["granted", "denied"])] == [
            "granted",
            "denied",
            "denied",
        ]
