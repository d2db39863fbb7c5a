"""Mentions in texts: what is one, what is not, and how names are written and shown."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from weft.kernel.enums import ParticipantKind
from weft.kernel.message_text import (
    NAME_LIMIT,
    find_mentions,
    mentioned,
    plain_name,
    render_mentions,
    show_mentions,
    shown_name,
    write_mention,
)

ULID = "01K9ZZ0000000000000000ABCD"
X = f"@[x](agent:{ULID})"
MANY = 200_000
AWKWARD = st.sampled_from([*"[]\\`()@:~ \t\n\r\x0b\x85\u2028\u202e\u2067\u200f", "👩‍👩‍👧", "שלום", "аdmin", "]("])
NAMES = st.lists(AWKWARD | st.text(max_size=4), max_size=12).map("".join)


def names(text: str) -> list[str]:
    return [mention.name for mention in find_mentions(text)]


@pytest.mark.slow("reads awkward names in Markdown three times each")
@given(NAMES, st.sampled_from(list(ParticipantKind)), st.sampled_from([ULID, "local"]))
@example("a`b", ParticipantKind.AGENT, ULID)
@example("`" * 300, ParticipantKind.AGENT, ULID)
@example("x" * 199 + " y", ParticipantKind.USER, ULID)
def test_every_name_comes_back_as_it_was_written_wherever_the_mention_stands(
    name: str, kind: ParticipantKind, id: str
) -> None:
    written = write_mention(kind, id, name)
    expected = plain_name(name) or id
    for text in (written, f"a {written}, {written}!", f"`code` {written}\n~~~\n{written}\n~~~"):
        mentions = find_mentions(text)
        assert len(mentions) == (2 if text.startswith("a ") else 1)
        for mention in mentions:
            assert (mention.kind, mention.id, mention.name) == (kind, id, expected)
            assert text[mention.start : mention.end] == written
    assert len(expected) <= NAME_LIMIT
    assert write_mention(kind, id, expected) == written
    assert mentioned(f"{written} and {written}") == ((kind, id),)


@pytest.mark.parametrize(
    "text",
    [
        f"`{X}`",
        f"``a ` {X}``",
        f"a `b\n{X}\nc` d",
        f"```\n{X}\n```",
        f"~~~ python\r\n{X}\r\n~~~\r\n",
        f"```\r{X}\r```\r",
        f"````\n```\n{X}\n```\n````",
        f"   ```\n{X}",
        f"```\n{X}\n``` not closed\n{X}",
        f"> ```\n> {X}\n> ```",
        f"\\{X}",
        f"\\\\\\{X}",
        "@[x](tool:01K9ZZ0000000000000000ABCD)",
        "@[x](Agent:01K9ZZ0000000000000000ABCD)",
        "@[x](agent:)",
        "@[](agent:01K9ZZ0000000000000000ABCD)",
        f"@[x](agent:{'a' * 201})",
        "@[x](agent: helper)",
        "@[x](agent:helper )",
        "@[x](agent:a(b))",
        "@[x](agent:a\nb)",
        "@[x\ny](agent:01K9ZZ0000000000000000ABCD)",
        "@[x\ry](agent:01K9ZZ0000000000000000ABCD)",
        "@[x[y](agent:01K9ZZ0000000000000000ABCD)",
        "@[x] (agent:01K9ZZ0000000000000000ABCD)",
        "@x",
        "",
    ],
)
def test_code_escapes_and_unknown_forms_mention_nobody(text: str) -> None:
    assert names(text) == []
    assert render_mentions(text, lambda _: "!") == text


@pytest.mark.parametrize(
    "text",
    [
        f"` {X}",
        f"`` a ` {X} ```",
        f"\\`{X}\\`",
        f"`a\\` {X} \\`",
        f"a `b\n\n{X} c` d",
        f"a `b\r\r{X} c` d",
        f"```\ncode\n```\n{X}",
        f"``` a`b\n{X}\n",
        f"word ```\n{X}",
        f"\u2028```\n{X}\n",
        f"a\u2028```\n{X}\n",
        f"a\x0b```\n{X}",
        f"a\x85~~~\n{X}",
        f"\\\\{X}",
        f"    {X}",
        f"a\x0c\n{X}",
        f"mail{X}@x",
        f"@[y]({X})",
        f"@[@[{X}",
    ],
)
def test_whatever_is_no_code_mentions(text: str) -> None:
    assert names(text) == ["x"]
    assert find_mentions(text)[0].id == ULID


PIECES = st.sampled_from(
    ["`", "``", "```", "\\", "\n", "\r", "\r\n", " ", "a", "~~~", "\n\n", "\u2028", "M", "M", "   "]
)


@given(st.lists(PIECES, max_size=14).map("".join))
@example("a\\`M`")
@example("\\``M`")
@example("```\nM\n``` \t\nM")
def test_code_is_what_commonmark_takes_for_it(text: str) -> None:
    """Compared with a CommonMark parser that knows no block but paragraphs and fences."""
    parser = MarkdownIt("zero").enable(["fence", "backticks", "escape", "newline"])
    outside = 0
    for token in parser.parse(text):
        for child in token.children or ():
            outside += child.content.count("M") if child.type in ("text", "text_special") else 0
    marked = "".join(X if letter == "M" else letter for letter in text)
    escaped = sum(1 for _ in find_mentions(marked))
    assert escaped == outside - _escaped_outside(text, parser)


def _escaped_outside(text: str, parser: MarkdownIt) -> int:
    """How many `M` outside code stand behind a backslash that escapes a letter which cannot be escaped in Markdown, and
    that a mention takes as escaping its `@`."""
    at_signs = text.replace("M", "@")
    count = 0
    for token in parser.parse(at_signs):
        count += sum(1 for child in token.children or () if child.type == "text_special" and child.content == "@")
    return count


def test_a_thousand_mentions_are_found_in_order_and_everyone_once() -> None:
    ids = [f"{number:026d}" for number in range(1000)]
    text = " ".join(write_mention("agent", id, f"[n{id}]`") for id in ids)
    assert [id for _, id in mentioned(text + text)] == ids
    assert len(find_mentions(text + text)) == 2000


@pytest.mark.parametrize(
    "text",
    [
        "@[" * MANY,
        "@[a" * 100_000,
        "@[" + "\\]" * MANY,
        "@[x](agent:" * 100_000,
        "@[" + "`" * MANY,
        "@[ " + "` `` " * 50_000,
        "@[\n" + "```\n" * 100_000,
        "@[" + "\\" * MANY + X,
        "@[\r" * 100_000,
        "@[ " + "".join("`" * length + " " for length in range(600)),
    ],
)
def test_hostile_texts_are_read_at_once(text: str) -> None:
    assert len(find_mentions(text)) <= 1


def test_a_shown_name_cannot_reorder_the_line() -> None:
    hostile = "admin\u202e\u2066)nimda\u200f\u061c\u2069\u202c"
    assert shown_name(hostile) == "admin)nimda"
    assert show_mentions(f"ask {write_mention('agent', ULID, hostile)}: 5 > 3") == "ask @admin)nimda: 5 > 3"
    assert show_mentions(write_mention("agent", ULID, "\u202e")) == f"@{ULID}"
    hebrew = write_mention("user", "local", "שלום")
    assert show_mentions(f"{hebrew}: 1, 2") == "@שלום: 1, 2"
    assert show_mentions(f"{hebrew}: 1, 2", isolated=True) == "@\u2068שלום\u2069: 1, 2"
    assert show_mentions(X, isolated=True) == "@x"


@given(NAMES)
def test_no_shown_name_holds_a_line_break_or_an_open_direction(name: str) -> None:
    controls = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not any(unicodedata.bidirectional(letter) in controls for letter in shown_name(name))
    isolated = shown_name(name, isolated=True)
    assert isolated.count("\u2068") == isolated.count("\u2069") <= 1
    assert len((shown_name(name) or "-").splitlines()) == 1


def test_letters_that_look_alike_are_different_names_and_the_id_decides() -> None:
    latin, cyrillic = write_mention("agent", ULID, "admin"), write_mention("agent", ULID, "аdmin")
    assert latin != cyrillic
    assert mentioned(f"{latin} {cyrillic}") == ((ParticipantKind.AGENT, ULID),)
