"""The tour in README.md is run, and what it shows is compared with what the commands print."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.transcripts import masked, steps

ROOT = Path(__file__).parent.parent


def test_the_tour_prints_what_the_readme_shows(tmp_path: Path) -> None:
    weft = Path(sys.executable).with_name("weft")
    tour = steps((ROOT / "README.md").read_text())
    assert len(tour) > 5
    environment = {"PATH": f"{weft.parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path), "TZ": "UTC"}
    project = tmp_path / "project"
    shutil.copytree(ROOT / "docs" / "samples", project / "docs" / "samples")
    for command, expected in tour:
        ran = subprocess.run(
            ["sh", "-c", command], cwd=project, env=environment, capture_output=True, text=True, check=True
        )
        assert masked(ran.stdout.replace(str(tmp_path), "~")) == masked(expected), command
