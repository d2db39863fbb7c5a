"""Arguments as they must be before anything looks at them: what does not fit is refused in words, never by accident."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import tzinfo
from functools import lru_cache
from pathlib import Path
from typing import Any

from weft.kernel.advice import Action, Hint
from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.errors import InvalidInput, StoreError, Unsupported
from weft.kernel.sites import IN_MEMORY, Site


def checked_text(value: Any, what: str) -> str:
    """Text that a database can be asked for."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is {value!r:.80}, not text", "give it as text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"{what} {value!r:.80} has a lone surrogate, which nothing is called by", "give well-formed text"
        ) from None
    return value


def checked_names(value: Any, what: str) -> list[str]:
    """One name, or several."""
    if isinstance(value, bytes | bytearray) or not isinstance(value, Iterable):
        raise InvalidInput(f"{what} is {value!r:.80}", "give a name, or a list of names")
    return [checked_text(name, what) for name in ([value] if isinstance(value, str) else value)]


def checked_number(value: Any, what: str) -> int:
    if type(value) is not int or abs(value) > MAX_INTEGER:
        raise InvalidInput(f"{what} is {value!r:.80}", "it is a whole number below 2^53")
    return value


def checked_count(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise InvalidInput(f"{what} is {value!r:.80}", "it is a whole number from 0")
    return value


def checked_seconds(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidInput(f"{what} is {value!r:.80}", "it is a number of seconds from 0")
    return min(value, MAX_INTEGER)


def checked_flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} is {value!r:.80}", "it is True or False")
    return value


def checked_progress(value: Any) -> Any:
    if value is not None and not callable(value):
        raise InvalidInput(f"progress is {type(value).__name__}", "give a function that is told how far it is")
    return value


def checked_zone(value: Any) -> tzinfo:
    if not isinstance(value, tzinfo):
        raise InvalidInput(f"zone is {value!r:.80}", "give a time zone: zoneinfo.ZoneInfo(…)")
    return value


def checked_paths(value: Any, what: str) -> list[str | os.PathLike[str]]:
    """Several of them; one alone is no list of its letters."""
    if isinstance(value, str | bytes | os.PathLike) or not isinstance(value, Iterable):
        raise InvalidInput(f"{what} is {value!r:.80}", "give a list of paths")
    return list(value)


def checked_path(value: Any, what: str) -> Path:
    """A path in words; `os.PathLike` counts, bytes do not."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInput(f"{what} is {value!r:.80}", "give a path as text")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} {text!r:.80} cannot be the name of a file", "give another path") from None
    return Path(text)


def checked_place(value: Any, what: str) -> Path:
    """A path that a database can be opened at, and that can be noted in one."""
    path = checked_path(value, what)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} {str(path)!r:.80} is not UTF-8", "give another path") from None
    return path


def checked_file(value: Any, what: str, hint: Hint) -> Path:
    """The path of a file, where an address will not do; nothing of one is told, it may hold a password."""
    path = checked_place(value, what)
    if (site := Site.of(os.fspath(value))) is not Site.FILE:
        kind = "the address of a server" if site.is_address else IN_MEMORY
        raise Unsupported(f"{what} is {kind}, not a file", hint)
    return path


def path_error(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path}: {error.strerror or error}", Action.CHECK_PATH)


LABEL_LIMIT = 512
ADDRESS_MARKS = ("~", "@{", "^")


def checked_label(label: Any, what: str = "label") -> str:
    """Labels are words people type: printable, without spaces at the ends, and not to be mistaken for an address."""
    return _checked_words(checked_length(label, what), what)


def checked_length(text: Any, what: str) -> str:
    if not isinstance(text, str) or not text or len(text) > LABEL_LIMIT:
        raise InvalidInput(f"{what} is {text!r:.80}", f"it is text of 1 to {LABEL_LIMIT} characters")
    return text


@lru_cache(maxsize=1024)
def _checked_words(label: str, what: str) -> str:
    if not label.isprintable() or label != label.strip():
        raise InvalidInput(f"{what} {label!r:.80} has invisible characters", "use printable characters only")
    if any(mark in label for mark in ADDRESS_MARKS):
        raise InvalidInput(f"{what} {label!r:.80} looks like an address", "leave out ~, ^ and @{")
    return label


def cleaned_label(text: str) -> str:
    """The nearest label that `checked_label` takes: what another program wrote must not act on a terminal or shadow
    an address. Empty when nothing is left."""
    printable = "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:LABEL_LIMIT])
    for mark in ADDRESS_MARKS:
        printable = printable.replace(mark, "-")
    return printable.strip()
