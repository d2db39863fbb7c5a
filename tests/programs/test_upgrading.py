"""Ledgers from before there were programs: agents that were named then are programs now."""

import uuid
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

import weft
from tests.ledger.histories import problems
from tests.postgres import shared_server
from tests.programs.conftest import NOON
from weft.kernel.clock import FixedClock, UlidSource, iso_from_ms
from weft.kernel.events import encode, event_id, program_stream
from weft.kernel.ledger_events import AgentCreated
from weft.programs import Programs
from weft.store.fact_log import LEDGER_SCOPE
from weft.store.port import Store, WriteTxn
from weft.store.postgres.migrations import shipped_schema as postgres_schema
from weft.store.postgres.store import PostgresStore
from weft.store.sqlite import SqliteStore
from weft.store.sqlite.migrations import Schema
from weft.store.sqlite.migrations import shipped_schema as sqlite_schema


def earlier(schema: Schema) -> Schema:
    """As a program knew it that had no programs yet."""
    own = next(i for i, step in enumerate(schema.migrations) if "CREATE TABLE program_history" in step.sql)
    return replace(schema, migrations=schema.migrations[:own], surface="CREATE VIEW turns AS SELECT 1 AS one;")


def name_agents(agents: list[str], names: list[str], txn: WriteTxn) -> None:
    """What an earlier program wrote when agents were first named."""
    lines, ids = [], []
    for i, (agent, name) in enumerate(zip(agents, names, strict=True)):
        content = txn.facts.put(name.encode(), LEDGER_SCOPE).ref.hex()
        stream, ts = program_stream(agent), iso_from_ms(NOON + i)
        event = AgentCreated(ts=ts, stream=stream, prev=None, actor="local", replica=agents[0], name=content)
        lines.append(encode(event))
        ids.append(bytes.fromhex(event_id(lines[-1])))
        txn.sql.run("INSERT INTO program(id, kind, name) VALUES (?, 'agent', ?)", (agent, name))
        txn.sql.run("INSERT INTO stream_tip(stream, last) VALUES (?, ?)", (stream, ids[-1]))
    txn.facts.flush()
    txn.facts.append(lines, ids)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_agents_of_an_earlier_ledger_are_programs(tmp_path: Path, engine: str) -> None:
    clock = FixedClock(NOON)
    ulids = UlidSource(clock.now_ms, lambda size: uuid.uuid4().bytes[:size])
    path = str(tmp_path / "ledger.db") if engine == "sqlite" else shared_server().address()
    store: Store
    if engine == "sqlite":
        store = SqliteStore(path, clock=clock, schema=earlier(sqlite_schema()))
    else:
        store = PostgresStore(path, clock=clock, schema=earlier(postgres_schema()))
    store.write(partial(name_agents, [ulids.mint(), ulids.mint()], ["ann", "ben"]))
    store.close()
    with weft.open(path, clock=clock) as ledger:
        assert problems(ledger) == []
        programs = Programs(ledger)
        ann, ben = programs.all("agent")
        assert [(one.name, one.version, one.state, one.created_at - NOON) for one in (ann, ben)] == [
            ("ann", 0, "idle", 0),
            ("ben", 0, "idle", 1),
        ]
        assert programs.create("agent", "ann", {"soul": "kind"}).id == ann.id
        assert problems(ledger) == []
