"""The text of a reply that is asked for again after it broke off, without what a reader has seen of it already."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.runtime.inference.replies import ReplyToken


class RepeatedText:
    """What is new in the pieces of a reply. An attempt that begins as the one before goes on where that stopped; one
    that says something else is told whole."""

    def __init__(self) -> None:
        self.shown = ""
        self._attempt, self._text = 1, ""

    def add(self, token: ReplyToken) -> tuple[bool, str]:
        """Whether this is another text than what was shown, and what is to be shown now."""
        if token.attempt != self._attempt:
            self._attempt, self._text = token.attempt, ""
        self._text += token.text
        if self.shown.startswith(self._text):
            return False, ""
        is_other = not self._text.startswith(self.shown)
        new = self._text if is_other else self._text[len(self.shown) :]
        self.shown = self._text
        return is_other, new

    def end(self) -> str:
        """The whole text, where it ended before what was shown of an earlier attempt."""
        is_shorter = self._text != self.shown and bool(self._text)
        self.shown = self._text
        return self._text if is_shorter else ""
