"""The text of an HTML page: what a reader would see of it, in lines.

The page is walked once, from one `<` to the next `>`: a page that was made to keep a parser busy takes no longer than
another one.
"""

from __future__ import annotations

import re
from html import unescape

_UNSEEN = frozenset("script style noscript template svg head iframe object".split())
_LINES = frozenset(
    "address article aside blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 "
    "header hr li main nav ol p pre section table td th tr ul".split()
)
_BLANKS = re.compile(r"[ \t\r\f\v\u00a0]+")
_LONG_NUMBER = re.compile(r"&#[0-9]{8,};?")
"""The number of no character; Python refuses to read one of many digits."""
_NAME = re.compile(r"/?[A-Za-z][A-Za-z0-9]{0,30}")


class _PageText:
    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.title: list[str] = []
        self._unseen: list[str] = []
        self._is_title = False

    def tag(self, name: str) -> None:
        is_end, plain = name.startswith("/"), name.lstrip("/")
        self._is_title = plain == "title" and not is_end
        if is_end and plain in self._unseen:
            del self._unseen[self._unseen.index(plain) :]
        elif not is_end and plain in _UNSEEN and len(self._unseen) < len(_UNSEEN):
            self._unseen.append(plain)
        elif plain == "body":
            self._unseen.clear()
        if plain in _LINES:
            self.pieces.append("\n")

    def text(self, text: str) -> None:
        if self._is_title:
            self.title.append(text)
        elif not self._unseen:
            self.pieces.append(text)


def text_of_html(page: str) -> str:
    """The title, then the text; blanks are joined and empty lines left out."""
    seen, at = _PageText(), 0
    while (start := page.find("<", at)) >= 0:
        seen.text(page[at:start])
        is_comment = page.startswith("<!--", start)
        end = page.find("-->" if is_comment else ">", start)
        if end < 0:
            at = len(page)
            break
        name = _NAME.match(page, start + 1)
        if name is not None:
            seen.tag(name[0].lower())
        at = end + (3 if is_comment else 1)
    seen.text(page[at:])
    text = unescape(_LONG_NUMBER.sub("\ufffd", "".join(seen.title) + "\n" + "".join(seen.pieces)))
    lines = (_BLANKS.sub(" ", line).strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)
