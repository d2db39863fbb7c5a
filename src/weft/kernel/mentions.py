"""Mentions in the text of a message: `@[Name](kind:ID)`.

The kind is `user` or `agent`; anything else stays text. What lies in a code span or a fenced block mentions nobody, and
neither does a mention whose `@` is escaped by a backslash. In the name, brackets, backslashes and backticks are
escaped. The name is what the writer saw; the id decides who is meant. Every function walks the text a fixed number of
times.

Code is what CommonMark takes for it, with three simplifications. A fence in a block quote or a list is text, so its
backticks may make a code span. A block that is code by its indentation is text. Only a blank line or a fence ends a
paragraph.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from unicodedata import bidirectional

from msgspec import Struct

from weft.kernel.enums import ParticipantKind

NAME_LIMIT = 200
_MENTION = re.compile(r"@\[((?:\\[^\n\r]|[^\\\[\]\n\r]){1,400})\]\((user|agent):([0-9A-Za-z]{1,26})\)")
_LINE = re.compile(r"[^\n\r]*+(?:\r\n?|\n)?")
_FENCE = re.compile(r" {0,3}(`{3,}+|~{3,}+)([^\n\r]*)")
_TICKS = re.compile(r"`+")
_ESCAPED = re.compile(r"\\([\\\[\]`])")
_SPECIAL = re.compile(r"[\\\[\]`]")
_BREAKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
_DIRECTION_CONTROLS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_BLANK = " \t\n\r"
_ISOLATE, _END_ISOLATE = "\u2068", "\u2069"


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
    is_prose = prose_places(text)
    mentions = []
    for match in _MENTION.finditer(text):
        if is_prose(match.start()):
            name = _ESCAPED.sub(r"\1", match[1])
            mentions.append(Mention(ParticipantKind(match[2]), match[3], name, match.start(), match.end()))
    return tuple(mentions)


def prose_places(text: str) -> Callable[[int], bool]:
    """Says of a place in the text whether a mention may begin there: outside code, and not escaped by a backslash."""
    code = _code_ranges(text)
    starts = [start for start, _ in code]

    def is_prose(at: int) -> bool:
        before = bisect_right(starts, at) - 1
        is_code = before >= 0 and at < code[before][1]
        return not is_code and not _is_escaped(text, at)

    return is_prose


def mentioned(text: str) -> tuple[tuple[ParticipantKind, str], ...]:
    """Whom a text mentions, each once, in order."""
    return tuple(dict.fromkeys((mention.kind, mention.id) for mention in find_mentions(text)))


def write_mention(kind: ParticipantKind | str, id: str, name: str) -> str:
    """The text that mentions somebody, by `plain_name` of the name; by the id where nothing is left of it."""
    plain = plain_name(name) or id
    escaped = _SPECIAL.sub(r"\\\g<0>", plain)
    return f"@[{escaped}]({ParticipantKind(kind).value}:{id})"


def plain_name(name: str) -> str:
    """A name as a mention holds it: line breaks, control characters and runs of blanks become one space each, and it is
    cut after NAME_LIMIT characters."""
    return _BREAKS.sub(" ", name).strip()[:NAME_LIMIT].strip()


def shown_name(name: str, *, isolated: bool = False) -> str:
    """A name as it is shown within a line: without the characters that set the direction of writing, so that it cannot
    reorder what stands beside it. With `isolated`, for displays that order letters by themselves, a name with letters
    that run from right to left stands between marks that keep its direction to itself."""
    plain = plain_name(_DIRECTION_CONTROLS.sub("", name))
    if isolated and any(bidirectional(letter) in ("R", "AL", "AN") for letter in plain):
        return f"{_ISOLATE}{plain}{_END_ISOLATE}"
    return plain


def show_mentions(text: str, *, isolated: bool = False) -> str:
    """The text as people read it: every mention is `@` and the name that it has, as `shown_name` gives it."""
    return render_mentions(text, lambda mention: f"@{shown_name(mention.name, isolated=isolated) or mention.id}")


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
    for line in _lines(text):
        match = _FENCE.match(line)
        if fence:
            closes = match is not None and match[1][0] == fence[0] and len(match[1]) >= len(fence)
            if closes and match is not None and not match[2].strip(_BLANK):
                yield begun, at + len(line), True
                fence, paragraph = "", at + len(line)
        elif match is not None and not (match[1][0] == "`" and "`" in match[2]):
            yield paragraph, at, False
            fence, begun = match[1], at
        elif not line.strip(_BLANK):
            yield paragraph, at, False
            paragraph = at + len(line)
        at += len(line)
    yield (begun, at, True) if fence else (paragraph, at, False)


def _lines(text: str) -> Iterator[str]:
    """Every line with its end. A line ends with a line feed, a carriage return, or both, and with nothing else."""
    return (match[0] for match in _LINE.finditer(text))


def _spans(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Code spans: from a run of backticks to the next one of the same length. A backslash takes the first backtick of a
    run that begins a span, and means nothing within one."""
    runs = [(run.start(), run.end()) for run in _TICKS.finditer(text, start, end)]
    openings = [opening + _is_escaped(text, opening) for opening, _ in runs]
    next_of_length: dict[int, int] = {}
    closings = [-1] * len(runs)
    for i in range(len(runs) - 1, -1, -1):
        closings[i] = next_of_length.get(runs[i][1] - openings[i], -1)
        next_of_length[runs[i][1] - runs[i][0]] = i
    i = 0
    while i < len(runs):
        if closings[i] < 0:
            i += 1
            continue
        yield openings[i], runs[closings[i]][1]
        i = closings[i] + 1
