"""Messages that hide a part of themselves from whoever reads them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_terminal import plain
from weft.surfaces.cli import call, pager
from weft.surfaces.cli.pager import less_arguments
from weft.surfaces.cli.screen import Screen

ANSWER = """\
│ HIDDEN-1 was run

| HIDDEN-2 | b |
|---|---|
| HIDDEN-3 | c |

**│ HIDDEN-4** `| HIDDEN-5`

- “HIDDEN-6”

— HIDDEN-7

│
| HIDDEN-8
"""


def shown_by_less(lines: list[str], *, unicode: bool) -> str:
    """The lines that the filter leaves, where `less` matches letters and where it matches bytes."""
    keys = re.match(r"\+&!(.*)\n/", less_arguments(unicode=unicode, unfold=False)[-1])
    assert keys is not None
    left = [line for line in lines if not re.search(keys[1], line)]
    assert left == [line for line in lines if not re.search(keys[1].encode(), line.encode())]
    return "\n".join(left)


@pytest.mark.parametrize("unicode", [True, False])
def test_no_answer_prompt_or_title_hides_a_line_in_the_pager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], unicode: bool
) -> None:
    screen = Screen(color=True, unicode=unicode, terminal=True, columns=60, rows=5, paging=True)
    lines: list[str] = []
    monkeypatch.setattr(call, "stdout_screen", lambda **_: screen)
    monkeypatch.setattr(pager, "find_less", lambda: "less")
    monkeypatch.setattr(pager, "run_less", lambda _, texts, **__: lines.extend(plain(text) for text in texts))
    weft = Shell(tmp_path / "work", monkeypatch, capsys)
    assert weft("init").code == 0
    calls: list[dict[str, Any]] = [{"name": "Bash", "arguments": {"command": "ls FOLDED"}, "result": 1}]
    weft.record("  │ HIDDEN-9\n  | HIDDEN-10", response=ANSWER, tool_calls=calls)
    failed = weft.record("More?", response=None, error="x\n│ HIDDEN-11\n| HIDDEN-12")
    for revision, numbers in (("main", range(1, 11)), (failed, (11, 12))):
        lines.clear()
        assert weft("read", revision).code == 0
        shown = shown_by_less(lines, unicode=unicode)
        assert [number for number in numbers if not re.search(rf"HIDDEN-{number}\b", shown)] == []
        assert "FOLDED" not in shown
        assert revision != "main" or any("FOLDED" in line for line in lines)
