"""Session files that are cut, odd or hostile: what can be read is read, and everything is counted."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exchange.fixtures.pi.sessions import (
    SESSION,
    Line,
    assert_counted,
    assert_sound,
    assistant,
    call,
    dialogue,
    entry,
    header,
    lines,
    message,
    read,
    result,
    said,
    source_of,
    turns_of,
    user,
    words,
    write,
)
from tests.exchange.importers.test_pi_turns import DSH
from weft.exchange.importers.pi import Pi
from weft.exchange.importers.port import Report
from weft.ledger.model import TextPart


def read_bytes(folder: Path, data: bytes) -> tuple[Any, Report]:
    path = folder / "some.jsonl"
    path.write_bytes(data)
    found, report = read(path)
    assert_counted(report)
    for each in found:
        assert_sound(each)
    return (found[0] if found else None), report


def test_an_unfinished_last_line_is_left_for_the_next_time(tmp_path: Path) -> None:
    data = lines(*dialogue())
    found, report = read_bytes(tmp_path, data[:-40])
    assert report.open_tail
    assert [turn.closed for turn in found.turns] == [True, False]


def test_glued_broken_and_foreign_lines_harm_no_others(tmp_path: Path) -> None:
    parts = lines(*dialogue()).splitlines(keepends=True)
    odd = [b"not json\n", b"[1, 2]\n", b"7\n", b"\n", b"\0\0\n"]
    data = b"".join([*parts[:4], *odd, parts[4].rstrip(b"\n") + parts[5].rstrip(b"\n") + b'{"broken\n', parts[6]])
    found, report = read_bytes(tmp_path, data)
    assert [turn.key for turn in found.turns] == ["u1", "u2"]
    assert report.damaged == 4
    assert {problem.line for problem in report.problems} == {5, 6, 7, 10}


def test_bytes_that_are_no_utf8_and_lone_surrogates_are_taken(tmp_path: Path) -> None:
    data = lines(*dialogue()).replace(b"A test.", b"A \xff test.").replace(b"Thanks.", b"\\udc00!")
    found, report = read_bytes(tmp_path, data)
    assert report.damaged == 0
    assert said(found.turns[0])[1].parts[-1] == TextPart("A \udcff test.")
    assert said(found.turns[1])[0].parts == (TextPart("\udc00!"),)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    found, _ = read_bytes(tmp_path, b"\xef\xbb\xbf" + lines(*dialogue()))
    assert found.session.id == SESSION
    assert len(found.turns) == 2


def test_unknown_kinds_and_roles_are_kept_and_counted(tmp_path: Path) -> None:
    records = [
        *dialogue(),
        entry("compact", "x1", "a2", note="from elsewhere"),
        message("x2", "x1", "oracle", "Beware."),
        {"no": "type"},
        entry("credential_pin", "x3", "x2", provider="acme", hash="abc"),
    ]
    found, report = read_bytes(tmp_path, lines(*records))
    assert report.unknown == {"compact": 1, "message.oracle": 1, "untyped": 1}
    assert report.kept["credential_pin"] == 1
    assert len(found.turns) == 2


def test_what_hangs_on_an_unknown_record_hangs_on_its_parent(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, *dialogue(), entry("novelty", "x1", "a2"), user("u3", "x1", "On."))
    assert [(turn.key, turn.parent) for turn in turns][2:] == [("u3", 1)]


def test_entries_whose_parent_is_missing_are_roots(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, *dialogue(), user("u3", "nowhere", "Lost."))
    assert turns[2].parent is None


def test_an_entry_that_is_its_own_parent_is_a_root(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, *dialogue(), user("u3", "u3", "Myself."))
    assert turns[2].parent is None


def test_ids_that_repeat_give_unique_keys(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, *dialogue(), *dialogue()[3:], user("u1~2", "a2", "Sly."))
    assert len({turn.key for turn in turns}) == 5


def test_a_second_header_is_kept(tmp_path: Path) -> None:
    found, report = read_bytes(tmp_path, lines(*dialogue(), header(id="other")))
    assert found.session.id == SESSION
    assert report.kept["session"] == 1


def test_a_file_that_grows_while_it_is_read_gives_what_was_there(tmp_path: Path) -> None:
    path = write(tmp_path, *dialogue())
    report = Report("x")
    (transcript,) = Pi().read(source_of(path), report)
    with path.open("ab") as file:
        file.write(lines(user("u3", "a2", "More.")))
    assert [turn.key for turn in transcript.turns] == ["u1", "u2"]
    assert_counted(report)


def test_a_file_that_is_cut_while_it_is_read_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path, *dialogue())
    report = Report("x")
    (transcript,) = Pi().read(source_of(path), report)
    path.write_bytes(path.read_bytes()[:400])
    assert [turn.key for turn in transcript.turns] == ["u1", "u2"]
    assert report.problems
    assert_counted(report)


@pytest.mark.parametrize("value", [None, 7, "x", [], {}, True, 1.5, [1], {"a": 1}])
@pytest.mark.parametrize(
    "name", ["role", "content", "timestamp", "usage", "stopReason", "toolCallId", "isError", "details"]
)
def test_fields_of_another_type_are_never_fatal(tmp_path: Path, name: str, value: Any) -> None:
    records = [*dialogue(), assistant("a3", "a2", call("c1", "edit")), result("r1", "a3", "c1")]
    for record in records:
        if "message" in record:
            record["message"][name] = value
    read_bytes(tmp_path, lines(*records))


def test_deep_nesting_is_not_fatal(tmp_path: Path) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    read_bytes(
        tmp_path, lines(*dialogue()) + b'{"type": "custom", "data": ' + deep + b"}\n" + lines(user("u9", "a2", "x"))
    )


def test_thousands_of_branches_from_one_entry_are_read(tmp_path: Path) -> None:
    branches = [assistant(f"b{number}", "u1", "Again.") for number in range(2000)]
    turns = turns_of(tmp_path, *dialogue(), *branches)
    assert len(turns) == 2002
    assert words(turns[-1]) == ["What is this?", "Again."]


def test_branches_that_leave_a_very_long_answer_do_not_repeat_it(tmp_path: Path) -> None:
    long = [assistant(f"s{number}", f"s{number - 1}" if number else "u1", str(number)) for number in range(500)]
    again = [assistant(f"b{number}", "s400", "Again.") for number in range(100)]
    turns = turns_of(tmp_path, header(), user("u1", None, "Work."), *long, *again)
    assert len(turns) == 101
    assert (turns[1].key, turns[1].parent, words(turns[1])) == ("u1#b0", 0, ["Again."])


EVERY: list[Line] = [
    {"type": "title", "v": 1, "title": "T", "pad": ""},
    *dialogue(),
    entry("session_init", "i1", "a2", systemPrompt="S", tools=["read"], task="t"),
    assistant("a3", "i1", call("c1", "read", path="/a"), call("c2", "edit", input="*** Add File: x")),
    entry(
        "custom", "x0", "a3", customType="tool_execution_start", data={"toolCallId": "c1", "startedAt": "2026-01-02"}
    ),
    result("r1", "x0", "c1", details={"meta": {"source": {"type": "path"}}, "diagnostics": {"messages": ["m"]}}),
    result("r2", "r1", "c2", isError=True),
    entry("compaction", "k1", "r2", summary="S", firstKeptEntryId="u2", tokensBefore=1, details={}),
    assistant("a4", "k1", "On."),
    entry("branch_summary", "s1", "a1", fromId="a4", summary="B"),
    entry("custom_message", "x1", "s1", customType="c", content=[{"type": "image", "data": "A", "mimeType": "b"}]),
    entry("message", "b1", "x1", message={"role": "bashExecution", "command": "ls", "output": "o", "exitCode": 0}),
    entry("message", "f1", "b1", message={"role": "fileMention", "files": [{"path": "p", "content": "c"}]}),
    user("u3", "f1", "Go."),
    assistant("a5", "u3", "Half", stopReason="aborted"),
    entry("label", "l1", "a5", targetId="u1", label="x"),
    entry("session_info", "n1", "l1", name="N"),
    entry("model_usage", "g1", "n1", usage={}),
]

ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inner for found in places(each, (*path, key)))]


def mutated(records: list[Line], changes: list[tuple[tuple[Any, ...], Any]]) -> bytes:
    changed: Any = copy.deepcopy(records)
    for place, change in changes:
        target = changed
        try:
            for key in place[:-1]:
                target = target[key]
            if change is None:
                del target[place[-1]]
            else:
                target[place[-1]] = change[0]
        except (KeyError, IndexError, TypeError):
            continue
    return b"".join(orjson.dumps(record, option=orjson.OPT_PASSTHROUGH_SUBCLASS) + b"\n" for record in changed)


def changes_of(records: list[Line]) -> st.SearchStrategy[list[tuple[tuple[Any, ...], Any]]]:
    found = [place for place in places(records) if place]
    value = st.none() | ODD.filter(small).map(lambda value: (value,))
    return st.lists(st.tuples(st.sampled_from(found), value), min_size=1, max_size=6)


def small(value: Any) -> bool:
    """No number that the writer of these tests refuses."""
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


@given(changes_of(EVERY))
def test_mutated_sessions_are_never_fatal_and_always_counted(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    with TemporaryDirectory() as folder:
        read_bytes(Path(folder), mutated(EVERY, changes))


@given(changes_of(DSH))
def test_mutated_logs_of_dsh_are_never_fatal_and_always_counted(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    with TemporaryDirectory() as folder:
        read_bytes(Path(folder), mutated(DSH, changes))


@given(st.integers(0, 6000), st.binary(max_size=4), st.integers(0, 3000))
def test_sessions_with_bytes_put_in_or_taken_out_are_never_fatal(at: int, junk: bytes, gone: int) -> None:
    data = lines(*EVERY)
    with TemporaryDirectory() as folder:
        read_bytes(Path(folder), data[:at] + junk + data[at + gone :])


def test_recognising_never_raises(tmp_path: Path) -> None:
    for number, data in enumerate((b"{" * 70_000, b'{"type":"session","id":[]}\n', bytes(range(256)) * 300)):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(data)
        Pi().recognises(source_of(path))
