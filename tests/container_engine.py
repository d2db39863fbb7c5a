"""A container engine of the tests' own: Podman, started when it is first needed, one for each process that runs tests.

It runs in namespaces of its own, as root, with all that it stores in one folder: when it is ended, its containers, its
mounts and its processes are gone with it, and no engine of the machine has seen anything of it. Its one image holds a
static busybox. WEFT_TEST_ENGINE names another engine to run the tests with, by its address.
"""

from __future__ import annotations

import atexit
import fcntl
import io
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from weft.kernel.errors import EngineObjectMissing, EngineUnreachable
from weft.runtime.resources.container_engine import ContainerEngine, EngineSubject, image_path

PREFIX = "weft-engine-"
IMAGE = "weft.test/busybox"
PLACE = Path(tempfile.gettempdir())
"""Chosen when tests are collected, as a test may set another place. Podman takes folders of at most 50 letters."""
IDLE_SECONDS, START_SECONDS, STARTS = 7200, 120, 3
NEEDED = ("podman", "runc", "busybox", "unshare", "mount")
APPLETS = "sh cat ls echo sleep mkdir chown tar true env id dd touch rm yes printf".split()
SETTINGS = """\
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "runc"
"""


class EngineMissing(Exception):
    """Why no engine can be had here."""


class TestEngine:
    """Podman with a folder of its own, and the address under which it is reached."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"unix://{folder}/engine.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def answers(self) -> bool:
        with ContainerEngine(self.address) as engine:
            try:
                engine.ping()
            except EngineUnreachable:
                return False
        return True

    def start(self) -> None:
        """Start it in an empty folder; raises EngineMissing with what it said."""
        for name in ("cache", "root", "run", "tmp"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "containers.conf").write_text(SETTINGS)
        podman = (
            f"exec 2>{self.folder}/log; mkdir -p /var/lib/containers"
            f" && mount --bind {self.folder}/cache /var/lib/containers"
            f" && podman --root {self.folder}/root --runroot {self.folder}/run --tmpdir {self.folder}/tmp"
            f" system service --time {IDLE_SECONDS} {self.address}; exit $?"
        )
        process = self._process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "sh", "-c", podman],
            env={"PATH": os.environ["PATH"], "CONTAINERS_CONF": str(self.folder / "containers.conf"), "HOME": "/root"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        (self.folder / "pid").write_text(f"{process.pid} {started_at(process.pid)}")
        end = time.monotonic() + START_SECONDS
        while not self.answers():
            if process.poll() is not None or time.monotonic() > end:
                said = (self.folder / "log").read_text() if (self.folder / "log").exists() else ""
                state = "ended" if process.poll() is not None else f"did not answer for {START_SECONDS} seconds"
                self.stop()
                raise EngineMissing(f"podman {state}: {said[-300:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it, if it is still the process that was started here, and remove all that it stored."""
        noted = self.folder / "pid"
        pid, _, began = noted.read_text().partition(" ") if noted.exists() else ("", "", "")
        if pid and began and started_at(int(pid)) == began:
            os.killpg(int(pid), signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        _remove_groups()


def started_at(pid: int) -> str:
    """When a process began, as the system counts; empty: there is none, or nothing is left of it but its name."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone with a file. It stays there: whoever waits for it holds it by its name."""
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def ensure_installed() -> None:
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        raise EngineMissing(f"not installed here: {', '.join(missing)}")
    if b"/ld-linux" in busybox_program().read_bytes()[:4096]:
        raise EngineMissing("busybox is not a static one here (Debian: busybox-static)")
    if os.geteuid() != 0:
        raise EngineMissing("the tests' own container engine runs as root only")


def remove_left() -> None:
    """The engines of processes that were killed: they go on until they are idle for long."""
    for folder in PLACE.glob(f"{PREFIX}*-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not started_at(int(owner)):
            TestEngine(folder).stop()


def start_engine() -> TestEngine:
    """An engine for this process: one process after the other starts its own, and tries again if it did not start."""
    ensure_installed()
    with locked(PLACE / f"{PREFIX}start"):
        remove_left()
        for attempt in range(1, STARTS + 1):
            engine = TestEngine(PLACE / f"{PREFIX}{os.getpid()}-{attempt}")
            try:
                engine.start()
            except EngineMissing:
                if attempt == STARTS:
                    raise
            else:
                return engine
    raise AssertionError("the last attempt returns or raises")


def _remove_groups() -> None:
    """Control groups that are empty now; those that somebody uses stay."""
    for parent in Path("/sys/fs/cgroup").glob("*/libpod_parent"):
        for group in (*sorted(parent.glob("*/")), parent):
            try:
                group.rmdir()
            except OSError:
                continue


def busybox_program() -> Path:
    return Path(os.path.realpath(str(shutil.which("busybox"))))


def busybox_image() -> bytes:
    """The files of an image: a static busybox under several names."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for folder in ("bin", "data", "dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        archive.add(busybox_program(), "bin/busybox")
        for name in APPLETS:
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
    return target.getvalue()


@cache
def engine_address() -> str:
    """The address of the engine that this process tests with; raises EngineMissing."""
    if address := os.environ.get("WEFT_TEST_ENGINE"):
        return address
    engine = start_engine()
    atexit.register(engine.stop)
    return engine.address


@cache
def image_of(address: str) -> str:
    """The id of the engine's image with busybox. Made once in an engine, also where several processes ask for it: an
    image that is made again takes the name from the one that other tests go on with."""
    with ContainerEngine(address) as engine:
        try:
            found = engine.call(
                "GET", image_path(IMAGE) + "/json", asked="look for busybox", about=EngineSubject("image", IMAGE)
            )
        except EngineObjectMissing:
            query = {"fromSrc": "-", "repo": IMAGE}
            data = [busybox_image()]
            made = engine.call("POST", "/images/create", asked="import busybox", query=query, data=data)
            return str(made["status"])
    return str(found["Id"])
