"""Totals of what was spent and done: what reports read of them is what a scan of all rows says, whatever happened."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import weft
from tests.conftest import NewPostgresLedger
from tests.ledger.conftest import NOON, OpenLedger
from tests.ledger.histories import change, grow, problems, select
from tests.ledger.imported import ORIGIN, take
from tests.ledger.test_usage import HOUR, PRICES, keys, response, spent, turn_of
from tests.sizes import sized
from weft.kernel.clock import FixedClock
from weft.kernel.contents import MAX_INTEGER
from weft.kernel.enums import FileKind, LinkReason
from weft.kernel.errors import Damaged, ReadOnlyLedger, StoreError, StoreFailed
from weft.ledger.api import SessionFilter
from weft.ledger.api.ledger import Ledger
from weft.ledger.imports import ImportCounts
from weft.ledger.imports.imported_turns import NativeLink, NativeMessage, NativeSession
from weft.ledger.model import FileNote
from weft.ledger.reports import usage, usage_totals
from weft.ledger.reports.prices import PriceSteps, PriceTable, TokenPrice
from weft.store.sqlite.connection import SqliteSql

MINUTE = 60_000
COSTED = "pi"
"""An origin that notes what responses cost."""
CHOICES: tuple[dict[str, Any], ...] = (
    {},
    {"by": "session"},
    {"by": "model", "model": "model-*"},
    {"by": "project"},
    {"by": "origin", "origin": ORIGIN},
    {"by": "month", "project": "/home/me/api"},
    {"by": "day", "since": NOON + 7 * MINUTE + 1},
    {"by": "model", "since": NOON + 15 * MINUTE, "until": NOON + 100 * MINUTE + 17},
    {"by": "session", "until": NOON + 29 * MINUTE + 59_999},
)


@contextmanager
def scanning(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reports read all rows, as where the totals are far behind."""
    with monkeypatch.context() as patch:
        patch.setattr(usage, "load_totals", lambda txn: None)
        yield


def answers(ledger: Ledger, sessions: list[str]) -> list[Any]:
    """Every field of every report, without letting the totals catch up."""
    with ledger._store.read() as txn:
        now, zone = ledger._clock.now_ms(), ledger._zone
        choices = [*CHOICES, *({"by": "day", "session": session} for session in sessions)]
        reports: list[Any] = [
            usage.report(txn, choice.get("by", "day"), _only(choice), now, zone) for choice in choices
        ]
        for since, until in ((None, None), (NOON + MINUTE + 1, None), (NOON + 16 * MINUTE, NOON + 90 * MINUTE + 3)):
            reports.append(usage.work_report(txn, since, until, now, zone, PRICES))
        return reports


def _only(choice: dict[str, Any]) -> Any:
    return {"prices": PRICES} | {name: value for name, value in choice.items() if name != "by"}


def assert_as_scanned(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = [session.label for session in ledger.sessions()][:3]
    with scanning(monkeypatch):
        scanned = answers(ledger, sessions)
    assert answers(ledger, sessions) == scanned


STEP = st.tuples(
    st.sampled_from(
        "record record fork cut move delete archive import_ import_ import_ version bare again link erase catch_up"
        " rebuild".split()
    ),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 5),
)


class History:
    """What may happen to a ledger, told by a few small numbers."""

    def __init__(self, ledger: Ledger, clock: FixedClock) -> None:
        self.ledger, self.clock, self.made = ledger, clock, 0

    def do(self, step: str, a: int, b: int, c: int) -> None:
        self.made += 1
        self.clock.tick(7 * MINUTE)
        getattr(self, step)(a, b, c)

    def _label(self, which: int) -> str:
        labels = sorted(session.label for session in self.ledger.sessions())
        return labels[which % len(labels)] if labels else "main"

    def record(self, a: int, b: int, c: int) -> None:
        session = ("main", "alt", "third", self._label(a), self._label(b), None)[a]
        folder = (None, "/home/me/api", "/home/me/web")[b % 3]
        tokens = spent(1 + a, b, 40_000 * c, c)
        with self.ledger.begin_turn(session=session, workspace=folder) as writer:
            writer.message(f"ask {self.made}")
            for _ in range(1 + c % 2):
                writer.request(f"model-{1 + b % 2}")
                writer.response("said", usage=tokens)
            writer.finish()

    def fork(self, a: int, b: int, c: int) -> None:
        turns = self.ledger.log()
        if turns:
            self.ledger.fork(turns[a * b % len(turns)].id, label=f"fork-{self.made}")

    def cut(self, a: int, b: int, c: int) -> None:
        turns = self.ledger.log()
        if turns:
            events = self.ledger.events(turns[a % len(turns)].id)
            self.ledger.fork(events[(b * 6 + c) % len(events)].id, label=f"cut-{self.made}")

    def move(self, a: int, b: int, c: int) -> None:
        turns = self.ledger.log()
        if turns:
            self.ledger.move_head(self._label(a), new=turns[b * c % len(turns)].id)

    def delete(self, a: int, b: int, c: int) -> None:
        self.ledger.labels.delete(self._label(a))

    def archive(self, a: int, b: int, c: int) -> None:
        self.ledger.labels.archive(self._label(a))

    def _take(self, session: int, key: int, begun: int, *natives: int, **more: Any) -> None:
        said = [self._response(n, begun) for n in natives]
        started = None if begun == 5 else NOON + begun * 11 * MINUTE
        turn = turn_of(f"t{key}", *said, started=started, end=2, workspace=("/home/me/api", None)[key % 2])
        turn.records = (orjson.dumps([key, list(natives), more.pop("salt", 0)]),)
        first = turn_of(f"root{session}", response(None, output=3), started=started, end=1)
        turns = (first, turn) if key % 3 else (turn,)
        writer = self.ledger.imports.writer((ORIGIN, COSTED)[session % 2], more.pop("mapping", 1))
        writer.take(NativeSession(id=f"s{session}"), turns, f"{session}.jsonl", ImportCounts(), reread=True)

    def bare(self, a: int, b: int, c: int) -> None:
        """A version that tells no numbers, in the turn that a session stands on."""
        bare = replace(self._response(b, c), tokens=None, metadata=None)
        turn = turn_of(f"t{a}", bare, bare, started=NOON + c * 11 * MINUTE, end=3)
        turn.records = (orjson.dumps([a, b, self.made]),)
        take(self.ledger, f"s{a * 2}", turn, file=f"{a * 2}.jsonl", reread=True, mapping=3)

    @staticmethod
    def _response(native: int, begun: int) -> NativeMessage:
        cached = 90_000 * (native % 2)
        output = begun if native < 5 else MAX_INTEGER - begun
        said = response(f"n{native}", input=native + 1, output=output, cached=cached, cache_write=5 * native)
        written = FileNote(kind=FileKind.WRITTEN, path=f"/home/me/api/{native % 3}.py")
        cost = {"cost": {"total": 0.5 + native}} if begun % 2 else {}
        return replace(said, files=(written,), metadata={"native": native, **cost})

    def import_(self, a: int, b: int, c: int) -> None:
        self._take(a, b, c, a, b)

    def version(self, a: int, b: int, c: int) -> None:
        self._take(a, b, c, b, c, salt=self.made, mapping=2)

    def again(self, a: int, b: int, c: int) -> None:
        """The same words in a session that began at another time."""
        self._take(a, b, max(c - 1, 0), a, b)

    def link(self, a: int, b: int, c: int) -> None:
        link = NativeLink(to=f"t{b}", why=LinkReason.CONTINUATION)
        turn = turn_of(f"linked{a}", response(f"n{b}", output=2), started=NOON + c * HOUR, end=1, link=link)
        take(self.ledger, f"linked-{a}", turn, file=f"l{a}.jsonl")

    def erase(self, a: int, b: int, c: int) -> None:
        turns = self.ledger.log()
        if turns:
            self.ledger.erasure.erase(self._label(b) if c == 0 else turns[a * b % len(turns)].id, reason="gone")

    def catch_up(self, a: int, b: int, c: int) -> None:
        if a < 2:  # one batch
            self.ledger._store.write(usage_totals.advance)
        else:
            usage_totals.catch_up(self.ledger._store)

    def rebuild(self, a: int, b: int, c: int) -> None:
        if a == 0:
            self.ledger.upkeep.rebuild()


@pytest.mark.slow("asks for every report of histories, from totals and from a scan")
@settings(max_examples=sized(test=8, prove=4500), deadline=None)
@given(steps=st.lists(STEP, min_size=3, max_size=25))
def test_reports_are_those_of_a_scan_whatever_happened(steps: list[tuple[str, int, int, int]]) -> None:
    clock = FixedClock(NOON)
    with weft.open(":memory:", clock=clock) as ledger, pytest.MonkeyPatch.context() as monkeypatch:
        history = History(ledger, clock)
        for step, a, b, c in steps:
            try:
                history.do(step, a, b, c)
            except weft.WeftError:
                continue  # such as a deleted session, which has no thread to record in
            if step == "catch_up":
                assert_as_scanned(ledger, monkeypatch)
        assert_as_scanned(ledger, monkeypatch)
        usage_totals.catch_up(ledger._store)
        assert usage_totals.found_in(ledger._store) == []
        assert_as_scanned(ledger, monkeypatch)


def assert_follows(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late events change what they should for a reader, and then in what is stored."""
    assert_as_scanned(ledger, monkeypatch)
    usage_totals.catch_up(ledger._store)
    assert usage_totals.found_in(ledger._store) == []
    assert_as_scanned(ledger, monkeypatch)


def test_shared_responses_are_counted_anew_where_a_session_turns_out_to_be_older(ledger: Ledger) -> None:
    for session, key in (("one", "t1"), ("two", "t2"), ("three", "t3")):
        take(ledger, session, turn_of(key, response("nm"[key == "t3"], output=7), started=NOON), file=session)
    assert keys(ledger.usage.report("session")) == {"one": 7, "three": 7}
    ledger._store.write(lambda txn: txn.sql.run("UPDATE usage_session SET created_at = 1 WHERE session = 1"))
    with ledger._store.read() as txn:
        late = usage_totals.LateTurns(txn)
    assert late.turns == {turn.id for turn in ledger.log() if ledger.messages(turn.id)[0].text in ("ask t1", "ask t2")}


def test_turns_that_are_listed_later_count_in_another_slot(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    first = turn_of("t1", response("n", output=7))
    take(ledger, "one", first, turn_of("t2", response("m", output=1), parent=0), file="one")
    take(ledger, "two", first, file="two")
    ledger.usage.work()
    take(ledger, "two", turn_of("t1", response("n", output=7), started=NOON), file="two", reread=True)
    assert_follows(ledger, monkeypatch)


def test_a_current_version_without_numbers_shares_those_of_the_other(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(ledger, "one", turn_of("t1", response("n", output=7), started=NOON), file="one")
    ledger.usage.report()
    bare = turn_of("t1", replace(response("n"), tokens=None), response("m", output=1), started=NOON)
    take(ledger, "one", bare, file="one", reread=True)
    assert_follows(ledger, monkeypatch)


def read_rows(ledger: Ledger, look: Callable[[Ledger], object], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many rows a question is answered with, and how many steps the engine's programs take for it."""
    rows = steps = 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        return False

    with monkeypatch.context() as patch:
        for verb in ("fetch_row", "fetch_rows", "iterate_rows"):
            asked = getattr(SqliteSql, verb)

            def counting(self: Any, sql: str, values: Any = (), verb: str = verb, asked: Any = asked) -> Any:
                nonlocal rows
                self.connection.set_progress_handler(step, 1)
                try:
                    answer = list(asked(self, sql, values)) if verb == "iterate_rows" else asked(self, sql, values)
                finally:
                    self.connection.set_progress_handler(None)
                rows += len(answer) if verb != "fetch_row" else answer is not None
                return iter(answer) if verb == "iterate_rows" else answer

            patch.setattr(SqliteSql, verb, counting)
        look(ledger)
    return rows, steps


READERS: dict[str, Callable[[Ledger], object]] = {
    "usage by day": lambda ledger: ledger.usage.report(prices=PRICES),
    "usage by project": lambda ledger: ledger.usage.report("project", prices=PRICES),
    "usage of a model": lambda ledger: ledger.usage.report("session", model="model-*", prices=PRICES),
    "projects": lambda ledger: ledger.usage.work(prices=PRICES, about=False),
    "story": lambda ledger: ledger.usage.work(prices=PRICES),
    "sessions": lambda ledger: ledger.listing().sessions(SessionFilter(every=True, subagents=True)),
}


def fill(ledger: Ledger, clock: FixedClock, turns: int) -> None:
    """So many turns in each of the same sessions, quarters of an hour, models, folders and files."""
    for slot, session, model in product(range(3), ("main", "alt"), ("model-1", "model-2")):
        for i in range(turns):
            clock.set(NOON + slot * 15 * MINUTE + i)
            folder = f"/home/me/{session}"
            with ledger.begin_turn(session=session, workspace=folder) as writer:
                writer.message("ask")
                writer.request(model)
                writer.response("said", usage=spent(10, 5))
                writer.finish()
    started = [NOON + slot * 15 * MINUTE for slot in range(3) for _ in range(turns)]
    written = (FileNote(kind=FileKind.WRITTEN, path="notes.md"),)
    said = [replace(response(f"n{i}", output=1), files=written) for i in range(len(started))]
    natives = [
        turn_of(f"t{i}", said[i], parent=i - 1 if i else None, started=at, workspace="/home/me/main")
        for i, at in enumerate(started)
    ]
    for session in ("one", "two"):  # each turn is in both
        take(ledger, session, *natives, file=session)


def test_no_more_rows_are_read_where_there_are_more_turns_in_the_same_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: dict[str, list[tuple[int, int]]] = {name: [] for name in READERS}
    for turns in (2, 8):
        clock = FixedClock(NOON)
        with weft.open(tmp_path / f"{turns}.db", clock=clock) as ledger:
            fill(ledger, clock, turns)
            ledger.upkeep.catch_up()
            assert keys(ledger.usage.report("session"))["main"] == 90 * turns
            for name, look in READERS.items():
                read[name].append(read_rows(ledger, look, monkeypatch))
    assert {name: few for name, (few, _) in read.items()} == {name: many for name, (_, many) in read.items()}


def test_an_ordinary_turn_writes_nothing_to_the_totals(disk: Ledger, path: Path) -> None:
    grow(disk, "main", "one", usage=spent(1))
    disk.usage.report()
    before = stored_totals(path)
    grow(disk, "main", "two", usage=spent(1))
    assert stored_totals(path) == before
    assert (disk.usage.lag() > 0, disk.usage.report().total.total, disk.usage.lag()) == (True, 2, 0)
    assert stored_totals(path) != before


def stored_totals(path: Path) -> list[list[dict[str, Any]]]:
    return [select(path, f"SELECT * FROM {name}") for table in usage_totals.TABLES for name in table.tables]


def test_prices_that_change_elsewhere_are_looked_up_response_by_response(ledger: Ledger) -> None:
    class Odd:
        """A table whose price changes at a length of the prompt that the totals do not know."""

        steps_told = PriceSteps(frozenset({70}))

        def find(self, names: list[str], at: int | None, prompt: int) -> TokenPrice | None:
            return TokenPrice(input=2_000_000 if prompt > 70 else 1_000_000)

        def steps(self, names: list[str]) -> PriceSteps:
            return self.steps_told

    class Unsaid:
        """One that does not say by what its prices change: by the minute."""

        def find(self, names: list[str], at: int | None, prompt: int) -> TokenPrice | None:
            return TokenPrice(input=(at or 0) // MINUTE % 7 * 1_000_000)

    for tokens in (60, 70, 71, 80):
        grow(ledger, "main", "ask", model="m", usage=spent(tokens))
    assert ledger.usage.report(prices=PriceTable((Odd(),), None)).total.cost == 60 + 70 + 2 * 71 + 2 * 80
    for layer in (Odd(), Unsaid()):
        prices = PriceTable((layer,), None)
        with pytest.MonkeyPatch.context() as monkeypatch:
            report = ledger.usage.report(prices=prices)
            with scanning(monkeypatch):
                assert ledger.usage.report(prices=prices) == report


def test_numbers_that_no_sum_holds_are_counted_by_themselves(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [turn_of(f"t{i}", response(f"n{i}", output=MAX_INTEGER), started=NOON) for i in range(3)]
    take(ledger, "one", *turns)
    assert ledger.usage.report().total.total == 3 * MAX_INTEGER
    assert_follows(ledger, monkeypatch)


def test_such_numbers_of_an_older_version_are_counted_where_it_said_them(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(ledger, "one", turn_of("t1", response("n", output=MAX_INTEGER), started=NOON), file="one")
    newer = turn_of("t1", response("m", output=1), response("n", output=2), started=NOON)
    take(ledger, "one", newer, file="one", reread=True)
    assert ledger.usage.report().total.total == MAX_INTEGER + 1
    assert problems(ledger) == []
    assert_follows(ledger, monkeypatch)


def test_a_response_in_very_many_pieces_counts_without_their_names(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_totals, "LONGEST_PIECES", 12)  # two pieces of a small ledger
    for i in range(4):
        take(ledger, f"s{i}", turn_of(f"t{i}", response("n", output=7), started=NOON), file=f"f{i}")
    assert ledger.usage.report().total.total == 7
    assert [kinds_of_pieces(ledger), ledger.usage.report().naive.total] == [{True, False}, 4 * 7]
    for session in ledger.sessions():
        ledger.labels.delete(session.label)
        assert_follows(ledger, monkeypatch)
    assert ledger.usage.report().abandoned.total == 7


def kinds_of_pieces(ledger: Ledger) -> set[bool]:
    """Whether cells name their pieces, or hold a digest."""
    with ledger._store.read() as txn:
        totals = usage_totals.load_totals(txn)
        assert totals is not None
        return {usage_totals.ResponseCell(*name).has_many_pieces for name in totals.cells(usage_totals.RESPONSES)}


def test_the_name_of_a_cell_has_room_in_every_index() -> None:
    cuts = usage_totals.SegmentCuts([])
    pieces = cuts.pieces((segment, (1, 0)) for segment in range(10**6, 10**6 + 2_000))
    assert len(pieces) < 100
    assert pieces != cuts.pieces((segment, (1, 0)) for segment in range(10**6, 10**6 + 2_001))
    assert cuts.pieces([(7, (1, 0)), (8, (3, 0))]) == "7:0:0 8:0:0"


def test_totals_of_rows_that_were_mended_since_lack_every_event(disk: Ledger, path: Path) -> None:
    grow(disk, "main", "one", "two", usage=spent(3))
    disk.usage.report()
    assert disk.usage.lag() == 0
    change(path, "INSERT INTO local(key, value) VALUES ('views_mended', '1')")
    (events,) = select(path, "SELECT max(n) AS newest FROM log")
    assert (disk.usage.lag(), disk.usage.report().total.total, disk.usage.lag()) == (events["newest"], 6, 0)


def test_verifying_finds_wrong_totals_and_rebuilding_counts_anew(disk: Ledger, path: Path) -> None:
    grow(disk, "main", "one", "two", usage=spent(3))
    disk.usage.report()
    assert problems(disk) == []
    change(path, "UPDATE usage_total SET input_tokens = 5")
    assert problems(disk) == [
        "view usage_total: 2 of its cells are not what turns and messages say",
        "view usage_entry: does not add up to the totals",
    ]
    assert (disk.upkeep.rebuild(), disk.usage.report().total.total, problems(disk)) == (2, 6, [])


def test_verifying_finds_a_cell_in_a_slot_that_is_not_its_own(disk: Ledger, path: Path) -> None:
    grow(disk, "main", "one", usage=spent(3))
    disk.usage.report()
    change(path, "UPDATE work_total SET slot = slot + 1")
    assert problems(disk) == ["view work_total: 1 of its cells stand in another slot than their names say"]
    assert (disk.upkeep.rebuild(), disk.usage.report().total.total, problems(disk)) == (1, 3, [])


@pytest.mark.parametrize("error", [StoreFailed("the disk is full"), ReadOnlyLedger("ledger.db")])
def test_a_disk_that_takes_nothing_keeps_the_totals_behind_and_no_report_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    grow(ledger, "main", "one", usage=spent(3))
    monkeypatch.setattr(usage_totals, "catch_up", Mock(side_effect=error))
    assert (ledger.usage.report().total.total, ledger.usage.lag() > 0) == (3, True)


def test_damage_that_is_met_while_totals_catch_up_is_said(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_totals, "catch_up", Mock(side_effect=Damaged("the database is malformed")))
    for look in (ledger.usage.report, ledger.usage.work):
        with pytest.raises(Damaged):
            look()


def test_the_parts_of_a_period_are_all_of_it_once() -> None:
    slot, edges = usage_totals.SLOT, [5 * usage_totals.SLOT + at for at in range(0, 4 * usage_totals.SLOT, 180_000)]
    for since, until in product([None, *edges], repeat=2):
        parts = usage_totals.split_period(since, until)
        first, end = (
            edge if slot_number is None else slot_number * slot
            for edge, slot_number in zip((0, 10 * slot), parts.slots, strict=True)
        )
        spans = sorted([(first, end), *parts.ends])
        taken = [at for low, high in spans for at in range(low, high, 60_000)]
        assert taken == list(range(since or 0, 10 * slot if until is None else until, 60_000))


@pytest.mark.slow("a history of ten steps and every report of it twice, on a server")
def test_totals_in_a_server_are_those_of_a_scan(
    open_ledger: OpenLedger, new_postgres_ledger: NewPostgresLedger, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tests run on PostgreSQL in `make prove` alone."""
    ledger = open_ledger(new_postgres_ledger())
    history = History(ledger, clock)
    for step in ("record", "import_", "fork", "version", "catch_up", "again", "cut", "move", "bare", "erase", "record"):
        history.do(step, 2, 1, 3)
    assert_follows(ledger, monkeypatch)


def test_a_ledger_that_is_only_read_counts_what_is_late(path: Path, clock: FixedClock) -> None:
    with weft.open(path, clock=clock) as ledger:
        grow(ledger, "main", "one", usage=spent(1))
        ledger.usage.report()
        grow(ledger, "main", "two", usage=spent(1))
    with weft.open(path, clock=clock, read_only=True) as ledger:
        assert (ledger.usage.lag() > 0, ledger.usage.report().total.total) == (True, 2)
        assert ledger.usage.work().projects[0].turns == 2
