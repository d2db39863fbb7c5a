"""Conversations as dialects send them, kept between requests: the next request of a conversation extends the
last one, so that only its new messages are translated.

A kept translation is used where a request is sent more of the same `ModelConversation`, or begins with the very objects
that it was made of. Anything else is translated from its beginning. Conversations with images are not kept: their bytes
are large.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import is_

from msgspec import Struct

from weft.ledger.model import Message, NewMessage
from weft.runtime.inference.dialects.port import WireConversation, WireMessages
from weft.runtime.inference.dialects.speakers import conversation_in
from weft.runtime.inference.routes import Dialect
from weft.runtime.inference.settings import ConversationBeginning, count_images

KEPT_MESSAGES = 200_000
"""Of all kept conversations together; those used longest ago go first."""


class KeptTranslation(Struct):
    """The first messages of a conversation, translated."""

    messages: Sequence[Message | NewMessage]
    translation: WireConversation

    def is_beginning_of(self, asked: Sequence[Message | NewMessage]) -> bool:
        if len(self.messages) > len(asked):
            return False
        if isinstance(asked, ConversationBeginning):  # a conversation only grows
            return _whole(self.messages) is asked.conversation
        return all(map(is_, self.messages, asked))


class KeptConversations:
    """The translations of the conversations that were asked about last."""

    def __init__(self, most_messages: int = KEPT_MESSAGES) -> None:
        self._most_messages = most_messages
        self._kept: OrderedDict[tuple[int, Dialect, bool], KeptTranslation] = OrderedDict()
        """By the identity of the whole, which is kept with them and so stays its own."""
        self._amount = 0

    def translate(self, messages: Sequence[Message | NewMessage], dialect: Dialect, *, images: bool) -> WireMessages:
        """A conversation for a model that takes images or does not. Raises InvalidInput where nothing is to be
        answered."""
        asked = messages if isinstance(messages, ConversationBeginning) else tuple(messages)
        key = (id(_whole(asked)), dialect, images)
        kept = self._take(key, asked) or KeptTranslation((), conversation_in(dialect, images=images))
        news = asked[len(kept.messages) :]
        kept.translation.extend(news)
        kept.messages = asked
        if asked and not count_images(news):
            self._keep(key, kept)
        return kept.translation.wire_messages()

    def _take(self, key: tuple[int, Dialect, bool], asked: Sequence[Message | NewMessage]) -> KeptTranslation | None:
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        self._amount -= len(kept.messages)
        return kept if kept.is_beginning_of(asked) else None

    def _keep(self, key: tuple[int, Dialect, bool], kept: KeptTranslation) -> None:
        self._kept[key] = kept
        self._amount += len(kept.messages)
        while self._amount > self._most_messages:
            _, oldest = self._kept.popitem(last=False)
            self._amount -= len(oldest.messages)


def _whole(messages: Sequence[Message | NewMessage]) -> object:
    """What stays the same object while a conversation grows: itself, or its first message."""
    if isinstance(messages, ConversationBeginning):
        return messages.conversation
    return messages[0] if messages else None
