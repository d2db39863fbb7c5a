"""A bundle of a room: all that was said in it with the threads of its agents, which both verifiers check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

import weft
from tests.exchange.bundles.reading import is_refused, lines_of, resealed, verified
from tests.ledger.histories import problems
from tests.ledger.rooms import Cast, answer, cast
from weft.exchange.bundles import create_bundle, import_bundle
from weft.kernel.errors import NotApplicable
from weft.ledger.api import Ledger


@pytest.fixture
def people(tmp_path: Path) -> Iterator[Cast]:
    with weft.open(tmp_path / "here.db") as ledger:
        people = cast(ledger)
        alice = people.ledger_of("alice")
        alice.rooms.create("plans", agents=["helper"], people=["bob"])
        alice.rooms.post("plans", f"{people.mention('bob')} unanswered")
        alice.rooms.post("plans", f"{people.mention('helper')} is the harbour deep?")
        answer(ledger, "helper", f"Deep, {people.mention('bob')}.")
        alice.rooms.fork("plans", title="fork")
        alice.rooms.post("plans", f"{people.mention('bob')} said after the fork")
        (reached,) = alice.rooms.post("fork", f"{people.mention('helper')} and here?").reached
        answer(ledger, "helper", "Here too.", session=reached.session)
        yield people


def told(ledger: Ledger, room: str) -> list[tuple[int, str | None, str]]:
    return [(one.position, one.author_name, one.text) for one in ledger.rooms.messages(room, limit=1000)]


@pytest.mark.parametrize("title", ["plans", "fork"])
def test_a_room_in_a_bundle_is_read_elsewhere_as_it_was(people: Cast, tmp_path: Path, title: str) -> None:
    bundle = tmp_path / "room.weft"
    create_bundle(people.ledger, [], bundle, rooms=[title])
    assert (verified(bundle).turns > 0, verified(bundle).rooms) == (True, 1 if title == "plans" else 2)
    with weft.open(tmp_path / "there.db") as there:
        import_bundle(there, bundle)
        assert told(there, title) == told(people.ledger, title)
        assert [one.title for one in there.rooms.list() if one.title == title and one.is_foreign] == [title]
        assert bool(there.rooms.search("after the fork")) == (title == "plans")
        with pytest.raises(NotApplicable):
            there.rooms.post(title, "hello")
        assert problems(there) == []


def test_a_changed_or_missing_message_of_a_room_is_refused_by_both_verifiers(people: Cast, tmp_path: Path) -> None:
    bundle = tmp_path / "room.weft"
    create_bundle(people.ledger, [], bundle, rooms=["plans"])
    posted = [line for line in lines_of(bundle) if b'"kind":"message_posted"' in line]
    assert len(posted) > 3
    without = resealed(bundle, lambda lines: [line for line in lines if line != posted[1]], tmp_path / "without.weft")
    assert is_refused(without)
    changed = posted[1].replace(orjson.loads(posted[1])["message"].encode(), people.ids["bob"].encode())
    other = resealed(
        bundle, lambda lines: [changed if line == posted[1] else line for line in lines], tmp_path / "changed.weft"
    )
    assert is_refused(other)


def test_a_message_of_a_room_is_withheld_wherever_it_stands(people: Cast, tmp_path: Path) -> None:
    (asked,) = [one for one in people.ledger.rooms.messages("plans") if "harbour" in one.text]
    create_bundle(people.ledger, [], tmp_path / "room.weft", rooms=["plans"], withhold=[asked.id], force=True)
    assert verified(tmp_path / "room.weft").absent["withheld"] == 1
    assert b"harbour" not in b"\n".join(lines_of(tmp_path / "room.weft"))


def test_a_message_that_a_turn_took_from_the_inbox_goes_with_the_turn(tmp_path: Path) -> None:
    with weft.open(tmp_path / "here.db") as ledger:
        ledger.record_turn(session="x:helper", query="first", response="yes")
        ledger.inbox.admit("is the harbour deep?", session="x:helper")
        answer(ledger, "helper", "deep")
        ledger.inbox.admit("nobody answered this", session="x:helper")
        made = create_bundle(ledger, ["x:helper"], tmp_path / "thread.weft")
        digest = ledger.thread("x:helper").digest
    lines = b"\n".join(lines_of(tmp_path / "thread.weft"))
    assert b"is the harbour deep?" in lines
    assert b"nobody answered this" not in lines
    assert verified(tmp_path / "thread.weft").threads[0].digest == digest == made.report.threads[0].digest


def test_a_bundle_of_a_thread_alone_has_nothing_of_the_room(people: Cast, tmp_path: Path) -> None:
    session = next(one.session for one in people.ledger.rooms.participants("plans") if one.name == "helper")
    assert session is not None
    create_bundle(people.ledger, [session], tmp_path / "thread.weft")
    lines = b"\n".join(lines_of(tmp_path / "thread.weft"))
    assert b'"stream":"conversation:' not in lines
    assert b"harbour" in lines
    assert b"said after the fork" not in lines
    people.ledger.rooms.create("empty")
    with pytest.raises(NotApplicable):
        create_bundle(people.ledger, [], tmp_path / "empty.weft", rooms=["empty"])
