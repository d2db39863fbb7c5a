"""The text of a reply that is asked for again after it broke off, without what a reader has seen of it already."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.runtime.replies import ReplyToken


class RepeatedText:
    """What is new in the pieces of a reply. An attempt that begins as the one before goes on where that stopped; one
    that says something else is told whole."""

    def __init__(self) -> None:
        self.shown = ""
        self._attempt, self._length = 1, 0
        """The attempt's text is the beginning of what was shown, of this length."""

    def add(self, token: ReplyToken) -> tuple[bool, str]:
        """Whether this is another text than what was shown, and what is to be shown now."""
        if token.attempt != self._attempt:
            self._attempt, self._length = token.attempt, 0
        if self.shown.startswith(token.text, self._length):
            self._length += len(token.text)
            return False, ""
        rest = self.shown[self._length :]
        is_other = not token.text.startswith(rest)
        if is_other:
            self.shown = new = self.shown[: self._length] + token.text
        else:
            new = token.text[len(rest) :]
            self.shown += new
        self._length = len(self.shown)
        return is_other, new

    def end(self) -> str:
        """The whole text, where it ended before what was shown of an earlier attempt."""
        is_shorter = 0 < self._length < len(self.shown)
        self.shown = self.shown[: self._length]
        return self.shown if is_shorter else ""
