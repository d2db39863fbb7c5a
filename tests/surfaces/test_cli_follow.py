"""`weft follow` shows what happens in a session and goes on from any position."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.surfaces.shell import Shell
from weft.ledger.api import Ledger, StreamPosition
from weft.surfaces.cli.screen import Screen
from weft.surfaces.cli.work.messages import StreamPrinter

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()


@pytest.fixture
def talked(shell: Shell) -> Shell:
    shell("init")
    shell.record("Which city?", response="Paris\nis it.", model="m-1")
    with weft.open(next(shell.folder.rglob("*.db"))) as ledger:
        ledger.inbox.admit("And\x1b[31m now?", session="main")
    return shell


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_what_happened_is_shown_as_lines(talked: Shell) -> None:
    answer = talked("follow", "main", "--after", "0", "--wait", "0")
    lines = answer.out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("user"))
    assert lines[start : start + 4] == ["user Which city?", "assistant m-1", "Paris", "is it."]
    assert "ended: success" in lines
    assert lines[-1] == "queued local: And\\x1b[31m now?"
    (position,) = re.findall(r"`weft follow main --after (\d+)` goes on from here", answer.err)
    assert talked("follow", "main", "--after", position, "--wait", "0").out == ""


def test_every_record_has_its_position_and_each_gives_the_rest(talked: Shell) -> None:
    everything = records(talked("--json", "follow", "main", "--after", "0", "--wait", "0").out)
    kinds = [record["type"] for record in everything]
    assert kinds[-1] == "message_admitted"
    assert [record["text"] for record in everything if record["type"] == "text_added"] == ["Paris\nis it."]
    for number, record in enumerate(everything):
        rest = talked("--json", "follow", "main", "--after", record["position"], "--wait", "0").out
        assert records(rest) == everything[number + 1 :]


def test_an_answer_that_is_cut_inside_its_text_goes_on_there(talked: Shell) -> None:
    everything = records(talked("--json", "follow", "main", "--after", "0", "--wait", "0").out)
    place = next(number for number, record in enumerate(everything) if record["type"] == "text_added")
    before, attempt, _ = everything[place]["position"].split(".")
    rest = records(talked("--json", "follow", "main", "--after", f"{before}.{attempt}.3", "--wait", "0").out)
    assert rest[0] == {**everything[place], "text": "is\nis it."}
    assert rest[1:] == everything[place + 1 :]


def test_interrupting_ends_it_and_says_how_to_go_on(talked: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Ledger.follow

    def interrupted(ledger: Ledger, session: str, **options: Any) -> Iterator[Any]:
        yield from followed(ledger, session, **{**options, "wait": 0})
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "follow", interrupted)
    answer = talked("follow", "main", "--after", "0")
    assert answer.code == 0
    assert "goes on from here" in answer.err


@pytest.mark.parametrize(
    ("after", "words"), [("x", "is no position in a stream"), ("99999", "beyond the newest event")]
)
def test_a_position_that_is_none_is_refused(talked: Shell, after: str, words: str) -> None:
    answer = talked("follow", "main", "--after", after, "--wait", "0")
    assert answer.code != 0
    assert words in answer.err


def test_a_void_answer_is_announced_on_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(color=False, unicode=True, terminal=False, columns=80, rows=24, paging=False)
    printer, at = StreamPrinter(screen), StreamPosition(1)
    for item in (
        weft.TextAdded(position=at, turn="t", text="Hm", kind="thinking"),
        weft.TextAdded(position=at, turn="t", text="Half "),
        weft.TextAdded(position=at, turn="t", text="an\nans"),
        weft.AttemptReset(position=at, turn="t", number=1, reason="crash"),
        weft.TextAdded(position=at, turn="t", text="Whole"),
        weft.ToolStarted(position=at, turn="t", call="c", tool="double", arguments={"number": 4}),
        weft.ToolFinished(position=at, turn="t", call="c", tool="double", status="ok", result=8),
    ):
        printer.show(item)
    assert capsys.readouterr().out.splitlines() == [
        "Hm",
        "Half an",
        "ans",
        "the answer above is void (crash); what follows is another answer",
        "Whole",
        'tool double {"number":4}',
        "tool double ok: 8",
    ]


def test_the_page_names_every_item_and_its_example_runs() -> None:
    section = PAGE.split("## Following a session\n")[1].split("\n## ")[0]
    names = set(re.findall(r"`(\w+)` \(`\w+`\)", section))
    assert names == {item.__name__ for item in weft.ledger.api.ITEMS}
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(compile(code, "docs/agents.md", "exec"), {})
