"""The past of a thread as text that a model is given to summarise: quoted, between two lines that it cannot hold.

Whatever the past says is data. The line around it is made of the digest of what stands inside, so nothing that was
written before can close the quotation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from weft.ledger.api import sent_text
from weft.ledger.model import ImagePart, Message, Part, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from weft.runtime.assembly.layers import TurnMessages
from weft.runtime.inference.token_estimates import text_tokens

SHORTEST_PART_CHARACTERS, LONGEST_PART_CHARACTERS = 250, 8_000
"""A part is quoted up to the longer one; where all of it is too much for a few requests, down to the shorter one."""
MOST_PIECES = 8
"""In so many requests the past is told to a summariser, as long as its parts can be made shorter."""


def fenced(text: str) -> tuple[str, str]:
    """A text between two lines that do not occur in it, and the line."""
    fence = f"=== past {sha256(text.encode(errors='surrogatepass')).hexdigest()[:24]} ==="
    return f"{fence}\n{text}\n{fence}", fence


def quoted_pieces(turns: Sequence[TurnMessages], piece_tokens: int) -> list[str]:
    """The turns as text, in pieces of at most so many tokens each. Long parts lose their middle, all the same way."""
    longest = LONGEST_PART_CHARACTERS
    while True:
        pieces = list(_pieces((line for turn in turns for line in quoted_lines(turn, longest)), piece_tokens))
        if len(pieces) <= MOST_PIECES or longest <= SHORTEST_PART_CHARACTERS:
            return pieces
        longest //= 2


def _pieces(lines: Iterable[str], piece_tokens: int) -> Iterator[str]:
    piece: list[str] = []
    size = 0
    for line in lines:
        tokens = text_tokens(line) + 1
        if piece and size + tokens > piece_tokens:
            yield "\n".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += tokens
    if piece:
        yield "\n".join(piece)


def quoted_lines(turn: TurnMessages, longest: int = LONGEST_PART_CHARACTERS) -> Iterator[str]:
    """A line for each part, which says who said it. Thinking is not quoted: it is no part of what was sent."""
    names = _tool_names(turn.messages)
    for message in turn.messages:
        for part in message.content:
            text = _quoted(message, part, names)
            if text is not None:
                yield without_middle(text, longest)


def without_middle(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    head = longest * 3 // 4
    tail = longest - head
    return f"{text[:head]} [... {len(text) - longest} characters ...] {text[-tail:]}"


def _tool_names(messages: Iterable[Message]) -> dict[str, str]:
    return {part.id: part.name for message in messages for part in message.content if isinstance(part, ToolUsePart)}


def _quoted(message: Message, part: Part, names: dict[str, str]) -> str | None:
    match part:
        case TextPart():
            return f"[{message.role}] {part.text}" if part.text else None
        case ToolUsePart():
            return f"[call of {part.name}] {sent_text(part.input)}"
        case ToolResultPart():
            failed = ", an error" if part.is_error is True else ""
            return f"[result of {names.get(part.tool_call_id, 'a tool')}{failed}] {sent_text(part.output)}"
        case ImagePart():
            return f"[{message.role}] (an image)"
        case ReasoningPart():
            return None
