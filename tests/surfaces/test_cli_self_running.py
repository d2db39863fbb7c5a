"""What a turn changed that something runs by itself is named when it ends, and before a person allows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import Script, chat, chat_saying
from tests.sizes import share
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_broker import beside, stock, wait_until
from weft.ledger.api import Ledger

NAMED = "runs by itself: .envrc (direnv, when a shell enters the folder)"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")


def calling(tool: str, **arguments: Any) -> Script:
    call = {"id": "call-1", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
    return chat_saying({"content": None, "tool_calls": [call]}, finish="tool_calls")


def approving(shown: list[str]) -> Callable[[Ledger], None]:
    """A person who allows what is asked."""

    def approve(ledger: Ledger) -> None:
        wait_until(ledger, lambda: bool(ledger.approvals.list()))
        (approval,) = ledger.approvals.list()
        shown.append(approval.shown or "")
        ledger.approvals.grant(approval.id)

    return approve


def equip(weft: Shell, url: str) -> None:
    stock(weft, url, "talk")
    assert weft("session", "configure", "talk", "--set", "toolset=worker").code == 0
    assert weft("trust", ".").code == 0


def test_the_end_of_a_turn_and_the_approval_name_what_runs_by_itself(weft: Shell) -> None:
    shown: list[str] = []
    with serving(calling("write", path=".envrc", content="evil\n"), chat(), chat()) as server:
        equip(weft, server.url)
        with beside(weft, approving(shown)):
            sent = weft("send", "--session", "talk", "Begin")
        assert (sent.code, sent.out) == (0, "Hello there\n"), sent.err
        assert sent.err.rstrip().endswith(NAMED)
        assert NAMED in shown[0]
        again = weft("send", "--session", "talk", "And now?")
        assert (again.code, NAMED in again.err) == (0, False)


@pytest.mark.parametrize("command", share(["send", "chat", "agent"], test=1))
def test_what_a_command_changed_is_named_to_programs_too(weft: Shell, command: str) -> None:
    shown: list[str] = []
    with serving(calling("write", path=".envrc", content="evil\n"), chat()) as server:
        equip(weft, server.url)
        weft.json("agent", "create", "ada", "--model", "fast")
        words = {
            "send": ("send", "--session", "talk", "Begin"),
            "chat": ("chat", "talk"),
            "agent": ("agent", "run", "ada", "Begin", "--in", "."),
        }[command]
        with beside(weft, approving(shown)):
            told = weft(*words, "--json", stdin="Begin\n" if command == "chat" else "").json
        assert told["runs_by_itself"] == {".envrc": "direnv, when a shell enters the folder"}
