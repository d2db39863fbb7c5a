"""The git program of this machine, as an engine for objects, and nothing else of it.

It never looks for a repository: it is told which one. It gets no variable of the environment of this process, no
configuration but ours, and no hook, filter, attribute, file monitor, replacement or alternate store. Locks that the
caller holds are inherited, so that they outlast a caller that dies while git is at work.

Git obeys the folder that it is told is its own: `config` alone can name a program that git runs. The folder of the
store is therefore never that folder. For each use of the store a new one is made, whose `HEAD` and `config` are written
here, and which holds nothing else but links to the references of the store; its objects are named by the environment.
Of the store git reads objects and references, whatever else somebody put there.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from weft.kernel.errors import StoreFailed, Unsupported
from weft.runtime.sandbox.piped_process import PipedProcess

SEARCHED = "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"
OLDEST = (2, 32)
OLDEST_THAT_MERGES = (2, 38)
COMMAND_SECONDS = 3600.0
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
    found = (shutil.which(name, path=folder) for folder in path.split(os.pathsep) if os.path.isabs(folder))
    return next((program for program in found if program is not None and _is_safe(program)), None)


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
    found = _version(answer.decode(errors="replace"))
    if code != 0 or found is None:
        raise Unsupported(f"{program} does not say which version of git it is", "install git again")
    return int(found[1]), int(found[2])


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
