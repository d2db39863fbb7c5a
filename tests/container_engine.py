"""A container engine of the tests' own: Podman, started when it is first needed, one for each process that runs tests.

It runs in namespaces of its own, as root, with all that it stores in one folder: when it is ended, its containers, its
mounts and its processes are gone with it, and no engine of the machine has seen anything of it. Its one image holds a
static busybox. WEFT_TEST_ENGINE names another engine to run the tests with, by its address.
"""

from __future__ import annotations

import atexit
import io
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from functools import cache
from pathlib import Path

from weft.kernel.errors import EngineUnreachable
from weft.runtime.resources.docker.engine import ContainerEngine

PREFIX = "weft-engine-"
IDLE_SECONDS, START_SECONDS = 1800, 120
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

    def __init__(self) -> None:
        if missing := [name for name in NEEDED if shutil.which(name) is None]:
            raise EngineMissing(f"not installed here: {', '.join(missing)}")
        if b"/ld-linux" in busybox_program().read_bytes()[:4096]:
            raise EngineMissing("busybox is not a static one here (Debian: busybox-static)")
        if os.geteuid() != 0:
            raise EngineMissing("the tests' own container engine runs as root only")
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self.address = f"unix://{self.folder}/engine.sock"
        self._process = self._start()
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        for name in ("cache", "root", "run", "tmp"):
            (self.folder / name).mkdir()
        (self.folder / "containers.conf").write_text(SETTINGS)
        podman = (
            f"exec 2>{self.folder}/log; mkdir -p /var/lib/containers"
            f" && mount --bind {self.folder}/cache /var/lib/containers"
            f" && podman --root {self.folder}/root --runroot {self.folder}/run --tmpdir {self.folder}/tmp"
            f" system service --time {IDLE_SECONDS} {self.address}; exit $?"
        )
        return subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "sh", "-c", podman],
            env={"PATH": os.environ["PATH"], "CONTAINERS_CONF": str(self.folder / "containers.conf"), "HOME": "/root"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        with ContainerEngine(self.address) as engine:
            while True:
                try:
                    engine.ping()
                except EngineUnreachable:
                    if self._process.poll() is not None or time.monotonic() > end:
                        said = (self.folder / "log").read_text() if (self.folder / "log").exists() else ""
                        raise EngineMissing(f"podman does not start here: {said[-300:]}") from None
                    time.sleep(0.02)
                else:
                    return

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        _remove_groups()


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
    engine = TestEngine()
    atexit.register(engine.stop)
    return engine.address


@cache
def image_of(address: str) -> str:
    """The id of the engine's image with busybox."""
    with ContainerEngine(address) as engine:
        answer = engine.call(
            "POST",
            "/images/create",
            asked="import busybox",
            query={"fromSrc": "-", "repo": "weft.test/busybox"},
            data=[busybox_image()],
        )
    return str(answer["status"])
