"""Mentions in the text of a message: `@[Name](kind:ID)`.

The kind is `user` or `agent`; anything else stays text. What lies in a code span or a fenced block mentions nobody, and
neither does a mention whose `@` is escaped by a backslash. In the name, brackets and backslashes are escaped. The name
is what the writer saw; the id decides who is meant. Every function walks the text a fixed number of times.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator

from msgspec import Struct

from weft.kernel.enums import ParticipantKind

NAME_LIMIT = 200
_MENTION = re.compile(r"@\[((?:\\[^\n]|[^\\\[\]\n]){1,400})\]\((user|agent):([0-9A-Za-z]{1,26})\)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^\n]*)")
_TICKS = re.compile(r"`+")
_ESCAPED = re.compile(r"\\([\\\[\]])")
_SPECIAL = re.compile(r"[\\\[\]]")
_BREAKS = re.compile(r"[\s\x00-\x1f\x7f]+")


class Mention(Struct, frozen=True):
    """Whom a text names, as what, and where: `text[start:end]`."""

    kind: ParticipantKind
    id: str
    name: str
    start: int
    end: int


def find_mentions(text: str) -> tuple[Mention, ...]:
    """Every mention, in order; the same one may come several times."""
    if "@[" not in text:
        return ()
    code = _code_ranges(text)
    starts = [start for start, _ in code]
    mentions = []
    for match in _MENTION.finditer(text):
        before = bisect_right(starts, match.start()) - 1
        if (before >= 0 and match.start() < code[before][1]) or _is_escaped(text, match.start()):
            continue
        name = _ESCAPED.sub(r"\1", match[1])
        mentions.append(Mention(ParticipantKind(match[2]), match[3], name, match.start(), match.end()))
    return tuple(mentions)


def mentioned(text: str) -> tuple[tuple[ParticipantKind, str], ...]:
    """Whom a text mentions, each once, in order."""
    return tuple(dict.fromkeys((mention.kind, mention.id) for mention in find_mentions(text)))


def write_mention(kind: ParticipantKind | str, id: str, name: str) -> str:
    """The text that mentions somebody. Line breaks and control characters of the name become spaces."""
    plain = _BREAKS.sub(" ", name).strip()[:NAME_LIMIT] or id
    escaped = _SPECIAL.sub(r"\\\g<0>", plain)
    return f"@[{escaped}]({ParticipantKind(kind).value}:{id})"


def render_mentions(text: str, shown: Callable[[Mention], str]) -> str:
    """The text with every mention replaced by what `shown` gives for it."""
    parts, end = [], 0
    for mention in find_mentions(text):
        parts += [text[end : mention.start], shown(mention)]
        end = mention.end
    return "".join((*parts, text[end:]))


def _is_escaped(text: str, at: int) -> bool:
    start = at
    while start and text[start - 1] == "\\":
        start -= 1
    return (at - start) % 2 == 1


def _code_ranges(text: str) -> list[tuple[int, int]]:
    """Where code lies: fenced blocks, and spans between two equally long runs of backticks in one paragraph."""
    ranges: list[tuple[int, int]] = []
    for start, end, is_code in _blocks(text):
        if is_code:
            ranges.append((start, end))
        else:
            ranges += _spans(text, start, end)
    return ranges


def _blocks(text: str) -> Iterator[tuple[int, int, bool]]:
    """Fenced blocks, and the paragraphs between them, in order. A fence that is not closed reaches to the end."""
    fence, begun, paragraph, at = "", 0, 0, 0
    for line in text.splitlines(keepends=True):
        match = _FENCE.match(line)
        if fence:
            closes = match is not None and match[1][0] == fence[0] and len(match[1]) >= len(fence)
            if closes and match is not None and not match[2].strip():
                yield begun, at + len(line), True
                fence, paragraph = "", at + len(line)
        elif match is not None and not (match[1][0] == "`" and "`" in match[2]):
            yield paragraph, at, False
            fence, begun = match[1], at
        elif not line.strip():
            yield paragraph, at, False
            paragraph = at + len(line)
        at += len(line)
    yield (begun, at, True) if fence else (paragraph, at, False)


def _spans(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    runs = list(_TICKS.finditer(text, start, end))
    following: dict[int, int] = {}
    closing = [0] * len(runs)
    for i in range(len(runs) - 1, -1, -1):
        length = len(runs[i][0])
        closing[i] = following.get(length, -1)
        following[length] = i
    i = 0
    while i < len(runs):
        is_escaped = _is_escaped(text, runs[i].start())
        if closing[i] < 0 or (is_escaped and len(runs[i][0]) == 1):
            i += 1
            continue
        yield runs[i].start(), runs[closing[i]].end()
        i = closing[i] + 1
