"""The text of an HTML page: what a reader would see of it, in lines."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_UNSEEN = frozenset("script style noscript template svg head iframe object".split())
_LINES = frozenset(
    "address article aside blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 "
    "header hr li main nav ol p pre section table td th tr ul".split()
)
_BLANKS = re.compile(r"[ \t\r\f\v\u00a0]+")


class _TextOfPage(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.title = ""
        self._unseen: list[str] = []
        self._is_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_title = tag == "title"
        if tag in _UNSEEN:
            self._unseen.append(tag)
        elif tag == "body":
            self._unseen.clear()
        if tag in _LINES:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._is_title = False
        if tag in self._unseen:
            del self._unseen[self._unseen.index(tag) :]
        if tag in _LINES:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if self._is_title:
            self.title += data
        elif not self._unseen:
            self.pieces.append(data)


def text_of_html(page: str) -> str:
    """The title, then the text; blanks are joined and empty lines left out."""
    parser = _TextOfPage()
    parser.feed(page)
    parser.close()
    lines = (_BLANKS.sub(" ", line).strip() for line in (parser.title + "\n" + "".join(parser.pieces)).split("\n"))
    return "\n".join(line for line in lines if line)
