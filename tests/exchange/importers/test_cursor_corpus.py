"""Every real Cursor file at hand: nothing is lost, nothing is fatal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.exchange.corpus import CORPUS, needs_corpus
from tests.exchange.fixtures.cursor.sessions import read
from tests.exchange.reading import called, said
from weft.exchange.importers.cursor import Cursor
from weft.exchange.importers.testing import as_source
from weft.kernel.enums import FileKind

pytestmark = needs_corpus


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_every_file_is_read_and_every_record_counted() -> None:
    kinds, turns = Counter[str](), 0
    for path in files(CORPUS / "cursor"):
        assert Cursor().recognises(as_source(path)), path
        assert not Cursor().is_part(as_source(path)), path
        found, report = read(path)
        assert not report.problems
        kinds += report.unknown
        turns += sum(len(each.turns) for each in found)
    assert not kinds
    assert turns > 80


def test_the_real_workspace_has_its_chats_and_composers() -> None:
    """Five tabs with 49 bubbles, of which five are empty boxes, and 26 composers with 82."""
    (path,) = (CORPUS / "cursor").glob("slevin48*/state.vscdb")
    found, report = read(path)
    assert len(found) == 31
    assert (report.mapped["bubble.user"], report.mapped["bubble.assistant"]) == (27 - 5 + 41, 22 + 41)
    assert report.kept["bubble.draft"] == 5
    models = {message.model for each in found for turn in each.turns for message in said(turn) if message.model}
    assert models == {"claude-3.5-sonnet"}
    notes = Counter(
        note.kind for each in found for turn in each.turns for message in said(turn) for note in message.files
    )
    assert notes[FileKind.WRITTEN] > 20
    assert notes[FileKind.ATTACHED] > 5
    assert not any(called(turn) for each in found for turn in each.turns)


def test_files_of_other_tools_are_left_to_their_importers() -> None:
    for path in files(CORPUS):
        if path.relative_to(CORPUS).parts[0] != "cursor":
            source = as_source(path)
            assert not Cursor().recognises(source), path
            assert not Cursor().is_part(source), path
