"""Reads a line of a shell that lies in a small closed grammar, or says that it does not.

    line        = command { ( "&&" | "||" | ";" | "|" ) command }
    command     = name { blank word } { blank redirection }
    name        = letters, digits and _ . / + -, unquoted, and no word of a shell's own grammar
    word        = letters, digits, _ . / : , + @ % = ^ -, 'text' and "text", without a blank between them
    redirection = ( ">" | ">>" | "1>" | "1>>" | "2>" | "2>>" | "<" ) word  |  "2>&1" | "1>&2" | ">&1" | ">&2"

Everything is printable ASCII, blanks are spaces. A quoted text holds no `$`, no backquote and no `[`, between double
quotes no backslash and no `!` either; `* ? ~` stand in quotes alone. The file of a redirection is /dev/null or lies
below the folder of the command, as it is written: a link on the way is the sandbox's business.

Whatever is not of this form raises `NotPlain`: nothing is known of what such a line runs. The grammar is what sh, bash
and dash split alike. Since no word holds a `$`, a backquote or a `[`, quoted or not, no later reading of a word (bash
computes what stands in `a[…]`, and takes the values of variables for expressions) comes to a command either.

This narrows what a pattern may allow. It is no boundary: that is the sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

LONGEST_LINE = 65_536
NULL_DEVICE = "/dev/null"
_CHARACTERS = re.compile(r"[ -~]+")
_BLANKS = re.compile(r" *+")
_NAME = re.compile(r"[A-Za-z0-9_./+-]++(?=[ ;&|]|\Z)")
_WORD = re.compile(r"""(?:[A-Za-z0-9_./:,+@%=^-]|'[^'$`\[]*+'|"[^"$`\[\\!]*+")++(?=[ ;&|]|\Z)""")
_QUOTED = re.compile(r"""(['"])(.*?)\1""")
_COPY = re.compile(r"(?:2>&1|1?>&2|>&1)(?=[ ;&|]|\Z)")
_REDIRECTION = re.compile(r"[12]?(>>?+)(?![>&|<(])|(<)(?![>&<(])")
_OPERATOR = re.compile(r"&&|\|\||;|\|")
_GRAMMAR_WORDS = frozenset(
    "case coproc do done elif else esac fi for foreach function if in namespace nocorrect noglob repeat select then "
    "time until while".split()
)
"""Of any shell that may be /bin/sh. Other words of their grammars are made of characters that no name has."""


class NotPlain(Exception):
    """What the line would run is known only to the shell that runs it."""


class Redirection(Struct, frozen=True):
    """A file below the command's folder that is opened for it."""

    operator: str
    target: str


class SimpleCommand(Struct, frozen=True):
    """A command with its words, quotes taken off, the variables that are set for it, and the files it opens."""

    words: tuple[str, ...] = ()
    assignments: tuple[str, ...] = ()
    """Of a line read here there are none: what is set for one command of it may change what the next one means."""
    redirections: tuple[Redirection, ...] = ()


def is_plain_value(text: str) -> bool:
    """Whether a variable may have this value while a line is run: no reading of it comes to a command."""
    return text.isascii() and text.isprintable() and {"$", "`", "["}.isdisjoint(text)


def simple_commands(line: str) -> tuple[SimpleCommand, ...]:
    """The commands that a line consists of, in their order. Raises NotPlain."""
    if len(line) > LONGEST_LINE or _CHARACTERS.fullmatch(line) is None:
        raise NotPlain
    return tuple(_LineReader(line).commands())


class _LineReader:
    """Walks a line once."""

    def __init__(self, line: str) -> None:
        self._line, self._at = line, 0

    def commands(self) -> list[SimpleCommand]:
        commands = [self._command()]
        while self._at < len(self._line):
            self._take(_OPERATOR)
            commands.append(self._command())
        return commands

    def _command(self) -> SimpleCommand:
        """Behind it the line ends, or an operator stands."""
        self._skip_blanks()
        name = self._take(_NAME)
        if name in _GRAMMAR_WORDS:
            raise NotPlain
        words: list[str] = [name]
        redirections: list[Redirection] = []
        is_behind_words = False
        self._skip_blanks()
        while self._at < len(self._line) and _OPERATOR.match(self._line, self._at) is None:
            if _COPY.match(self._line, self._at) is not None:
                self._take(_COPY)
                is_behind_words = True
            elif _REDIRECTION.match(self._line, self._at) is not None:
                redirections += self._redirection()
                is_behind_words = True
            elif is_behind_words:
                raise NotPlain
            else:
                words.append(_unquoted(self._take(_WORD)))
            self._skip_blanks()
        return SimpleCommand(tuple(words), redirections=tuple(redirections))

    def _redirection(self) -> Iterator[Redirection]:
        operator = self._take(_REDIRECTION).lstrip("12")
        self._skip_blanks()
        target = _unquoted(self._take(_WORD))
        if not target or (target.startswith("/") and target != NULL_DEVICE) or ".." in target.split("/"):
            raise NotPlain
        if target != NULL_DEVICE:
            yield Redirection(operator, target)

    def _skip_blanks(self) -> None:
        blanks = _BLANKS.match(self._line, self._at)
        self._at = self._at if blanks is None else blanks.end()

    def _take(self, pattern: re.Pattern[str]) -> str:
        """What stands here, and go on behind it. Raises NotPlain where the pattern does not fit."""
        match = pattern.match(self._line, self._at)
        if match is None:
            raise NotPlain
        self._at = match.end()
        return match[0]


def _unquoted(word: str) -> str:
    return _QUOTED.sub(r"\2", word)
