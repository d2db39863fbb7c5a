"""The contract of an importer, as tests that every importer passes.

An importer's author subclasses `ImporterContract`, gives it `importer`, `open` (from `weft`, static) and `samples`
(small files of the format, made by hand), and runs it with pytest. `rewrites_document` tells of samples that
are rewritten whole instead of being appended to.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from weft.exchange.importers.foreign_files import read_sample
from weft.exchange.importers.port import (
    HEAD_BYTES,
    Importer,
    NativeSession,
    NativeTurn,
    Report,
    Source,
    registered_name,
)
from weft.exchange.importing.run import ImportRun, ImportSummary
from weft.kernel.clock import FixedClock, SystemClock
from weft.ledger.api import Ledger

LONG_AGO = 1_000_000_000
STRANGERS = (
    b"",
    b"\n\n",
    b"{}\n",
    b"[1, 2]\n",
    b'{"hello": "world"}\n',
    b"plain text\n",
    b"\x00\xff\xfe\n",
    b"PK\x03\x04",
)
Read = list[tuple[NativeSession, list[NativeTurn]]]


def as_source(path: Path, *, quiet: bool = True) -> Source:
    return Source(path=path, name=str(path), size=path.stat().st_size, head=read_sample(path, HEAD_BYTES), quiet=quiet)


class ImporterContract:
    """What holds for every importer, whatever its format."""

    importer: Importer
    open: Callable[[Path], Any]
    rewrites_document = False
    """Is a session one document that is rewritten, rather than lines that are appended?"""

    def samples(self, folder: Path) -> list[Path]:
        """Small files of the format, written into an empty folder; the first has two turns or more."""
        raise NotImplementedError

    def points(self, total: int) -> Iterable[int]:
        """Which of so many cuts or changes a test makes: all, unless a subclass makes some of them at a time."""
        return range(total)

    def read(self, path: Path) -> tuple[Read, Report]:
        report = Report(str(path))
        sessions = [
            (transcript.session, list(transcript.turns)) for transcript in self.importer.read(as_source(path), report)
        ]
        return sessions, report

    @contextmanager
    def ledger(self, folder: Path, name: str = "ledger") -> Iterator[Ledger]:
        with self.open(folder / f"{name}.db") as ledger:
            yield ledger

    def import_files(self, ledger: Ledger, *paths: Path) -> ImportSummary:
        for path in paths:
            os.utime(path, (LONG_AGO, LONG_AGO))
        return ImportRun(ledger, [self.importer], SystemClock()).run(paths)

    def test_it_has_a_name_a_mapping_and_places(self, tmp_path: Path) -> None:
        assert self.importer.origin.replace("-", "").isalnum()
        assert self.importer.mapping >= 1
        assert all(place.what for place in self.importer.places(tmp_path, {}))

    def test_its_own_files_are_recognised(self, tmp_path: Path) -> None:
        for path in self.samples(tmp_path):
            assert self.importer.recognises(as_source(path)), path

    def test_other_files_are_not(self, tmp_path: Path) -> None:
        for number, data in enumerate(STRANGERS):
            path = tmp_path / f"{number}.json"
            path.write_bytes(data)
            assert not self.importer.recognises(as_source(path)), data

    def test_every_record_is_accounted_for(self, tmp_path: Path) -> None:
        for path in self.samples(tmp_path):
            _, report = self.read(path)
            assert report.found
            assert_accounted(report)

    def test_turns_have_keys_of_their_own_and_follow_their_parents(self, tmp_path: Path) -> None:
        for path in self.samples(tmp_path):
            for session, turns in self.read(path)[0]:
                assert session.id
                assert_well_formed(turns)

    def test_reading_twice_gives_the_same(self, tmp_path: Path) -> None:
        for path in self.samples(tmp_path):
            assert self.read(path)[0] == self.read(path)[0]

    def test_a_source_that_ends_anywhere_is_read_as_far_as_it_goes(self, tmp_path: Path) -> None:
        """Cut at every byte of its tail: no exception, every record accounted for, and no turn but the last changes."""
        path = self.samples(tmp_path)[0]
        data = path.read_bytes()
        cut = tmp_path / f"cut-{path.name}"
        known_turns = {(turn.key, turn.records) for _, turns in self.read(path)[0] for turn in turns}
        for missing in self.points(min(len(data), 400)):
            cut.write_bytes(data[: len(data) - missing - 1])
            sessions, report = self.read(cut)
            assert_accounted(report)
            for _, turns in sessions:
                assert_well_formed(turns)
                if not self.rewrites_document:
                    assert {(turn.key, turn.records) for turn in turns[:-1]} <= known_turns

    def test_damaged_sources_lose_nothing_else(self, tmp_path: Path) -> None:
        """Bytes changed at random: no exception, every record accounted for, every ledger sound."""
        for number, path in enumerate(self.samples(tmp_path)):
            data = path.read_bytes()
            for attempt in self.points(60):
                damaged = bytearray(data)
                chance = sha256(f"{number} {attempt}".encode()).digest()
                for k in range(1 + attempt % 8):
                    damaged[int.from_bytes(chance[k : k + 4], "big") % len(damaged)] = chance[-k - 1]
                target = tmp_path / f"damaged-{number}-{attempt}{path.suffix}"
                target.write_bytes(damaged)
                sessions, report = self.read(target)
                assert_accounted(report)
                for _, turns in sessions:
                    assert_well_formed(turns)
                target.unlink()

    def test_an_import_is_sound_and_the_second_one_brings_nothing(self, tmp_path: Path) -> None:
        paths = self.samples(_new_folder(tmp_path / "samples"))
        with self.ledger(tmp_path) as ledger:
            first = self.import_files(ledger, *paths)
            assert first.problems == []
            assert first.of(self.importer.origin).counts.turns
            assert list(ledger.verify()) == []
            before = _facts(ledger)
            again = self.import_files(ledger, *paths)
            assert again.of(self.importer.origin).counts.turns == 0
            for path in paths:  # read again to the end, since nothing says that it was read before
                copy = self.import_files(ledger, _renamed(path)).of(self.importer.origin).counts
                assert (copy.turns, copy.superseded) == (0, 0)
                _renamed(path, back=True)
            assert set(before) <= set(_facts(ledger))
            assert list(ledger.verify()) == []

    def test_facts_of_an_import_give_the_same_elsewhere(self, tmp_path: Path) -> None:
        paths = self.samples(_new_folder(tmp_path / "samples"))
        with self.ledger(tmp_path) as ledger, self.ledger(tmp_path, "other") as other:
            self.import_files(ledger, *paths)
            ledger.upkeep.export_facts(tmp_path / "facts")
            other.upkeep.import_facts(tmp_path / "facts")
            assert {turn.id: turn.digest for turn in other.log()} == {turn.id: turn.digest for turn in ledger.log()}
            assert list(other.verify()) == []

    def test_two_processes_import_the_same_as_one(self, tmp_path: Path) -> None:
        """Sound and damaged sources, read for the first time and again."""
        if registered_name(self.importer) is None:  # another process could not load it
            return
        folder = _new_folder(tmp_path / "samples")
        damage(self.samples(folder))
        with self.ledger(tmp_path, "one") as one_ledger, self.ledger(tmp_path, "two") as two_ledger:
            two_ledger.imports.share_with(one_ledger)
            clock = FixedClock(SystemClock().now_ms())  # a turn may be over a moment later
            for _ in range(2):
                summaries = [
                    ImportRun(ledger, [self.importer], clock, processes=number).run([folder])
                    for number, ledger in ((1, one_ledger), (2, two_ledger))
                ]
                assert summaries[0] == summaries[1]
                assert _facts(one_ledger) == _facts(two_ledger)
                assert list(two_ledger.verify()) == []
                for path in folder.rglob("damaged-*"):
                    path.unlink()

    def test_what_was_read_is_kept_to_the_letter(self, tmp_path: Path) -> None:
        """The verbatim copy gives back the very bytes of a source that is a file of its own."""
        path = self.samples(_new_folder(tmp_path / "samples"))[0]
        with self.ledger(tmp_path) as ledger:
            self.import_files(ledger, path)
            data_by_start = {
                source_part.start: source_part.data for source_part in ledger.imports.kept_sources(str(path))
            }
        assert data_by_start, "nothing was kept"
        if not self.rewrites_document:
            assert b"".join(data_by_start[start] for start in sorted(data_by_start)) == path.read_bytes()


def damage(paths: list[Path]) -> None:
    """Copies of these files beside them, with bytes changed and ends cut off; all of them last changed long ago."""
    for number, path in enumerate(paths):
        data = path.read_bytes()
        os.utime(path, (LONG_AGO, LONG_AGO))
        for attempt in range(6):
            damaged = bytearray(data)
            chance = sha256(f"{number} {attempt}".encode()).digest()
            for k in range(attempt):
                damaged[int.from_bytes(chance[k : k + 4], "big") % len(damaged)] = chance[-k - 1]
            target = path.with_name(f"damaged-{number}-{attempt}-{path.name}")
            target.write_bytes(damaged[: len(data) - attempt * 7])
            os.utime(target, (LONG_AGO, LONG_AGO))


def assert_accounted(report: Report) -> None:
    mapped, kept = sum(report.mapped.values()), sum(report.kept.values())
    assert report.found == mapped + kept + report.damaged, report
    assert all(report.unknown[kind] <= report.kept[kind] for kind in report.unknown)


def assert_well_formed(turns: list[NativeTurn]) -> None:
    keys = [turn.key for turn in turns]
    assert len(set(keys)) == len(keys), "keys repeat"
    assert all(turn.parent is None or 0 <= turn.parent < i for i, turn in enumerate(turns)), "a parent comes later"
    assert all(turn.records and all(isinstance(record, bytes) for record in turn.records) for turn in turns)


def _facts(ledger: Ledger) -> list[bytes]:
    out = io.BytesIO()
    ledger.upkeep.export_facts(out)
    return out.getvalue().splitlines()


def _new_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _renamed(path: Path, *, back: bool = False) -> Path:
    """The same file under another name in the same folder, so that what lies beside it is found as before."""
    renamed_path = path.with_name(f"x{path.name}")
    return renamed_path.rename(path) if back else path.rename(renamed_path)
