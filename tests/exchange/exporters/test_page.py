"""What people see of a page: every letter that was said, steps in groups, and where to find what."""

import io
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.exchange.exporters.stories import call, told, written
from tests.exchange.exporters.test_properties import VOID, check_page, exported
from tests.sizes import sized
from weft import Ledger
from weft.exchange.exporters.export import export
from weft.exchange.exporters.html import DEEPEST_NESTED, Html, rendered
from weft.exchange.exporters.turn_contents import visible
from weft.kernel.clock import iso_from_ms
from weft.kernel.enums import FileKind
from weft.ledger.api import prices_from
from weft.ledger.model import FileNote, ReasoningPart, TextPart, ToolUsePart

PATH = r"C:\Users\_me\.ssh"


class Texts(HTMLParser):
    """The texts of all elements that have a class or are of a kind, each with everything inside it."""

    def __init__(self, wanted: str) -> None:
        super().__init__()
        self._wanted, self._depth = wanted, 0
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = (dict(attrs).get("class") or "").split()
        if not self._depth and self._wanted in (tag, *classes):
            self.found.append("")
            self._depth = 1
        elif self._depth and tag not in VOID:
            self._depth += 1
        if self._depth and tag == "br":
            self.found[-1] += "\n"

    def handle_endtag(self, tag: str) -> None:
        if self._depth and tag not in VOID:
            self._depth -= 1

    def handle_data(self, data: str) -> None:
        if self._depth:
            self.found[-1] += data


def texts(page: str, wanted: str) -> list[str]:
    parser = Texts(wanted)
    parser.feed(page)
    parser.close()
    return parser.found


anything = st.text(st.characters(codec="utf-8") | st.sampled_from("\\_*`~#|<>&;[]()!-1. \n\t"), max_size=80)


@settings(max_examples=sized(test=30, prove=6000))
@given(anything)
@example(f"in {PATH}\n\n* a &amp; __init__.py  \n> | --- | <b>\n1) x\n")
def test_what_a_person_typed_is_shown_as_typed(text: str) -> None:
    page = written(Html(), told(1, ("user", text)))
    assert texts(page, "typed") == [visible(text)]


marks = set("`*~#>|+=<[]()!:\"'- \n\t\r")
LETTERS = st.sampled_from("abz019\\_.,;&$^%{}`*~#>|+=[]()!- \n")
LINES = st.sampled_from([
    "| a | b |\n", "|---|--:|\n", "| x | y | z | w |\n", "1. one\n", "07) two\n", "   deep\n", "> quote\n",
    "```sh -x\n", "# h #\n", "\n", "    code\n", "- b\n", f"{PATH}\n", "&amp; &lt;b&gt; &#65;\n", "===\n",
    "\\*a\\* **b** *c* ~~d~~ `e\\`\n", "a\\\nb\n",
])  # fmt: skip


@settings(max_examples=sized(test=50, prove=11250))
@given(st.lists(LINES | LETTERS, max_size=16).map("".join))
@example(">" * 130 + " far inside")
@example("| a |\n|---|\n| C:\\temp\\x | y |\n")
@example("<https://a.b/%41> &copy; \\[x\\]")
def test_of_an_answer_only_marks_disappear(text: str) -> None:
    """Letters that are no marks, in their order; a backslash before a pipe is the mark of a pipe in a table."""

    def letters(shown: str) -> str:
        return "".join(letter for letter in shown.replace("\\|", "|") if letter not in marks)

    page = written(Html(), told(1, ("assistant", text)))
    check_page(page)
    (shown,) = texts(page, "text")
    assert letters(shown) == letters(text)


def test_a_table_beside_a_numbered_list_is_a_table() -> None:
    html = rendered(f"1. {PATH}\n5. second\n\n| a | b |\n|---|--:|\n| 1 | 2 | 3 |\n| x\\|y | `p\\|q` |\n")
    assert (html.count("<tr>"), html.count("<td>"), html.count('<td class="right">')) == (3, 2, 2)
    assert texts(html, "td") == ["1", "2 | 3", "x|y", "p|q"]
    assert texts(html, "li") == [f"1. {PATH}\n", "5. second\n"]


def test_what_cannot_be_rendered_without_loss_is_shown_as_it_is() -> None:
    deep = ">" * 130 + " far inside"
    assert texts(rendered(deep), "pre") == [deep]


def turn_with_work() -> Any:
    calls = [call(i, "Bash", arguments={"command": f"run {i}"}) for i in range(9)]
    thinking = ("assistant", [ReasoningPart("\nWhere is it?\nI look."), TextPart("I look around.")])
    words = ("assistant", "Two things.\n\nThe first is done.")
    return told(1, ("user", "go"), thinking, *calls, words, call(20, "Edit", outcome="error"), ("assistant", "Done."))


def test_steps_are_grouped_and_labels_not_repeated() -> None:
    page = written(Html(), turn_with_work())
    check_page(page)
    (steps,) = texts(page, "steps")
    assert steps.startswith("9 steps: 9 Bash Where is it?")
    assert "I look around." in steps
    assert re.findall("<h4>(User|Assistant)</h4>", page) == ["User", "Assistant"]
    assert page.index('class="block steps"') < page.index("Two things.") < page.index(">Edit ") < page.index("Done.")


def test_the_first_line_of_thinking_is_shown_unless_nobody_wants_it() -> None:
    page = written(Html(), turn_with_work())
    assert 'class="block thinking"><summary>Thinking <span class="hint" dir="auto">Where is it?</span>' in page
    assert "Where is it?" not in written(Html(), turn_with_work(), thinking="none")


def test_turns_do_not_repeat_their_session_day_and_model() -> None:
    turns = [replace(told(i, ("user", "a"), model="m-1" if i < 3 else "m-2"), session="main") for i in (1, 2, 3)]
    facts = [re.sub("<[^>]*>", "", line) for line in re.findall(r"</h3><p[^>]*>(.*)</p>", written(Html(), *turns))]
    assert facts == ["2026-11-15 00:00:00 UTC · m-1", "00:00:00 UTC", "00:00:00 UTC · m-2"]


REMINDER = "<system-reminder>\nIt is <Monday>.\n</system-reminder>"
COMMAND = "<command-name>/review</command-name>\n<command-args>12</command-args>"


def test_what_a_tool_put_there_is_folded_and_marked() -> None:
    notice = replace(told(1, ("user", "<task-notification>\ndone\n</task-notification>")).items[0], source="event")
    sent = replace(told(1, ("user", "do *this*")).items[0], source="agent")
    turn = told(1, ("user", f"{REMINDER}\nfix it"), ("user", COMMAND), ("user", REMINDER))
    page = written(Html(), replace(turn, items=(*turn.items, notice, sent)))
    assert texts(page, "typed") == ["fix it", "/review 12"]
    folds = texts(page, "injected")
    assert [fold.partition(" It is")[0] for fold in (folds[0], folds[2])] == 2 * [
        "Put in by the tool, not typed system-reminder"
    ]
    assert REMINDER in folds[0]
    assert folds[1] == f"As the tool recorded it{COMMAND}"
    assert folds[3].startswith("Put in by the tool, not typed done")
    assert "<h4>Sent by another agent</h4>" in page
    assert "<em>this</em>" in page


def test_a_message_that_a_tool_made_alone_is_not_the_users() -> None:
    page = written(Html(), told(1, ("user", REMINDER)))
    assert "<h4>" not in page
    assert texts(page, "typed") == []


def test_notes_of_files_are_shown_once_and_not_beside_a_call_that_names_them() -> None:
    turn = told(1, ("user", "go"), ("assistant", "I write."), call(1, "Write", arguments={"file_path": "/a"}))
    notes = [FileNote(kind=FileKind.WRITTEN, path="/a"), FileNote(kind=FileKind.READ, path="/b")]
    page = written(Html(), replace(turn, files={turn.items[1].id: notes}))
    assert texts(page, "files") == ["read /b"]
    many = [FileNote(kind=FileKind.READ, path=f"/{i}") for i in range(9)]
    page = written(Html(), replace(turn, files={turn.items[0].id: many}))
    assert texts(page, "noted")[0].startswith("Notes of 9 files")


@pytest.fixture
def forked(ledger: Ledger) -> Ledger:
    usage = {"input_tokens": 1_000_000, "output_tokens": 2_000_000}
    first = ledger.record_turn(session="main", query="begin *here*", response="a", model="m-1", usage=usage)
    ledger.record_turn(session="main", query="go on", response="b")
    for i in range(DEEPEST_NESTED + 3):
        ledger.fork(first.id, label=f"side{i}")
        first = ledger.record_turn(session=f"side{i}", query=f"beside {i}", response="c")
        ledger.record_turn(session=f"side{i}", query=f"after {i}", response="d")
    return ledger


def test_a_page_begins_with_dates_cost_and_contents(forked: Ledger) -> None:
    prices = prices_from({"models": {"m-1": {"input": 1_000_000, "output": 2_000_000}}}, "test")
    out = io.BytesIO()
    export(forked, "main", "html", out, prices=prices)
    page = out.getvalue().decode()
    check_page(page)
    (about,) = re.findall(r"</h1>\n<p>(.*)</p>", page)
    turn = forked.turn("main~1")
    day = iso_from_ms(turn.started_at)[:10]
    assert re.fullmatch(rf"Session main · 2 turns · {day} .* UTC · 3,000,000 tokens · \$5.00", about)
    (listed,) = texts(page, "contents")
    assert listed.split("\n") == ["Contents: 2 turns", "", "1 begin *here*", "2 go on", ""]
    assert page.count(f'href="#t-{turn.id}"') == 2


def test_several_conversations_are_told_apart(ledger: Ledger) -> None:
    for label in ("one", "two"):
        ledger.record_turn(session=label, query=f"in {label}", response="a")
    page = exported(ledger, ["one", "two"], "html")
    check_page(page)
    assert sorted(texts(page, "name")) == ["Conversation one, 1 turn", "Conversation two, 1 turn"]
    assert "<p>2 turns · 2 conversations · " in page
    assert page.count("<h2>Another conversation</h2>") == 1


def test_a_turn_that_nobody_asked_for_is_dimmed_in_the_contents(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="typed", response="a")
    ledger.record_turn(session="main", query={"content": "by an agent", "source": "agent"}, response="b")
    assert texts(exported(ledger, "main", "html"), "unprompted") == ["2 by an agent"]


def test_a_tree_is_drawn_as_one(forked: Ledger) -> None:
    page = exported(forked, "main", "html", trees=True)
    check_page(page)
    assert "stretch" not in page.lower()
    tree = page[page.index('<nav class="contents"') : page.index("<main")]
    assert tree.count("<a ") == len(set(re.findall(r'href="(#t-\w+)"', tree))) == 2 + 2 * (DEEPEST_NESTED + 3)
    levels, deepest = 0, 0
    for mark in re.findall("<(/?)ol", tree):
        levels += -1 if mark else 1
        deepest = max(deepest, levels)
    assert deepest == DEEPEST_NESTED + 1
    assert re.search(r'begin \*here\*</a><ol class="prompts branch"><li class="name">Branch side0, 2 turns</li>', tree)
    assert f"Branch side{DEEPEST_NESTED}, 2 turns, from turn {DEEPEST_NESTED + 1}" in tree


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_nothing_is_headed_that_is_not_shown(form: str, ledger: Ledger) -> None:
    use = [ReasoningPart("hidden"), ToolUsePart("c1", "Bash", {})]
    calls = [{"id": "c1", "name": "Bash", "arguments": {}, "result": "x"}]
    ledger.record_turn(
        session="main", query="ask", response=[{"content": use}, {"content": []}, {"content": "said"}], tool_calls=calls
    )
    page = exported(ledger, "main", form, thinking="none", tools=False)
    assert re.findall(r"\*\*(\w+)\*\*|<h4>(\w+)</h4>", page) == (
        [("User", ""), ("Assistant", "")] if form == "markdown" else [("", "User"), ("", "Assistant")]
    )
