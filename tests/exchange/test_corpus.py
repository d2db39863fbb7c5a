"""The importers and the ledger over real sessions: nothing raises, nothing is lost, and every order gives the same."""

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import asdict

from tests.exchange import independent_usage
from tests.exchange.corpus import (
    CORPUS,
    LONG_AGO,
    ORIGINS,
    SECRET,
    aged,
    current,
    needs_corpus,
    once_a_run,
    opened,
    take,
)
from tests.exchange.independent_cost import independent_costs
from tests.ledger.test_versions import MOVED_SILENTLY, SHARED_KEYS
from tests.sizes import PROVING, share, sized
from weft import Ledger
from weft.exchange.importers.foreign_values import SOURCE_LIMITS
from weft.exchange.importers.port import Report, load_importers
from weft.exchange.importers.testing import as_source, assert_accounted
from weft.exchange.importing.sources import candidates
from weft.kernel.contents import ImportSecret
from weft.kernel.foreign_input import ReadBudget

pytestmark = [needs_corpus, *([pytest.mark.prove] if PROVING else [])]
PINNED = Path(__file__).parent / "pinned_digests.json"

LARGEST = sized(test=200_000, prove=4_000_000)
"""Bytes of a file that may share history with others."""

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


class ImportedOrigin(NamedTuple):
    """An origin's part of the corpus, and what it spent before the files apart joined it."""

    ledger: Ledger
    usage: Usage
    costs: Costs


Imported = Callable[[str], ImportedOrigin]
LEDGER, FIGURES = "ledger.db", "figures.json"


def import_origin(origin: str, folder: Path) -> None:
    with opened(folder / LEDGER) as ledger:
        first = take(ledger, *counted(origin))
        figures = usage_of(ledger, origin), costs_of(ledger, origin)
        rest = take(ledger, CORPUS / origin)
        problems = [*first.problems, *rest.problems]
        assert [problem for problem in problems if "importer failed" in problem.what] == []
    (folder / FIGURES).write_text(json.dumps(figures))


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imported]:
    """Gives an origin's part in a ledger of this module's own. It is imported once a run."""
    with ExitStack() as ledgers:

        @cache
        def of_origin(origin: str) -> ImportedOrigin:
            folder = tmp_path_factory.mktemp(origin) / "copy"
            shutil.copytree(once_a_run(tmp_path_factory, f"corpus-{origin}", partial(import_origin, origin)), folder)
            usage, costs = json.loads((folder / FIGURES).read_text())
            return ImportedOrigin(ledgers.enter_context(opened(folder / LEDGER)), usage, costs)

        yield of_origin


@pytest.mark.slow("imports real sessions and verifies them")
@pytest.mark.parametrize("origin", share(ORIGINS, test=3))
def test_the_ledger_is_sound(imported: Imported, origin: str) -> None:
    assert list(imported(origin).ledger.verify()) == []


@pytest.mark.slow("imports an origin's part of the corpus, up to 52 MB")
@pytest.mark.parametrize("origin", ORIGINS)
def test_importing_it_again_brings_nothing(imported: Imported, origin: str) -> None:
    ledger = imported(origin).ledger
    before = ledger.upkeep.stats()
    totals = take(ledger, CORPUS / origin).of(origin)
    assert (totals.unchanged, totals.counts.turns) == (totals.files, 0)
    assert ledger.upkeep.stats() == before


@pytest.mark.parametrize("origin", ORIGINS)
def test_every_record_is_in_a_turn_or_kept(imported: Imported, origin: str) -> None:
    """Counted at the source, against rows of the ledger and the verbatim copy."""
    ledger = imported(origin).ledger
    (importer,) = load_importers(origin)
    every = list(candidates(CORPUS / origin, lambda path, error: None))
    taken, messages, calls = share(every, test=20), 0, 0
    for candidate in taken:
        with candidate.open(LONG_AGO * 10, ReadBudget(SOURCE_LIMITS)) as source:
            if importer.is_part(source) or not importer.recognises(source):
                continue
            report = Report(source.name)
            transcripts = [(each, list(each.turns)) for each in importer.read(source, report)]
            assert_accounted(report)
            assert report.found, source.name
            kept = ledger.imports.kept_sources(source.name)
            assert kept or not transcripts, source.name
            if transcripts and transcripts[0][0].raw is None:
                assert b"".join(part.data for part in kept) == source.path.read_bytes(), source.name
            for transcript, turns in transcripts:
                session = ledger.session(ImportSecret(SECRET, origin).session_id(transcript.session.id))
                assert (session.origin, session.origin_session_id) == (origin, transcript.session.id)
                messages += sum(type(item).__name__ == "NativeMessage" for turn in turns for item in turn.items)
                calls += sum(type(item).__name__ == "NativeCall" for turn in turns for item in turn.items)
    shared = sum(turn.message_count for turn in ledger.log())
    assert shared > 0
    if len(taken) == len(every):
        assert shared <= messages
        assert sum(turn.tool_call_count for turn in ledger.log()) <= calls


@pytest.mark.parametrize("origin", ORIGINS)
def test_digests_are_what_they_were(imported: Imported, origin: str) -> None:
    """A digest that changed without a new mapping number would tear apart what is imported before and after."""
    log = imported(origin).ledger.log()
    assert {turn.origin for turn in log} == {origin}
    digests = sorted(turn.digest for turn in log)
    (importer,) = load_importers(origin)
    pinned: dict[str, Any] = json.loads(PINNED.read_text())[f"{origin}/{importer.mapping}"]
    assert (len(digests), sha256("\n".join(digests).encode()).hexdigest()) == (pinned["turns"], pinned["digest"])


def test_a_superseded_turn_begins_as_the_one_that_replaced_it(imported: Imported) -> None:
    """Also: every session stands where its history says, and no two turns that are current share a thread key."""
    replaced_turns = 0
    for origin in ORIGINS:
        ledger = imported(origin).ledger
        with ledger._store.read() as txn:
            replaced = [id for (id,) in txn.sql.fetch_rows("SELECT id FROM turns WHERE is_current = 0")]
            namesakes = "SELECT c.id FROM turn o JOIN turn c ON c.native = o.native AND c.current = 1 WHERE o.id = ?"
            stand = {id: [other for (other,) in txn.sql.fetch_rows(namesakes, (id,))] for id in replaced}
            assert txn.sql.fetch_rows(MOVED_SILENTLY) == txn.sql.fetch_rows(SHARED_KEYS) == []
        for old, others in stand.items():
            assert _asked(ledger, old) in [_asked(ledger, other) for other in others]
        replaced_turns += len(replaced)
    assert 0 < replaced_turns < 30


def _asked(ledger: Ledger, turn: str) -> str:
    return next(message.text for message in ledger.messages(turn) if message.role == "user")


def series() -> list[Path]:
    return sorted(path for path in (CORPUS / "growth-series").glob("*/*/*") if path.is_dir()) if CORPUS.is_dir() else []


@pytest.mark.slow("imports a session of 2 MB at six stages")
@pytest.mark.parametrize("folder", share(series(), test=1), ids=lambda folder: folder.name[:8])
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
            if candidate.size > LARGEST:
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


@pytest.mark.slow("reads real sessions and imports some of them three times")
def test_shared_history_in_every_order_on_three_ledgers(tmp_path: Path) -> None:
    found = [*groups(), *(sorted(folder.glob("*.jsonl")) for folder in series())]
    assert len(found) > len(series()), "the corpus has copied sessions"
    for number, group in enumerate(share(found, test=10)):
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
def test_usage_equals_an_independent_count_of_the_raw_files(imported: Imported, origin: str) -> None:
    """Per model and kind of token, by code that shares nothing with the importers or the ledger."""
    usage = imported(origin).usage
    expected = getattr(independent_usage, origin.replace("-", "_"))(counted(origin))
    assert {model: kinds for model, kinds in usage.items() if any(kinds.values())} == {
        model: {kind: kinds.get(kind, 0) for kind in KINDS} for model, kinds in expected.items()
    }


@pytest.mark.slow("reads 52 MB")
def test_cost_equals_an_independent_count_of_the_raw_files(imported: Imported) -> None:
    """Per model and kind of token, both durations of the cache among them: raw files and the price table alone."""
    expected = independent_costs(independent_usage.claude_responses(counted("claude-code")))
    assert sum(kinds["cache_write_1h"] for kinds in expected.values()) > 1_000_000
    costs = imported("claude-code").costs
    assert {model: kinds for model, kinds in costs.items() if model in expected} == expected
