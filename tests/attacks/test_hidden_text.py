"""Messages that hide a part of themselves from whoever reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exchange.exporters.stories import call as tool_call
from tests.exchange.exporters.stories import told, written
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_terminal import plain
from weft.exchange.exporters.html import Html, rendered
from weft.exchange.exporters.markdown import Markdown
from weft.exchange.exporters.turn_contents import visible
from weft.ledger.model import ImagePart, ReasoningPart
from weft.surfaces.cli import command_line
from weft.surfaces.cli.reading import read
from weft.surfaces.cli.reading.read import less_arguments
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
    monkeypatch.setattr(command_line, "stdout_screen", lambda **_: screen)
    monkeypatch.setattr(read, "find_less", lambda: "less")
    monkeypatch.setattr(read, "run_less", lambda _, texts, **__: lines.extend(plain(text) for text in texts))
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


UNSEEN = (
    "\xad\u034f\u061c\u115f\u180e\u200b\u200c\u200d\u200e\u200f\u2028\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067"
    "\u2068\u2069\u3164\ufe00\ufe0f\ufeff\ufffb\U000e0001\U000e0041\U000e007f\U000e0101"
)
EMOJI = "👩\u200d💻 ❤\ufe0f\u200d🔥 1\ufe0f\u20e3 می\u200cخواهم 🏳\ufe0f\u200d🌈"


def escaped(text: str) -> str:
    return text.encode("unicode_escape").decode()


@pytest.mark.parametrize("exporter", [Html(), Markdown()], ids=["html", "markdown"])
def test_a_page_writes_hidden_characters_as_escapes(exporter: Html | Markdown) -> None:
    """In a prompt, an answer, its code, thinking, a call, its result, a diff and every name."""
    for unseen in UNSEEN:
        number = iter(range(100))

        def hostile(unseen: str = unseen, number: Iterator[int] = number) -> str:
            return f"w{next(number)}{unseen}x"

        arguments = {"file_path": f"/{hostile()}", "old_string": f"a\n{hostile()}", "new_string": hostile()}
        turn = told(
            1,
            ("user", hostile()),
            tool_call(1, name="Edit", arguments=arguments, result="done"),
            tool_call(2, name=hostile(), arguments={"command": hostile()}, result=hostile(), server=hostile()),
            tool_call(3, outcome="error", result=[{"type": "image", "url": f"http://a.b/{hostile()}"}]),
            ("assistant", [ReasoningPart(hostile()), ImagePart(f"http://a.b/{hostile()}")]),
            ("assistant", f"{hostile()} `{hostile()}` [{hostile()}](http://a.b/{hostile()})\n\n```\n{hostile()}\n```"),
            ("assistant", f"{hostile()}\n\n" + "> " * 130 + hostile()),
            model=hostile(),
        )
        page = unescape(written(exporter, turn, title=hostile()))
        assert unseen not in page, escaped(unseen)
        shown = [n for n in range(20) if re.search(rf"w{n}\\*{re.escape(escaped(unseen))}x", page)]
        assert shown == list(range(20)), escaped(unseen)


@given(st.text(st.sampled_from(UNSEEN + "a1 日👩\x07"), max_size=8))
def test_hidden_characters_are_escaped_once(text: str) -> None:
    assert visible(visible(text)) == visible(text)
    assert not set(UNSEEN) & set(visible(text)) - set("\u200c\u200d\ufe00\ufe0f")
    assert not re.search(
        "^[\u200c\u200d\ufe00\ufe0f]|[\u200c\u200d]$|a[\u200c\u200d\ufe00]|\u200d\u200d", visible(text)
    )


def test_emoji_and_scripts_keep_what_joins_them() -> None:
    assert visible(EMOJI) == EMOJI
    assert rendered(EMOJI) == f"<p>{EMOJI}</p>\n"


def test_every_letter_of_an_answer_with_hidden_characters_is_rendered() -> None:
    assert rendered("**a\u202eb** c\u200bd") == "<p><strong>a\\u202eb</strong> c\\u200bd</p>\n"
