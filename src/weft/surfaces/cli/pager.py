"""The pager for long reading: `less`, set up so that `n` goes from heading to heading and folded lines can be shown.

Folded lines are handed over, too, each behind a mark, and a filter of `less` hides them until it is taken off. Another
line that begins with the same mark is set in by one more blank, so that no text can hide itself. Where `less` is not
there, or another pager is wished for, folded lines are left out and the usual pager is used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import PurePath
from typing import NamedTuple

import click

from weft.surfaces.cli.screen import Line, Screen, Span, pager_words

HEADING, ASCII_HEADING = "──", "--"
FOLD, ASCII_FOLD = "  │ ", "  | "
KEYS = "n, N\\: prompts  /\\: search  {steps}q\\: quit?e  (end)."
"""In the language of less: `(end)` stands at the end of the text."""
STEPS = "&, Enter\\: steps  "


class ReadLine(NamedTuple):
    """A line of a long text, and whether it is folded."""

    spans: Line
    is_folded: bool = False
    """Begins with the mark of folded lines."""


def show_folded(screen: Screen, lines: Iterable[ReadLine], *, unfold: bool) -> None:
    """Lines of a long text; `unfold` shows the folded ones from the beginning."""
    less = find_less() if screen.terminal and screen.paging else None
    if less is None:
        screen.page(line.spans for line in lines if unfold or not line.is_folded)
        return
    rest, first, visible = iter(lines), list[ReadLine](), 0
    for line in rest:
        first.append(line)
        visible += unfold or not line.is_folded
        if visible >= screen.rows - 1:
            break
    else:
        texts = [screen.render(line.spans) for line in first if unfold or not line.is_folded]
        click.echo("\n".join(texts), color=screen.color, nl=bool(texts))
        return
    handed_over = (screen.render(_beside_the_filter(line, screen.unicode)) for line in chain(first, rest))
    run_less(less, handed_over, unicode=screen.unicode, unfold=unfold)


def _beside_the_filter(line: ReadLine, unicode: bool) -> Line:
    """The line as it is; one that is not folded, and that the filter would hide, set in by one more blank."""
    text = "".join(span if isinstance(span, str) else span.text for span in line.spans)
    mark = (FOLD if unicode else ASCII_FOLD).rstrip()
    return line.spans if line.is_folded or not text.startswith(mark) else [" ", *line.spans]


def find_less() -> str | None:
    """Where less is; None: it is not there, or the user wants another pager."""
    words = pager_words() or ["less"]
    program = shutil.which(words[0]) if PurePath(words[0]).name == "less" else None
    return program if program and _is_real_less(program) else None


def _is_real_less(program: str) -> bool:
    """Small replacements of the same name know neither the filter nor these options."""
    answer = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return answer.stdout.startswith(b"less ")


def less_arguments(*, unicode: bool, unfold: bool) -> list[str]:
    """Options, and the keys pressed at the beginning: hide what is folded, look for headings, go to the top.

    The mark in Unicode stands outside brackets: where `less` matches bytes, these would hold for each byte of it, and
    so for lines that begin with a dash or a bullet.
    """
    rule, pattern = (HEADING, FOLD.rstrip()) if unicode else (ASCII_HEADING, ASCII_FOLD.rstrip().replace("|", "[|]"))
    prompt = KEYS.format(steps="" if unfold else STEPS)
    hide = "" if unfold else f"&!^{pattern}\n"
    keys = f"{hide}/^{rule} \ng"
    return ["-R", "-+F", *(f"-P{kind}{prompt}" for kind in "smM"), f"+{keys}"]


def run_less(program: str, texts: Iterable[str], *, unicode: bool, unfold: bool) -> None:
    environment = {"LESS": "-RX", **os.environ}
    command = [program, *less_arguments(unicode=unicode, unfold=unfold)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as less:
        assert less.stdin is not None
        with suppress(BrokenPipeError, KeyboardInterrupt):  # the reader has seen enough
            for text in texts:
                less.stdin.write(f"{text}\n".encode(sys.stdout.encoding or "utf-8", "backslashreplace"))
        with suppress(BrokenPipeError):
            less.stdin.close()
        while less.poll() is None:
            with suppress(KeyboardInterrupt):  # less hears it, too, and stays
                less.wait()


def folded(lines: Iterable[Line], unicode: bool) -> Iterator[ReadLine]:
    """Lines that are hidden until they are asked for."""
    mark = FOLD if unicode else ASCII_FOLD
    for line in lines:
        yield ReadLine([Span(mark, "line"), *line], is_folded=True)


def heading(words: str, columns: int, unicode: bool, style: str = "heading") -> ReadLine:
    """A line that the pager goes to, with a rule to the end of the page."""
    from weft.surfaces.plain_text import cut, safe, width

    rule = HEADING if unicode else ASCII_HEADING
    text = cut(safe(words), max(20, columns - 2 * len(rule) - 2))
    fill = rule[0] * max(0, columns - width(text) - len(rule) - 2)
    return ReadLine([Span(f"{rule} ", "line"), Span(text, style), Span(f" {fill}" if fill else "", "line")])
