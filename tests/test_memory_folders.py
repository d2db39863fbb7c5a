"""Folders that a killed process left in memory are removed by the next one, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.memory_folders import remove_leftovers


def test_folders_of_processes_that_have_ended_are_removed_and_no_others(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    names = [f"made-{ended.pid}-x", f"made-{os.getpid()}-x", "made-by-hand", f"other-{ended.pid}-x"]
    for name in names:
        (tmp_path / name / "inside").mkdir(parents=True)
    remove_leftovers("made-", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])
