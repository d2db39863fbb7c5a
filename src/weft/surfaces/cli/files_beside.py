"""The files that are kept beside a ledger, taken along by `backup`, `copy`, `clone` and `recover`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from weft.kernel.typed_names import Site
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.exits import DIFFERENT, OK
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.resource_access import files_folder, folder_beside, kept_files
from weft.surfaces.cli.screen import Span
from weft.surfaces.plain_text import safe
from weft.surfaces.wire.upkeep import CarriedFilesForm

files_option = click.option(
    "--no-files", is_flag=True, help="Leave the kept files of turns where they are; the copy tells where that is."
)


def folder_of(call: Call, address: str) -> Path:
    """Where the kept files of a ledger lie, by its address. One on a server is asked who it is."""
    if Site.of(address) is Site.FILE:
        return folder_beside(address)
    with call.looking(address) as ledger:
        return files_folder(ledger)


class FilesBeside:
    """The files of one ledger on their way to a copy of it."""

    def __init__(self, origin: str, source: Path, target: Path | None, *, is_left_out: bool = False) -> None:
        """From one folder to another; without one, `carry` is told it. `origin` is the ledger, as it is named."""
        self._origin, self._source, self._target = origin, source, target
        self._kept, self._is_left_out = kept_files(source), is_left_out
        self.carried = CarriedFilesForm(left_out=is_left_out and self._kept.is_there)

    @contextmanager
    def held(self) -> Iterator[None]:
        """While the ledger is copied nothing is removed that the copy may name."""
        with self._kept.hold():
            yield

    def carry(self, target: Path | None = None) -> None:
        """Before the copy can be opened, all that it names lies beside it."""
        folder = target or self._target
        if folder is None or not self._kept.is_there:
            return
        if self._is_left_out:
            kept_files(folder).leave_out(self._origin)
            return
        done = self._kept.copy_to(kept_files(folder))
        self.carried = CarriedFilesForm(snapshots=done.snapshots, files=done.files, damaged=done.damaged)

    def note_carried(self, call: Call) -> int:
        """What went along, for people; the code to end with."""
        carried = self.carried
        if carried.left_out:
            call.note(f"without the files of turns: they stay in {safe(str(self._source))}")
        elif carried.snapshots or carried.files:
            files = f", {counted(carried.files, 'other file')}" if carried.files else ""
            call.note(f"with {counted(carried.snapshots, 'snapshot')} of directories{files}")
        for name in carried.damaged:
            call.note(Span("not whole, left out: ", "bad"), safe(name))
        if carried.damaged:
            call.note("`weft verify` says what is wrong with them")
        return DIFFERENT if carried.damaged else OK
