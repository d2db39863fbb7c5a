"""A watch reads on in files that grow, and from the beginning whatever may not be as it was."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

import weft
from tests.exchange.fixtures.claude_code.story import story
from tests.exchange.fixtures.codex import rollouts
from tests.exchange.live_files import live_importers, standing
from tests.exchange.timeline import Stage
from weft import Ledger
from weft.exchange.importers.port import FollowingImporter, Importer, Place, Reader, Report, Source, Transcript
from weft.exchange.importing.run import ROOM, ImportRun


class Counting:
    """An importer that tells how many records each reading of a file went through."""

    def __init__(self, importer: Importer) -> None:
        self._importer, self.origin, self.mapping = importer, importer.origin, importer.mapping
        self.reports: list[Report] = []

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        return self._importer.places(home, environment)

    def recognises(self, source: Source) -> bool:
        return self._importer.recognises(source)

    def is_part(self, source: Source) -> bool:
        return self._importer.is_part(source)

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        return self._importer.read(source, report)

    def reader(self) -> Reader:
        assert isinstance(self._importer, FollowingImporter)
        return CountingReader(self._importer.reader(), self.reports)

    @property
    def found(self) -> list[int]:
        return [report.found for report in self.reports]


class CountingReader:
    def __init__(self, reader: Reader, reports: list[Report]) -> None:
        self._reader, self._reports = reader, reports

    def read(self, source: Source, report: Report, taken: Mapping[str, int]) -> Iterator[Transcript]:
        self._reports.append(report)
        return self._reader.read(source, report, taken)


class Home:
    """One file of an origin: its lines, and the stage on which it is written."""

    def __init__(
        self, ledger: Ledger, folder: Path, importer: Importer, name: str, lines: list[dict[str, Any]]
    ) -> None:
        self.importer = Counting(importer)
        self.stage = Stage(ledger, folder, [self.importer])
        self.ledger, self.name = ledger, name
        self.lines = [orjson.dumps(line).decode() + "\n" for line in lines]

    def at_once(self, seconds: float = 8, *actions: Any) -> list[int]:
        """What each reading of a watch found, from the first one on."""
        now = self.stage.clock.monotonic()
        self.stage.follow(*((now + at, act) for at, act in actions), end=now + seconds)
        return self.importer.found

    def is_as_imported_cold(self, path: Path) -> bool:
        """Once nobody writes any more."""
        self.at_once(400)
        with weft.open(path) as cold:
            cold.imports.share_with(self.ledger)
            ImportRun(cold, live_importers(), self.stage.clock).run([self.stage.folder])
            assert standing(self.ledger) == standing(cold)
        assert list(self.ledger.verify()) == []
        return True


def codex_lines() -> list[dict[str, Any]]:
    lines = [rollouts.meta()]
    for number in range(1, 6):
        turn = rollouts.turn_id(number)
        lines += [rollouts.started(turn), rollouts.context(turn), rollouts.user(f"question {number}")]
        lines.append(rollouts.complete(turn))
    return lines


@pytest.fixture(params=["claude-code", "codex"])
def home(request: pytest.FixtureRequest, ledger: Ledger, sources: Path) -> Home:
    importer = next(each for each in live_importers() if each.origin == request.param)
    if request.param == "codex":
        return Home(ledger, sources, importer, f"rollout-{rollouts.SESSION}.jsonl", codex_lines())
    return Home(ledger, sources, importer, "5e55.jsonl", story().lines)


def test_a_grown_file_is_read_from_where_it_ended(home: Home, tmp_path: Path) -> None:
    stage, name, lines = home.stage, home.name, home.lines
    stage.write(name, *lines[:6])()
    assert home.at_once(8, (2, stage.add(name, lines[6])), (5, stage.add(name, *lines[7:9]))) == [6, 1, 2]
    stage.add(name, *lines[9:])()
    assert home.is_as_imported_cold(tmp_path / "cold.db")


def test_half_a_line_is_read_when_it_is_whole(home: Home, tmp_path: Path) -> None:
    stage, name, lines = home.stage, home.name, home.lines
    stage.write(name, *lines[:6], lines[6][:20])()
    assert home.at_once(8, (2, stage.add(name, lines[6][20:]))) == [6, 1]
    assert home.is_as_imported_cold(tmp_path / "cold.db")


def test_behind_a_line_that_had_no_end_nothing_is_read_on(home: Home, tmp_path: Path) -> None:
    stage, name, lines = home.stage, home.name, home.lines
    stage.write(name, *lines[:5], lines[5].rstrip("\n"))()
    assert home.at_once(8, (2, stage.add(name, "\n", lines[6]))) == [6, 7]
    assert home.is_as_imported_cold(tmp_path / "cold.db")


def test_a_file_that_begins_another_way_is_read_from_there(home: Home, tmp_path: Path) -> None:
    stage, name, lines = home.stage, home.name, home.lines
    other = [line.replace("o", "0") if number in (2, 3) else line for number, line in enumerate(lines[:8])]
    stage.write(name, *lines[:6])()
    assert home.at_once(8, (2, stage.write(name, *other)))[1:] == [8]
    home.at_once(8, (2, stage.write(name, *other, *lines[8:])))
    assert home.importer.found[2:] == [len(lines)]


def test_what_another_import_read_meanwhile_is_not_known_here(home: Home, tmp_path: Path) -> None:
    stage, name, lines = home.stage, home.name, home.lines

    def elsewhere() -> None:
        stage.add(name, lines[6])()
        ImportRun(home.ledger, live_importers(), stage.clock).run([stage.folder])

    stage.write(name, *lines[:6])()
    assert home.at_once(8, (2, elsewhere), (5, stage.add(name, lines[7]))) == [6, 8]
    stage.add(name, *lines[8:])()
    assert home.is_as_imported_cold(tmp_path / "cold.db")


def test_after_an_erasure_a_file_is_read_from_its_beginning(home: Home) -> None:
    stage, name, lines = home.stage, home.name, home.lines
    half = len(lines) * 2 // 3

    def erase() -> None:
        turn = list(home.ledger.log())[-1]
        home.ledger.erasure.erase(turn.id, reason="mine")

    stage.write(name, *lines[:half])()
    found = home.at_once(8, (2, erase), (3, stage.add(name, lines[half])), (6, stage.add(name, lines[half + 1])))
    assert found == [half, half + 1, half + 2]  # whoever met what was erased does not go on from there either
    assert list(home.ledger.verify()) == []


def test_of_many_files_those_that_changed_last_are_remembered(home: Home, tmp_path: Path) -> None:
    stage, lines = home.stage, home.lines
    names = [f"{number}/{home.name}" for number in range(ROOM + 1)]
    writes = [(2 + number, stage.write(name, *lines[:6])) for number, name in enumerate(names)]
    again = [(2 * ROOM + 9 + 3 * at, stage.add(name, lines[6])) for at, name in enumerate((names[0], names[-1]))]
    found = home.at_once(3 * ROOM + 30, *writes, *again)
    assert found[-2:] == [7, 1]
    assert home.is_as_imported_cold(tmp_path / "cold.db")


def test_a_file_that_is_rewritten_and_written_back_shows_what_it_showed(home: Home, tmp_path: Path) -> None:
    """Under a watch, and by imports one after the other."""
    stage, name, lines = home.stage, home.name, home.lines
    other = [line.replace("question", "answer").replace("go", "stay") for line in lines]
    assert other != lines
    turns = []
    for written in (lines, other, lines, other, lines):
        stage.write(name, *written)()
        home.at_once(400)
        turns.append(sorted(turn.id for turn in home.ledger.log()))
    assert turns[0] == turns[2] == turns[4] != turns[1] == turns[3]
    assert home.is_as_imported_cold(tmp_path / "cold.db")
    for written, expected in ((other, turns[1]), (lines, turns[0])):
        stage.write(name, *written)()
        stage.clock.sleep(400)
        ImportRun(home.ledger, live_importers(), stage.clock).run([stage.folder])
        assert sorted(turn.id for turn in home.ledger.log()) == expected
    assert list(home.ledger.verify()) == []
