"""Names of tools as providers take them: letters, digits, `_` and `-`, at most 64 of them.

`wire_name` is a pure function, and no two names have the same: what a model calls by it is one tool and no other. A
name that providers take stands for itself. `github/create_issue` becomes `github--create_issue`. Every other name is
written with what is readable of it and a hash. A name with `--` in it is never its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

LONGEST_WIRE_NAME = 64
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_]|-(?!-))*"
_is_plain = re.compile(rf"-?{_PART}").fullmatch
"""Without `--`. What ends in a hyphen is plain, too, but is no first part of two."""
_of_server = re.compile(rf"({_PART}(?<!-))/({_PART})").fullmatch
_unwritable = re.compile(r"[^A-Za-z0-9_]+")
_HASH_DIGITS = 20
_STEM_LENGTH = LONGEST_WIRE_NAME - _HASH_DIGITS - len("--h--")


def wire_name(name: str) -> str:
    """The name that a provider is sent. Two parts are joined by one `--`, a stem and a hash by `--h--`."""
    if _is_plain(name) and len(name) <= LONGEST_WIRE_NAME:
        return name
    parts = _of_server(name)
    if parts and len(name) < LONGEST_WIRE_NAME:
        return f"{parts[1]}--{parts[2]}"
    stem = _unwritable.sub("_", name)[:_STEM_LENGTH].strip("_") or "tool"
    digits = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    return f"{stem}--h--{digits}"


class WireNames:
    """The names of the tools that one request offers, back from what the model calls them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {wire_name(name): name for name in names}

    def name(self, called: str) -> str:
        """The tool that is called so. A name that was not offered stays as the model wrote it."""
        return self._names.get(called, called)
