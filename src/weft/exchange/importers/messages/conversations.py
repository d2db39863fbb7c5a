"""Conversations as files hold them: what counts as a message, and where the messages of a conversation are.

A conversation is an object with a list of messages (`messages`, or `conversations` in ShareGPT's form), or that list
alone. A message has a role and a content, tool calls or a function's result; ShareGPT's has `from` and `value`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from weft.exchange.importers.records.values import JsonObject, epoch_millis, fingerprint, mapping, sequence, text
from weft.ledger.dialects import is_api_message

LISTS = ("messages", "conversations", "conversation")
"""Names that the list of messages goes by."""
CONVERSATION_LISTS = ("conversations", "data", "items", "rows", "examples")
"""Names that a list of conversations goes by."""
ID_FIELDS = ("id", "conversation_id", "session_id", "uuid")
TIME_FIELDS = ("created_at", "create_time", "created", "timestamp")
LOOKED_AT = 8
"""So many messages tell whether a list is one of messages."""


class Conversation(Struct, frozen=True):
    """One conversation: its messages, and the object around them, if there is one."""

    messages: list[Any]
    around: JsonObject

    @property
    def id(self) -> str | None:
        return next((id for name in ID_FIELDS if (id := text(self.around.get(name))) is not None), None)

    @property
    def created(self) -> int | None:
        times = (epoch_millis(self.around.get(name)) for name in TIME_FIELDS)
        return next((at for at in times if at is not None), None)


def is_message_list(value: Any) -> bool:
    """Is it a list of messages, of which somebody says one?"""
    messages = sequence(value)
    first = messages[:LOOKED_AT]
    return bool(first) and all(is_api_message(message) for message in first) and any(map(_is_spoken, messages))


def _is_spoken(message: Any) -> bool:
    return {"role", "from"} & mapping(message).keys() != set()


def conversation_of(value: Any) -> Conversation | None:
    """The conversation that a value is; None if it is none."""
    if is_message_list(value):
        return Conversation(value, {})
    around = mapping(value)
    name = next((name for name in LISTS if is_message_list(around.get(name))), None)
    if name is None:
        return None
    rest = {key: field for key, field in around.items() if key != name}
    system = rest.get("system")
    lead = [{"role": "system", "content": system}] if isinstance(system, str | list) and system else []
    return Conversation([*lead, *around[name]], rest)


def conversations_in(value: Any) -> Iterator[Any]:
    """The elements of a list of conversations, or of an object that has such a list."""
    if isinstance(value, list):
        yield from value
        return
    for name in CONVERSATION_LISTS:
        member = mapping(value).get(name)
        if isinstance(member, list) and member and conversation_of(member[0]) is not None:
            yield from member


def session_id(conversation: Conversation, beginning: Any) -> str:
    """The file's own id, told apart by how the conversation begins: ids in such files are often numbers of rows."""
    own = conversation.id
    return fingerprint(beginning, 32) if own is None else f"{own}@{fingerprint(beginning)}"
