"""Conversations as the model layer takes them, kept between requests: the next request of a conversation extends the
last one, so that only its new messages are translated.

A kept translation is used where a request begins with the very objects that it was made of. Anything else is translated
from its beginning. Conversations with images are not kept: their bytes are large.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import is_

from pydantic_ai import messages as m

from weft.ledger.model import Message, NewMessage
from weft.runtime.inference.settings import count_images
from weft.runtime.inference.translation import Translation

KEPT_MESSAGES = 200_000
"""Of all kept conversations together; those used longest ago go first."""

Messages = tuple[Message | NewMessage, ...]


class KeptConversations:
    """The translations of the conversations that were asked about last."""

    def __init__(self, most_messages: int = KEPT_MESSAGES) -> None:
        self._most_messages = most_messages
        self._kept: OrderedDict[tuple[int, bool], tuple[Messages, Translation]] = OrderedDict()
        """By the identity of the first message, which is kept with them and so stays its own."""
        self._amount = 0

    def translate(self, messages: Sequence[Message | NewMessage], *, images: bool) -> list[m.ModelMessage]:
        """A conversation for a model that takes images or does not. Raises InvalidInput where nothing is to be
        answered."""
        asked = tuple(messages)
        key = (id(asked[0]) if asked else 0, images)
        before, translation = self._take(key, asked) or ((), Translation(images=images))
        news = asked[len(before) :]
        translation.extend(news)
        if asked and not count_images(news):
            self._keep(key, asked, translation)
        return translation.ending_in_request()

    def _take(self, key: tuple[int, bool], asked: Messages) -> tuple[Messages, Translation] | None:
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        messages, _ = kept
        self._amount -= len(messages)
        is_extended = len(messages) <= len(asked) and all(map(is_, messages, asked))
        return kept if is_extended else None

    def _keep(self, key: tuple[int, bool], asked: Messages, translation: Translation) -> None:
        self._kept[key] = (asked, translation)
        self._amount += len(asked)
        while self._amount > self._most_messages:
            _, (messages, _) = self._kept.popitem(last=False)
            self._amount -= len(messages)
