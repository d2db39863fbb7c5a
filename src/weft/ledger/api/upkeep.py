"""Upkeep: views rebuilt and caught up, facts and backups written, cold trees packed, sizes measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from io import TextIOBase
from pathlib import Path
from typing import Any

from weft.kernel.advice import Action
from weft.kernel.errors import InvalidInput, StoreError
from weft.ledger.api.base import LedgerPart
from weft.ledger.arguments import (
    checked_call,
    checked_file,
    checked_flag,
    checked_names,
    checked_path,
    checked_place,
    checked_progress,
    checked_text,
    path_error,
)
from weft.ledger.reports import totals_reading, usage_totals
from weft.ledger.search import passages
from weft.ledger.upkeep import facts_file, packing, recompute, stats
from weft.ledger.upkeep.copy_register import BACKUP, EXPORT, FACTS, note_copy, record_materialization, remembered
from weft.ledger.upkeep.packing import PackResult
from weft.ledger.upkeep.recompute import silent
from weft.ledger.views import codeblocks
from weft.ledger.write.append import reads_whole, requires


class Upkeep(LedgerPart):
    """`ledger.upkeep`: rebuilds, copies, packs and measures a ledger."""

    @requires("upkeep:rebuild", whole=True)
    def rebuild(self, *, progress: Any = None) -> int:
        """Make every view anew from the facts; returns how many rows were wrong."""
        return self._rebuild(checked_progress(progress) or recompute.silent)

    def _rebuild(self, report: recompute.Progress) -> int:
        changed = recompute.rebuild(self._store, report)
        codeblocks.catch_up(self._store)
        passages.catch_up(self._store)
        return changed + totals_reading.renew(self._store)

    def catch_up(self, *, progress: Any = None) -> None:
        """Bring every lagging view up to the newest fact."""
        report_progress = checked_progress(progress)
        self._store.catch_up()
        codeblocks.catch_up(self._store)
        passages.catch_up(self._store, progress=report_progress)
        usage_totals.catch_up(self._store)

    @reads_whole
    def export_facts(self, target: str | Path | Any, *, progress: Any = None) -> int:
        """Write every fact as a JSON line, to a new file or an open binary one; returns the number of lines."""
        lines = facts_file.export_lines(self._store, checked_progress(progress))
        if isinstance(target, TextIOBase):
            raise InvalidInput("target is a file of text", "open it for bytes, or give its path")
        if hasattr(target, "write"):
            return facts_file.write_lines(target, lines)
        path = checked_file(target, "target", Action.GIVE_NEW_FILE)
        try:
            with remembered(self._store, path, FACTS):
                return facts_file.write_new(path, lines)
        except OSError as error:
            raise path_error(path, error) from error

    @requires("facts:import", whole=True)
    def import_facts(
        self, source: str | Path | Any, *, excerpts: bool = False, progress: Any = None
    ) -> facts_file.ImportedFacts:
        """Bring facts in from a file of JSON lines; known ones are passed over. With `excerpts`, events of another
        ledger's own stream may come without those before them, as bundles bring them."""
        if not hasattr(source, "readline"):
            path = checked_path(source, "source")
            try:
                file = path.open("rb")
            except OSError as error:
                raise path_error(path, error) from error
            with file:
                return self._import_facts(file, excerpts, progress)
        return self._import_facts(source, excerpts, progress)

    def _import_facts(self, source: Any, excerpts: bool, progress: Any) -> facts_file.ImportedFacts:
        lines, report_progress = facts_file.limited_lines(source), checked_progress(progress)
        brought = facts_file.import_lines(
            self._store, lines, report_progress, excerpts=checked_flag(excerpts, "excerpts")
        )
        if facts_file.views_are_stale(self._store):
            self._rebuild(recompute.silent)
        return brought

    @reads_whole
    def backup(self, target: str | Path, *, progress: Any = None, beside: Callable[[], object] | None = None) -> None:
        """Copy a consistent state to a new file while readers and writers go on; opened for writing, the copy goes by
        a replica id of its own. `beside` is called once the copy is written and before it has its name, so that what
        belongs beside it is there first; where it fails, there is no copy."""
        path, report_progress = checked_file(target, "target", Action.GIVE_NEW_FILE), checked_progress(progress)
        beside = checked_call(beside, "beside")
        try:
            with remembered(self._store, path, BACKUP):
                self._store.backup(path, report_progress, beside)
        except OSError as error:
            raise path_error(path, error) from error

    @reads_whole
    def note_export(self, target: str | Path, *, turn: str | None = None) -> None:
        """Remember that a file holds what was said here, so that an erasure names it; not if open for reading. `turn`:
        the one whose thread it shows, recorded as its Materialization where the ledger is trusted and has room."""
        path = str(checked_place(target, "target").absolute())
        shown = None if turn is None else self._ledger.resolve(checked_text(turn, "turn"))
        if self._store.read_only:
            return
        self._store.write(partial(note_copy, path, EXPORT))
        if shown is not None and self._ledger.trust.is_trusted:
            with suppress(StoreError):  # the file is there, and known to erasures: a record of it may be missing
                record_materialization(self._writer, path, shown)

    @reads_whole
    def disk_bytes(self) -> int:
        """How much room the ledger takes: its file and the log beside it, or its tables in a server."""
        return self._store.disk_bytes()

    @reads_whole
    def stats(self) -> dict[str, Any]:
        with self._store.read() as txn:
            return stats.collect(txn, self._store.replica)

    @requires("upkeep:pack", whole=True)
    def pack(
        self,
        what: str | Sequence[str] = (),
        *,
        older_than: int | str | None = None,
        dry_run: bool = False,
        progress: Any = None,
    ) -> PackResult:
        """Compress the contents of whole trees: of those that these names lead to, or of all; with `older_than` (Unix
        ms, or words such as '90 days ago') only where nothing happened since. Everything reads as before."""
        return packing.pack(
            self._store,
            checked_names(what, "name"),
            None if older_than is None else self._moment(older_than, "older_than"),
            self._resolve,
            dry_run=checked_flag(dry_run, "dry_run"),
            report=checked_progress(progress) or silent,
        )

    @requires("upkeep:pack", whole=True)
    def unpack(self, what: str | Sequence[str] = (), *, progress: Any = None) -> PackResult:
        """Put contents back where a plain SQL shell reads them: of these trees, or all."""
        return packing.unpack(
            self._store, checked_names(what, "name"), self._resolve, checked_progress(progress) or silent
        )

    def search_lag(self) -> int:
        """How many events search has yet to index; until then it looks through them each time."""
        return passages.lag_of(self._store)
