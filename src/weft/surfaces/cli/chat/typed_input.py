"""What a person types at a terminal: the keys that it sends, the line that is edited, and
what was meant: a message, over several lines if need be, or a command.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum, auto

from msgspec import Struct

from weft.surfaces.plain_text import safe, width

# --- What a person types in a conversation: a message, over several lines if need be, or a command.

COMMANDS = {
    "help": ("", "this list"),
    "fork": ("[LABEL]", "go on in a new session from here, with a copy of the files; this one stays as it is"),
    "undo": ("", "go back before the last exchange, and its files; both stay in the ledger"),
    "redo": ("", "take the last undo back"),
    "model": ("[NAME]", "list the models, or be answered by another one from now on"),
    "steer": ("TEXT", "say something to the turn that runs here, also while its answer comes"),
    "interrupt": ("", "cut the turn short that runs here, also while its answer comes; so does Ctrl-C"),
    "approve": ("[ID]", "allow the tool call that waits for you, also while its turn does"),
    "reject": ("[ID]", "refuse it"),
    "retry": ("", "try the last turn again, if it failed"),
    "compact": ("[FOCUS]", "let a summary stand for what was said so far"),
    "tree": ("", "the whole tree of this conversation"),
    "cost": ("", "tokens and cost of this session"),
    "sessions": ("", "the sessions of this ledger"),
    "switch": ("SESSION", "go on in another session"),
    "show": ("[TURN]", "one turn in full; without a name the last"),
    "quit": ("", "leave; so does Ctrl-D"),
}
OTHER_NAMES = {"exit": "quit", "q": "quit", "?": "help", "h": "help", "models": "model", "usage": "cost"}
FENCE = '"""'
MORE = "\\"


class TypedMessage(Struct, frozen=True):
    """A message that was typed."""

    text: str


class Command(Struct, frozen=True):
    """A command that was typed, with what stands behind it."""

    name: str
    argument: str = ""


class Unknown(Struct, frozen=True):
    """Looks like a command and is none."""

    name: str
    near: str | None


TypedInput = TypedMessage | Command | Unknown | None


def needs_more(lines: Sequence[str]) -> bool:
    """Whether what was typed goes on in the next line: a block that is not closed, or a backslash at the end."""
    if not lines:
        return True
    if lines[0].startswith(FENCE):
        opening = lines[0].removeprefix(FENCE)
        return FENCE not in opening and not any(FENCE in line for line in lines[1:])
    return lines[-1].endswith(MORE)


def read_typed(lines: Sequence[str], commands: Mapping[str, tuple[str, str]] = COMMANDS) -> TypedInput:
    """What the lines mean, where these commands are known. Nothing at all is None; `//` begins a message that begins
    with a slash."""
    text = _text(lines)
    if not text.strip():
        return None
    if lines[0].startswith(FENCE):
        return TypedMessage(text)
    if text.startswith("//"):
        return TypedMessage(text[1:])
    if not text.startswith("/"):
        return TypedMessage(text)
    word, _, argument = text[1:].strip().partition(" ")
    name = OTHER_NAMES.get(word.lower(), word.lower())
    if name in commands:
        return Command(name, argument.strip())
    near = get_close_matches(name, commands, n=1)
    return Unknown(word, near[0] if near else None)


def _text(lines: Sequence[str]) -> str:
    if lines and lines[0].startswith(FENCE):
        whole = "\n".join(lines).removeprefix(FENCE)
        return whole.partition(FENCE)[0].strip("\n")
    return "\n".join(line.removesuffix(MORE) for line in lines)


def completions(line: str, labels: Iterable[str], models: Iterable[str]) -> list[str]:
    """What the last word of a line could become: a command's name, then what that command takes."""
    if not line.startswith("/"):
        return []
    word, space, argument = line[1:].partition(" ")
    if not space:
        return [f"/{name}{' ' if takes else ''}" for name, (takes, _) in COMMANDS.items() if name.startswith(word)]
    taken = {"model": models, "switch": labels, "show": labels}.get(OTHER_NAMES.get(word, word), ())
    last = argument.rpartition(" ")[2]
    return [name for name in taken if name.startswith(last)]


def free_label(wanted: str, taken: Iterable[str]) -> str:
    """The label, or with the first number behind it that nobody has."""
    labels = set(taken)
    if wanted not in labels:
        return wanted
    number = 2
    while f"{wanted}-{number}" in labels:
        number += 1
    return f"{wanted}-{number}"


# --- The keys that a terminal sends, as bytes come in: letters, keys that edit, and whole texts that are pasted.


class Key(Enum):
    """A key that does something; letters are texts."""

    ENTER = auto()
    NEW_LINE = auto()
    TAB = auto()
    BACKSPACE = auto()
    DELETE = auto()
    LEFT = auto()
    RIGHT = auto()
    UP = auto()
    DOWN = auto()
    HOME = auto()
    END = auto()
    WORD_LEFT = auto()
    WORD_RIGHT = auto()
    ERASE_LINE = auto()
    ERASE_REST = auto()
    ERASE_WORD = auto()
    REDRAW = auto()
    INTERRUPT = auto()
    END_OF_INPUT = auto()


class Typed(Struct, frozen=True):
    """Letters, or a text that was pasted; line ends are `\\n`."""

    text: str


PASTE_BEGIN, PASTE_END = "\x1b[200~", "\x1b[201~"
LONGEST_SEQUENCE = 16
"""So many letters a sequence has at most; what goes on without an end is dropped."""
_CONTROLS = {
    "\r": Key.ENTER,
    "\n": Key.ENTER,
    "\t": Key.TAB,
    "\x7f": Key.BACKSPACE,
    "\x08": Key.BACKSPACE,
    "\x01": Key.HOME,
    "\x05": Key.END,
    "\x02": Key.LEFT,
    "\x06": Key.RIGHT,
    "\x10": Key.UP,
    "\x0e": Key.DOWN,
    "\x15": Key.ERASE_LINE,
    "\x0b": Key.ERASE_REST,
    "\x17": Key.ERASE_WORD,
    "\x0c": Key.REDRAW,
    "\x03": Key.INTERRUPT,
    "\x04": Key.END_OF_INPUT,
}
_SEQUENCES = {
    "\x1b[A": Key.UP,
    "\x1b[B": Key.DOWN,
    "\x1b[C": Key.RIGHT,
    "\x1b[D": Key.LEFT,
    "\x1bOA": Key.UP,
    "\x1bOB": Key.DOWN,
    "\x1bOC": Key.RIGHT,
    "\x1bOD": Key.LEFT,
    "\x1b[H": Key.HOME,
    "\x1b[F": Key.END,
    "\x1bOH": Key.HOME,
    "\x1bOF": Key.END,
    "\x1b[1~": Key.HOME,
    "\x1b[4~": Key.END,
    "\x1b[3~": Key.DELETE,
    "\x1b[1;5C": Key.WORD_RIGHT,
    "\x1b[1;5D": Key.WORD_LEFT,
    "\x1b[1;3C": Key.WORD_RIGHT,
    "\x1b[1;3D": Key.WORD_LEFT,
    "\x1bf": Key.WORD_RIGHT,
    "\x1bb": Key.WORD_LEFT,
    "\x1b\x7f": Key.ERASE_WORD,
    "\x1b\r": Key.NEW_LINE,
    "\x1b\n": Key.NEW_LINE,
}


class KeyReader:
    """Takes bytes as they come, also in the middle of a letter or of a key."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        """What came and is no whole key yet."""

    def feed(self, data: bytes) -> Iterator[Key | Typed]:
        self._rest += self._decoder.decode(data)
        while self._rest:
            if self._rest.startswith(PASTE_BEGIN):
                text, mark, rest = self._rest.removeprefix(PASTE_BEGIN).partition(PASTE_END)
                if not mark:
                    return
                self._rest = rest
                yield Typed(text.replace("\r\n", "\n").replace("\r", "\n"))
            elif self._rest[0] == "\x1b":
                length = _sequence_length(self._rest)
                if length == 0:
                    return
                sequence, self._rest = self._rest[:length], self._rest[length:]
                if (key := _SEQUENCES.get(sequence)) is not None:
                    yield key
            else:
                yield from self._plain_keys()

    def _plain_keys(self) -> Iterator[Key | Typed]:
        first = self._rest[0]
        if (key := _CONTROLS.get(first)) is not None:
            self._rest = self._rest[1:]
            yield key
            return
        end = next((at for at, letter in enumerate(self._rest) if letter < " " or letter == "\x7f"), len(self._rest))
        text, self._rest = self._rest[:end], self._rest[max(end, 1) :]
        if text:
            yield Typed(text)


def _sequence_length(text: str) -> int:
    """How long the sequence is that a text begins with; 0 where more of it must come."""
    if len(text) == 1:
        return 0
    if text[1] == "O":
        return 3 if len(text) > 2 else 0
    if text[1] != "[":
        return 2
    for at in range(2, min(len(text), LONGEST_SEQUENCE)):
        if "@" <= text[at] <= "~":
            return at + 1
    return LONGEST_SEQUENCE if len(text) >= LONGEST_SEQUENCE else 0


# --- The line that a person types in a room: edited key by key, completed at `@` and `/`, with what was typed before.

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
