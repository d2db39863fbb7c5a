"""Tags that outlive what they were on: words about an erased turn, session, message or event."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.ledger.imported import native_turn, take
from weft.kernel.errors import ErasureChanged
from weft.programs import Programs

WORDS = ("tag-of-the-turn", "tag-of-the-message", "tag-of-the-event", "tag-of-the-session", "tag-taken-away")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Any]:
    with weft.open(tmp_path / "ledger.db") as opened:
        yield opened


def tag_everything(ledger: Any) -> tuple[str, str]:
    """A turn of `main` whose every part has a tag, and one of `other`; all share the tag `shared`."""
    turn = ledger.record_turn(session="main", query="about John", response="he is ill").id
    other = ledger.record_turn(session="other", query="two").id
    programs = Programs(ledger)
    programs.add_tags(turn, "tag-of-the-turn", "tag-taken-away", "shared")
    programs.remove_tags(turn, "tag-taken-away")
    programs.add_tags(next(iter(ledger.thread(turn).messages)).id, "tag-of-the-message", "shared")
    programs.add_tags(ledger.events(turn)[0].id, "tag-of-the-event")
    programs.add_tags("main", "tag-of-the-session")
    programs.add_tags(other, "shared")
    return turn, other


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def test_the_tags_of_an_erased_session_are_erased_with_it(ledger: Any, tmp_path: Path) -> None:
    _, other = tag_everything(ledger)
    ledger.erasure.erase(ledger.erasure.plan("main"), reason="asked to")
    programs = Programs(ledger)
    assert [programs.tagged(word) for word in WORDS] == [[]] * len(WORDS)
    assert [node.id for node in programs.tagged("shared")] == [other]
    assert list(ledger.verify()) == []
    assert ledger.upkeep.rebuild() == 0
    ledger.close()
    assert [word for word in WORDS if word.encode() in stored(tmp_path)] == []


def test_the_tags_of_an_erased_turn_are_erased_and_its_sessions_stay(ledger: Any, tmp_path: Path) -> None:
    turn, other = tag_everything(ledger)
    plan = ledger.erasure.plan(turn)
    assert {doomed.what for doomed in plan.contents} >= {"node_tagged tags[0]"}
    ledger.erasure.erase(plan, reason="asked to")
    programs = Programs(ledger)
    assert programs.tags(turn) == []
    assert programs.tags("main") == ["tag-of-the-session"]
    assert programs.tags(other) == ["shared"]
    assert ledger.erasure.plan(turn).is_done
    ledger.close()
    assert [word for word in WORDS if word.encode() in stored(tmp_path)] == ["tag-of-the-session"]


def test_a_shared_tag_is_erased_with_the_last_thing_that_has_it(ledger: Any, tmp_path: Path) -> None:
    turn, other = tag_everything(ledger)
    for erased in (turn, other):
        ledger.erasure.erase(ledger.erasure.plan(erased), reason="asked to")
    assert Programs(ledger).tagged("shared") == []
    assert list(ledger.verify()) == []
    ledger.close()
    assert b"shared" not in stored(tmp_path)


def test_a_tag_that_comes_while_a_plan_waits_is_not_left_behind(ledger: Any) -> None:
    turn, _ = tag_everything(ledger)
    plan = ledger.erasure.plan(turn)
    Programs(ledger).add_tags(turn, "a new tag")
    with pytest.raises(ErasureChanged):
        ledger.erasure.erase(plan, reason="asked to")


def test_tags_stay_with_what_is_renamed_forked_or_moved(ledger: Any) -> None:
    turn, other = tag_everything(ledger)
    programs = Programs(ledger)
    ledger.labels.rename("main", "trunk")
    ledger.fork("trunk", label="branch")
    ledger.move_head("trunk", new=other)
    assert programs.tags("trunk") == ["tag-of-the-session"]
    assert programs.tags("branch") == []
    assert programs.tags(turn) == ["shared", "tag-of-the-turn"]


def test_the_tags_of_an_imported_turn_go_on_with_the_version_that_takes_its_place(ledger: Any) -> None:
    take(ledger, "s", native_turn("one"))
    first = ledger.turn("s").id
    programs = Programs(ledger)
    programs.add_tags(first, "reviewed", "mine")
    take(ledger, "s", native_turn("one", answer="yes, and more"), reread=True)
    second = ledger.turn("s").id
    assert second != first
    programs.add_tags(second, "later")
    assert programs.tags(second) == programs.tags(first) == ["later", "mine", "reviewed"]
    assert [node.id for node in programs.tagged("reviewed", "later")] == [second]
    programs.remove_tags(second, "reviewed")
    assert programs.tags(first) == programs.tags(second) == ["later", "mine"]
    assert list(ledger.verify()) == []
