"""The process of an import in the background. Its order comes by standard input; it says
once that it has begun.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from msgspec.structs import replace

from weft.kernel.clock import SystemClock
from weft.kernel.errors import WeftError
from weft.kernel.typed_names import Site
from weft.surfaces.cli.ledgers.import_job import READY, ImportJob, Order
from weft.verbs.exchange_answers import ImportStatus

if TYPE_CHECKING:
    from weft.exchange.importing.run import ImportRun, ImportStep, ReadingPace
    from weft.exchange.importing.sources import Address
    from weft.exchange.importing.watch import WatchEvent
    from weft.runtime.resources.workspace_snapshots import KeptFolder


STATUS_SECONDS = 0.5


class ImportWork:
    """One job on its way; whatever happens to it, its note says so."""

    def __init__(self, job: ImportJob, order: Order) -> None:
        from weft.exchange.importing.run import ReadingPace
        from weft.exchange.importing.sources import Address

        shown = Address(order.ledger).shown if Site.of(order.ledger).is_address else order.ledger
        self._job, self._order, self._clock = job, order, SystemClock()
        now, before = self._clock.now_ms(), job.status()
        self._pace: ReadingPace = ReadingPace(self._clock, before.rate if before else None)
        self._written_at = 0.0
        self._lock = Lock()
        """Of the note, while folders are kept by another thread."""
        self.status = ImportStatus(
            state="running", pid=os.getpid(), started_at=now, updated_at=now, ledger=shown, log=str(job.log)
        )

    def write_status(self, *, now: bool = True) -> None:
        at = self._clock.monotonic()
        if now or at - self._written_at >= STATUS_SECONDS:
            self._written_at = at
            self.status = replace(self.status, updated_at=self._clock.now_ms())
            self._job.write_status(self.status)

    def end(self, state: str, error: str | None = None) -> None:
        self.status = replace(self.status, state=state, error=error, seconds_left=None)
        self.write_status()

    def run(self) -> None:
        from weft.exchange.importers.port import load_importers
        from weft.exchange.importing.run import ImportRun
        from weft.surfaces.cli.turn_files import kept_folders
        from weft.surfaces.cli.user_files import trust_store
        from weft.surfaces.opening import open as open_ledger

        order = self._order
        importers = load_importers(order.only)
        with (
            open_ledger(order.ledger, create=False, trust=trust_store()) as ledger,
            kept_folders(ledger, order.folders, self._on_kept_folder) as on_ended,
        ):
            importing = ImportRun(
                ledger,
                importers,
                self._clock,
                since=order.since,
                remap=order.remap,
                force=order.only is not None and bool(order.paths),
                follow=order.watch,
                progress=self._progress,
                on_ended=on_ended,
                processes=order.processes,
            )
            try:
                if order.watch:
                    self._watch(importing)
                else:
                    importing.run(self._places())
            finally:
                self._count(importing)

    def _places(self) -> list[Path | Address]:
        from weft.exchange.importers.port import load_importers
        from weft.exchange.importing.sources import Address
        from weft.surfaces.cli.ledgers.import_job import all_places

        paths = self._order.paths
        if paths:
            return [Address(path) if Address.is_one(path) else Path(path) for path in paths]
        places = all_places(load_importers(self._order.only))
        return [*places] if self._order.watch else [place for place in places if place.exists()]

    def _progress(self, step: ImportStep) -> None:
        left, rate = self._pace.seconds_left(step.bytes, step.of_bytes), self._pace.rate(step.bytes)
        self.status = replace(
            self.status,
            files=step.files,
            of_files=step.of_files,
            bytes=step.bytes,
            of_bytes=step.of_bytes,
            sessions=step.sessions,
            turns=step.turns,
            problems=step.problems,
            seconds_left=left,
            rate=rate,
        )
        self.write_status(now=False)

    def _count(self, importing: ImportRun) -> None:
        if not self._order.watch:
            totals = importing.summary.origins.values()
            turns, problems = sum(origin.counts.turns for origin in totals), importing.summary.problems
            self.status = replace(self.status, turns=turns, problems=len(problems))
            for problem in problems:
                say(f"{problem.source}: {problem.what}")
            if importing.summary.lost_worker is not None:
                say(f"the second process was lost: {importing.summary.lost_worker}")

    def _watch(self, importing: ImportRun) -> None:
        from weft.exchange.importing.watch import SourceWatch, listening

        watching = SourceWatch(importing, partial(listening, clock=self._clock), self._clock)
        with closing(watching.run(self._places())) as happening:
            for event in happening:
                self._on_event(event)

    def _on_event(self, event: WatchEvent) -> None:
        from weft.exchange.importing.watch import SourceImported, SourceTroubled, WatchBegan, WatchCaughtUp

        with self._lock:
            status = self.status
            if isinstance(event, WatchBegan):
                status = replace(status, of_files=event.files, of_bytes=event.bytes)
            elif isinstance(event, WatchCaughtUp):
                status = replace(status, state="watching", files=event.files, of_files=event.files)
            elif isinstance(event, SourceImported):
                status = replace(status, sessions=status.sessions + event.sessions, turns=status.turns + event.turns)
            elif isinstance(event, SourceTroubled):
                status = replace(status, problems=status.problems + 1)
                say(f"{event.source}: {event.what}")
            self.status = status
            self.write_status(now=isinstance(event, WatchCaughtUp))

    def _on_kept_folder(self, kept_folder: KeptFolder) -> None:
        """Told by another thread."""
        if kept_folder.error is not None:
            say(f"{kept_folder.folder}: its files were not kept: {kept_folder.error}")
            with self._lock:
                self.status = replace(self.status, problems=self.status.problems + 1)
                self.write_status()


def say(line: str) -> None:
    sys.stderr.write(line.encode("utf-8", "backslashreplace").decode() + "\n")
    sys.stderr.flush()


def main() -> int:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    ready = open(int(sys.argv[1]), "wb")  # noqa: SIM115  # closed as soon as it has said its one word
    job = ImportJob(order.ledger)
    os.setsid()
    os.chdir("/")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with job.held():
            work = ImportWork(job, order)
            work.write_status()
            return _run_guarded(work, ready)
    except WeftError as error:
        with ready:
            ready.write(str(error).encode())
        return 1


def _run_guarded(work: ImportWork, ready: BinaryIO) -> int:
    """Whoever hears that it is ready may ask it to stop at once."""
    try:
        with ready:
            ready.write(READY)
        say(f"import of {work.status.ledger} begun by process {work.status.pid}")
        work.run()
    except KeyboardInterrupt:
        work.end("stopped")
        return 0
    except Exception as error:  # whatever it was: the note is how people hear of it
        import traceback

        traceback.print_exc()
        work.end("failed", f"{type(error).__name__}: {error}"[:500])
        return 1
    work.end("finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
