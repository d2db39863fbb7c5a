"""Turns that somebody prepared without the ledger: what was made of them is taken where it fits, and nothing is made
twice; where it does not fit, the ledger is the same."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.exchange.corpus import aged, opened
from tests.exchange.fixtures.claude_code.lines import Lines, use
from tests.exchange.test_two_processes import assert_alike, imported
from tests.sizes import share
from weft.exchange.importers.claude_code import ClaudeCode
from weft.exchange.importers.port import Report, Source, Transcript
from weft.exchange.importing.run import ImportRun, ImportSummary
from weft.kernel.clock import FixedClock
from weft.kernel.contents import ImportSecret
from weft.ledger.imports import PreparedTranscript, RawFile, import_writer
from weft.ledger.imports.imported_turns import NativeTurn, TurnDraft
from weft.ledger.imports.sources import import_secret

Change = Callable[[TurnDraft], TurnDraft]


def not_needed(*_: Any, **__: Any) -> Any:
    raise AssertionError("it was prepared")


def not_when_written(made: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which a writer must not call: what it makes was prepared."""

    def guarded(*args: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_code.co_qualname
        assert caller.partition(".")[0] in ("PreparedTranscript", "prepare_session"), (
            f"{caller} makes what was prepared"
        )
        return made(*args, **options)

    return guarded


class Preparing(ClaudeCode):
    """Prepares turns in the same process, and leaves their items behind."""

    def __init__(self, key: bytes, change: Change | None = None, is_ahead: bool = True) -> None:
        self._secret, self._change, self._is_ahead = ImportSecret(key, self.origin), change, is_ahead
        self.stretches = 0

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        raw = RawFile(source.path, 0, source.size)
        for transcript in super().read(source, report):
            mapping, turns = f"{self.origin}/{self.mapping}", iter(transcript.turns)
            prepared = PreparedTranscript(
                transcript.session, turns, source.name, raw, self._secret, mapping, lambda: self._is_ahead
            )
            yield Transcript(session=transcript.session, turns=self._given(prepared), until=transcript.until)

    def _given(self, prepared: PreparedTranscript) -> Iterator[NativeTurn]:
        for batch in prepared.batches():
            for turn in batch:
                assert turn.prepared is not None
                assert turn.prepared.draft is not None
                self.stretches += len(turn.prepared.stretches)
                if self._change is None:
                    yield replace(turn, items=(), load_items=not_needed)
                else:
                    turn.prepared.draft = self._change(turn.prepared.draft)
                    items = turn.items
                    yield replace(turn, items=(), load_items=lambda items=items: items)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A session of more than one batch, and the beginning of its copy."""
    sources = tmp_path / "sources"
    sources.mkdir()
    lines = Lines("s")
    for k in range(70):
        lines = lines.user(f"p{k}", f"question {k} SURROGATE ünd " + f"word{k} " * 90)
        lines = lines.answer(f"a{k}", use(f"c{k}")).result(f"r{k}", f"c{k}").answer(f"b{k}", "done")
    data = lines.bytes().replace(b"SURROGATE", b"\\ud800")
    (sources / "s.jsonl").write_bytes(data)
    (sources / "copy.jsonl").write_bytes(data[:20_000] + b'\n{"broken')
    aged(sources / "s.jsonl", 5)
    aged(sources / "copy.jsonl")
    return sources


def take(path: Path, folder: Path, **options: Any) -> tuple[Any, Preparing, ImportSummary]:
    ledger = opened(path)
    importer = Preparing(import_secret(ledger._store), **options)
    return ledger, importer, ImportRun(ledger, [importer], FixedClock(10**13), processes=1).run([folder])


def test_what_was_prepared_is_not_made_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder / "s.jsonl"
    with opened(tmp_path / "one.db") as one:
        expected = imported(one, source, 1)
        for name in ("encoded_chain", "encoded_sighting", "pack"):
            monkeypatch.setattr(import_writer, name, not_when_written(getattr(import_writer, name)))
        two, importer, summary = take(tmp_path / "two.db", source)
        with two:
            assert summary == expected
            assert importer.stretches == 2
            assert_alike(one, two)


def test_of_a_copy_events_are_taken_and_the_source_is_packed_anew(folder: Path, tmp_path: Path) -> None:
    with opened(tmp_path / "one.db") as one:
        expected = imported(one, folder, 1)
        two, importer, summary = take(tmp_path / "two.db", folder)
        with two:
            assert summary == expected
            assert expected.of("claude-code").counts.known > 0
            assert importer.stretches == 3
            assert_alike(one, two)


CHANGES: list[Change] = [
    lambda draft: replace(draft, grows_from="0" * 64),
    lambda draft: replace(draft, compacts=("elsewhere", None)),
    lambda draft: replace(draft, session="elsewhere"),
    lambda draft: replace(draft, file="elsewhere"),
]


@pytest.mark.parametrize("change", share(CHANGES, test=2))
def test_a_turn_that_hangs_elsewhere_is_made_anew(change: Change, folder: Path, tmp_path: Path) -> None:
    with opened(tmp_path / "one.db") as one:
        expected = imported(one, folder, 1)
        two, _, summary = take(tmp_path / "two.db", folder, change=change)
        with two:
            assert summary == expected
            assert_alike(one, two)


def test_what_a_late_reader_leaves_to_the_ledger_is_made_there(folder: Path, tmp_path: Path) -> None:
    with opened(tmp_path / "one.db") as one:
        expected = imported(one, folder, 1)
        two, importer, summary = take(tmp_path / "two.db", folder, is_ahead=False)
        with two:
            assert summary == expected
            assert importer.stretches == 0
            assert_alike(one, two)
