"""A workspace in a repository whose `.git` lies above it: git works there, and sees nothing of the files beside it.

Git takes a tracked file that it does not see for deleted, and the next `git add -A` would delete all that lies beside
the workspace from the history. So the command works in a second working tree, as `git worktree` makes one, which holds
the workspace alone, as `git sparse-checkout` does it. Its `HEAD`, index and merge in progress are copies in a folder of
its own; objects, references and logs are the repository's.

When the command has ended, what it changed is carried back: the index entry by entry, under git's own lock, so nothing
that a person staged meanwhile is lost; `HEAD`, where it is still what it was. Of files beside the workspace nothing is
staged but what is in the commit that is checked out now, or in one that is being merged: a command in the workspace has
no business with them, and the person's next commit would take them along. A process that dies before that leaves the
commits that were made, and their files as changed in the repository's index. A rebase that is not finished is not
carried back, nor is the log of `HEAD`. Submodules in such a workspace cannot be used.

What is carried back is read from the folder that was made, by its descriptor, and never through a link: the command
could put one to another repository in the place of each part.

The indexes are read and written by a git that obeys nothing of the repository (`git_program`).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_MERGED = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD")
_COMMIT = re.compile(rb"^(?:[0-9a-f]{40}|[0-9a-f]{64})$", re.MULTILINE)
_MOST_INDEX_BYTES = 256 * 1024 * 1024
_MOST_STATE_BYTES = 1024 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SubfolderTree:
    """The second working tree of commands in one folder of a repository, until they have ended."""

    def __init__(self, repository: str, workspace: str, object_format: str) -> None:
        """`repository` is git's folder, which lies in the uppermost folder of the files. Raises StoreFailed."""
        self.repository, self._format = repository, object_format
        self._inner = os.fsencode(os.path.relpath(workspace, os.path.dirname(repository))) + b"/"
        self._program = _git_program()
        self._private = tempfile.mkdtemp(prefix="weft-tree-")
        self.folder = f"{self._private}/shown"
        self._own_folder = -1
        try:
            self._make(f"{self.folder}/own")
            self._own_folder = os.open(f"{self.folder}/own", _FOLDER)
            self._entries_before = self._own_entries()
            self._state_before = dict(_state(self._own_folder))
            self._commit_before = self._commit(self._state_before)
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

    @property
    def private_folder(self) -> str:
        """With all that it has outside."""
        return self._private

    @property
    def name(self) -> str:
        """A part of the path of all that it has outside."""
        return os.path.basename(self._private)

    def inside(self, mount: Mount) -> Mount:
        """One in the repository's folder, at the place that this has inside."""
        if not is_beneath(mount.place, self.repository):
            return mount
        return structs.replace(mount, place=f"{INSIDE}/common{mount.place.removeprefix(self.repository)}")

    def carry_back(self) -> tuple[str, ...]:
        """The paths in the repository that were staged and stay as they were. Raises StoreFailed where the repository's
        index cannot be written, or the command replaced its own."""
        after = self._own_entries()
        state = dict(_state(self._own_folder))
        paths = {*self._entries_before, *after}
        changed = [path for path in sorted(paths) if self._entries_before.get(path) != after.get(path)]
        commits = self._commits(state) if any(not path.startswith(self._inner) for path in changed) else []
        lines, refused = list[bytes](), list[bytes]()
        for path in changed:
            entries = after.get(path, ())
            if path.startswith(self._inner) or _is_of(path, entries, commits):
                lines += [self._removal(path), *entries]
            else:
                refused.append(path)
        if lines:
            words = ("update-index", "-z", "--index-info")
            self._run(f"{self.repository}/index", *words, stdin=b"".join(line + b"\0" for line in lines))
        for name in ("HEAD", *_STATE):
            old, new = self._state_before.get(name), state.get(name)
            if new != old and _read(f"{self.repository}/{name}") == old:
                self._carry_state(name, new)
        return tuple(map(os.fsdecode, refused))

    def close(self) -> None:
        if self._own_folder >= 0:
            os.close(self._own_folder)
            self._own_folder = -1
        shutil.rmtree(self._private, ignore_errors=True)

    def _make(self, own: str) -> None:
        for place in (f"{own}/info", f"{self.folder}/common"):
            os.makedirs(place)
        repository = os.open(self.repository, _FOLDER)
        try:
            for name, data in _state(repository):
                Path(own, name).write_bytes(data)
        finally:
            os.close(repository)
        Path(own, "commondir").write_bytes(b"../common\n")
        Path(own, "gitdir").write_bytes(os.fsencode(self.repository) + b"\n")
        escaped = re.sub(rb"([\\*?\[!# ])", rb"\\\1", self._inner)
        Path(own, "info/sparse-checkout").write_bytes(b"/" + escaped + b"\n")
        index = _read(f"{self.repository}/index", _MOST_INDEX_BYTES)
        if index is not None:
            Path(own, "index").write_bytes(index)
            paths = [path for path in self._entries(f"{own}/index") if not path.startswith(self._inner)]
            words = ("update-index", "-z", "--skip-worktree", "--stdin")
            self._run(f"{own}/index", *words, stdin=b"".join(path + b"\0" for path in paths))

    def _commits(self, state: Mapping[str, bytes]) -> list[Mapping[bytes, bytes]]:
        """The files of the commits whose content the index may have beside the workspace: of what is checked out, where
        that is another one than before, and of what is merged into it with what both come from."""
        head = self._commit(state)
        merged = [name.decode() for part in _MERGED for name in _COMMIT.findall(state.get(part, b""))]
        if head is None or (head == self._commit_before and not merged):
            return []
        bases = [f"{name}^" for name in merged]
        with suppress(StoreFailed):  # they have nothing in common
            bases += [self._answer("merge-base", head, name).decode().strip() for name in merged]
        return [self._files(name) for name in (head, *merged, *bases)]

    def _commit(self, state: Mapping[str, bytes]) -> str | None:
        """What `HEAD` says; None for a branch without commits."""
        head = state.get("HEAD", b"")
        if not _HEAD.fullmatch(head):
            return None
        name = os.fsdecode(head.removeprefix(b"ref: ").strip())
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        with suppress(StoreFailed):
            return self._answer(*words).decode().strip()
        return None

    def _files(self, commit: str) -> Mapping[bytes, bytes]:
        """Mode and id of each file."""
        try:
            answer = self._answer("ls-tree", "-r", "-z", "--full-tree", commit)
        except StoreFailed:  # the first commit comes from none
            return {}
        entries = (line.partition(b"\t") for line in answer.split(b"\0")[:-1])
        return {path: b" ".join(about.split(b" ")[::2]) for about, _, path in entries}

    def _carry_state(self, name: str, data: bytes | None) -> None:
        """Whole or not at all. A `HEAD` that git would not have written is not carried back."""
        place = f"{self.repository}/{name}"
        if data is None:
            if name != "HEAD":  # without it nothing would be a repository any more
                with suppress(FileNotFoundError):
                    os.unlink(place)
        elif name != "HEAD" or _HEAD.fullmatch(data):
            aside = f"{place}.{system_random(8).hex()}"
            with open(aside, "xb") as file:
                file.write(data)
            os.rename(aside, place)

    def _own_entries(self) -> Mapping[bytes, tuple[bytes, ...]]:
        """Of the index that the command has, taken out of its reach before git reads it."""
        data = _read("index", _MOST_INDEX_BYTES, self._own_folder)
        if data is None and _is_there("index", self._own_folder):
            raise StoreFailed("the index in the sandbox is no file", "look at `git status`")
        if data is None:
            return {}
        copy = f"{self._private}/index"
        Path(copy).write_bytes(data)
        return self._entries(copy)

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

    def _answer(self, *words: str) -> bytes:
        return self._run(f"{self._private}/no-index", *words)

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


def _state(folder: int) -> Iterator[tuple[str, bytes]]:
    for name in ("HEAD", *_STATE):
        data = _read(name, folder=folder)
        if data is not None:
            yield name, data


def _is_of(path: bytes, entries: Sequence[bytes], commits: Sequence[Mapping[bytes, bytes]]) -> bool:
    """Whether each of the lines of a path, or that it has none, is as in one of the commits."""
    if not entries:
        return any(path not in files for files in commits)
    abouts = [b" ".join(line.partition(b"\t")[0].split(b" ")[:2]) for line in entries]
    return all(any(files.get(path) == about for files in commits) for about in abouts)


def _is_there(name: str, folder: int) -> bool:
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def _read(path: str, most: int = _MOST_STATE_BYTES, folder: int | None = None) -> bytes | None:
    """None for what is not there, no file, or too large for one of these."""
    try:
        with open(os.open(path, _READ, dir_fd=folder), "rb") as file:
            data = file.read(most + 1)
    except OSError:
        return None
    return data if len(data) <= most else None
