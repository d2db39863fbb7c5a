"""Texts for a page that trusts none of them: escaped, or rendered from Markdown without HTML, images or other schemes.

Nothing that a message says becomes an element, an attribute or an address by itself, except links to http, https and
mailto. What a page's policy would stop never comes so far.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from html import escape, unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from weft.exchange.exporters.captions import visible

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

LONGEST_RENDERED = 200_000
"""Longer texts are shown as they are."""
SCHEMES = ("http", "https", "mailto")


def shown(text: str) -> str:
    """A text as the content of an element or of a quoted attribute."""
    return escape(visible(text))


def preformatted(text: str, kind: str = "") -> str:
    return f'<pre class="{kind}">{shown(text)}</pre>' if kind else f"<pre>{shown(text)}</pre>"


def is_safe_link(url: str) -> bool:
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        return False
    return scheme.lower() in SCHEMES and not any(letter <= " " for letter in url)


def rendered(text: str) -> str:
    """A message's Markdown as HTML; as it is where it cannot be rendered."""
    text = visible(text)
    if len(text) > LONGEST_RENDERED:
        return preformatted(text)
    try:
        made: str = _renderer(tables=True).render(text)
        if "<table>" in made and _words(text) - _words(unescape(made)):
            made = _renderer(tables=False).render(text)  # cells beyond a table's last column would be gone
    except (RecursionError, ValueError, IndexError):  # whatever a parser cannot read is shown as it is
        return preformatted(text)
    return made


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text))


@cache
def _renderer(*, tables: bool) -> MarkdownIt:
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("strikethrough")
    made.disable("reference")  # a definition would not be shown
    if tables:
        made.enable("table")
    made.validateLink = is_safe_link  # type: ignore[method-assign]
    for name, rule in (("image", _image), ("link_open", _link), ("fence", _fence), ("code_block", _code)):
        made.add_render_rule(name, rule)
    return made


def _image(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    """No image is fetched: a link with its words stands for it."""
    return f"[image: {_anchor(tokens[at], 'src')}{escape(tokens[at].content or 'image')}</a>]"


def _link(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    return _anchor(tokens[at], "href")


def _anchor(token: Token, name: str) -> str:
    address, title = str(token.attrGet(name) or ""), str(token.attrGet("title") or "")
    told = f' title="{escape(title)}"' if title else ""
    return f'<a href="{escape(address)}"{told} rel="noopener noreferrer nofollow" target="_blank">'


def _fence(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    language = tokens[at].info.strip()
    told = f'<span class="language">{escape(language)}</span>' if language else ""
    return f'<div class="code">{told}<pre><code>{escape(tokens[at].content)}</code></pre></div>\n'


def _code(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    return f'<div class="code"><pre><code>{escape(tokens[at].content)}</code></pre></div>\n'
