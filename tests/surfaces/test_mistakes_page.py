"""docs/mistakes.md shows what is printed about ordinary mistakes: its commands are run, and the texts are equal."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import weft
from tests.faults.schemas import newer_schema
from tests.surfaces.approving import LEDGER, waiting
from tests.surfaces.shell import Answer, Shell
from tests.transcripts import masked
from weft.store.sqlite import SqliteStore
from weft.store.sqlite.migrations import shipped_schema

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
SHIPPED = shipped_schema().number
APPROVAL = "01M7T0K4W2QX"
"""How the page names the tool call that waits."""
HOLDER = "process 4711 of desk"
MIN_MISTAKES = 50


def steps(page: str) -> Iterator[tuple[str, str, str]]:
    """What stands before each block, its commands, and what it shows behind each."""
    for before, block in re.findall(r"([^\n]*)\n\n```console\n(.*?)```", page, re.DOTALL):
        for line, printed in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            yield before, line, printed


def run_line(shell: Shell, line: str, folder: Path) -> Answer:
    """`weft …`, `echo TEXT | weft …`, `echo TEXT > FILE`, `mkdir FOLDER`, `cd FOLDER`."""
    words, stdin = shlex.split(line), ""
    if words[0] == "mkdir":
        (folder / words[1]).mkdir()
        return Answer(0, "", "")
    if words[0] == "echo" and words[2] == ">":
        (folder / words[3]).write_text(words[1] + "\n")
        return Answer(0, "", "")
    if words[0] == "echo":
        words, stdin = words[3:], words[1] + "\n"
    assert words[0] == "weft", line
    return shell(*words[1:], stdin=stdin)


@pytest.mark.slow("runs every command of the page")
def test_the_page_shows_what_is_printed(shell: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, shown, got = PAGE.read_text(), [], []
    (folder.parent / "elsewhere").mkdir()
    SqliteStore(folder / "newer.db", schema=newer_schema()).close()
    names = {str(folder.parent / "elsewhere"): "/home/ann/elsewhere", str(folder): "/home/ann/work"}
    names |= {str(folder.parent / "home"): "/home/ann", f"process {os.getpid()} of {os.uname().nodename}": HOLDER}
    names |= {f"schema {SHIPPED + 2}": "schema 26", f"up to {SHIPPED}\n": "up to 24\n"}
    for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "WEFT_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    with ExitStack() as held:
        for before, line, printed in steps(page):
            if line.startswith("cd "):
                monkeypatch.chdir(Path.cwd() / line.removeprefix("cd "))
                continue
            if APPROVAL in line and APPROVAL not in names.values():
                ledger = held.enter_context(weft.open(folder / LEDGER))
                waiting(ledger, "light")
                (approval,) = ledger.approvals.list()
                names[approval.id[:12]] = APPROVAL
            actual = {name: real for real, name in names.items()}
            answer = run_line(shell, line.replace(APPROVAL, actual.get(APPROVAL, APPROVAL)), folder)
            if line == "weft init":
                held.enter_context(weft.open(folder / LEDGER)).begin_turn(session="busy")
            text = answer.out + answer.err if printed else ""
            for real, name in names.items():
                text = text.replace(real, name)
            text = re.sub(r"\(\d+ s ago\)", "(1 s ago)", text)
            code = f"# exit code {answer.code}\n" if answer.code or printed.endswith("# exit code 0\n") else ""
            shown.append(f"{before}\n$ {line}\n{printed}")
            got.append(f"{before}\n$ {line}\n{text}{code}")
    assert masked("".join(got)) == masked("".join(shown))


def test_the_page_has_fifty_mistakes_and_every_exit_code_that_a_mistake_ends_with() -> None:
    codes = re.findall(r"^# exit code (\d+)$", PAGE.read_text(), re.MULTILINE)
    assert len(codes) >= MIN_MISTAKES
    assert set(codes) >= {"0", "1", "2", "3", "4", "5", "7", "8"}
