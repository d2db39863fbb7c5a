"""A watch: what closes is a fact, what is open is provisional, whatever happens to the files meanwhile."""

import os
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

import weft
from tests.exchange.conftest import take
from tests.exchange.timeline import START_MS, Action, Stage
from tests.exchange.toy import Toy
from tests.postgres import shared_server
from tests.surfaces.test_cli_import import SESSION as SESSION_ID
from tests.surfaces.test_cli_import import line
from weft import Ledger
from weft.exchange.importers.port import Report, Source, Transcript, load_importers
from weft.exchange.importing.watch import (
    SourceGone,
    SourceImported,
    SourceTroubled,
    WatchBegan,
    WatchCaughtUp,
    WatchEvent,
)
from weft.kernel.clock import iso_from_ms
from weft.kernel.contents import ERASED

SESSION = {"session": "s1", "title": "First"}
ONE = {"id": "t1", "ask": "hi", "answer": "yo"}
TWO = {"id": "t2", "parent": "t1", "ask": "and?", "answer": "so"}
OPEN = {"id": "t2", "parent": "t1", "ask": "and?", "open": True}


@pytest.fixture
def stage(ledger: Ledger, sources: Path) -> Stage:
    return Stage(ledger, sources)


@pytest.fixture
def on_server(sources: Path) -> Iterator[Stage]:
    with weft.open(shared_server().address()) as ledger:
        yield Stage(ledger, sources)


def texts(ledger: Ledger, session: str = "s1") -> list[str]:
    return [message.text for message in ledger.thread(session).messages]


def imported(happened: list[WatchEvent]) -> list[tuple[int, int]]:
    return [(each.turns, each.open_turns) for each in happened if isinstance(each, SourceImported)]


def noted(*things: object) -> tuple[list[object], Action]:
    """What a test saw at some moment."""
    seen: list[object] = []

    def act() -> None:
        seen.extend(thing() if callable(thing) else thing for thing in things)

    return seen, act


def test_a_watch_takes_what_is_there_and_then_what_comes(stage: Stage) -> None:
    stage.write("a.jsonl", SESSION, ONE)()
    happened = stage.follow((5, stage.add("a.jsonl", TWO)), end=8)
    assert isinstance(happened[0], WatchBegan)
    assert happened[0].files == 1
    assert [type(each) for each in happened] == [WatchBegan, SourceImported, WatchCaughtUp, SourceImported]
    assert texts(stage.ledger) == ["hi", "yo", "and?", "so"]


def test_a_turn_is_here_within_two_seconds_of_its_closing_record(stage: Stage) -> None:
    seen, look = noted(lambda: texts(stage.ledger))
    stage.follow((5, stage.write("a.jsonl", SESSION, ONE)), (7, look), end=8)
    assert seen == [["hi", "yo"]]


def test_a_change_of_a_warm_file_that_no_notice_told_is_found_within_two_seconds(stage: Stage) -> None:
    stage.write("a.jsonl", SESSION, ONE)()
    seen, look = noted(lambda: texts(stage.ledger))
    stage.follow((5, stage.add("a.jsonl", TWO, told=False)), (7, look), end=8)
    assert seen == [["hi", "yo", "and?", "so"]]


def test_a_sweep_finds_what_no_notice_told(stage: Stage) -> None:
    stage.follow((5, stage.write("deep/new.jsonl", SESSION, ONE, told=False)), end=70)
    assert texts(stage.ledger) == ["hi", "yo"]


def test_a_new_folder_is_swept_when_it_is_told(stage: Stage) -> None:
    def filled() -> list[Path]:
        stage.write("deep/er/a.jsonl", SESSION, ONE, told=False)()
        return [stage.folder / "deep"]

    seen, look = noted(lambda: texts(stage.ledger))
    stage.follow((5, filled), (7, look), end=8)
    assert seen == [["hi", "yo"]]


def test_an_open_tail_is_provisional_until_it_is_a_turn(stage: Stage) -> None:
    stage.write("a.jsonl", SESSION, ONE, OPEN)()
    seen, look = noted(lambda: stage.ledger.imports.provisional("s1"), lambda: texts(stage.ledger))
    stage.follow((5, look), (6, stage.write("a.jsonl", SESSION, ONE, TWO)), end=9)
    (tails, said) = seen
    assert isinstance(tails, list)
    (tail,) = tails
    assert (tail.items[0].role, tail.items[0].text, tail.items_so_far) == ("user", "and?", 1)
    assert tail.parent_id == stage.ledger.turn("s1").parent_id
    assert said == ["hi", "yo"]
    assert stage.ledger.imports.provisional() == []
    assert texts(stage.ledger) == ["hi", "yo", "and?", "so"]


def told(second: int, uuid: str, parent: str | None, reason: str | None = None) -> str:
    """A line of Claude Code: a prompt, or an answer after which the model stopped for this reason."""
    at = iso_from_ms(START_MS + 1000 * second)
    if reason is None:
        return line(uuid, parent, "user", uuid, timestamp=at)
    record = orjson.loads(line(uuid, parent, "assistant", [{"type": "text", "text": uuid}], timestamp=at))
    record["message"]["stop_reason"] = reason
    return orjson.dumps(record).decode() + "\n"


def test_a_turn_of_claude_code_ends_with_the_last_answer_of_the_model(ledger: Ledger, sources: Path) -> None:
    stage = Stage(ledger, sources, load_importers("claude-code"))
    seen, look = noted(lambda: texts(ledger, SESSION_ID) if any(one.head for one in ledger.sessions()) else [])
    stage.follow(
        (5, stage.add("a.jsonl", told(5, "u0", None), told(5, "a0", "u0", "tool_use"))),
        (12, look),
        (13, stage.add("a.jsonl", told(13, "a1", "a0", "end_turn"))),
        (15, look),
        (18, look),
        (19, stage.add("a.jsonl", told(19, "a2", "a1", "end_turn"))),
        (24, look),
        (25, stage.add("a.jsonl", told(25, "u1", "a2"))),
        end=30,
    )
    assert seen[:2] == [[], []], "a call of a tool, and an answer to which hooks may still add"
    assert seen[2:] == [["u0", "a0", "a1"], ["u0", "a0", "a1", "a2"]], "what comes later makes the turn longer"
    assert [tail.items[0].text for tail in ledger.imports.provisional()] == ["u1"]


def test_a_watch_is_the_same_over_postgresql(on_server: Stage) -> None:
    on_server.write("a.jsonl", SESSION, ONE, {**OPEN, "ask": "nul \0 and \ud800"})()
    seen, look = noted(lambda: on_server.ledger.imports.provisional("s1"))
    on_server.follow((5, look), (6, on_server.write("a.jsonl", SESSION, ONE, TWO)), end=9)
    assert [[item.text for item in tail.items] for tail in seen[0]] == [["nul \ufffd and \ufffd"]]  # type: ignore[attr-defined]
    assert on_server.ledger.imports.provisional() == []
    assert texts(on_server.ledger) == ["hi", "yo", "and?", "so"]


def test_an_open_tail_is_a_turn_once_its_file_is_quiet(stage: Stage) -> None:
    stage.write("a.jsonl", SESSION, ONE, OPEN)()
    seen, look = noted(lambda: len(stage.ledger.imports.provisional()))
    stage.follow((299, look), end=310)
    assert seen == [1]
    assert stage.ledger.imports.provisional() == []
    assert texts(stage.ledger) == ["hi", "yo", "and?"]


def test_a_tail_is_never_a_fact(stage: Stage, tmp_path: Path) -> None:
    canary = "words that are only open"
    stage.write("a.jsonl", SESSION, ONE, {**OPEN, "ask": canary})()
    stage.follow(end=5)
    assert [tail.items[0].text for tail in stage.ledger.imports.provisional()] == [canary]
    with (tmp_path / "facts").open("wb") as file:
        stage.ledger.upkeep.export_facts(file)
    assert canary.encode() not in (tmp_path / "facts").read_bytes()
    assert canary.encode() not in b"".join(part.data for part in stage.ledger.imports.kept_sources("s1"))


@pytest.mark.parametrize("ahead_ms", [-10_000, 3_600_000])
def test_an_answer_is_a_turn_soon_unless_it_is_dated_later_than_its_file(stage: Stage, ahead_ms: int) -> None:
    """A clock that was wrong: such a turn is read once more and then waits, instead of being read again and again."""
    answered = {**TWO, "open": True, "answered": True, "at": START_MS + 1000 + ahead_ms}
    happened = stage.follow((1, stage.write("a.jsonl", SESSION, ONE, answered)), end=200)
    assert imported(happened) == ([(2, 0)] if ahead_ms < 0 else [(1, 1), (0, 1)])
    assert imported(stage.follow(end=400)) == ([] if ahead_ms < 0 else [(1, 0)])
    assert texts(stage.ledger) == ["hi", "yo", "and?", "so"]


def test_looking_at_an_open_tail_again_and_again_writes_no_facts(stage: Stage) -> None:
    stage.write("a.jsonl", SESSION, ONE, OPEN)()
    stage.follow(end=3)
    before = stage.ledger.upkeep.stats()["events"]
    notes = [(5.0 + 2 * n, stage.add("a.jsonl", {"note": n})) for n in range(20)]
    happened = stage.follow(*notes, end=60)
    assert len(imported(happened)) >= 20
    assert stage.ledger.upkeep.stats()["events"] == before


def test_every_byte_is_kept_once_the_tail_is_closed(stage: Stage) -> None:
    stage.write("a.jsonl", SESSION, ONE, {**TWO, "open": True})()
    notes = [(5.0 + n, stage.add("a.jsonl", {"note": n})) for n in range(5)]
    stage.follow(*notes, end=320)
    kept = stage.ledger.imports.kept_sources("s1")
    assert b"".join(part.data for part in kept) == (stage.folder / "a.jsonl").read_bytes()


def test_half_a_line_is_left_until_it_is_whole(stage: Stage) -> None:
    stage.write("a.jsonl", SESSION, ONE, '{"id": "t2", "parent"')()
    happened = stage.follow((5, stage.add("a.jsonl", ': "t1", "ask": "and?", "answer": "so"}\n')), end=8)
    assert not [each for each in happened if isinstance(each, SourceTroubled)]
    assert texts(stage.ledger) == ["hi", "yo", "and?", "so"]


def test_a_rewritten_file_shows_its_new_form(stage: Stage) -> None:
    stage.write("a.jsonl", SESSION, ONE, TWO)()
    stage.follow((5, stage.write("a.jsonl", SESSION, {**ONE, "answer": "REDACTED"}, TWO)), end=8)
    assert texts(stage.ledger) == ["hi", "REDACTED", "and?", "so"]
    assert list(stage.ledger.verify()) == []


def test_of_a_deleted_file_its_turns_stay_and_its_tail_goes(stage: Stage) -> None:
    stage.write("a.jsonl", SESSION, ONE, OPEN)()

    def delete() -> list[Path]:
        (stage.folder / "a.jsonl").unlink()
        return [stage.folder / "a.jsonl"]

    happened = stage.follow((5, delete), end=8)
    assert happened[-1] == SourceGone(str(stage.folder / "a.jsonl"))
    assert stage.ledger.imports.provisional() == []
    assert texts(stage.ledger) == ["hi", "yo"]


@pytest.mark.parametrize("told", [True, False])
def test_a_file_deleted_long_after_it_was_read_leaves_no_tail(stage: Stage, told: bool) -> None:
    """Sweeps have let go of all that a reading needs by then."""
    stage.write("a.jsonl", SESSION, ONE, OPEN)()
    path = stage.folder / "a.jsonl"

    def delete() -> list[Path]:
        assert stage.ledger.imports.provisional()
        path.unlink()
        return [path] if told else []

    stage.follow((250, delete), end=330)
    assert stage.ledger.imports.provisional() == []


def test_a_watch_begins_without_tails_of_files_that_are_gone(stage: Stage) -> None:
    stage.write("a.jsonl", SESSION, ONE, OPEN)()
    stage.follow(end=3)
    (stage.folder / "a.jsonl").unlink()
    stage.follow(end=stage.clock.monotonic() + 1)
    assert stage.ledger.imports.provisional() == []


def test_a_file_deleted_while_nobody_watched_leaves_no_tail(stage: Stage) -> None:
    stage.write("a.jsonl", SESSION, ONE, OPEN)()
    stage.follow(end=3)
    (stage.folder / "a.jsonl").unlink()
    stage.write("b.jsonl", {"session": "s2"}, {**ONE, "id": "u1"})()
    take(stage.ledger, stage.folder)
    assert stage.ledger.imports.provisional() == []


def test_the_next_watch_goes_on_where_the_last_one_was(stage: Stage) -> None:
    stage.write("a.jsonl", SESSION, ONE)()
    stage.follow(end=3)
    stage.add("a.jsonl", TWO)()
    happened = stage.follow(end=stage.clock.monotonic() + 3)
    assert imported(happened) == [(1, 0)]
    assert imported(stage.follow(end=stage.clock.monotonic() + 3)) == []


class Stumbling(Toy):
    """Fails at one file, as long as it says so."""

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        if b"stumble" in source.path.read_bytes():
            raise ValueError("a stone")
        return super().read(source, report)


def test_an_error_in_one_file_is_told_once_and_the_others_go_on(ledger: Ledger, sources: Path) -> None:
    stage = Stage(ledger, sources, [Stumbling()])
    stage.write("bad.jsonl", SESSION, {"note": "stumble"})()
    happened = stage.follow(
        (5, stage.add("bad.jsonl", {"note": "again"})),
        (6, stage.write("good.jsonl", {"session": "s2"}, ONE)),
        (8, stage.write("bad.jsonl", SESSION, TWO)),
        end=11,
    )
    (trouble,) = [each for each in happened if isinstance(each, SourceTroubled)]
    assert "a stone" in trouble.what
    assert texts(ledger, "s2") == ["hi", "yo"]
    assert texts(ledger) == ["and?", "so"]


def test_two_watches_at_once_end_as_one(stage: Stage, tmp_path: Path) -> None:
    """The second acts whenever the first waits: it reads the same changes just before it."""
    other = Stage(stage.ledger, stage.folder)
    other.clock = stage.clock
    stage.write("a.jsonl", SESSION, ONE, OPEN)()

    def second() -> None:
        other.follow(end=stage.clock.monotonic() + 0.2)

    def both() -> list[Path]:
        paths = stage.write("a.jsonl", SESSION, ONE, TWO)()
        second()
        return list(paths or ())

    stage.follow((3, second), (5, both), end=9)
    assert texts(stage.ledger) == ["hi", "yo", "and?", "so"]
    assert stage.ledger.imports.provisional() == []
    assert list(stage.ledger.verify()) == []


class Slow(Toy):
    """Takes a second for each reading."""

    def __init__(self, stage: list[Stage]) -> None:
        self._stage, self.reads = stage, 0

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        self.reads += 1
        self._stage[0].clock.sleep(1.0)
        return super().read(source, report)


def test_a_file_that_is_slow_to_read_rests_after_each_reading(ledger: Ledger, sources: Path) -> None:
    holder: list[Stage] = []
    slow = Slow(holder)
    stage = Stage(ledger, sources, [slow])
    holder.append(stage)
    stage.write("a.jsonl", SESSION, ONE, OPEN)()
    notes = [(2.0 + n / 4, stage.add("a.jsonl", {"note": n})) for n in range(160)]
    stage.follow(*notes, end=60)
    assert 11 <= slow.reads <= 18  # forty seconds of lines, and three seconds for each reading with its rest
    assert stage.ledger.imports.provisional()


def test_nothing_happens_to_files_that_do_not_change(stage: Stage) -> None:
    stage.write("a.jsonl", SESSION, ONE)()
    stage.clock.tick(1_000_000)
    happened = stage.follow(end=3600)
    assert len(imported(happened)) == 1
    assert stage.timeline is not None
    assert stage.timeline.waits < 60 + 600 + 60  # sweeps of an hour, a look each second while the file was warm
    assert stage.timeline.closed == 1


def test_a_place_that_comes_into_being_is_followed(ledger: Ledger, sources: Path) -> None:
    stage = Stage(ledger, sources / "later")
    stage.follow((5, stage.write("a.jsonl", SESSION, ONE, told=False)), end=9)
    assert texts(ledger) == ["hi", "yo"]


def test_links_out_of_a_place_are_not_followed(stage: Stage, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.jsonl"
    elsewhere.write_text('{"session": "s9"}\n')
    os.symlink(elsewhere, stage.folder / "link.jsonl")
    happened = stage.follow(end=3)
    assert imported(happened) == []


def test_an_erasure_takes_open_tails_along(stage: Stage, tmp_path: Path) -> None:
    secret = "a secret still being written"
    stage.write("a.jsonl", SESSION, ONE, {**OPEN, "ask": secret})()
    stage.follow(end=3)
    assert stage.ledger.imports.provisional()
    ledger = stage.ledger
    ledger.erasure.erase(ledger.session("s1").head or "", reason="mine")
    assert ledger.imports.provisional() == []
    stage.add("a.jsonl", {"note": 1})()
    stage.follow(end=stage.clock.monotonic() + 3)
    assert ledger.imports.provisional() == []
    ledger.close()
    held = b"".join(path.read_bytes() for path in tmp_path.glob("ledger.db*"))
    assert secret.encode() not in held


def test_what_was_erased_is_not_shown_in_the_open_turn_of_another_session(stage: Stage, tmp_path: Path) -> None:
    secret, other = "a secret that was said twice", {"id": "u1", "ask": "in another session", "answer": "yes"}
    call = {"id": "c1", "name": "run", "arguments": {"with": secret}}
    stage.write("a.jsonl", SESSION, {**ONE, "ask": secret, "calls": [call]})()
    stage.follow(end=3)
    ledger = stage.ledger
    ledger.erasure.erase(ledger.session("s1").head or "", reason="mine")
    again = {"id": "u2", "parent": "u1", "ask": secret, "answer": "as I said", "calls": [call], "open": True}
    stage.write("b.jsonl", {"session": "s2"}, other, again)()
    stage.follow(end=stage.clock.monotonic() + 3)
    (turn,) = ledger.imports.provisional("s2")
    assert [item.text for item in turn.items] == [ERASED, "as I said", ERASED]
    ledger.close()
    held = b"".join(path.read_bytes() for path in tmp_path.glob("ledger.db*"))
    assert secret.encode() not in held


def test_a_copy_of_a_ledger_takes_the_open_tails_along(stage: Stage, tmp_path: Path) -> None:
    stage.write("a.jsonl", SESSION, ONE, OPEN)()
    stage.follow(end=3)
    stage.ledger.upkeep.backup(tmp_path / "copy.db")
    with weft.open(tmp_path / "copy.db", read_only=True) as copy:
        assert copy.imports.provisional() == stage.ledger.imports.provisional()
