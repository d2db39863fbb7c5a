"""What a text must hold for any of kingfisher's rules to match: asked before the rules themselves, which take seconds
to compile.

The table is made from the rules of one version of kingfisher, whose patterns it holds in a looser form
(`scripts/generate_secret_patterns.py`): of each rule words that every match holds, and the beginning of its
expression. A text without any of them has nothing to find. Whatever is in doubt (text that is no bytes of letters, a
long one, a rule of another version) is left to the rules.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

from msgspec import Struct
from msgspec.json import decode

PATTERNS = Path(__file__).with_name("rule_patterns.json")
LONGEST_BYTES = 64 * 1024
"""A longer text is left to the rules: they are as much faster as they are slow to begin."""
BASE64_DEPTH = 2
"""So often kingfisher looks into base64 within base64."""
_base64 = re.compile(rb"[A-Za-z0-9+/_-]{28,}+")
_standard = bytes.maketrans(b"-_", b"+/")


class RulePattern(Struct, frozen=True):
    """One rule."""

    kind: str
    """What it finds, in words."""
    words: tuple[tuple[str, ...], ...]
    """Sets of words in small letters; of each set every match holds one."""
    pattern: str
    """Every match begins with a match of this."""

    def may_match(self, data: bytes, small: bytes) -> bool:
        """Whether it could match in these bytes, which are there in small letters as well."""
        if not all(any(word.encode() in small for word in words) for words in self.words[1:]):
            return False
        return _compiled(self.pattern).search(data) is not None


class RulePatterns(Struct, frozen=True, dict=True):
    """The rules of one version of kingfisher."""

    version: str
    count: int
    """Of all rules, with those that find nothing by themselves and are left out here."""
    rules: dict[str, RulePattern]

    def may_match(self, data: bytes, depth: int = BASE64_DEPTH) -> bool:
        """Whether a rule could find something in these bytes. True says nothing; False says that none does."""
        if b"\0" in data or len(data) > LONGEST_BYTES:  # kingfisher reads UTF-16, too
            return True
        small = data.lower()
        names = {name for word, needing in self._by_word.items() if word in small for name in needing}
        if any(self.rules[name].may_match(data, small) for name in sorted(names)):
            return True
        return depth > 0 and any(self.may_match(inner, depth - 1) for inner in _decoded(data))

    @cached_property
    def _by_word(self) -> dict[bytes, list[str]]:
        """By a word the rules that need one of a set with it; every text holds the empty one."""
        by_word: dict[bytes, list[str]] = {}
        for name, rule in self.rules.items():
            for word in rule.words[0] if rule.words else ("",):
                by_word.setdefault(word.encode(), []).append(name)
        return by_word


@cache
def load_patterns(version: str) -> RulePatterns | None:
    """Those of this version of kingfisher; None where the table is of another one."""
    patterns = decode(PATTERNS.read_bytes(), type=RulePatterns)
    return patterns if patterns.version == version else None


@cache
def _compiled(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode())


def _decoded(data: bytes) -> Iterator[bytes]:
    """What stands in base64, of either alphabet, and is ASCII; of the rest kingfisher reads nothing."""
    for run in _base64.findall(data):
        plain = run.translate(_standard)
        try:
            inner = b64decode(plain + b"=" * (-len(plain) % 4))
        except Error:  # a lone last letter is no base64, for kingfisher neither
            continue
        if inner.isascii():
            yield inner
