"""The terms of a text that an agent may have to write again exactly: paths, URLs, identifiers, numbers with a name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from weft.ledger.model import Message, TextPart, ToolResultPart, ToolUsePart

MOST_TERMS = 200
SHORTEST_TERM_CHARACTERS, LONGEST_TERM_CHARACTERS = 4, 120
MOST_CHARACTERS = 2_000_000
"""So much of a past is looked through, from its end."""
_WORD = re.compile(r"[\w./@~+:-]{4,}")
_FILE = re.compile(r"[\w-]+\.(py|js|ts|tsx|rs|go|md|toml|json|yaml|yml|sql|sh|txt|html|css|c|h|cpp|java|lock|cfg|ini)")
_SHAPES = (
    re.compile(r"[A-Za-z][a-z0-9]*([A-Z][a-z0-9]+)+"),  # CamelCase
    re.compile(r"[A-Z]{2,10}-[0-9]{1,8}"),  # TICKET-12
    re.compile(r"(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}"),  # a commit
    _FILE,
)


def key_terms(text: str) -> list[str]:
    """The terms of a text, the most frequent first. Takes time in proportion to its length, whatever it holds."""
    counts: Counter[str] = Counter()
    for word, count in Counter(_WORD.findall(text[-MOST_CHARACTERS:])).items():
        if len(word) <= LONGEST_TERM_CHARACTERS and _is_term(term := _trimmed(word)):
            counts[term] += count
    return sorted(counts, key=lambda term: (-counts[term], term))[:MOST_TERMS]


def _trimmed(word: str) -> str:
    """Without the stops around it, and without the line that follows a path."""
    return re.sub(r"(:[0-9]+)+$", "", word.strip(".:-+~@"))


def _is_term(word: str) -> bool:
    if len(word) < SHORTEST_TERM_CHARACTERS or not any(map(str.isalpha, word)):
        return False
    return "/" in word.strip("/") or ("_" in word.strip("_")) or any(shape.fullmatch(word) for shape in _SHAPES)


def plain_text(messages: Iterable[Message]) -> str:
    """All that messages say, call and answer, as one text."""
    return "\n".join(text for message in messages for text in _texts(message))


def _texts(message: Message) -> Iterator[str]:
    for part in message.content:
        if isinstance(part, TextPart):
            yield str(part.text)
        elif isinstance(part, ToolUsePart):
            yield from _strings(part.input)
        elif isinstance(part, ToolResultPart):
            yield from _strings(part.output)


def _strings(value: Any) -> Iterator[str]:
    """The texts inside a JSON value, as they read without its escapes."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _strings(inner)
