"""No key leaves a mark: every key that tests put into a credential's place holds `MARK`, and no file, log, captured
output or process list may hold it afterwards. A plugin: what is found fails the test that it was found after.

Files are those below a test's `tmp_path`, read when its fixtures are gone, and removed then where the test passed.
Processes are those that the tests started, looked at several times a second. What a test throws away itself before it
ends is not seen.
"""

from __future__ import annotations

import mmap
import os
import shutil
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

MARK = os.environ.get("WEFT_TEST_MARK", "sk-canary").encode()
SECONDS = 0.25


def marked_files(folder: Path) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if MARK in os.fsencode(name) or (not os.path.islink(path) and _holds(path)):
                yield f"file {os.path.relpath(path, folder)}"


def _holds(path: str) -> bool:
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not os.path.isfile(path) or not os.fstat(file.fileno()).st_size:
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as seen:
                return seen.find(MARK) >= 0
    except OSError:  # gone meanwhile, a pipe, or closed to everybody
        return False


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


class ProcessWatch(threading.Thread):
    """Looks at what the processes that were started from here are called."""

    def __init__(self) -> None:
        super().__init__(name="process watch", daemon=True)
        self.found: set[str] = set()

    def run(self) -> None:
        pause = threading.Event()
        while not pause.wait(SECONDS):
            self.look()

    def look(self) -> None:
        if any(MARK in _read(f"/proc/{pid}/cmdline") for pid in _descendants(str(os.getpid()))):
            self.found.add("a process list")


def _descendants(pid: str) -> Iterator[str]:
    """Read off the process tree: to look at every process of a machine several times a second takes more than many a
    test."""
    for task in _names(f"/proc/{pid}/task"):
        for child in _read(f"/proc/{pid}/task/{task}/children").decode().split():
            yield child
            yield from _descendants(child)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # the process has ended, or this system has no such tree
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it has ended, or is somebody else's
        return b""


WATCH = ProcessWatch()
HAS_FAILED = pytest.StashKey[bool]()


def pytest_runtest_setup() -> None:
    if WATCH.ident is None:
        WATCH.start()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: Any) -> Generator[None, Any, Any]:
    folder = item.funcargs.get("tmp_path") if hasattr(item, "funcargs") else None
    result = yield
    found = list(marked_files(folder)) if folder is not None else []
    found += WATCH.found
    WATCH.found.clear()
    if found:
        pytest.fail(f"a key was left in {', '.join(found)}", pytrace=False)
    if folder is not None and not item.stash.get(HAS_FAILED, False):
        shutil.rmtree(folder, ignore_errors=True)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    shown = [name for name, text in report.sections if MARK.decode() in text]
    if shown and report.passed:
        report.outcome = "failed"
        report.longrepr = f"a key was left in {', '.join(shown)}"
    item.stash[HAS_FAILED] = item.stash.get(HAS_FAILED, False) or report.failed
    return report
