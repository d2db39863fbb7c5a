"""Every real file at hand is taken by the importer of its tool, and by no other."""

from pathlib import Path

import pytest

from tests.exchange.corpus import CORPUS, needs_corpus
from weft.exchange.importers.port import load_importers
from weft.exchange.importers.testing import as_source
from weft.exchange.importing.sources import claiming

pytestmark = needs_corpus
OWN = ("swe-agent", "openhands", "llm", "langgraph", "atif")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


@pytest.mark.parametrize("origin", ["swe-agent", "openhands"])
def test_files_of_a_tool_are_its_importers_and_no_other_s(origin: str) -> None:
    importers = load_importers()
    for path in files(CORPUS / origin):
        source = as_source(path)
        assert [each.origin for each in claiming(importers, source)] == [origin], path


@pytest.mark.parametrize("origin", OWN)
def test_files_of_other_tools_are_left_to_their_importers(origin: str) -> None:
    (importer,) = load_importers(origin)
    for path in files(CORPUS):
        if path.relative_to(CORPUS).parts[0] != origin:
            source = as_source(path)
            assert not importer.recognises(source), path
            assert not importer.is_part(source), path
