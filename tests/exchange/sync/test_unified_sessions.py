"""Sessions that were made one in one ledger are one in the others; nobody else can take a name away."""

import pytest

from tests.exchange.sync.conftest import Make
from tests.exchange.sync.wire import pull
from tests.ledger.histories import grow, problems
from weft.ledger.api.ledger import Ledger

NAMES = ("chat", "nick", "person:ann")


def pair_in(ledger: Ledger) -> None:
    grow(ledger, "mail", "by mail")
    grow(ledger, "chat", "by chat")
    ledger.labels.add_alias("nick", "chat")
    ledger.labels.promote("chat", "person:ann")


def targets(ledger: Ledger) -> list[str]:
    return [ledger.session(name).label for name in NAMES]


def reasons(ledger: Ledger) -> set[tuple[str, str, str]]:
    with ledger._store.read() as txn:
        return {
            (row[0], row[1], row[2])
            for row in txn.sql.fetch_rows("SELECT alias, session_label, reason FROM session_aliases")
        }


def assert_like(one: Ledger, other: Ledger) -> None:
    assert reasons(one) == reasons(other)
    assert {(row.id, row.label, row.status) for row in one.sessions(every=True)} == {
        (row.id, row.label, row.status) for row in other.sessions(every=True)
    }
    for ledger in (one, other):
        assert problems(ledger) == []
        ledger.upkeep.rebuild()
    assert reasons(one) == reasons(other)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_other_ledgers_follow_a_merge_and_its_undoing_wherever_it_is_undone(make: Make, engine: str) -> None:
    here, there = make("here"), make("there", engine)
    pair_in(here)
    pull(there, here)
    assert targets(there) == ["chat"] * 3
    here.merges.unify("chat", into="mail")
    pull(there, here)
    assert targets(here) == targets(there) == ["mail"] * 3
    assert there.record_turn(session="chat", query="more").session == "mail"
    pull(here, there)
    assert_like(here, there)
    there.merges.separate("unified/chat")
    pull(here, there)
    assert targets(here) == targets(there) == ["chat"] * 3
    here.merges.unify("chat", into="mail")
    here.merges.separate("unified/chat")
    pull(there, here)
    assert targets(here) == targets(there) == ["chat"] * 3
    assert_like(here, there)


def test_an_undoing_is_followed_where_somebody_else_wrote_last(here: Ledger, there: Ledger) -> None:
    pair_in(here)
    here.merges.unify("chat", into="mail")
    pull(there, here)
    there.merges.separate("unified/chat")
    pull(here, there)
    assert targets(here) == ["chat"] * 3
    assert_like(here, there)


def test_a_ledger_that_comes_later_gets_it_all_at_once(here: Ledger, there: Ledger) -> None:
    pair_in(here)
    here.merges.unify("chat", into="mail")
    here.merges.separate("unified/chat")
    here.merges.unify("chat", into="mail")
    pull(there, here)
    assert targets(there) == ["mail"] * 3
    assert_like(here, there)


def test_a_stranger_takes_no_name_by_calling_it_a_merge(here: Ledger, there: Ledger) -> None:
    pair_in(here)
    grow(there, "trap", "give me your words")
    for name in NAMES:
        there.labels.add_alias(name, "trap", reason="identity_merge")
    pull(here, there)
    assert targets(here) == ["chat"] * 3
    here.labels.archive("chat")
    grow(there, "pit", "or here")
    there.merges.unify("trap", into="pit")
    pull(here, there)
    assert targets(here) == ["chat"] * 3
    assert problems(here) == []


def test_a_session_that_went_on_elsewhere_keeps_its_names_there(here: Ledger, there: Ledger) -> None:
    pair_in(here)
    pull(there, here)
    grow(there, "chat", "meanwhile")
    here.merges.unify("chat", into="mail")
    pull(there, here)
    assert targets(there) == ["chat"] * 3
    assert there.merges.branches("chat")
    assert problems(there) == []
