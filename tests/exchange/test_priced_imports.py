"""Cost from raw files to `weft usage`: cache durations, costs that tools noted, and ledgers of an earlier version."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import asdict

import weft
from tests.exchange import independent_usage
from tests.exchange.corpus import current, opened, take
from tests.exchange.fixtures.pi import sessions as pi
from tests.exchange.independent_cost import independent_costs
from tests.exchange.priced_sessions import NO_PRICE, write_sessions
from tests.postgres import new_name, shared_server
from tests.upgrades import description
from weft import Ledger
from weft.exchange.importers import langgraph
from weft.exchange.importers.atif import metrics_tokens as atif_tokens
from weft.exchange.importers.port import Tokens
from weft.ledger.imports import imported_turns
from weft.ledger.views import sightings
from weft.store.fact_log import VIEW_RULES

COUNTERS: dict[str, Any] = {
    "claude-code": independent_usage.claude_code,
    "codex": independent_usage.codex,
    "opencode": independent_usage.opencode,
    "pi": independent_usage.pi,
}
OLD_LEDGER = description.FOLDER / "imports-0012" / description.LEDGER
"""What `write_sessions` writes, imported by the last version without a field for one-hour cache writes."""
FIGURES = "SELECT turn_id, sequence, cache_write_1h_tokens, recorded_cost FROM messages ORDER BY turn_id, sequence"
SUMS = "SELECT id, cache_write_1h_tokens FROM turns ORDER BY id"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    return write_sessions(tmp_path_factory.mktemp("sources") / "project")


@pytest.fixture(scope="module")
def ledger(sources: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with opened(tmp_path_factory.mktemp("priced") / "ledger.db") as ledger:
        assert take(ledger, *(path for paths in sources.values() for path in paths)).problems == []
        yield ledger


def figures(ledger: Ledger) -> tuple[list[Any], list[Any]]:
    with ledger._store.read() as txn:
        return list(txn.sql.fetch_rows(FIGURES)), list(txn.sql.fetch_rows(SUMS))


def without_ids(found: tuple[list[Any], list[Any]]) -> list[list[Any]]:
    """A turn that an importer reads by newer rules has another id."""
    return [sorted((row[1:] for row in rows), key=repr) for rows in found]


def unchanged(ledger: Ledger) -> dict[str, str]:
    """Digests by id, of the origins whose rules are what they were when the old ledger was written."""
    return {turn.id: turn.digest for turn in ledger.log() if turn.origin != "codex"}


def by_model(ledger: Ledger) -> dict[str, weft.UsageRow]:
    return {row.key: row for row in ledger.usage.report("model").rows}


def test_tokens_are_those_of_the_raw_files_cache_durations_included(
    ledger: Ledger, sources: dict[str, list[Path]]
) -> None:
    for origin, paths in sources.items():
        rows = ledger.usage.report("model", origin=origin).rows
        counted = {row.key: {kind: getattr(row, kind) for kind in independent_usage.KINDS} for row in rows}
        assert counted == COUNTERS[origin](paths)
    assert by_model(ledger)["claude-opus-4-5-20251101"].cache_write_1h == 10_000


def test_cost_is_that_of_the_raw_files_and_the_same_table(ledger: Ledger, sources: dict[str, list[Path]]) -> None:
    expected = independent_costs(independent_usage.claude_responses(sources["claude-code"]))
    rows = ledger.usage.report("model", origin="claude-code").rows
    assert {row.key: asdict(row.costs) for row in rows} == expected
    for row in rows:
        assert row.cost is not None
        assert abs(row.cost - sum(expected[row.key].values())) <= 2, "kinds are rounded each for itself"


def test_each_kind_of_token_has_its_price(ledger: Ledger) -> None:
    """By hand, from the public list: $5 input, $25 output, $6.25 for five minutes, $10 for an hour."""
    costs = by_model(ledger)["claude-opus-4-5-20251101"].costs
    assert (costs.input, costs.output, costs.cached) == (50, 17_500, 0)
    assert (costs.cache_write, costs.cache_write_1h) == (2_500, 100_000)
    long_prompt = by_model(ledger)["claude-sonnet-4-5-20250929"].costs
    assert (long_prompt.cached, long_prompt.cache_write_1h) == (138_000, 60_000)


def test_a_cost_that_its_tool_noted_counts_where_there_is_no_price(ledger: Ledger) -> None:
    row = by_model(ledger)[NO_PRICE]
    assert (row.cost, row.unpriced) == (12_500, 2_600)
    assert row.recorded == weft.RecordedCosts(used=12_500, noted=0, priced=0)


def test_a_cost_that_its_tool_noted_stands_beside_ours(ledger: Ledger) -> None:
    row = by_model(ledger)["gpt-4.1"]
    assert row.cost == 20_000
    assert row.recorded == weft.RecordedCosts(used=0, noted=30_000, priced=20_000)
    assert row.recorded.differs
    assert by_model(ledger)["gpt-5.2"].recorded is None


def test_a_ledger_of_before_gets_the_figures_from_what_it_kept(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(gzip.decompress(OLD_LEDGER.read_bytes()))
    with weft.open(path) as upgraded:
        assert list(upgraded.verify()) == []
        assert without_ids(figures(upgraded)) == without_ids(figures(ledger))
        assert len(current(upgraded)) == len(current(ledger))
        assert unchanged(upgraded) == unchanged(ledger)
        assert by_model(upgraded) == by_model(ledger)
        assert upgraded.upkeep.rebuild() == 0


def test_what_a_tool_of_pi_spent_is_in_the_cost_of_the_response_that_asked_for_it(tmp_path: Path) -> None:
    usage = {"input": 1_000, "output": 0, "cacheRead": 0, "cacheWrite": 0, "cost": {"total": 0.5}}
    asked = pi.assistant("a1", "u1", pi.call("c1"), model=NO_PRICE, usage=usage)
    records = [pi.header(), pi.user("u1", None, "Ask."), asked, pi.result("r1", "a1", "c1", usage=usage)]
    with weft.open(":memory:") as ledger:
        take(ledger, pi.write(tmp_path, *records, pi.assistant("a2", "r1", "Done.", model=NO_PRICE, usage=usage)))
        (row,) = ledger.usage.report("model").rows
        assert (row.total, row.cost) == (3_000, 1_500_000)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"cost": 0.5}, 500_000),
        ({"cost": {"input": 0.1, "total": 0.25}}, 250_000),
        ({"costUSD": 1}, 1_000_000),
        ({"cost": 0.5, "tool_costs": [0.25, "much", None]}, 750_000),
        ({"cost": 0}, None),
        ({"cost": -1}, None),
        ({"cost": True}, None),
        ({"cost": 1e300}, None),
        ({"cost": float("nan")}, None),
        ({"cost": {"total": "1"}}, None),
        ({}, None),
    ],
)
def test_a_noted_cost_is_a_positive_number_of_dollars(metadata: dict[str, Any], expected: int | None) -> None:
    assert sightings.recorded_cost(metadata) == expected


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ({"cache_creation": 30}, Tokens(input=70, output=5, cache_write=30)),
        (
            {"cache_creation": 0, "ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
            Tokens(input=70, output=5, cache_write=30, cache_write_1h=20),
        ),
    ],
)
def test_langchain_tells_cache_writes_as_a_sum_or_by_duration(details: dict[str, int], expected: Tokens) -> None:
    usage = {"input_tokens": 100, "output_tokens": 5, "input_token_details": details}
    assert langgraph.Message("assistant", None, {"usage_metadata": usage}).tokens == expected


def test_an_atif_step_tells_cache_writes_by_duration() -> None:
    extra = {"cache_creation_input_tokens": 9, "cache_creation": {"ephemeral_1h_input_tokens": 4}}
    found = atif_tokens({"prompt_tokens": 20, "completion_tokens": 1, "extra": extra})
    assert found == Tokens(input=20, output=1, cache_write=9, cache_write_1h=4)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_figures_that_lie_in_metadata_alone_are_read_out_and_erased_with_it(
    engine: str, sources: dict[str, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sightings as the version before wrote them: their usage has no field for one-hour writes."""
    address = str(tmp_path / "ledger.db") if engine == "sqlite" else shared_server().address(new_name())
    monkeypatch.setattr(imported_turns, "one_hour_part", lambda one_hour, written: UNSET)
    with weft.open(address) as ledger:
        take(ledger, *sources["claude-code"], *sources["opencode"])
        expected = figures(ledger)
        assert sorted(row[2] for row in expected[0] if row[2]) == [5_000, 10_000]
        ledger._store.write(_as_just_migrated)
        assert figures(ledger) != expected
    with weft.open(address) as ledger:
        assert figures(ledger) == expected
        (turn, *_), *_ = (row for row in expected[0] if row[2] == 5_000)
        ledger.erasure.erase([turn], reason="test")
        assert not any(row[2] for row in figures(ledger)[0] if row[0] == turn)
        assert list(ledger.verify()) == []


def _as_just_migrated(txn: Any) -> None:
    txn.sql.run("UPDATE message SET cache_write_1h_tokens = NULL, recorded_cost = NULL")
    txn.sql.run("UPDATE turn SET cache_write_1h_tokens = NULL")
    txn.sql.run("DELETE FROM local WHERE key = ?", (VIEW_RULES,))
