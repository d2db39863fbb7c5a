"""What a response cost, as disjoint parts.

Versions and providers count reasoning inside the output or beside it. Where opencode gives the total, the output with
its reasoning is what the total leaves; else reasoning lies inside an output that has room for it.
"""

from __future__ import annotations

from typing import Any

from weft.exchange.importers.transcript import Tokens
from weft.exchange.importers.values import mapping, whole


def tokens(counted: Any) -> Tokens | None:
    if not isinstance(counted, dict):
        return None
    cache = mapping(counted.get("cache"))
    given, read, written = whole(counted.get("input")), whole(cache.get("read")), whole(cache.get("write"))
    output, reasoning = whole(counted.get("output")), whole(counted.get("reasoning"))
    if output is not None and reasoning:
        total = whole(counted.get("total"))
        left = None if total is None else total - (given or 0) - (read or 0) - (written or 0)
        output = _with_reasoning(output, reasoning, left)
    made = Tokens(input=given, output=output, cached=read, cache_write=written, reasoning=reasoning)
    return None if made == Tokens() else made


def _with_reasoning(output: int, reasoning: int, left: int | None) -> int:
    if left is not None and output <= left <= output + reasoning:
        return left
    return output if reasoning <= output else output + reasoning


def summed(steps: list[Any]) -> Tokens | None:
    """Of a message that holds several responses."""
    found = [each for step in steps if (each := tokens(step)) is not None]
    if not found:
        return None

    def add(name: str) -> int | None:
        counts = [count for each in found if (count := getattr(each, name)) is not None]
        return sum(counts) if counts else None

    return Tokens(
        input=add("input"),
        output=add("output"),
        cached=add("cached"),
        cache_write=add("cache_write"),
        reasoning=add("reasoning"),
    )
