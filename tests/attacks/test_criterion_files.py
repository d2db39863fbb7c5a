"""An agent makes what a criterion looks at a link to what it cannot read: a verdict is recorded, and tells of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.kernel.errors import InvalidInput
from weft.runtime.agent_harness import CriterionCommands, CriterionFiles
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.hidden_places import ProtectedPlaces, SecretFiles

CANARY = "canary-of-criteria-73d1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (".env", ".docker/config.json", ".weft/ledger.db", "deploy/own.secret", "kept/ledger.db", "plain.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(CANARY)
    return tmp_path


@pytest.fixture
def seen(folder: Path) -> CriterionFiles:
    secrets = SecretFiles(more=("*.secret",))
    protected = ProtectedPlaces(ledgers=(folder / "kept/ledger.db",), folders=(), secrets=secrets)
    return CriterionCommands(CommandRunner(protected)).observe(folder, "the answer")


@pytest.mark.parametrize(
    "target", [".env", ".docker/config.json", ".weft/ledger.db", "deploy/own.secret", "kept/ledger.db", "/etc/passwd"]
)
def test_no_criterion_looks_at_what_commands_do_not_see(folder: Path, seen: CriterionFiles, target: str) -> None:
    (folder / "result.json").symlink_to(target)
    (folder / "way").symlink_to(os.path.dirname(target) or ".")
    for path in ("result.json", target.removeprefix("/"), f"way/{os.path.basename(target)}"):
        if not os.path.lexists(folder / path):
            continue
        for look in (seen.file_exists, seen.read_text):
            with pytest.raises(InvalidInput) as refused:
                look(path)
            assert CANARY not in str(refused.value)


def test_no_criterion_waits_for_a_pipe(folder: Path, seen: CriterionFiles) -> None:
    os.mkfifo(folder / "pipe")
    assert seen.read_text("pipe") is None


def test_a_criterion_looks_at_everything_else(folder: Path, seen: CriterionFiles) -> None:
    (folder / "linked").symlink_to("plain.json")
    assert (seen.file_exists("linked"), seen.file_exists("deploy"), seen.file_exists("none/at/all")) == (
        True,
        True,
        False,
    )
    assert (seen.read_text("linked"), seen.read_text("deploy"), seen.read_text("none"), seen.read_text(None)) == (
        CANARY,
        None,
        None,
        "the answer",
    )
