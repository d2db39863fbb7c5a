"""Bundles on their way in: verified as a whole first, then taken into a ledger through the way that all facts take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from weft.exchange.bundles.container import unpacked_lines
from weft.exchange.bundles.keys import PublicKey
from weft.exchange.bundles.report import BundleReport
from weft.exchange.bundles.verification import BundleCheck, KnownNames
from weft.kernel.errors import InvalidBundle
from weft.ledger.api import Ledger
from weft.ledger.arguments import checked_path, path_error
from weft.ledger.upkeep.facts_file import ImportedFacts


def verify_bundle(path: str | Path, keys: Sequence[PublicKey] = ()) -> BundleReport:
    """What the bundle proves. Raises InvalidBundle for one that is not exactly what it says. `keys` are believed."""
    with _opened(path) as file, KnownNames() as known:
        check = BundleCheck(known, keys)
        for _ in check.facts(unpacked_lines(file)):
            pass
        return check.report()


def import_bundle(
    ledger: Ledger, path: str | Path, keys: Sequence[PublicKey] = (), *, progress: Any = None
) -> tuple[BundleReport, ImportedFacts]:
    """Verify a bundle, then bring its facts into a ledger. What is absent stays so; what is known is passed over."""
    proved = verify_bundle(path, keys)
    with _opened(path) as file, KnownNames() as known:
        check = BundleCheck(known, keys)
        brought = ledger.upkeep.import_facts(
            _Lines(check.facts(unpacked_lines(file))), excerpts=True, progress=progress
        )
        if check.report().digest != proved.digest:
            raise InvalidBundle("the file was changed while it was read")
    return proved, brought


@contextmanager
def _opened(path: str | Path) -> Iterator[BinaryIO]:
    file = checked_path(path, "bundle")
    try:
        opened = file.open("rb")
    except OSError as error:
        raise path_error(file, error) from error
    with opened:
        yield opened


class _Lines:
    """Lines as a file that is read line by line."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines

    def readline(self, _: int = -1) -> bytes:
        line = next(self._lines, None)
        return b"" if line is None else line + b"\n"
