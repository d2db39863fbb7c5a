"""The parts of a room at a terminal: keys, the line that is typed, what is drawn below, and completions."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.surfaces.talking import screen_of
from weft.chat.room_stream import (
    RoomAnswerEnded,
    RoomAnswerText,
    RoomFollowingEnded,
    RoomMessageAdded,
    RoomParticipantChanged,
    RoomStateChanged,
    Suggestion,
)
from weft.ledger.api import Participant, RoomMessage
from weft.ledger.model import TextPart
from weft.surfaces.cli.chat.room_terminal import (
    ROOM_COMMANDS,
    BottomLines,
    Drawing,
    RoomPrinter,
    RoomView,
    room_completions,
)
from weft.surfaces.cli.chat.rooms import name_style
from weft.surfaces.cli.chat.typed_input import Edit, Key, KeyReader, LineEditor, Typed
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.screen import Screen
from weft.surfaces.plain_text import width

KEYS = [*Key, Typed("a"), Typed("ä b"), Typed("字"), Typed('@"x'), Typed("/"), Typed("one\ntwo")]
SCREEN = Screen(color=False, unicode=True, terminal=True, columns=40, rows=20, paging=False)


def suggest(letters: str) -> list[Suggestion]:
    names = (("agent", "helper", True), ("user", "bob", True), ("agent", "two words", False), ("user", "helga", False))
    return [
        Suggestion(kind=kind, id=name, name=name, is_participant=is_participant)
        for kind, name, is_participant in names
        if name.startswith(letters)
    ]


def edited(data: str) -> tuple[LineEditor, list[Edit]]:
    editor = LineEditor(lambda before: room_completions(before, suggest))
    edits = [editor.press(key) for key in KeyReader().feed(data.encode())]
    return editor, [edit for edit in edits if edit is not None]


@pytest.mark.parametrize(
    ("data", "text", "cursor"),
    [
        ("abc\x1b[D\x1b[DX", "aXbc", 2),
        ("one two\x17", "one ", 4),
        ("one two\x1bb\x0b", "one ", 4),
        ("abc\x01\x04", "bc", 0),
        ("abc\x02\x15", "c", 0),
        ("ab\x7f\x7f\x7fc", "c", 1),
        ("\x1b[200~a\r\nb\x1b[201~!", "a\nb!", 4),
        ("a\\\rb", "a\\\nb", 4),
        ("a\x1b\rb", "a\nb", 3),
        ("x\x1b[99;99Qy\x1bOZz", "xyz", 3),
        ("字\x1b[D.", ".字", 1),
        ("@he\t", "@helper ", 8),
        ("hi @he\t\t", "hi @helga ", 10),
        ("hi @two\t", 'hi @"two words" ', 16),
        ('hi @"two w\tx', 'hi @"two words" x', 17),
        ("me@he\t", "me@he", 5),
        ("/rem\tb\t", "/remove bob", 11),
        ("/add \t", "/add two words", 14),
        ("/invite h\t", "/invite helga", 13),
        ("/nothing \t", "/nothing ", 9),
    ],
)
def test_keys_edit_the_line(data: str, text: str, cursor: int) -> None:
    editor, edits = edited(data)
    assert (editor.text, editor.cursor, edits) == (text, cursor, [])


def test_keys_ask_for_more_than_editing() -> None:
    assert edited("hi\r\x03\x0c")[1] == [Edit.SUBMIT, Edit.INTERRUPT, Edit.REDRAW]
    assert edited("\x04")[1] == [Edit.END]
    assert edited('"""a\rb"""\r')[1] == [Edit.SUBMIT]


def test_earlier_lines_come_back_and_the_typed_one_is_kept() -> None:
    editor, _ = edited("")
    for line in ("one", "two", "two", ""):
        editor.press(Typed(line))
        editor.take()
    editor.press(Typed("thr"))
    texts = []
    for key in (Key.UP, Key.UP, Key.UP, Key.DOWN, Key.DOWN, Key.DOWN):
        editor.press(key)
        texts.append(editor.text)
    assert texts == ["two", "one", "one", "two", "thr", "thr"]


@given(st.binary(max_size=60), st.lists(st.integers(1, 60), max_size=5))
def test_bytes_mean_the_same_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    reader, places = KeyReader(), [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(places)]
    keys = [key for piece in pieces for key in reader.feed(piece)]

    def letters(all_keys: list[Key | Typed]) -> list[Key | str]:
        return [one for key in all_keys for one in (key.text if isinstance(key, Typed) else [key])]

    assert letters(keys) == letters(list(KeyReader().feed(data)))


@given(st.lists(st.sampled_from(KEYS), max_size=30), st.integers(8, 60))
def test_the_line_always_fits_and_the_cursor_is_in_it(keys: list[Key | Typed], columns: int) -> None:
    editor = LineEditor(lambda before: room_completions(before, suggest))
    for key in keys:
        editor.press(key)
        assert 0 <= editor.cursor <= len(editor.text)
        shown, column = editor.shown(columns)
        assert 0 <= column <= width(shown) <= columns
        assert "\n" not in shown


@given(
    st.lists(
        st.one_of(
            st.lists(st.text("abc", max_size=5), max_size=3).map(lambda lines: ("above", lines)),
            st.lists(st.text("xyz", max_size=5), min_size=1, max_size=4).map(lambda lines: ("draw", lines)),
        ),
        max_size=12,
    )
)
def test_what_is_written_for_good_stands_above_what_is_drawn_last(steps: list[tuple[str, list[str]]]) -> None:
    raw: list[str] = []
    bottom, kept, drawn = BottomLines(raw.append), list[str](), list[str]()
    for what, lines in steps:
        if what == "above":
            bottom.above(lines)
            kept += lines
        else:
            bottom.draw(Drawing(lines, len(lines) // 2, 0))
            drawn = lines
    assert screen_of("".join(raw)).rstrip("\n") == "\n".join([*kept, *drawn]).rstrip("\n")
    bottom.erase()
    assert screen_of("".join(raw)).rstrip("\n") == "\n".join(kept).rstrip("\n")


def participant(name: str, **fields: object) -> Participant:
    given: dict[str, object] = {"agent_id": name, "user_id": None, "kind": "agent", "status": "inactive", **fields}
    common = {"id": f"p-{name}", "conversation_id": "c", "name": name, "added_at": 0, "added_by": "local"}
    return Participant(**{"is_removed": False, **common, **given})  # type: ignore[arg-type]


def text(name: str, start: int, piece: str) -> RoomAnswerText:
    ids = {"participant": f"p-{name}", "agent": name, "turn": f"t-{name}"}
    return RoomAnswerText(position=1, name=name, start=start, text=piece, **ids)


def test_answers_are_drawn_each_by_itself_and_fit_on_the_screen() -> None:
    view = RoomView()
    for name in ("helper", "reviewer", "quiet"):
        assert view.take(RoomParticipantChanged(position=1, participant=participant(name, status="thinking"))) == []
    view.take(text("helper", 0, "one \x1b[31m"))
    view.take(text("reviewer", 0, "words and words " * 20))
    view.take(text("helper", 4, "two"))
    lines = view.drawn_lines(SCREEN, 40, 7)
    assert lines[0] == "helper │ one two"
    assert lines[1].startswith("reviewer │ ")
    assert lines[-1] == "quiet …"
    assert len(lines) <= 7
    assert all(width(line) < 40 for line in lines)
    ended = RoomAnswerEnded(position=1, participant="p-helper", agent="helper", name="helper", turn="t-helper")
    view.take(ended)
    gone = participant("reviewer", is_removed=True)
    view.take(RoomParticipantChanged(position=1, participant=gone))
    assert "helper │" not in "".join(view.drawn_lines(SCREEN, 40, 7))
    (line,) = view.take(RoomStateChanged(position=1, title="deeds", status="active"))
    assert "deeds" in str(line)
    view.take(RoomFollowingEnded(position=1, reason="left"))
    assert not any("│" in line for line in view.drawn_lines(SCREEN, 40, 7))


def test_a_name_has_one_colour_and_names_differ() -> None:
    assert name_style("Helper") == name_style("helper")
    assert len({name_style(f"name {number}") for number in range(50)}) > 5


def test_every_command_is_completed() -> None:
    assert len(room_completions("/", suggest)) == len(ROOM_COMMANDS)


def test_an_answer_that_is_posted_is_drawn_no_longer_in_the_same_write() -> None:
    writes: list[str] = []
    printer = RoomPrinter(Call())
    printer._bottom = BottomLines(writes.append)
    printer.show(
        RoomAnswerText(position=1, participant="p", agent="a", name="helper", turn="t", start=0, text="Half of it")
    )
    assert "helper" in writes[-1]
    message = RoomMessage(
        id="m", conversation_id="c", position=1, kind="participant", content=(TextPart("All of it"),),
        text="All of it", author_participant_id="p", author_kind="agent", author_id="a", author_name="helper",
        mentions=(), notice=None, meta={"turn": "t"}, posted_at=0,
    )  # fmt: skip
    printer.show(RoomMessageAdded(position=1, message=message))
    assert len(writes) == 2
    assert "All of it" in writes[-1]
    assert "Half of it" not in writes[-1]
