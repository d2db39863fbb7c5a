"""Measures what runs in the sandbox: memory and number of its processes, and what it takes of the disk.

Everything in a sandbox descends from the first process of its process namespace, so measuring walks down from there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress

from weft.runtime.sandbox.leftovers import ChangedFiles, StartTime
from weft.runtime.sandbox.processes import MIB
from weft.runtime.sandbox.visible_files import SHARED_MEMORY_BYTES, TEMPORARY_BYTES

MEMORY_FIELDS = ("RssAnon", "RssShmem", "VmPTE", "VmSwap")
_EXACT_FIELDS = ("Pss_Anon", "Pss_Shmem", "SwapPss")
MAXIMUM_FILES = 100_000
"""So many files may a program make in its workspace, and in each of the folders that are held in memory."""
MEMORY_FOLDERS = {"/tmp": TEMPORARY_BYTES, "/dev/shm": SHARED_MEMORY_BYTES}
"""The folders in memory that every sandbox has, and their sizes."""
_FREE_SLACK_BYTES = MIB
_PAUSE_FACTOR = 10
"""After files were looked through, this many times as long passes before they are looked through again."""


class ProcessTree:
    """The processes of a sandbox, from the first one down."""

    def __init__(self, first: int, memory_folders: Mapping[str, int] | None = None) -> None:
        self._first, self._memory_folders = first, {**MEMORY_FOLDERS, **(memory_folders or {})}

    def members(self, enough: int) -> tuple[list[int], int]:
        """The processes, and how many threads they have together; no more are looked for when there are enough."""
        processes, threads, pending = [], 0, [self._first]
        while pending and threads <= enough:
            process = pending.pop()
            with suppress(OSError):  # it ended meanwhile
                for thread in os.listdir(f"/proc/{process}/task"):
                    threads += 1
                    pending += map(int, _read(f"/proc/{process}/task/{thread}/children").split())
                processes.append(process)
        return processes, threads

    def exceeds_memory(self, processes: list[int], limit: int) -> bool:
        """Whether they hold more together. Pages that forked processes share are told apart only when it matters."""
        if sum(_memory(f"/proc/{process}/status", MEMORY_FIELDS) for process in processes) <= limit:
            return False
        if len(processes) <= 2:  # the first one and a program: nothing of weight is shared
            return True
        return sum(_memory(f"/proc/{process}/smaps_rollup", _EXACT_FIELDS) for process in processes) > limit

    def deleted_bytes(self, processes: list[int], device: int) -> int:
        """What files of a device take that have no name any more and are held open."""
        blocks = {}
        for process in processes:
            with suppress(OSError):
                for descriptor in os.listdir(f"/proc/{process}/fd"):
                    with suppress(OSError):
                        status = os.stat(f"/proc/{process}/fd/{descriptor}")
                        if status.st_dev == device and status.st_nlink == 0:
                            blocks[status.st_ino] = status.st_blocks
        return 512 * sum(blocks.values())

    def is_set_up(self) -> bool:
        """Whether bubblewrap has made the sandbox's files: before that the folders are not there, or the machine's."""
        return all(self._in_memory(folder, size) is not None for folder, size in MEMORY_FOLDERS.items())

    def has_too_many_files(self) -> bool:
        """Whether the folders that are held in memory hold more files than a program may make."""
        for folder, size in self._memory_folders.items():
            status = self._in_memory(folder, size)
            if status is not None and status.f_files - status.f_ffree > MAXIMUM_FILES:
                return True
        return False

    def _in_memory(self, folder: str, size: int) -> os.statvfs_result | None:
        with suppress(OSError):
            status = os.statvfs(f"/proc/{self._first}/root{folder}")
            if status.f_blocks * status.f_frsize == size:
                return status
        return None


def _memory(path: str, fields: tuple[str, ...]) -> int:
    total = 0
    with suppress(OSError):
        for line in _read(path).splitlines():
            name, _, value = line.partition(":")
            if name in fields:
                total += int(value.split()[0]) * 1024
    return total


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


class FolderGrowth:
    """How much a folder grows during a run.

    Looking through the files is left until the file system itself has lost more room than a run may take.
    """

    def __init__(self, folder: str, started: StartTime, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._files = ChangedFiles(folder, started)
        self._device = os.stat(folder).st_dev
        self._free_bytes, self._free_files = self._free()
        self._next_look = 0.0

    def is_exceeded(self, tree: ProcessTree, processes: list[int]) -> bool:
        free_bytes, free_files = self._free()
        if self._free_bytes - free_bytes <= self._limit - _FREE_SLACK_BYTES and (
            self._free_files - free_files <= MAXIMUM_FILES
        ):
            return False
        began = time.monotonic()
        if began < self._next_look:
            return False
        size = self._files.size()
        taken = size.bytes + tree.deleted_bytes(processes, self._device)
        self._next_look = time.monotonic() + _PAUSE_FACTOR * (time.monotonic() - began)
        return size.is_partly_hidden or taken > self._limit or size.files > MAXIMUM_FILES

    def _free(self) -> tuple[int, int]:
        status = os.statvfs(self._folder)
        return status.f_bfree * status.f_frsize, status.f_ffree
