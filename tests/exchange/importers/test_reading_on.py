"""A reader that goes on in a file that has grown gives what one that reads it from its beginning gives."""

import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.exchange.live_files import live_importers, material
from tests.sizes import PROVING, points
from weft.exchange.importers.foreign_files import read_sample
from weft.exchange.importers.port import HEAD_BYTES, FollowingImporter, Importer, NativeTurn, Report, Source

SEEDS = points(200, test=6)
FILES, LIMIT, STEPS = (12, 1_000_000, 30) if PROVING else (3, 60_000, 12)


def source_of(path: Path, chance: random.Random) -> Source:
    head, size = read_sample(path, HEAD_BYTES), path.stat().st_size
    return Source(path=path, name=str(path), size=size, head=head, quiet=chance.random() < 0.2)


def anew(importer: Importer, source: Source) -> dict[str, tuple[Any, list[NativeTurn]]]:
    found = {}
    for transcript in importer.read(source, Report(source.name)):
        turns = list(transcript.turns)
        found[transcript.session.id] = (transcript.session, turns)
    return found


class Following:
    """Keeps a reader, and all that it gave of each session."""

    def __init__(self, importer: FollowingImporter) -> None:
        self._reader = importer.reader()
        self._given: dict[str, list[NativeTurn]] = {}
        self._taken: dict[str, int] = {}
        self.known: dict[str, int] = {}
        self.passed_over = 0

    def read(self, source: Source) -> dict[str, tuple[Any, list[NativeTurn]]]:
        found: dict[str, tuple[Any, list[NativeTurn]]] = {}
        taken = self._taken
        for transcript in self._reader.read(source, Report(source.name), taken):
            id = transcript.session.id
            assert transcript.known_turns <= taken.get(id, 0)
            self.passed_over += transcript.known_turns
            self.known[id] = transcript.known_turns
            turns = [*self._given.get(id, [])[: transcript.known_turns], *transcript.turns]
            found[id] = (transcript.session, turns)
        self._given = {id: turns for id, (_, turns) in found.items()}
        self._taken = {id: _leading(turns, source.quiet) for id, turns in self._given.items()}
        return found


def taken_as_closed(
    found: dict[str, tuple[Any, list[NativeTurn]]], known: dict[str, int]
) -> dict[str, tuple[Any, list[NativeTurn]]]:
    """Of a turn that was taken nobody asks whether it was closed then."""
    return {
        id: (session, [replace(turn, closed=True) if n < known[id] else turn for n, turn in enumerate(turns)])
        for id, (session, turns) in found.items()
    }


def _leading(turns: list[NativeTurn], quiet: bool) -> int:
    """Those that an import takes: up to the first that is open."""
    return next((number for number, turn in enumerate(turns) if not turn.closed and not quiet), len(turns))


def worn(data: bytes, chance: random.Random) -> bytes:
    """The same lines, some of them lost, doubled, cut, glued together or in another place."""
    lines = data.splitlines(keepends=True)
    for _ in range(chance.randint(1, 6)):
        at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
        match chance.randrange(5):
            case 0 if len(lines) > 1:
                del lines[at]
            case 1:
                lines.insert(to, lines[at])
            case 2:
                lines[at] = lines[at][: chance.randrange(len(lines[at]))] + b"\n"
            case 3:
                lines[at] = lines[at].rstrip(b"\n")
            case _:
                lines[at], lines[to] = lines[to], lines[at]
    return b"".join(lines)


@pytest.mark.parametrize("seed", SEEDS)
def test_reading_on_gives_what_reading_anew_gives(seed: int, tmp_path: Path) -> None:
    chance = random.Random(f"on/{seed}")
    passed_over = 0
    for name, data in material(chance, FILES, LIMIT):
        if chance.random() < 0.5:
            data = worn(data, chance)
        path = tmp_path / Path(name).name
        importer = next(each for each in live_importers() if name.startswith(each.origin))
        assert isinstance(importer, FollowingImporter)
        following = Following(importer)
        for cut in sorted(chance.sample(range(1, len(data) + 1), min(STEPS, len(data))) + [len(data)] * 2):
            path.write_bytes(data[:cut])
            source = source_of(path, chance)
            found, expected = following.read(source), anew(importer, source)
            assert taken_as_closed(found, following.known) == taken_as_closed(expected, following.known)
        passed_over += following.passed_over
    assert passed_over > 0
