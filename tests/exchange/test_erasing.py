"""Erasing imported history: contents, verbatim copies and what importing remembers; and that it does not come back."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.exchange.conftest import take, written
from tests.exchange.fixtures.claude_code.story import story
from tests.ledger.canaries import CANARY, files_with_canary, told
from tests.ledger.histories import change, exported, import_into, problems, select
from weft import Ledger
from weft.exchange.importers.port import load_importers
from weft.exchange.importing.run import ImportRun
from weft.kernel.clock import SystemClock
from weft.kernel.contents import ERASED
from weft.kernel.ledger_events import Sighting

WHY = "somebody asked for it"
LONG = " and so on, at some length, as people do" * 8
SECRET: dict[str, Any] = {
    "id": "t2",
    "parent": "t1",
    "ask": told("prompt") + LONG,
    "answer": told("answer") + LONG,
    "calls": [{"id": "c1", "name": "run", "arguments": {"a": told("argument")}, "result": told("result") + LONG,
               "files": [f"/home/{CANARY}"]}],
    "workspace": f"/srv/{CANARY}",
    "branch": f"{CANARY}-branch",
    "at": 1_700_000_100_000,
}  # fmt: skip
FIRST = {"id": "t1", "ask": "hi" + LONG, "answer": "yo", "at": 1_700_000_000_000}
LAST = {"id": "t3", "parent": "t2", "ask": "and?" + LONG, "answer": "so", "at": 1_700_000_200_000}
QUOTE = {"noise": told("record that belongs to no turn")}


def kept(ledger: Ledger, session: str) -> bytes:
    return b"".join(stretch.data for stretch in ledger.imports.kept_sources(session))


def lines(path: Path, *more: Any, age: int = 0, session: str = "s1") -> Path:
    return written(path, {"session": session, "title": "First"}, FIRST, SECRET, LAST, QUOTE, *more, age=age)


def is_gone(ledger: Ledger, tmp_path: Path, sources: Path) -> bool:
    """Nothing of it in any file, any export, any kept stretch; and all is well."""
    stretches = [
        each.data for session in ledger.sessions(every=True) for each in ledger.imports.kept_sources(session.id)
    ]
    assert not any(CANARY.encode() in data for data in stretches)
    assert CANARY.encode() not in exported(ledger)
    assert files_with_canary(tmp_path, *sources.rglob("*")) == []
    assert problems(ledger) == []
    return True


def test_a_turn_goes_with_the_verbatim_copy_of_its_session(ledger: Ledger, tmp_path: Path, sources: Path) -> None:
    lines(sources / "a.jsonl")
    take(ledger, sources)
    assert CANARY.encode() in kept(ledger, "s1")
    plan = ledger.erasure.plan(ledger.resolve("s1~1"))
    assert plan.verbatim == len(ledger.imports.kept_sources("s1")) > 0
    ledger.erasure.erase(plan, reason=WHY)
    assert [stretch.erased for stretch in ledger.imports.kept_sources("s1")] == [True] * plan.verbatim
    assert is_gone(ledger, tmp_path, sources)
    asked = [message.text for message in ledger.thread("s1").messages if message.role == "user"]
    assert asked == ["hi" + LONG, ERASED, "and?" + LONG]


def test_a_session_goes_with_its_title_its_file_and_its_copy(ledger: Ledger, tmp_path: Path, sources: Path) -> None:
    path = sources / f"{CANARY}.jsonl"
    written(path, {"session": f"{CANARY}-id", "title": told("title"), "task": told("task")}, FIRST, SECRET, LAST, QUOTE)
    take(ledger, sources)
    assert CANARY in repr(select(tmp_path / "ledger.db", "SELECT name FROM import_source"))
    ledger.erasure.erase(f"{CANARY}-id", reason=WHY)
    assert is_gone(ledger, tmp_path, sources)
    assert ledger.sessions() == []
    assert take(ledger, sources).of("toy").counts.erased == 3
    ledger.upkeep.catch_up()
    assert is_gone(ledger, tmp_path, sources)
    assert take(ledger, sources).of("toy").unchanged == 1
    assert not any("gone" in found.what for found in weft.examine(ledger.path) if found.check == "imports")


@pytest.mark.parametrize("what", ["turn", "session", "content"])
def test_importing_the_same_again_brings_nothing_back(ledger: Ledger, tmp_path: Path, sources: Path, what: str) -> None:
    lines(sources / "a.jsonl")
    take(ledger, sources)
    names = {"turn": ledger.resolve("s1~1"), "session": "s1"}
    everything = [doomed.ref for doomed in ledger.erasure.plan(ledger.resolve("s1~1")).contents]
    ledger.erasure.erase(names.get(what, everything), reason=WHY)
    before = exported(ledger)
    assert take(ledger, sources).of("toy").counts.turns == 0
    change(tmp_path / "ledger.db", "DELETE FROM import_source")
    again = take(ledger, sources, remap=True).of("toy").counts
    assert (again.turns, again.erased) == (0, {"turn": 1, "session": 3, "content": 0}[what])
    assert exported(ledger) == before
    assert is_gone(ledger, tmp_path, sources)


def test_a_longer_file_brings_its_new_turns_and_nothing_that_was_erased(
    ledger: Ledger, tmp_path: Path, sources: Path
) -> None:
    lines(sources / "a.jsonl")
    take(ledger, sources)
    ledger.erasure.erase(ledger.resolve("s1~1"), reason=WHY)
    more = {"id": "t4", "parent": "t3", "ask": "more", "answer": "yes"}
    lines(sources / "a.jsonl", more, age=9)
    counts = take(ledger, sources).of("toy").counts
    assert (counts.turns, counts.erased) == (1, 1)
    assert ledger.thread("s1").depth == 4
    assert is_gone(ledger, tmp_path, sources)


def test_a_rewritten_version_of_an_erased_turn_is_passed_over(ledger: Ledger, tmp_path: Path, sources: Path) -> None:
    lines(sources / "a.jsonl")
    take(ledger, sources)
    ledger.erasure.erase(ledger.resolve("s1~1"), reason=WHY)
    told_again = {**SECRET, "answer": told("answer, told at greater length") + LONG}
    written(sources / "a.jsonl", {"session": "s1", "title": "First"}, FIRST, told_again, LAST, age=9)
    counts = take(ledger, sources).of("toy").counts
    assert (counts.turns, counts.erased) == (0, 1)
    assert is_gone(ledger, tmp_path, sources)


def test_a_copy_in_another_session_does_not_bring_it_back(ledger: Ledger, tmp_path: Path, sources: Path) -> None:
    lines(sources / "a.jsonl")
    take(ledger, sources)
    ledger.erasure.erase(ledger.resolve("s1~1"), reason=WHY)
    lines(sources / "b.jsonl", {"id": "t9", "parent": "t3", "ask": "in the copy", "answer": "yes"}, session="s2")
    counts = take(ledger, sources).of("toy").counts
    assert (counts.turns, counts.erased) == (1, 1)
    assert ledger.thread("s2").depth == 4
    assert is_gone(ledger, tmp_path, sources)


def test_a_session_erased_in_one_ledger_stays_erased_in_another_that_shares_the_secret(
    ledger: Ledger, tmp_path: Path, sources: Path
) -> None:
    lines(sources / "a.jsonl")
    take(ledger, sources)
    ledger.erasure.erase("s1", reason=WHY)
    (tmp_path / "other").mkdir()
    with weft.open(tmp_path / "other" / "other.db") as other:
        other.imports.share_with(ledger)
        import_into(other, exported(ledger))
        counts = take(other, sources).of("toy").counts
        assert (counts.turns, counts.erased) == (0, 3)
        assert is_gone(other, tmp_path / "other", sources)


def test_an_erasure_of_another_ledger_that_waits_here_stops_no_import(
    ledger: Ledger, tmp_path: Path, sources: Path
) -> None:
    lines(sources / "a.jsonl")
    take(ledger, sources)
    with weft.open(tmp_path / "other.db") as other:
        other.imports.share_with(ledger)
        take(other, sources)
        ledger.erasure.erase("s1", reason=WHY)
        import_into(other, exported(ledger))
        assert other.erasure.pending()
        lines(sources / "a.jsonl", {"id": "t4", "parent": "t3", "ask": "more", "answer": "yes"}, age=9)
        counts = take(other, sources).of("toy").counts
        assert (counts.turns, counts.erased) == (1, 0)
        assert problems(other) == []


def test_facts_from_before_do_not_bring_imported_history_back(ledger: Ledger, tmp_path: Path, sources: Path) -> None:
    lines(sources / "a.jsonl")
    take(ledger, sources)
    before = exported(ledger)
    done = ledger.erasure.erase("s1", reason=WHY)
    brought = ledger.upkeep.import_facts(io.BytesIO(before))
    assert (brought.contents, brought.erased) == (0, done.contents)
    assert is_gone(ledger, tmp_path, sources)


def test_a_real_tool_s_session_is_erased_to_the_last_record(ledger: Ledger, tmp_path: Path, sources: Path) -> None:
    path = sources / "claude.jsonl"
    spoken = story().user("p9", told("prompt")).answer("a9", told("answer")).bytes()
    path.write_bytes(spoken.replace(b'"look"', json.dumps(told("task")).encode()))
    importing = ImportRun(ledger, load_importers("claude-code"), SystemClock(), force=True)
    importing.run([path])
    for session in ledger.sessions(every=True):
        ledger.erasure.erase(session.id, reason=WHY)
    assert is_gone(ledger, tmp_path, sources)
    again = ImportRun(ledger, load_importers("claude-code"), SystemClock(), force=True, remap=True)
    assert again.run([path]).of("claude-code").counts.turns == 0
    assert is_gone(ledger, tmp_path, sources)


def test_the_name_of_a_file_goes_where_it_is_named_alone(ledger: Ledger, tmp_path: Path, sources: Path) -> None:
    name = sources / f"{CANARY}.jsonl"
    written(name, {"session": "s1", "title": "First"}, FIRST)
    take(ledger, sources)
    sighting = next(recorded.event for recorded in ledger.changes() if b'"file":"' in recorded.line)
    assert isinstance(sighting, Sighting)
    ledger.erasure.erase(str(sighting.file), reason=WHY)
    assert files_with_canary(tmp_path, name) == []
    assert problems(ledger) == []
