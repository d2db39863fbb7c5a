"""The contract as Weft's own importers pass it: all of it in `make prove`, else a share of its cuts and changes."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.sizes import PROVING, points
from weft.exchange.importers.testing import ImporterContract

IMPORTERS = Path(__file__).parent / "importers"
TWO_PROCESSES = "test_two_processes_import_the_same_as_one"


class OwnImporterContract(ImporterContract):
    pytestmark = [pytest.mark.prove] if PROVING else []

    if not PROVING:  # one worker reads the samples of all: `test_two_processes_import_samples_of_all_formats_alike`
        test_two_processes_import_the_same_as_one: Any = None

    def points(self, total: int) -> Iterable[int]:
        return points(total, test=20)


def own_contracts() -> list[type[OwnImporterContract]]:
    for path in sorted(IMPORTERS.glob("test_*.py")):
        import_module(f"tests.exchange.importers.{path.stem}")
    return sorted(OwnImporterContract.__subclasses__(), key=lambda contract: (contract.__module__, contract.__name__))
