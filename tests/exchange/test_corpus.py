"""The importers and the ledger over real sessions: nothing raises, nothing is lost, and every order gives the same."""

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from tests.exchange import independent_usage
from tests.exchange.corpus import CORPUS, LONG_AGO, ORIGINS, SECRET, aged, current, needs_corpus, opened, take
from tests.exchange.independent_cost import independent_costs
from tests.ledger.test_versions import MOVED_SILENTLY, SHARED_KEYS
from tests.sizes import PROVING, sized
from weft import Ledger
from weft.exchange.importers.limits import SOURCE_LIMITS
from weft.exchange.importers.port import Report, load_importers
from weft.exchange.importers.sources import candidates
from weft.exchange.importers.testing import as_source, assert_accounted
from weft.kernel.imported import ImportSecret
from weft.kernel.read_budget import ReadBudget

pytestmark = [needs_corpus, *([pytest.mark.prove] if PROVING else [])]
PINNED = Path(__file__).parent / "pinned_digests.json"


STRIDE = sized(test=3, prove=1)
"""Of the groups of files that share history, which are imported in every order."""

KINDS = independent_usage.KINDS
Usage = dict[str, dict[str, int]]
"""Tokens by model and kind."""

APART: dict[str, set[str]] = {
    "claude-code": {"memory_sidechain.jsonl", "minimal-claude.jsonl", "019f0000-0000-7000-8000-000000000004.jsonl"},
    "pi": {"dsh"},
}
"""Made-up fixtures: one repeats another file's record ids with other words, two leave a model to its neighbours; and
another tool's log, which the counter does not read."""


@cache
def counted(origin: str) -> tuple[Path, ...]:
    """The files of an origin whose tokens are counted a second time."""
    (importer,) = load_importers(origin)
    paths = []
    for candidate in candidates(CORPUS / origin, lambda path, error: None):
        source = as_source(candidate.path)
        if APART.get(origin, set()).isdisjoint(candidate.path.parts) and (
            importer.is_part(source) or importer.recognises(source)
        ):
            paths.append(candidate.path)
    return tuple(paths)


def usage_of(ledger: Ledger, origin: str) -> Usage:
    rows = ledger.usage.report(by="model", origin=origin).rows
    return {row.key: {kind: getattr(row, kind) for kind in KINDS} for row in rows}


Costs = dict[str, dict[str, int]]
"""Micro-dollars by model and kind."""


def costs_of(ledger: Ledger, origin: str) -> Costs:
    rows = ledger.usage.report(by="model", origin=origin).rows
    return {row.key: asdict(row.costs) for row in rows if row.cost is not None}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ledger, dict[str, Usage], Costs]]:
    """Every origin's part of the corpus, imported once, and the usage of each before the files apart joined it."""
    with opened(tmp_path_factory.mktemp("corpus") / "ledger.db") as ledger:
        first = take(ledger, *(path for origin in ORIGINS for path in counted(origin)))
        usage = {origin: usage_of(ledger, origin) for origin in ORIGINS}
        costs = costs_of(ledger, "claude-code")
        rest = take(ledger, *(CORPUS / origin for origin in ORIGINS))
        problems = [*first.problems, *rest.problems]
        assert [problem for problem in problems if "importer failed" in problem.what] == []
        yield ledger, usage, costs


@pytest.fixture(scope="module")
def whole(imported: tuple[Ledger, dict[str, Usage], Costs]) -> Ledger:
    return imported[0]


def test_the_ledger_is_sound(whole: Ledger) -> None:
    assert list(whole.verify()) == []


def test_importing_it_again_brings_nothing(whole: Ledger) -> None:
    before = whole.upkeep.stats()
    summary = take(whole, *(CORPUS / origin for origin in ORIGINS))
    for origin in ORIGINS:
        totals = summary.of(origin)
        assert (totals.unchanged, totals.counts.turns) == (totals.files, 0)
    assert whole.upkeep.stats() == before


@pytest.mark.parametrize("origin", ORIGINS)
def test_every_record_is_in_a_turn_or_kept(whole: Ledger, origin: str) -> None:
    """Counted at the source, against rows of the ledger and the verbatim copy."""
    (importer,) = load_importers(origin)
    messages = calls = 0
    for candidate in candidates(CORPUS / origin, lambda path, error: None):
        with candidate.open(LONG_AGO * 10, ReadBudget(SOURCE_LIMITS)) as source:
            if importer.is_part(source) or not importer.recognises(source):
                continue
            report = Report(source.name)
            transcripts = [(each, list(each.turns)) for each in importer.read(source, report)]
            assert_accounted(report)
            assert report.found, source.name
            kept = whole.imports.kept_sources(source.name)
            assert kept or not transcripts, source.name
            if transcripts and transcripts[0][0].raw is None:
                assert b"".join(part.data for part in kept) == source.path.read_bytes(), source.name
            for transcript, turns in transcripts:
                session = whole.session(ImportSecret(SECRET, origin).session_id(transcript.session.id))
                assert (session.origin, session.origin_session_id) == (origin, transcript.session.id)
                messages += sum(type(item).__name__ == "NativeMessage" for turn in turns for item in turn.items)
                calls += sum(type(item).__name__ == "NativeCall" for turn in turns for item in turn.items)
    assert messages
    turns_here = [turn for turn in whole.log() if turn.origin == origin]
    shared = sum(turn.message_count for turn in turns_here)
    assert 0 < shared <= messages
    assert sum(turn.tool_call_count for turn in turns_here) <= calls


def test_digests_are_what_they_were(whole: Ledger) -> None:
    """A digest that changed without a new mapping number would tear apart what is imported before and after."""
    found: dict[str, list[str]] = {origin: [] for origin in ORIGINS}
    for turn in whole.log():
        found[str(turn.origin)].append(turn.digest)
    digests = {origin: sha256("\n".join(sorted(each)).encode()).hexdigest() for origin, each in found.items()}
    mappings = {importer.origin: importer.mapping for importer in load_importers()}
    pinned: dict[str, Any] = json.loads(PINNED.read_text())
    for origin in ORIGINS:
        key = f"{origin}/{mappings[origin]}"
        assert (len(found[origin]), digests[origin]) == (pinned[key]["turns"], pinned[key]["digest"]), key


def test_a_superseded_turn_begins_as_the_one_that_replaced_it(whole: Ledger) -> None:
    """Also: every session stands where its history says, and no two turns that are current share a thread key."""
    with whole._store.read() as txn:
        replaced = [id for (id,) in txn.sql.all("SELECT id FROM turns WHERE is_current = 0")]
        namesakes = "SELECT c.id FROM turn o JOIN turn c ON c.native = o.native AND c.current = 1 WHERE o.id = ?"
        stand = {id: [other for (other,) in txn.sql.all(namesakes, (id,))] for id in replaced}
        assert txn.sql.all(MOVED_SILENTLY) == txn.sql.all(SHARED_KEYS) == []
    assert 0 < len(replaced) < 30
    for old, others in stand.items():
        assert _asked(whole, old) in [_asked(whole, other) for other in others]


def _asked(ledger: Ledger, turn: str) -> str:
    return next(message.text for message in ledger.messages(turn) if message.role == "user")


def series() -> list[Path]:
    return sorted(path for path in (CORPUS / "growth-series").glob("*/*/*") if path.is_dir()) if CORPUS.is_dir() else []


@pytest.mark.parametrize("folder", series(), ids=lambda folder: folder.name[:8])
def test_a_growing_session_step_by_step_ends_as_its_last_step_alone(folder: Path, tmp_path: Path) -> None:
    steps = sorted(folder.glob("*.jsonl"))
    target = tmp_path / "session.jsonl"
    with opened(tmp_path / "steps.db") as stepwise, opened(tmp_path / "alone.db") as alone:
        for age, step in enumerate(steps):
            shutil.copy(step, target)
            take(stepwise, aged(target, age))
        take(alone, target)
        heads = {session.label: session.head for session in alone.sessions()}
        assert {session.label: session.head for session in stepwise.sessions() if session.label in heads} == heads
        for label in heads:
            ours, theirs = stepwise.thread(label), alone.thread(label)
            assert ours.digest == theirs.digest
            assert [turn.id for turn in ours.turns] == [turn.id for turn in theirs.turns]
            assert all(turn.is_current for turn in ours.turns)
        assert list(stepwise.verify()) == []


def groups() -> list[list[Path]]:
    """Files that share history: the same native record id in more than one of them."""
    holders: dict[str, set[Path]] = defaultdict(set)
    for origin in ("claude-code", "codex", "pi"):
        (importer,) = load_importers(origin)
        for candidate in candidates(CORPUS / origin, lambda path, error: None):
            if candidate.size > 4_000_000:
                continue
            source = as_source(candidate.path)
            if importer.is_part(source) or not importer.recognises(source):
                continue
            for transcript in importer.read(source, Report(source.name)):
                for turn in transcript.turns:
                    holders[f"{origin} {turn.key}"].add(candidate.path)
    found: list[set[Path]] = []
    for paths in holders.values():
        if len(paths) > 1:
            touching = [group for group in found if group & paths]
            found = [group for group in found if not group & paths] + [set.union(paths, *touching)]
    return sorted((sorted(group) for group in found), key=str)


def test_shared_history_in_every_order_on_three_ledgers(tmp_path: Path) -> None:
    found = [*groups(), *(sorted(folder.glob("*.jsonl")) for folder in series())]
    assert len(found) > len(series()), "the corpus has copied sessions"
    for number, group in enumerate(found[::STRIDE]):
        half = len(group) // 2
        chosen = [group, group[::-1], group[half:] + group[:half]]
        ledgers = [opened(tmp_path / f"{number}-{i}.db") for i in range(3)]
        for ledger, order in zip(ledgers, chosen, strict=True):
            for path in order:
                take(ledger, path)
        facts = [tmp_path / f"{number}-{i}.jsonl" for i in range(3)]
        for ledger, file in zip(ledgers, facts, strict=True):
            ledger.upkeep.export_facts(file)
        for i, ledger in enumerate(ledgers):
            for file in facts[:i] + facts[i + 1 :]:
                ledger.upkeep.import_facts(file)
        first = ledgers[0]
        for other in ledgers[1:]:
            assert current(other) == current(first), group
            assert {s.label: s.head for s in other.sessions()} == {s.label: s.head for s in first.sessions()}
            assert other.upkeep.stats()["total_tokens"] == first.upkeep.stats()["total_tokens"]
        for ledger in ledgers:
            assert list(ledger.verify()) == []
            ledger.close()


@pytest.mark.parametrize("origin", ORIGINS)
def test_usage_equals_an_independent_count_of_the_raw_files(
    imported: tuple[Ledger, dict[str, Usage], Costs], origin: str
) -> None:
    """Per model and kind of token, by code that shares nothing with the importers or the ledger."""
    found, paths = imported[1][origin], counted(origin)
    expected = getattr(independent_usage, origin.replace("-", "_"))(paths)
    assert {model: kinds for model, kinds in found.items() if any(kinds.values())} == {
        model: {kind: kinds.get(kind, 0) for kind in KINDS} for model, kinds in expected.items()
    }


def test_cost_equals_an_independent_count_of_the_raw_files(imported: tuple[Ledger, dict[str, Usage], Costs]) -> None:
    """Per model and kind of token, both durations of the cache among them: raw files and the price table alone."""
    expected = independent_costs(independent_usage.claude_responses(counted("claude-code")))
    assert sum(kinds["cache_write_1h"] for kinds in expected.values()) > 1_000_000
    assert {model: costs for model, costs in imported[2].items() if model in expected} == expected
