"""Every real pi file at hand: nothing is lost, nothing is fatal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.exchange.fixtures.pi.sessions import assert_counted, assert_sound, read, source_of
from weft.exchange.importers.pi import Pi

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="there is no corpus beside this checkout")


def test_every_file_is_read_and_every_record_counted() -> None:
    unknown, turns, responses, tokens = Counter[str](), 0, 0, 0
    for path in sorted((CORPUS / "pi").rglob("*.jsonl")):
        assert Pi().recognises(source_of(path)), path
        found, report = read(path)
        assert_counted(report)
        unknown += report.unknown
        responses += report.mapped["message.assistant"]
        for each in found:
            assert_sound(each)
            turns += len(each.turns)
            assert all(turn.items for turn in each.turns)
            tokens += sum(getattr(item, "tokens", None) is not None for turn in each.turns for item in turn.items)
    assert set(unknown) <= {"compact", "unknown_future_entry_type"}
    assert turns >= 38
    assert tokens >= responses - 10


def test_files_of_other_tools_are_left_to_their_importers() -> None:
    for path in sorted(path for path in CORPUS.rglob("*") if path.is_file()):
        if path.relative_to(CORPUS).parts[0] != "pi":
            assert not Pi().recognises(source_of(path)), path
