"""Reads a line of a shell into its simple commands, or says that it cannot.

What is read is what sh, bash and dash read alike: words with quotes and escapes, `;`, `&`, `&&`, `||`, `|`, newlines,
comments, subshells, groups, `if`, `while`, `until`, `!`, redirections and here-documents. Whatever a shell would only
know when it runs (variables, command substitutions, file name patterns, braces, `~`), and every other construction,
raises `NotPlain`: the words of such a line are not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from msgspec import Struct

LONGEST_LINE = 65_536
_OPERATORS = ("&&", "||", ";;", "|&", ";", "&", "|", "(", ")", "\n")
_REDIRECTIONS = ("<<<", "<<-", "&>>", "<<", "<>", "<&", ">>", ">|", ">&", "&>", "<", ">")
_OPENING_WORDS = frozenset("if then elif else while until do { !".split())
"""Behind these another command follows."""
_CLOSING_WORDS = frozenset("fi done }".split())
_UNREAD_WORDS = frozenset("for case esac function select in coproc [[ ]] time".split())
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_DESCRIPTOR = re.compile(r"\{.*\}|[0-9]+", re.S)
_APPENDED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+=")
_PATTERN_CHARACTERS = frozenset("*?[")
_EXPANDED = frozenset("$`")
_ENDS_WORD = frozenset(" \t\n;&|<>()")
_HARMLESS_TARGETS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})


class NotPlain(Exception):
    """What the line would run is known only to the shell that runs it."""


class Redirection(Struct, frozen=True):
    """A file that is opened for a command. Copies of descriptors and /dev/null open none."""

    operator: str
    target: str

    @property
    def writes(self) -> bool:
        return self.operator != "<"


class SimpleCommand(Struct, frozen=True):
    """A command with its words, quotes taken off, what is assigned before it, and the files it opens."""

    words: tuple[str, ...] = ()
    assignments: tuple[str, ...] = ()
    redirections: tuple[Redirection, ...] = ()


class _TokenKind(Enum):
    WORD = "word"
    OPERATOR = "operator"
    REDIRECTION = "redirection"


class _Token(Struct, frozen=True):
    kind: _TokenKind
    text: str
    is_quoted: bool = False
    """Whether a part of it was quoted or escaped: then it is no word of the grammar and no assignment by its look."""
    assigned_unquoted: bool = False
    """Whether its name and `=` stand unquoted at its beginning."""
    operator: str = ""
    """Of a redirection; the text is its target."""


def simple_commands(line: str) -> tuple[SimpleCommand, ...]:
    """The commands that a line consists of, in their order. Raises NotPlain."""
    if len(line) > LONGEST_LINE or any(ord(character) < 32 and character not in "\t\n" for character in line):
        raise NotPlain
    return tuple(_commands(_Lexer(line).tokens()))


class _Lexer:
    """Walks a line once, from token to token."""

    def __init__(self, line: str) -> None:
        self._line, self._at = line, 0
        self._documents: list[tuple[str, bool, bool]] = []
        """Here-documents whose text begins behind the next newline: delimiter, is quoted, tabs are stripped."""

    def tokens(self) -> Iterator[_Token]:
        while True:
            self._skip_blanks()
            if self._at >= len(self._line):
                break
            operator = self._prefix(_OPERATORS) if self._prefix(_REDIRECTIONS) is None else None
            if operator is not None:
                yield self._operator(operator)
            else:
                yield from self._word_or_redirection()
        if self._documents:
            raise NotPlain

    def _skip_blanks(self) -> None:
        while self._at < len(self._line):
            if self._line[self._at] in " \t":
                self._at += 1
            elif self._line.startswith("\\\n", self._at):
                self._at += 2
            elif self._line[self._at] == "#":
                end = self._line.find("\n", self._at)
                self._at = len(self._line) if end < 0 else end
            else:
                return

    def _prefix(self, texts: tuple[str, ...]) -> str | None:
        return next((text for text in texts if self._line.startswith(text, self._at)), None)

    def _operator(self, operator: str) -> _Token:
        if operator in (";;", "|&"):
            raise NotPlain
        self._at += len(operator)
        if operator == "\n":
            for document in self._documents:
                self._skip_document(*document)
            self._documents.clear()
        return _Token(_TokenKind.OPERATOR, operator)

    def _skip_document(self, delimiter: str, is_quoted: bool, strips_tabs: bool) -> None:
        while self._at < len(self._line):
            end = self._line.find("\n", self._at)
            end = len(self._line) if end < 0 else end
            text = self._line[self._at : end]
            self._at = end + 1
            if (text.lstrip("\t") if strips_tabs else text) == delimiter:
                return
            if not is_quoted and not {"$", "`", "\\"}.isdisjoint(text):
                raise NotPlain
        raise NotPlain

    def _word_or_redirection(self) -> Iterator[_Token]:
        start = self._at
        descriptor = re.compile(r"[0-9]+(?=[<>])").match(self._line, self._at)
        self._at = descriptor.end() if descriptor else self._at
        operator = self._prefix(_REDIRECTIONS)
        if operator is None:
            self._at = start
            yield self._word()
            return
        self._at += len(operator)
        yield from self._redirection(operator)

    def _redirection(self, operator: str) -> Iterator[_Token]:
        if operator in ("&>", "&>>", "<<<", "<>") or self._line.startswith("(", self._at):
            raise NotPlain
        self._skip_blanks()
        if self._at >= len(self._line) or self._line[self._at] in _ENDS_WORD:
            raise NotPlain
        target = self._word()
        if operator in ("<<", "<<-"):
            if "\n" in target.text:
                raise NotPlain
            self._documents.append((target.text, target.is_quoted, operator == "<<-"))
        elif operator in (">&", "<&"):
            if target.is_quoted or not re.fullmatch(r"[0-9]+|-", target.text):
                raise NotPlain  # of `>& -c` bash makes `>&-` and the word `c`
        elif target.text not in _HARMLESS_TARGETS:
            kind = "<" if operator.startswith("<") else ">>" if operator == ">>" else ">"
            yield _Token(_TokenKind.REDIRECTION, target.text, operator=kind)

    def _word(self) -> _Token:
        text, plain = "", ""
        is_quoted = False
        assigned = False
        while self._at < len(self._line) and self._line[self._at] not in _ENDS_WORD:
            character = self._line[self._at]
            if character in "'\"\\":
                piece = self._quoted(character)
                is_quoted = is_quoted or piece is not None
                text, plain = text + (piece or ""), plain + "\0" * len(piece or "")
                continue
            if character in _EXPANDED or not character.isascii():
                raise NotPlain
            text, plain, self._at = text + character, plain + character, self._at + 1
            if character == "=" and not assigned and not is_quoted:
                assigned = _ASSIGNMENT.fullmatch(text) is not None
        _ensure_literal(plain)
        if _DESCRIPTOR.fullmatch(plain) and self._prefix(_REDIRECTIONS) is not None:
            raise NotPlain  # bash takes {name}> for a redirection, and 2> over two lines
        if self._documents and "\n" in text:
            raise NotPlain  # where the document begins
        return _Token(_TokenKind.WORD, text, is_quoted, assigned)

    def _quoted(self, quote: str) -> str | None:
        """The text of a quotation or an escape; None for a continued line, which is nothing at all."""
        self._at += 1
        if quote == "\\":
            if self._at >= len(self._line):
                raise NotPlain
            self._at += 1
            character = self._line[self._at - 1]
            return None if character == "\n" else character
        if quote == "'":
            end = self._line.find("'", self._at)
            if end < 0:
                raise NotPlain
            text, self._at = self._line[self._at : end], end + 1
            return text
        return self._double_quoted()

    def _double_quoted(self) -> str:
        text = ""
        while self._at < len(self._line):
            character = self._line[self._at]
            self._at += 1
            if character == '"':
                return text
            if character in _EXPANDED:
                raise NotPlain
            if character == "\\" and self._at < len(self._line) and self._line[self._at] in '$`"\\\n':
                character = self._line[self._at].replace("\n", "")
                self._at += 1
            text += character
        raise NotPlain


def _ensure_literal(plain: str) -> None:
    """`plain` is a word with NUL for each quoted character."""
    if plain != "[" and not _PATTERN_CHARACTERS.isdisjoint(plain):
        raise NotPlain
    if plain.startswith("~") or _may_expand_braces(plain) or re.search(r"[=:]~", plain) or _APPENDED.match(plain):
        raise NotPlain


def _may_expand_braces(plain: str) -> bool:
    """Whether a brace stands before a comma or two dots, in whatever other braces."""
    _, brace, rest = plain.partition("{")
    return bool(brace) and ("," in rest or ".." in rest)


def _commands(tokens: Iterator[_Token]) -> Iterator[SimpleCommand]:
    reader = _CommandReader()
    for token in tokens:
        yield from reader.take(token)
    yield from reader.finish()


class _CommandReader:
    """Gathers tokens into commands. Whether brackets and words of the grammar match is not checked: a line in which
    they do not is refused by the shell before it runs anything of that construction."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._assignments: list[str] = []
        self._redirections: list[Redirection] = []
        self._is_closed = False
        """Behind `)`, `fi`, `done` or `}` only redirections and operators may stand."""

    def take(self, token: _Token) -> Iterator[SimpleCommand]:
        if token.kind is _TokenKind.OPERATOR:
            yield from self._operator(token.text)
        elif token.kind is _TokenKind.REDIRECTION:
            self._redirections.append(Redirection(token.operator, token.text))
        else:
            self._word(token)

    def _operator(self, operator: str) -> Iterator[SimpleCommand]:
        if operator == "(":
            if self._words or self._assignments or self._redirections or self._is_closed:
                raise NotPlain  # a function, an array, or an error
            return
        yield from self.finish()
        self._is_closed = operator == ")"

    def _word(self, token: _Token) -> None:
        if self._is_closed:
            raise NotPlain
        if self._words:
            self._words.append(token.text)
        elif token.assigned_unquoted:
            self._assignments.append(token.text)
        elif not token.is_quoted and not self._assignments and not self._redirections:
            self._first_word(token.text)
        elif not token.is_quoted and token.text in _OPENING_WORDS | _CLOSING_WORDS | _UNREAD_WORDS:
            raise NotPlain
        else:
            self._words.append(token.text)

    def _first_word(self, word: str) -> None:
        if word in _UNREAD_WORDS:
            raise NotPlain
        if word in _CLOSING_WORDS:
            self._is_closed = True
        elif word not in _OPENING_WORDS:
            self._words.append(word)

    def finish(self) -> Iterator[SimpleCommand]:
        if self._words or self._assignments or self._redirections:
            yield SimpleCommand(tuple(self._words), tuple(self._assignments), tuple(self._redirections))
        self._words, self._assignments, self._redirections = [], [], []
        self._is_closed = False
