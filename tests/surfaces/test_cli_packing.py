"""`weft pack` and `weft archive`: out of the way, not out of the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft as library
from tests.ledger.histories import grow_at_once
from tests.surfaces.shell import Shell

LONG = "much the same as the sentence before it. " * 260


def test_a_tree_is_packed_and_unpacked_and_reads_the_same(weft: Shell, folder: Path) -> None:
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        grow_at_once(ledger, "main", *(f"{i} {LONG}" for i in range(40)))
    before = weft("show", "main").out
    would = weft.json("pack", "main", "--dry-run")
    done = weft.json("pack", "main")
    assert (
        (done["contents"], done["packed_bytes"])
        == (would["contents"], would["packed_bytes"])
        == (80, done["packed_bytes"])
    )
    assert done["file_bytes_after"] < done["file_bytes_before"] * 0.6
    assert weft("show", "main").out == before
    assert weft("verify").out == "no problems\n"
    answer = weft("pack", "--undo", "main")
    assert answer.out.startswith("unpacked 80 contents of 1 tree")
    assert weft("show", "main").out == before


def test_a_pack_says_what_it_did_and_how_to_undo_it(weft: Shell) -> None:
    weft.record(LONG)
    answer = weft("pack", "main")
    assert answer.out.startswith("packed 2 contents of 1 tree: ")
    assert "undo: weft pack --undo main" in answer.err
    assert "packed already" in weft("pack", "main").err


def test_nothing_cold_is_said_to_be_nothing(weft: Shell) -> None:
    weft.record(LONG)
    answer = weft("pack")
    assert answer.code == 0
    assert "nothing is colder than 90d" in answer.err
    assert weft("pack", "--undo", "--dry-run").code == 2


def test_archived_sessions_are_hidden_kept_and_addressable(weft: Shell) -> None:
    weft.record("q")
    weft("fork", "main", "alt")
    assert weft("archive", "alt", "main").out == "alt is archived\nmain is archived\n"
    assert weft.json("sessions") == []
    assert {found["label"] for found in weft.json("archive", "--list")} == {"alt", "main"}
    assert {found["label"] for found in weft.json("sessions", "--all")} == {"alt", "main"}
    assert weft("show", "alt").code == 0
    assert weft("fork", "alt", "again").code == 0
    refused = weft("record", "--session", "alt", "--query", "q")
    assert refused.code == 4
    assert weft("archive", "--undo", "alt").out == "alt is active\n"
    assert weft("record", "--session", "alt", "--query", "q", "--response", "r").code == 0


def test_a_tree_is_archived_with_every_session_in_it(weft: Shell) -> None:
    weft.record("q")
    weft("fork", "main", "alt")
    weft.record("apart", session="apart")
    would = weft.json("archive", "main", "--tree", "--dry-run")
    assert {found["label"] for found in would} == {"main", "alt"}
    assert {found["label"] for found in weft.json("archive", "main", "--tree")} == {"main", "alt"}
    assert [found["label"] for found in weft.json("sessions")] == ["apart"]
    assert {found["label"] for found in weft.json("archive", "main", "--tree", "--undo")} == {"main", "alt"}


def test_sessions_at_rest_are_archived(weft: Shell) -> None:
    weft.record("q")
    assert weft.json("archive", "--older-than", "90d") == []
    assert [found["label"] for found in weft.json("archive", "--older-than", "0s")] == ["main"]
    assert weft("archive", "--list").out.startswith("main\t")


def test_archiving_nothing_is_refused_and_an_empty_list_is_said(weft: Shell) -> None:
    assert weft("archive").code == 5
    assert "nothing is archived" in weft("archive", "--list").err


@pytest.mark.parametrize("name", ["archive", "pack"])
def test_what_is_not_there_is_not_found(weft: Shell, name: str) -> None:
    assert weft(name, "nobody").code == 3
