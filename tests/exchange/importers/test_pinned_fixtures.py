"""Origins of which no corpus lies here: what their fixtures give is pinned instead.

A digest that changed without a new mapping number would tear apart what was imported before and after. Databases whose
tools choose ids and times themselves were written by them once, and lie here as statements.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from tests.exchange.corpus import opened, take
from tests.exchange.fixtures.aider import histories
from tests.exchange.fixtures.atif import trajectories
from tests.exchange.fixtures.claude_ai import exports
from tests.exchange.fixtures.langgraph import agents
from tests.exchange.fixtures.llm import databases
from tests.exchange.fixtures.messages import conversations
from tests.exchange.fixtures.opencode import sessions
from weft.exchange.importers.port import load_importers

PINNED = Path(__file__).parents[1] / "pinned_digests.json"


def claude_ai(folder: Path) -> None:
    exports.write(
        folder, exports.conversation(*exports.everything()), exports.conversation(*exports.dialogue(), id="c")
    )
    exports.write(folder, exports.project(), name="projects.json")


def aider(folder: Path) -> None:
    histories.write(folder, histories.everything())


def llm(folder: Path) -> None:
    restore(databases.__file__, "logs.sql", folder / "logs.db")
    databases.write_classic(folder / "older" / "logs.db")


def langgraph(folder: Path) -> None:
    restore(agents.__file__, "checkpoints.sql", folder / "checkpoints.db")


def atif(folder: Path) -> None:
    trajectories.write(folder, trajectories.trajectory())


def messages(folder: Path) -> None:
    conversations.written(folder, "chat.json", {"messages": conversations.CHAT})
    conversations.written(folder, "anthropic.json", conversations.ANTHROPIC)
    conversations.written(folder, "shared.jsonl", conversations.SHARED)


def opencode(folder: Path) -> None:
    """Of version 2, which no corpus has."""
    sessions.write_newer(folder, sessions.every_kind())


def restore(beside: str, name: str, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(Path(beside).with_name(name).read_text())


@pytest.mark.parametrize("write", [claude_ai, aider, llm, langgraph, atif, messages, opencode])
def test_digests_are_what_they_were(write: Callable[[Path], None], tmp_path: Path) -> None:
    origin = write.__name__.replace("_", "-")
    folder = tmp_path / "fixtures"
    folder.mkdir()
    write(folder)
    with opened(tmp_path / "ledger.db") as ledger:
        take(ledger, folder)
        found = sorted(turn.digest for turn in ledger.log())
    (importer,) = load_importers(origin)
    digest = sha256("\n".join(found).encode()).hexdigest()
    pinned = json.loads(PINNED.read_text())[f"{origin}/{importer.mapping} of fixtures"]
    assert {"turns": len(found), "digest": digest} == pinned
