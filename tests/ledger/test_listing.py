"""Lists of sessions and turns: what they show, in a few statements however long they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tests.ledger.histories import grow, problems
from tests.ledger.imported import native_call, native_turn, take
from weft.kernel.clock import FixedClock
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.api.ledger import Ledger
from weft.ledger.imports.imported_turns import NativeMessage, NativeTurn
from weft.ledger.model import TextPart
from weft.ledger.read.session_list import (
    LONGEST_CHARS,
    ListedSession,
    SessionFilter,
    best_line,
    first_line,
    in_one_line,
    spoken,
)
from weft.ledger.read.sessions import project_of, short_labels
from weft.store.sqlite.connection import SqliteSql

FEW = 40


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many statements ran since it was last asked."""
    count = 0

    def counting(name: str) -> None:
        real = getattr(SqliteSql, name)

        def counted(*arguments: object) -> object:
            nonlocal count
            count += 1
            return real(*arguments)

        monkeypatch.setattr(SqliteSql, name, counted)

    def since() -> int:
        nonlocal count
        found, count = count, 0
        return found

    counting("fetch_row")
    counting("fetch_rows")
    return since


def listed(ledger: Ledger, *, limit: int | None = None, **wanted: object) -> list[ListedSession]:
    return ledger.listing().sessions(SessionFilter(**wanted), limit=limit).sessions  # type: ignore[arg-type]


def labels(ledger: Ledger, *, limit: int | None = None, **wanted: object) -> list[str]:
    return [found.session.label for found in listed(ledger, limit=limit, **wanted)]


def told_turn(key: str, *messages: tuple[str, str | None]) -> NativeTurn:
    """A turn of user messages, each with its source."""
    items = tuple(
        NativeMessage(role=MessageRole.USER, parts=(TextPart(text),), source=MessageSource(source) if source else None)
        for text, source in messages
    )
    return NativeTurn(key=key, records=(orjson.dumps([key, *messages]),), items=items)


def test_a_thousand_sessions_take_a_few_statements(disk: Ledger, statements: Callable[[], int]) -> None:
    for i in range(40):
        take(disk, f"{i:02}-few", native_turn(f"a{i}"), file=f"a{i}.jsonl", workspace=f"/srv/{i}")
    statements()
    assert len(listed(disk)) == 40
    few = statements()
    for i in range(160):
        take(disk, f"{i:03}-many", native_turn(f"b{i}"), file=f"b{i}.jsonl", workspace=f"/srv/{i}", title=f"t{i}")
    statements()
    assert len(listed(disk)) == 200
    assert statements() <= few + 4 <= FEW
    assert len(disk.sessions()) == 200
    assert statements() <= FEW
    assert len(disk.log()) == 200
    assert statements() <= FEW
    assert len(disk.listing().subjects([turn.id for turn in disk.log()])) == 200
    assert statements() <= FEW


def test_a_session_is_listed_with_what_it_is_about_and_cost(ledger: Ledger) -> None:
    first = native_turn("t1", started=1_000, ended=2_000, end=10)
    second = native_turn("t2", parent=0, started=3_000, ended=4_000, offset=10, end=20)
    take(ledger, "a-session", first, second, workspace="/home/dev/parser")
    take(ledger, "titled", native_turn("x"), title="A title", file="b.jsonl")
    take(ledger, "fresh", native_turn("y"), title="New session - 2026-07-28T18:19:59.340Z", file="c.jsonl")
    by_label = {found.session.label: found for found in listed(ledger)}
    found = by_label["a-session"]
    assert (found.depth, found.total_tokens, found.subject, found.project) == (2, 30, "ask t1", "parser")
    assert (by_label["titled"].session.title, by_label["titled"].subject) == ("A title", "")
    assert by_label["fresh"].subject == "ask y"


def test_a_fork_is_about_what_it_was_asked_itself(ledger: Ledger) -> None:
    grow(ledger, "main", "first", "second")
    ledger.fork("main~1", label="alt")
    ledger.create_session("empty")
    assert {found.session.label: found.subject for found in listed(ledger)} == {
        "main": "first",
        "alt": "first",
        "empty": "",
    }
    grow(ledger, "alt", "another way")
    assert {found.subject for found in listed(ledger)} == {"first", "another way", ""}


def test_subagents_stand_below_the_session_that_started_them(ledger: Ledger) -> None:
    take(ledger, "old", native_turn("o", started=1_000, ended=1_000))
    take(ledger, "new", native_turn("n", started=9_000, ended=9_000), file="b.jsonl")
    child = native_turn("c", calls=[native_call("k", spawned="old/child/grandchild")], started=5_000, ended=5_000)
    take(ledger, "old/child", child, file="c.jsonl", parent="old")
    take(ledger, "old/child/grandchild", native_turn("g"), file="d.jsonl", parent="old/child")
    assert labels(ledger) == ["new", "old"]
    assert ledger.listing().sessions(SessionFilter()).hidden == 2
    assert labels(ledger, subagents=True) == ["new", "old", "old/child", "old/child/grandchild"]
    assert [found.subagents for found in listed(ledger, subagents=True)] == [0, 1, 1, 0]
    found = ledger.listing().sessions(SessionFilter(subagents=True), limit=3)
    assert (len(found.sessions), found.hidden, found.further) == (3, 0, 1)


def test_sessions_are_chosen_by_origin_project_and_time(ledger: Ledger, clock: FixedClock) -> None:
    grow(ledger, "mine", "q")
    take(ledger, "a", native_turn("a", started=1_000, ended=1_000), workspace="/home/dev/Parser/")
    take(ledger, "b", native_turn("b", started=2_000, ended=2_000), file="b.jsonl", workspace="/home/dev")
    ledger.labels.archive("b")
    assert labels(ledger) == ["mine", "a"]
    assert labels(ledger, every=True) == ["b", "mine", "a"]
    assert labels(ledger, origin="weft") == ["mine"]
    assert labels(ledger, origin="toy") == ["a"]
    assert labels(ledger, origin="other") == []
    assert labels(ledger, project="parser") == labels(ledger, project="/home/dev/parser/") == ["a"]
    assert labels(ledger, project="~", every=True) == ["b"]
    assert labels(ledger, since=clock.now_ms()) == ["mine"]
    assert labels(ledger, limit=0) == []


def test_sessions_that_name_each_other_as_parents_are_listed_once(ledger: Ledger) -> None:
    take(ledger, "a", native_turn("a"), parent="b")
    take(ledger, "b", native_turn("b"), file="b.jsonl", parent="a")
    assert sorted(labels(ledger, subagents=True)) == ["a", "b"]


@pytest.mark.parametrize(
    ("workspace", "project"),
    [
        (None, ""), ("", ""), ("/", "/"), ("/srv/app", "app"), ("/srv/app/", "app"), ("/home/dev", "~"),
        ("/Users/dev/", "~"), ("/root", "~"), ("/home/dev/app", "app"), (r"C:\Users\dev", "~"),
        (r"C:\Users\dev\app", "app"), ("/home", "home"),
    ],
)  # fmt: skip
def test_a_project_is_the_last_part_of_a_path(workspace: str | None, project: str) -> None:
    assert project_of(workspace) == project


def test_a_turn_is_about_what_a_person_asked(ledger: Ledger) -> None:
    turns = [
        told_turn("a", ("<system-reminder>be kind</system-reminder>", "event"), ("mend it", "human")),
        told_turn("b", ("/clear", "human"), ("and now?", "human")),
        told_turn(
            "c", ("<command-name>/review</command-name><command-args>main</command-args>", "human"), ("x", "event")
        ),
        told_turn("d", ("<task-notification><summary>done</summary></task-notification>", "event")),
        told_turn("e"),
    ]
    take(ledger, "s", *turns)
    ids = [turn.id for turn in ledger.log()]
    assert sorted(ledger.listing().subjects(ids).values()) == ["/review main", "and now?", "done", "mend it"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  plain words ", "plain words"),
        ("<ide_opened_file>x.py</ide_opened_file>\nwhy?", "why?"),
        ("<a>1</a> <b at='2'>2</b> three", "three"),
        ("<task>do this</task>", "do this"),
        ("<!-- note -->\nbegin", "begin"),
        ("<bash-input>ls -l</bash-input>", "! ls -l"),
        ("<command-message>m</command-message>\n<command-name>/init</command-name>", "/init"),
        ("Somebody sent a message:\n<note from='x'>hello</note>\nIt was not typed.", "hello"),
        ("<unclosed> tag", "<unclosed> tag"),
        ("a < b", "a < b"),
        ("", ""),
    ],
)
def test_tags_that_a_tool_put_around_or_before_the_words_are_left_out(text: str, words: str) -> None:
    assert spoken(text) == words


def test_a_subject_is_what_was_said_in_one_line() -> None:
    assert first_line("\n  \n  hello \n there") == "hello"
    assert in_one_line("\n  \n  hello: \n\t there") == "hello: there"
    assert best_line(["", "<x></x>", "second part\nmore"]) == "second part more"
    assert best_line(["Ran `ls`\n```\na b\n```"]) == "Ran `ls`"
    assert spoken("<a></a>" * 1000).startswith("<a>")


@pytest.mark.parametrize("text", ["word " * 1000, "word\n" * 1_000_000, "w" * 5_000_000, "w" + " " * 5000 + "w"])
def test_a_subject_is_cut_with_a_mark_however_long_the_text_is(text: str) -> None:
    line = in_one_line(text)
    assert line.endswith("…")
    assert len(line) <= LONGEST_CHARS + 1
    assert in_one_line(" " * 5000 + "w") == ""


def test_a_subagent_is_as_far_as_its_newest_turn(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "q")
    ledger.create_session("sub", parent_session="main", parent_turn_id=turn)

    def status() -> str | None:
        with ledger._store.read() as txn:
            (shown,) = txn.sql.fetch_row("SELECT task_status FROM sessions WHERE label = 'sub'") or ("",)
        (told,) = (session.task_status for session in ledger.sessions() if session.label == "sub")
        assert shown == told == ledger.session("sub").task_status
        return told

    assert status() == "pending"
    writer = ledger.begin_turn(session="sub")
    assert status() == "running"
    writer.fail("no spade")
    assert status() == "failed"
    grow(ledger, "sub", "dig again")
    assert status() == "completed"
    ledger.record_turn(session="sub", query="dig on", error="a stone")
    assert status() == "failed"
    ledger.move_head("sub", new=None)
    assert status() == "pending"


def test_what_a_tool_gave_before_any_answer_is_a_query(ledger: Ledger) -> None:
    asked = [{"role": "tool", "content": "42"}, {"role": "user", "content": "so?"}]
    answer: list[Any] = [{"role": "assistant", "content": "a"}, {"role": "tool", "content": "43"}, "b"]
    turn = ledger.record_turn(session="main", query=asked, response=answer)
    with ledger._store.read() as txn:
        (shown,) = txn.sql.fetch_row("SELECT query_message_ids FROM turns") or ("",)
    assert orjson.loads(shown) == [message.id for message in ledger.messages(turn.id)[:2]]


def test_files_are_told_for_many_messages_at_once(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("t"))
    (turn,) = ledger.log()
    (notes,) = ledger.listing().files(message.id for message in ledger.messages(turn.id)).values()
    assert [(note.kind, note.path, note.line_start, note.line_end) for note in notes] == [
        (FileKind.READ, "notes.md", 1, 2)
    ]


def test_long_labels_are_cut_to_what_sets_them_apart() -> None:
    one, two = "01a01d30-1823-7000-b6cd-4da3f0a051a5", "01a01d30-1823-7001-8bad-40a85ae58ccc"
    three = "f70db4c5-8eb1-4c18-b759-7c6c08c0f868"
    names = short_labels([one, two, three, f"{three}/agent-a123456789abcdef0", "main", "a-name-of-three-words"])
    assert names == {
        one: "01a01d30-1823-7000",
        two: "01a01d30-1823-7001",
        three: "f70db4c5",
        f"{three}/agent-a123456789abcdef0": "f70db4c5/agent-a1",
        "main": "main",
        "a-name-of-three-words": "a-name-of-three-words",
    }


def test_imported_sessions_without_a_date_come_last_and_empty_ones_are_counted(ledger: Ledger) -> None:
    take(ledger, "old", native_turn("t1", started=1_000_000_000_000, end=1), file="old")
    take(ledger, "undated", native_turn("u1", end=1), file="undated")
    take(ledger, "told", native_turn("v1", end=1), file="told", created=1_100_000_000_000)
    take(ledger, "empty", file="empty", title="0b0e2c2e-6f0e-4b0e-9f0e-0b0e2c2e6f0e")
    ledger.record_turn(session="main", query="q", response="r")
    found = ledger.listing().sessions(SessionFilter())
    assert [listed.session.label for listed in found.sessions] == ["main", "told", "old", "undated"]
    assert [listed.session.time_known for listed in found.sessions] == [True, True, True, False]
    assert found.empty == 1
    first = ledger.listing().sessions(SessionFilter(every=True), limit=3)
    second = ledger.listing().sessions(SessionFilter(every=True), limit=3, after=first.next)
    labels = [listed.session.label for page in (first, second) for listed in page.sessions]
    assert (labels[:3], set(labels[3:])) == (["main", "told", "old"], {"undated", "empty"})
    assert [session.label for session in ledger.sessions()] == labels
    assert problems(ledger) == []


def test_a_session_that_gets_a_date_later_is_dated(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("t1", end=1), file="s")
    take(
        ledger, "s", native_turn("t1", end=1), native_turn("t2", parent=0, started=1_000, ended=2_000, end=2), file="t"
    )
    session = ledger.session("s")
    assert (session.created_at, session.updated_at, session.time_known) == (1_000, 2_000, True)
    ledger.record_turn(session="s", query="q", response="r")
    assert ledger.session("s").updated_at > 2_000
    assert problems(ledger) == []
