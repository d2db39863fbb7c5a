"""docs/serving.md: the unit and the container file are what their readers take, and start what there is."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from weft.surfaces.cli.main import weft as program

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
INSTRUCTIONS = set("FROM RUN USER WORKDIR ENV VOLUME STOPSIGNAL ENTRYPOINT CMD EXPOSE COPY HEALTHCHECK".split())


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    return str(found)


def ensure_taken(words: list[str]) -> None:
    """Raises click's error for options and commands that there are not."""
    context = click.Context(program, info_name="weft")
    name, command, rest = program.resolve_command(context, words)
    assert command is not None
    command.make_context(name, list(rest), parent=context)


def test_the_unit_starts_the_server_with_options_that_it_has() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(block("ini"))
    assert unit.sections() == ["Unit", "Service", "Install"]
    service = unit["Service"]
    start, *words = shlex.split(service["ExecStart"])
    assert start.endswith("/weft")
    ensure_taken(words)
    assert service["KillSignal"] == "SIGTERM"
    assert service["StandardOutput"] == "null", "the line that it is ready has the link that signs in"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = re.sub(r"ExecStart=\S+", f"ExecStart={sys.executable}", block("ini")).replace("User=weft", "User=root")
    unit = tmp_path / "weft.service"
    unit.write_text(text)
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    of_ours = [line for line in (told.stdout + told.stderr).splitlines() if "weft.service" in line]
    assert of_ours == []


def test_the_container_file_has_known_instructions_and_starts_the_server() -> None:
    lines = [line for line in block("dockerfile").splitlines() if line]
    instructions = [(line.split(" ")[0], line.partition(" ")[2]) for line in lines]
    assert {instruction for instruction, _ in instructions} <= INSTRUCTIONS
    told = dict(instructions)
    assert instructions[0][0] == "FROM"
    assert [name for name, _ in instructions].index("USER") < [name for name, _ in instructions].index("CMD")
    assert json.loads(told["ENTRYPOINT"]) == ["weft"]
    ensure_taken(json.loads(told["CMD"]))
    extras = re.search(r"weft\[([a-z,]+)\]", block("dockerfile"))
    assert extras is not None
    known = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in known for extra in extras[1].split(","))


def test_every_command_of_the_page_takes_its_options() -> None:
    lines = re.findall(r"^weft (.*)$", PAGE, flags=re.MULTILINE)
    assert len(lines) >= 6
    for line in lines:
        words = shlex.split(line.replace("…", "x"), comments=True)
        if words[0] == "--ledger":
            words = words[2:]
        ensure_taken(words)
