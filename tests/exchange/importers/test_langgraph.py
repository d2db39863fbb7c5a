"""Threads of LangGraph, from databases that the library itself made."""

import random
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

import weft
from tests.exchange import independent_usage
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.fixtures.langgraph.agents import (
    added,
    agent,
    ask,
    config,
    history,
    outer,
    saver,
    story,
    whole,
    write_story,
)
from tests.exchange.fuzzing import ODD
from tests.exchange.reading import Read, called, read, read_one, said, spoken, words
from tests.postgres import shared_server
from weft.exchange.importers.foreign_files import open_database
from weft.exchange.importers.langgraph import LangGraph, ThreadReader, message
from weft.exchange.importers.langgraph_checkpoints import (
    BROKEN,
    Rows,
    TaggedObject,
    ThreadPlace,
    decode_checkpoint,
    decode_value,
    rows_of,
)
from weft.exchange.importers.port import Report, Tokens
from weft.exchange.importers.testing import ImporterContract, as_source
from weft.exchange.importing.run import ImportRun
from weft.exchange.importing.sources import Address
from weft.kernel.clock import SystemClock
from weft.kernel.enums import AgentRole, ToolCallStatus
from weft.ledger.api import SessionFilter

GRAPH = LangGraph()
STORY = [
    [("user", ["one"]), ("assistant", ["You said: one"])],
    [("user", ["two tool text"]), ("assistant", ["I look."]), ("assistant", ["You said: a.py"])],
    [("user", ["other"]), ("assistant", ["You said: other"])],
    [("user", ["three"]), ("assistant", ["You said: three"])],
]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_story(tmp_path_factory.mktemp("langgraph") / "full.sqlite")


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_story(tmp_path_factory.mktemp("langgraph") / "delta.sqlite", added())


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("langgraph") / "short.sqlite"
    with saver(path) as kept:
        app = agent(kept)
        for words_ in ("one", "two"):
            app.update_state(config(), {"messages": [("user", words_), ("ai", f"You said: {words_}")]}, as_node="model")
    return path


class TestContract(OwnImporterContract):
    importer = GRAPH
    open = staticmethod(weft.open)
    rewrites_document = True

    @pytest.mark.slow("starts workers, and imports all samples twice in two ways")
    def test_two_processes_import_the_same_as_one(self, tmp_path: Path) -> None:
        ImporterContract.test_two_processes_import_the_same_as_one(self, tmp_path)

    @pytest.fixture(autouse=True)
    def made(self, short: Path, full: Path, delta: Path) -> None:
        self.made_before = [short, full, delta]

    def samples(self, folder: Path) -> list[Path]:
        return [Path(shutil.copy(path, folder / path.name)) for path in self.made_before]


def only(path: Path) -> Read:
    return read_one(GRAPH, path)


def test_the_full_list_at_each_checkpoint_becomes_turns(full: Path) -> None:
    turns = only(full).turns
    assert [spoken(turn) for turn in turns] == STORY
    assert [turn.closed for turn in turns] == [True] * 4


def test_time_travel_makes_a_branch_at_the_parent_checkpoint(full: Path) -> None:
    assert [turn.parent for turn in only(full).turns] == [None, 0, 0, 2]


def test_messages_that_were_removed_stay_said(full: Path) -> None:
    """`three` was asked after the first message had left the list."""
    assert only(full).turns[3].parent == 2


def test_channels_that_keep_only_what_is_added_give_the_same(delta: Path) -> None:
    turns = only(delta).turns
    assert [spoken(turn) for turn in turns] == STORY
    assert [turn.parent for turn in turns] == [None, 0, 0, 2]


@pytest.mark.parametrize("state", [whole, added])
def test_at_every_checkpoint_the_messages_are_those_that_the_library_gives(
    tmp_path: Path, state: Callable[[], Any]
) -> None:
    path = tmp_path / "x.sqlite"
    with saver(path) as kept:
        app = agent(kept, state())
        story(app)
        theirs = {
            each.config["configurable"]["checkpoint_id"]: [m.id for m in each.values.get("messages", ())]
            for each in history(app)
        }
    report = Report("x")
    with open_database(path, report) as database:
        assert database is not None
        thread = ThreadReader(Rows(database), ThreadPlace("1", ""), report).read()
    ours = {id: [entry.id for entry in found.listed()] for id, found in thread.tips.items()}
    assert ours == theirs
    assert len(ours) > 10


def test_calls_have_their_results_and_responses_their_cost(full: Path) -> None:
    turn = only(full).turns[1]
    (call,) = called(turn)
    assert (call.id, call.name, call.arguments, call.result) == ("c1", "listing", {"path": "."}, "a.py")
    answer = said(turn)[1]
    assert answer.tokens == Tokens(input=6, output=5, cached=4, reasoning=2)
    assert (answer.model, answer.provider, answer.finish_reason) == ("canned", "acme", "stop")
    assert turn.started is not None
    assert answer.native is not None


def test_threads_of_one_name_in_two_databases_are_two(full: Path, delta: Path) -> None:
    assert only(full).session.title == only(delta).session.title == "1"
    assert only(full).session.id != only(delta).session.id


def test_a_state_without_messages_is_an_empty_session_and_no_title_is_a_random_id(tmp_path: Path) -> None:
    path, thread = tmp_path / "states.sqlite", "0b0e2c2e-6f0e-4b0e-9f0e-0b0e2c2e6f0e"
    from langgraph.graph import START, StateGraph

    with saver(path) as kept:
        graph: Any = StateGraph(dict[str, Any])
        graph.add_node("count", lambda state: {"count": 1})
        graph.add_edge(START, "count")
        graph.compile(checkpointer=kept).invoke({"count": 0}, config(thread))
    transcript = only(path)
    assert (transcript.session.title, list(transcript.turns)) == (None, [])
    assert transcript.session.metadata["thread"] == thread
    with weft.open(tmp_path / "ledger.db") as ledger:
        ImportRun(ledger, [GRAPH], SystemClock()).run([path])
        found = ledger.listing().sessions(SessionFilter())
        assert (found.sessions, found.empty) == ([], 1)


def test_an_edited_message_makes_another_answer(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with saver(path) as kept:
        app = agent(kept)
        ask(app, "one")
        last = app.get_state(config()).values["messages"][-1]
        app.update_state(config(), {"messages": [last.model_copy(update={"content": "Edited."})]})
        ask(app, "two")
    turns = only(path).turns
    assert [spoken(turn)[-1] for turn in turns] == [
        ("assistant", ["You said: one"]),
        ("assistant", ["Edited."]),
        ("assistant", ["You said: two"]),
    ]
    assert [turn.parent for turn in turns] == [None, None, 1]
    assert turns[1].key.startswith(f"{turns[0].key}#")


def test_a_session_stands_where_its_last_checkpoint_does(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with saver(path) as kept:
        app = agent(kept)
        ask(app, "one")
        ask(app, "two")
        ask(app, "three")
        early = next(state for state in history(app) if len(state.values.get("messages", ())) == 2)
        ask(app, "other", early.config)
    with weft.open(tmp_path / "ledger.db") as ledger:
        TestContract().import_files(ledger, path)
        (session,) = ledger.sessions()
        heard = [told.text for turn in ledger.thread(session.label).turns for told in ledger.messages(turn.id)]
    assert heard == ["one", "You said: one", "other", "You said: other"]


def test_an_interrupt_leaves_a_turn_open_and_an_error_fails_it(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with saver(path) as kept:
        app = agent(kept)
        ask(app, "wait", config("waits"))
        with pytest.raises(ValueError, match="it broke"):
            ask(app, "fail", config("fails"))
    found = {each.session.title: each.turns for each in read(GRAPH, path)[0]}
    (fails,), (waits,) = found["fails"], found["waits"]
    assert fails.error is not None
    assert "it broke" in fails.error
    assert not waits.closed
    assert waits.metadata["interrupt"][0]["value"] == {"question": "Go on?"}


def test_a_subgraph_is_a_session_below_its_threads(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with saver(path) as kept:
        ask(outer(kept), "one")
    found, _ = read(GRAPH, path)
    main, sub = sorted(found, key=lambda each: each.session.id)
    assert (sub.session.parent, sub.session.agent) == (main.session.id, "worker")
    assert sub.turns[0].role is AgentRole.WORKER
    assert sub.turns[0].records == main.turns[0].records


def test_rows_come_back_to_the_letter_and_messages_are_kept_once(tmp_path: Path, full: Path) -> None:
    rows = list(rows_of(only(full).raw or b""))
    with closing(sqlite3.connect(full)) as connection:
        sql = "SELECT checkpoint_id, type, checkpoint FROM checkpoints"
        theirs = {id: (kind, data) for id, kind, data in connection.execute(sql)}
        writes = [value for (value,) in connection.execute("SELECT value FROM writes")]
    ours = {told["checkpoint_id"]: (told["type"], data) for table, told, data in rows if table == "checkpoint"}
    assert ours == theirs
    assert sorted(data for table, _, data in rows if table == "write") == sorted(writes)
    path = tmp_path / "long.sqlite"
    with saver(path) as kept:
        app = agent(kept)
        for number in range(25):
            app.update_state(config(), {"messages": [("ai", f"{number} " + "long " * 200)]}, as_node="model")
    raw = only(path).raw or b""
    with closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("SELECT sum(length(checkpoint)) FROM checkpoints").fetchone()
    assert len(raw) < size / 3


class Trap:
    """Would tell if anybody made one."""

    sprung = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        Trap.sprung = True


def test_no_class_is_imported_or_called() -> None:
    inner = [Trap.__module__, "Trap", {"type": "human", "content": "hi"}, "model_validate_json"]
    for code in range(6):
        packed = ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(inner)))
        found = decode_value("msgpack", packed)
        assert isinstance(found, TaggedObject) or code == 3
    absent = ormsgpack.packb(ormsgpack.Ext(5, ormsgpack.packb(["no.such.module", "Gone", {"a": 1}])))
    assert decode_value("msgpack", absent).value == {"a": 1}
    assert not Trap.sprung
    assert "no.such.module" not in sys.modules
    document = b'{"lc": 2, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}}'
    assert decode_value("json", document).name == "os.system"


@pytest.mark.parametrize("kind", ["pickle", "msgpack+aes"])
def test_what_is_pickled_or_encrypted_is_kept_unread(tmp_path: Path, full: Path, kind: str) -> None:
    path = Path(shutil.copy(full, tmp_path / "x.sqlite"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE checkpoints SET type = ?", (kind,))
        connection.commit()
    (found,), report = read(GRAPH, path)
    assert found.turns == []
    assert report.kept[f"checkpoint.{kind}"] == 15
    assert "are not read" in report.problems[0].what
    assert len([None for table, _, _ in rows_of(found.raw or b"") if table == "checkpoint"]) == 15


OLDER = b"""{"v": 1, "ts": "2024-05-04T06:32:42+00:00", "id": "1", "channel_versions": {"messages": 2},
"channel_values": {"messages": [
  {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "HumanMessage"],
   "kwargs": {"content": "hi", "id": "h1"}},
  {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessage"],
   "kwargs": {"content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "yo"}], "id": "a1",
              "response_metadata": {"token_usage": {"prompt_tokens": 7, "completion_tokens": 2}, "model": "m"}}}
]}}"""


def test_checkpoints_in_json_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id,"
                           " type, checkpoint, metadata)")  # fmt: skip
        connection.execute("INSERT INTO checkpoints VALUES ('t', '', '1', NULL, 'json', ?, '{}')", [OLDER])
        connection.commit()
    (turn,) = only(path).turns
    assert spoken(turn) == [("user", ["hi"]), ("assistant", [["Hm."], "yo"])]
    assert said(turn)[1].tokens == Tokens(input=7, output=2)
    assert turn.started == 1714804362000


@pytest.mark.parametrize(
    ("value", "role", "id"),
    [
        ({"role": "user", "content": "hi", "id": "1"}, "user", "1"),
        (["ai", "hi"], "assistant", None),
        ({"type": "human", "data": {"content": "hi", "id": "2"}}, "user", "2"),
        ({"type": "chat", "role": "assistant", "content": "hi"}, "assistant", None),
        (TaggedObject("x.ToolMessage", {"content": "hi", "tool_call_id": "c"}), "tool", None),
        (TaggedObject("x.RemoveMessage", {"type": "remove", "id": "3", "content": ""}), "remove", "3"),
    ],
)
def test_messages_of_every_form_are_known(value: Any, role: str, id: str | None) -> None:
    found = message(value)
    assert found is not None
    assert (found.role, found.id) == (role, id)


@pytest.mark.parametrize(
    "value", [None, 7, "hi", [], ["ai"], {"content": "hi"}, {"type": "human"}, TaggedObject("x.Y", 1)]
)
def test_what_is_no_message_is_none(value: Any) -> None:
    assert message(value) is None


def test_calls_in_openai_s_words_and_failed_tools(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    asked = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": '{"p": 1}'}}
    rows = [
        {"role": "user", "content": "go", "id": "1"},
        {"role": "assistant", "content": "", "tool_calls": [asked], "id": "2"},
        {"role": "tool", "tool_call_id": "c", "content": "no", "status": "error", "id": "3"},
        {"role": "tool", "tool_call_id": "other", "content": "stray", "id": "4"},
    ]
    data = msgspec.msgpack.encode({"ts": "2026-01-02T03:04:05+00:00", "channel_values": {"messages": rows}})
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id,"
                           " type, checkpoint, metadata)")  # fmt: skip
        connection.execute("INSERT INTO checkpoints VALUES ('t', '', '1', NULL, 'msgpack', ?, '{}')", [data])
        connection.commit()
    (turn,) = only(path).turns
    (call,) = called(turn)
    assert (call.arguments, call.status, call.error, call.result) == ({"p": 1}, ToolCallStatus.ERROR, "no", UNSET)
    assert words(said(turn)[-1]) == ["stray"]


def test_usage_equals_an_independent_count(tmp_path: Path, full: Path, delta: Path) -> None:
    expected = independent_usage.langgraph([full, delta])
    with weft.open(tmp_path / "ledger.db") as ledger:
        TestContract().import_files(ledger, full, delta)
        rows = ledger.usage.report(by="model", origin="langgraph").rows
    kinds = independent_usage.KINDS
    assert {row.key: {kind: getattr(row, kind) for kind in kinds} for row in rows} == expected


def test_importing_a_thread_that_has_grown_brings_only_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with weft.open(tmp_path / "ledger.db") as ledger:
        for prompt, turns in (("one", 1), ("two tool", 1), ("three", 1)):
            with saver(path) as kept:
                ask(agent(kept), prompt)
            counts = TestContract().import_files(ledger, path).of("langgraph").counts
            assert (counts.turns, counts.superseded) == (turns, 0)
        assert list(ledger.verify()) == []


def test_a_postgres_database_gives_what_the_same_thread_in_sqlite_gives(tmp_path: Path) -> None:
    from langgraph.checkpoint.postgres import PostgresSaver

    server = shared_server()
    server.psql("-c", "CREATE DATABASE graphs")
    address = Address(f"postgresql://weft:hidden@/graphs?host={server.folder}")
    with PostgresSaver.from_conn_string(address.url) as kept:
        kept.setup()
        story(agent(kept))
    with weft.open(tmp_path / "ledger.db") as ledger:
        importing = ImportRun(ledger, [GRAPH], SystemClock())
        summary = importing.run([address])
        assert summary.problems == []
        heard = [[(m.role, [m.text]) for m in ledger.messages(turn.id)] for turn in ledger.log()]
        assert sorted(heard) == sorted(STORY)
        assert list(ledger.verify()) == []
        again = ImportRun(ledger, [GRAPH], SystemClock()).run([address]).of("langgraph")
        assert (again.unchanged, again.counts.turns) == (1, 0)
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        names = connection.execute("SELECT name FROM import_source").fetchall()
    assert names == [("postgresql://localhost/graphs",)]
    found = ImportRun(None, [GRAPH], SystemClock()).run([Address(f"{address.url}x")])
    assert "cannot be reached" in found.problems[0].what
    assert "hidden" not in found.problems[0].source


DAMAGES = [
    "DROP TABLE writes", "ALTER TABLE checkpoints DROP COLUMN metadata", "UPDATE checkpoints SET checkpoint = x'c1'",
    "UPDATE checkpoints SET checkpoint = x'80'", "UPDATE checkpoints SET checkpoint = NULL",
    "UPDATE checkpoints SET parent_checkpoint_id = checkpoint_id", "UPDATE checkpoints SET metadata = 'broken'",
    "UPDATE checkpoints SET parent_checkpoint_id = 'nowhere'", "UPDATE checkpoints SET type = NULL",
    "UPDATE writes SET value = x'ff'", "UPDATE writes SET channel = '__error__'", "DELETE FROM writes",
    "UPDATE writes SET type = 'pickle'", "UPDATE checkpoints SET checkpoint = 'text'",
]  # fmt: skip


@pytest.mark.parametrize("sql", DAMAGES)
def test_odd_tables_are_never_fatal(tmp_path: Path, delta: Path, sql: str) -> None:
    path = Path(shutil.copy(delta, tmp_path / "x.sqlite"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(sql)
        connection.commit()
    found, _ = read(GRAPH, path)
    assert isinstance(found, list)


def test_values_with_bytes_changed_are_never_fatal(tmp_path: Path, full: Path) -> None:
    chance = random.Random(1)
    for attempt in range(30):
        path = Path(shutil.copy(full, tmp_path / f"{attempt}.sqlite"))
        with closing(sqlite3.connect(path)) as connection:
            for id, data in connection.execute("SELECT rowid, checkpoint FROM checkpoints").fetchall():
                broken = bytearray(data)
                for _ in range(chance.randint(0, 3)):
                    broken[chance.randrange(len(broken))] = chance.randrange(256)
                connection.execute("UPDATE checkpoints SET checkpoint = ? WHERE rowid = ?", (bytes(broken), id))
            connection.commit()
        read(GRAPH, path)


@given(st.binary(max_size=200) | ODD.map(lambda value: msgspec.msgpack.encode(_small(value))))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for kind in ("msgpack", "json", "null", "bytes"):
        try:
            decode_value(kind, data)
        except BROKEN:
            continue
    try:
        decode_checkpoint("msgpack", data)
    except BROKEN:
        return


def _small(value: Any) -> Any:
    """Without numbers that the format has no room for."""
    if isinstance(value, dict):
        return {name: _small(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_small(each) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value % 2**60 if isinstance(value, int) and not isinstance(value, bool) else value


def test_other_databases_are_not_recognised(tmp_path: Path, full: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE checkpoints (id)")
        connection.commit()
    assert not GRAPH.recognises(as_source(path))
    assert GRAPH.recognises(as_source(full))
    assert GRAPH.places(tmp_path, {}) == []
