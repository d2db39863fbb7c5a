"""Real sessions of other tools in every form; a sample of them, or with WEFT_PROVE all."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exchange.corpus import CORPUS, ORIGINS, needs_corpus, opened, take
from tests.exchange.exporters.rules import check_anthropic, check_openai
from tests.exchange.exporters.test_properties import check_page, entries_of
from tests.ledger.test_versions import MOVED_SILENTLY, SHARED_KEYS
from tests.sizes import PROVING, share
from weft import Ledger
from weft.exchange.exporters.export import export

pytestmark = needs_corpus
LARGEST = 300_000


def sample(origin: str) -> list[Path]:
    """Of each origin some small files, or all of it."""
    if PROVING:
        return [CORPUS / origin]
    files = sorted(path for path in (CORPUS / origin).rglob("*") if path.is_file() and path.stat().st_size < LARGEST)
    return share(files, test=3)


def sample_of_all() -> list[Path]:
    return [path for origin in ORIGINS for path in sample(origin)]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with opened(tmp_path_factory.mktemp("corpus") / "ledger.db") as ledger:
        take(ledger, *sample_of_all())
        yield ledger


@pytest.mark.slow("imports real sessions and verifies them")
def test_all_origins_in_one_ledger_leave_it_sound_and_bring_nothing_a_second_time(imported: Ledger) -> None:
    """What sessions of one tool do to those of another, in a ledger that they share."""
    assert {turn.origin for turn in imported.log()} <= set(ORIGINS)
    assert list(imported.verify()) == []
    with imported._store.read() as txn:
        assert txn.sql.fetch_rows(MOVED_SILENTLY) == txn.sql.fetch_rows(SHARED_KEYS) == []
    before = imported.upkeep.stats()
    again = take(imported, *sample_of_all())
    for origin in ORIGINS:
        totals = again.of(origin)
        assert (totals.unchanged, totals.counts.turns) == (totals.files, 0), origin
    assert imported.upkeep.stats() == before


def exported(ledger: Ledger, session: str, form: str) -> str:
    out = io.BytesIO()
    export(ledger, session, form, out)
    return out.getvalue().decode()


@pytest.mark.slow("writes real sessions in five forms")
def test_every_session_is_exported_in_every_form(imported: Ledger) -> None:
    sessions = [session for session in imported.sessions(every=True) if session.head is not None]
    assert len({session.origin for session in sessions}) >= 5
    for session in sessions:
        assert session.head is not None
        check_openai(json.loads(exported(imported, session.head, "openai")))
        check_anthropic(json.loads(exported(imported, session.head, "anthropic")))
        check_page(exported(imported, session.head, "html"))
        assert exported(imported, session.head, "markdown").startswith("# ")
        entries = entries_of(exported(imported, session.head, "jsonl"))
        said = [m.id for m in imported.thread(session.head).messages if m.role in ("user", "assistant")]
        assert list(entries) == said
        parents = [entry.get("parentUuid") for entry in entries.values()]
        assert parents == [None, *said[:-1]][: len(said)]
