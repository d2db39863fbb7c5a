"""What an erasure takes: which contents are gone, and which turns lost some of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class Forgotten(Struct, frozen=True):
    contents: Sequence[int]
    turns: Sequence[str]
