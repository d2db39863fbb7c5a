"""How to take a change back, said right after it was made."""

from __future__ import annotations

from shlex import quote


def undo(*words: str) -> str:
    return f"undo: weft {' '.join(map(quote, words))}"
