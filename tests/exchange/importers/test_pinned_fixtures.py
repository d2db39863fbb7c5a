"""Origins of which no corpus lies here: what their fixtures give is pinned instead.

A digest that changed without a new mapping number would tear apart what was imported before and after.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from tests.exchange.corpus import opened, take
from tests.exchange.fixtures.aider import histories
from tests.exchange.fixtures.claude_ai import exports
from weft.exchange.importers.plugins import load_importers

PINNED = Path(__file__).parents[1] / "pinned_digests.json"


def claude_ai(folder: Path) -> None:
    exports.write(
        folder, exports.conversation(*exports.everything()), exports.conversation(*exports.dialogue(), id="c")
    )
    exports.write(folder, exports.project(), name="projects.json")


def aider(folder: Path) -> None:
    histories.write(folder, histories.everything())


@pytest.mark.parametrize("write", [claude_ai, aider])
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
