"""Words are the same everywhere: by a table of their own, composed, without case, and never too long."""

import importlib.util
import unicodedata
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sizes import share
from weft.kernel import message_text
from weft.kernel.message_text import (
    MAX_LETTERS,
    IndexedWords,
    folded,
    folded_alike,
    index_words,
    indexed,
    pattern,
    tokens,
)

ODD = "aAzZ09_ .-/\n\t日本語カナ한글éÉe\u0301\u0300ßſKİﬁ½²ǅ\u200d\ud800😀—│Ω\U00011f02"
TEXTS = st.text(st.sampled_from(ODD) | st.characters(), max_size=80)
FIRST_PLANE = 0x10000
SCRIPT = Path(__file__).parents[2] / "scripts" / "word_table.py"
FOLDED = "3f6afdd7bc8272e6e3b7eb9d2932849597d595cbd1f3b5211b550710fc463366"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", set()),
        ("  --  ", set()),
        ("snake_case Foo.bar() src/App.py", {"snake", "case", "foo", "bar", "src", "app", "py"}),
        ("it's 3.14", {"it", "s", "3", "14"}),
        ("Straße STRASSE", {"strasse"}),
        ("e\u0301tude Étude", {"étude"}),
        ("naïve—café", {"naïve", "café"}),
        ("日本語", {"日本", "本語", "語"}),
        ("日 本", {"日", "本"}),
        ("東京tokyo都", {"東京", "京", "tokyo", "都"}),
        ("\ud800a\ud800b", {"a", "b"}),
    ],
)
def test_a_text_falls_into_its_words(text: str, words: set[str]) -> None:
    assert index_words(text) == words


def test_what_is_too_long_is_no_word() -> None:
    assert index_words("x" * MAX_LETTERS) == {"x" * MAX_LETTERS}
    assert index_words("x" * (MAX_LETTERS + 1) + " y") == {"y"}
    assert index_words("ü" * (MAX_LETTERS + 1) + " y") == {"y"}


def test_bytes_spelled_out_are_no_words() -> None:
    blob = ("iVBORw0KGgo/AAAA+" * 20) + "A" * 70
    assert index_words(f'src="{blob}" end') == {"src", "end"}
    assert index_words(f"é {blob} end") == {"é", "end"}
    assert list(indexed(tokens(f"{blob} end"))) == ["end"]
    assert "ivborw0kggo" in index_words("iVBORw0KGgo/AAAA+")


@given(TEXTS)
def test_an_index_has_the_words_that_a_reader_finds(text: str) -> None:
    assert index_words(text) == set(indexed(tokens(text)))
    for token in tokens(text):
        assert folded(text[token.start : token.end]) == token.word


@given(st.lists(TEXTS, max_size=4))
def test_words_of_several_texts_are_those_of_each(texts: list[str]) -> None:
    gathered = IndexedWords()
    for text in texts:
        gathered.add(text)
    assert gathered.words() == set().union(*map(index_words, texts))


@given(TEXTS)
def test_folding_in_place_keeps_every_letter_where_it_was(text: str) -> None:
    alike = folded_alike(text)
    if alike is not None:
        assert len(alike) == len(text)
        assert alike == folded(text)


def test_composed_and_decomposed_words_are_one() -> None:
    for text in ("Ångström", "한글", "ガギグ", "Ça"):
        assert index_words(unicodedata.normalize("NFD", text)) == index_words(unicodedata.normalize("NFC", text))


@pytest.mark.slow("asks for the category of every code point, and for the name of every letter")
def test_the_table_is_what_its_script_makes() -> None:
    """On the interpreter whose Unicode it was made from; newer ones know more letters, which are in no word."""
    spec = importlib.util.spec_from_file_location("word_table_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name, belongs in script.TABLES:
        known = codes(name)
        now = {code for low, high in script.ranges(belongs) for code in range(low, high + 1)}
        assert known <= now
        if unicodedata.unidata_version == "14.0.0":
            assert known == now


def test_every_letter_folds_alike_on_every_interpreter() -> None:
    letters = letters_of_the_table()
    digest = sha256("\0".join(map(folded, letters)).encode("utf-8", "surrogatepass")).hexdigest()
    assert digest == FOLDED


def test_the_letters_of_words_are_those_of_the_table() -> None:
    """Beyond the first plane an expression looks through all ranges for each code point: a share of them is taken."""
    looked_at = [*map(chr, range(FIRST_PLANE)), *map(chr, share(range(FIRST_PLANE, 0x110000), test=60_000))]
    letters = set(letters_of_the_table())
    assert pattern("[SMU]").findall("".join(looked_at)) == [letter for letter in looked_at if letter in letters]


def letters_of_the_table() -> list[str]:
    """In their order."""
    return [chr(code) for code in sorted(set().union(*(codes(name) for name in ("SPACED", "MARKS", "UNSPACED"))))]


def codes(table: str) -> set[int]:
    pairs = [tuple(int(end, 16) for end in pair.split("-")) for pair in getattr(message_text, table).split()]
    return {code for pair in pairs for code in range(pair[0], pair[-1] + 1)}
