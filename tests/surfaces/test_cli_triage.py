"""A broker of the command line triages messages of rooms, and `weft show` says how."""

from __future__ import annotations

import pytest

import weft as weft_package
from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import chat
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_broker import serve_until_empty, stock


def test_a_broker_gives_a_message_to_whom_it_is_for_and_show_explains_it(
    weft: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    with serving(chat()) as server:
        stock(weft, server.url)
        for name, prompt in (("reviewer", "You review code."), ("cook", "You know recipes.")):
            weft.json("agent", "create", name, "--model", "fast", "--prompt", prompt)
        with weft_package.open(weft.folder / ".weft" / "ledger.db") as ledger:
            room = ledger.rooms.create("plans", agents=["reviewer", "cook"]).id
            ledger.rooms.post(room, "who can review this code?")
        assert serve_until_empty(weft)[0] == 0
        assert len(server.received) == 1  # the agent's own request: triage asks no model
    with weft_package.open(weft.folder / ".weft" / "ledger.db") as ledger:
        said = [(one.author_name, one.text) for one in ledger.rooms.messages(room) if one.author_name != "local"]
        triage = next(one.session for one in ledger.rooms.participants(room) if one.name == "triage")
    assert [author for author, _ in said[-2:]] == ["triage", "reviewer"]
    assert said[-1][1] == "Hello there"
    assert triage is not None
    shown = weft("show", triage).out
    assert "Chosen by words: reviewer." in shown
    assert "reviewer 1.00 (code, review)" in shown
    assert weft.json("show", triage)["effective_config"]["triage"]["way"] == "words"
