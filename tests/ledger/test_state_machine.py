"""Everything a ledger can do, in any order, by two ledgers on one file, against a plain model of it.

After every step the nine invariants of the agents ledger schema are asserted from SQL; now and then the views are
compared with a rebuild and the facts are carried into a fresh ledger. WEFT_PROVE=1 makes 100,000 steps; otherwise
each commit makes 200 or 400 of 1,000.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import weft
from tests.ledger.invariants import check_all, check_context, check_names, check_step
from tests.ledger.plain_model import PlainLedger, PlainSession, PlainTurn
from tests.sizes import PROVING, share
from weft.kernel.clock import FixedClock
from weft.kernel.errors import LabelTaken, LeaseLost, NotApplicable, NotFound, SessionBusy, WeftError
from weft.ledger.api.ledger import Ledger
from weft.ledger.write.turn_writer import TurnWriter

SHARDS = 40 if PROVING else 5
STEPS = (100_000 if PROVING else 600) // SHARDS
EXAMPLES = 10 if PROVING else 6
"""For one seed. All but the first are 49 steps long; more seeds are taken until the steps are made."""
FIRST_SEED = int(os.environ.get("WEFT_SEED", "1000"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    database=None,
    deadline=None,
    derandomize=False,
    suppress_health_check=list(HealthCheck),
)
NAMES = "ant bee cat dog".split()

names, picks, sides = st.sampled_from(NAMES), st.integers(0, 999), st.sampled_from([False, False, False, True])
patience = st.sampled_from([0, 0, 1])
counted = {"steps": 0}
TTL_MS = 200
NOWHERE: tuple[str | None, int | None] = (None, None)


class LedgerMachine(RuleBasedStateMachine):
    place: Path | None = None
    """Where its folder is made."""

    def make_clock(self) -> FixedClock:
        return FixedClock(1_794_700_800_000)

    @initialize()
    def open(self) -> None:
        self.stack = ExitStack()
        self.clock = self.make_clock()
        folder = self.stack.enter_context(TemporaryDirectory(dir=self.place))
        self.path, self.plain, self.said = Path(folder) / "ledger.db", PlainLedger(), 0
        self.writers: dict[str, tuple[TurnWriter, PlainSession | None]] = {}
        self.lost: list[TurnWriter] = []
        self.rested = 0
        self.touched: PlainSession | None = None
        self.ledgers = [self._open(), self._open()]
        self.sql = apsw.Connection(str(self.path), apsw.SQLITE_OPEN_READONLY)
        self.stack.callback(self.sql.close)

    def _open(self) -> Ledger:
        ledger = weft.open(self.path, clock=self.clock, lease_ttl=TTL_MS / 1000)
        self.stack.callback(ledger.close)
        return ledger

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    # --- picking ------------------------------------------------------------------------------------------------

    def ledger(self, side: bool) -> Ledger:
        counted["steps"] += 1
        self.rested += 1
        self.clock.tick()
        return self.ledgers[side]

    def turn_at(self, pick: int) -> PlainTurn:
        return list(self.plain.turns.values())[pick % len(self.plain.turns)]

    def session_at(self, pick: int) -> PlainSession:
        self.touched = list(self.plain.sessions.values())[pick % len(self.plain.sessions)]
        return self.touched

    def writer_at(self, pick: int) -> tuple[TurnWriter, PlainSession | None, PlainTurn]:
        turn = list(self.writers)[pick % len(self.writers)]
        return *self.writers[turn], self.plain.turns[turn]

    def beat(self, pick: int) -> tuple[TurnWriter, PlainTurn]:
        """A writer that is about to show life."""
        self.ledger(False)
        writer, session, turn = self.writer_at(pick)
        if session is not None:
            session.beat = self.clock.now_ms()
        return writer, turn

    def say(self) -> str:
        """Words that nobody said before; some of them so many that they are worth packing."""
        self.said += 1
        return f"text {self.said}" + " and more" * (self.said % 4 // 3 * 20)

    def refused(self, error: type[WeftError] | tuple[type[WeftError], ...], call: Callable[[], object]) -> None:
        with pytest.raises(error):
            call()

    def take(self, session: PlainSession | None, wait: float, call: Callable[[], Any]) -> Any:
        """Work that needs the session: refused while somebody holds it, or taken from them after a silence."""
        if session is None or session.held_by is None:
            return call()
        try:
            made = call()
        except SessionBusy:
            assert wait == 0
            return None
        assert self.clock.now_ms() - session.beat >= TTL_MS, "taken from a writer that showed life"
        self.lost += [found[0] for turn, found in self.writers.items() if turn == session.held_by]
        self.writers.pop(session.held_by, None)
        self.plain.abandon(session)
        return made

    # --- recording ----------------------------------------------------------------------------------------------

    def joined(self, ledger: Ledger, name: str) -> PlainSession:
        """The session of this name, which the work before has made if there was none."""
        return self.plain.find(name) or self.plain.add_session(ledger.session(name).id, name)

    @rule(side=sides, name=names, fails=st.sampled_from([False] * 4 + [True]), calls=st.integers(0, 2), wait=patience)
    def record(self, side: bool, name: str, fails: bool, calls: int, wait: float) -> None:
        self._record(side, name, fails, calls, wait)

    @rule(side=sides, name=names, turns=st.integers(2, 4), calls=st.integers(0, 2))
    def record_several(self, side: bool, name: str, turns: int, calls: int) -> None:
        """One after the other, as most turns are recorded: nothing comes between them."""
        for _ in range(turns):
            self._record(side, name, False, calls, 0)

    def _record(self, side: bool, name: str, fails: bool, calls: int, wait: float) -> None:
        ledger, query, known = self.ledger(side), self.say(), self.plain.find(name)
        fields: dict[str, Any] = {
            "session": name, "query": query, "response": f"re: {query}", "wait": wait, "error": "x" if fails else None,
            "usage": {"output_tokens": self.said}, "tool_calls": [{"id": f"c{i}", "name": "t"} for i in range(calls)],
        }  # fmt: skip
        if known is not None and known.status == "archived":
            return self.refused(NotApplicable, lambda: ledger.record_turn(**fields))
        made = self.take(known, wait, lambda: ledger.record_turn(**fields))
        if made is not None:
            session = self.joined(ledger, name)
            turn = self.plain.add_turn(made.id, session.head, session.head_events, session=session)
            turn.events += [query, None, *[None] * 2 * calls, f"re: {query}", None]
            turn.calls = {f"c{i}": "ok" for i in range(calls)}
            turn.status, turn.tokens = "failed" if fails else "completed", self.said
            assert made.digest == ledger.turn(made.id).digest
            if not fails:
                session.move(turn.id)

    @precondition(lambda self: self.plain.turns)
    @rule(side=sides, pick=picks)
    def record_beside(self, side: bool, pick: int) -> None:
        parent, query = self.turn_at(pick), self.say()
        made = self.ledger(side).record_turn(parent=parent.id, query=query)
        turn = self.plain.add_turn(made.id, parent.id, None)
        turn.events += [query, None]
        turn.status = "completed"

    @rule(side=sides, name=names | st.none(), wait=patience)
    def begin(self, side: bool, name: str | None, wait: float) -> None:
        ledger, known = self.ledger(side), None if name is None else self.plain.find(name)
        if known is not None and known.status == "archived":
            return self.refused(NotApplicable, lambda: ledger.begin_turn(session=name, wait=wait))
        writer = self.take(known, wait, lambda: ledger.begin_turn(session=name, wait=wait))
        if writer is not None:
            session = None if name is None else self.joined(ledger, name)
            at = (None, None) if session is None else (session.head, session.head_events)
            self.plain.add_turn(writer.id, *at, session=session)
            self.writers[writer.id] = (writer, session)
            if session is not None:
                session.held_by, session.beat = writer.id, self.clock.now_ms()

    @precondition(lambda self: self.writers)
    @rule(pick=picks, what=st.sampled_from(["message", "response", "renew"]))
    def step(self, pick: int, what: str) -> None:
        writer, turn = self.beat(pick)
        if what == "renew":
            return writer.renew()
        text = self.say()
        turn.events.append(text)
        if what == "message":
            writer.message(text)
        else:
            writer.response(text, usage={"input_tokens": 1})
            turn.tokens += 1
        return None

    @precondition(lambda self: self.writers)
    @rule(pick=picks)
    def call_tool(self, pick: int) -> None:
        writer, turn = self.beat(pick)
        turn.calls[writer.tool_call("t", id=f"c{len(turn.calls)}")] = None
        turn.events.append(None)

    @precondition(lambda self: any(self.plain.turns[turn].open_calls for turn in self.writers))
    @rule(fails=st.booleans())
    def answer_call(self, fails: bool) -> None:
        pick = next(i for i, turn in enumerate(self.writers) if self.plain.turns[turn].open_calls)
        writer, turn = self.beat(pick)
        call = turn.open_calls[0]
        writer.tool_result(call, self.say(), status="error" if fails else None)
        turn.calls[call] = "error" if fails else "ok"
        turn.events.append(None)

    @precondition(lambda self: self.writers)
    @rule(pick=picks, how=st.sampled_from(["finish", "fail", "interrupt"]))
    def end(self, pick: int, how: str) -> None:
        writer, session, turn = self.writer_at(pick)
        self.ledger(False)
        if how == "finish" and turn.open_calls:
            return self.refused(NotApplicable, writer.finish)
        writer.fail("x") if how == "fail" else getattr(writer, how)()
        turn.close("failed" if how == "fail" else "completed", interrupted=how == "interrupt" or bool(turn.open_calls))
        del self.writers[turn.id]
        if session is not None:
            session.held_by = None
            if how != "fail":
                session.move(turn.id)

    @precondition(lambda self: self.lost)
    @rule(pick=picks, what=st.sampled_from(["message", "finish", "renew"]))
    def step_too_late(self, pick: int, what: str) -> None:
        writer = self.lost[pick % len(self.lost)]
        self.ledger(False)
        self.refused(LeaseLost, lambda: writer.message("late") if what == "message" else getattr(writer, what)())

    @precondition(lambda self: any(turn.awaits_results for turn in self.plain.turns.values()))
    @rule(side=sides)
    def late_result(self, side: bool) -> None:
        turn = next(turn for turn in self.plain.turns.values() if turn.awaits_results)
        call = next(call for call, outcome in turn.calls.items() if outcome == "interrupted")
        self.ledger(side).record_late_result(turn.id, call, "late")
        turn.calls[call] = "ok"

    # --- heads --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.plain.turns)
    @rule(side=sides, pick=picks, at=picks, name=names, inside=st.booleans())
    def fork(self, side: bool, pick: int, at: int, name: str, inside: bool) -> None:
        ledger, turn = self.ledger(side), self.turn_at(pick)
        position = at % len(turn.events) if inside else len(turn.events) - 1
        point = ledger.events(turn.id)[position].id if inside else turn.id
        if self.plain.find(name) is not None:
            return self.refused(LabelTaken, lambda: ledger.fork(point, label=name))
        session = self.plain.add_session(ledger.fork(point, label=name).id, name)
        whole = turn.closed and position == len(turn.events) - 1
        session.move(turn.id, None if whole else position + 1)

    @precondition(lambda self: self.plain.sessions)
    @rule(side=sides, pick=picks, to=picks, how=st.sampled_from(["move", "reset", "restore"]), inside=st.booleans())
    def move(self, side: bool, pick: int, to: int, how: str, inside: bool) -> None:
        ledger, session = self.ledger(side), self.session_at(pick)
        number, target, new = to % (len(session.history) or 1), NOWHERE, None
        if how == "move" and self.plain.turns:
            new, target = self.destination(ledger, self.turn_at(to), pick if inside else -1)
        elif how == "restore":
            if session.status != "active" or not session.history:
                return self.refused(NotFound, lambda: ledger.heads.restore(session.id, len(session.history) + 1))
            target = session.history[-1 - number]
        verbs: dict[str, Callable[[], object]] = {
            "move": lambda: ledger.move_head(session.id, new=new, expected=session.head),
            "reset": lambda: ledger.heads.reset(session.id),
            "restore": lambda: ledger.heads.restore(session.id, number),
        }
        if not self.take(session, 0, verbs[how]):
            return None
        if new is not None and new in self.plain.turns and self.plain.turns[new].closed:
            target = (new, None)  # a turn that was taken from a silent writer has ended by then
        return session.move(*target)

    def destination(self, ledger: Ledger, turn: PlainTurn, at: int) -> tuple[str, tuple[str, int | None]]:
        """The id to move to, and where the head then stands: at one of the turn's events, or (-1) at its end."""
        position = len(turn.events) - 1 if at < 0 else at % len(turn.events)
        whole = turn.closed and position == len(turn.events) - 1
        new = turn.id if at < 0 else ledger.events(turn.id)[position].id
        return new, (turn.id, None if whole else position + 1)

    # --- names --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.plain.sessions)
    @rule(side=sides, pick=picks, name=names, how=st.sampled_from(["rename", "alias"]))
    def call_it(self, side: bool, pick: int, name: str, how: str) -> None:
        ledger, session, taken = self.ledger(side), self.session_at(pick), self.plain.find(name)
        free = taken is None or (how == "rename" and taken is session and session.label != name)
        verbs: dict[str, Callable[[], object]] = {
            "rename": lambda: ledger.labels.rename(session.id, name),
            "alias": lambda: ledger.labels.add_alias(name, session.id),
        }
        if not free:
            return self.refused(LabelTaken, verbs[how])
        if session.status == "deleted":
            return None  # it has no name to look it up by afterwards
        verbs[how]()
        session.words.add(name)
        if how == "rename":
            session.label = name
        else:
            self.plain.aliases[name] = session.id
        return None

    @precondition(lambda self: self.plain.sessions)
    @rule(side=sides, pick=picks, how=st.sampled_from(["archive", "delete", "unarchive"]))
    def set_aside(self, side: bool, pick: int, how: str) -> None:
        ledger, session = self.ledger(side), self.session_at(pick)
        other = self.plain.find(session.label)
        verb = {
            "archive": ledger.labels.archive, "delete": ledger.labels.delete, "unarchive": ledger.labels.unarchive,
        }[how]  # fmt: skip
        if how != "delete" and session.status == "deleted" and other is not None:
            return self.refused(LabelTaken, lambda: verb(session.id))
        verb(session.id)
        session.status = {"archive": "archived", "delete": "deleted", "unarchive": "active"}[how]
        return None

    # --- compactions --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.plain.sessions)
    @rule(side=sides, pick=picks, keep=picks, beside=st.booleans(), wait=patience)
    def compact(self, side: bool, pick: int, keep: int, beside: bool, wait: float) -> None:
        ledger, session = self.ledger(side), self.session_at(pick)
        thread = [] if session.head is None else self.plain.ancestry(session.head)
        kept = thread[keep % len(thread)] if thread and keep % 3 else None
        place: dict[str, Any] = {"parent": session.head} if beside else {"session": session.id, "wait": wait}
        call = lambda: ledger.compactions.record(summary=self.say(), first_kept=kept, **place)  # noqa: E731
        if session.head is None or kept == thread[0]:
            return self.refused((SessionBusy, NotApplicable), call)
        made = self.take(None if beside else session, wait, call)
        if made is not None:
            turn = self.plain.add_turn(
                made.id,
                session.head,
                None if beside else session.head_events,
                kind="compaction",
                session=None if beside else session,
            )
            turn.events += [None, None]
            turn.status = "completed"
            if not beside:
                session.move(turn.id)
        return None

    @precondition(lambda self: self.plain.sessions)
    @rule(side=sides, pick=picks, which=picks, undo=st.sampled_from([False, False, True]))
    def choose(self, side: bool, pick: int, which: int, undo: bool) -> None:
        ledger, session = self.ledger(side), self.session_at(pick)
        made = [turn for turn in self.plain.turns.values() if turn.kind == "compaction"]
        chosen = None if undo or not made else made[which % len(made)]
        fits = chosen is None or self.belongs(ledger, chosen, session)
        wanted = None if chosen is None else chosen.id
        if not fits:
            return self.refused(NotApplicable, lambda: ledger.compactions.choose(session.id, wanted))
        return ledger.compactions.choose(session.id, wanted)

    def belongs(self, ledger: Ledger, compaction: PlainTurn, session: PlainSession) -> bool:
        """The thread holds what was compacted, and of the last turn summarised just as many events."""
        if session.head is None or compaction.parent not in self.plain.ancestry(session.head):
            return False
        through = ledger.compactions.get(compaction.id).summarized_through
        ours = self.plain.events_seen(through, session.head, session.head_events)
        return ours == self.plain.events_seen(through, compaction.id, None)

    # --- erasing and packing ------------------------------------------------------------------------------------

    @precondition(lambda self: self.plain.turns)
    @rule(side=sides, pick=picks)
    def erase_turn(self, side: bool, pick: int) -> None:
        ledger, turn = self.ledger(side), self.turn_at(pick)
        if not turn.closed:
            return self.refused(NotApplicable, lambda: ledger.erasure.erase(turn.id, reason="asked to"))
        ledger.erasure.erase(turn.id, reason="asked to")
        return turn.erase()

    @precondition(lambda self: self.plain.sessions)
    @rule(side=sides, pick=picks)
    def erase_session(self, side: bool, pick: int) -> None:
        ledger, session = self.ledger(side), self.session_at(pick)
        if not all(turn.closed for turn in self.plain.own_turns(session)):
            return self.refused(NotApplicable, lambda: ledger.erasure.erase(session.id, reason="asked to"))
        ledger.erasure.erase(session.id, reason="asked to")
        return self.plain.erase(session, ledger.session(session.id).label)

    @precondition(lambda self: self.plain.turns)
    @rule(side=sides, pack=st.booleans())
    def pack(self, side: bool, pack: bool) -> None:
        """Where the bytes lie changes; nothing that anybody is told does."""
        ledger = self.ledger(side)
        done = ledger.upkeep.pack() if pack else ledger.upkeep.unpack()
        assert done.complete

    # --- coming and going ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.rested >= 12)
    @rule(side=sides, cleanly=st.booleans())
    def reopen(self, side: bool, cleanly: bool) -> None:
        """The writers of a ledger that is closed or dropped never come back. What was held when it is dropped stays
        held; closing it fails what was open."""
        gone, self.rested = self.ledger(side), 0
        if cleanly:
            self.give_up(gone)
        self.writers = {turn: found for turn, found in self.writers.items() if found[0]._writer is not gone._writer}
        self.lost = [writer for writer in self.lost if writer._writer is not gone._writer]
        if cleanly:
            gone.close()
        self.ledgers[side] = self._open()

    def give_up(self, gone: Ledger) -> None:
        for turn, (writer, session) in self.writers.items():
            if writer._writer is gone._writer:
                self.plain.turns[turn].close("failed", interrupted=True)
                if session is not None:
                    session.held_by = None

    @precondition(lambda self: self.plain.turns and self.rested >= 8)
    @rule(side=sides)
    def checkpoint(self, side: bool) -> None:
        check_all(self.ledger(side), self.plain)

    @invariant()
    def nothing_is_broken(self) -> None:
        check_step(self.sql, self.plain)
        check_names(self.ledgers[0], self.plain, NAMES)
        if self.touched is not None and self.touched.head is not None:
            check_context(self.ledgers[1], self.plain, self.touched)


def run_steps(
    total: int,
    number: int,
    place: Path | None,
    machine: type[LedgerMachine] = LedgerMachine,
    examples: int = EXAMPLES,
) -> tuple[int, int]:
    """Machines from this seed on until so many steps are made; returns the steps and the last seed."""
    counted["steps"] = 0
    while counted["steps"] < total:
        seeded = seed(number)(type("SeededMachine", (machine,), {"place": place}))
        run_state_machine_as_test(seeded, settings=settings(SETTINGS, max_examples=examples))
        number += 1
    return counted["steps"], number - 1


@pytest.mark.slow("200 steps, and nine questions in SQL after each")
@pytest.mark.usefixtures("turn_path")
@pytest.mark.parametrize("shard", share(range(SHARDS), test=1))
@pytest.mark.parametrize("turn_path", ["straight"], indirect=True)
def test_whatever_is_done_in_whatever_order_the_invariants_hold(
    shard: int, memory_folder: Path | None, record_property: Callable[[str, object], None]
) -> None:
    first = FIRST_SEED + 1000 * shard
    steps, last = run_steps(STEPS, first, memory_folder)
    record_property("measured", f"{steps:,} steps")
    print(f"{steps:,} steps with seeds {first} to {last}")
    assert steps >= STEPS
