"""Names that people type: one normal form, and which characters of a name would be taken for others.

Names are compared in Unicode's form NFC. Characters that cannot be seen, and letters that look like those of another
script in the same word, make two names that read alike: such a name is refused where it is given, and shown with
replacement characters where it came from elsewhere. The table has the letters that look like ASCII in common fonts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from unicodedata import decomposition, name, normalize

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
    return frozenset().union(*(_mixed(word) for word in _WORD.findall(text)))


def _as_ascii(text: str) -> str | None:
    """What it reads as if every character of it reads as one of ASCII."""
    letters = [_shape(letter) for letter in text]
    return "".join(letters) if all(letter.isascii() and len(letter) == 1 for letter in letters) else None


def _shape(letter: str) -> str:
    if letter.isascii():
        return letter
    if (twin := ASCII_TWINS.get(ord(letter))) is not None:
        return twin
    shape, _, code = decomposition(letter).partition(" ")
    return chr(int(code, 16)) if shape in _SHAPES and " " not in code else letter


def _mixed(word: str) -> frozenset[str]:
    """The letters of a word that have a twin in another script, if the word has letters of two."""
    scripts = {script for letter in word if (script := _script(letter)) is not None}
    if len(scripts) < 2:
        return frozenset(letter for letter in word if decomposition(letter).startswith(_SHAPES))
    return frozenset(letter for letter in word if not letter.isascii() and _shape(letter) != letter) | frozenset(
        letter for letter in word if letter in _TWINNED_LATIN
    )


@lru_cache(maxsize=4096)
def _script(letter: str) -> str | None:
    first = name(letter, "").partition(" ")[0]
    return first if first in _SCRIPTS else None
