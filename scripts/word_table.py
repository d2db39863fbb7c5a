"""Make the table of letters that search goes by, from the oldest Unicode that a supported interpreter knows.

Run it with the oldest supported Python. What Unicode assigned later is in no word until the table is made again, so
that every interpreter and every engine finds the same words.
"""

import sys
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path

TABLE = Path(__file__).parents[1] / "src" / "weft" / "kernel" / "word_table.py"
UNSPACED = ("CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "HANGUL")
PARTS = ("HANGUL JUNGSEONG", "HANGUL JONGSEONG")
WIDTH = 96


@cache
def candidates() -> list[int]:
    """Letters, marks and digits: nothing else belongs to a table, and of all code points it is one in eight."""
    return [code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] in "LMN"]


def ranges(belongs: Callable[[str], bool]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for code in candidates():
        if belongs(chr(code)):
            if found and found[-1][1] == code - 1:
                found[-1] = (found[-1][0], code)
            else:
                found.append((code, code))
    return found


@cache
def is_mark(letter: str) -> bool:
    """Belongs to the letter before it: also the vowels and last consonants that Korean syllables are composed of."""
    return unicodedata.category(letter)[0] == "M" or unicodedata.name(letter, "").startswith(PARTS)


@cache
def is_unspaced(letter: str) -> bool:
    """Of a script that puts no spaces between its words."""
    name = unicodedata.name(letter, "")
    return unicodedata.category(letter) in ("Lo", "Lm") and name.startswith(UNSPACED) and not name.startswith(PARTS)


def is_spaced(letter: str) -> bool:
    return unicodedata.category(letter)[0] in "LN" and not is_unspaced(letter) and not is_mark(letter)


def written(name: str, found: list[tuple[int, int]]) -> str:
    text = " ".join(f"{low:x}" if low == high else f"{low:x}-{high:x}" for low, high in found)
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) + 1 > WIDTH:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
    return f"{name} = (\n" + "".join(f'    "{one} "\n' for one in (*lines, line)) + ")\n"


def main() -> None:
    header = (
        f'"""Letters, digits and marks of Unicode {unicodedata.unidata_version}, as ranges of code points in hex.\n\n'
        'Made by scripts/word_table.py; not to be edited by hand."""\n\n'
    )
    parts = [written(name, ranges(test)) for name, test in TABLES]
    TABLE.write_text(header + "\n".join(parts))
    print(f"{TABLE}: {TABLE.stat().st_size} bytes, Unicode {unicodedata.unidata_version}")


TABLES = (("SPACED", is_spaced), ("UNSPACED", is_unspaced), ("MARKS", is_mark))

if __name__ == "__main__":
    main()
