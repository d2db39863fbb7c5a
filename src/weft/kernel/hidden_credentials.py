"""Passwords and keys in addresses, hidden before a text is shown, logged or raised.

An address that is written wrongly is read by nobody, so where its password ends is not known. What could be one is
hidden: everything between the scheme, or the first colon, and the last `@` of a word; the values of options whose
names say so. A plain user (`postgresql://user@host/db`) stays.
"""

from __future__ import annotations

import re

HIDDEN = "***"
_PLAIN_USER = re.compile(r"[A-Za-z0-9_.~-]{1,19}")
"""Longer ones may be tokens: `https://ghp_…@host`."""
_SPACES = re.compile(r"(\s+)")
_END = re.compile(r"@(?![{(])")
"""`main@{1}` and `@(id)` are no addresses of servers."""
_NAMES = "password|passwd|passphrase|pwd|secret|token|api[_-]?key|client_key|server_key"
_OPTION = re.compile(rf"((?:{_NAMES})(?:=|%3D))[^\s&'\"]+", re.IGNORECASE)
_ARGUMENT = re.compile(rf"(--?(?:pass|{_NAMES})[ =]+)[^\s'\"]+", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """The same text with `***` for everything that may be a password or a key of an address in it."""
    if "@" in text:
        text = "".join(map(_hidden_word, _SPACES.split(text)))
    if "=" in text or "%" in text:
        text = _OPTION.sub(rf"\g<1>{HIDDEN}", text)
    return _ARGUMENT.sub(rf"\g<1>{HIDDEN}", text) if "-" in text else text


def hidden_address(address: str) -> str:
    """One address, malformed or not, as it may be shown: spaces in it are part of it."""
    return _hidden_word(without_credentials(address))


def _hidden_word(word: str) -> str:
    ends = [end.start() for end in _END.finditer(word)]
    if not ends:
        return word
    before, after = word[: ends[-1]], word[ends[-1] :]
    scheme, slashes, user = before.partition("://")
    if slashes:
        return word if _PLAIN_USER.fullmatch(user) else f"{scheme}://{HIDDEN}{after}"
    name, colon, _ = before.partition(":")
    return f"{name}:{HIDDEN}{after}" if colon else word
