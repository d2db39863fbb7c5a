"""What somebody may do, as layers of which every one must agree.

A layer allows and denies by patterns (`*` for any characters, `?` for one); deny wins. Rights are a set of layers, and
the intersection of two rights is simply all their layers: nothing that is added can ever widen what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct

from weft.kernel.errors import InvalidInput


class Layer(Struct, frozen=True, forbid_unknown_fields=True):
    """What one grant says. Without `allow` it allows nothing."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def allows(self, right: str) -> bool:
        return _fits(right, self.allow) and not _fits(right, self.deny)


class Rights(Struct, frozen=True, forbid_unknown_fields=True):
    """An intersection of layers. Without any, everything is allowed: nobody has limited it yet."""

    layers: tuple[Layer, ...] = ()

    def allows(self, right: str) -> bool:
        return all(layer.allows(right) for layer in self.layers)

    def narrowed(self, other: Rights) -> Rights:
        """What both allow."""
        return Rights(tuple(dict.fromkeys((*self.layers, *other.layers))))


EVERYTHING = Rights()


def rights(allow: Iterable[str] = ("*",), deny: Iterable[str] = ()) -> Rights:
    """One layer: all that fits a pattern of `allow` and none of `deny`."""
    return Rights((Layer(_patterns(allow, "allow"), _patterns(deny, "deny")),))


def _patterns(given: Any, what: str) -> tuple[str, ...]:
    found = () if isinstance(given, str) else tuple(given)
    if isinstance(given, str) or not all(isinstance(item, str) and item for item in found):
        raise InvalidInput(f"{what} is not a list of patterns", "give texts such as 'tool:*' or 'model:claude-*'")
    return tuple(sorted(set(found)))


def _fits(right: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(right, pattern) for pattern in patterns)
