"""The worker of an import: a process that reads sources, maps them to turns and prepares these for the writer.

It reads orders from its standard input and answers on its standard output, in the forms of `handover`. It never sees
the ledger. It ends when one of the pipes is closed, so a writer that is gone, however it ended, leaves nothing running.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, NoReturn

from weft.exchange.importers.archives import Archives
from weft.exchange.importers.limits import SOURCE_LIMITS
from weft.exchange.importers.port import Importer, Report, Transcript, load_importers
from weft.exchange.importers.sources import Candidate
from weft.exchange.importing.fingerprints import bytes_digest, digests, file_state
from weft.exchange.importing.handover import (
    CHUNK_BYTES,
    FrameKind,
    FrameQueue,
    OpenedSource,
    ReadingEnd,
    ReadOrder,
    SessionBegin,
    pack,
    receive_order,
)
from weft.kernel.clock import SystemClock
from weft.kernel.contents import ImportSecret
from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import ReadBudget
from weft.ledger.imports import PreparedTranscript, RawBytes, RawFile, prepare_session
from weft.ledger.imports.imported_turns import NativeTurn

RAW_BYTES = 1024 * 1024
UNPACKED = "unpacked"
SPARE_DESCRIPTORS = 8
"""So many are kept for the clearing away."""


class ReadingWorker:
    """Reads one source after the other."""

    def __init__(self, frames: FrameQueue) -> None:
        self._frames, self._clock = frames, SystemClock()
        self._archives = Archives()
        self._importers: dict[str, Importer] = {}

    def read(self, order: ReadOrder) -> None:
        """All of a source; what goes wrong with it is told, as an import in one process would tell it."""
        member = None if order.member is None else order.member.decode("utf-8", "surrogatepass")
        path = Path(os.fsdecode(order.path))
        candidate = Candidate(path, order.size, order.stamp, member, archives=self._archives if member else None)
        report = Report(candidate.name, budget=ReadBudget(SOURCE_LIMITS, self._clock.monotonic))
        reason, is_importers_fault = "", False
        try:
            self._read(order, candidate, report)
        except OSError as error:
            reason = error.strerror or str(error)
        except LimitExceeded as error:
            reason = f"{error}; {error.hint}"
        except Exception as error:  # whatever an importer makes of a source, the others go on
            reason, is_importers_fault = f"{type(error).__name__}: {error}", True
        ended = ReadingEnd(
            report.found,
            _by_text(report.mapped),
            _by_text(report.kept),
            _by_text(report.unknown),
            report.damaged,
            report.problems,
            report.open_tail,
            reason,
            is_importers_fault,
        )
        self._frames.put(FrameKind.FAILED if reason else FrameKind.DONE, pack(ended))

    def _read(self, order: ReadOrder, candidate: Candidate, report: Report) -> None:
        importer = self._importer(order.importer)
        secret = ImportSecret(order.secret, importer.origin)
        with candidate.open(order.now, report.budget) as source:
            state = file_state(source, candidate)
            own, _ = digests(source.path, source.size, 0)
            opened = OpenedSource(source.size, bytes_digest(source, candidate, own), state)
            self._frames.put(FrameKind.OPENED, pack(opened))
            file, mapping = RawFile(source.path, 0, source.size), f"{importer.origin}/{importer.mapping}"
            for transcript in importer.read(source, report):
                file.end = source.size if transcript.until is None else transcript.until
                raw = file if transcript.raw is None else RawBytes(transcript.raw)
                session, turns, ahead = transcript.session, iter(transcript.turns), self._is_ahead
                prepared = PreparedTranscript(session, turns, source.name, raw, secret, mapping, ahead)
                self._hand_over(transcript, prepared)

    def _is_ahead(self) -> bool:
        """Has the writer enough to do?"""
        return self._frames.has_unread_frames

    def _importer(self, name: str) -> Importer:
        if name not in self._importers:
            self._importers[name] = load_importers(name)[0]
        return self._importers[name]

    def _hand_over(self, transcript: Transcript, prepared: PreparedTranscript) -> None:
        """The session as it is known before its turns are walked, these, and what it is after them."""
        session, raw = transcript.session, transcript.raw
        begin = SessionBegin(prepare_session(session), transcript.until, None if raw is None else len(raw))
        self._frames.put(FrameKind.SESSION, pack(begin))
        for start in range(0, len(raw or b""), RAW_BYTES):
            self._frames.put(FrameKind.RAW, (raw or b"")[start : start + RAW_BYTES])
        try:
            for batch in prepared.batches():
                self._send(batch)
        except Exception:  # those before one that failed
            self._send(prepared.left)
            raise
        self._send(prepared.left)
        self._frames.put(FrameKind.SESSION_END, pack(prepare_session(session)))

    def _send(self, turns: list[NativeTurn]) -> None:
        some: list[NativeTurn] = []
        size = 0
        for turn in turns:
            if turn.prepared is not None:
                turn.prepared.items, turn.items = pack(turn.items), ()
                size += turn.prepared.size
            some.append(turn)
            if size >= CHUNK_BYTES:
                self._frames.put(FrameKind.TURNS, pack(some))
                some, size = [], 0
        if some:
            self._frames.put(FrameKind.TURNS, pack(some))


def _by_text(counts: Mapping[str, int]) -> dict[str, int]:
    """An importer may count by members of an enumeration of its own, which the writer does not know."""
    return {str(kind): count for kind, count in counts.items()}


class WorkerEnd:
    """The end of this process, which any thread may bring about, whatever the others do or wait for.

    No exception is raised in the main thread: what a signal raises there is not noticed by a wait that begins at that
    moment, and is lost where an object is just being finalised.
    """

    def __init__(self, folder: str, answers: int) -> None:
        self._folder, self._answers = folder, answers
        self._nowhere = os.open(os.devnull, os.O_WRONLY)
        self._spare = [os.dup(self._nowhere) for _ in range(SPARE_DESCRIPTORS)]
        self._begun = threading.Lock()

    def bring_about(self) -> NoReturn:
        """Once, by whoever comes first: the others wait, and end with it. What fails meanwhile is not told to the
        writer, as a source would be blamed for it."""
        with self._begun:
            try:
                os.dup2(self._nowhere, self._answers)
                for descriptor in self._spare:  # an importer may have used up all others
                    os.close(descriptor)
                with suppress(OSError):  # from here on nothing new can be unpacked
                    os.rename(os.path.join(self._folder, UNPACKED), os.path.join(self._folder, "ended"))
                shutil.rmtree(self._folder, ignore_errors=True)
            finally:
                os._exit(0)


def _receive_orders(pipe: BinaryIO, orders: SimpleQueue[ReadOrder], end: WorkerEnd) -> None:
    try:
        while (order := receive_order(pipe)) is not None:
            orders.put(order)
    except Exception:  # whatever makes an order unreadable, the writer is told by what stands in the errors
        traceback.print_exc()
    finally:
        end.bring_about()


def _await_signal(signals: int, end: WorkerEnd) -> None:
    os.read(signals, 1)
    end.bring_about()


def _ignore(number: int, frame: object) -> None:
    """What a signal does is done by the thread that reads of it."""


def _signal_pipe() -> int:
    """Where a thread can read that a signal came, whatever the main thread is at. Children have the usual handlers."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, _ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # one that came while this process began
    return reading


def main(folder: str) -> None:
    """What is unpacked goes into the folder, and the folder goes with this process."""
    tempfile.tempdir = os.path.join(folder, UNPACKED)
    try:
        os.mkdir(tempfile.tempdir)
        _read_all(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read_all(folder: str) -> None:
    answers = os.dup(1)
    end = WorkerEnd(folder, answers)
    os.dup2(2, 1)  # what an importer prints is no frame
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Ctrl-C the writer makes what is right
    signals = _signal_pipe()
    orders: SimpleQueue[ReadOrder] = SimpleQueue()
    pipe = open(os.dup(0), "rb")  # noqa: SIM115 - at its end the interpreter would wait for whoever reads `sys.stdin`
    threading.Thread(target=_await_signal, args=(signals, end), daemon=True).start()
    threading.Thread(target=_receive_orders, args=(pipe, orders, end), daemon=True).start()
    worker = ReadingWorker(FrameQueue(answers, end.bring_about))
    while True:
        worker.read(orders.get())
