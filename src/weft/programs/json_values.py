"""JSON values compared, told apart and changed in part. `true` is not 1 here, as it is in Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.programs.model import Difference


def is_same(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(is_same(value, right[name]) for name, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Every place at which two values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in [*before, *(name for name in after if name not in before)]:
            place = f"{path}.{name}" if path else name
            if name not in after:
                yield Difference(place, before[name], None, "removed")
            elif name not in before:
                yield Difference(place, None, after[name], "added")
            else:
                yield from differences(before[name], after[name], place)
    elif not is_same(before, after):
        yield Difference(path, before, after, "changed")


def merged(before: Any, changes: Any) -> Any:
    """JSON Merge Patch (RFC 7396): objects field by field, null takes away, anything else stands in its place."""
    if not isinstance(changes, dict):
        return changes
    made = dict(before) if isinstance(before, dict) else {}
    for name, value in changes.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merged(made.get(name), value)
    return made
