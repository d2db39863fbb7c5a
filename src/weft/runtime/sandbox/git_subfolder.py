"""A workspace in a repository whose `.git` lies above it: git works there, and sees nothing of the files beside it.

Git takes a tracked file that it does not see for deleted, and the next `git add -A` would delete all that lies beside
the workspace from the history. So the command works in a second working tree, as `git worktree` makes one, which holds
the workspace alone, as `git sparse-checkout` does it. Its `HEAD`, index and merge in progress are copies in a folder of
its own; objects, references and logs are the repository's.

When the command has ended, what it changed is carried back: the index entry by entry, under git's own lock, so nothing
that a person staged meanwhile is lost; `HEAD`, where it is still what it was. A process that dies before that leaves
the commits that were made, and their files as changed in the repository's index. A rebase that is not finished is not
carried back, nor is the log of `HEAD`. Submodules in such a workspace cannot be used.

The indexes are read and written by a git that obeys nothing of the repository (`git_program`).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import structs

from weft.kernel.clock import system_random
from weft.kernel.errors import StoreFailed
from weft.runtime.sandbox.git_program import find_git, opened_repository
from weft.runtime.sandbox.mounts import Mount, file_of, is_beneath, read_only, writable

INSIDE = "/run/weft-git"
"""Where git's folders lie inside."""
SPARSE_SETTINGS = b'[core]\n\tsparseCheckout = "true"\n\tsparseCheckoutCone = "false"\n'
_STATE = ("ORIG_HEAD", "MERGE_HEAD", "MERGE_MODE", "MERGE_MSG", "SQUASH_MSG", "CHERRY_PICK_HEAD", "REVERT_HEAD")
_HEAD = re.compile(rb"(?:ref: refs/heads/[^\x00-\x20\x7f~^:?*\[\\]{1,500}|[0-9a-f]{40}|[0-9a-f]{64})\n")
_MOST_INDEX_BYTES = 256 * 1024 * 1024
_MOST_STATE_BYTES = 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SubfolderTree:
    """The second working tree of commands in one folder of a repository, until they have ended."""

    def __init__(self, repository: str, workspace: str, object_format: str) -> None:
        """`repository` is git's folder, which lies in the uppermost folder of the files. Raises StoreFailed."""
        self.repository, self._format = repository, object_format
        self._inner = os.fsencode(os.path.relpath(workspace, os.path.dirname(repository))) + b"/"
        self._program = _git_program()
        self.folder = tempfile.mkdtemp(prefix="weft-tree-")
        self._own = f"{self.folder}/own"
        try:
            self._make()
            self._entries_before = self._entries(f"{self._own}/index")
            self._state_before = dict(self._state(self._own))
        except BaseException:  # nothing is left behind, whatever it was
            self.close()
            raise

    def mounts(self, shared: Iterable[Mount], *, is_read_only: bool) -> Iterator[Mount]:
        """`shared` are those of the repository's folder, which has another place inside."""
        yield read_only(INSIDE, self.folder) if is_read_only else writable(INSIDE, self.folder)
        for mount in shared:
            mount = self.inside(mount)
            if mount.place == f"{INSIDE}/common/config":
                mount = structs.replace(mount, data=mount.data + SPARSE_SETTINGS)
            if mount.place != f"{INSIDE}/common/HEAD":
                yield mount
        # the branch of the main tree can be switched to here, for this is the same tree
        yield file_of(f"{INSIDE}/common/HEAD", self._removal(b"")[2:-1] + b"\n")
        yield file_of(self.repository, f"gitdir: {INSIDE}/own\n".encode())

    def inside(self, mount: Mount) -> Mount:
        """One in the repository's folder, at the place that this has inside."""
        if not is_beneath(mount.place, self.repository):
            return mount
        return structs.replace(mount, place=f"{INSIDE}/common{mount.place.removeprefix(self.repository)}")

    def carry_back(self) -> None:
        """Raises StoreFailed where the repository's index cannot be written."""
        after = self._entries(f"{self._own}/index")
        lines = [self._removal(path) for path in self._entries_before.keys() - after.keys()]
        for path, entries in after.items():
            if self._entries_before.get(path) != entries:
                lines += [self._removal(path), *entries]
        if lines:
            words = ("update-index", "-z", "--index-info")
            self._run(f"{self.repository}/index", *words, stdin=b"".join(line + b"\0" for line in lines))
        state = dict(self._state(self._own))
        for name in ("HEAD", *_STATE):
            old, new = self._state_before.get(name), state.get(name)
            if new != old and _read(f"{self.repository}/{name}") == old:
                self._carry_state(name, new)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make(self) -> None:
        for name in ("own/info", "common"):
            os.makedirs(f"{self.folder}/{name}")
        for name, data in self._state(self.repository):
            Path(self._own, name).write_bytes(data)
        Path(self._own, "commondir").write_bytes(b"../common\n")
        Path(self._own, "gitdir").write_bytes(os.fsencode(self.repository) + b"\n")
        escaped = re.sub(rb"([\\*?\[!# ])", rb"\\\1", self._inner)
        Path(self._own, "info/sparse-checkout").write_bytes(b"/" + escaped + b"\n")
        index = _read(f"{self.repository}/index", _MOST_INDEX_BYTES)
        if index is not None:
            Path(self._own, "index").write_bytes(index)
            paths = [path for path in self._entries(f"{self._own}/index") if not path.startswith(self._inner)]
            words = ("update-index", "-z", "--skip-worktree", "--stdin")
            self._run(f"{self._own}/index", *words, stdin=b"".join(path + b"\0" for path in paths))

    def _state(self, folder: str) -> Iterator[tuple[str, bytes]]:
        for name in ("HEAD", *_STATE):
            data = _read(f"{folder}/{name}")
            if data is not None:
                yield name, data

    def _carry_state(self, name: str, data: bytes | None) -> None:
        """Whole or not at all. A `HEAD` that git would not have written is not carried back."""
        place = f"{self.repository}/{name}"
        if data is None:
            with suppress(FileNotFoundError):
                os.unlink(place)
        elif name != "HEAD" or _HEAD.fullmatch(data):
            aside = f"{place}.{system_random(8).hex()}"
            with open(aside, "xb") as file:
                file.write(data)
            os.rename(aside, place)

    def _entries(self, index: str) -> Mapping[bytes, tuple[bytes, ...]]:
        """The lines of each path, one for each stage, as `update-index --index-info` takes them."""
        entries: dict[bytes, tuple[bytes, ...]] = {}
        if os.path.lexists(index):
            for line in self._run(index, "ls-files", "--stage", "-z").split(b"\0")[:-1]:
                path = line.partition(b"\t")[2]
                entries[path] = (*entries.get(path, ()), line)
        return entries

    def _removal(self, path: bytes) -> bytes:
        return b"0 " + b"0" * (64 if self._format == "sha256" else 40) + b"\t" + path

    def _run(self, index: str, *words: str, stdin: bytes = b"") -> bytes:
        with (
            opened_repository(self._program, Path(self.repository), object_format=self._format) as git,
            git.start(*words, index=Path(index), work_tree=f"{self.folder}/common") as process,
        ):
            process.write(stdin)
            code, answer = process.finish(_MOST_INDEX_BYTES)
            if code != 0:
                raise StoreFailed(f"git {words[0]} failed on {index}: {process.complaint}", "look at `git status`")
        return answer


@cache
def _git_program() -> str:
    return find_git()


def _read(path: str, most: int = _MOST_STATE_BYTES) -> bytes | None:
    """None for what is not there, no file, or too large for one of these."""
    try:
        with open(os.open(path, _READ), "rb") as file:
            data = file.read(most + 1)
    except OSError:
        return None
    return data if len(data) <= most else None
