"""The edges of the graph: which events open and close them, and that they can be made again from the facts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from numpy import array, float32

import weft
from scripts.generate_graph_docs import PAGE, graph_page
from tests.conftest import NewPostgresLedger
from tests.graph.histories import new, tell_everything
from tests.ledger.histories import copy_in_memory, exported, grow, import_into, problems, select
from tests.ledger.imported import native_turn, rich_import, take
from weft.graph.edge_reader import EdgeReader
from weft.graph.nodes import NODE_EVENTS, NODE_KINDS_OF, NodeReader
from weft.kernel.clock import FixedClock
from weft.kernel.enums import OwnershipReason
from weft.kernel.errors import NotFound
from weft.kernel.events import import_stream, resource_stream
from weft.kernel.foreign_input import KINDS
from weft.kernel.ledger_events import ResourceOwned, Sighting
from weft.ledger.api.base import store_of
from weft.ledger.api.ledger import Ledger
from weft.ledger.api.resources import ResourceLog
from weft.ledger.views import edges
from weft.ledger.views.edges import EDGE_FACTS, EVENT_BACKED, NODE_KINDS, SEED_TYPES, EdgeType
from weft.ledger.views.rows import fields_of
from weft.ledger.write.transaction import Append
from weft.store.fact_log import VIEW_RULES

NOON, HOUR = 1_794_700_800_000, 3_600_000


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed ledger in which every type of edge occurs, with its graph."""
    path = tmp_path_factory.mktemp("graph") / "ledger.db"
    with weft.open(path) as ledger:
        tell_everything(ledger)
        edges.catch_up(ledger._store)
        assert problems(ledger) == []
    return path


def test_there_are_the_22_types_of_the_schema() -> None:
    assert len(SEED_TYPES) == 22


def test_one_history_has_every_type_of_edge(told: Path) -> None:
    there = {row["type"] for row in select(told, "SELECT DISTINCT type FROM edge")}
    assert there == {type.value for type in EdgeType}


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_summary_names_all_turns_that_it_stands_for_and_the_summary_before_it(
    engine: str, tmp_path: Path, new_postgres_ledger: NewPostgresLedger
) -> None:
    with weft.open(tmp_path / "ledger.db" if engine == "sqlite" else new_postgres_ledger()) as ledger:
        first = grow(ledger, "main", *"abcd")
        ledger.compactions.record(session="main", summary="a to c", first_kept=first[3])
        earlier = ledger.session("main").head
        later = grow(ledger, "main", *"ef")
        ledger.compactions.record(session="main", summary="d and e, and before", first_kept=later[1])
        summaries = [
            event
            for turn in (earlier, ledger.session("main").head)
            for event in ledger.graph.history(f"run:{turn}").events
            if event.properties["kind"] == "compaction_recorded"
        ]
        told = [
            [edge.target for edge in ledger.graph.neighbours(f"summary:{each.name[6:]}", types=["SUMMARIZES"]).edges]
            for each in summaries
        ]
        assert sorted(told[0]) == sorted(f"run:{turn}" for turn in first[:3])
        assert sorted(told[1]) == sorted([summaries[0].name, *(f"run:{turn}" for turn in (first[3], later[0]))])
        assert problems(ledger) == []


def test_one_history_has_every_type_of_node(told: Path) -> None:
    with weft.open(told, read_only=True) as ledger, ledger._store.read() as txn:
        rows = txn.sql.fetch_rows("SELECT source, target FROM edge")
        nodes = NodeReader(EdgeReader(txn, txn.sql)).nodes(end for row in rows for end in row)
        assert {node.type for node in nodes.values()} == NODE_EVENTS.keys()
        assert [node.name for node in nodes.values() if node.properties.get("missing")] == []


def test_edges_join_what_their_types_say_and_have_their_attributes(told: Path) -> None:
    for row in select(told, "SELECT * FROM edge"):
        facts = EDGE_FACTS[EdgeType(row["type"])]
        assert row["source"].partition(":")[0] in facts.sources, row
        assert row["target"].partition(":")[0] in facts.targets, row
        assert edges.read_attributes(row["attributes"]).keys() <= set(facts.attributes), row


def kinds_of(path: Path, column: str) -> dict[str, set[str]]:
    """By type of edge the kinds of event that a column names."""
    with weft.open(path, read_only=True) as ledger, ledger._store.read() as txn:
        found: dict[str, set[str]] = {}
        for type, n in txn.sql.fetch_rows(f"SELECT type, {column} FROM edge WHERE {column} IS NOT NULL"):
            line = txn.facts.line(n)
            assert line is not None
            found.setdefault(type, set()).add(str(fields_of(n, line)["kind"]))
        return found


def test_edges_are_opened_and_closed_by_the_events_that_the_table_names(told: Path) -> None:
    for type, kinds in kinds_of(told, "id / 65536").items():
        opened_by = EDGE_FACTS[EdgeType(type)].opened_by
        assert opened_by == ("every event of a run",) or kinds <= set(opened_by), type
    closed = kinds_of(told, "closed")
    for type, kinds in closed.items():
        assert kinds <= set(EDGE_FACTS[EdgeType(type)].closed_by), type
    assert {"OWNS_RESOURCE", "ATTACHED_TO", "MOUNTS_RESOURCE", "ACTIVATES_POLICY", "HANDLE_OF"} <= closed.keys()


def test_a_graph_that_was_filled_bit_by_bit_is_the_same(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = select(told, "SELECT * FROM edge ORDER BY id")
    monkeypatch.setattr(edges, "BATCH_EVENTS", 1)
    with weft.open(told) as ledger:
        ledger._store.write(lambda txn: txn.sql.run("DELETE FROM edge"))
        ledger._store.write(lambda txn: txn.sql.run("DELETE FROM watermark WHERE view = ?", (edges.VIEW,)))
        edges.catch_up(ledger._store)
    assert select(told, "SELECT * FROM edge ORDER BY id") == whole


def test_an_edge_holds_no_text(told: Path) -> None:
    words = "folder", "/data", "/work", "careful", "resource://notes", "they looked", "docker volume"
    for row in select(told, "SELECT * FROM edge"):
        assert not [word for word in words if word in f"{row['source']} {row['target']} {row['attributes']}"], row


def test_the_page_about_the_graph_says_what_the_code_does() -> None:
    page = PAGE.read_text()
    assert graph_page(page) == page


def test_every_kind_of_node_has_a_type_and_every_event_of_a_type_exists() -> None:
    assert {kind for kinds in NODE_KINDS_OF.values() for kind in kinds} == {*NODE_KINDS, "agent"}
    events = {event for names in NODE_EVENTS.values() for event in names if " " not in event}
    for facts in EDGE_FACTS.values():
        events |= {event for event in (*facts.opened_by, *facts.closed_by) if " " not in event}
    assert events <= KINDS.kinds.keys()


def disown(ledger: Ledger, resource: str) -> None:
    """Say that nobody owns a resource, whoever declared it."""

    def work(append: Append) -> None:
        name = resource_stream(resource)
        tip = append.sql.fetch_row("SELECT last FROM stream_tip WHERE stream = ?", (name,))
        stream = append.stream(name, bytes(tip[0]).hex() if tip else None)
        stream.add(ResourceOwned, resource_ref=resource, owner=None, before=None, why=next(iter(OwnershipReason)))
        append.seal()

    ledger._writer.write(work)


def test_what_another_ledger_says_of_a_resource_opens_and_closes_nothing() -> None:
    with weft.open(":memory:") as ledger:
        grow(ledger, "main", "one")
        grow(ledger, "other", "one")
        folder = ResourceLog(ledger).declare(new("folder"))
        with copy_in_memory(ledger) as elsewhere:
            ledger.graph.catch_up()
            before = ledger.graph.resources("folder")
            disown(elsewhere, folder.id)
            import_into(ledger, exported(elsewhere))
        assert [one for one in ledger.changes() if isinstance(one.event, ResourceOwned) and one.event.owner is None]
        assert ledger.graph.resources("folder") == before
        assert problems(ledger) == []


def test_what_came_from_another_ledger_held_before_it_was_known() -> None:
    there, here = FixedClock(NOON), FixedClock(NOON + HOUR)
    with weft.open(":memory:", clock=there) as origin, weft.open(":memory:", clock=here) as ledger:
        (turn,) = grow(origin, "main", "one")
        import_into(ledger, exported(origin))
        assert ledger.graph.neighbours(f"run:{turn}", at=NOON + 1).edges
        assert ledger.graph.neighbours(f"run:{turn}", known_at=NOON + HOUR, at=NOON + 1).edges
        assert not ledger.graph.neighbours(f"run:{turn}", known_at=NOON + 1, at=NOON + 1).edges
        (edge, *_) = ledger.graph.neighbours(f"run:{turn}").edges
        assert (edge.valid_from, edge.known_from) == (NOON, NOON + HOUR)


def test_an_erased_text_is_in_no_answer() -> None:
    with weft.open(":memory:") as ledger:
        names = tell_everything(ledger)
        ledger.record_turn(session="gone", query="a canary", response="fine")
        gone = ledger.resolve("gone")
        assert "a canary" in str(ledger.graph.neighbours(f"run:{gone}"))
        ledger.erasure.erase(gone, reason="asked for")
        assert "a canary" not in str(ledger.graph.neighbours(f"run:{gone}"))
        assert ledger.graph.node(f"resource:{names['folder']}").properties["name"] == "folder"
        assert problems(ledger) == []


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_edges_that_an_older_program_left_out_are_there_after_opening(
    engine: str, tmp_path: Path, new_postgres_ledger: NewPostgresLedger
) -> None:
    address = tmp_path / "ledger.db" if engine == "sqlite" else new_postgres_ledger()
    with weft.open(address) as ledger:
        rich_import(ledger)
        turn = next(iter(ledger.log())).id
        whole = ledger.graph.neighbours(f"run:{turn}", ["SESSION_HAS_RUN"]).edges
        assert whole
        ledger._store.write(lambda txn: txn.sql.run("DELETE FROM edge WHERE type = 'SESSION_HAS_RUN'"))
        ledger._store.write(lambda txn: txn.sql.run("UPDATE local SET value = '7' WHERE key = ?", (VIEW_RULES,)))
        assert not ledger.graph.neighbours(f"run:{turn}", ["SESSION_HAS_RUN"]).edges
    with weft.open(address) as ledger:
        assert ledger.graph.neighbours(f"run:{turn}", ["SESSION_HAS_RUN"]).edges == whole
        assert problems(ledger) == []


def test_a_session_that_was_recorded_here_has_no_turn_because_a_source_says_so() -> None:
    with weft.open(":memory:") as ledger:
        grow(ledger, "main", "one")
        take(ledger, "theirs", native_turn("t1", started=1_000, end=10))
        theirs, mine = ledger.resolve("theirs"), ledger.session("main").id

        def claim(append: Append) -> None:
            seen = Sighting(
                stream=import_stream(theirs), prev=None, actor="imported", origin="toy", session=mine, turn=theirs
            )
            append.add_event(seen)
            append.seal()

        ledger._writer.write(claim)
        sources = [edge.source for edge in ledger.graph.neighbours(f"run:{theirs}", ["SESSION_HAS_RUN"]).edges]
        assert sources == [f"session:{ledger.session('theirs').id}"]
        assert problems(ledger) == []


@pytest.mark.parametrize("store", ["disk", "postgres"])
def test_a_node_of_every_kind_takes_tags_and_a_vector(
    store: str, tmp_path: Path, new_postgres_ledger: NewPostgresLedger
) -> None:
    class Same:
        name, dimensions = "same", 2

        def embed(self, texts: Sequence[str]) -> Any:
            return array([[1.0, 0.0]] * len(texts), float32)

    address = tmp_path / "ledger.db" if store == "disk" else new_postgres_ledger()
    with weft.open(address) as ledger:
        tell_everything(ledger)
        graph, programs = ledger.graph, ledger.programs
        graph.catch_up()
        with store_of(ledger).read() as txn:
            reader = EdgeReader(txn, txn.sql)
            keys = {key for row in txn.sql.fetch_rows("SELECT source, target FROM edge") for key in row}
            names = {
                key.partition(":")[0]: reader.name_of(key)
                for key in sorted(keys - {"program:local", "program:imported"})
            }
        with pytest.raises(NotFound):
            programs.add_tags("program:local", "nobody")
        assert set(names) == set(NODE_KINDS)
        for kind, name in names.items():
            tag = f"is-{kind.replace('_', '-')}"
            programs.add_tags(name, tag)
            assert tag in programs.tags(name)
            (tagged,) = programs.tagged(tag)
            assert tag in programs.tags(f"@({tagged.id})")
            embedded = weft.Similarity(ledger, Same()).embed(name, text="words of one's own")
            assert embedded.node.id == tagged.id
            same = {"run": "turn", **dict.fromkeys(EVENT_BACKED, "event")}
            assert tagged.kind == same.get(kind, kind)
        assert problems(ledger) == []
