"""The answer to one request to a model, as far as it has come.

It is one text of each kind that only grows. Whoever follows it says how far they are and takes what lies beyond, so
that nothing is queued for anybody: whoever is slow takes more at once, and holds nobody up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby

from weft.runtime.inference.replies import ReplyToken, TokenKind


class LiveText:
    """`attempt` counts the requests of the turn; `messages` are those of the inbox that it answers."""

    def __init__(self, turn: str, attempt: int, messages: Sequence[str] = ()) -> None:
        self.turn, self.attempt, self.messages = turn, attempt, tuple(messages)
        self._pieces: list[tuple[TokenKind, int, str]] = []
        """Each piece with its kind and where it begins in the text of that kind."""
        self._starts: dict[TokenKind, list[int]] = {kind: [] for kind in TokenKind}
        self._places: dict[TokenKind, list[int]] = {kind: [] for kind in TokenKind}
        """By kind where each of its pieces begins, and where it stands among all pieces."""
        self._lengths: dict[TokenKind, int] = dict.fromkeys(TokenKind, 0)

    def add(self, token: ReplyToken) -> None:
        kind, start = token.kind, self._lengths[token.kind]
        self._starts[kind].append(start)
        self._places[kind].append(len(self._pieces))
        self._pieces.append((kind, start, token.text))
        self._lengths[kind] = start + len(token.text)

    def whole(self, kind: TokenKind) -> str:
        return "".join(self._pieces[place][2] for place in self._places[kind])

    def beyond(self, delta: int, thinking: int) -> list[tuple[TokenKind, str]]:
        """What lies beyond so many characters of text and of thinking, in the order in which it came; neighbours of
        one kind are one piece."""
        skipped = {TokenKind.TEXT: delta, TokenKind.THINKING: thinking}
        first = min((self._place(kind, count) for kind, count in skipped.items()), default=0)
        rests = ((kind, text[max(0, skipped[kind] - start) :]) for kind, start, text in self._pieces[first:])
        groups = groupby((rest for rest in rests if rest[1]), lambda rest: rest[0])
        return [(kind, "".join(text for _, text in group)) for kind, group in groups]

    def _place(self, kind: TokenKind, count: int) -> int:
        """The place of the piece that goes beyond so many characters."""
        if count >= self._lengths[kind]:
            return len(self._pieces)
        return self._places[kind][bisect_right(self._starts[kind], count) - 1]
