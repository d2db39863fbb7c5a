"""Names as people type them: labels in one normal form, places of ledgers (a file or the
address of a backend), and text quoted as one word of a shell's line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from unicodedata import decomposition, name, normalize

from weft.kernel.errors import InvalidInput, Unsupported, hidden_address

# --- Text as one word of a shell's line: what is printed to be copied, completed or sent to a shell.

PLAIN_WORD = re.compile(r"[A-Za-z0-9_@:,./+-][A-Za-z0-9_@%+=:,./-]*")
"""Words that no shell changes. A leading `=` or `%` is expanded by zsh and by fish."""

OUTSIDE_QUOTES = {ord("'"): r"'\''", ord("\\"): r"'\\'"}


def shell_word(text: str) -> str:
    """The text as one word: as it is where no shell changes it, else from quote to quote."""
    return text if PLAIN_WORD.fullmatch(text) else f"'{text.translate(OUTSIDE_QUOTES)}'"


def shell_line(words: Iterable[str]) -> str:
    """A command and its arguments as one line."""
    return " ".join(map(shell_word, words))


# --- An address, `@(name)`, as it stands for a name wherever one is given.

_ADDRESS = re.compile(r"@\(([^()]+)\)")


def name_in_address(text: str) -> str:
    """The name in `@(name)`; any other text as it is. A name cannot look like an address."""
    match = _ADDRESS.fullmatch(text.strip())
    return text if match is None else match[1]


# --- Names that people type: one normal form, and which characters of a name would be taken for others.

REPLACEMENT = "\ufffd"
IGNORED = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0000-\U000e0fff]"
)
"""Characters without a shape that `str.isprintable` takes: fillers, variation selectors, the empty braille cell."""

_SAME_SHAPE = {
    # Cyrillic
    "АВЕЅІЈКМНОРСТУХҮԌԜ": "ABESIJKMHOPCTYXYGW",
    "аеѕіјорсухһԁԛԝѵӏ": "aesijopcyxhdqwvl",
    # Greek
    "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹϳ": "ABEZHIKMNOPTYXCj",
    "ανορυϲι": "avopuci",
    # Armenian
    "օսոհցզյՕՍՏԼ": "ounhgqjOUSL",
    # Cherokee
    "ᎪᏴᏟᎠᎬᏀᎻᎫᏦᏞᎷᏢᎡᏚᎢᏙᎳᏃ": "ABCDEGHJKLMPRSTVWZ",
    # Lisu
    "ꓐꓑꓓꓔꓖꓗꓙꓚꓜꓝꓟꓠꓡꓢꓣꓦꓧꓪꓫꓬꓮꓰꓲꓳꓴ": "BPDTGKJCZFMNLSRVHWXYAEIOU",
    # letters of phonetics, numerals, and marks that have a meaning in names
    "ɑɡⅠⅤⅩⅬⅭⅮⅯⅰⅴⅹⅼⅽⅾⅿ": "agIVXLCDMivxlcdm",
    "‐‑˗⁄∕⧸ː∶꞉։․∼˜": "---///::::.~~",
}
ASCII_TWINS = {
    ord(letter): twin for letters, twins in _SAME_SHAPE.items() for letter, twin in zip(letters, twins, strict=True)
}
_TWINNED_LATIN = frozenset(twin for twin in ASCII_TWINS.values() if twin.isalpha())
_SHAPES = ("<wide>", "<narrow>", "<font>")
_WORD = re.compile(r"[^\W\d_]+")
_SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "LISU")


def normal_form(text: str) -> str:
    """The form in which names are recorded and looked up."""
    return text if text.isascii() else normalize("NFC", text)


def is_visible(text: str) -> bool:
    """Every character of it can be seen, or is a space."""
    return text.isprintable() and not IGNORED.search(text)


def visible_form(text: str) -> str:
    """The normal form, with replacement characters for what cannot be seen or reads as something else."""
    text = normal_form(text)
    if not is_visible(text):
        text = "".join(letter if is_visible(letter) else REPLACEMENT for letter in text)
    return text.translate(dict.fromkeys(map(ord, look_alikes(text)), REPLACEMENT))


@lru_cache(maxsize=1024)
def look_alikes(text: str) -> frozenset[str]:
    """The characters of a text in normal form that read as others: none in a name that can be told from every other.

    A text that reads as one of ASCII has no other letters than those. In one word, letters of two scripts may not
    stand for each other.
    """
    if text.isascii():
        return frozenset()
    if (plain := _as_ascii(text)) is not None:
        return frozenset(letter for letter, twin in zip(text, plain, strict=True) if letter != twin)
    return frozenset().union(*(_mixed_script_letters(word) for word in _WORD.findall(text)))


def _as_ascii(text: str) -> str | None:
    """What it reads as if every character of it reads as one of ASCII."""
    letters = [_letter_shape(letter) for letter in text]
    return "".join(letters) if all(letter.isascii() and len(letter) == 1 for letter in letters) else None


def _letter_shape(letter: str) -> str:
    if letter.isascii():
        return letter
    if (twin := ASCII_TWINS.get(ord(letter))) is not None:
        return twin
    shape, _, code = decomposition(letter).partition(" ")
    return chr(int(code, 16)) if shape in _SHAPES and " " not in code else letter


def _mixed_script_letters(word: str) -> frozenset[str]:
    """The letters of a word that have a twin in another script, if the word has letters of two."""
    scripts = {script for letter in word if (script := _letter_script(letter)) is not None}
    if len(scripts) < 2:
        return frozenset(letter for letter in word if decomposition(letter).startswith(_SHAPES))
    return frozenset(letter for letter in word if not letter.isascii() and _letter_shape(letter) != letter) | frozenset(
        letter for letter in word if letter in _TWINNED_LATIN
    )


@lru_cache(maxsize=4096)
def _letter_script(letter: str) -> str | None:
    first = name(letter, "").partition(" ")[0]
    return first if first in _SCRIPTS else None


# --- What kind of place a ledger lies at, read off how it is named.

IN_MEMORY = ":memory:"
POSTGRESQL_SCHEMES = ("postgresql", "postgres")
_scheme = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_postgresql = re.compile(r"\s*(?:jdbc:)?postgres(?:ql)?(?:\+\w+)?:", re.IGNORECASE)
"""An address of PostgreSQL that is written wrongly: refused as one, and not taken for a file."""


class Site(StrEnum):
    """A file is what has no scheme before it; every other name is an address, of a backend or of nothing we know."""

    FILE = "file"
    MEMORY = "memory"
    POSTGRESQL = "postgresql"
    ELSEWHERE = "elsewhere"

    @classmethod
    def of(cls, name: str) -> Site:
        if name == IN_MEMORY:
            return cls.MEMORY
        found = _scheme.match(name)
        if found is None:
            return cls.POSTGRESQL if _postgresql.match(name) else cls.FILE
        return cls.POSTGRESQL if found[1] in POSTGRESQL_SCHEMES else cls.ELSEWHERE

    @property
    def is_address(self) -> bool:
        """Something to connect to: it means the same from every folder, and there is no file to look at."""
        return self in (Site.POSTGRESQL, Site.ELSEWHERE)


def needs_psycopg(error: ImportError) -> Unsupported:
    """What to install where a ledger on a server is named."""
    return Unsupported(f"a ledger in PostgreSQL needs psycopg ({error})", "install it: `pip install 'weft[postgres]'`")


def ensure_plain_path(path: str) -> None:
    """Refuses the name of a new file that has a password in it: it is an address that was written wrongly."""
    if (shown := hidden_address(path)) != path:
        raise InvalidInput(f"{shown!r} is no file, and no address", "write postgresql://user@host/database")


def scheme_of(address: str) -> str:
    """What stands before ://; nothing behind it, which may hold a password."""
    return address.partition("://")[0]
