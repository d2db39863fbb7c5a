"""Exports of any history: they parse back, keep the rules of their form, and leave out nothing that can be seen."""

import io
import json
import re
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import weft
from tests.exchange.exporters.histories import histories, live, messages
from tests.exchange.exporters.rules import check_anthropic, check_openai
from tests.exchange.exporters.stories import call, told, written
from tests.ledger.histories import PROPERTY_SCALE
from tests.sizes import sized
from weft import Ledger
from weft.exchange.exporters.anthropic import Anthropic
from weft.exchange.exporters.export import export
from weft.exchange.exporters.html import Html
from weft.exchange.exporters.markdown import Markdown
from weft.exchange.exporters.openai import OpenAi
from weft.ledger.model import ReasoningPart, TextPart

VOID = {"meta", "link", "br", "hr", "img", "input"}
letters = st.text(st.sampled_from("abcxyz <>`~#*_[]()|-:.!\\\n\t'\"=/+12&;"), max_size=60)


def exported(ledger: Ledger, what: Any, form: str, **wishes: Any) -> str:
    out = io.BytesIO()
    export(ledger, what, form, out, **wishes)
    return out.getvalue().decode()


def entries_of(text: str) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    assert len({entry["uuid"] for entry in found}) == len(found)
    return {entry["uuid"]: entry for entry in found}


class Balanced(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [str(value) for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(text: str) -> None:
    page = Balanced()
    page.feed(text)
    page.close()
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name, value)
        if name == "href":
            assert re.match(r"#|https?:|mailto:|data:,$", value or ""), value
        if name == "src":
            assert re.match(r"data:image/(png|jpeg|gif|webp|bmp);base64,", value or ""), value


@settings(max_examples=5 * PROPERTY_SCALE)
@given(histories)
def test_every_form_of_every_history_parses_back(history: list[dict[str, Any]]) -> None:
    with weft.open(":memory:") as ledger:
        labels = live(ledger, history)
        for label in labels:
            for context in (False, True):
                check_openai(json.loads(exported(ledger, label, "openai", context=context)))
                check_anthropic(json.loads(exported(ledger, label, "anthropic", context=context)))
                whole = exported(ledger, label, "anthropic", context=context, thinking="all")
                check_anthropic(json.loads(whole), signed=False)
                check_page(exported(ledger, label, "html", context=context))
                exported(ledger, label, "markdown", context=context)
        if labels:
            check_page(exported(ledger, labels, "html"))
            check_page(exported(ledger, labels, "html", trees=True))


@settings(max_examples=7 * PROPERTY_SCALE)
@given(histories)
def test_entries_of_a_log_are_linked_as_their_threads_are(history: list[dict[str, Any]]) -> None:
    with weft.open(":memory:") as ledger:
        labels = live(ledger, history)
        if not labels:
            return
        together = entries_of(exported(ledger, labels, "jsonl"))
        in_trees = entries_of(exported(ledger, labels, "jsonl", trees=True))
        for label in labels:
            said = [message for message in ledger.thread(label).messages if message.role in ("user", "assistant")]
            wanted = [message.id for message in said]
            alone = entries_of(exported(ledger, label, "jsonl"))
            assert list(alone) == wanted
            for entries in (alone, together, in_trees):
                chain = [wanted[-1]] if wanted else []
                while chain and (parent := entries[chain[-1]].get("parentUuid")):
                    chain.append(parent)
                assert chain[::-1] == wanted
            for message in said:
                assert alone[message.id]["message"]["content"] == message.text
                assert None not in alone[message.id].values()


@settings(max_examples=sized(test=25, prove=5025))
@given(letters, letters, letters)
def test_every_word_is_in_the_pages(query: str, answer: str, output: str) -> None:
    made = call(1, arguments={"command": output}, result=output)
    turn = told(1, ("user", query), made, ("assistant", [ReasoningPart(answer), TextPart(answer)]))
    pages = {"markdown": written(Markdown(), turn), "html": written(Html(), turn)}
    check_page(pages["html"])
    pages["html"] = unescape(pages["html"])
    for text in (query, answer, output):
        for word in re.findall(r"[a-z]{2,}", re.sub(r"&\w*;", "", text)):
            for form, page in pages.items():
                assert word in page, (form, word)


@settings(max_examples=sized(test=25, prove=5025))
@given(st.lists(letters, min_size=1, max_size=4))
def test_no_message_breaks_out_of_a_markdown_page(texts: list[str]) -> None:
    """Whatever it says: a reader of Markdown finds the same headings, and no HTML of anybody's."""
    turns = [told(i, ("user", text), call(i, result=text), ("assistant", text)) for i, text in enumerate(texts, 1)]
    env: dict[str, Any] = {}
    tokens = MarkdownIt("commonmark", {"html": True}).parse(written(Markdown(), *turns), env)
    assert not env.get("references")
    assert not [t for outer in tokens for t in (outer, *(outer.children or ())) if t.type.startswith("html")]
    headings = [token.content for outer, token in pairwise(tokens) if outer.type == "heading_open" and outer.level == 0]
    assert headings == ["All", *(f"Turn {i}" for i in range(1, len(texts) + 1))]
    spoken = [token.content for token in tokens if token.type == "inline" and token.level == 1]
    assert spoken.count("**User**") == spoken.count("**Assistant**") == len(texts)


@settings(max_examples=sized(test=25, prove=5025))
@given(st.lists(messages | st.sampled_from([call(1), call(2), call(1, outcome=None)]), max_size=8))
def test_lists_of_any_messages_keep_the_rules_of_the_apis(steps: list[Any]) -> None:
    said = [step if not isinstance(step, dict) else (step["role"], step["content"]) for step in steps]
    for turns in ([told(1, *said)], [told(i, one) for i, one in enumerate(said, 1)]):
        if turns:
            check_openai(json.loads(written(OpenAi(), *turns)))
            check_anthropic(json.loads(written(Anthropic(), *turns)))


@pytest.mark.parametrize("form", ["markdown", "html", "jsonl", "openai", "anthropic"])
def test_the_same_ledger_gives_the_same_bytes(form: str) -> None:
    with weft.open(":memory:") as ledger:
        ledger.record_turn(session="main", query="a", response="b", tool_calls=[{"name": "x", "result": [1]}])
        assert exported(ledger, "main", form) == exported(ledger, "main", form)
