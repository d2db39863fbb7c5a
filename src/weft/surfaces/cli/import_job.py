"""An import in the background: one for each ledger, with a lock, a log and a note of how far it is beside it.

The lock tells whether it runs, whatever became of the process; the note tells the rest. It is written aside and
renamed, so a reader finds the old one or the new one. A job that was killed leaves a note that says it runs and a lock
that nobody holds: it is told as killed, and is simply started again.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.clock import Clock, SystemClock
from weft.kernel.errors import NotApplicable
from weft.store.private_files import aside_of, make_folder, open_aside, open_to_append
from weft.surfaces.cli.user_files import beside_ledger
from weft.surfaces.wire.exchange import ImportStatus

STOP_SECONDS, TRY_SECONDS = 60.0, 0.05
TRIES = 20
READY = b"ready\n"


class Order(Struct, frozen=True, kw_only=True):
    """What a job is to do."""

    ledger: str
    paths: list[str]
    """None at all: the usual places."""
    only: str | None = None
    since: int | None = None
    remap: bool = False
    watch: bool = False
    folders: list[str] = []
    """With `watch`: those that are kept when turns end."""
    processes: int | None = None


class ImportJob:
    """The files of one ledger's job."""

    def __init__(self, ledger: str) -> None:
        self.ledger = ledger
        stem = beside_ledger(ledger)
        self._lock, self._note, self.log = (Path(f"{stem}-import.{kind}") for kind in ("lock", "json", "log"))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only one at a time: the lock goes with the process."""
        make_folder(self._lock.parent)
        with open_to_append(self._lock) as file:
            if not self._take(file.fileno()):
                raise NotApplicable("an import of this ledger is going on already", "`weft import --status` tells more")
            yield

    def _take(self, file: int) -> bool:
        """Somebody who only looks may have it for a moment."""
        clock = SystemClock()
        for _ in range(TRIES):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            clock.sleep(TRY_SECONDS)
        return False

    def is_held(self) -> bool:
        try:
            with self._lock.open("rb") as file:
                fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def status(self) -> ImportStatus | None:
        """None: there has never been one."""
        alive = self.is_held()  # asked first: a job that ends in between has written its end by then
        try:
            status = msgspec.json.decode(self._note.read_bytes(), type=ImportStatus)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return replace(status, state="killed") if status.is_alive and not alive else status

    def write_status(self, status: ImportStatus) -> None:
        aside = aside_of(self._note)
        with open_aside(aside) as file:
            file.write(msgspec.json.encode(status))
        os.replace(aside, self._note)

    def forget(self) -> None:
        """What was erased may stand in the log, as the name of a source or in what was wrong with it, and in how an
        import failed. Both can be done without; whoever writes to the log goes on at its end."""
        with suppress(FileNotFoundError):
            os.truncate(self.log, 0)
        status = self.status()
        if status is not None and status.error is not None:
            self.write_status(replace(status, error="not kept: something was erased since"))

    def stop(self, clock: Clock) -> ImportStatus | None:
        """Ask it to end, and wait until it has."""
        status = self.status()
        if status is None or not status.is_alive:
            return None
        with suppress(ProcessLookupError):
            os.kill(status.pid, signal.SIGTERM)
        until = clock.monotonic() + STOP_SECONDS
        while self.is_held():
            if clock.monotonic() > until:
                raise NotApplicable(f"process {status.pid} does not end", "look at its log, or end it yourself")
            clock.sleep(TRY_SECONDS)
        return self.status()


def start(order: Order) -> ImportStatus:
    """A process of its own, which goes on when this one and its terminal end. Returns once it holds the lock."""
    job = ImportJob(order.ledger)
    make_folder(job.log.parent)
    (ordered, orders), (answer_end, answer_writer) = os.pipe(), os.pipe()
    with open_to_append(job.log) as log, open(answer_end, "rb") as answer, open(orders, "wb") as asking:
        try:
            os.set_inheritable(answer_writer, True)
            _spawn(ordered, answer_writer, log.fileno())
        finally:
            os.close(ordered)
            os.close(answer_writer)
        asking.write(msgspec.json.encode(order))  # not as an argument, which others can see: it may hold a password
        asking.close()
        first_word = answer.read()
    if first_word != READY:
        raise NotApplicable(first_word.decode(errors="replace").strip() or "it did not start", f"its log is {job.log}")
    status = job.status()
    assert status is not None  # it told so before it said that it is ready
    return status


def _spawn(ordered: int, answer_writer: int, log: int) -> None:
    """Nobody waits for it: it leaves this session by itself, and its note says how it ended."""
    command = [sys.executable, "-m", "weft.surfaces.cli.import_work", str(answer_writer)]
    streams = [
        (os.POSIX_SPAWN_DUP2, ordered, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    os.posix_spawn(sys.executable, command, os.environ, file_actions=streams)
