"""The writer's side of an import in two processes: a worker reads the next sources while this one is written.

The worker is a help, never a need. A source that it read other than it is now, or could not read, is read here; where
the worker is gone in the middle of a source, it is read here from the turn on that would have come next.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from shutil import rmtree
from tempfile import TemporaryFile, mkdtemp
from typing import IO, Any

from msgspec import Struct

from weft.exchange.importers.port import Importer, NativeSession, NativeTurn, Report, Source, Transcript
from weft.exchange.importers.sources import Candidate
from weft.exchange.importing.handover import (
    ENDS,
    FrameKind,
    OpenedSource,
    ReadingEnd,
    ReadOrder,
    SessionBegin,
    WorkerLost,
    receive_frame,
    send_order,
    unpack,
)
from weft.kernel.clock import Clock
from weft.kernel.contents import text_bytes

AHEAD_SOURCES = 32
"""So many are ordered before they are needed: small ones must not keep the worker from working ahead."""
LEAVING_SECONDS = 5.0
LAST_WORDS_BYTES = 2000
"""So much of the end of what a worker wrote to its standard error is looked at."""
_BEGIN = (
    "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); sys.path[:] = {path!r};"
    " from weft.exchange.importing.reading_worker import main; main({folder!r})"
)
"""It can be ended only once it can clear away."""
_ISOLATED = ("-I", "-X", f"utf8={sys.flags.utf8_mode}")
"""Nothing of the environment runs in the worker, or is looked for there, that does not run here; names of files are
read as they are here."""


class ImporterFailed(Exception):
    """An importer failed in the worker; says what it raised there."""


class WantedSource(Struct, frozen=True):
    """A source that the worker can read, and by which importer."""

    candidate: Candidate
    importer: str
    secret: bytes


class WorkerProcess:
    """The worker as seen from here: orders go in, frames come out."""

    def __init__(self) -> None:
        path = [os.path.abspath(place) for place in sys.path]
        self._errors = TemporaryFile()  # noqa: SIM115 - closed with the process
        self._folder = ""
        try:
            self._folder = mkdtemp(prefix="weft-import-")
            self._process = subprocess.Popen(
                [sys.executable, *_ISOLATED, "-c", _BEGIN.format(path=path, folder=self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,  # what has come is in the pipe, where one can look for it
                process_group=0,  # Ctrl-C at a terminal is for the writer alone
            )
        except BaseException:  # whatever it was, nothing stays open, or lies there
            self._errors.close()
            rmtree(self._folder, ignore_errors=True)
            raise
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self._answers = select.poll()
        self._answers.register(self._process.stdout, select.POLLIN)
        self._loss: WorkerLost | None = None

    def lose(self, loss: WorkerLost) -> None:
        """What it says is not listened to any longer."""
        self._loss = self._loss or loss

    def order(self, order: ReadOrder) -> None:
        try:
            assert self._process.stdin is not None
            send_order(self._process.stdin, order)
        except OSError as error:
            raise WorkerLost(str(error)) from error

    @property
    def is_readable(self) -> bool:
        """False: whoever asks for the next frame waits for it."""
        return self._loss is not None or bool(self._answers.poll(0))

    def frame(self) -> tuple[FrameKind, bytes]:
        if self._loss is not None:
            raise WorkerLost("it was lost before")
        assert self._process.stdout is not None
        try:
            return receive_frame(self._process.stdout)
        except WorkerLost as loss:
            self.lose(loss)
            raise

    def close(self) -> str | None:
        """It ends when nobody speaks to it any longer, or is ended. Says how it ended and what it said last, where it
        was lost before."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # it may be gone
                    pipe.close()
        try:
            self._process.wait(LEAVING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        rmtree(self._folder, ignore_errors=True)  # also where it was killed
        with self._errors:
            return None if self._loss is None else _end_of(self._loss, self._process.returncode, self._errors)


def _end_of(loss: WorkerLost, code: int, errors: IO[bytes]) -> str:
    """How it ended, or why it is not listened to though it ended well, and the last line of its standard error."""
    end = f"it ended by signal {-code}" if code < 0 else f"it ended with code {code}" if code else str(loss)
    errors.seek(max(errors.seek(0, os.SEEK_END) - LAST_WORDS_BYTES, 0))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return f"{end}: {lines[-1].strip()}" if lines else end


class EarlyWorker:
    """A worker that is started before it is known what it has to read; whoever has made this closes it."""

    def __init__(self) -> None:
        self._worker: WorkerProcess | None = None
        with suppress(OSError):  # no room for another process: there is no worker
            self._worker = WorkerProcess()

    def take(self) -> WorkerProcess | None:
        """Hand it over for good; None where it could not be started."""
        worker, self._worker = self._worker, None
        return worker

    def close(self) -> None:
        """End it, if nobody has taken it."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


class ReadingAhead:
    """Sources in the order in which they will be asked for, read by a worker."""

    def __init__(
        self,
        sources: Iterable[WantedSource],
        clock: Clock,
        between: Callable[[bool], None],
        on_lost: Callable[[str], None],
        early: EarlyWorker | None = None,
    ) -> None:
        """`between` is called before every frame, while nothing is being written, and told whether the worker has to be
        waited for; `on_lost` at the end, with the reason, where the worker did not hold out. `early` has started it
        already."""
        self._sources, self._clock, self._between, self._on_lost = iter(sources), clock, between, on_lost
        self._early = early
        self._ordered: deque[SourceAhead] = deque()
        self._current: SourceAhead | None = None
        self._worker: WorkerProcess | None = None

    def __enter__(self) -> ReadingAhead:
        self._worker = (self._early or EarlyWorker()).take()  # without one all is read here
        self._order_more()
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None and (why := self._worker.close()) is not None:
            self._on_lost(why)

    @property
    def worker_pid(self) -> int | None:
        return None if self._worker is None else self._worker.pid

    def take(self, candidate: object) -> SourceAhead | None:
        """What the worker makes of a source; None where it does not read that one."""
        if self._current is not None:
            self._current.pass_over()
            self._current = None
        if not self._ordered or self._ordered[0].candidate is not candidate:
            return None
        self._current = self._ordered.popleft()
        self._order_more()
        return self._current

    def _order_more(self) -> None:
        while self._worker is not None and len(self._ordered) < AHEAD_SOURCES:
            wanted = next(self._sources, None)
            if wanted is None:
                return
            candidate, now = wanted.candidate, self._clock.now_ms()
            member = None if candidate.member is None else text_bytes(candidate.member)
            place = (os.fsencode(candidate.path), candidate.size, candidate.stamp, member)
            self._ordered.append(SourceAhead(candidate, now, self._worker, self._between))
            with suppress(WorkerLost):  # told again by whoever asks for its frames
                self._worker.order(ReadOrder(wanted.importer, wanted.secret, *place, now / 1000))


class SourceAhead:
    """One source as the worker reads it, told in the order in which it is read."""

    def __init__(
        self, candidate: Candidate, ordered_ms: int, worker: WorkerProcess, between: Callable[[bool], None]
    ) -> None:
        self.candidate, self.ordered_ms = candidate, ordered_ms
        self._worker, self._between = worker, between
        self._is_over = False
        self._here: Iterator[Transcript] | None = None
        """The rest, where the worker is gone."""

    def opened(self) -> OpenedSource | None:
        """What the worker has before it, if it could open the source. Asked first, and once."""
        try:
            kind, data = self._frame()
            return _checked(data, OpenedSource) if kind is FrameKind.OPENED else None
        except WorkerLost:
            return None

    def pass_over(self) -> None:
        """What is left of it, so that the next source can come."""
        with suppress(WorkerLost):
            while not self._is_over:
                self._frame()

    def transcripts(self, importer: Importer, source: Source, report: Report) -> Iterator[Transcript]:
        """As the importer gives them. Raises what reading raised; the report is filled at the end."""
        given = 0
        while self._here is None:
            try:
                kind, data = self._frame()
                if kind in ENDS:
                    _fill(report, _checked(data, ReadingEnd))
                    return
                begin = _checked(data, SessionBegin)
                raw = self._raw(begin.raw_bytes)
            except WorkerLost as loss:
                self._worker.lose(loss)
                self._here = islice(_walked(importer.read(source, report)), given, None)
                break
            turns = self._turns(begin.session, given, importer, source, report)
            yield Transcript(session=begin.session, turns=turns, raw=raw, until=begin.until)
            for _ in turns:
                pass
            given += 1
        yield from self._here

    def _turns(
        self, session: NativeSession, given: int, importer: Importer, source: Source, report: Report
    ) -> Iterator[NativeTurn]:
        """Of the session after so many others, which is completed at its end."""
        count = 0
        try:
            while True:
                kind, data = self._frame()
                if kind is FrameKind.FAILED:
                    _fill(report, _checked(data, ReadingEnd))
                if kind is FrameKind.SESSION_END:
                    _become(session, _checked(data, NativeSession))
                    return
                for turn in _turns_in(data):
                    count += 1
                    yield turn
        except WorkerLost as loss:
            self._worker.lose(loss)
            self._here = _walked(importer.read(source, report))
            for transcript in islice(self._here, given, given + 1):
                yield from islice(transcript.turns, count, None)
                _become(session, transcript.session)

    def _raw(self, size: int | None) -> bytes | None:
        if size is None:
            return None
        data = bytearray()
        while len(data) < size:
            kind, piece = self._frame()
            if kind is not FrameKind.RAW:
                raise WorkerLost("bytes of a session are missing")
            data += piece
        return bytes(data)

    def _frame(self) -> tuple[FrameKind, bytes]:
        if self._is_over:
            raise WorkerLost("there is nothing left of a source")
        self._between(not self._worker.is_readable)
        try:
            kind, data = self._worker.frame()
        except WorkerLost:
            self._is_over = True
            raise
        self._is_over = kind in ENDS
        return kind, data


def _checked(data: bytes, kind: type[Any]) -> Any:
    record = unpack(data)
    if type(record) is not kind:
        raise WorkerLost(f"{type(record).__name__} came in place of {kind.__name__}")
    return record


def _turns_in(data: bytes) -> list[NativeTurn]:
    turns = _checked(data, list)
    if any(type(turn) is not NativeTurn for turn in turns):
        raise WorkerLost("something came among turns")
    for turn in turns:
        if turn.prepared is not None:
            turn.load_items = partial(_checked, turn.prepared.items, tuple)
    return list(turns)


def _fill(report: Report, end: ReadingEnd) -> None:
    """Raises what the reading ended with, too."""
    report.found += end.found
    report.mapped.update(end.mapped)
    report.kept.update(end.kept)
    report.unknown.update(end.unknown)
    report.damaged += end.damaged
    report.problems += end.problems
    report.open_tail |= end.open_tail
    if end.reason:
        raise ImporterFailed(end.reason) if end.is_importers_fault else OSError(end.reason)


def _become(session: NativeSession, other: NativeSession) -> None:
    for name in NativeSession.__struct_fields__:
        setattr(session, name, getattr(other, name))


def _walked(transcripts: Iterator[Transcript]) -> Iterator[Transcript]:
    """Each walked to its end before the next one comes, as an importer expects."""
    for transcript in transcripts:
        turns = iter(transcript.turns)
        yield Transcript(session=transcript.session, turns=turns, raw=transcript.raw, until=transcript.until)
        for _ in turns:
            pass
