"""Exports that are cut, odd or hostile: what can be read is read, and everything is counted."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exchange.fixtures.opencode.sessions import (
    SESSION,
    assert_counted,
    assert_sound,
    dialogue,
    every_kind,
    export,
    newer_export,
    read,
    read_one,
    said,
    source_of,
    text,
    turns_of,
    user,
    write_export,
)
from tests.exchange.importers.test_opencode_containers import everything
from weft.exchange.importers.opencode import Opencode
from weft.ledger.model import TextPart


def read_bytes(folder: Path, data: bytes) -> tuple[list[Any], Any]:
    path = folder / "export.json"
    path.write_bytes(data)
    found, report = read(path)
    assert_counted(report)
    for each in found:
        assert_sound(each)
    return found, report


def test_a_cut_export_is_taken_as_far_as_it_goes(tmp_path: Path) -> None:
    data = write_export(tmp_path, export(dialogue())).read_bytes()
    cut = data[: data.index(b"Welcome.")]
    (found,), report = read_bytes(tmp_path, cut)
    assert found.session.id == SESSION
    assert [turn.key for turn in found.turns] == ["msg_01", "msg_03"]
    assert len(said(found.turns[1])) == 1
    assert report.damaged == 1
    assert found.turns[0].offset > 0


@pytest.mark.parametrize("share", range(0, 100, 7))
def test_an_export_cut_anywhere_is_counted(tmp_path: Path, share: int) -> None:
    data = orjson.dumps(export(everything()))
    read_bytes(tmp_path, data[: len(data) * share // 100])


def test_bytes_that_are_no_utf8_harm_only_their_own_part(tmp_path: Path) -> None:
    data = orjson.dumps(export(dialogue())).replace(b"A test.", b"A \xff test.")
    (found,), _ = read_bytes(tmp_path, data)
    assert [len(said(turn)) for turn in found.turns] == [2, 2]
    assert said(found.turns[0])[1].parts[-1] == TextPart("A \udcff test.")


def test_a_byte_order_mark_and_lone_surrogates_are_taken(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + orjson.dumps(export(dialogue())).replace(b"Thanks.", b"\\ud800!")
    (found,), report = read_bytes(tmp_path, data)
    assert report.damaged == 0
    assert said(found.turns[1])[0].parts == (TextPart("\ud800!"),)


@pytest.mark.parametrize(
    "message",
    [
        7,
        None,
        "words",
        [],
        {},
        {"info": None},
        {"info": [], "parts": {}},
        {"parts": []},
        {"info": {"role": "user"}, "parts": [3, None, []]},
    ],
)
def test_odd_messages_harm_no_others(tmp_path: Path, message: Any) -> None:
    document = export(dialogue())
    document["messages"].insert(2, message)
    (found,), _ = read_bytes(tmp_path, orjson.dumps(document))
    keys = [turn.key for turn in found.turns]
    assert "msg_01" in keys
    assert "msg_03" in keys


@pytest.mark.parametrize("value", [None, 7, "x", [], {}, True, 1.5, [1], {"a": 1}])
@pytest.mark.parametrize(
    "name", ["id", "role", "parentID", "time", "tokens", "error", "summary", "model", "path", "tools"]
)
def test_fields_of_another_type_are_never_fatal(tmp_path: Path, name: str, value: Any) -> None:
    document = export(dialogue())
    for message in document["messages"][1:3]:
        message["info"][name] = value
    read_bytes(tmp_path, orjson.dumps(document))


@pytest.mark.parametrize("value", [None, 7, "x", [], {}, True, [None], {"state": 1}])
@pytest.mark.parametrize(
    "name", ["type", "id", "text", "state", "files", "url", "source", "auto", "prompt", "tool", "callID"]
)
def test_parts_with_fields_of_another_type_are_never_fatal(tmp_path: Path, name: str, value: Any) -> None:
    document = export(everything())
    for message in document["messages"]:
        for part in message["parts"]:
            part[name] = value
    read_bytes(tmp_path, orjson.dumps(document))


def test_unknown_roles_parts_and_keys_are_kept_and_counted(tmp_path: Path) -> None:
    document = export(dialogue(), extra={"a": 1})
    document["messages"].append({"info": {"id": "msg_9", "role": "oracle"}, "parts": [text("Beware.")]})
    document["messages"][0]["parts"].append({"type": "hologram", "id": "prt_h"})
    (found,), report = read_bytes(tmp_path, orjson.dumps(document))
    assert report.unknown == {"message.oracle": 1, "part.hologram": 1, "export.extra": 1}
    assert report.kept["part.text"] == 1
    assert len(found.turns) == 2


def test_a_system_message_belongs_to_its_turn(tmp_path: Path) -> None:
    document = export(dialogue())
    document["messages"].insert(1, {"info": {"id": "msg_s", "role": "system"}, "parts": [text("Rules.")]})
    (found,), _ = read_bytes(tmp_path, orjson.dumps(document))
    assert [message.role.value for message in said(found.turns[0])] == ["user", "system", "assistant"]


def test_ids_that_repeat_give_unique_keys(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, *dialogue(), *dialogue())
    assert [turn.key for turn in turns] == [f"{SESSION}#{number}" for number in (0, 2, 4, 6)]


def test_an_export_without_messages_or_info_is_an_empty_session(tmp_path: Path) -> None:
    told = {"id": "ses_x", "time": {"created": 1}, "title": "t"}
    documents: list[Any] = [{"info": told}, {"messages": []}, {"messages": "no"}, {"info": told, "messages": None}]
    for document in documents:
        found, _ = read_bytes(tmp_path, orjson.dumps(document))
        assert all(each.turns == [] for each in found)


def test_deep_nesting_is_not_fatal(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    data = orjson.dumps(export(dialogue())).replace(b'"Thanks."', deep.encode())
    read_bytes(tmp_path, data)


def test_a_thousand_messages_are_read_in_order(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, *(user(f"msg_{number:04}", text(str(number))) for number in range(1000)))
    assert [turn.parent for turn in turns] == [None, *range(999)]


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inner for found in places(each, (*path, key)))]


BASES = [json.loads(json.dumps(document)) for document in (export(everything()), newer_export(every_kind()))]
"""Of versions 1 and 2."""
CHANGES = [
    st.lists(
        st.tuples(st.sampled_from([place for place in places(base) if place]), st.none() | ODD.map(lambda odd: (odd,))),
        min_size=1,
        max_size=6,
    )
    for base in BASES
]


@given(st.one_of(*(st.tuples(st.just(base), changes) for base, changes in zip(BASES, CHANGES, strict=True))))
def test_mutated_exports_are_never_fatal_and_always_counted(drawn: tuple[Any, list[Any]]) -> None:
    document = copy.deepcopy(drawn[0])
    for place, change in drawn[1]:
        target = document
        try:
            for key in place[:-1]:
                target = target[key]
            if change is None:
                del target[place[-1]]
            else:
                target[place[-1]] = change[0]
        except (KeyError, IndexError, TypeError):
            continue
    with TemporaryDirectory() as folder:
        read_bytes(Path(folder), json.dumps(document).encode())


@given(st.sampled_from(BASES), st.integers(0, 3000), st.binary(max_size=4))
def test_exports_with_bytes_put_in_are_never_fatal(base: Any, at: int, junk: bytes) -> None:
    data = orjson.dumps(base)
    with TemporaryDirectory() as folder:
        read_bytes(Path(folder), data[:at] + junk + data[at:])


def test_recognising_never_raises(tmp_path: Path) -> None:
    for number, data in enumerate((b"{" * 70_000, b'{"info":' * 10_000, b"SQLite format 3\0", bytes(range(256)) * 300)):
        path = tmp_path / f"{number}.json"
        path.write_bytes(data)
        Opencode().recognises(source_of(path))
        Opencode().is_part(source_of(path))


def test_reading_an_export_twice_gives_the_same(tmp_path: Path) -> None:
    path = write_export(tmp_path, export(everything()))
    assert read_one(path).turns == read_one(path).turns
