"""The line that a person types in a room: edited key by key, completed at `@` and `/`, with what was typed before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto

from weft.surfaces.cli.chat.typed_input import needs_more
from weft.surfaces.cli.room_chat.keys import Key, Typed
from weft.surfaces.plain_text import safe, width

MOST_CHARACTERS = 100_000
MOST_SHOWN = 8
"""So many completions are shown."""
REMEMBERED_LINES = 500
LINE_END = "⏎"


class Edit(Enum):
    """What a key asks for that is more than editing."""

    SUBMIT = auto()
    INTERRUPT = auto()
    END = auto()
    REDRAW = auto()


Complete = Callable[[str], Sequence[str]]
"""By the text before the cursor, what its last word can become, the best first."""


class LineEditor:
    """`text` is what was typed so far, over several lines where it has line ends, and `cursor` a place in it."""

    def __init__(self, complete: Complete) -> None:
        self._complete = complete
        self.text, self.cursor = "", 0
        self._earlier: list[str] = []
        self._place: int | None = None
        """Which of the earlier lines is shown; None where it is the one that is typed."""
        self._typed = ""
        self.completions: list[str] = []
        """What the word at the cursor can become."""
        self._chosen: int | None = None
        self._word_start = 0

    def remember(self, text: str) -> None:
        if text.strip() and self._earlier[-1:] != [text]:
            self._earlier.append(text)
            del self._earlier[:-REMEMBERED_LINES]

    def take(self) -> str:
        """The text; the line is empty then."""
        text = self.text
        self.remember(text)
        self.clear()
        return text

    def press(self, key: Key | Typed) -> Edit | None:
        """Edit the line. What a key asks for beside that is returned."""
        if key is Key.TAB:
            self._next_completion()
            return None
        edit = None
        if isinstance(key, Typed):
            self._insert(key.text)
        elif key is Key.ENTER and not needs_more(self.text.split("\n")):
            edit = Edit.SUBMIT
        elif key in (Key.ENTER, Key.NEW_LINE):
            self._insert("\n")
        elif key is Key.INTERRUPT:
            edit = Edit.INTERRUPT
        elif key is Key.REDRAW:
            edit = Edit.REDRAW
        elif key is Key.END_OF_INPUT and not self.text:
            edit = Edit.END
        else:
            self._edit(key)
        self._look_for_completions()
        return edit

    def clear(self) -> None:
        self._set("")
        self._place = None
        self._look_for_completions()

    def _edit(self, key: Key) -> None:
        if key in (Key.UP, Key.DOWN):
            self._recall(-1 if key is Key.UP else 1)
        elif (place := self._moved(key)) is not None:
            self.cursor = place
        else:
            self._erase(key)

    def _moved(self, key: Key) -> int | None:
        """Where a key moves the cursor; None where it moves nothing."""
        places = {
            Key.LEFT: max(0, self.cursor - 1),
            Key.RIGHT: min(len(self.text), self.cursor + 1),
            Key.HOME: 0,
            Key.END: len(self.text),
            Key.WORD_LEFT: _word_start(self.text, self.cursor),
            Key.WORD_RIGHT: _word_end(self.text, self.cursor),
        }
        return places.get(key)

    def _erase(self, key: Key) -> None:
        before, after = self.text[: self.cursor], self.text[self.cursor :]
        match key:
            case Key.BACKSPACE:
                self._set(before[:-1], after)
            case Key.DELETE | Key.END_OF_INPUT:
                self._set(before, after[1:])
            case Key.ERASE_LINE:
                self._set("", after)
            case Key.ERASE_REST:
                self._set(before)
            case Key.ERASE_WORD:
                self._set(before[: _word_start(before, len(before))], after)

    def _set(self, before: str, after: str = "") -> None:
        self.text, self.cursor = before + after, len(before)

    def _insert(self, text: str) -> None:
        space = MOST_CHARACTERS - len(self.text)
        self._set(self.text[: self.cursor] + text[:space], self.text[self.cursor :])

    def _recall(self, step: int) -> None:
        if self._place is None:
            if step > 0 or not self._earlier:
                return
            self._typed, self._place = self.text, len(self._earlier)
        self._place = max(0, self._place + step)
        if self._place >= len(self._earlier):
            self._place = None
            self._set(self._typed)
        else:
            self._set(self._earlier[self._place])

    # --- completion ----------------------------------------------------------------------------------------------

    def _look_for_completions(self) -> None:
        before = self.text[: self.cursor]
        self._word_start = max(before.rfind(" "), before.rfind("\n")) + 1
        at = before.rfind('@"')
        if at >= 0 and before.count('"', at) == 1:  # a quoted name goes on over spaces
            self._word_start = at
        self.completions, self._chosen = list(self._complete(before))[:MOST_SHOWN], None

    def _next_completion(self) -> None:
        if not self.completions:
            return
        self._chosen = 0 if self._chosen is None else (self._chosen + 1) % len(self.completions)
        chosen = self.completions[self._chosen]
        self._set(self.text[: self._word_start] + chosen, self.text[self.cursor :])
        if len(self.completions) == 1:
            self._look_for_completions()

    @property
    def chosen(self) -> str | None:
        return None if self._chosen is None else self.completions[self._chosen]

    # --- what is shown -------------------------------------------------------------------------------------------

    def shown(self, columns: int) -> tuple[str, int]:
        """As much of the text around the cursor as fits in so many columns, on one line, and the column that the cursor
        stands in."""
        before = _one_line(self.text[: self.cursor])
        after = _one_line(self.text[self.cursor :])
        while before and width(before) > columns - 1:
            before = before[max(1, len(before) // 8) :]
        room = columns - width(before)
        end, taken = 0, 0
        while end < len(after) and taken + width(after[end]) <= room:
            taken += width(after[end])
            end += 1
        return before + after[:end], width(before)


def _one_line(text: str) -> str:
    return safe(text.replace("\n", LINE_END).replace("\t", " "))


def _word_start(text: str, at: int) -> int:
    """Where the word begins that ends at a place or stands before it."""
    while at and not text[at - 1].isalnum():
        at -= 1
    while at and text[at - 1].isalnum():
        at -= 1
    return at


def _word_end(text: str, at: int) -> int:
    while at < len(text) and not text[at].isalnum():
        at += 1
    while at < len(text) and text[at].isalnum():
        at += 1
    return at
