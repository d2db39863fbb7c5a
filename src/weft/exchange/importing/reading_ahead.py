"""An import in two processes, where the machine has a core for each.

The worker reads sources, maps them to turns and prepares these; the writer takes them in order.
Orders go one way, frames the other, each over a pipe. The records of frames are pickled; whoever
reads them makes objects of the classes below and of nothing else. Where the worker is gone, the
writer goes on alone.
"""

from __future__ import annotations

import fcntl
import io
import os
import pickle
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import IntEnum
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from shutil import rmtree
from tempfile import TemporaryFile, mkdtemp
from typing import IO, Any, BinaryIO, NoReturn

import msgspec
from msgspec import UNSET, Struct

from weft.exchange.importers.foreign_values import SOURCE_LIMITS
from weft.exchange.importers.port import Importer, Problem, Report, Source, Transcript, load_importers
from weft.exchange.importing.sources import Archives, SourceCandidate, bytes_digest, digests, file_state
from weft.kernel.clock import Clock, SystemClock
from weft.kernel.contents import ImportSecret, PreparedContent, text_bytes
from weft.kernel.enums import (
    AgentRole,
    FileKind,
    InterruptionReason,
    LinkReason,
    LintSeverity,
    MessageRole,
    MessageSource,
    RunReason,
    ToolCallStatus,
)
from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import ReadBudget
from weft.ledger.imports import PreparedTranscript, RawBytes, RawFile, TextWords, prepare_session
from weft.ledger.imports.imported_turns import (
    EncodedEvents,
    JsonContent,
    NativeCall,
    NativeCompaction,
    NativeInterruption,
    NativeLink,
    NativeMessage,
    NativeRequest,
    NativeSession,
    NativeTurn,
    PackedStretch,
    PreparedTurn,
    Tokens,
    TurnDraft,
)
from weft.ledger.model import FileNote, ImagePart, LintNote, ReasoningPart, TextPart, ToolResultPart, ToolUsePart

# --- How many cores this process may use: by its affinity, and by what its control groups allow it of the machine.

GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def usable_cores(groups: Path = GROUPS, own_groups: Path = OWN_GROUPS) -> float:
    """The machine's, where nothing says that it is fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(cores), *_quotas(groups, own_groups)])


def _quotas(groups: Path, own_groups: Path) -> Iterator[float]:
    """What each control group that the process is in allows, in cores."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:  # not Linux, or hidden
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # the second version of control groups
            own_group = groups / path.lstrip("/")
            yield from (
                _quota(place / "cpu.max") for place in (own_group, *own_group.parents) if place.is_relative_to(groups)
            )


def _quota(file: Path) -> float:
    try:
        most, period = file.read_text().split()
        return float("inf") if most == "max" else int(most) / int(period)
    except (OSError, ValueError):  # the group has no such limit
        return float("inf")


# --- What passes between the writer of an import and its worker: orders one way, frames the other, each over a pipe.

CHUNK_BYTES = 256 * 1024
"""Of records: so many turns go in one frame."""
QUEUE_BYTES = 4 * 1024 * 1024
"""Of frames that wait for the writer; the worker waits while there are more."""
PIPE_BYTES = 1024 * 1024
"""Of frames that are on their way in the pipe itself, where the system lets one have so many."""
FRAME_BYTES = 1 << 31
_HEADER = struct.Struct(">BQ")


class FrameKind(IntEnum):
    """In the order in which they come; those of a session come for each session of a source."""

    OPENED = 1
    """`OpenedSource`: size and digest of the bytes that are read, and the state of their file."""
    SESSION = 2
    """`SessionBegin`: a session as it is known before its turns are read."""
    RAW = 3
    """A piece of an importer's own copy of the session, as it is."""
    TURNS = 4
    """A list of `NativeTurn`."""
    SESSION_END = 5
    """`NativeSession`: what the session is after its turns."""
    DONE = 6
    """`ReadingEnd`: the report of the source."""
    FAILED = 7
    """`ReadingEnd` with the reason: nothing more of this source comes."""


ENDS = (FrameKind.DONE, FrameKind.FAILED)


class WorkerLost(Exception):
    """The worker ended, or what it said cannot be understood."""


class ReadOrder(Struct, frozen=True):
    """A source that is to be read."""

    importer: str
    secret: bytes
    """The ledger's import secret."""
    path: bytes
    size: int
    stamp: int
    member: bytes | None
    now: float
    """When it is read, in Unix seconds, by the writer's clock."""


class OpenedSource(Struct, frozen=True):
    """What the worker read: the writer compares it with what it finds itself."""

    size: int
    digest: bytes
    state: tuple[int, ...] | None
    """Of the file, before it was read, as `file_state` tells it."""


class SessionBegin(Struct, frozen=True):
    """A session that an import's worker begins to hand over."""

    session: NativeSession
    until: int | None
    raw_bytes: int | None
    """So many bytes of an importer's own copy follow."""


class ReadingEnd(Struct, frozen=True):
    """The report of a source, and why reading it ended early."""

    found: int
    mapped: dict[str, int]
    kept: dict[str, int]
    unknown: dict[str, int]
    damaged: int
    problems: list[Problem]
    open_tail: bool
    reason: str = ""
    is_importers_fault: bool = False
    """Rather than that of the source, or of the machine."""


_CLASSES: tuple[Any, ...] = (
    AgentRole, EncodedEvents, FileKind, FileNote, ImagePart, JsonContent, LinkReason, LintNote, LintSeverity,
    MessageRole, MessageSource, NativeCall, NativeCompaction, NativeLink, NativeMessage, NativeSession, NativeTurn,
    OpenedSource, PackedStretch, PreparedContent, PreparedTurn, Problem, ReadingEnd, ReasoningPart, SessionBegin,
    InterruptionReason, NativeInterruption, NativeRequest, RunReason, TextPart, TextWords, Tokens, ToolCallStatus,
    ToolResultPart, ToolUsePart, TurnDraft,
)  # fmt: skip
_MAKE_STRUCT = Tokens().__reduce__()[0]
"""With which msgspec makes a record of its fields again."""
_MADE = {(made.__module__, made.__qualname__): made for made in (*_CLASSES, _MAKE_STRUCT)}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name == "UNSET":
            return UNSET
        try:
            return _MADE[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not handed over") from None


def pack(record: Any) -> bytes:
    return pickle.dumps(record, pickle.HIGHEST_PROTOCOL)


def unpack(data: bytes) -> Any:
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:  # whatever bytes do to a reader of pickles
        raise WorkerLost(f"a frame cannot be read: {type(error).__name__}: {error}") from error


def send_order(pipe: IO[bytes], order: ReadOrder) -> None:
    data = msgspec.msgpack.encode(order)
    _write(pipe.fileno(), len(data).to_bytes(4, "big") + data)


def receive_order(pipe: IO[bytes]) -> ReadOrder | None:
    """None where there will be no more, also where the writer ended in the middle of one."""
    head = pipe.read(4)
    size = int.from_bytes(head, "big")
    data = pipe.read(size)
    return msgspec.msgpack.decode(data, type=ReadOrder) if len(head) == 4 and len(data) == size else None


def receive_frame(pipe: IO[bytes]) -> tuple[FrameKind, bytes]:
    try:
        head = _read(pipe, _HEADER.size)
        if len(head) < _HEADER.size:
            raise WorkerLost("its pipe is closed")
        kind, size = _HEADER.unpack(head)
        data = _read(pipe, size) if size <= FRAME_BYTES else b""
        if len(data) != size:
            raise WorkerLost("a frame is cut")
        return FrameKind(kind), data
    except (OSError, ValueError) as error:
        raise WorkerLost(str(error)) from error


def _read(pipe: IO[bytes], size: int) -> bytes:
    """So many bytes of a pipe without a buffer; fewer where it ends."""
    chunks: list[bytes] = []
    while size and (chunk := pipe.read(size)):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _write(descriptor: int, data: bytes) -> None:
    """All of it: a signal may cut a write to a pipe short."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


class FrameQueue:
    """Frames on their way to the writer, which another thread sends. Whoever puts more than there is room for waits."""

    def __init__(self, descriptor: int, on_closed: Callable[[], None]) -> None:
        self._descriptor, self._on_closed = descriptor, on_closed
        self._frames: deque[tuple[bytes, bytes]] = deque()
        self._size = 0
        self._changed = threading.Condition()
        with suppress(OSError, AttributeError):  # the system has no such pipes, or no more memory for them
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        threading.Thread(target=self._send, daemon=True).start()

    @property
    def has_unread_frames(self) -> bool:
        """Whether frames wait, here or in the pipe: the writer is behind."""
        if self._size:
            return True
        try:
            unread = fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4))
        except OSError:  # it is no pipe, or its end is gone, which whoever sends next is told
            return False
        return any(unread)

    def put(self, kind: FrameKind, data: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._size or self._size + len(data) <= QUEUE_BYTES)
            self._frames.append((_HEADER.pack(kind, len(data)), data))
            self._size += len(data)
            self._changed.notify_all()

    def _send(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._frames)
                    frame = self._frames.popleft()
                for data in frame:
                    _write(self._descriptor, data)
                with self._changed:
                    self._size -= len(frame[1])
                    self._changed.notify_all()
        except OSError:  # the writer is gone, or wants no more
            self._on_closed()


# --- The worker of an import: a process that reads sources, maps them to turns and prepares these for the writer.

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
        candidate = SourceCandidate(path, order.size, order.stamp, member, archives=self._archives if member else None)
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

    def _read(self, order: ReadOrder, candidate: SourceCandidate, report: Report) -> None:
        importer = self._importer(order.importer)
        secret = ImportSecret(order.secret, importer.origin)
        with candidate.open(order.now, report.budget) as source:
            state = file_state(source, candidate)
            file_digest, _ = digests(source.path, source.size, 0)
            opened = OpenedSource(source.size, bytes_digest(source, candidate, file_digest), state)
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
        session_begin = SessionBegin(prepare_session(session), transcript.until, None if raw is None else len(raw))
        self._frames.put(FrameKind.SESSION, pack(session_begin))
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
        turn_batch: list[NativeTurn] = []
        size = 0
        for turn in turns:
            if turn.prepared is not None:
                turn.prepared.items, turn.items = pack(turn.items), ()
                size += turn.prepared.size
            turn_batch.append(turn)
            if size >= CHUNK_BYTES:
                self._frames.put(FrameKind.TURNS, pack(turn_batch))
                turn_batch, size = [], 0
        if turn_batch:
            self._frames.put(FrameKind.TURNS, pack(turn_batch))


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


# --- The writer's side of an import in two processes: a worker reads the next sources while this one is written.

AHEAD_SOURCES = 32
"""So many are ordered before they are needed: small ones must not keep the worker from working ahead."""
LEAVING_SECONDS = 5.0
LAST_WORDS_BYTES = 2000
"""So much of the end of what a worker wrote to its standard error is looked at."""
_BEGIN = (
    "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); sys.path[:] = {path!r};"
    " from weft.exchange.importing.reading_ahead import main; main({folder!r})"
)
"""It can be ended only once it can clear away."""
_ISOLATED = ("-I", "-X", f"utf8={sys.flags.utf8_mode}")
"""Nothing of the environment runs in the worker, or is looked for there, that does not run here; names of files are
read as they are here."""


class ImporterFailed(Exception):
    """An importer failed in the worker; says what it raised there."""


class WantedSource(Struct, frozen=True):
    """A source that the worker can read, and by which importer."""

    candidate: SourceCandidate
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

    def abort(self, loss: WorkerLost) -> None:
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
            self.abort(loss)
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

    def take_worker(self) -> WorkerProcess | None:
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
        self._worker = (self._early or EarlyWorker()).take_worker()  # without one all is read here
        self._order_more()
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None and (why := self._worker.close()) is not None:
            self._on_lost(why)

    @property
    def worker_pid(self) -> int | None:
        return None if self._worker is None else self._worker.pid

    def take_source(self, candidate: object) -> SourceAhead | None:
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
            source = next(self._sources, None)
            if source is None:
                return
            candidate, now = source.candidate, self._clock.now_ms()
            member = None if candidate.member is None else text_bytes(candidate.member)
            place = (os.fsencode(candidate.path), candidate.size, candidate.stamp, member)
            self._ordered.append(SourceAhead(candidate, now, self._worker, self._between))
            with suppress(WorkerLost):  # told again by whoever asks for its frames
                self._worker.order(ReadOrder(source.importer, source.secret, *place, now / 1000))


class SourceAhead:
    """One source as the worker reads it, told in the order in which it is read."""

    def __init__(
        self, candidate: SourceCandidate, ordered_ms: int, worker: WorkerProcess, between: Callable[[bool], None]
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
        earlier_sessions = 0
        while self._here is None:
            try:
                kind, data = self._frame()
                if kind in ENDS:
                    _fill(report, _checked(data, ReadingEnd))
                    return
                session_begin = _checked(data, SessionBegin)
                raw = self._raw(session_begin.raw_bytes)
            except WorkerLost as loss:
                self._worker.abort(loss)
                self._here = islice(_walked(importer.read(source, report)), earlier_sessions, None)
                break
            turns = self._turns(session_begin.session, earlier_sessions, importer, source, report)
            yield Transcript(session=session_begin.session, turns=turns, raw=raw, until=session_begin.until)
            for _ in turns:
                pass
            earlier_sessions += 1
        yield from self._here

    def _turns(
        self, session: NativeSession, earlier_sessions: int, importer: Importer, source: Source, report: Report
    ) -> Iterator[NativeTurn]:
        """Of the session after so many others, which is completed at its end."""
        count = 0
        try:
            while True:
                kind, data = self._frame()
                if kind is FrameKind.FAILED:
                    _fill(report, _checked(data, ReadingEnd))
                if kind is FrameKind.SESSION_END:
                    _copy_fields(session, _checked(data, NativeSession))
                    return
                for turn in _turns_in(data):
                    count += 1
                    yield turn
        except WorkerLost as loss:
            self._worker.abort(loss)
            self._here = _walked(importer.read(source, report))
            for transcript in islice(self._here, earlier_sessions, earlier_sessions + 1):
                yield from islice(transcript.turns, count, None)
                _copy_fields(session, transcript.session)

    def _raw(self, size: int | None) -> bytes | None:
        if size is None:
            return None
        data = bytearray()
        while len(data) < size:
            kind, chunk = self._frame()
            if kind is not FrameKind.RAW:
                raise WorkerLost("bytes of a session are missing")
            data += chunk
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


def _copy_fields(session: NativeSession, completed: NativeSession) -> None:
    for name in NativeSession.__struct_fields__:
        setattr(session, name, getattr(completed, name))


def _walked(transcripts: Iterator[Transcript]) -> Iterator[Transcript]:
    """Each walked to its end before the next one comes, as an importer expects."""
    for transcript in transcripts:
        turns = iter(transcript.turns)
        yield Transcript(session=transcript.session, turns=turns, raw=transcript.raw, until=transcript.until)
        for _ in turns:
            pass
