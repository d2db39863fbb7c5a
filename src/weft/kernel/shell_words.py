"""Text as one word of a shell's line: what is printed to be copied, completed or sent to a shell.

The form means the same to sh, bash, zsh and fish, so that it need not be known who reads it. Between single quotes sh,
bash and zsh take every character as it is; fish does not take `\\'` and `\\\\` so. Quotes and backslashes are therefore
written outside the quotes, behind a backslash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PLAIN_WORD = re.compile(r"[A-Za-z0-9_@:,./+-][A-Za-z0-9_@%+=:,./-]*")
"""Words that no shell changes. A leading `=` or `%` is expanded by zsh and by fish."""

OUTSIDE_QUOTES = {ord("'"): r"'\''", ord("\\"): r"'\\'"}


def shell_word(text: str) -> str:
    """The text as one word: as it is where no shell changes it, else from quote to quote."""
    return text if PLAIN_WORD.fullmatch(text) else f"'{text.translate(OUTSIDE_QUOTES)}'"


def shell_line(words: Iterable[str]) -> str:
    """A command and its arguments as one line."""
    return " ".join(map(shell_word, words))
