"""The terms of a text that an agent may have to write again exactly: paths, URLs, identifiers, numbers with a name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from weft.ledger.model import Message, TextPart, ToolResultPart, ToolUsePart
from weft.runtime.inference.token_estimates import as_text

MOST_TERMS = 200
LONGEST_TERM_CHARACTERS = 120
MOST_CHARACTERS = 2_000_000
"""So much of a past is looked through, from its end."""
_TERM = re.compile(
    r"""
    https?://[^\s<>"'`)\]}]{1,200}                      # a URL
    | (?:[\w.@~+-]{1,80})?(?:/[\w.@~+-]{1,80}){1,16}    # a path
    | \b[\w-]{1,80}\.(?:py|js|ts|tsx|rs|go|md|toml|json|yaml|yml|sql|sh|txt|html|css|c|h|cpp|java|lock|cfg|ini)\b
    | \b[A-Za-z][a-z0-9]{0,40}(?:[A-Z][a-z0-9]{1,40}){1,8}\b    # CamelCase
    | \b[A-Za-z]\w{0,40}_\w{1,60}\b                     # snake_case
    | \b[A-Z]{2,10}-\d{1,8}\b                           # TICKET-12
    | \b[0-9a-f]{7,40}\b                                # a commit
    """,
    re.X,
)


def key_terms(text: str) -> list[str]:
    """The terms of a text, the most frequent first."""
    counts = Counter(term.rstrip(".,;:") for term in _TERM.findall(text[-MOST_CHARACTERS:]))
    terms = [term for term in counts if _is_telling(term)]
    terms.sort(key=lambda term: (-counts[term], term))
    return terms[:MOST_TERMS]


def _is_telling(term: str) -> bool:
    is_number = term.isdigit()
    return 3 < len(term) <= LONGEST_TERM_CHARACTERS and not is_number and any(map(str.isalpha, term))


def plain_text(messages: Iterable[Message]) -> str:
    """All that messages say, call and answer, as one text."""
    return "\n".join(text for message in messages for text in _texts(message))


def _texts(message: Message) -> Iterable[str]:
    for part in message.content:
        if isinstance(part, TextPart):
            yield str(part.text)
        elif isinstance(part, ToolUsePart):
            yield as_text(part.input)
        elif isinstance(part, ToolResultPart):
            yield as_text(part.output)
