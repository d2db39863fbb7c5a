"""Marks between which the words of one speaker are told to a model, so that it can tell them from those of others.

A mark depends on the references of what it stands around, which are salted when that is stored: nobody knows it before,
and no text can hold its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from weft.kernel.fields import ImageFact, PartFact, TextFact

MARK_DIGITS = 10


def content_mark(message: str, parts: Sequence[PartFact]) -> str:
    """The mark of a message, by its id and its texts and images."""
    texts_and_images = [part for part in parts if isinstance(part, TextFact | ImageFact)]
    refs = [part.text if isinstance(part, TextFact) else part.url for part in texts_and_images]
    return sha256("\n".join((message, *map(str, refs))).encode()).hexdigest()[:MARK_DIGITS]
