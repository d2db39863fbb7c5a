"""What other commands know of rooms: they find, write out and erase what was said there."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

import weft as library
from tests.ledger.rooms import Cast, answer, cast
from tests.surfaces.shell import Shell

HOSTILE = "</article><script>alert(1)</script> ![x](https://host/x.png)\n# no heading"


class Posted:
    """A room `plans` in which a harbour was spoken of."""

    def __init__(self, weft: Shell) -> None:
        with library.open(weft.folder / ".weft" / "ledger.db") as ledger:
            self.people: Cast = cast(ledger)
            alice = self.people.ledger_of("alice")
            self.room = alice.rooms.create("plans", agents=["helper"]).id
            helper = self.people.mention("helper")
            self.message = alice.rooms.post("plans", f"{helper} is the harbour deep?").message
            answer(ledger, "helper", HOSTILE)
            self.position = alice.rooms.messages("plans")[-2].position


@pytest.fixture
def posted(weft: Shell) -> Posted:
    return Posted(weft)


def test_search_shows_what_was_said_in_rooms_last_and_by_itself(weft: Shell, posted: Posted) -> None:
    answer = weft("search", "harbour", "--newest")
    *_, heading, said = answer.out.splitlines()
    assert "in rooms" in answer.out
    assert heading.startswith(posted.room[-8:])
    assert heading.endswith(f"plans {posted.position} alice")
    assert said.strip() == "@helper is the harbour deep?"
    assert [one["message_id"] for one in weft.json("search", "harbour")] == [posted.message]
    assert len(weft.json("search", "harbour", "--role", "user")) == 1
    (answered,) = weft.json("search", "heading")
    assert (answered["room"], answered["author_name"]) == (posted.room, "helper")
    assert [one["room"] for one in weft.json("search", "harbour", "--as", "alice")] == [posted.room]
    assert weft.json("search", "harbour", "--as", "bob") == []
    (hit,) = weft.json("search", "harbour", "--room", "plans")
    assert (hit["message_id"], hit["room"], hit["position"]) == (posted.message, posted.room, posted.position)
    assert [one for one in weft.json("search", "harbour", "--role", "user") if "room" in one] == []
    assert weft("search", "harbour", "--room", "plans", "--role", "user").code == 2
    assert "nothing in this room" in weft("search", "quay", "--room", "plans").err


def test_a_room_is_written_as_a_page_that_runs_and_fetches_nothing(weft: Shell, posted: Posted, tmp_path: Path) -> None:
    page = tmp_path / "plans.html"
    assert "messages" in weft("export", "--room", "plans", "-o", str(page)).out
    text = page.read_text()
    assert "@helper is the harbour deep?" in text
    assert "Content-Security-Policy" in text
    assert "<script>alert" not in text
    assert "<img" not in text
    markdown = tmp_path / "plans.md"
    weft("export", "--room", "plans", "-o", str(markdown), "--title", "Plans *all*")
    lines = markdown.read_text().splitlines()
    assert lines[0] == r"# Plans \*all\*"
    assert "# no heading" not in lines
    assert weft("export", "--room", "plans", "-o", str(markdown)).code != 0
    assert weft("export", "--room", "plans", "--as", "openai", "-o", str(tmp_path / "x")).code != 0
    assert weft("export", "main", "--room", "plans", "-o", str(tmp_path / "x")).code == 2


def test_a_room_as_json_lines_has_every_message_with_its_author(weft: Shell, posted: Posted, tmp_path: Path) -> None:
    file = tmp_path / "plans.jsonl"
    weft("export", "--room", "plans", "-o", str(file))
    lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    assert [line["position"] for line in lines] == list(range(1, len(lines) + 1))
    said = next(line for line in lines if line["id"] == posted.message)
    assert said["author"] == {"kind": "user", "id": posted.people.ids["alice"], "name": "alice"}
    assert said["content"] == f"{posted.people.mention('helper')} is the harbour deep?"
    assert lines[-1]["content"] == HOSTILE
    assert lines[-1]["meta"]["answers"] == posted.message
    assert lines[0]["kind"] == "system"
    assert "author" not in lines[0]


def test_a_message_of_a_room_is_erased_by_its_id(weft: Shell, posted: Posted, tmp_path: Path) -> None:
    assert "said in rooms: " in weft("erase", posted.message, "--dry-run").out
    weft("erase", posted.message, "--reason", "a secret", "--yes")
    assert weft.json("search", "harbour") == []
    file = tmp_path / "plans.jsonl"
    weft("export", "--room", "plans", "-o", str(file))
    (said,) = [line for line in map(orjson.loads, file.read_bytes().splitlines()) if line["id"] == posted.message]
    assert (said["content"], said["erased"]) == ("[erased]", True)
    assert weft("verify").code == 0


def test_usage_of_a_room_is_what_its_agents_answered_there(weft: Shell, posted: Posted) -> None:
    with library.open(weft.folder / ".weft" / "ledger.db") as ledger:
        alice = ledger.acting_as("alice")
        assert alice.rooms.create("others", agents=["helper"]).id != posted.room
        ledger.record_turn(session="main", query="Why?", response="So.", usage={"input_tokens": 7})
        session = str(ledger.rooms.participants("plans")[2].session)
    rows = weft.json("usage", "--room", "plans", "--by", "session")["rows"]
    assert [(row["key"], row["input"]) for row in rows] == [(session, 100)]
    assert weft.json("usage", "--room", "plans", "--session", "main")["rows"] == []
    assert weft.json("usage", "--room", "others")["rows"] == []
    assert weft("usage", "--room", "nowhere").code == 3


def test_without_a_form_those_of_rooms_are_told(weft: Shell, posted: Posted) -> None:
    named = weft("export", "--room", "plans", "--as", "alice", "-o", "plans.md")
    assert (named.code, "weft --as alice export --room plans -o plans.md" in named.err) == (2, True), named.err
    unclear = weft("export", "--room", posted.room)
    assert (unclear.code, "add --format markdown (or html, jsonl)" in unclear.err) == (2, True), unclear.err
