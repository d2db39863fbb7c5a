"""Erasing: what goes, what stays and why, and that the bytes are really gone."""

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from msgspec.structs import replace

import weft
from tests.ledger.canaries import CANARY, files_with_canary, record_everywhere, told
from tests.ledger.conftest import NOON, OpenLedger
from tests.ledger.histories import change, exported, grow, import_into, problems, queries, select, texts
from tests.ledger.imported import native_turn, rich_import, take
from tests.ledger.test_usage import response, turn_of
from tests.postgres import shared_server
from weft.kernel.clock import FixedClock
from weft.kernel.contents import ERASED
from weft.kernel.enums import LinkReason
from weft.kernel.errors import (
    ContentGone,
    ErasureChanged,
    InvalidInput,
    NotApplicable,
    NotFound,
    StoreFailed,
    WeftError,
)
from weft.ledger import erasing
from weft.ledger.api.ledger import Ledger
from weft.ledger.imports import ImportCounts
from weft.ledger.imports.imported_turns import NativeLink, NativeSession
from weft.ledger.read import content_uses
from weft.ledger.reports.usage_totals import TABLES
from weft.ledger.upkeep import ledger_copy
from weft.ledger.upkeep.doctor import examine_ledger
from weft.ledger.write.record_turn import NewTurn
from weft.ledger.write.turn_events import TurnEvents
from weft.programs import Programs
from weft.store.port import Store
from weft.store.postgres.connection import parse_address
from weft.surfaces import opening
from weft.surfaces.wire.hints import phrase

WHY = "somebody asked for it"


def everything_readable(ledger: Ledger, turn: str) -> list[Any]:
    """Ask every reader about a turn; none of them may fail."""
    messages = ledger.messages(turn)
    return [
        ledger.turn(turn), messages, ledger.tool_calls(turn), list(ledger.thread(turn).messages),
        list(ledger.thread(turn).turns), ledger.context(turn), ledger.events(turn), ledger.log(),
        ledger.sessions(every=True),
        [ledger.codeblocks(message.id) for message in messages], ledger.listing().subjects([turn]),
        ledger.listing().files([message.id for message in messages]),
        ledger.usage.report("model"), ledger.usage.report("project"),
        ledger.tree.turns(turn), ledger.tree.heads(), ledger.upkeep.stats(), ledger.reflog("main"), exported(ledger),
    ]  # fmt: skip


def test_nothing_of_an_erased_turn_is_left_in_any_file(disk: Ledger, path: Path) -> None:
    grow(disk, "main", "before")
    turn = record_everywhere(disk)
    grow(disk, "main", "after")
    assert files_with_canary(path.parent)
    digests = [found.digest for found in disk.log()]
    done = disk.erasure.erase(turn, reason=WHY)
    assert done.complete
    assert done.contents > 30
    assert files_with_canary(path.parent) == []
    assert problems(disk) == []
    assert disk.upkeep.rebuild() == 0
    assert [found.digest for found in disk.log()] == digests
    disk.close()
    assert files_with_canary(path.parent) == []


def test_no_total_holds_what_erased_metadata_said(disk: Ledger, path: Path) -> None:
    """What a tool notes of a response's cost is read out of metadata, into sums."""
    secret = 694_489_306_341  # micro-dollars; SQLite writes it in six bytes
    said = replace(response("n1", output=7), metadata={"cost": {"total": secret / 1_000_000}})
    turn = turn_of("t1", said, response("n2", output=5), started=NOON)
    disk.imports.writer("pi", 1).take(NativeSession(id="s"), (turn,), "s.jsonl", ImportCounts(), reread=True)
    assert noted_costs(disk) == secret
    assert holds_bytes(path.parent, secret.to_bytes(6, "big"))
    assert disk.erasure.erase(disk.log()[0].id, reason=WHY).complete
    assert [row for name in TOTALS for row in select(path, f"SELECT * FROM {name}")] == []
    assert not holds_bytes(path.parent, secret.to_bytes(6, "big"))
    assert (noted_costs(disk), disk.usage.report().total.total) == (None, 12)
    assert not holds_bytes(path.parent, secret.to_bytes(6, "big"))
    assert problems(disk) == []


def noted_costs(ledger: Ledger) -> int | None:
    """Of models without a price, which these count for."""
    recorded = ledger.usage.report().total.recorded
    return None if recorded is None else recorded.used


TOTALS = ("response_turn", "usage_cut", "usage_session", *(name for table in TABLES for name in table.tables))


def holds_bytes(folder: Path, data: bytes) -> bool:
    return any(data in file.read_bytes() for file in folder.iterdir())


def test_every_reader_shows_what_is_erased_as_erased(ledger: Ledger) -> None:
    (before,) = grow(ledger, "main", "before")
    turn = record_everywhere(ledger)
    ledger.erasure.erase(turn, reason=WHY)
    shown = repr(everything_readable(ledger, turn))
    assert CANARY not in shown
    assert ERASED in shown
    assert {message.text for message in ledger.messages(turn)} == {ERASED}
    assert texts(ledger.messages(before)) == ["before", "re: before"]
    assert ledger.listing().subjects([turn]) == {turn: ERASED}
    assert all(call.arguments == ERASED for call in ledger.tool_calls(turn)[:2])


def test_a_tombstone_says_who_when_and_why(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a secret", persona="ann")
    ledger.acting_as("ann").erasure.erase(turn, reason=WHY)
    assert {(found.actor, found.reason, found.turn_id) for found in ledger.erasure.done()} == {("ann", WHY, turn)}
    assert len(ledger.erasure.done()) == 2
    assert ledger.upkeep.stats()["erased_contents"] == 2


def test_a_content_that_others_use_stays_unless_it_is_taken_everywhere(ledger: Ledger) -> None:
    one, two = grow(ledger, "main", "said twice", "said twice")
    plan = ledger.erasure.plan(one)
    assert plan.contents == ()
    assert {user for staying in plan.stays for user in staying.used_by} == {f"turn {two}"}
    assert ledger.erasure.erase(one, reason=WHY).contents == 0
    assert texts(ledger.messages(two)) == ["said twice", "re: said twice"]
    wide = ledger.erasure.plan(one, everywhere=True)
    assert wide.reached == (two,)
    ledger.erasure.erase(wide, reason=WHY)
    assert texts(ledger.messages(two)) == [ERASED, ERASED]
    assert problems(ledger) == []


def test_words_that_also_name_something_are_a_content_of_their_own(ledger: Ledger) -> None:
    """The very same text object as what was said, as a call's id, and as the label of the sessions."""
    word, other, third = "hello there", "over there", "somebody else"
    call = {"id": other, "name": "Task", "result": third, "spawned_session": other}
    turn = ledger.record_turn(session=word, query=word, response=third, persona=third, tool_calls=[call])
    assert problems(ledger) == []
    ledger.erasure.erase(turn.id, reason=WHY)
    assert {message.text for message in ledger.messages(turn.id)} == {ERASED}
    assert {session.label for session in ledger.sessions()} == {word, other}
    assert ledger.turn(turn.id).persona_id == third
    assert problems(ledger) == []
    assert ledger.upkeep.rebuild() == 0


def test_a_content_goes_wherever_it_is_used(ledger: Ledger) -> None:
    one, two = grow(ledger, "main", "said twice", "said twice")
    ledger.fork(two, label="alt")
    ref = ledger.erasure.plan(one, everywhere=True).contents[0].ref
    plan = ledger.erasure.plan(ref)
    assert [doomed.ref for doomed in plan.contents] == [ref]
    assert set(plan.reached) == {one, two}
    assert {session.label for session in plan.sessions} == {"main", "alt"}
    ledger.erasure.erase(ref, reason=WHY)
    assert [message.text for message in ledger.thread("alt").messages] == [ERASED, "re: said twice"] * 2
    with pytest.raises(ContentGone):
        list(ledger.read_content(ref))


def test_a_session_goes_with_its_label_but_for_turns_that_a_fork_contains(disk: Ledger, path: Path) -> None:
    shared, own = grow(disk, f"{CANARY} label", "kept by the fork", told("query"))
    disk.fork(shared, label="alt")
    disk.labels.add_alias(f"{CANARY}-nick", f"{CANARY} label")
    disk.move_head(f"{CANARY} label", new=own, reason=told("reason"))
    session = disk.session(f"{CANARY} label").id
    plan = disk.erasure.plan(f"{CANARY} label")
    assert [(held.id, held.sessions) for held in plan.held] == [(shared, ("alt",))]
    assert plan.turns == (own,)
    assert [(found.label, found.named) for found in plan.sessions] == [(f"{CANARY} label", True)]
    disk.erasure.erase(plan, reason=WHY)
    assert (disk.session(session).label, disk.session(session).status) == (session, "deleted")
    assert [one.label for one in disk.sessions()] == ["alt"]
    assert texts(disk.messages(shared)) == ["kept by the fork", "re: kept by the fork"]
    assert files_with_canary(path.parent) == []
    assert problems(disk) == []


def test_a_session_keeps_the_turns_that_another_goes_on_from_across_a_link(ledger: Ledger) -> None:
    first = native_turn("t1", end=10)
    take(ledger, "first", first, native_turn("t2", parent=0, offset=10, end=20))
    link = NativeLink(to="t2", why=LinkReason.CONTINUATION)
    take(ledger, "second", native_turn("k1", link=link, end=5), file="b.jsonl")
    turns = [turn.id for turn in ledger.thread("second").turns]
    assert len(turns) == 3
    assert {session.label for session in ledger.tree.sessions_containing(turns[0])} == {"first", "second"}
    plan = ledger.erasure.plan("first")
    assert (plan.turns, {(held.id, held.sessions) for held in plan.held}) == ((), {(t, ("second",)) for t in turns[:2]})
    assert {session.label for session in ledger.erasure.plan(turns[0]).sessions} == {"first", "second"}
    assert set(ledger.erasure.plan(["first", "second"]).turns) == set(turns)
    ledger.erasure.erase(["first", "second"], reason="both")
    assert problems(ledger) == []


def test_a_tree_goes_with_all_its_sessions(disk: Ledger, path: Path) -> None:
    first, second = grow(disk, "main", told("one"), told("two"))
    disk.fork(first, label=f"{CANARY}-fork")
    grow(disk, f"{CANARY}-fork", told("three"))
    disk.compactions.record(session="main", summary=told("summary"), metadata=told("compaction"))
    grow(disk, "apart", "not of this tree")
    disk.erasure.erase(second, reason=WHY, tree=True)
    assert [session.label for session in disk.sessions()] == ["apart"]
    assert files_with_canary(path.parent) == []
    assert problems(disk) == []
    assert all(message.text == ERASED for message in disk.context(disk.tree.heads()[0].id).messages)


def test_an_agent_goes_by_its_id_once_its_name_is_erased(disk: Ledger, path: Path) -> None:
    disk.record_turn(session="main", persona=f"{CANARY} agent", query="q", response="r")
    made = next(found for found in disk.changes() if b"agent_created" in found.line)
    disk.erasure.erase(str(made.event.name), reason=WHY)  # type: ignore[union-attr]
    assert disk.turn("main").persona_id == made.event.stream.partition(":")[2]
    assert files_with_canary(path.parent) == []
    assert problems(disk) == []


def test_erasing_twice_is_nothing_and_says_so(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "once")
    ledger.erasure.erase(turn, reason=WHY)
    events = ledger.upkeep.stats()["events"]
    again = ledger.erasure.erase(turn, reason=WHY)
    assert (again.contents, again.erased_already) == (0, 2)
    assert ledger.upkeep.stats()["events"] == events


def test_a_session_goes_although_others_use_all_that_it_holds(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "shared")
    first = ledger.fork(turn, label="alt").id
    ledger.labels.delete("alt")
    second = ledger.fork(turn, label="alt").id
    assert ledger.erasure.plan("alt").contents == ()
    assert ledger.erasure.erase("alt", reason=WHY).sessions == 1
    assert [ledger.session(id).status for id in (first, second)] == ["deleted", "deleted"]
    assert ledger.erasure.erase(second, reason=WHY).sessions == 0
    assert texts(ledger.messages(turn)) == ["shared", "re: shared"]
    assert problems(ledger) == []


def test_an_open_turn_is_not_erased(ledger: Ledger) -> None:
    grow(ledger, "main", "a")
    with ledger.begin_turn(session="main") as turn:
        turn.message("being said")
        for what in (turn.id, "main"):
            with pytest.raises(NotApplicable):
                ledger.erasure.erase(what, reason=WHY)
        turn.finish()
    ledger.erasure.erase(turn.id, reason=WHY)


@pytest.mark.parametrize("what", ["nobody", "0" * 64, []])
def test_what_is_not_there_is_not_erased(ledger: Ledger, what: Any) -> None:
    with pytest.raises((NotFound, InvalidInput)):
        ledger.erasure.erase(what, reason=WHY)


def test_an_erasure_needs_a_reason_and_an_actor_who_may(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a")
    with pytest.raises(InvalidInput):
        ledger.erasure.erase(turn, reason=" ")
    with pytest.raises(NotApplicable):
        ledger.acting_as("imported").erasure.erase(turn, reason=WHY)
    assert ledger.erasure.done() == []


def test_a_plan_that_no_longer_holds_is_refused(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "said once so far")
    plan = ledger.erasure.plan(turn)
    grow(ledger, "main", "said once so far")
    with pytest.raises(ErasureChanged):
        ledger.erasure.erase(plan, reason=WHY)
    grow(ledger, "other", "nothing to do with it")
    plan = ledger.erasure.plan(turn, everywhere=True)
    grow(ledger, "other", "nothing to do with it either")
    ledger.erasure.erase(plan, reason=WHY)


def test_equal_words_after_an_erasure_are_another_content(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "hello")
    ledger.erasure.erase(turn, reason=WHY)
    (again,) = grow(ledger, "main", "hello")
    assert texts(ledger.messages(again)) == ["hello", "re: hello"]
    assert problems(ledger) == []


def test_another_open_ledger_does_not_go_on_using_what_was_erased(open_ledger: OpenLedger) -> None:
    ours, theirs = open_ledger(), open_ledger()
    grow(theirs, "main", "first")
    (turn,) = grow(theirs, "main", "hello")
    ours.erasure.erase(turn, reason=WHY)
    (again,) = grow(theirs, "main", "hello")
    assert texts(theirs.messages(again)) == ["hello", "re: hello"]
    assert problems(ours) == []


def test_a_content_put_before_and_erased_since_cannot_be_recorded(ledger: Ledger) -> None:
    stored = ledger.put_content(b"x" * 10)
    grow(ledger, "main", "a")
    ledger.erasure.erase(stored.ref, reason=WHY)
    with pytest.raises(ContentGone):
        ledger.record_turn(session="main", query=stored)


def test_erasing_goes_on_while_others_read_and_write(disk: Ledger) -> None:
    turns = grow(disk, "main", *(told(f"query {i}") for i in range(8)))
    stop, errors = threading.Event(), []

    def work(name: str) -> None:
        try:
            while not stop.is_set():
                grow(disk, name, f"{name} goes on")
                list(disk.thread("main").messages)
        except Exception as error:  # whatever it is, the test must hear of it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for turn in turns:
        disk.erasure.erase(turn, reason=WHY)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert problems(disk) == []
    assert {message.text for message in disk.thread("main").messages} == {ERASED}


def erase_beside(
    ledger: Ledger, turn: str, append: Callable[[], str], step: tuple[type, str], patch: pytest.MonkeyPatch
) -> str:
    """Erase a turn. Once that is committed, before it goes on, another thread's append runs as far as `step`, between
    two of its events; it goes on before the files are made clean. Returns what came of it."""
    begun, let_go, came = threading.Event(), threading.Event(), []
    take_step, commit, clean = getattr(*step), ledger._store.write, erasing._try_finish
    plan = ledger.erasure.plan(turn)

    def stop(*arguments: Any, **fields: Any) -> Any:
        begun.set()
        let_go.wait()
        return take_step(*arguments, **fields)

    def go_on() -> None:
        try:
            came.append(append())
        except WeftError as error:
            came.append(repr(error))
        finally:
            begun.set()

    def commit_and_meet(*arguments: Any) -> Any:
        made = commit(*arguments)
        patch.setattr(ledger._store, "write", commit)
        writer.start()
        begun.wait()
        return made

    def part_and_clean(store: Store) -> bool:
        let_go.set()
        writer.join()
        return clean(store)

    writer = threading.Thread(target=go_on)
    patch.setattr(*step, stop)
    patch.setattr(ledger._store, "write", commit_and_meet)
    patch.setattr(erasing, "_try_finish", part_and_clean)
    assert ledger.erasure.erase(plan, reason=WHY).complete
    return came[0]


def test_an_erasure_takes_no_rows_from_a_turn_that_is_being_recorded(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    (turn,) = grow(ledger, "main", "a secret")
    grow(ledger, "other", "before")
    came = erase_beside(ledger, turn, lambda: grow(ledger, "other", "meanwhile")[0], (NewTurn, "write"), monkeypatch)
    assert came == ledger.turn("other").id
    assert queries(ledger, "other") == ["before", "meanwhile"]
    assert problems(ledger) == []


def test_an_erasure_takes_no_rows_from_a_turn_that_is_being_ended(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    (turn,) = grow(ledger, "main", "a secret")
    with ledger.begin_turn(session="other") as writer:
        writer.message("being said")
        came = erase_beside(ledger, turn, lambda: writer.interrupt().id, (TurnEvents, "finish"), monkeypatch)
    assert came == ledger.turn("other").id
    assert problems(ledger) == []


def test_a_reader_from_before_holds_up_the_files_but_not_the_erasure(
    disk: Ledger, path: Path, open_ledger: OpenLedger
) -> None:
    (turn,) = grow(disk, "main", told("query"))
    other = open_ledger(read_only=True)
    with other._store.read() as txn:
        txn.facts.tip()
        plan = disk.erasure.plan(turn)
        rewrite = disk._store.rewrite
        disk._store.rewrite = Mock(side_effect=lambda _: rewrite(0))  # type: ignore[method-assign]
        assert not disk.erasure.erase(plan, reason=WHY).complete
        assert texts(disk.messages(turn)) == [ERASED, ERASED]
        grow(disk, "main", "goes on")
    assert disk.erasure.finish()
    assert files_with_canary(path.parent) == []


def test_the_next_open_finishes_what_was_held_up(disk: Ledger, path: Path, open_ledger: OpenLedger) -> None:
    grow(disk, f"{CANARY} label", "a")
    plan = disk.erasure.plan(f"{CANARY} label")
    disk._store.rewrite = Mock(side_effect=StoreFailed("the disk is full"))  # type: ignore[method-assign]
    assert not disk.erasure.erase(plan, reason=WHY).complete
    disk.close()
    open_ledger().close()
    assert files_with_canary(path.parent) == []


def test_verify_tells_an_erased_content_from_one_whose_bytes_were_taken_away(disk: Ledger, path: Path) -> None:
    grow(disk, "main", "a", "b")
    change(path, "UPDATE content SET salt = x'', digest = x'', size = 0, shown = '[erased]', bytes = NULL WHERE n = 2")
    assert any("no tombstone" in problem for problem in problems(disk))


def test_verify_notices_what_an_erasure_left_behind(disk: Ledger, path: Path) -> None:
    (turn,) = grow(disk, "main", "a")
    disk.erasure.erase(turn, reason=WHY)
    (row,) = select(path, "SELECT max(n) AS n FROM content WHERE length(salt) = 0")
    change(path, "INSERT INTO content_part(content, idx, bytes) VALUES (?, 0, x'00')", row["n"])
    assert any("still here" in problem for problem in problems(disk))


def test_verify_finds_an_erased_content_that_its_bytes_still_lead_to(disk: Ledger, path: Path) -> None:
    (turn,) = grow(disk, "main", "a")
    disk.erasure.erase(turn, reason=WHY)
    assert problems(disk) == []
    (row,) = select(path, "SELECT max(n) AS n FROM content WHERE length(salt) = 0")
    change(path, "INSERT INTO lookup_bytes(scope, key, n) VALUES (1, x'0011223344556677', ?)", row["n"])
    assert any("still here" in problem for problem in problems(disk))


def test_few_streams_and_contents_are_found_as_many_are(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    rich_import(ledger)
    with ledger.begin_turn(session="main") as steps:
        steps.message("a")
        steps.tool_call("fetch", {}, id="c1")
        steps.interrupt()
    turn = steps.id
    ledger.record_late_result(turn, "c1", "late words")
    again = grow(ledger, "other", "a", "b")
    programs = Programs(ledger)
    programs.add_tags(turn, "marked")
    programs.add_tags(ledger.messages(turn)[0].id, "noted")
    programs.remove_tags(turn, "marked")
    targets: list[list[str]] = [[turn], again, ["main"], ["other", turn], [ledger.sessions()[-1].label]]
    plans = [ledger.erasure.plan(names, everywhere=everywhere) for names in targets for everywhere in (False, True)]
    assert sum(len(plan.contents) for plan in plans) > 20
    monkeypatch.setattr(content_uses, "FEW", -1)
    assert plans == [ledger.erasure.plan(names, everywhere=each) for names in targets for each in (False, True)]


def test_the_tables_show_what_is_erased(disk: Ledger, path: Path) -> None:
    turn = record_everywhere(disk)
    disk.erasure.erase(turn, reason=WHY)
    tables = [row["name"] for row in select(path, "SELECT name FROM sqlite_schema WHERE type = 'view'")]
    assert "erasures" in tables
    assert CANARY not in repr([select(path, f"SELECT * FROM {table}") for table in tables])
    (call, *_) = select(path, "SELECT id, json_extract(params_json, '$') AS params FROM tool_calls ORDER BY sequence")
    assert call == {"id": f"{turn}:{ERASED}", "params": ERASED}
    assert {row["reason"] for row in select(path, "SELECT reason FROM erasures")} == {WHY}


def test_backups_and_exports_that_hold_it_are_named(disk: Ledger, tmp_path: Path, path: Path) -> None:
    disk.upkeep.backup(tmp_path / "early.db")
    (turn,) = grow(disk, "main", told("query"))
    disk.upkeep.backup(tmp_path / "copy.db")
    disk.upkeep.export_facts(tmp_path / "facts.jsonl")
    (tmp_path / "ledger.db.schema-1.backup").write_bytes(b"an upgrade left it")
    (tmp_path / "facts.jsonl").unlink()
    named = {(Path(copy.path).name, copy.kind, copy.exists) for copy in disk.erasure.plan(turn).copies}
    assert named == {
        ("copy.db", "backup", True),
        ("facts.jsonl", "facts", False),
        ("ledger.db.schema-1.backup", "beside", True),
    }
    done = disk.erasure.erase(turn, reason=WHY)
    assert len(done.copies) == 3
    assert files_with_canary(tmp_path) == ["copy.db: utf-8"]


def test_facts_from_before_do_not_bring_it_back(ledger: Ledger) -> None:
    grow(ledger, "main", "a")
    turn = record_everywhere(ledger)
    before = exported(ledger)
    done = ledger.erasure.erase(turn, reason=WHY)
    assert CANARY.encode() not in exported(ledger)
    brought = ledger.upkeep.import_facts(io.BytesIO(before))
    assert (brought.events, brought.contents, brought.erased) == (0, 0, done.contents)
    assert CANARY not in repr(everything_readable(ledger, turn))
    assert problems(ledger) == []


def test_an_export_after_it_gives_the_same_digests_and_the_same_readers(ledger: Ledger) -> None:
    grow(ledger, "main", "a")
    turn = record_everywhere(ledger)
    before = exported(ledger)
    ledger.erasure.erase(turn, reason=WHY)
    with weft.open(":memory:") as other:
        import_into(other, exported(ledger))
        assert other.upkeep.stats()["log"] == ledger.upkeep.stats()["log"]
        assert [found.digest for found in other.log()] == [found.digest for found in ledger.log()]
        assert other.messages(turn) == ledger.messages(turn)
        assert other.tool_calls(turn) == ledger.tool_calls(turn)
        assert problems(other) == []
        assert other.upkeep.import_facts(io.BytesIO(before)).contents == 0
        assert CANARY not in repr(everything_readable(other, turn))


def test_an_erasure_of_another_ledger_waits_for_somebody_here(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a secret")
    with weft.open(":memory:") as other:
        import_into(other, exported(ledger))
        ledger.erasure.erase(turn, reason=WHY)
        import_into(other, exported(ledger))
        waiting = other.erasure.pending()
        assert {(found.reason, found.replica, found.turn_id) for found in waiting} == {(WHY, ledger.replica, turn)}
        assert texts(other.messages(turn)) == ["a secret", "re: a secret"]
        assert problems(other) == []
        other.erasure.erase([found.ref for found in waiting], reason="theirs, followed here")
        assert other.erasure.pending() == []
        assert texts(other.messages(turn)) == [ERASED, ERASED]
        assert {found.replica for found in other.erasure.done()} == {ledger.replica, other.replica}
        assert problems(other) == []
    assert ledger.erasure.pending() == []


def test_the_files_of_a_server_s_tables_hold_nothing_of_it(clock: FixedClock) -> None:
    server = shared_server()
    address, folder = server.address_apart()
    with weft.open(address, clock=clock) as ledger:
        grow(ledger, f"{CANARY} label", told("query"))
        grow(ledger, "others", *map(str, range(50)))
        with psycopg.connect(parse_address(address).conninfo, autocommit=True) as connection:
            connection.execute("ANALYZE")
        server.psql("-c", "CHECKPOINT")
        assert files_with_canary(folder)
        assert ledger.erasure.erase(f"{CANARY} label", reason=WHY).complete
        server.psql("-c", "CHECKPOINT")
        assert files_with_canary(folder) == []
        assert problems(ledger) == []


def test_what_came_while_a_backup_was_made_is_in_it(disk: Ledger, tmp_path: Path) -> None:
    late: list[str] = []

    def report(done: int, of: int) -> None:
        if not late:
            late.extend(grow(disk, "main", told("query")))

    grow(disk, "main", "before")
    disk.upkeep.backup(tmp_path / "copy.db", progress=report)
    assert [Path(copy.path).name for copy in disk.erasure.plan(late[0]).copies] == ["copy.db"]


def test_a_ledger_that_was_copied_elsewhere_names_its_origin_and_its_backups(disk: Ledger, tmp_path: Path) -> None:
    (turn,) = grow(disk, "main", told("query"))
    disk.upkeep.backup(tmp_path / "copy.db")
    disk.close()
    with weft.open(tmp_path / "ledger.db", read_only=True) as origin, weft.open(tmp_path / "moved.db") as moved:
        ledger_copy.copy_ledger(origin._store, moved._store)
        named = {(Path(copy.path).name, copy.kind) for copy in moved.erasure.plan(turn).copies}
    assert named == {("copy.db", "backup"), ("ledger.db", "ledger")}


@pytest.mark.parametrize("by_address", [False, True])
def test_a_ledger_names_what_it_was_copied_to_and_the_copy_never_itself(
    disk: Ledger, tmp_path: Path, by_address: bool
) -> None:
    (turn,) = grow(disk, "main", told("query"))
    weft.copy(disk.path if by_address else disk, tmp_path / "elsewhere.db")
    assert [(Path(copy.path).name, copy.kind) for copy in disk.erasure.plan(turn).copies] == [("elsewhere.db", "copy")]
    with weft.open(tmp_path / "elsewhere.db") as elsewhere:
        named = [(Path(copy.path).name, copy.kind) for copy in elsewhere.erasure.plan(turn).copies]
    assert named == [("ledger.db", "ledger")]


def test_a_backup_that_is_copied_by_its_address_stays_as_it_is(disk: Ledger, tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    grow(disk, "main", told("query"))
    disk.upkeep.backup(backup)
    before = backup.read_bytes()
    weft.copy(backup, tmp_path / "elsewhere.db")
    assert backup.read_bytes() == before


def test_a_ledger_that_cannot_be_written_to_is_copied_all_the_same(
    disk: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (turn,) = grow(disk, "main", told("query"))
    opened = opening.open

    def open_for_reading(path: str | Path, **more: Any) -> Ledger:
        if not more.get("read_only"):
            raise StoreFailed("a read-only file system")
        return opened(path, **more)

    monkeypatch.setattr(opening, "open", open_for_reading)
    assert weft.copy(disk.path, tmp_path / "elsewhere.db").events == disk.upkeep.stats()["events"]
    assert disk.erasure.plan(turn).copies == ()


def test_what_a_restored_backup_replaced_is_named(
    disk: Ledger, tmp_path: Path, path: Path, open_ledger: OpenLedger
) -> None:
    (turn,) = grow(disk, "main", told("query"))
    disk.upkeep.backup(tmp_path / "backup.db")
    disk.close()
    replaced = weft.restore(tmp_path / "backup.db", path).replaced
    assert replaced is not None
    erased = open_ledger().erasure.erase(turn, reason="it was a secret")
    assert {copy.path for copy in erased.copies} == {str(tmp_path / "backup.db"), replaced}


def test_the_doctor_knows_an_erasure_that_is_not_finished(disk: Ledger) -> None:
    (turn,) = grow(disk, "main", "a")
    assert [found.grade for found in examine_ledger(disk._store, full=False) if found.check == "erasing"] == ["good"]
    rewrite = disk._store.rewrite
    disk._store.rewrite = Mock(side_effect=StoreFailed("full"))  # type: ignore[method-assign]
    disk.erasure.erase(turn, reason=WHY)
    (found,) = [found for found in examine_ledger(disk._store, full=False) if found.check == "erasing"]
    assert (found.grade, "--finish" in phrase(found.advice)) == ("warning", True)
    disk._store.rewrite = rewrite  # type: ignore[method-assign]
    assert disk.erasure.finish()
