"""The tour in README.md is run, and what it shows is compared with what the commands print."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.surfaces.shell import spawn
from tests.transcripts import masked, steps

ROOT = Path(__file__).parent.parent
WEFT = Path(sys.executable).with_name("weft")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where nobody used Weft before, with the samples in it and the installed `weft` on the path."""
    for name in os.environ.keys() - {"PATH", "PYTHONPATH", "WEFT_TEST_PATHS"}:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{WEFT.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    project = tmp_path / "project"
    shutil.copytree(ROOT / "docs" / "samples", project / "docs" / "samples")
    return project


def in_shell(command: str, folder: Path) -> str:
    """As a person types it, with the installed program."""
    return subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=True).stdout


def forked(command: str, folder: Path) -> str:
    """The same without the start of an interpreter, for a command alone or one whose output goes to a file."""
    program, *words = shlex.split(command)
    assert program == "weft"
    file = words.pop() if words[-2:-1] == [">"] else None
    ended = spawn(folder, *(words[:-1] if file else words))
    assert ended.returncode == 0, ended.stderr
    if file is None:
        return ended.stdout.decode()
    (folder / file).write_bytes(ended.stdout)
    return ""


@pytest.mark.slow("runs the tour, some of it by the installed program")
def test_the_tour_prints_what_the_readme_shows(project: Path) -> None:
    tour = steps((ROOT / "README.md").read_text())
    assert len(tour) > 5
    for number, (command, expected) in enumerate(tour):
        run = in_shell if number == 0 or "|" in command else forked
        shown = run(command, project).replace(str(project.parent), "~")
        assert masked(shown) == masked(expected), command
