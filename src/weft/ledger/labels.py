"""Labels and names as people type them: refused when they cannot be typed, mended when they came from elsewhere."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from weft.kernel.errors import InvalidInput

LABEL_LIMIT = 512
ADDRESS_MARKS = ("~", "@{", "^")


def checked_label(label: Any, what: str = "label") -> str:
    """Labels are words people type: printable, without spaces at the ends, and not to be mistaken for an address."""
    return _checked_words(checked_length(label, what), what)


def checked_length(text: Any, what: str) -> str:
    if not isinstance(text, str) or not text or len(text) > LABEL_LIMIT:
        raise InvalidInput(f"{what} is {text!r:.80}", f"it is text of 1 to {LABEL_LIMIT} characters")
    return text


@lru_cache(maxsize=1024)
def _checked_words(label: str, what: str) -> str:
    if not label.isprintable() or label != label.strip():
        raise InvalidInput(f"{what} {label!r:.80} has invisible characters", "use printable characters only")
    if any(mark in label for mark in ADDRESS_MARKS):
        raise InvalidInput(f"{what} {label!r:.80} looks like an address", "leave out ~, ^ and @{")
    return label


def cleaned_label(text: str) -> str:
    """The nearest label that `checked_label` takes: what another program wrote must not act on a terminal or shadow
    an address. Empty when nothing is left."""
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:LABEL_LIMIT])
    for mark in ADDRESS_MARKS:
        shown = shown.replace(mark, "-")
    return shown.strip()
