"""Every real opencode file at hand: nothing is lost, nothing is fatal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.exchange.fixtures.opencode.sessions import assert_counted, assert_sound, read, source_of
from weft.exchange.importers.opencode import Opencode
from weft.exchange.importers.port import NativeCall

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="there is no corpus beside this checkout")


def test_every_file_is_read_and_every_record_counted() -> None:
    opencode, kinds = Opencode(), Counter[str]()
    spawned, sessions, turns = set[str](), dict[str, str | None](), 0
    for path in sorted(path for path in (CORPUS / "opencode").rglob("*") if path.is_file()):
        source = source_of(path)
        if opencode.is_part(source):
            continue
        assert opencode.recognises(source), path
        found, report = read(path)
        assert_counted(report)
        kinds += report.unknown
        for each in found:
            assert_sound(each)
            sessions[each.session.id] = each.session.parent
            turns += len(each.turns)
            calls = (item for turn in each.turns for item in turn.items if isinstance(item, NativeCall))
            spawned |= {call.spawned for call in calls if call.spawned is not None}
    assert not kinds
    assert turns > 100
    children = {id for id, parent in sessions.items() if parent is not None}
    assert children
    assert children & spawned


def test_files_of_other_tools_are_left_to_their_importers() -> None:
    opencode = Opencode()
    for path in sorted(path for path in CORPUS.rglob("*") if path.is_file()):
        if path.relative_to(CORPUS).parts[0] != "opencode":
            source = source_of(path)
            assert not opencode.recognises(source), path
            assert not opencode.is_part(source), path
