"""Texts for a page that trusts none of them: escaped as they are, or rendered from Markdown without HTML, images or
other schemes.

Nothing that a message says becomes an element, an attribute or an address by itself, except links to http, https and
mailto. What a page's policy would stop never comes so far.

Of Markdown only marks disappear. A backslash stays before what it escapes, since it may be part of a path; `_` is no
mark, since names have it; entities are not decoded; numbers of lists are those that were written; cells beyond the last
column of a table stand in the last one. A text that would lose a letter all the same is shown as it is, and so is one
whose tables have too many cells.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import cache
from html import escape, unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from weft.exchange.exporters.captions import visible
from weft.exchange.exporters.markdown_tables import bounded_table

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

LONGEST_RENDERED = 200_000
"""Longer texts are shown as they are."""
DEEPEST_RENDERED = 100
SCHEMES = ("http", "https", "mailto")
ALIGNMENTS = {f"text-align:{side}": side for side in ("center", "right")}
_MARKS = str.maketrans("", "", "`*~#>|+=<[]()!:\"'-")
"""Letters that marks of Markdown consist of."""
_TAG = re.compile(r"<[^<>]*>")
_ADDRESS = re.compile(r' (?:href|title)="([^"]*)"')


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


def typed(text: str) -> str:
    """What somebody typed, letter by letter; the style keeps its lines and spaces."""
    return f'<div class="typed" dir="auto">{shown(text)}</div>\n'


def rendered(text: str) -> str:
    """A message's Markdown as HTML; as it is where it cannot be rendered, or not without loss."""
    text = visible(text)
    if len(text) > LONGEST_RENDERED:
        return preformatted(text)
    try:
        html: str = _renderer().render(text)
    except (RecursionError, ValueError, IndexError):  # too many cells, or what a parser cannot read: shown as it is
        return preformatted(text)
    source, result = _letters(text), _letters(_text_in(html))
    is_lossless = source == result or not Counter(source) - Counter(result)  # links have their address elsewhere
    return html if is_lossless else preformatted(text)


def _letters(text: str) -> str:
    """Without marks and spaces; a backslash before a pipe may be the mark of a pipe in a table."""
    return "".join(text.replace("\\|", "|").translate(_MARKS).split())


def _text_in(html: str) -> str:
    """The text of elements, with the addresses and titles of links."""
    return unescape(_TAG.sub(lambda tag: " ".join(_ADDRESS.findall(tag[0])), html))


@cache
def _renderer() -> MarkdownIt:
    from markdown_it import MarkdownIt

    options = {"html": False, "breaks": True, "maxNesting": DEEPEST_RENDERED}
    markdown = MarkdownIt("commonmark", options).enable(["strikethrough", "table"])
    markdown.disable(["reference", "entity"])  # a definition would not be shown, and an entity as something else
    markdown.inline.ruler.at("escape", _escape)
    markdown.inline.ruler.at("emphasis", _emphasis)
    markdown.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    markdown.validateLink = is_safe_link  # type: ignore[method-assign]
    markdown.normalizeLink = lambda url: url  # type: ignore[method-assign]
    markdown.normalizeLinkText = lambda link: link  # type: ignore[method-assign]
    for name, rule in RENDER_RULES.items():
        markdown.add_render_rule(name, rule)
    return markdown


def _escape(state: StateInline, silent: bool) -> bool:
    """A backslash and the mark that it escapes, both shown."""
    escaped = state.src[state.pos : min(state.pos + 2, state.posMax)]
    if len(escaped) < 2 or escaped[0] != "\\" or escaped[1] not in string.punctuation:
        return False
    if not silent:
        state.pending += escaped
    state.pos += 2
    return True


def _emphasis(state: StateInline, silent: bool) -> bool:
    from markdown_it.rules_inline.emphasis import tokenize

    return state.src[state.pos] == "*" and tokenize(state, silent)


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A table; the parser drops cells beyond its last column, which are put into that one."""
    from markdown_it.rules_block.table import escapedSplit, getLine

    before = len(state.tokens)
    if not bounded_table(state, start, end, silent):
        return False
    rows: dict[int, list[Token]] = {}
    for token in state.tokens[before:]:
        if token.type == "inline" and token.map:
            rows.setdefault(token.map[0], []).append(token)
    for line, row in rows.items():
        cells = escapedSplit(getLine(state, line).strip())
        cells = cells[not cells[0] : len(cells) - (not cells[-1])]
        if len(cells) > len(row):
            row[-1].content = " | ".join(cell.strip() for cell in cells[len(row) - 1 :])
    return True


def _list_number(token: Token) -> str:
    """The number of a list's item, as it was written."""
    return f'<span class="number">{escape(token.info)}{escape(token.markup)}</span> ' if token.info else ""


def _ordered_list(*_: Any) -> str:
    return '<ol class="numbered">\n'


def _list_item(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    is_led = at + 1 < len(tokens) and tokens[at + 1].type == "paragraph_open"
    return "<li>" if is_led else f"<li>{_list_number(tokens[at])}"


def _paragraph(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    is_first = at > 0 and tokens[at - 1].type == "list_item_open"
    return ("" if tokens[at].hidden else "<p>") + (_list_number(tokens[at - 1]) if is_first else "")


def _paragraph_end(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    return "\n" if tokens[at].hidden else "</p>\n"


def _cell(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    side = ALIGNMENTS.get(str(tokens[at].attrGet("style")))
    return f'<{tokens[at].tag} class="{side}">' if side else f"<{tokens[at].tag}>"


def _image(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    """No image is fetched: a link with its words stands for it."""
    return f"[image: {_anchor(tokens[at], 'src')}{escape(tokens[at].content or 'image')}</a>]"


def _link(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    return _anchor(tokens[at], "href")


def _anchor(token: Token, name: str) -> str:
    address, title = str(token.attrGet(name) or ""), str(token.attrGet("title") or "")
    tooltip = f' title="{escape(title)}"' if title else ""
    return f'<a href="{escape(address)}"{tooltip} rel="noopener noreferrer nofollow" target="_blank">'


def _fence(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    language = tokens[at].info.strip()
    label = f'<span class="language">{escape(language)}</span>' if language else ""
    return f'<div class="code">{label}<pre><code>{escape(tokens[at].content)}</code></pre></div>\n'


def _code(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    return f'<div class="code"><pre><code>{escape(tokens[at].content)}</code></pre></div>\n'


RENDER_RULES = {
    "image": _image,
    "link_open": _link,
    "fence": _fence,
    "code_block": _code,
    "ordered_list_open": _ordered_list,
    "list_item_open": _list_item,
    "paragraph_open": _paragraph,
    "paragraph_close": _paragraph_end,
    "th_open": _cell,
    "td_open": _cell,
}
