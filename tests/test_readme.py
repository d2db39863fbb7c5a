"""The tour in README.md is run, and what it shows is compared with what the commands print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOUR = re.compile(r"<!-- run: console -->\n```console\n(.*?)```", re.DOTALL)
ID = re.compile(r"\b(?:[0-9a-f]{64}|[0-9A-HJKMNP-TV-Z]{26}|[0-9A-HJKMNP-TV-Z]{8})\b")
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}")


def steps(text: str) -> list[tuple[str, str]]:
    """(command, output) pairs of all console blocks, in order."""
    found: list[tuple[str, str]] = []
    for line in "".join(TOUR.findall(text)).splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:].strip(), ""))
        else:
            command, output = found[-1]
            found[-1] = (command, output + line)
    return found


def masked(output: str) -> str:
    """Ids numbered by first appearance, times left out: everything else must be equal."""
    names: dict[str, str] = {}
    numbered = ID.sub(lambda match: names.setdefault(match[0], f"<id {len(names)}>"), output)
    return TIME.sub("<time>", numbered)


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
