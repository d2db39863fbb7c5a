"""Totals of what was spent and done: what reports read of them is what a scan of all rows says, whatever happened."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import weft
from tests.ledger.conftest import NOON
from tests.ledger.histories import PROPERTY_SCALE
from tests.ledger.imported import ORIGIN, take
from tests.ledger.test_usage import HOUR, PRICES, keys, response, spent, turn_of
from weft.kernel.clock import FixedClock
from weft.kernel.enums import FileKind, LinkReason
from weft.ledger.api.ledger import Ledger
from weft.ledger.imports import ImportCounts
from weft.ledger.imports.natives import NativeLink, NativeMessage, NativeSession
from weft.ledger.model import FileNote
from weft.ledger.reports import totals_reading, usage, usage_totals, work

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
            reports.append(work.work_report(txn, since, until, now, zone, PRICES))
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
        said = response(f"n{native}", input=native + 1, output=begun, cached=cached, cache_write=5 * native)
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


@settings(max_examples=60 * PROPERTY_SCALE, deadline=None)
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
        assert totals_reading.found_in(ledger._store) == []
        assert_as_scanned(ledger, monkeypatch)


def assert_follows(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late events change what they should for a reader, and then in what is stored."""
    assert_as_scanned(ledger, monkeypatch)
    usage_totals.catch_up(ledger._store)
    assert totals_reading.found_in(ledger._store) == []
    assert_as_scanned(ledger, monkeypatch)


def test_shared_responses_are_counted_anew_where_a_session_turns_out_to_be_older(ledger: Ledger) -> None:
    for session, key in (("one", "t1"), ("two", "t2"), ("three", "t3")):
        take(ledger, session, turn_of(key, response("nm"[key == "t3"], output=7), started=NOON), file=session)
    assert keys(ledger.usage.report("session")) == {"one": 7, "three": 7}
    ledger._store.write(lambda txn: txn.sql.run("UPDATE usage_session SET created_at = 1 WHERE session = 1"))
    with ledger._store.read() as txn:
        late = usage_totals.LateTurns(txn, usage_totals.state_now(txn))
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
