"""A connection that dies exactly at COMMIT: what happened is looked up, and nothing is done twice."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import weft
from tests.faults.checks import assert_kept
from tests.faults.proxy import CUTS, Cut, Proxy
from tests.faults.scenarios import Ack, ack
from tests.postgres import new_name, shared_server
from tests.sizes import SEED, Record, chance, sized
from weft.kernel.errors import OutcomeUnknown
from weft.ledger.api.ledger import Ledger
from weft.store.port import WriteTxn

TURNS = sized(test=24, prove=2_000)
QUICK: tuple[Cut, ...] = ("unsent", "unanswered", "unheard")


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy(shared_server().folder)
    yield made
    made.close()


@pytest.fixture
def ledger(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.setattr("weft.store.postgres.store.LOCK_SECONDS", 1)
    with weft.open(proxy.address(new_name())) as made:
        made.record_turn(session="main", query="first", response="yes")
        yield made


def said(ledger: Ledger, session: str = "main") -> list[str]:
    return [message.text for message in ledger.thread(session).messages if message.role == "user"]


@pytest.mark.usefixtures("turn_path")
@pytest.mark.parametrize("how", CUTS)
def test_an_append_whose_connection_is_cut_at_commit_is_there_once(ledger: Ledger, proxy: Proxy, how: Cut) -> None:
    proxy.cut_once(how)
    made = ledger.record_turn(session="main", query="second", response="yes")
    assert proxy.cuts == 1
    assert said(ledger) == ["first", "second"]
    assert_kept(ledger, [ack(made)])
    ledger.record_turn(session="main", query="third", response="yes")
    assert said(ledger) == ["first", "second", "third"]
    assert list(ledger.verify()) == []


@pytest.mark.parametrize("how", QUICK)
def test_a_commit_without_events_that_is_cut_counts_once(ledger: Ledger, proxy: Proxy, how: Cut) -> None:
    """Work that leaves no event leaves a mark: what it did is neither lost nor done again."""
    ran: list[int] = []

    def count(txn: WriteTxn) -> int:
        ran.append(1)
        txn.sql.run(
            "INSERT INTO local(key, value) VALUES ('runs', '1') ON CONFLICT (key) DO UPDATE"
            " SET value = local.value || '1'"
        )
        return len(ran)

    proxy.cut_once(how)
    answer = ledger._store.write(count)
    with ledger._store.read() as txn:
        assert txn.sql.fetch_row("SELECT value FROM local WHERE key = 'runs'") == ("1",)
    assert proxy.cuts == 1
    assert answer == len(ran) == (2 if how == "unsent" else len(ran))
    assert len(ran) == 1 or how != "unheard"


@pytest.mark.usefixtures("turn_path")
def test_nothing_is_lost_or_doubled_however_often_commits_are_cut(
    ledger: Ledger, proxy: Proxy, record_property: Record
) -> None:
    dice = chance("cuts")
    proxy.cut(lambda: dice.choice([None, *QUICK]))
    acks: list[Ack] = []
    for k in range(TURNS):
        acks.append(ack(ledger.record_turn(session="main", query=f"turn {k}", response="yes")))
    proxy.cut(lambda: None)
    assert said(ledger) == ["first", *(f"turn {k}" for k in range(TURNS))]
    assert len(ledger.tree.heads()) == 1
    assert_kept(ledger, acks)
    assert list(ledger.verify()) == []
    record_property("measured", f"{TURNS} turns, {proxy.cuts} commits cut, seed {SEED}")


def test_callers_who_share_a_commit_that_is_cut_hear_the_same_truth(
    ledger: Ledger, proxy: Proxy, record_property: Record
) -> None:
    dice, callers, turns = chance("shared cuts"), 8, max(TURNS // 8, 3)
    proxy.cut(lambda: dice.choice([None, None, *QUICK]))

    def record(caller: int) -> list[Ack]:
        return [ack(ledger.record_turn(session=f"s{caller}", query=f"{k}", response="yes")) for k in range(turns)]

    with ThreadPoolExecutor(callers) as pool:
        acks = [one for mine in pool.map(record, range(callers)) for one in mine]
    proxy.cut(lambda: None)
    for caller in range(callers):
        assert said(ledger, f"s{caller}") == [f"{k}" for k in range(turns)]
    assert_kept(ledger, acks)
    assert list(ledger.verify()) == []
    record_property("measured", f"{callers} x {turns} turns, {proxy.cuts} commits cut, seed {SEED}")


@pytest.mark.usefixtures("turn_path")
def test_an_outcome_that_nobody_can_be_asked_about_is_said_to_be_unknown(
    ledger: Ledger, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append is there, but its caller cannot be told; once the server answers again, it can be looked up."""
    monkeypatch.setattr("weft.store.postgres.store.ASKING_SECONDS", 0.0)
    server, broken = shared_server().folder, shared_server().folder / "away"

    def choose() -> Cut:
        proxy._server = broken
        return "unheard"

    proxy.cut(choose)
    with pytest.raises(OutcomeUnknown):
        ledger.record_turn(session="main", query="second", response="yes")
    proxy.cut(lambda: None)
    proxy._server = server
    assert said(ledger) == ["first", "second"]
    ledger.record_turn(session="main", query="third", response="yes")
    assert list(ledger.verify()) == []
