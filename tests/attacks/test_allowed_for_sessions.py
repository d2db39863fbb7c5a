"""What a person allowed for the rest of a session is used where it was not allowed: in another folder, in a wider
sandbox."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.attacks.test_folders_for_work import (
    _machine,  # noqa: F401 - a fixture
    begin,
    calling,
    folder,  # noqa: F401 - a fixture
    running,
    weft,  # noqa: F401 - a fixture
)
from tests.runtime.scripted import Script, chat
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_broker import beside, stock
from weft.ledger.api import Ledger, Runs

ON_DISK = True  # no sandbox takes a workspace in memory
LOOK_SECONDS = 0.2
CALLS = {
    "write": lambda: calling("write", path="notes.txt", content="one"),
    "shell": lambda: running("echo one >> notes.txt"),
}


@contextmanager
def _allowing_for_the_session(weft: Shell) -> Iterator[None]:  # noqa: F811
    is_over = threading.Event()

    def allow(ledger: Ledger) -> None:
        seen = 0
        while not is_over.is_set():
            for approval in ledger.approvals.list():
                ledger.approvals.grant(approval.id, plan_digest=approval.plan_digest, scope="session")
            Runs(ledger).wait_for_news(seen, LOOK_SECONDS)
            seen = ledger.newest()

    with beside(weft, allow):
        try:
            yield
        finally:
            is_over.set()


def _allowed(weft: Shell, script: Script) -> None:  # noqa: F811
    with serving(script, chat()) as server, _allowing_for_the_session(weft):
        assert weft("provider", "configure", "there", "--base-url", server.url).code == 0
        assert weft("send", "--session", "talk", "Begin").code == 0


@pytest.fixture
def allowing(weft: Shell, folder: Path) -> Shell:  # noqa: F811
    stock(weft, "http://127.0.0.1:9/v1", "talk")
    assert weft("session", "configure", "talk", "--set", "toolset=worker", "--set", f"workspace={folder}").code == 0
    return weft


@pytest.mark.parametrize("tool", CALLS)
def test_what_was_allowed_in_one_folder_is_asked_about_in_another(
    allowing: Shell,
    folder: Path,  # noqa: F811
    tmp_path: Path,
    tool: str,
) -> None:
    _allowed(allowing, CALLS[tool]())
    assert begin(allowing, CALLS[tool]()) == []
    other = tmp_path / "other"
    other.mkdir()
    assert allowing("session", "configure", "talk", "--set", f"workspace={other}").code == 0
    assert [approval.tool for approval in begin(allowing, CALLS[tool]())] == [tool]
    assert not (other / "notes.txt").exists()


def test_what_was_allowed_in_a_sandbox_is_asked_about_in_a_wider_one(allowing: Shell) -> None:
    _allowed(allowing, CALLS["shell"]())
    created = allowing("toolset", "create", "wide", "--allow", "shell", "--sandbox", "network:example.org")
    assert created.code == 0, created.err
    assert allowing("session", "configure", "talk", "--set", "toolset=wide").code == 0
    assert [approval.tool for approval in begin(allowing, CALLS["shell"]())] == ["shell"]
