"""What a node says, as one text: what is embedded when nobody gives another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from weft.kernel.enums import MessageRole
from weft.kernel.errors import Action, InvalidInput
from weft.ledger.model import Message, TextPart
from weft.programs.model import Program
from weft.programs.programs import Programs

MAX_TEXT_CHARACTERS = 8_000
"""Of a node so many are read at most; a model reads fewer."""
MAX_SESSION_TURNS = 40
"""Of a session so many of its newest turns are read."""


def text_of_node(programs: Programs, kind: str, node: str) -> str:
    """Raises InvalidInput where a node has no words of its own."""
    pieces = {"program": _program, "session": _session, "turn": _turn, "message": _message}.get(kind)
    text = "" if pieces is None else _joined(pieces(programs, node))
    if not text:
        raise InvalidInput(f"{kind} {node} has no text of its own", Action.GIVE_TEXT)
    return text


def _joined(pieces: Iterable[str]) -> str:
    parts, length = [], 0
    for piece in pieces:
        parts.append(piece[: MAX_TEXT_CHARACTERS - length])
        length += len(parts[-1]) + 1
        if length >= MAX_TEXT_CHARACTERS:
            break
    return "\n".join(piece for piece in parts if piece.strip())


def _program(programs: Programs, node: str) -> Iterator[str]:
    program: Program = programs.get(node)
    yield program.name
    yield from _strings(program.config)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for field in value.values():
            yield from _strings(field)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _session(programs: Programs, node: str) -> Iterator[str]:
    session = programs.ledger.session(node)
    yield session.label
    if session.title:
        yield session.title
    turn, left = session.head, MAX_SESSION_TURNS
    while turn is not None and left:
        yield from _texts_by(programs.ledger.messages(turn), MessageRole.USER)
        turn, left = programs.ledger.turn(turn).parent_id, left - 1


def _turn(programs: Programs, node: str) -> Iterator[str]:
    yield from _texts_by(programs.ledger.messages(node), MessageRole.USER, MessageRole.ASSISTANT)


def _message(programs: Programs, node: str) -> Iterator[str]:
    yield from _texts(programs.ledger.message(node))


def _texts_by(messages: Iterable[Message], *roles: MessageRole) -> Iterator[str]:
    for message in messages:
        if message.role in roles:
            yield from _texts(message)


def _texts(message: Message) -> Iterator[str]:
    yield from (str(part.text) for part in message.content if isinstance(part, TextPart))
