"""The files that a configuration of git includes, and what of the way to them a command could change.

The person's own git obeys these files when it reads the repository's configuration or theirs, so a command may neither
write one that lies where it can write, nor make one that is missing, nor replace a link on the way. Conditions
(`includeIf`) are taken to hold: whether they do can change with a branch. Included files may include others.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from weft.runtime.sandbox.git_settings import included_paths

_MOST_BYTES = 4 * 1024 * 1024
_MOST_LEVELS = 10
"""Git goes no deeper, and stops with an error."""
_MOST_LINKS = 40
_MOST_FILES = 1000
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


SYSTEM_SETTINGS = (Path("/etc/gitconfig"), Path("/usr/local/etc/gitconfig"), Path("/opt/homebrew/etc/gitconfig"))
"""Where git looks for the configuration of the machine, by how it was installed."""


def person_settings(variable: Callable[[str], str | None], home: Path) -> tuple[Path, ...]:
    """Where git looks for the configuration of a person, by the variables of theirs; the later file is heard."""
    own = variable("GIT_CONFIG_GLOBAL")
    if own is not None:
        return (Path(own),)
    folder = variable("XDG_CONFIG_HOME") or f"{home}/.config"
    return Path(folder) / "git" / "config", home / ".gitconfig"


class IncludedFile(Struct, frozen=True, kw_only=True):
    """A file of settings that git reads, as far as commands could change what it reads there."""

    path: str
    """As git opens it."""
    file: str | None = None
    """The file itself, where a command could write it. No link is on the way to it."""
    links: tuple[str, ...] = ()
    """Those on the way that a command could replace."""
    missing: str | None = None
    """What a command could make, so that git finds something: the path, without a link as far as it exists."""


def included_files(
    settings: Iterable[str], is_writable: Callable[[str], bool], home: Path | None
) -> Iterator[IncludedFile]:
    """What files of settings include, with these files themselves. `is_writable` says of a folder without links on its
    way whether commands can write in it. Without a `home` what is named from there cannot be known, and lies in none
    of their folders."""
    waiting, seen = [(path, 0) for path in settings], set[str]()
    while waiting and len(seen) < _MOST_FILES:
        path, level = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        included = _follow(path, is_writable)
        if included.file is not None or included.links or included.missing is not None:
            yield included
        if level < _MOST_LEVELS:
            waiting += [(inner, level + 1) for inner in _inner_paths(path, home)]


def _inner_paths(path: str, home: Path | None) -> Iterator[str]:
    for named in included_paths(_read(path)):
        if named.startswith("~"):
            expanded = _expanded(named, home)
            if expanded is not None:
                yield expanded
        elif "\0" not in named:
            yield os.path.join(os.path.dirname(path), named)


def _expanded(path: str, home: Path | None) -> str | None:
    user, slash, rest = path[1:].partition("/")
    if not user:
        return None if home is None else f"{home}{slash}{rest}"
    try:
        return f"{pwd.getpwnam(user).pw_dir}{slash}{rest}"
    except KeyError:  # there is nobody of this name: git stops with an error
        return None


def _read(path: str) -> bytes:
    """Nothing of what is no file. So much of a larger one is read."""
    try:
        descriptor = os.open(path, _READ)
    except OSError:  # git cannot read it either
        return b""
    with open(descriptor, "rb") as file:
        return file.read(_MOST_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


def _follow(path: str, is_writable: Callable[[str], bool]) -> IncludedFile:
    """Name by name, as the system follows a path."""
    place, names, links = "/", _names(path), list[str]()
    passed = 0
    while names:
        name = names.pop(0)
        if name == "..":
            place = os.path.dirname(place)
            continue
        inner = os.path.join(place, name)
        try:
            status = os.lstat(inner)
        except OSError:  # it is not there, or cannot be seen by this person's git either
            missing = os.path.join(inner, *names) if is_writable(place) else None
            return IncludedFile(path=path, links=tuple(links), missing=missing)
        inner = os.path.join(place, _listed_name(place, name, status))
        if not stat.S_ISLNK(status.st_mode):
            place = inner
            continue
        passed += 1
        if passed > _MOST_LINKS:
            return IncludedFile(path=path, links=tuple(links))
        if is_writable(place):
            links.append(inner)
        target = os.readlink(inner)
        place, names = "/" if target.startswith("/") else place, [*_names(target), *names]
    is_held = is_writable(os.path.dirname(place)) and os.path.isfile(place)
    return IncludedFile(path=path, file=place if is_held else None, links=tuple(links))


def _listed_name(folder: str, name: str, status: os.stat_result) -> str:
    """As the folder lists it: there are file systems in which another spelling leads to the same file, and mounts and
    folders are compared by name."""
    other = name.swapcase()
    try:
        if other == name or not os.path.samestat(os.lstat(os.path.join(folder, other)), status):
            return name
        names = [entry for entry in os.listdir(folder) if entry.casefold() == name.casefold()]
    except OSError:  # there is no such other name, or the folder cannot be listed
        return name
    return name if name in names or len(names) != 1 else names[0]


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
