"""verify names what is wrong, rebuild mends it; facts are judged by their hashes, views by the facts."""

import shutil
import threading
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.ledger.conftest import NOON, OpenLedger
from tests.ledger.histories import (
    change,
    copy_in_memory,
    exported,
    grow,
    import_into,
    plain_reader,
    problems,
    select,
)
from tests.ledger.imported import rich_import
from tests.ledger.test_approvals import asking
from tests.ledger.test_forks import long_turn
from tests.ledger.test_inbox import answered, begun
from tests.ledger.test_workers import waited, with_workers
from tests.programs.stories import tell_programs
from tests.sizes import share
from weft.kernel import ledger_events
from weft.kernel.clock import FixedClock, iso_from_ms
from weft.kernel.enums import MessageSource, MountMode, ResourceCapability, ResourceKind, SubresourcePart
from weft.kernel.errors import ContentMissing, Damaged, FactDamaged
from weft.kernel.events import program_stream, resource_stream
from weft.kernel.program_events import TriggerFired, TriggerMissed
from weft.ledger.api.ledger import Ledger
from weft.ledger.upkeep import verify
from weft.ledger.upkeep.verify import VIEW_TABLES
from weft.ledger.views import edges
from weft.ledger.write.transaction import Append
from weft.programs import Programs
from weft.store.port import ReadTxn
from weft.store.sql import Sql
from weft.store.sqlite.store import SqliteStore

LOOKUPS = ("lookup_event", "lookup_content", "lookup_bytes")
COLUMN = {  # one column of each view that a reader would miss
    "segment": "base",
    "turn": "status",
    "message": "role",
    "tool_call": "outcome",
    "session": "head",
    "history": "why",
    "departure": "depth",
    "alias": "reason",
    "compaction": "through",
    "message_file": "kind",
    "message_lint": "severity",
    "program": "kind",
    "stream_tip": "last",
    "codeblock": "language",
    "superseded": "by",
    "link": "call",
    "spawn": "child",
    "message_context": "listed",
    "kept": "start",
    "erasure": "actor",
    "program_reference": "version",
    "program_history": "state",
    "task_check": "passed",
    "human_request": "status",
    "node_tag": "tagged_at",
    "branch": "head",
    "thread_key": "turn",
    "persona": "name",
    "lookup_text": "text",
    "inbox": "state",
    "open_run": "state",
    "tool_decision": "decision",
    "approval": "state",
    "policy": "state",
    "agent_share": "n",
    "conversation": "status",
    "participant": "seen",
    "room_message": "hops",
    "mention": "kind",
    "invitation": "state",
    "room_delivery": "message",
    "worker": "role",
    "worker_answer": "state",
    "awaiting": "is_any",
    "trigger_firing": "source",
    "trigger_gap": "count",
    "resource": "liveness",
    "substitution": "actor",
    "resource_part": "part",
    "resource_use": "mode",
    "resource_handle": "provider",
    "resource_snapshot": "state",
    "resource_restore": "outcome",
    "edge": "type",
}


def rich(ledger: Ledger) -> None:
    """A history with rows in every view."""
    note = {"files": [{"kind": "read", "path": "x"}], "lints": [{"severity": "error"}], "content": "q"}
    ledger.record_turn(session="main", persona="ann", query=note, response="```py\nx\n```\n")
    turn = long_turn(ledger)
    ledger.fork(ledger.events(turn)[4].id, label="alt")
    grow(ledger, "alt", "a", "b")
    with ledger.begin_turn(session="alt") as writer:
        writer.tool_call("slow", id="c1")
        writer.interrupt("timeout")
    ledger.record_late_result("alt", "c1", "at last")
    ledger.compactions.record(session="alt", summary="s")
    ledger.labels.add_alias("nick", "main")
    ledger.move_head("main", new=ledger.resolve("main~1"))
    tell_programs(ledger)
    ledger.upkeep.catch_up()


def diverge(ledger: Ledger, session: str) -> None:
    """Two replicas move a session at once; the other one's facts come here."""
    with copy_in_memory(ledger) as other:
        grow(other, session, "elsewhere")
        grow(ledger, session, "here")
        import_into(ledger, exported(other))


@pytest.fixture(scope="module")
def full_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed ledger with rows in every view, to be copied and damaged."""
    path = tmp_path_factory.mktemp("full") / "ledger.db"
    with weft.open(path, clock=FixedClock(NOON)) as ledger:
        rich(ledger)
        rich_import(ledger)
        diverge(ledger, "main")
        ledger.record_turn(session="gone", query="a secret", response="another")
        ledger.erasure.erase(ledger.resolve("gone"), reason="asked for")
        ledger.substitute(ledger.messages("alt~2")[-1].id, "other words", reason="better ones")
        ledger.inbox.admit("hello", session="asked")
        begun(ledger, "asked")
        asking(ledger, "deciding")
        ledger.policies.propose("careful", "print(1)")
        programs = Programs(ledger)
        programs.create("agent", "private", {"visibility": "private"})
        programs.create("human", "guest", {})
        agent = programs.share_agent("private", "guest").id
        guest = programs.get("guest").id
        ledger.rooms.create("plans", agents=["private"])
        ledger.rooms.post("plans", f"@[p](agent:{agent}) and @[g](user:{guest}), look")
        have_workers(ledger)
        fire(ledger, agent)
        tell_of_resources(ledger)
        ledger.upkeep.catch_up()
        edges.catch_up(ledger._store)
        assert problems(ledger) == []
    return path


def have_workers(ledger: Ledger) -> None:
    """A turn waits for two workers, one of which has answered."""
    run, workers, waiting = with_workers(ledger, 2, "led")
    answered(ledger, workers[0].label)
    waited(run, waiting, *workers)


def fire(ledger: Ledger, program: str) -> None:
    """What triggers write, in the stream of a program."""

    def work(append: Append) -> None:
        tip = append.sql.fetch_row("SELECT last FROM stream_tip WHERE stream = ?", (program_stream(program),))
        stream = append.stream(program_stream(program), None if tip is None else bytes(tip[0]).hex())
        stream.add(TriggerFired, occasion="0" * 64, source=MessageSource.CRON)
        stream.add(TriggerMissed, count=2, first=iso_from_ms(NOON), last=iso_from_ms(NOON))
        append.seal()

    ledger._writer.write(work)


def tell_of_resources(ledger: Ledger) -> None:
    """A container with a volume, used and kept."""

    def work(append: Append) -> None:
        container, volume, snapshot, restore = (append.ulids.mint() for _ in range(4))
        text = append.put_text("name", "name")
        described = {"name": text, "place": text, "capabilities": (ResourceCapability.SNAPSHOT,)}
        append.stream(resource_stream(volume), None).add(
            ledger_events.ResourceDeclared, resource_kind=ResourceKind.DOCKER_VOLUME, **described
        )
        stream = append.stream(resource_stream(container), None)
        stream.add(ledger_events.ResourceDeclared, resource_kind=ResourceKind.DOCKER_CONTAINER, **described)
        stream.add(ledger_events.SubresourceAdded, resource_ref=container, part_ref=volume, part=SubresourcePart.VOLUME)
        stream.add(ledger_events.ResourceAttached, resource_ref=container, mode=MountMode.RW)
        stream.add(
            ledger_events.HandleOpened,
            handle=append.ulids.mint(),
            resource_ref=container,
            provider="docker",
            provider_id=text,
        )
        stream.add(ledger_events.SnapshotRequested, resource_ref=container, snapshot_ref=snapshot)
        stream.add(ledger_events.RestoreRequested, snapshot_ref=snapshot, restore=restore)
        append.seal()

    ledger._writer.write(work)


@pytest.fixture
def damaged(full_ledger: Path, path: Path, open_ledger: OpenLedger) -> Ledger:
    for ending in ("", "-head"):
        shutil.copy(f"{full_ledger}{ending}", f"{path}{ending}")
    return open_ledger()


@pytest.mark.slow("verifies a ledger with rows in every view, and rebuilds it")
def test_a_sound_ledger_has_no_problems(ledger: Ledger) -> None:
    assert problems(ledger) == []
    rich(ledger)
    assert problems(ledger) == []
    assert ledger.upkeep.rebuild() == 0


def test_the_test_knows_every_view(damaged: Ledger, path: Path) -> None:
    assert COLUMN.keys() == VIEW_TABLES.keys()
    with plain_reader(path) as ask:
        for table in (*COLUMN, *LOOKUPS):
            assert ask(f"SELECT count(*) AS n FROM {table}")[0]["n"] > 0, table


def mends(ledger: Ledger, table: str) -> None:
    """verify names the table, rebuild mends it, and after that nothing is left to mend."""
    found = problems(ledger)
    assert found
    assert all(f"view {table}" in problem for problem in found)
    assert ledger.upkeep.rebuild() == len(found)
    assert problems(ledger) == []
    assert ledger.upkeep.rebuild() == 0


@pytest.mark.parametrize("table", share(list(COLUMN), test=3))
def test_a_changed_row_of_a_view_is_named_and_mended(damaged: Ledger, path: Path, table: str) -> None:
    before = select(path, f"SELECT * FROM {table} ORDER BY 1, 2")
    where = " WHERE stream LIKE 'program:%'" if table == "stream_tip" else ""
    assert change(path, f"UPDATE {table} SET {COLUMN[table]} = 'damaged'{where}") > 0
    mends(damaged, table)
    assert select(path, f"SELECT * FROM {table} ORDER BY 1, 2") == before


@pytest.mark.parametrize("table", share(list(COLUMN), test=3))
def test_a_lost_row_of_a_view_is_named_and_mended(damaged: Ledger, path: Path, table: str) -> None:
    first = ", ".join(VIEW_TABLES[table])
    change(path, f"DELETE FROM {table} WHERE ({first}) IN (SELECT {first} FROM {table} ORDER BY {first} DESC LIMIT 1)")
    mends(damaged, table)


INVENTED = ("alias", "program", "stream_tip", "message_file", "message_lint", "codeblock")


@pytest.mark.parametrize("table", share(INVENTED, test=1))
def test_an_invented_row_of_a_view_is_named_and_mended(damaged: Ledger, path: Path, table: str) -> None:
    key = VIEW_TABLES[table][0]
    columns = [name for name in select(path, f"SELECT * FROM {table} LIMIT 1")[0] if name != key]
    invented = "99999999" if key == "id" and table != "program" else "'invented'"
    unique = ["'invented name'" if name in ("name", "message") else name for name in columns]
    change(
        path,
        f"INSERT INTO {table}({key}, {', '.join(columns)}) SELECT {invented}, {', '.join(unique)} FROM {table} LIMIT 1",
    )
    assert problems(damaged)[0].endswith("has no fact behind it")
    mends(damaged, table)


LOST_OR_CHANGED = (
    "DELETE FROM {0} WHERE n = (SELECT max(n) FROM {0})",
    "UPDATE {0} SET key = x'0011223344556677' WHERE n = 2",
)


@pytest.mark.parametrize(("table", "damage"), share(list(product(LOOKUPS, LOST_OR_CHANGED)), test=1))
def test_damage_to_what_finds_facts_by_their_hash_is_named_and_mended(
    damaged: Ledger, path: Path, table: str, damage: str
) -> None:
    facts = exported(damaged)
    assert change(path, damage.format(table)) == 1
    assert [problem for problem in problems(damaged) if f"view {table}" in problem]
    assert damaged.upkeep.rebuild() > 0
    assert problems(damaged) == []
    assert damaged.upkeep.rebuild() == 0
    assert exported(damaged) == facts


def test_all_views_at_once_can_be_made_again(damaged: Ledger, path: Path) -> None:
    before = rows_of_views(path)
    change(path, "; ".join(f"DELETE FROM {table}" for table in (*COLUMN, *LOOKUPS)))
    change(path, "DELETE FROM watermark WHERE view LIKE 'lookup%'")
    assert damaged.upkeep.rebuild() > len(COLUMN)
    assert rows_of_views(path) == before
    assert problems(damaged) == []


def rows_of_views(path: Path) -> dict[str, list[dict[str, Any]]]:
    with plain_reader(path) as ask:
        return {table: ask(f"SELECT * FROM {table} ORDER BY 1, 2") for table in COLUMN}


def test_work_goes_on_after_a_rebuild(damaged: Ledger, path: Path) -> None:
    change(path, "UPDATE session SET label = 'renamed by hand' WHERE label = 'main'")
    damaged.upkeep.rebuild()
    head = damaged.session("main").head
    assert damaged.record_turn(session="main", query="on").parent_id == head
    assert problems(damaged) == []


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE log SET events = CAST(replace(CAST(events AS TEXT), '\"v\":1', '\"v\": 1') AS BLOB) WHERE n < 20",
        "UPDATE log SET chain = zeroblob(32) WHERE n = (SELECT max(n) FROM log)",
        "DELETE FROM log WHERE n = (SELECT min(n) FROM log)",
        "UPDATE log SET count = count + 1 WHERE n = (SELECT max(n) FROM log)",
        "UPDATE log SET events = CAST(replace(CAST(events AS TEXT), '\"success\"', '\"error\"') AS BLOB)",
        "UPDATE content SET bytes = CAST('other' AS BLOB) WHERE n = 2",
        "UPDATE content SET salt = zeroblob(16) WHERE n = 2",
        "UPDATE content SET ref = zeroblob(32) WHERE n = 2",
        "UPDATE content SET size = size + 1 WHERE n = 2",
        "UPDATE content SET digest = zeroblob(32) WHERE n = 2",
    ],
)
def test_damage_to_a_fact_is_noticed(damaged: Ledger, path: Path, damage: str) -> None:
    assert change(path, damage) > 0
    assert [problem for problem in damaged.verify(views=False) if problem.what in ("log", "event", "content")]


def test_a_damaged_content_is_never_shown(damaged: Ledger, path: Path) -> None:
    change(path, "UPDATE content SET bytes = CAST('forged' AS BLOB) WHERE CAST(bytes AS TEXT) = 're: a'")
    with pytest.raises(FactDamaged, match="do not hash"):
        list(damaged.thread("alt").messages)
    with pytest.raises(Damaged):
        exported(damaged)


@pytest.mark.parametrize(
    "parts", share(["[{", "{}", "7", '[{"type":"text"}]', '[{"tipe":"text"}]', '["text"]', '[{"type":"tezt"}]'], test=2)
)
def test_parts_of_a_message_that_make_no_sense_are_damaged(damaged: Ledger, path: Path, parts: str) -> None:
    """Whoever reads the message or lists what its turn is about is told so in words."""
    change(path, f"UPDATE message SET text = NULL, parts = '{parts}'")
    turn = damaged.log()[0].id
    with pytest.raises(Damaged):
        damaged.messages(turn)
    if parts != '[{"type":"tezt"}]':
        with pytest.raises(Damaged):
            damaged.listing().subjects([turn])
    assert problems(damaged)
    damaged.upkeep.rebuild()
    assert problems(damaged) == []
    assert damaged.messages(turn)


def test_a_damaged_log_is_never_exported(damaged: Ledger, path: Path) -> None:
    change(path, "UPDATE log SET events = CAST(replace(CAST(events AS TEXT), '\"success\"', '\"error\"') AS BLOB)")
    with pytest.raises(FactDamaged):
        exported(damaged)


def test_verifying_reports_its_progress(damaged: Ledger) -> None:
    seen: list[tuple[str, int, int]] = []
    assert list(damaged.verify(progress=lambda *step: seen.append(step))) == []
    assert {stage for stage, _, _ in seen} >= {"events", "contents", "views"}
    assert all(0 <= done <= of for _, done, of in seen)
    damaged.upkeep.rebuild(progress=lambda *step: seen.append(step))


def test_a_read_only_ledger_can_be_verified(open_ledger: OpenLedger) -> None:
    rich(open_ledger())
    assert problems(open_ledger(read_only=True)) == []


def test_facts_and_views_are_verified_apart(damaged: Ledger, path: Path) -> None:
    change(path, "UPDATE turn SET status = 'damaged'")
    assert list(damaged.verify(views=False)) == []
    assert {problem.what for problem in damaged.verify(facts=False)} == {"view"}


def test_a_text_deleted_by_hand_is_missing_for_ever_and_no_other_shows_in_its_place(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    turn = ledger.record_turn(session="main", query="kept", response="lost").id
    ledger.close()
    change(ledger.path, "DELETE FROM content WHERE n = (SELECT max(n) FROM content)")
    again = open_ledger()
    again.record_turn(session="main", query="another", response="third")
    with pytest.raises(ContentMissing):
        again.messages(turn)
    assert [problem for problem in problems(again) if problem.startswith("content")]


def test_a_content_that_is_looked_up_and_gone_is_told_as_such(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    ledger.record_turn(session="main", query="kept", response="lost")
    assert problems(ledger) == []
    ledger.close()
    change(ledger.path, "DELETE FROM content WHERE n = (SELECT max(n) FROM content)")
    again = open_ledger()
    assert problems(again) == [
        f"view {table}: has 3 rows for 2 contents: some are of contents that are not here"
        for table in ("lookup_content", "lookup_bytes")
    ]
    again.upkeep.rebuild()
    assert [problem for problem in problems(again) if problem.startswith("content")]


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small ledger is read in many goes."""
    for name, size in (("COMPARED_ROWS", 5), ("APPLIED_LOG_ROWS", 2), ("FILLED_EVENTS", 7)):
        monkeypatch.setattr(verify, name, size)
    for name in ("VERIFIED_ROWS", "VERIFIED_LOG_ROWS"):
        monkeypatch.setattr(verify, name, 3)


class Busy:
    """Somebody who writes whenever verify or rebuild says how far it is."""

    def __init__(self, ledger: Ledger, most: int = 40) -> None:
        self._ledger, self.most, self.turns = ledger, most, 0

    def __call__(self, stage: str, done: int, of: int) -> None:
        if self.turns < self.most:
            self.turns += 1
            grow(self._ledger, f"busy {self.turns % 5}", f"at {stage} {done}", persona=f"p{self.turns % 7}")
            self._ledger.upkeep.catch_up()


@pytest.mark.usefixtures("small_ranges")
def test_what_is_written_while_verify_goes_on_is_no_problem(ledger: Ledger) -> None:
    rich(ledger)
    busy = Busy(ledger)
    assert list(ledger.verify(progress=busy)) == []
    assert busy.turns == busy.most
    assert problems(ledger) == []


@pytest.mark.slow("verifies and rebuilds everything while others write")
@pytest.mark.usefixtures("small_ranges")
def test_damage_is_named_and_mended_while_others_write(damaged: Ledger, path: Path, open_ledger: OpenLedger) -> None:
    for table in ("turn", "message", "history", "codeblock"):
        change(path, f"UPDATE {table} SET {COLUMN[table]} = 'damaged'")
    other = open_ledger()
    assert len(list(damaged.verify(progress=Busy(other, 20)))) > 20
    assert damaged.upkeep.rebuild(progress=Busy(other, 20)) > 20
    assert problems(damaged) == []
    assert damaged.upkeep.rebuild() == 0


@pytest.mark.usefixtures("small_ranges")
def test_rows_that_hold_each_others_names_are_mended(damaged: Ledger, path: Path) -> None:
    ids = [row["id"] for row in select(path, "SELECT id FROM turn ORDER BY n")]
    change(path, "UPDATE turn SET id = 'aside' WHERE id = ?", ids[0])
    change(path, "UPDATE turn SET id = ? WHERE id = ?", ids[0], ids[-1])
    change(path, "UPDATE turn SET id = ? WHERE id = 'aside'", ids[-1])
    assert damaged.upkeep.rebuild() == 2
    assert [row["id"] for row in select(path, "SELECT id FROM turn ORDER BY n")] == ids
    assert problems(damaged) == []


def test_short_views_are_compared_in_few_snapshots(damaged: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot for each of them costs more than their rows."""
    snapshots = 0
    read = type(damaged._store).read

    def counted(store: SqliteStore) -> AbstractContextManager[ReadTxn]:
        nonlocal snapshots
        snapshots += 1
        return read(store)

    monkeypatch.setattr(SqliteStore, "read", counted)
    assert problems(damaged) == []
    assert 0 < snapshots < len(VIEW_TABLES)
    snapshots = 0
    assert damaged.upkeep.rebuild() == 0
    assert 0 < snapshots < len(VIEW_TABLES)


def test_what_was_compared_before_the_comparison_fails_is_named(
    damaged: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(path, "UPDATE turn SET status = 'damaged'")
    compare = verify.compare_range

    def failing(ours: Sql, theirs: Sql, table: str, after: verify.Key | None) -> verify.ComparedRange:
        if table == "message":
            raise Damaged("page 7 is malformed")
        return compare(ours, theirs, table, after)

    monkeypatch.setattr(verify, "compare_range", failing)
    first, *_, last = problems(damaged)
    assert first.startswith("view turn ")
    assert last.endswith("page 7 is malformed")


def test_whoever_takes_findings_slowly_holds_nobody_up(ledger: Ledger) -> None:
    rich(ledger)
    ledger._store.write(lambda txn: txn.sql.run("UPDATE content SET size = size + 1"))
    findings = ledger.verify()
    assert next(findings).what == "content"
    writer = threading.Thread(target=grow, args=(ledger, "main", "meanwhile"))
    writer.start()
    writer.join(300)
    assert not writer.is_alive()
    assert next(findings).what == "content"


@pytest.mark.parametrize(
    "damage", share(["n = 'x'", "n = 2.5", "key = 'letters'", "key = 7", "key = zeroblob(900)"], test=2)
)
def test_a_value_of_another_type_in_a_lookup_is_mended_by_a_rebuilding(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "ledger.db"
    with weft.open(path) as ledger:
        for k in range(3):
            ledger.record_turn(session="main", query=f"q{k}", response="r")
        ledger.record_turn(session="other", query="q", response="r")
        ledger.upkeep.catch_up()
    assert change(path, f"UPDATE lookup_event SET {damage} WHERE n = 2") == 1
    with weft.open(path) as ledger:
        assert problems(ledger)
        ledger.erasure.erase("other", reason="it is not ours")
        assert ledger.upkeep.rebuild() == 0
        assert problems(ledger) == []
