"""The text of HTML pages, also of pages that were made to keep a reader busy or to show what nobody sees."""

from __future__ import annotations

from typing import Any

import pytest

from weft.runtime.tools.fetch_url import text_of_html


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("", ""),
        ("plain", "plain"),
        ("<p>a<p>b", "a\nb"),
        ("<title>T</title><p>a &amp; b&nbsp; c", "T\na & b c"),
        ("a<script>b</script>c", "ac"),
        ("a<SCRIPT x='>'>b</SCRIPT >c", "ac"),
        ("a<!-- <p>b --><!-->c", "ac"),
        ("a<!-- b", "a"),
        ("a<b", "a"),
        ("a < b > c", "a c"),
        ("<script><style></script>a", "a"),
        ("<svg><svg>a</svg>b", "b"),
        ("<script>a<body>b", "b"),
        ("<title>T<title>U</title>a</title>b", "TU\nab"),
        ("</script></p></title>a", "a"),
        ("&#60;script&#62;a", "<script>a"),
        ("a\x00b\u202ec", "a\x00b\u202ec"),
    ],
)
def test_a_page_gives_what_a_reader_would_see(page: str, text: str) -> None:
    assert text_of_html(page) == text


PAGE_CHARACTERS = 64 * 1024
HOSTILE = {
    "open tags": "<",
    "open tags with names": "<a ",
    "open comments": "<!--",
    "closed comments": "<!-->",
    "comments in comments": "<!--<!---->",
    "ends of nothing": "</script>",
    "beginnings without an end": "<script>",
    "nested divisions": "<div>",
    "titles": "<title>a",
    "one long name": "<a" + "b" * 1000,
    "declarations": "<!doctype [",
    "ampersands": "&",
    "half names of characters": "&am",
    "numbers of characters": "&#9",
    "blanks": " \t\r",
    "lines": "\n",
    "marks alone": ">",
}


class CountedPage(str):
    """A page that counts the characters that were looked through."""

    looked_at = 0

    def find(self, *arguments: Any) -> int:
        place = super().find(*arguments)
        self.looked_at += (place if place >= 0 else len(self)) - arguments[1]
        return place


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE)
def test_a_page_of_one_hostile_piece_is_looked_through_a_few_times_at_most(piece: str) -> None:
    many = piece * (PAGE_CHARACTERS // len(piece))
    for page in map(CountedPage, (many, many + ">", f"<body>seen<p>{many}")):
        text = text_of_html(page)
        assert len(text) <= len(page)
        assert page.looked_at <= 3 * len(page)
        assert ("seen" in text) == ("seen" in page)


@pytest.mark.parametrize("number", ["9" * 5000, "x" + "f" * 5000, "0" * 5000 + "65"])
def test_a_character_with_a_number_of_many_digits_is_none(number: str) -> None:
    text = text_of_html(f"a&#{number};b")
    assert (text[0], text[-1]) == ("a", "b")
