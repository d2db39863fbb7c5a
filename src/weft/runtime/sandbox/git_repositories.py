"""What git takes for its own folder, read as git reads it: repositories, links, names in an index.

Through a link in one of git's folders a person's git would write to whatever it leads to.
"""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from weft.kernel.clock import system_random
from weft.kernel.errors import InvalidInput
from weft.runtime.opened_folders import READ_FOLDER_FLAGS, Identity, descend_to, open_closed, visit_folders
from weft.runtime.sandbox.git_settings import CONFIG_BYTES, read_settings
from weft.runtime.sandbox.hidden_places import FETCHED_FOLDERS
from weft.runtime.sandbox.profiles import is_beneath

# --- Reads the names in an index of git's, and says whether a person's git may use them.

INDEX = "index"
SHARED_INDEX = "sharedindex."
"""What the names of files begin with to which an index adds."""
MOST_BYTES = 256 * 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_HOOK_BYTES = 16 * 1024 * 1024
_SIGNATURE = b"DIRC"
_VERSIONS = (2, 3, 4)
_HEADER_BYTES = 12
_STATUS_BYTES = 40
_MODE_AT = 24
_LONG_NAME = 0xFFF
_EXTENDED = 0x4000
_KNOWN_EXTENDED = 0x6000
_FOLDER_MODE = 0o040000
_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
"""Letters that macOS leaves out of names."""
_REPOSITORY = re.compile(r"\.git|git~1")


class UnreadableIndex(Exception):
    """Git may stop with an error there, or read something else than this reader."""


def is_index_name(name: str) -> bool:
    """Whether git reads a file of this name as an index, or as what one adds to."""
    return name == INDEX or name.startswith(SHARED_INDEX)


def is_usable_index(folder: int, name: str, hash_bytes: int) -> bool:
    """Whether it is an index whose names all lie among the files of the repository, and none in git's own folder."""
    try:
        with open(os.open(name, _READ, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
                return False
            data = file.read(MOST_BYTES + 1)
    except OSError:
        return False
    try:
        names = read_index_names(data, hash_bytes, is_base=name != INDEX)
        return len(data) <= MOST_BYTES and all(map(is_inner_name, names))
    except UnreadableIndex:
        return False


def is_inner_name(name: bytes) -> bool:
    """Whether a name leads to a file of the repository, in each file system that git knows."""
    return all(_is_inner_part(part) for part in name.split(b"/"))


def _is_inner_part(part: bytes) -> bool:
    if part in (b"", b".", b".."):
        return False
    if b"git" not in part.lower() and part.isascii():  # as nearly all
        return True
    text = _IGNORED.sub("", part.decode("utf-8", "surrogateescape")).casefold()
    # Windows takes a backslash for a slash, and leaves out blanks, full stops and the name of a stream at the end
    parts = (piece.partition(":")[0].rstrip(" .") for piece in text.split("\\"))
    return not any(_REPOSITORY.fullmatch(piece) for piece in parts)


def read_index_names(data: bytes, hash_bytes: int, *, is_base: bool = False) -> Iterator[bytes]:
    """The name of each entry. Raises UnreadableIndex where the file is not as git writes it."""
    version = int.from_bytes(data[4:8], "big")
    if data[:4] != _SIGNATURE or version not in _VERSIONS or len(data) < _HEADER_BYTES + hash_bytes:
        raise UnreadableIndex
    end = len(data) - hash_bytes
    position, before, has_nameless = _HEADER_BYTES, b"", False
    starts, has_table = set[int](), b"IEOT" in data
    for _ in range(int.from_bytes(data[8:12], "big")):
        start = position
        name, position, mode, is_whole = _read_entry(data, position, end, (version, hash_bytes, before))
        before = name
        if has_table and is_whole:
            starts.add(start)
        if mode == _FOLDER_MODE and name.endswith(b"/"):  # a folder of which no file is checked out
            name = name[:-1]
        if name:
            yield name
        else:  # it takes the place of an entry of the base, and has its name
            has_nameless = True
    extensions = dict(_read_extensions(data, position, end))
    # by these two, git with several threads reads entries from other places than one after the other
    last = data[end - 12 - hash_bytes : end - hash_bytes]
    if last[:4] == b"EOIE" and int.from_bytes(last[8:12], "big") != position:
        raise UnreadableIndex
    blocks = extensions.get(b"IEOT", b"")
    if not starts.issuperset(int.from_bytes(blocks[at : at + 4], "big") for at in range(4, len(blocks), 8)):
        raise UnreadableIndex
    if has_nameless and (is_base or b"link" not in extensions):
        raise UnreadableIndex


def _read_entry(data: bytes, start: int, end: int, form: tuple[int, int, bytes]) -> tuple[bytes, int, int, bool]:
    """Its name, where it ends, its mode, and whether the name is written whole, not as a change of the one before."""
    version, hash_bytes, before = form
    position = start + _STATUS_BYTES + hash_bytes
    if position + 2 > end:
        raise UnreadableIndex
    mode = int.from_bytes(data[start + _MODE_AT : start + _MODE_AT + 4], "big")
    flags = int.from_bytes(data[position : position + 2], "big")
    position += 2
    if flags & _EXTENDED:
        extended = int.from_bytes(data[position : position + 2], "big")
        position += 2
        if version < 3 or extended & ~_KNOWN_EXTENDED:
            raise UnreadableIndex
    beginning = b""
    if version == 4:
        removed, position = _read_number(data, position, end)
        if removed > len(before):
            raise UnreadableIndex
        beginning = before[: len(before) - removed]
    last = data.find(b"\0", position, end)
    if last < 0:
        raise UnreadableIndex
    name = beginning + data[position:last]
    length = flags & _LONG_NAME
    if length != min(len(name), _LONG_NAME):  # git follows the length, and this reader the zero byte
        raise UnreadableIndex
    if version == 4:
        return name, last + 1, mode, not beginning
    size = (last - start + 8) & ~7
    return name, start + size, mode, True


def _read_number(data: bytes, position: int, end: int) -> tuple[int, int]:
    """As git writes the numbers of packs: each further byte counts one more."""
    value = -1
    while position < end and value < MOST_BYTES:
        byte = data[position]
        position += 1
        value = (value + 1) << 7 | byte & 0x7F
        if not byte & 0x80:
            return value, position
    raise UnreadableIndex


def _read_extensions(data: bytes, position: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    """What follows the entries. Raises UnreadableIndex where there are two of one name."""
    names = set[bytes]()
    while position + 8 <= end:
        name, size = data[position : position + 4], int.from_bytes(data[position + 4 : position + 8], "big")
        if name in names:
            raise UnreadableIndex
        names.add(name)
        yield name, data[position + 8 : position + 8 + size]
        position += 8 + size


def hash_bytes_of(object_format: str) -> int:
    """How long the names of objects are."""
    return 32 if object_format == "sha256" else 20


# --- What git takes for a folder of its own, and how it is led from one to another; read as git reads it.

GIT = ".git"
MOST_FOLDERS = 200_000
"""So many folders of a workspace are looked through for repositories; one with more of them is refused."""
MODULE_LEVELS = 8
POINTER_BYTES = 1024 * 1024
"""Git reads a `.git` file of at most this size."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_POINTER = b"gitdir: "
_MOST_LEVELS = 64


class LinkedFolders(NamedTuple):
    """Where git keeps what belongs to a working tree."""

    own: str
    common: str | None
    """The one that a second working tree shares with others."""


class OddRepository(Exception):
    """It is not as git makes it, so nothing in it may be written."""


class GitFolder(Struct, frozen=True, kw_only=True):
    """A folder of git's that commands in a workspace can write, by its path without links."""

    place: str
    objects: str
    """The folder that has its objects: itself, or the one that it shares with other working trees."""
    object_format: str
    parts: frozenset[bytes] | None = None
    """The names in it that are to be kept; None: all but what commands cannot write."""


def is_git_folder(folder: int) -> bool:
    """Whether git may read settings in a folder: as its own, or as what several working trees share. That one needs
    no `HEAD`. What is in a `HEAD` is not asked: git may read it otherwise."""
    names = ("HEAD", "commondir")
    return any(kind_at(folder, name) is not None for name in names) or all(
        kind_at(folder, name) is not None for name in ("objects", "refs")
    )


def lies_in_git_folder(place: str, workspace: str) -> bool:
    """Whether a file of a workspace lies in a folder that git may read settings in, whatever that is called, or would
    make one of a folder. Raises OSError where that cannot be seen."""
    names = os.path.relpath(place, workspace).split("/")
    for depth, name in enumerate(names):
        try:
            folder = os.open(os.path.join(workspace, *names[:depth]), _FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            break  # a folder that is made for the file holds nothing else
        try:
            other = {"objects": "refs", "refs": "objects"}.get(name)
            if is_git_folder(folder) or (other is not None and kind_at(folder, other) is not None):
                return True
        finally:
            os.close(folder)
    return names[-1] == "HEAD"


def git_places(workspace: str, most: int = MOST_FOLDERS) -> Iterator[str]:
    """Every `.git` in the folders of a workspace but its own, and every folder in them that is git's under another
    name; links are not followed. What tools fill with what they fetched or made is not looked through. Raises
    InvalidInput where there are more folders than can be looked through: what lies in the others would not be held."""
    waiting, seen = deque([workspace]), 0
    while waiting:
        seen += 1
        if seen > most:
            raise InvalidInput(
                f"the workspace {workspace} has more than {most} folders: not all can be looked through for "
                "repositories of git",
                "make a folder with fewer of them the workspace, or remove what a program made there",
            )
        folder = waiting.popleft()
        try:
            with os.scandir(folder) as entries:
                inner = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except OSError:  # it is gone, or cannot be read, neither by a command
            continue
        names = {name for name, _ in inner}
        if {"objects", "refs"} <= names or not names.isdisjoint(("HEAD", "commondir")):
            yield folder
        for name, is_folder in inner:
            if name.casefold() == GIT:
                if folder != workspace or name != GIT:
                    yield f"{folder}/{name}"
            elif is_folder and name not in FETCHED_FOLDERS:
                waiting.append(f"{folder}/{name}")


def module_folders(folder: str, known_by: str = "HEAD") -> Iterator[str]:
    """Git's folders of the submodules of one repository, not those of submodules in them. Names may have slashes.
    `known_by` is the file that makes a folder one of them."""
    waiting = [(f"{folder}/modules", MODULE_LEVELS)]
    while waiting:
        place, left = waiting.pop()
        try:
            with os.scandir(place) as entries:
                inner = sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:
            continue
        for path in inner:
            if kind_of(f"{path}/{known_by}") is not None:
                yield path
            elif left:
                waiting.append((path, left - 1))


def branch_names(folder: str) -> Iterator[str]:
    """Those with a file of their own, as every branch has that was made a moment ago."""
    top = f"{folder}/refs/heads"
    waiting = [top]
    while waiting:
        place = waiting.pop()
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield os.path.relpath(entry.path, top)


def pointed_path(entry: str, above: int | None = None) -> str | None:
    """The path that a `.git` file leads to, as git follows it: without line ends at its end, up to a zero byte, with
    whatever blanks and line ends are in it. None where git reads no path there. `above` is the folder that it lies in,
    where a path could be led elsewhere. Raises OSError."""
    data = _read_pointer(entry if above is None else os.path.basename(entry), above)
    if data is None or not data.startswith(_POINTER):
        return None
    target = _path_in(data.removeprefix(_POINTER))
    return os.path.join(os.path.dirname(entry), os.fsdecode(target)) if target else None


def path_in_file(path: str) -> str | None:
    """The path in another small file of git's, such as `commondir`; None where there is no such file."""
    try:
        data = _read_pointer(path)
    except OSError:
        return None
    return os.fsdecode(_path_in(data)) or None if data is not None else None


def _path_in(data: bytes) -> bytes:
    return data.rstrip(b"\r\n").split(b"\0")[0]


def _read_pointer(path: str, folder: int | None = None) -> bytes | None:
    try:
        return read_small(path, POINTER_BYTES, folder)
    except OddRepository:
        return None


def pointed_folder(entry: str) -> str | None:
    """The folder that a `.git` file leads to. None where it leads nowhere, or through a link."""
    try:
        target = pointed_path(entry)
    except OSError:
        return None
    folder = None if target is None else os.path.normpath(target)
    if folder is None or os.path.realpath(folder) != folder or kind_of(folder) != stat.S_IFDIR:
        return None
    return folder


def common_folder(own: str) -> str | None:
    """The folder that the working trees of one repository share; None where `own` is not that of a second one."""
    text = path_in_file(f"{own}/commondir")
    if text is None or text == ".":
        return None
    folder = os.path.normpath(os.path.join(own, text))
    if os.path.realpath(folder) != folder:
        raise OddRepository("its commondir leads through a link")
    return folder


def repository_above(workspace: str) -> str | None:
    """The nearest `.git` above a workspace, where it is a folder of the same user: anybody could put a repository into
    `/tmp`."""
    folder = workspace
    for _ in range(_MOST_LEVELS):
        if folder == "/":
            break
        folder = os.path.dirname(folder)
        entry = f"{folder.rstrip('/')}/{GIT}"
        kind = kind_of(entry)
        if kind is not None:
            is_own = os.lstat(entry).st_uid == os.stat(workspace).st_uid
            return entry if kind == stat.S_IFDIR and is_own else None
    return None


def folders_inside(entry: str, workspace: str) -> LinkedFolders | None:
    """What a `.git` in a workspace is or leads to; None where it leads out of the workspace, or the folder does that it
    leads to. Raises OddRepository and OSError."""
    is_file = kind_of(entry) == stat.S_IFREG
    target = pointed_path(entry) if is_file else entry
    own = None if target is None else os.path.realpath(target)
    if own is None or not _is_folder_in(own, workspace):
        return None
    common = common_folder(own) if is_file else None
    return LinkedFolders(own, common) if common is None or _is_folder_in(common, workspace) else None


def folders_named(entry: str, workspace: str) -> LinkedFolders | None:
    """What the file `.git` of a workspace leads to, which is a second working tree or a submodule; None as above. A
    file alone would open any folder of the machine: the folder that it names must name the workspace, too, as git
    writes it on both sides. Raises OddRepository where it does not, and OSError."""
    own = pointed_folder(entry)
    if own is None:
        raise OddRepository("it names no folder")
    if is_beneath(own, workspace):
        return folders_inside(entry, workspace)
    common = common_folder(own)
    if common is None:
        is_named = is_submodule_of(own, workspace)
    else:
        back = path_in_file(f"{own}/gitdir")
        is_named = back is not None and os.path.realpath(os.path.join(own, back)) == entry
        is_named = is_named and os.path.dirname(own) == f"{common}/worktrees"
    if not is_named:
        raise OddRepository("the folder that it names does not name it")
    return LinkedFolders(own, common)


def _is_folder_in(place: str, workspace: str) -> bool:
    return is_beneath(place, workspace) and place != workspace and kind_of(place) == stat.S_IFDIR


def is_submodule_of(own: str, workspace: str) -> bool:
    """Whether git's folder lies among the modules of another and names this workspace as the place of its files."""
    parts = Path(own).parts
    if GIT not in parts or "modules" not in parts[parts.index(GIT) : -1]:
        return False
    places = [setting.value for setting in read_settings(read_small(f"{own}/config")) if setting.key == "core.worktree"]
    return bool(places) and os.path.realpath(os.path.join(own, places[-1])) == workspace


def read_small(path: str, most: int = CONFIG_BYTES, folder: int | None = None) -> bytes:
    """Raises OddRepository for what is no file or too large for one of these."""
    with open(os.open(path, _READ, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OddRepository(f"{os.path.basename(path)} is not a file")
        data = file.read(most + 1)
    if len(data) > most:
        raise OddRepository(f"{os.path.basename(path)} has more than {most} bytes")
    return data


def kind_of(path: str) -> int | None:
    """File, folder or link; None where there is nothing."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None


def kind_at(folder: int, name: str) -> int | None:
    try:
        return stat.S_IFMT(os.lstat(name, dir_fd=folder).st_mode)
    except FileNotFoundError:
        return None


def identity_of(path: str) -> Identity:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


# --- Finds the links in one of git's folders through which a person's git would write: to whatever they lead.

ALTERNATES = "alternates"
MOST_ALTERNATES = 100
FileState = tuple[int, int, int]
"""The numbers of its device and of itself, and when it changed."""
_OLD_HEAD = re.compile(r"refs/heads/[\w-]+")
"""Where a `HEAD` leads that is a link, as git made it long ago."""
_LEVELS = {
    **dict.fromkeys(("", "objects", "objects/pack", "objects/info"), 0),
    **dict.fromkeys(("logs", "refs", "rr-cache", "rebase-merge", "rebase-apply", "sequencer"), None),
}
"""The folders that are looked at, and how deep; None is to the end. Git replaces objects, and does not write them. Of
the others it writes files where they are: the last four are how conflicts were solved, and what is not finished."""


class WatchedPlace(Struct, frozen=True):
    """What something was mounted on: a descriptor of it, its name, and the folder from which it has that name."""

    folder: int | None
    name: str
    descriptor: int

    def is_same(self) -> bool:
        try:
            now = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(now, os.fstat(self.descriptor))

    def still_says(self, data: bytes) -> bool:
        """Whether it is the file that it was, and says what it said."""
        if not self.is_same():
            return False
        try:
            with open(f"/proc/self/fd/{self.descriptor}", "rb") as file:
                return file.read(len(data) + 1) == data
        except OSError:
            return False


class FolderLinks:
    """The links in one of git's folders, as they are found."""

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self.failures: list[str] = []
        """Paths beneath the folder that could not be looked at."""

    def find(self) -> Iterator[tuple[int, str, str]]:
        """Of each the folder that it lies in, the path of that, and its name."""
        for place, levels in _LEVELS.items():
            try:
                folder = descend_to(self._folder, place, open_closed)
            except (FileNotFoundError, NotADirectoryError):  # a link is met in the folder above
                continue
            except OSError:
                self.failures.append(place)
                continue
            try:
                yield from self._find_beneath(folder, place, levels)
            finally:
                os.close(folder)

    def _find_beneath(self, folder: int, place: str, levels: int | None) -> Iterator[tuple[int, str, str]]:
        def note_failure(path: str, _: OSError) -> None:
            self.failures.append(os.path.normpath(f"{place}/{path}").lstrip("/"))

        for visited in visit_folders(folder, note_failure, open_closed):
            path = os.path.normpath(f"{place}/{visited.path}").strip("/")
            try:
                links, folders = _links_and_folders(visited.descriptor)
            except OSError as error:
                note_failure(visited.path, error)
                continue
            for name in links:
                yield visited.descriptor, "" if path == "." else path, name
            visited.inner = [] if levels == 0 else folders


def noted_files(place: str) -> Iterator[FileState]:
    """The links, the indexes and the alternates in one of git's folders, as they are."""
    with suppress(OSError):
        folder = os.open(place, READ_FOLDER_FLAGS)
        try:
            for name in filter(is_index_name, os.listdir(folder)):
                yield state_at(folder, name)
            for inside, _, name in FolderLinks(folder).find():
                yield state_at(inside, name)
        finally:
            os.close(folder)
        yield from _noted_alternates(os.path.realpath(f"{place}/objects"))


def _noted_alternates(objects: str) -> Iterator[FileState]:
    waiting, seen = [objects], set[str]()
    while waiting and len(seen) < MOST_ALTERNATES:
        objects = waiting.pop()
        if objects in seen:
            continue
        seen.add(objects)
        with suppress(OSError), open(os.open(f"{objects}/info/{ALTERNATES}", _READ), "rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode):
                yield status.st_dev, status.st_ino, status.st_ctime_ns
                waiting += filter(None, alternate_folders(file.read(CONFIG_BYTES), objects))


def alternate_folders(alternates: bytes, objects: str) -> Iterator[str | None]:
    """The folders from which git takes further objects, for one of the folder `objects`; None for one that is quoted or
    depends on who asks."""
    for line in filter(None, alternates.split(b"\n")):
        if line.startswith((b'"', b"/proc/")):
            yield None
        elif not line.startswith(b"#") and b"\0" not in line:
            yield os.path.realpath(os.path.join(objects, os.fsdecode(line)))


def is_old_head(folder: int, name: str) -> bool:
    """Whether a link is one that git makes itself."""
    return _OLD_HEAD.fullmatch(os.readlink(name, dir_fd=folder)) is not None


def state_at(folder: int, name: str) -> FileState:
    status = os.lstat(name, dir_fd=folder)
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _links_and_folders(folder: int) -> tuple[list[str], list[str]]:
    """The links and the folders in one."""
    links, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                links.append(entry.name)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
    return sorted(links), sorted(folders)


def is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def publish_file(place: str, data: bytes) -> None:
    """Whole or not at all: git would not start with half of it. Raises FileExistsError where something is there."""
    aside = f"{place}.{system_random(8).hex()}"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444)
    try:
        os.write(descriptor, data)
        os.link(aside, place)
    finally:
        os.close(descriptor)
        os.unlink(aside)


def separate_files(folder: str) -> None:
    """Each file of a folder, as `separate_file` does it. Links are left."""
    try:
        with os.scandir(folder) as entries:
            places = [entry.path for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return
    for place in places:
        separate_file(place, _HOOK_BYTES)


def separate_file(place: str, most_bytes: int = CONFIG_BYTES) -> None:
    """A file of several names becomes one of its own: through another name a command could write it."""
    with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_nlink < 2 or status.st_size > most_bytes:
            return
        data = file.read()
    aside = f"{place}.{system_random(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(aside, flags, stat.S_IMODE(status.st_mode)), "wb") as file:
        file.write(data)
    os.rename(aside, place)
