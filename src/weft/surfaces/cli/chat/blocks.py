"""An answer as it comes, shown as Markdown: whole blocks stay, the last one is drawn again with each piece."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.surfaces.plain_text import safe_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def split_blocks(text: str) -> tuple[str, str]:
    """What of a Markdown text is settled, and what may still change.

    A block is settled where an empty line ends it and the next line is not set in, outside of a fence of code.
    """
    settled, fence, is_gap, at = 0, "", False, 0
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if not fence and is_gap and line.strip() and not line[0].isspace():
            settled = at
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
        is_gap = not line.strip() and not fence
        at += len(line)
    return text[:settled], text[settled:]


def harmless(text: str) -> str:
    """Nothing in it drives the terminal."""
    return "\n".join(safe_lines(text))


class Answering:
    """Shows one answer. Only what is not settled yet is drawn twice, and never more of it than the screen holds."""

    def __init__(self, console: Console, waiting: str) -> None:
        self._console, self._waiting = console, waiting
        self._live: Live | None = None
        self._open = ""
        self._has_shown = False
        self._lines = 0
        """So many lines of it are on the screen for good."""

    def __enter__(self) -> Answering:
        self._wait()
        return self

    def _wait(self) -> None:
        from rich.live import Live
        from rich.text import Text

        first = Text(self._waiting, style="dim")
        self._live = Live(first, console=self._console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)

    def __exit__(self, *_: object) -> None:
        """What is left is shown for good."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._keep(self._open)
        self._open = ""

    def think(self) -> None:
        from rich.text import Text

        if self._live is not None and not self._open:
            self._live.update(Text("thinking…", style="dim"), refresh=True)

    def note(self, text: str) -> None:
        """A line beside the answer."""
        from rich.text import Text

        self._print(Text(harmless(text), style="dim"))

    def show_lines(self, lines: Sequence[str]) -> None:
        """Lines as they are, broken by the terminal alone, that stay on the screen whatever comes of the answer."""
        from rich.text import Text

        self._lines += self._console.size.height
        self._console.print(Text("\n".join(lines)), soft_wrap=True)

    def take_back_line(self) -> None:
        """The terminal echoed a line that was typed: the cursor goes back to where the answer is drawn."""
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._console.file.write("\x1b[1A")

    def begin_anew(self) -> None:
        """Another answer takes the place of what was shown, as far as that is still on the screen."""
        had_shown, self._open, self._has_shown = self._has_shown, "", False
        if self._lines < self._console.size.height - 1 and self._console.is_terminal and self._live is not None:
            self._live.stop()
            if self._lines and not self._console.is_dumb_terminal:
                self._console.file.write(f"\x1b[{self._lines}A\x1b[J")
            self._lines = 0
            self._wait()
        elif had_shown:
            self.note("(that broke off; here is another answer)")

    def hear(self, piece: str) -> None:
        self._open += piece
        settled, self._open = split_blocks(self._open)
        self._keep(settled)
        if self._live is not None:
            self._live.update(Last(self._open, has_gap=self._has_shown), refresh=True)

    def _keep(self, text: str) -> None:
        if text.strip():
            self._print(Last(text, has_gap=self._has_shown, is_whole=True))
            self._has_shown = True

    def _print(self, block: Any) -> None:
        """Above what may still change."""
        self._lines += len(self._console.render_lines(block, pad=False))
        self._console.print(block)


class Last:
    """Blocks of Markdown, or as many of their last lines as fit on the screen."""

    def __init__(self, text: str, *, has_gap: bool, is_whole: bool = False) -> None:
        self._text, self._has_gap, self._is_whole = text, has_gap, is_whole

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from rich.markdown import Markdown
        from rich.segment import Segment

        shown = Markdown(harmless(self._text), hyperlinks=False, code_theme="ansi_dark")
        lines = console.render_lines(shown, options.update(height=None), pad=False)
        if not self._is_whole:
            lines = lines[-max(1, console.size.height - 2) :]
        if self._has_gap:
            yield Segment.line()
        for line in lines:
            yield from line
            yield Segment.line()
