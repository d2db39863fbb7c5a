"""The git program of this machine, as an engine for objects, and nothing else of it.

One thread writes to it and reads from it, without an event loop. For a workspace whose `.git` lies
above it, it makes the tree of that folder alone.
"""

from __future__ import annotations

import os
import re
import resource
import selectors
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from msgspec import structs

from weft.kernel.clock import system_random
from weft.kernel.errors import StoreFailed, Unsupported
from weft.runtime.sandbox.profiles import Mount, file_of, is_beneath, read_only, writable

# --- A program of the machine that one thread writes to and reads from, without an event loop, until it has its
# answer.

_CHUNK_BYTES = 256 * 1024
_MOST_UNSENT_BYTES = 4 * 1024 * 1024
_KEPT_ERROR_BYTES = 16 * 1024
_STOPPED = "find out why it was stopped, and try again"
_IDS_SETTLE_TRIES, _IDS_SETTLE_SECONDS = 100, 0.001


class PipedProcess:
    """A running program. Every method raises StoreFailed where the program ended before its time, or takes too long."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        seconds: float,
        inherited: Sequence[int] = (),
        memory: int | None = None,
    ) -> None:
        """`memory`: so many bytes of its own it may have."""
        self._name = " ".join(argv[:1])
        self._seconds, self._deadline = seconds, time.monotonic() + seconds
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._received, self._errors = bytearray(), bytearray()
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
                pass_fds=tuple(inherited),
                bufsize=0,
            )
        except OSError as error:
            raise StoreFailed(
                f"{argv[0]} could not be started: {error.strerror}", "check that it is installed and may be run"
            ) from None
        if memory is not None:
            _limit_memory(self._process.pid, memory)
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self._stdin, self._stdout, self._stderr = self._process.stdin, self._process.stdout, self._process.stderr
        self._selector = selectors.DefaultSelector()
        self._is_writing, self._is_open = False, True
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._selector.register(self._stderr, selectors.EVENT_READ)

    def __enter__(self) -> PipedProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        self._process.wait()
        self._selector.close()
        for pipe in (self._stdin, self._stdout, self._stderr):
            pipe.close()

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def complaint(self) -> str:
        """The last line of what it said on its standard error."""
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def write(self, data: bytes) -> None:
        """Have it take these bytes; returns once most of what was written before is taken."""
        self._deadline = time.monotonic() + self._seconds
        if data and not self._stdin.closed:  # else it ended, and whoever reads it learns why
            self._unsent.append(memoryview(data))
            self._unsent_bytes += len(data)
        while self._unsent_bytes > _MOST_UNSENT_BYTES:
            self._move()

    def read(self, size: int) -> bytes:
        """Exactly so many bytes of what it answers."""
        while len(self._received) < size:
            self._need_more()
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    def read_some(self) -> bytes:
        """What it answers next, some bytes of it; none once it answers nothing more."""
        while not self._received and self._is_open:
            self._move()
        data = bytes(self._received)
        self._received.clear()
        return data

    def read_until(self, end: bytes, most: int) -> bytes:
        """What it answers up to these bytes, which are taken and not returned."""
        searched = 0
        while (position := self._received.find(end, searched)) < 0:
            searched = max(0, len(self._received) - len(end) + 1)
            if searched > most:
                raise StoreFailed(f"{self._name} answers more than {most} bytes at once", _STOPPED)
            self._need_more()
        data = bytes(self._received[:position])
        del self._received[: position + len(end)]
        return data

    def finish(self, most: int) -> tuple[int, bytes]:
        """Tell it that nothing follows and wait for its end: the code it ended with, and the rest of its answer."""
        self.close_input()
        while self._is_open:
            self._move()
            if len(self._received) > most:
                raise StoreFailed(f"{self._name} answers more than {most} bytes", _STOPPED)
        try:
            code = self._process.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self._too_slow() from None
        self._take_last_words()
        rest = bytes(self._received)
        self._received.clear()
        return code, rest

    def close_input(self) -> None:
        """Tell it that nothing follows, once it has taken everything."""
        while self._unsent and self._is_open:
            self._move()
        self._stop_writing()
        self._stdin.close()

    def _need_more(self) -> None:
        if not self._is_open:
            self._take_last_words()
            raise StoreFailed(
                f"{self._name} ended before its answer was whole: {self.complaint or 'no word'}", _STOPPED
            )
        self._move()

    def _move(self) -> None:
        """Wait until something can be moved, and move it."""
        pause = self._deadline - time.monotonic()
        if pause <= 0:
            raise self._too_slow()
        if self._unsent and not self._is_writing and not self._stdin.closed:
            self._selector.register(self._stdin, selectors.EVENT_WRITE)
            self._is_writing = True
        for key, _ in self._selector.select(pause):
            if key.fileobj is self._stdin:
                self._send()
            else:
                self._receive(key.fileobj)

    def _send(self) -> None:
        try:
            sent = os.write(self._stdin.fileno(), self._unsent[0][:_CHUNK_BYTES])
        except BlockingIOError:
            return
        except BrokenPipeError:  # it ended, or closed its input: its code and its complaint tell why
            self._unsent.clear()
            self._unsent_bytes = 0
            self._stop_writing()
            self._stdin.close()
            return
        self._unsent_bytes -= sent
        if sent == len(self._unsent[0]):
            self._unsent.popleft()
        else:
            self._unsent[0] = self._unsent[0][sent:]
        if not self._unsent:
            self._stop_writing()

    def _stop_writing(self) -> None:
        if self._is_writing:
            self._selector.unregister(self._stdin)
            self._is_writing = False

    def _receive(self, pipe: object) -> None:
        is_answer = pipe is self._stdout
        stream = self._stdout if is_answer else self._stderr
        try:
            piece = os.read(stream.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not piece:
            self._selector.unregister(stream)
            if is_answer:
                self._is_open = False
        elif is_answer:
            self._received += piece
        else:
            self._errors += piece
            del self._errors[:-_KEPT_ERROR_BYTES]

    def _take_last_words(self) -> None:
        """What stands in the pipe of its standard error when it has ended."""
        while self._stderr in self._selector.get_map():
            if not self._selector.select(0):
                return
            self._receive(self._stderr)

    def _too_slow(self) -> StoreFailed:
        return StoreFailed(f"{self._name} took too long, and was stopped", "try again when the machine is less busy")

    def _kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # nobody is left in it (macOS says it the second way)
            return


def _limit_memory(process_id: int, most: int) -> None:
    """Before it reads objects that others made: which these are is told on its standard input."""
    if not hasattr(resource, "prlimit"):  # macOS sets no limit for another process
        return
    with suppress(ProcessLookupError):
        _, hard = _own_limit(process_id)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(process_id, resource.RLIMIT_DATA, (most, hard))


def _own_limit(process_id: int) -> tuple[int, int]:
    """The limit of a process that has just been started. The system closes the descriptor that tells of its start
    before it gives the process its saved ids: where those differ from ours, it is not ours to look at for a moment."""
    for _ in range(_IDS_SETTLE_TRIES):
        try:
            return resource.prlimit(process_id, resource.RLIMIT_DATA)
        except PermissionError:
            time.sleep(_IDS_SETTLE_SECONDS)
    return resource.prlimit(process_id, resource.RLIMIT_DATA)


# --- The git program of this machine, as an engine for objects, and nothing else of it.

SEARCHED = "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"
OLDEST = (2, 32)
OLDEST_THAT_MERGES = (2, 38)
COMMAND_SECONDS = 3600.0
MOST_MEMORY_BYTES = 4 * 1024 * 1024 * 1024
"""An object of some kilobytes can say that it is larger than the machine, and git reads it whole."""
_MOST_OUTPUT_BYTES = 1024 * 1024 * 1024
_version = re.compile(r"git version ([0-9]{1,4})\.([0-9]{1,4})").match
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "core.sparseCheckout=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.autocrlf=false",
    "core.symlinks=true",
    "core.fileMode=true",
    "core.ignoreCase=false",
    "core.precomposeUnicode=false",
    "core.protectNTFS=false",
    "core.protectHFS=false",
    "core.trustctime=true",
    "core.checkStat=default",
    "core.preloadIndex=true",
    "core.fsync=committed,loose-object",
    "core.fsyncMethod=batch",
    "core.compression=1",
    "core.bigFileThreshold=32m",
    "core.commitGraph=false",
    "core.multiPackIndex=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "receive.autogc=false",
    "repack.writeBitmaps=false",
    "repack.updateServerInfo=false",
    "diff.external=",
    "diff.ignoreSubmodules=all",  # else git looks into folders of submodules, and obeys what is configured there
    "submodule.recurse=false",
    "protocol.allow=never",
    "uploadpack.packObjectsHook=",
    "credential.helper=",
    "core.alternateRefsCommand=",
    "core.sshCommand=false",
    "core.askPass=false",
    "core.editor=false",
    "gpg.program=false",
    "commit.gpgSign=false",
    "merge.directoryRenames=false",
    "advice.detachedHead=false",
)
CONFIGURATION = b"""[core]
\trepositoryformatversion = 1
\tfilemode = true
\tbare = true
[extensions]
\tobjectformat = sha256
"""
HEAD = b"ref: refs/heads/main\n"
_MEMORY_FOLDER = Path("/dev/shm")
"""No sandbox shows this folder of the machine, and no workspace can lie in it."""
_EMPTY_TREE = "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321"
_ENVIRONMENT = {
    "PATH": SEARCHED,
    "LC_ALL": "C",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ATTR_SOURCE": _EMPTY_TREE,
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_ASKPASS": "false",
    "GIT_SSH_COMMAND": "false",
    "GIT_EDITOR": "false",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": "/dev/null",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_DEFAULT_REF_FORMAT": "files",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "GIT_AUTHOR_NAME": "Weft",
    "GIT_AUTHOR_EMAIL": "weft",
    "GIT_AUTHOR_DATE": "@0 +0000",
    "GIT_COMMITTER_NAME": "Weft",
    "GIT_COMMITTER_EMAIL": "weft",
    "GIT_COMMITTER_DATE": "@0 +0000",
}


@contextmanager
def opened_repository(
    program: str, repository: Path, held: tuple[int, ...] = (), *, object_format: str = "sha256"
) -> Iterator[Git]:
    """Git on the objects and references of a repository, with `HEAD` and `config` of ours instead of its own."""
    parent = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK | os.X_OK) else None
    with TemporaryDirectory(prefix="weft-git-", dir=parent) as name:
        own_folder = Path(name)
        (own_folder / "HEAD").write_bytes(HEAD)
        (own_folder / "config").write_bytes(CONFIGURATION.replace(b"sha256", object_format.encode()))
        (own_folder / "refs").symlink_to(repository / "refs")
        (own_folder / "packed-refs").symlink_to(repository / "packed-refs")  # written where the link leads
        yield Git(program, repository, own_folder, held)


class Git:
    """Runs git on one repository. `held` are descriptors of locks that git inherits."""

    def __init__(self, program: str, folder: Path, own_folder: Path, held: tuple[int, ...] = ()) -> None:
        """`folder` is the store's, with objects and references; `own_folder` is what git takes for its own."""
        self._program, self._own_folder = program, own_folder
        self.folder, self.held = folder, held

    def holding(self, *locks: int) -> Git:
        return Git(self._program, self.folder, self._own_folder, (*self.held, *locks))

    def start(
        self,
        *words: str,
        work_tree: str | None = None,
        index: Path | None = None,
        settings: Sequence[str] = (),
        seconds: float = COMMAND_SECONDS,
    ) -> PipedProcess:
        environment = {**_ENVIRONMENT, "GIT_DIR": str(self._own_folder)}
        environment["GIT_OBJECT_DIRECTORY"] = str(self.folder / "objects")
        if work_tree is not None:
            environment["GIT_WORK_TREE"] = work_tree
        environment["GIT_INDEX_FILE"] = str(index or self._own_folder / "no-index")
        options = [word for setting in (*_SETTINGS, *settings) for word in ("-c", setting)]
        return PipedProcess(
            [self._program, *options, *words],
            environment=environment,
            folder=self._own_folder,
            seconds=seconds,
            inherited=self.held,
            memory=MOST_MEMORY_BYTES,
        )

    def run(self, *words: str, stdin: bytes = b"", most: int = _MOST_OUTPUT_BYTES, good: Sequence[int] = (0,)) -> bytes:
        """What a command answers. Raises StoreFailed where it fails."""
        return self.run_with_code(*words, stdin=stdin, most=most, good=good)[1]

    def run_with_code(
        self, *words: str, stdin: bytes = b"", most: int = _MOST_OUTPUT_BYTES, good: Sequence[int] = (0,)
    ) -> tuple[int, bytes]:
        with self.start(*words) as process:
            process.write(stdin)
            return ended_well(process, words[0], most, good)


def ended_well(
    process: PipedProcess, command: str, most: int = _MOST_OUTPUT_BYTES, good: Sequence[int] = (0,)
) -> tuple[int, bytes]:
    """The code and the answer of a command that ends now. Raises StoreFailed where it failed."""
    code, answer = process.finish(most)
    if code not in good:
        why = process.complaint or (f"signal {-code}" if code < 0 else f"code {code}")
        raise StoreFailed(
            f"git {command} failed in the store of files: {why}",
            "free space if the disk is full, and try again: what was kept before is still there",
        )
    return code, answer


def find_git(searched: str = SEARCHED, path: str = "") -> str:
    """The path of git. `path` names more folders, as PATH does; what lies there is taken where nobody but root and this
    user can have put it. Raises Unsupported where there is none, or one that is too old."""
    program = shutil.which("git", path=searched) or _find_safe("git", path)
    if program is None:
        raise Unsupported("files cannot be kept: git is not installed", "install the package git")
    version = git_version(program)
    if version < OLDEST:
        raise Unsupported(
            f"files cannot be kept: git {dotted(version)} is too old", f"install git {dotted(OLDEST)} or newer"
        )
    return program


def _find_safe(name: str, path: str) -> str | None:
    programs = (shutil.which(name, path=folder) for folder in path.split(os.pathsep) if os.path.isabs(folder))
    return next((program for program in programs if program is not None and _is_safe(program)), None)


def _is_safe(program: str) -> bool:
    """Whether nobody but root and this user can have put it where it lies."""
    try:
        real = Path(program).resolve(strict=True)
        places = [place.stat() for place in (real, *real.parents)]
    except (OSError, RuntimeError):
        return False
    return all(place.st_uid in (0, os.geteuid()) and not _is_open_to_others(place) for place in places)


def _is_open_to_others(place: os.stat_result) -> bool:
    """In a folder with the sticky bit nobody can replace what is another's."""
    is_guarded = stat.S_ISDIR(place.st_mode) and place.st_mode & stat.S_ISVTX
    return bool(place.st_mode & (stat.S_IWGRP | stat.S_IWOTH)) and not is_guarded


def git_version(program: str) -> tuple[int, int]:
    with PipedProcess([program, "version"], environment=_ENVIRONMENT, folder=Path("/"), seconds=60) as process:
        code, answer = process.finish(64 * 1024)
    version = _version(answer.decode(errors="replace"))
    if code != 0 or version is None:
        raise Unsupported(f"{program} does not say which version of git it is", "install git again")
    return int(version[1]), int(version[2])


def ensure_merges(program: str) -> None:
    """Raises Unsupported where this git cannot merge without a working directory."""
    version = git_version(program)
    if version < OLDEST_THAT_MERGES:
        raise Unsupported(
            f"files cannot be merged: git {dotted(version)} is too old",
            f"install git {dotted(OLDEST_THAT_MERGES)} or newer",
        )


def dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def is_object_id(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


# --- A workspace in a repository whose `.git` lies above it: git works there, and sees nothing of the files beside it.

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
            self._state_before = dict(_state_files(self._own_folder))
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
        state = dict(_state_files(self._own_folder))
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
            if new != old and _read_state_file(f"{self.repository}/{name}") == old:
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
            for name, data in _state_files(repository):
                Path(own, name).write_bytes(data)
        finally:
            os.close(repository)
        Path(own, "commondir").write_bytes(b"../common\n")
        Path(own, "gitdir").write_bytes(os.fsencode(self.repository) + b"\n")
        escaped = re.sub(rb"([\\*?\[!# ])", rb"\\\1", self._inner)
        Path(own, "info/sparse-checkout").write_bytes(b"/" + escaped + b"\n")
        index = _read_state_file(f"{self.repository}/index", _MOST_INDEX_BYTES)
        if index is not None:
            Path(own, "index").write_bytes(index)
            paths = [path for path in self._index_entries(f"{own}/index") if not path.startswith(self._inner)]
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
        data = _read_state_file("index", _MOST_INDEX_BYTES, self._own_folder)
        if data is None and _is_there("index", self._own_folder):
            raise StoreFailed("the index in the sandbox is no file", "look at `git status`")
        if data is None:
            return {}
        copy = f"{self._private}/index"
        Path(copy).write_bytes(data)
        return self._index_entries(copy)

    def _index_entries(self, index: str) -> Mapping[bytes, tuple[bytes, ...]]:
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


def _state_files(folder: int) -> Iterator[tuple[str, bytes]]:
    for name in ("HEAD", *_STATE):
        data = _read_state_file(name, folder=folder)
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


def _read_state_file(path: str, most: int = _MOST_STATE_BYTES, folder: int | None = None) -> bytes | None:
    """None for what is not there, no file, or too large for one of these."""
    try:
        with open(os.open(path, _READ, dir_fd=folder), "rb") as file:
            data = file.read(most + 1)
    except OSError:
        return None
    return data if len(data) <= most else None
