"""weft doctor."""

from __future__ import annotations

import os
from pathlib import Path

from tests.surfaces.shell import Shell, on_terminal


def test_a_sound_ledger_is_well(weft: Shell) -> None:
    weft.record("q")
    answer = weft("doctor")
    assert answer.code == 0
    assert "nothing is wrong" in answer.err
    assert all(line.startswith("good ") for line in answer.out.splitlines())
    found = weft.json("doctor", "--full", "--strict")
    assert (found["ok"], found["errors"], found["warnings"]) == (True, 0, 0)
    assert {"grade", "check", "what", "why", "mend"} == set(found["findings"][0])


def test_no_ledger_at_all_is_a_finding(shell: Shell) -> None:
    answer = shell("doctor")
    assert answer.code == 1
    assert "there is no ledger" in answer.out
    assert "do: make one with `weft init`" in answer.out
    assert shell("doctor", "--json").json["ok"] is False
    assert shell("doctor", "--ledger", "none.db").code == 1


def test_a_damaged_file_is_explained(weft: Shell, folder: Path) -> None:
    weft.record("q")
    os.truncate(folder / ".weft" / "ledger.db", 9000)
    answer = weft("doctor")
    assert answer.code == 1
    assert "error" in answer.out
    assert "weft recover" in answer.out
    assert "error" in on_terminal(folder, "doctor")[1]
