"""What a listing shows of a session is what every verb takes: random labels, aliases and beginnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.ledger.histories import grow
from tests.ledger.imported import native_turn, take
from tests.sizes import PROVING
from weft.kernel.clock import FixedClock
from weft.kernel.errors import AmbiguousName, LabelTaken, NotFound
from weft.ledger.api import Ledger
from weft.ledger.read.session_list import SessionFilter
from weft.programs import Programs

NOON = 1_794_700_800_000
STEMS = (
    "c0fff321-8eb1-4c18",
    "c0fff321-8eb1-4c19",
    "c0fff322-0000-7000",
    "rollout-2026-11-15T09",
    "a-name-of-some-words",
)
labels = st.builds(
    lambda stem, tail, below: f"{stem}{tail}{below}",
    st.sampled_from(STEMS),
    st.sampled_from(("", "-b759-7c6c08c0f868", "-b759-7c6c08c0f869", " of many words", "é")),
    st.sampled_from(("", "", "/agent-a123456789abcdef0", "/agent-a123456789abcdef1", "/sub")),
)


@contextmanager
def populated(imported: list[str], own: list[str], alias: str, path: str | Path = ":memory:") -> Iterator[Ledger]:
    """Sessions that another tool named, some of our own, and an alias of one of them."""
    with weft.open(path, clock=FixedClock(NOON)) as ledger:
        for label in imported:
            take(ledger, label, native_turn(f"turn of {label}"))
        for label in own:
            with_one_turn(ledger, label)
        if alias not in (*imported, *own) and (imported or own):
            ledger.labels.add_alias(alias, (*imported, *own)[0])
        yield ledger


def with_one_turn(ledger: Ledger, label: str) -> None:
    ledger.create_session(label)
    grow(ledger, label, f"turn of {label}", usage={"input_tokens": 9, "output_tokens": 1}, model="model-1")


READS: Mapping[str, Callable[[Ledger, str], str | None]] = {
    "session": lambda ledger, name: ledger.session(name).id,
    "turn": lambda ledger, name: ledger.turn(name).session_id,
    "point": lambda ledger, name: ledger.turn(ledger.point(name).turn_id).session_id,
    "before": lambda ledger, name: ledger.turn(f"{name}@{{0}}").session_id,
    "log": lambda ledger, name: ledger.log(session=name)[0].session_id,
    "thread": lambda ledger, name: list(ledger.thread(name).turns)[-1].session_id,
    "search": lambda ledger, name: ledger.turn(ledger.search(session=name)[0].turn_id).session_id,
    "erase": lambda ledger, name: ledger.session(ledger.erasure.plan(name).named_sessions[0]).id,
    "archive": lambda ledger, name: ledger.labels.archivable(name)[0].id,
    "program": lambda ledger, name: Programs(ledger).get(name).id,
    "usage": lambda ledger, name: ledger.usage.branch(name).session_id,
}
"""By verb which session it takes a name for."""


def begin(ledger: Ledger, name: str) -> str | None:
    turn = ledger.begin_turn(session=name)
    turn.fail("enough")
    return ledger.turn(turn.id).session_id


def tag(ledger: Ledger, name: str) -> str:
    Programs(ledger).add_tags(name, "t")
    return Programs(ledger).tagged("t")[0].id


WRITES: Mapping[str, Callable[[Ledger, str], str | None]] = {
    "record": lambda ledger, name: ledger.turn(ledger.record_turn(session=name, query="more").id).session_id,
    "begin": begin,
    "move": lambda ledger, name: ledger.move_head(name, new=None).id,
    "rename": lambda ledger, name: ledger.labels.rename(name, "another").id,
    "alias": lambda ledger, name: ledger.labels.add_alias("other", name).id,
    "compact": lambda ledger, name: ledger.turn(ledger.compactions.record(summary="s", session=name).id).session_id,
    "tag": tag,
    "delete": lambda ledger, name: ledger.labels.delete(name).id,
}


def shown(ledger: Ledger) -> dict[str, str]:
    """By the name that the listing of all sessions shows the session's id."""
    listed = ledger.listing().sessions(SessionFilter(every=True, subagents=True)).sessions
    names = {one.short_label: one.session.id for one in listed}
    assert len(names) == len(listed)
    return names


@settings(max_examples=400 if PROVING else 12)
@given(
    st.lists(labels, max_size=4, unique=True),
    st.lists(labels, max_size=2, unique=True),
    labels,
    st.sampled_from(sorted(WRITES)),
)
def test_every_verb_takes_what_a_listing_shows(imported: list[str], own: list[str], alias: str, write: str) -> None:
    own = [label for label in own if label not in imported]
    with populated(imported, own, alias) as ledger:
        for name, session in shown(ledger).items():
            for verb, read in READS.items():
                assert (verb, name, read(ledger, name)) == (verb, name, session)
        for name, session in list(shown(ledger).items())[:1]:
            assert (write, name, WRITES[write](ledger, name)) == (write, name, session)
        assert len(ledger.sessions(every=True)) == len(imported) + len(own)


@settings(max_examples=400 if PROVING else 12)
@given(st.lists(labels, min_size=1, max_size=4, unique=True), st.data())
def test_a_beginning_means_one_session_or_is_refused(imported: list[str], data: st.DataObject) -> None:
    with populated(imported, [], imported[0]) as ledger:
        label = data.draw(st.sampled_from(imported))
        name = label[: data.draw(st.integers(6, len(label)))]
        answers = {verb: answer(lambda read=read: read(ledger, name)) for verb, read in READS.items()}  # type: ignore[misc]
        assert len(set(answers.values())) == 1, answers
        assert next(iter(answers.values())) in (
            {session.id for session in ledger.sessions()} | {"AmbiguousName", "NotFound"}
        )


def answer(ask: Callable[[], Any]) -> str:
    try:
        return str(ask())
    except (AmbiguousName, NotFound) as error:
        return type(error).__name__


def test_recording_goes_on_in_the_imported_session_that_is_meant() -> None:
    with populated(["c0fff321-8eb1-4c18-b759-7c6c08c0f868"], ["feature-of-the-login"], "alias") as ledger:
        assert ledger.record_turn(session="c0fff321", query="more").session == "c0fff321-8eb1-4c18-b759-7c6c08c0f868"
        assert ledger.record_turn(session="feature", query="more").session == "feature"
        with pytest.raises(LabelTaken, match="by which lists show"):
            ledger.create_session("c0fff321")


def test_a_session_that_was_there_keeps_its_name_when_a_longer_one_is_imported() -> None:
    label = "c0fff321-8eb1-4c18-b759-7c6c08c0f868"
    with populated([], ["c0fff321"], "alias") as ledger:
        take(ledger, label, native_turn("x"))
        assert ledger.record_turn(session="c0fff321", query="more").session == "c0fff321"
        assert ledger.record_turn(session=label, query="more").session == label


def test_a_beginning_of_several_labels_is_free_for_a_session_that_is_named_so() -> None:
    one, two = "c0fff321-8eb1-4c18-b759-7c6c08c0f868", "c0fff321-8eb1-4c18-b759-7c6c08c0f869"
    with populated([one, two], [], "alias") as ledger:
        assert ledger.create_session("c0fff321").label == "c0fff321"
        assert ledger.record_turn(session="c0fff321", query="mine").session == "c0fff321"


def test_recording_refuses_a_beginning_of_several_imported_sessions() -> None:
    one, two = "c0fff321-8eb1-4c18-b759-7c6c08c0f868", "c0fff321-8eb1-4c18-b759-7c6c08c0f869"
    with populated([one, two], [], "alias") as ledger:
        with pytest.raises(AmbiguousName) as refused:
            ledger.record_turn(session="c0fff321", query="more")
        assert refused.value.candidates == (one, two)
        with pytest.raises(LabelTaken):
            ledger.create_session(one)


def test_a_name_that_listings_show_of_a_session_and_of_a_turn_is_refused() -> None:
    with populated([], ["main"], "alias") as ledger:
        turn = ledger.resolve("main")
        take(ledger, f"{turn[-8:]}-8eb1-4c18-b759-7c6c08c0f868", native_turn("x"))
        with pytest.raises(AmbiguousName):
            ledger.turn(turn[-8:])
        with pytest.raises(AmbiguousName):
            ledger.erasure.plan(turn[-8:])


UUID = "4f9c2a1b-1111-4222-8333-444444444444"


def test_an_id_means_its_session_whatever_another_one_is_called() -> None:
    with weft.open(":memory:") as ledger:
        (own,) = grow(ledger, "main", "own")
        id = ledger.session("main").id
        take(ledger, id, native_turn("a stranger's"))
        assert ledger.session(id).label == "main"
        assert ledger.resolve(id) == ledger.resolve(f"{id}@{{0}}") == own
        assert ledger.record_turn(session=id, query="goes on").session == "main"
        ledger.labels.archive(id)
        assert ledger.session("main").status == "archived"


def test_nobody_takes_a_name_that_lists_show_of_a_session_that_they_cannot_read() -> None:
    with weft.open(":memory:") as ledger:
        take(ledger, UUID, native_turn("imported"))
        Programs(ledger).create("human", "bob", {})
        bob = ledger.acting_as("bob")
        with pytest.raises(LabelTaken, match=r"is already a session$"):
            bob.record_turn(session="4f9c2a1b", query="a trap")
        with pytest.raises(LabelTaken, match=r"is already a session$"):
            bob.create_session("4f9c2a1b")
        assert ledger.session("4f9c2a1b").label == UUID


def test_a_session_that_a_call_starts_is_the_one_that_lists_show_so() -> None:
    with weft.open(":memory:") as ledger:
        take(ledger, UUID, native_turn("imported"))
        call = {"id": "c1", "name": "task", "spawned_session": "4f9c2a1b"}
        ledger.record_turn(session="main", query="q", tool_calls=[call], response="r")
        assert ledger.session("4f9c2a1b").label == UUID
        assert {session.label for session in ledger.sessions()} == {"main", UUID}


def test_a_routing_key_does_not_hide_what_lists_show() -> None:
    with weft.open(":memory:") as ledger:
        take(ledger, UUID, native_turn("imported"))
        ledger.create_session("other", routing_key="4f9c2a1b")
        ledger.create_session("keyed", routing_key="dm:4f9c2a1b")
        assert ledger.session("4f9c2a1b").label == UUID
        assert ledger.session("dm:4f9c2a1b").label == "keyed"
