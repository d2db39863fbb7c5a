"""Every real file is taken by the importer of its own tool, and by no other."""

from __future__ import annotations

from tests.exchange.corpus import CORPUS, ORIGINS, needs_corpus
from tests.sizes import share
from weft.exchange.importers.port import load_importers
from weft.exchange.importers.testing import as_source
from weft.exchange.importing.sources import candidates, claiming


@needs_corpus
def test_no_file_is_claimed_by_another_tools_importer() -> None:
    importers = load_importers()
    for candidate in share(list(candidates(CORPUS, lambda path, error: None)), test=150):
        source = as_source(candidate.path)
        found = {each.origin for each in claiming(importers, source) if not each.is_part(source)}
        folder = candidate.path.relative_to(CORPUS).parts
        own = folder[1] if folder[0] == "growth-series" else folder[0]
        assert found <= {own}, candidate.path
        if own in ORIGINS[4:]:
            assert found == {own}, candidate.path
