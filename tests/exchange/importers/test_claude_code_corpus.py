"""Real sessions of Claude Code, where the corpus lies beside the repository: nothing escapes, nothing is lost."""

from collections import Counter
from pathlib import Path

import pytest

from tests.exchange.fixtures.claude_code.lines import Read, read, source_of
from tests.sizes import share
from weft.exchange.importers.claude_code import ClaudeCode
from weft.exchange.importers.port import NativeTurn

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"
COPIED = CORPUS / "claude-code" / "gmeligio+flutter-docker-image"
ORIGINAL, COPY = "390ab778-0d42-4dd4-936d-f11014a7a76a", "aba9151e-9900-4227-9be2-735c5d04d586"
OTHERS = ("cache", "data")
"""Folders with files of other tools: a viewer's cache, a list of fixtures."""
UNKNOWN = {"(no type)", "holo-recap", "flux-marker"}
"""Kinds of records in the corpus that the importer keeps and does not know."""

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of real sessions is not beside this repository")


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (CORPUS / folder).rglob("*") if path.is_file())


def test_every_file_is_read_and_every_record_counted() -> None:
    kept: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    every = files("claude-code", "growth-series/claude-code")
    taken = share(every, test=80)
    for path in taken:
        found = read(path)
        kept, unknown = kept + found.report.kept, unknown + found.report.unknown
        for turns in found.turns_of.values():
            assert all(turn.records and turn.key for turn in turns)
    assert set(unknown) <= UNKNOWN
    assert set(unknown) == UNKNOWN or len(taken) < len(every)
    assert kept["user"] + kept["assistant"] < 10


def test_every_session_file_is_recognised_and_no_other() -> None:
    importer = ClaudeCode()
    for path in files("claude-code", "growth-series/claude-code"):
        source = source_of(path)
        is_other = path.suffix == ".json" and path.parent.name in OTHERS
        assert importer.recognises(source) is not (is_other or importer.is_part(source)), path
    for path in files("."):
        if "claude-code" not in path.parts and path.suffix in (".json", ".jsonl"):
            assert not importer.recognises(source_of(path)), path


def test_turns_shared_by_a_copied_session_are_the_same() -> None:
    original, copy = read(COPIED / f"{ORIGINAL}.jsonl"), read(COPIED / f"{COPY}.jsonl")
    shared = len(original.turns)
    assert shared == 17
    assert [identity(turn) for turn in copy.turns[:shared]] == [identity(turn) for turn in original.turns]
    assert copy.parents == [None, *range(len(copy.turns) - 1)]
    compaction = copy.turns[shared].compaction
    assert compaction is not None
    assert compaction.first_kept == shared - 1
    assert copy.sessions[0].metadata["session_id"] == ORIGINAL


def test_a_growing_session_keeps_its_closed_turns() -> None:
    series = files("growth-series/claude-code")
    assert len(series) > 3
    before: Read | None = None
    for path in series:
        found = read(path)
        if before is not None:
            closed = [identity(turn) for turn in before.turns if turn.closed]
            assert [identity(turn) for turn in found.turns[: len(closed)]] == closed
        before = found


@pytest.mark.parametrize("name", ["9c4f30d9-7a7f-49b7-93b3-062fbf14c199", "f38c62f6-9179-4a83-87e0-d2307abc24e2"])
def test_a_turn_once_closed_never_changes(tmp_path: Path, name: str) -> None:
    """Real sessions, seen at many moments while they grew."""
    lines = (COPIED / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / f"{name}.jsonl"
    closed: list[tuple[object, ...]] = []
    for end in range(9, len(lines), 9):
        path.write_bytes(b"".join(lines[:end]))
        turns = read(path).turns
        assert [identity(turn) for turn in turns[: len(closed)]] == closed
        closed = [identity(turn) for turn in turns if turn.closed]


def identity(turn: NativeTurn) -> tuple[object, ...]:
    return turn.key, turn.parent, turn.records, turn.error, turn.interrupted
