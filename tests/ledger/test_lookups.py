"""Every lookup that the agents ledger schema indexes: it finds the right rows, and by an index on both engines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import weft
from tests.conftest import NewPostgresLedger
from tests.ledger.conftest import NOON, OpenLedger
from tests.ledger.histories import change, grow, problems, select
from tests.ledger.imported import native_turn, rich_import, take
from tests.programs.similarity.test_similarity import Words
from weft.kernel.clock import FixedClock
from weft.kernel.enums import FileKind, ResourceCapability, ResourceKind
from weft.kernel.errors import InvalidInput, NotFound
from weft.ledger.api.broker import Runs
from weft.ledger.api.ledger import Ledger
from weft.ledger.api.resources import ResourceLog
from weft.ledger.broker.admission import _session_at
from weft.ledger.broker.workers import _ensure_tasks_left
from weft.ledger.imports.sources import last_before
from weft.ledger.model import FileNote
from weft.ledger.resource_reading import NewResource, NewSnapshot
from weft.ledger.views.rows import SessionRow, TurnRow
from weft.ledger.views.sessions import join_started
from weft.ledger.views.turns import distrust
from weft.ledger.write.transaction import Append
from weft.programs.lookups import find_node
from weft.programs.similarity import Similarity
from weft.store.fact_log import FORMER
from weft.store.postgres.connection import PostgresSql, parse_address, translate
from weft.store.sqlite.connection import SqliteSql

MINUTE = 60_000
MACHINE, TREE = "01M7KSKWW3EG4DEPDSR32C1N8V", "4b825dc6"
OPEN_WISHES = ("USING INDEX resource_snapshot_open", "USING INDEX resource_restore_open")
ASKED_FOR = {
    "SCAN w": "WITH wanted(",
    "SCAN b": "WITH RECURSIVE below(",
    "SCAN o": "FROM open_run o",
    "SCAN q": "FROM inbox WHERE state = 'queued'",
    "SCAN local": "FROM local",
}
"""Values that came with a statement, what it found on its way, open runs, what waits, and what is noted of the ledger:
the names that they have in which statements."""
PAGE = Path(__file__).parents[2] / "docs" / "sql.md"


class Story:
    """A little of everything that lookups ask for."""

    def __init__(self, ledger: Ledger, clock: FixedClock) -> None:
        self.ledger = ledger
        self.first, self.second = grow(ledger, "main", "one", "two")
        clock.tick(MINUTE)
        ledger.fork(self.first, label="alt")
        (self.third,) = grow(ledger, "alt", "three", role="manager", source_event_id="event 7")
        clock.tick(MINUTE)
        ledger.create_session("worker", parent_session="main", persona="ann", routing_key="worker:7")
        made = {"id": "c1", "name": "spawn", "arguments": {}, "result": "ok", "spawned_session": "worker"}
        self.fourth = ledger.record_turn(session="main", query="four", tool_calls=[made]).id
        self.fifth = ledger.record_turn(session="worker", query="five", persona="ann", error="no").id
        self.sixth = ledger.compactions.record(session="main", summary="all of it").id
        self.seventh = ledger.begin_turn(session="open")
        clock.tick(MINUTE)


@pytest.fixture
def story(ledger: Ledger, clock: FixedClock) -> Story:
    return Story(ledger, clock)


def ids(turns: list[weft.Turn]) -> list[str]:
    return [turn.id for turn in turns]


def test_turns_are_found_by_their_columns(story: Story) -> None:
    find = story.ledger.find_turns
    seventh = story.seventh.id
    for caught_up in (False, True):
        assert ids(find(parent=story.first)) == [story.third, story.second]
        assert ids(find(type="compaction")) == [story.sixth], caught_up
        assert ids(find(status="failed")) == [story.fifth]
        assert ids(find(status="pending")) == [seventh]
        assert ids(find(role="manager")) == [story.third]
        assert ids(find(source_event="event 7")) == [story.third]
        assert ids(find(source_event="event 8")) == []
        assert ids(find(persona="ann")) == [story.fifth]
        assert ids(find(has_children=False)) == [seventh, story.sixth, story.fifth, story.third]
        assert ids(find(has_children=True)) == [story.fourth, story.second, story.first]
        assert ids(find(since=NOON + MINUTE, until=NOON + MINUTE)) == [story.third]
        assert ids(find(status="completed", type="normal", limit=2)) == [story.fourth, story.third]
        assert ids(find(persona="local", role="unified", status="completed", has_children=True)) == ids(
            find(has_children=True)
        )
        story.ledger.upkeep.catch_up()


def test_tool_calls_are_found_by_tool_message_and_spawned_session(story: Story) -> None:
    find = story.ledger.find_tool_calls
    (call,) = story.ledger.tool_calls(story.fourth)
    assert find(tool="spawn") == find(spawned="worker") == [call]
    assert find(tool="Spawn") == find(spawned="main") == []
    with pytest.raises(InvalidInput):
        find()
    with pytest.raises(InvalidInput):
        find(tool="spawn", spawned="worker")


def test_tool_calls_of_one_message(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as turn:
        turn.request("m")
        turn.response("doing")
        turn.tool_call("run", id="c1")
        turn.tool_result("c1", "ok")
        turn.finish()
    (call,) = ledger.tool_calls("main")
    assert call.message_id is not None
    assert ledger.find_tool_calls(message=call.message_id) == [call]
    assert ledger.find_tool_calls(message=ledger.resolve("main")) == []


def test_messages_are_found_by_role(story: Story) -> None:
    users = story.ledger.find_messages(role="user")
    assert [message.text for message in users] == ["five", "four", "three", "two", "one"]
    assert len(story.ledger.find_messages(role="assistant", limit=2)) == 2
    assert story.ledger.find_messages(role="system") == []


def test_messages_are_found_by_file(ledger: Ledger) -> None:
    note = {"content": "look", "files": [{"kind": "read", "path": "src/app.py"}]}
    ledger.record_turn(session="main", query=note, response="yes")
    assert [message.text for message in ledger.find_messages(path="src/app.py")] == ["look"]


def test_sessions_are_found_by_their_columns(story: Story) -> None:
    ledger = story.ledger

    def labels(**wanted: Any) -> list[str]:
        return [session.label for session in ledger.find_sessions(**wanted)]

    rich_import(ledger)
    for caught_up in (False, True):
        assert labels(persona="ann") == ["worker"], caught_up
        assert labels(parent="main") == ["worker"]
        assert labels(routing_key="worker:7") == ["worker"]
        assert labels(routing_key="worker:8") == []
        assert set(labels(origin="weft")) == {"main", "alt", "worker", "open"}
        assert len(labels(origin="toy")) > 0
        assert "alt" not in labels(since=NOON + 2 * MINUTE)
        assert {"main", "worker", "open"} <= set(labels(since=NOON + 2 * MINUTE))
        assert len(labels(since=NOON, limit=2)) == 2
        ledger.upkeep.catch_up()
    assert ledger.session("worker:7").label == "worker"
    with pytest.raises(NotFound):
        ledger.find_sessions(persona="nobody")
    with pytest.raises(InvalidInput):
        ledger.find_sessions()
    with pytest.raises(TypeError, match="colour"):
        ledger.find_sessions(colour="red")  # type: ignore[call-arg]


def test_moves_are_found_by_the_turn_they_went_to(story: Story) -> None:
    ledger = story.ledger
    ledger.move_head("main", new=story.first)
    for caught_up in (False, True):
        moves = [(move.session, move.why) for move in ledger.tree.moves_to(story.first)]
        assert moves == [("main", "turn"), ("alt", "fork"), ("main", "move")], caught_up
        assert [move.session for move in ledger.tree.moves_to(story.fourth)] == ["main"]
        ledger.upkeep.catch_up()
    assert problems(ledger) == []


@pytest.mark.parametrize(
    ("harm", "table"),
    [
        ("DELETE FROM arrival WHERE move = (SELECT min(move) FROM arrival)", "arrival"),
        ("INSERT INTO arrival VALUES (1, 999999)", "arrival"),
        ("UPDATE session_change SET at = at + 1 WHERE session = 1", "session_change"),
        ("DELETE FROM session_change WHERE session = 1", "session_change"),
        ("INSERT INTO session_change VALUES (999, 1)", "session_change"),
    ],
)
def test_a_wrong_lookup_is_named_and_mended(disk: Ledger, path: Path, clock: FixedClock, harm: str, table: str) -> None:
    Story(disk, clock)
    disk.upkeep.catch_up()
    assert problems(disk) == []
    assert change(path, harm) == 1
    assert any(table in problem for problem in problems(disk))
    assert disk.upkeep.rebuild() > 0
    assert problems(disk) == []


# --- unique rules -----------------------------------------------------------------------------------------------


def test_a_message_names_a_file_once_also_without_a_line(disk: Ledger, path: Path) -> None:
    files = [
        FileNote(kind=FileKind.READ, path="x"),
        FileNote(kind=FileKind.READ, path="x", line_end=9),
        FileNote(kind=FileKind.READ, path="x", line_start=1),
        FileNote(kind=FileKind.READ, path="x", line_start=1, line_end=2),
        FileNote(kind=FileKind.WRITTEN, path="x"),
        FileNote(kind=FileKind.READ, path="y"),
    ]
    disk.record_turn(session="main", query={"content": "q", "files": files})
    take(disk, "s", native_turn("a", started=NOON), native_turn("b", started=NOON))
    once = "SELECT message_id, kind, file_path, line_start, count(*) AS times FROM message_files GROUP BY 1, 2, 3, 4"
    rows = select(path, once)
    assert {row["times"] for row in rows} == {1}
    assert len([row for row in rows if row["file_path"] in ("x", "y")]) == 4
    with pytest.raises(Exception, match="UNIQUE"):
        change(path, "INSERT INTO message_file SELECT id + 1000, message, kind, path, line_start, 5 FROM message_file")


def test_a_message_has_each_code_block_once(disk: Ledger, path: Path) -> None:
    disk.record_turn(session="main", query="q", response="```py\na\n```\n\n```py\nb\n```\n")
    disk.upkeep.catch_up()
    rows = select(path, "SELECT message_id, idx FROM message_codeblocks")
    assert [row["idx"] for row in rows] == [0, 1]
    with pytest.raises(Exception, match="UNIQUE"):
        change(path, "INSERT INTO codeblock(id, message, idx, content) SELECT id + 9, message, idx, 1 FROM codeblock")


def test_no_two_threads_have_the_same_key(disk: Ledger, path: Path) -> None:
    first, second = grow(disk, "main", "a", "b")
    disk.move_head("main", new=first)
    grow(disk, "main", "c")
    disk.fork(first, label="alt")
    grow(disk, "alt", "d")
    rows = select(path, "SELECT thread_key, turn_id FROM threads WHERE thread_key IS NOT NULL")
    keys = [row["thread_key"] for row in rows]
    assert sorted(keys) == sorted(set(keys)) == ["alt#2", "main#1", "main#2"]
    for row in rows:
        assert disk.resolve(row["thread_key"]) == row["turn_id"]
    assert second not in {row["turn_id"] for row in rows}


# --- by an index ------------------------------------------------------------------------------------------------


def aliases(ledger: Ledger) -> list[Any]:
    with ledger._store.read() as txn:
        return txn.sql.fetch_rows("SELECT alias FROM alias WHERE session = ?", (1,))


def node_of_a_message(ledger: Ledger) -> str:
    with ledger._store.read() as txn:
        return find_node(txn, ledger.messages("main~1")[0].id)


def similar_messages(ledger: Ledger) -> list[Any]:
    similarity = Similarity(ledger, Words())
    similarity.embed(ledger.messages("main~1")[0].id)
    assert similarity.nearest_turns("one")
    return similarity.find_similar_to_text("one", kind="message")


def contents_by_reference(ledger: Ledger) -> None:
    with ledger._store.read() as txn:
        refs = [bytes(ref) for (ref,) in txn.sql.fetch_rows("SELECT ref FROM content WHERE n IN (1, 2, 3)")]
        assert txn.facts.find_contents([*refs, bytes(32)]) == dict(zip(refs, (1, 2, 3), strict=True))


def written(work: Callable[[Append], Any]) -> Callable[[Ledger], Any]:
    """What a write looks up."""
    return lambda ledger: ledger._writer.write(work)


def session_of(append: Append, label: str) -> SessionRow:
    session = append.view.find_session(label)
    assert session is not None
    return session


def head_of(append: Append, label: str) -> TurnRow:
    return append.view.turn(session_of(append, label).head or "")


LOOKUPS: dict[str, Callable[[Ledger], Any]] = {
    "a message by its id": node_of_a_message,
    "similar messages": similar_messages,
    "contents by their references": contents_by_reference,
    "the session that stands at a turn": written(lambda append: _session_at(append, head_of(append, "alt"), None)),
    "turns below a turn": written(lambda append: distrust(append.view, head_of(append, "alt"))),
    "sessions that a turn started": written(lambda append: join_started(append.view, head_of(append, "main"))),
    "messages to workers": written(lambda append: _ensure_tasks_left(append, session_of(append, "worker"))),
    "a session's last turn before another": written(
        lambda append: last_before(append, session_of(append, "main").id, head_of(append, "alt").id)
    ),
    "turns of a tree": lambda ledger: ledger.tree.turns("main"),
    "what a broker looks for": lambda ledger: Runs(ledger).waiting(),
    "turns by parent": lambda ledger: ledger.find_turns(parent="main~1"),
    "turns by type": lambda ledger: ledger.find_turns(type="compaction"),
    "turns by the common type": lambda ledger: ledger.find_turns(type="normal", limit=3),
    "turns by status": lambda ledger: ledger.find_turns(status="failed"),
    "turns by the common status": lambda ledger: ledger.find_turns(status="completed", limit=3),
    "turns by start": lambda ledger: ledger.find_turns(since=NOON, until=NOON + MINUTE),
    "turns with children": lambda ledger: ledger.find_turns(has_children=True, limit=3),
    "turns without": lambda ledger: ledger.find_turns(has_children=False),
    "turns by role": lambda ledger: ledger.find_turns(role="manager"),
    "turns by the common role": lambda ledger: ledger.find_turns(role="unified", limit=3),
    "turns by source event": lambda ledger: ledger.find_turns(source_event="event 7"),
    "threads by key": lambda ledger: ledger.resolve("main#2"),
    "threads by persona": lambda ledger: ledger.find_turns(persona="ann"),
    "sessions by label": lambda ledger: ledger.session("main"),
    "sessions by persona": lambda ledger: ledger.find_sessions(persona="ann"),
    "sessions by routing key": lambda ledger: ledger.find_sessions(routing_key="worker:7"),
    "sessions by change": lambda ledger: ledger.find_sessions(since=NOON + MINUTE),
    "sessions by parent": lambda ledger: ledger.find_sessions(parent="main"),
    "sessions by origin": lambda ledger: ledger.find_sessions(origin="toy"),
    "sessions made here": lambda ledger: ledger.find_sessions(origin="weft"),
    "messages of a turn": lambda ledger: ledger.messages("main"),
    "messages by role": lambda ledger: ledger.find_messages(role="user"),
    "messages by file": lambda ledger: ledger.find_messages(path="notes.md"),
    "tool calls of a turn": lambda ledger: ledger.tool_calls("main"),
    "tool calls by tool": lambda ledger: ledger.find_tool_calls(tool="spawn"),
    "tool calls by message": lambda ledger: ledger.find_tool_calls(message=ledger.messages("main~1")[0].id),
    "tool calls by spawned session": lambda ledger: ledger.find_tool_calls(spawned="worker"),
    "history by label": lambda ledger: ledger.reflog("main", limit=5),
    "history by label and time": lambda ledger: ledger.heads.at("main", NOON + MINUTE),
    "history by thread": lambda ledger: ledger.tree.moves_to("main"),
    "aliases by target": aliases,
    "files of messages": lambda ledger: ledger.listing().files([ledger.messages("main~1")[0].id]),
    "code blocks of a message": lambda ledger: ledger.codeblocks(ledger.messages("main~1")[0].id),
    "search": lambda ledger: ledger.search("four", session="main", role="user"),
    "resources by id": lambda ledger: ledger.resources.get(ledger.resources.get("site").id),
    "resources by the end of an id": lambda ledger: ledger.resources.get(ledger.resources.get("site").id[-8:]),
    "resources by name": lambda ledger: ledger.resources.get("site"),
    "resources by place": lambda ledger: ledger.resources.get("/work/site"),
    "resources at a place": lambda ledger: ResourceLog(ledger).find_at("directory", "/work/site", MACHINE),
    "resources of a session": lambda ledger: ledger.resources.list(session="main"),
    "snapshots by id": lambda ledger: ledger.resources.snapshot(kept_snapshot(ledger)),
    "snapshots by the end of an id": lambda ledger: ledger.resources.snapshot(kept_snapshot(ledger)[-6:]),
    "snapshots of no turn by what they hold": lambda ledger: ResourceLog(ledger).kept_beside([TREE]),
    "whether a snapshot holds something": lambda ledger: ResourceLog(ledger).is_held("git", TREE),
    "wishes after a wish": lambda ledger: ResourceLog(ledger).is_superseded(ResourceLog(ledger).pending()[1][0].id),
}


@contextmanager
def overheard(kind: type, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[Any, ...]]]:
    """Every question that is asked of an engine, with values that it was asked with."""
    heard: dict[str, tuple[Any, ...]] = {}
    with monkeypatch.context() as patch:
        for verb in ("fetch_row", "fetch_rows", "iterate_rows"):
            asked = getattr(kind, verb)

            def listening(self: Any, sql: str, values: Any = (), asked: Any = asked) -> Any:
                if sql.startswith(("SELECT", "WITH")):
                    heard[sql] = tuple(values)
                return asked(self, sql, values)

            patch.setattr(kind, verb, listening)
        yield heard


def prepared(ledger: Ledger, clock: FixedClock) -> Ledger:
    Story(ledger, clock)
    rich_import(ledger)
    ledger.labels.add_alias("nick", "main")
    for number, name in enumerate(("site", "other")):
        place = NewResource(
            name=name,
            kind=ResourceKind.DIRECTORY,
            place=f"/work/{name}",
            capabilities=tuple(ResourceCapability),
            session="main",
            machine=MACHINE,
        )
        made = ResourceLog(ledger).declare(place)
        tree = NewSnapshot(method="git_tree", external_kind="git", external_id=TREE, size_bytes=number)
        kept = ResourceLog(ledger).record_snapshot(made.id, tree)
        ResourceLog(ledger).request_restore(kept.id)
    ledger.upkeep.catch_up()
    return ledger


def kept_snapshot(ledger: Ledger) -> str:
    return ledger.resources.snapshots("site")[0].id


def test_no_lookup_scans_a_table_on_sqlite(disk: Ledger, clock: FixedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(disk, clock)
    scans = []
    for name, look in LOOKUPS.items():
        with overheard(SqliteSql, monkeypatch) as heard:
            look(disk)
        assert heard, name
        with disk._store.read() as txn:
            for sql, values in heard.items():
                steps = [str(row[3]) for row in txn.sql.fetch_rows(f"EXPLAIN QUERY PLAN {sql}", values)]
                scans += [(name, step, sql) for step in steps if step.startswith("SCAN") and not is_small(step, sql)]
    assert scans == []


def test_a_ledger_that_had_other_names_looks_for_open_turns_among_these_alone(
    disk: Ledger, path: Path, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(disk, clock)
    change(path, "INSERT INTO local(key, value) VALUES (?, '1')", f"{FORMER}{MACHINE}")
    with overheard(SqliteSql, monkeypatch) as heard:
        Runs(disk).waiting()
    (sql,) = (sql for sql in heard if "FROM open_run o" in sql and "JOIN turn t" in sql)
    assert "o.replica IN (?, ?)" in sql
    assert [step for step in plan_of(disk, sql, heard[sql]) if step.startswith("SCAN")] == ["SCAN o"]


def test_what_waits_for_a_session_is_found_among_all_that_it_was_ever_sent(disk: Ledger) -> None:
    for asked in ("= 'queued' AND n > 5", "IN ('queued', 'taken')", "= 'queued' ORDER BY n"):
        (step, *_) = plan_of(disk, f"SELECT n FROM inbox WHERE session = 1 AND state {asked}", ())
        assert "inbox_session (session=? AND state=?" in step


def plan_of(ledger: Ledger, sql: str, values: tuple[Any, ...]) -> list[str]:
    with ledger._store.read() as txn:
        return [str(row[3]) for row in txn.sql.fetch_rows(f"EXPLAIN QUERY PLAN {sql}", values)]


def test_who_may_not_read_all_looks_at_sessions_and_at_turns_without_one(
    disk: Ledger, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(disk, clock)
    disk.record_turn(query="alone")
    message = disk.messages("main~1")[0].id
    with overheard(SqliteSql, monkeypatch) as heard:
        assert disk.acting_as("ann").listing().files([message]) == {}
    assert any("session IS NULL" in sql for sql in heard)
    plans = [(step, sql) for sql, values in heard.items() for step in plan_of(disk, sql, values)]
    steps = [step for step, _ in plans]
    scanned = {step.split()[1] for step, sql in plans if step.startswith("SCAN") and not is_small(step, sql)}
    assert scanned == {"session", "departure", "turn", "l"}, "and links, by which threads go on"
    assert [step for step in steps if step.startswith("SCAN turn")] == ["SCAN turn USING INDEX turn_alone"]


def is_small(step: str, sql: str) -> bool:
    """A match in the index of words, what a statement itself brings or has found, the last row by its key, or all that
    is open."""
    by_words = step.startswith("SCAN word VIRTUAL TABLE") and ":M" in step
    found = any(step == small and table in sql for small, table in ASKED_FOR.items())
    few = step.endswith((*OPEN_WISHES, "CONSTANT ROWS", "CONSTANT ROW"))
    return by_words or found or few or step.startswith("SCAN log")


def test_no_lookup_scans_a_table_on_postgresql(
    open_ledger: OpenLedger,
    clock: FixedClock,
    new_postgres_ledger: NewPostgresLedger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = new_postgres_ledger()
    ledger = prepared(open_ledger(address), clock)
    questions: dict[str, tuple[str, tuple[Any, ...]]] = {}
    for name, look in LOOKUPS.items():
        with overheard(PostgresSql, monkeypatch) as heard:
            look(ledger)
        assert heard, name
        questions |= {sql: (name, values) for sql, values in heard.items()}
    scans = []
    named = parse_address(address)
    with psycopg.connect(named.conninfo, cursor_factory=psycopg.RawCursor) as connection:
        connection.execute(f"SET search_path TO {named.quoted}; SET enable_seqscan TO off".encode())
        for sql, (name, values) in questions.items():
            rows = connection.execute(b"EXPLAIN " + translate(sql), values).fetchall()
            scans += [(name, row[0].strip(), sql) for row in rows if "Seq Scan" in row[0]]
    assert scans == []


def test_what_the_page_calls_quick_scans_no_table(disk: Ledger, path: Path, clock: FixedClock) -> None:
    prepared(disk, clock)
    quick = PAGE.read_text().partition("## What is quick")[2].partition("```sql\n")[2].partition("```")[0]
    statements = [line for line in quick.splitlines() if line]
    assert len(statements) > 10
    for sql in statements:
        steps = [row["detail"] for row in select(path, f"EXPLAIN QUERY PLAN {sql}")]
        assert steps[0].startswith("SEARCH"), (sql, steps)
        made_of_rows = ("SCAN p", "SCAN b", "SCAN (subquery")  # what a view puts together from rows that it has found
        scans = [step for step in steps if step.startswith("SCAN") and "VIRTUAL TABLE" not in step]
        assert [step for step in scans if not step.startswith(made_of_rows)] == [], sql


def test_what_turns_and_sessions_are_found_by_is_checked(ledger: Ledger) -> None:
    of_turns: dict[str, Any] = {"role": [7], "type": {}, "status": "lost", "source_event": 7, "has_children": 7}
    for name, wrong in of_turns.items():
        with pytest.raises(InvalidInput, match=name):
            ledger.find_turns(**{name: wrong})
    of_sessions: list[tuple[str, Any]] = [("origin", [7]), ("origin", 10**5000), ("routing_key", 7)]
    for name, wrong in of_sessions:
        with pytest.raises(InvalidInput, match=name):
            ledger.find_sessions(**{name: wrong})
    assert not ledger.find_turns(source_event="\ud800")
    assert not ledger.find_sessions(routing_key="\ud800")
