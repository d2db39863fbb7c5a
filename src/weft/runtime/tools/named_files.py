"""Which files of a workspace the words of a command name, with the digests of what they hold now.

An approval of `sh build.sh` is bound to the bytes of build.sh. A word is taken for a file if one of that name lies in
the command's folder, in the workspace, or in a folder that another word names. Beside them stand files that commands
read without being told, such as the Makefile.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from weft.runtime.sandbox.processes import MIB
from weft.runtime.tools.calls import ToolFailure
from weft.runtime.tools.executed_files import executed_words, scripts_run
from weft.runtime.tools.held_files import can_be_held

_BETWEEN_WORDS = re.compile(r"[\s;&|<>()$`\"'\\={}*?,\[\]:]+")
MOST_WORDS = 2000
MOST_PATHS = 16_384
"""Words, in all folders that they are looked for in."""
_MOST_FOLDERS = 16
_DIGESTED_BYTES = 64 * MIB
"""Of all files together. Of files beyond that the size, the number and the time of the last change are taken."""
_READ_UNASKED = {
    "make": ("Makefile", "makefile", "GNUmakefile"),
    "npm": ("package.json",),
    "npx": ("package.json",),
    "pnpm": ("package.json",),
    "yarn": ("package.json",),
    "bun": ("package.json",),
    "deno": ("deno.json", "deno.jsonc"),
    "just": ("justfile", "Justfile"),
    "tox": ("tox.ini", "pyproject.toml"),
    "nox": ("noxfile.py",),
    "pytest": ("conftest.py", "pyproject.toml", "pytest.ini", "tests/conftest.py"),
    "cargo": ("Cargo.toml", "build.rs"),
    "ninja": ("build.ninja",),
    "rake": ("Rakefile",),
    "task": ("Taskfile.yml",),
    "pip": ("setup.py", "pyproject.toml"),
}


class NamedFiles(Struct, frozen=True):
    """The files by their paths below the workspace."""

    digests: dict[str, str]
    """Each with its digest, behind the path that a link leads to."""
    executed: list[str]
    """Those that the command executes and that can be held: see `executed_files`."""


def named_files(workspace: str, folder: str, argv: Sequence[str]) -> NamedFiles:
    """The files that a command names."""
    executed_names, written_names = executed_words(argv)
    words = list(dict.fromkeys((*_words(argv), *executed_names)))  # `sh build''.sh` executes a file that no word is
    if len(words) > MOST_WORDS:
        raise ToolFailure("too_large", f"the command has more than {MOST_WORDS} words", {"words": len(words)})
    folders = _folders(workspace, folder, words)
    if len(words) * len(folders) > MOST_PATHS:
        why = f"the command has {len(words)} words, to be looked for in {len(folders)} folders: put it in a file"
        raise ToolFailure("too_large", why, {"words": len(words), "folders": len(folders)})
    digests: dict[str, str] = {}
    room = _DIGESTED_BYTES
    for path in _paths(workspace, folders, words):
        shown = os.path.relpath(path, workspace)
        if shown in digests:
            continue
        description, taken = _described(path, workspace, room)
        if description is not None:
            digests[shown], room = description, room - taken
    executed, written = (_shown_paths(workspace, folders, names) for names in (executed_names, written_names))
    held = [name for name in executed if can_be_held(digests.get(name, "")) and name not in written]
    return NamedFiles(dict(sorted(digests.items())), sorted(held))


def unknown_scripts(workspace: str, folder: str, argv: Sequence[str]) -> list[str]:
    """What interpreters are to run and is no file of the workspace as it is written."""
    folders = _folders(workspace, folder, _words(argv))
    return [word for word in scripts_run(argv) if not _shown_paths(workspace, folders, [word])]


def _paths(workspace: str, folders: Sequence[str], words: Iterable[str]) -> Iterator[str]:
    """The files that words lead to."""
    for name in words:
        for base in folders:
            path = os.path.normpath(os.path.join(base, name))
            if os.path.isfile(path) and _is_inside(path, workspace):
                yield path


def _shown_paths(workspace: str, folders: Sequence[str], words: Iterable[str]) -> set[str]:
    return {os.path.relpath(path, workspace) for path in _paths(workspace, folders, words)}


def named_words(texts: Iterable[str]) -> Iterator[str]:
    """Whatever may be the name of a file."""
    for text in texts:
        for word in (text, *_BETWEEN_WORDS.split(text)):
            if word and len(word) < 4096 and "\0" not in word:
                yield word


def _words(texts: Iterable[str]) -> list[str]:
    words: dict[str, None] = {}
    for word in named_words(texts):
        words.update(dict.fromkeys((word, *_meant_by(word))))
    return list(words)


def _meant_by(word: str) -> Iterator[str]:
    """Files that are read for a word without being named by it."""
    yield from _READ_UNASKED.get(word.rpartition("/")[2], ())
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", word):  # a module of Python
        path = word.replace(".", "/")
        yield from (f"{path}.py", f"{path}/__main__.py", f"{path}/__init__.py")


def _folders(workspace: str, folder: str, words: list[str]) -> list[str]:
    bases = [folder, workspace]
    for word in words:
        path = os.path.normpath(os.path.join(folder, word))
        if len(bases) >= _MOST_FOLDERS:
            break
        if path not in bases and _is_inside(path, workspace) and os.path.isdir(path):
            bases.append(path)
    return list(dict.fromkeys(bases))


def _is_inside(path: str, workspace: str) -> bool:
    """Of paths without `..` in them."""
    return path != workspace and path.startswith(os.path.join(workspace, ""))


def _described(path: str, workspace: str, room: int) -> tuple[str | None, int]:
    """What a path holds, and how many bytes were read for that. A link out of the workspace is told by its target."""
    try:
        real = os.path.realpath(path, strict=True)
        if not _is_inside(real, workspace):
            return (f"link {real}" if os.path.isfile(real) else None), 0
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):  # there is no such file, or it cannot be read, neither by the command
        return None, 0
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):  # a folder cannot be opened as a file
        os.close(descriptor)
        return None, 0
    with open(descriptor, "rb") as file:
        if status.st_size > room:
            description = f"stat {status.st_size} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"
        else:
            description = f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"
    target = "" if real == path else f"link {os.path.relpath(real, workspace)} "
    return target + description, min(status.st_size, room)
