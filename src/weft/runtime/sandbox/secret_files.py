"""Files of a workspace that commonly hold secrets: by their names, some only where they hold what looks like one.

They are hidden from commands in the sandbox, which find an empty file in their place. A person names more of them, and
those that may be seen. This is a list of habits, no boundary: a secret in a file of another name is not known as one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from functools import cached_property

from msgspec import Struct

from weft.kernel.errors import InvalidInput

SECRET_FILES = (
    ".env", ".env~", ".env.*", ".env-*", ".envrc", ".envrc~", ".netrc", "_netrc", ".git-credentials", ".pgpass",
    ".docker/config.json", ".aws/credentials", ".config/gh/hosts.yml", ".kube/config", "*.tfstate", "*.tfstate.backup",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519",
)  # fmt: skip
"""Names of files; those with a folder are compared with the end of a path."""
EXAMPLE_ENDINGS = (".example", ".sample", ".template", ".dist")
"""A file of such a name shows what belongs into the real one."""
HOLDING = {
    ".npmrc": (b"_auth", b"_password"),
    ".yarnrc.yml": (b"npmAuth",),
    ".pypirc": (b"password",),
    "*.pem": (b"PRIVATE KEY",),
    "*.key": (b"PRIVATE KEY",),
}
"""Files that are hidden where they hold one of these: without it they are settings or certificates."""
_COPY_ENDINGS = ("~", ".bak", ".old", ".orig", ".save")
_SWAP_ENDINGS = (".swp", ".swo", ".swn")
_LOOKED_AT_BYTES = 64 * 1024
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SecretFiles(Struct, frozen=True, kw_only=True, dict=True):
    """What a person says of them beside the list."""

    more: tuple[str, ...] = ()
    """Further names, with `*` and `?`."""
    shown: Callable[[], Collection[str]] = tuple
    """The real paths of those that commands may see, as they are when something is started: a person shows one while
    a broker runs."""

    def __post_init__(self) -> None:
        for pattern in self.more:
            if not pattern or pattern.startswith("/") or {"", ".", ".."} & set(pattern.split("/")):
                raise InvalidInput(
                    f"{pattern!r} names no files of a workspace", "write a name, or the end of a path, such as *.p12"
                )

    def has(self, path: str, folder: int, file: str) -> bool:
        """Whether a file is one, by an absolute path that leads to it: also the workspace may be the folder that a name
        has before it. `folder` is the descriptor of the folder
        that it really lies in, and `file` its name there."""
        if not self.is_named(path):
            return False
        beginning, slash, name = path.casefold().rpartition("/")
        names = _names_before_editing(name)
        if any(_ends_so(beginning + slash + candidate, pattern) for candidate in names for pattern in self._folded):
            return True
        words = [
            word
            for pattern, listed in HOLDING.items()
            for candidate in names
            if fnmatchcase(candidate, pattern)
            for word in listed
        ]
        return bool(words) and _holds_one(folder, file, words)

    def is_named_by_folder(self, path: str) -> bool:
        """Whether a file is one because of the folders that it lies in."""
        beginning, slash, name = path.casefold().rpartition("/")
        names = _names_before_editing(name)
        return any(
            _ends_so(beginning + slash + candidate, pattern)
            for candidate in names
            for pattern in self._folded
            if "/" in pattern
        )

    def beneath_link(self, name: str) -> list[str]:
        """Paths from a link of this name on to what would be files of secrets if it led to a folder."""
        folded, paths = name.casefold(), []
        for folders in self._named_folders:
            paths += ["/".join(folders[at + 1 :]) for at in range(len(folders) - 1) if fnmatchcase(folded, folders[at])]
        return paths

    def is_named(self, path: str) -> bool:
        """Whether the last part of a path could be the name of one, whatever is in the file."""
        name = path.rpartition("/")[2].casefold()
        return not name.endswith(EXAMPLE_ENDINGS) and any(map(self._names.may_have, _names_before_editing(name)))

    def hides(self, workspace: str, path: str) -> bool:
        """Whether a file of a workspace is one and is hidden, by its path there. Only the file itself is meant, not a
        link that leads to it: whoever names a link has not said which file."""
        place = os.path.join(workspace, path)
        if not self.is_named(path) or os.path.realpath(place) != place or place in self.shown():
            return False
        try:
            folder = os.open(os.path.dirname(place), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # it is gone
            return False
        try:
            return self.has(place, folder, os.path.basename(place))
        finally:
            os.close(folder)

    @cached_property
    def _names(self) -> _NamePatterns:
        return _NamePatterns(pattern.rpartition("/")[2] for pattern in (*HOLDING, *self._folded))

    @cached_property
    def _folded(self) -> tuple[str, ...]:
        """A name in other letters is the same file to people, and to some file systems."""
        return tuple(pattern.casefold() for pattern in (*SECRET_FILES, *self.more))

    @cached_property
    def _named_folders(self) -> tuple[list[str], ...]:
        return tuple(pattern.split("/") for pattern in self._folded if "/" in pattern)


class _NamePatterns:
    """Patterns of names, sorted so that most names are dismissed at once: a workspace has a hundred thousand."""

    def __init__(self, patterns: Iterable[str]) -> None:
        names, beginnings, endings, others = set[str](), list[str](), list[str](), list[str]()
        for pattern in patterns:
            if not _is_pattern(pattern):
                names.add(pattern)
            elif pattern.startswith("*") and not _is_pattern(pattern[1:]):
                endings.append(pattern[1:])
            elif pattern.endswith("*") and not _is_pattern(pattern[:-1]):
                beginnings.append(pattern[:-1])
            else:
                others.append(pattern)
        self._names, self._others = frozenset(names), tuple(others)
        self._beginnings, self._endings = tuple(beginnings), tuple(endings)

    def may_have(self, name: str) -> bool:
        is_plain = name in self._names or name.startswith(self._beginnings) or name.endswith(self._endings)
        return is_plain or any(fnmatchcase(name, pattern) for pattern in self._others)


def _names_before_editing(name: str) -> tuple[str, ...]:
    """A name, and that of the file of which an editor left it: a copy, or what was not stored yet."""
    if name.endswith(_COPY_ENDINGS):
        return name, next(name.removesuffix(ending) for ending in _COPY_ENDINGS if name.endswith(ending))
    if name.startswith("#") and name.endswith("#"):
        return name, name[1:-1]
    if name.startswith(".") and name.endswith(_SWAP_ENDINGS):
        return name, name[1:-4]
    return (name,)


def _is_pattern(text: str) -> bool:
    return any(character in text for character in "*?[")


def _ends_so(path: str, pattern: str) -> bool:
    wanted = pattern.split("/")
    parts = path.split("/")[-len(wanted) :]
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _holds_one(folder: int, name: str, words: list[bytes]) -> bool:
    """A file that cannot be read is taken for one: the command could make it readable."""
    try:
        descriptor = os.open(name, _OPEN_FILE, dir_fd=folder)
    except OSError:
        return True
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        start = os.read(descriptor, _LOOKED_AT_BYTES)
    finally:
        os.close(descriptor)
    return any(word in start for word in words)


def named_secrets(paths: Iterable[str], text: str) -> tuple[str, ...]:
    """Those of some files whose name stands in a text as a word."""
    return tuple(path for path in paths if _has_word(text, path.rpartition("/")[2]))


def _has_word(text: str, name: str) -> bool:
    place = text.find(name)
    while place >= 0:
        before, after = text[place - 1 : place], text[place + len(name) : place + len(name) + 2]
        goes_on = after[:1].isalnum() or after[:1] in ("-", "_") or (after[:1] == "." and after[1:].isalnum())
        if not before.isalnum() and not goes_on:
            return True
        place = text.find(name, place + 1)
    return False
