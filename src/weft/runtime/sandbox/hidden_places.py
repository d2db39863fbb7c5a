"""What no sandboxed process sees or changes: ledgers with what lies beside them, keys, secrets.

A workspace is looked through for ledgers of projects, for files that commonly hold secrets, and for
sockets of programs that run outside. What was covered at earlier commands is remembered, so that a
command cannot take it out of the next one's look.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from msgspec import DecodeError, Struct, structs

from weft.kernel.errors import InvalidInput, StoreFailed, quoted
from weft.runtime.opened_folders import Identity
from weft.runtime.sandbox.processes import StartAgain
from weft.runtime.sandbox.profiles import Mount, MountKind, cover, is_beneath
from weft.runtime.sandbox.remembered_places import RememberedPlace, remembered_files
from weft.store.private_files import PRIVATE_FOLDER, open_private

# --- Files of a workspace that commonly hold secrets: by their names, some only where they hold what looks like one.

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
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            return stat.S_ISFIFO(mode)  # what is in it is said once, to whoever reads it
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


# --- Looks through a workspace for what commands must not see: ledgers of projects in it, and files of secrets.

LEDGER_FOLDER = ".weft"
MOST_FOLDERS = 200_000
"""Of a workspace that are looked through at every command. It takes some seconds, twice."""
MOST_FETCHED_FOLDERS = 1_000_000
"""Of it that are looked through where something is searched for."""
LONGEST_PATH_BYTES = 3000
"""A folder with a longer path is hidden whole: the system takes no path of more than 4,096 bytes, and what a command
made beneath could not be covered."""
FETCHED_FOLDERS = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "__pycache__", ".tox", ".mypy_cache"})
"""Those that tools fill with what they fetched or made."""
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_INFO_BYTES = 4096
"""The number of the mount stands in the third line of what the kernel says of a descriptor."""


Folder = tuple[str, int, list[os.DirEntry[str]]]
"""One that is looked at: its path, a descriptor and its entries."""


class HiddenEntry(Struct, frozen=True, kw_only=True):
    """A file or folder that is to be hidden."""

    path: str
    """From the workspace on."""
    number: int
    """Its number in its file system, as its folder lists it, also while something is mounted on it."""
    is_folder: bool
    is_secret: bool = False
    """A file of secrets, not a ledger."""
    is_socket: bool = False
    """One at which a program outside answers. It is not remembered: the folders on its way stay where they are."""
    is_lasting: bool = False
    """Its own name does not hide it: it stays hidden when what led to it is gone."""
    is_gathered: bool = False
    """A folder that holds too many of them to be hidden one by one."""
    is_pinned: bool = False
    """Whether the folders on its way must stay where they are while a command runs."""
    device: int = 0
    ignores_shown: bool = False
    """Whether it stays hidden at a path that the person shows: it came there from elsewhere."""

    @property
    def place(self) -> RememberedPlace:
        return RememberedPlace(
            path=os.fsencode(self.path),
            device=self.device,
            number=self.number,
            is_folder=self.is_folder,
            is_lasting=self.is_lasting,
            ignores_shown=self.ignores_shown,
        )


class SearchedWorkspace(Struct, frozen=True, kw_only=True):
    """What a look through a workspace had to say."""

    entries: tuple[HiddenEntry, ...]
    absent: tuple[RememberedPlace, ...] = ()
    """What was covered before and is nowhere now."""


def identity_at(path: str, root: str = "/") -> tuple[int, int]:
    """Device and number of what lies at an absolute path below a root, with no link on its way and none at its end.
    Raises StartAgain: whoever may write there could lead it elsewhere between two looks."""
    place = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in filter(None, path.split("/")):
            try:
                beneath = os.open(name, _OPEN_PLACE, dir_fd=place)
            except OSError as error:
                raise StartAgain(f"{path} was moved ({error.strerror})") from None
            os.close(place)
            place = beneath
        status = os.fstat(place)
    finally:
        os.close(place)
    if stat.S_ISLNK(status.st_mode):
        raise StartAgain(f"{path} became a link")
    return status.st_dev, status.st_ino


def search_workspace(
    workspace: Path,
    secrets: SecretFiles,
    remembered: Collection[RememberedPlace] | None = None,
    linked_ledgers: Mapping[Identity, str] | None = None,
) -> SearchedWorkspace:
    """What is to be hidden in a workspace; its path has no links. A folder that cannot be listed is hidden whole: the
    command could open it. `remembered` is what was covered before; without it fetched folders are looked through, too.
    `linked_ledgers` are files of ledgers that may have another name in the workspace: see `ProtectedPlaces`.
    Raises InvalidInput where there is more than can be looked through."""
    search = _WorkspaceSearch(workspace, secrets, enters_fetched=remembered is None)
    try:
        search.look()
        absent = search.follow(remembered or ())
        search.add_other_names(linked_ledgers or {})
    finally:
        search.close()
    return SearchedWorkspace(entries=tuple(search.entries.values()), absent=tuple(absent))


class _WorkspaceSearch:
    """One look through a workspace."""

    def __init__(self, workspace: Path, secrets: SecretFiles, *, enters_fetched: bool) -> None:
        self._workspace, self._secrets, self._enters_fetched = str(workspace), secrets, enters_fetched
        self._shown = frozenset(secrets.shown())
        self._room = path_room(workspace)
        self._top = os.open(workspace, _OPEN_FOLDER)
        self.entries: dict[str, HiddenEntry] = {}

    def close(self) -> None:
        os.close(self._top)

    def _add(self, entry: HiddenEntry) -> None:
        self.entries.setdefault(entry.path, entry)

    def look(self) -> None:
        """By the rules: what is hidden for its name, and what cannot be looked at."""
        for path, folder, entries in self._walk(MOST_FOLDERS, self._enters_fetched):
            if folder < 0:
                self._add_closed(path)
            for entry in entries:
                hidden = _hidden_entry(self._workspace, path, folder, entry, self._secrets, self._shown)
                if hidden is not None:
                    self._add(self._pinned(hidden))
                elif entry.is_symlink():
                    self._add_beneath_link(_joined(path, entry.name))
        for hidden in _fetched_sockets(self._workspace, self._top):
            self._add(hidden)

    def _add_beneath_link(self, path: str) -> None:
        """What a link to a folder makes a file of secrets, such as a link `.docker`, is hidden where it really lies."""
        for beneath in self._secrets.beneath_link(path.rpartition("/")[2]):
            linked = f"{path}/{beneath}"
            if self._place(linked) not in self._shown:
                hidden = _linked_secret(self._workspace, linked, self._secrets, self._shown)
                if hidden is not None:
                    self._add(hidden)

    def _pinned(self, entry: HiddenEntry) -> HiddenEntry:
        """One that its folder names would be known no longer in a folder of another name. Where nothing is remembered,
        no command may rename the folder."""
        if self._enters_fetched and entry.is_secret and self._secrets.is_named_by_folder(self._place(entry.path)):
            return structs.replace(entry, is_pinned=True)
        return entry

    def _place(self, path: str) -> str:
        return os.path.join(self._workspace, path)

    def _search(self) -> Iterator[Folder]:
        """Every folder, whatever it is called: a command may have named it so that it is passed over."""
        return self._walk(MOST_FETCHED_FOLDERS, True, enters_ledgers=True)

    def _walk(self, most: int, enters_fetched: bool, *, enters_ledgers: bool = False) -> Iterator[Folder]:
        try:
            yield from walk_folders(self._top, most, enters_fetched, ("",), self._room, enters_ledgers)
        except _TooManyFolders as error:
            raise InvalidInput(
                f"the workspace {self._workspace} has more than {most} folders, most of them in "
                f"{quoted(error.largest, 200)}: they cannot all be looked through for what commands must not see",
                "remove that folder or move it elsewhere, or make a folder with fewer of them the workspace",
            ) from None

    def _add_closed(self, path: str) -> None:
        place = os.path.join(self._workspace, path)
        with suppress(FileNotFoundError, KeyError):  # it is gone
            number, device = listed_numbers([place])[place], os.lstat(place).st_dev
            is_pinned = len(os.fsencode(path)) <= self._room
            self._add(HiddenEntry(path=path, number=number, device=device, is_folder=True, is_pinned=is_pinned))

    def follow(self, remembered: Collection[RememberedPlace]) -> list[RememberedPlace]:
        """Hide what was hidden before, wherever it was moved since; what of it is nowhere."""
        covered = {(entry.device, entry.number) for entry in self.entries.values()}
        missing = [place for place in remembered if not (self._is_covered(place, covered) or self._is_shown(place))]
        moved = [place for place in missing if not self._add_at_place(place)]
        if not moved:
            return []
        names = {(os.path.basename(place.text), place.number): place for place in moved}
        reached = set[tuple[str, int]]()
        for path, folder, entries in self._search():
            if folder < 0:  # what is searched for may lie in it
                self._add_closed(path)
            for entry in entries:
                key = entry.name, entry.inode()
                if key in names and names[key].is_folder == is_real_folder(entry):
                    self._add(self._moved_entry(names[key], _joined(path, entry.name), os.fstat(folder).st_dev))
                    reached.add(key)
        return [place for place in moved if (os.path.basename(place.text), place.number) not in reached]

    def _is_covered(self, place: RememberedPlace, covered: Collection[tuple[int, int]]) -> bool:
        """Whether the look by the rules came to it, where it was or elsewhere. Devices are counted anew when a machine
        starts, so the same number at the same path is enough."""
        here = None if place.is_elsewhere else self.entries.get(place.text)
        return (here is not None and here.number == place.number) or (place.device, place.number) in covered

    def _is_shown(self, place: RememberedPlace) -> bool:
        return not (place.ignores_shown or place.is_elsewhere) and self._place(place.text) in self._shown

    def _moved_entry(self, place: RememberedPlace, path: str, device: int) -> HiddenEntry:
        """Where the look by the rules did not come to it, in a folder that it looks through, only the memory hides it:
        its folder has another name now, or a file is shown at that path."""
        return structs.replace(
            _remembered_entry(place, path, device),
            is_lasting=place.is_lasting or not _is_fetched(path),
            ignores_shown=place.ignores_shown or self._place(path) in self._shown,
        )

    def _add_at_place(self, place: RememberedPlace) -> bool:
        """Where it lies in a fetched folder, no rule hides it there: it came there from elsewhere."""
        if place.is_elsewhere or not (place.is_lasting or _is_fetched(place.text)):
            return False
        try:
            device, _ = identity_at(place.text, self._workspace)
        except StartAgain:
            return False
        full = os.path.join(self._workspace, place.text)
        if listed_numbers([full]).get(full) != place.number:
            return False
        self._add(_remembered_entry(place, place.text, device))
        return True

    def add_other_names(self, linked_ledgers: Mapping[Identity, str]) -> None:
        """A file of secrets, or of a ledger, may have further names, by hard links: those are hidden as well."""
        secrets = [entry for entry in self.entries.values() if entry.is_secret]
        names = Counter((entry.device, entry.number) for entry in secrets)
        wanted = set[tuple[int, int]]()
        for secret in secrets:
            with suppress(OSError):  # it is gone
                status = os.stat(secret.path, dir_fd=self._top, follow_symlinks=False)
                identity = status.st_dev, status.st_ino
                if identity == (secret.device, secret.number) and status.st_nlink > names[identity]:
                    wanted.add(identity)
        ledgers = {**dict.fromkeys(self._linked_in_ledger_folders(), ""), **linked_ledgers}
        numbers = {number for _, number in (*wanted, *ledgers)}
        hidden_folders = tuple(f"{entry.path}/" for entry in self.entries.values() if entry.is_folder)
        for path, folder, entries in self._search() if numbers else ():
            for entry in entries:
                if entry.inode() in numbers and entry.is_file(follow_symlinks=False):
                    name, device = _joined(path, entry.name), os.fstat(folder).st_dev
                    identity, place = (device, entry.inode()), self._place(name)
                    is_other = (
                        identity in ledgers and place != ledgers[identity] and not name.startswith(hidden_folders)
                    )
                    if is_other or (identity in wanted and place not in self._shown):
                        self._add(_secret(name, entry.inode(), device, is_lasting=True))

    def _linked_in_ledger_folders(self) -> Iterator[Identity]:
        """Files of several names that lie in ledgers' folders themselves, which are hidden."""
        for hidden in self.entries.values():
            if hidden.is_folder and os.path.basename(hidden.path).casefold() == LEDGER_FOLDER:
                folder = _open_folder(self._top, hidden.path)
                if folder is None or folder < 0:
                    continue
                try:
                    with os.scandir(folder) as listed:
                        for entry in listed:
                            identity = _identity_of_several_names(entry.stat(follow_symlinks=False))
                            if identity is not None:
                                yield identity
                finally:
                    os.close(folder)


def _remembered_entry(place: RememberedPlace, path: str, device: int) -> HiddenEntry:
    return HiddenEntry(
        path=path,
        number=place.number,
        device=device,
        is_folder=place.is_folder,
        is_secret=not place.is_folder,
        is_lasting=place.is_lasting,
        ignores_shown=place.ignores_shown,
        is_pinned=os.path.basename(path).casefold() == LEDGER_FOLDER,
    )


def _is_fetched(path: str) -> bool:
    """Whether it lies in a folder that tools fill."""
    return not FETCHED_FOLDERS.isdisjoint(path.split("/")[:-1])


def listed_numbers(places: Iterable[str]) -> dict[str, int]:
    """The numbers of files and folders as their folders list them, of those that are there."""
    numbers: dict[str, int] = {}
    for parent, names in _by_folder(places).items():
        with suppress(OSError), os.scandir(parent) as listed:
            numbers |= {os.path.join(parent, entry.name): entry.inode() for entry in listed if entry.name in names}
    return numbers


def ensure_hidden(
    inside: int,
    planned: Mapping[str, int | None],
    workspace: Path,
    secrets: SecretFiles,
    *,
    enters_fetched: bool = False,
) -> None:
    """Raises StartAgain unless all is mounted where it was planned, over the very things that were to be hidden, and
    nothing else is seen that is to be hidden. `inside` is the workspace as the command will see it; `planned` has the
    paths in it of what is mounted there, and the number of what lies under it, where that matters."""
    for parent, names in _by_folder(planned).items():
        try:
            folder = os.open(parent or ".", _OPEN_FOLDER, dir_fd=inside)
        except OSError as error:
            raise StartAgain(f"{parent} was replaced ({error.strerror})") from None
        try:
            mount = _mount_id(folder)
            with os.scandir(folder) as listed:
                numbers = {entry.name: entry.inode() for entry in listed if entry.name in names}
            for name in names:
                path = _joined(parent, name)
                number = planned[path]
                is_there = name in numbers and number in (None, numbers[name])
                if not is_there or not _is_mount_point(folder, name, above=mount):
                    raise StartAgain(f"{path} was moved or replaced")
        finally:
            os.close(folder)
    top, shown = os.open(".", _OPEN_FOLDER, dir_fd=inside), frozenset(secrets.shown())
    try:
        for path, folder, entries in walk_folders(top, MOST_FOLDERS, enters_fetched, ("",), path_room(workspace)):
            if folder < 0 and not _is_mount_point(top, path):
                raise StartAgain(f"{path} was closed")
            for entry in entries:
                hidden = _hidden_entry(str(workspace), path, folder, entry, secrets, shown)
                if hidden is not None and not entry.is_symlink() and not _is_mount_point(folder, entry.name):
                    raise StartAgain(f"{hidden.path} came to where it is")
    except _TooManyFolders as error:
        raise StartAgain(f"folders came to {error.largest}") from None
    finally:
        os.close(top)


class _TooManyFolders(Exception):
    """More than are looked through; `largest` is the one in which most of those lie that are left."""

    def __init__(self, waiting: Iterable[str]) -> None:
        super().__init__()
        ((self.largest, _),) = Counter(path.partition("/")[0] for path in waiting).most_common(1)


def path_room(workspace: Path) -> int:
    """So many bytes may a path in a workspace have."""
    return LONGEST_PATH_BYTES - len(os.fsencode(workspace))


def walk_folders(
    top: int,
    most: int = MOST_FOLDERS,
    enters_fetched: bool = False,
    begin: Iterable[str] = ("",),
    room: int = LONGEST_PATH_BYTES,
    enters_ledgers: bool = False,
) -> Iterator[Folder]:
    """The folders beneath one, the uppermost first, links not followed. Raises where there are more of them. One that
    cannot be listed, or has a path of more bytes than there is `room` for, has no entries, and the descriptor -1."""
    waiting, count = deque(begin), 0
    while waiting:
        count += 1
        if count > most:
            raise _TooManyFolders(waiting)
        path = waiting.popleft()
        folder = _open_folder(top, path) if 4 * len(path) <= room or len(os.fsencode(path)) <= room else -1
        if folder is None:
            continue
        if folder < 0:
            yield path, -1, []
            continue
        try:
            with os.scandir(folder) as listed:
                entries = list(listed)
            yield path, folder, entries
        finally:
            os.close(folder)
        for entry in entries:
            is_left_out = not enters_fetched and entry.name in FETCHED_FOLDERS
            is_entered = enters_ledgers or not is_ledger_folder(entry)
            if is_entered and is_real_folder(entry) and not is_left_out:
                waiting.append(_joined(path, entry.name))


def folders_numbered(place: str, number: int) -> Iterator[str]:
    """The folders of a number beneath one, wherever they lie. Where there are too many to look through, those that were
    come to."""
    top = os.open(place, _OPEN_FOLDER)
    try:
        for path, folder, entries in walk_folders(top, MOST_FETCHED_FOLDERS, enters_fetched=True):
            for entry in entries if folder >= 0 else ():
                if entry.inode() == number and is_real_folder(entry):
                    yield os.path.join(place, path, entry.name)
    except _TooManyFolders:
        return
    finally:
        os.close(top)


def _open_folder(top: int, path: str) -> int | None:
    """None where it is gone, or was replaced by something else; -1 where it cannot be opened."""
    try:
        return os.open(path or ".", _OPEN_FOLDER, dir_fd=top)
    except OSError as error:
        return None if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) else -1


def is_ledger_folder(entry: os.DirEntry[str]) -> bool:
    return entry.name.casefold() == LEDGER_FOLDER and is_real_folder(entry)


def is_real_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # it is gone
        return False


def _hidden_entry(
    workspace: str, path: str, folder: int, entry: os.DirEntry[str], secrets: SecretFiles, shown: frozenset[str]
) -> HiddenEntry | None:
    """What is to be hidden because of an entry of a folder: the entry, or the file that it leads to."""
    if is_ledger_folder(entry):
        return HiddenEntry(
            path=_joined(path, entry.name),
            number=entry.inode(),
            device=os.fstat(folder).st_dev,
            is_folder=True,
            is_pinned=True,
        )
    is_file = entry.is_file(follow_symlinks=False)
    if not is_file and _is_odd(entry):
        kind = _kind_of(entry)
        if kind == stat.S_IFSOCK:
            return _socket_entry(_joined(path, entry.name), entry.inode(), folder)
        is_file = kind == stat.S_IFIFO  # a manager of secrets writes them into a pipe for whoever opens it
    if not secrets.is_named(entry.name):  # as nearly all
        return None
    entry_path = _joined(path, entry.name)
    if os.path.join(workspace, entry_path) in shown:
        return None
    if is_file:
        is_secret = secrets.has(os.path.join(workspace, entry_path), folder, entry.name)
        return _secret(entry_path, entry.inode(), os.fstat(folder).st_dev) if is_secret else None
    return _linked_secret(workspace, entry_path, secrets, shown) if entry.is_symlink() else None


def is_linked_secret(workspace: str, path: str, secrets: SecretFiles) -> bool:
    """Whether a path of a workspace leads through a link to a file that is hidden for the name of the link."""
    place = os.path.join(workspace, path)
    is_link = secrets.is_named(path) and os.path.realpath(place) != place
    return is_link and _linked_secret(workspace, path, secrets, frozenset(secrets.shown())) is not None


def _linked_secret(workspace: str, path: str, secrets: SecretFiles, shown: frozenset[str]) -> HiddenEntry | None:
    """A link of a secret's name: over a link nothing can be mounted, so the file that it leads to is hidden."""
    target = os.path.realpath(os.path.join(workspace, path))
    if target == workspace or not is_beneath(target, workspace) or target in shown:
        return None  # what lies outside is not seen anyway
    try:
        folder = os.open(os.path.dirname(target), _OPEN_FOLDER)
    except OSError:
        return None
    try:
        mode = os.stat(os.path.basename(target), dir_fd=folder, follow_symlinks=False).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            return None
        is_secret = secrets.has(os.path.join(workspace, path), folder, os.path.basename(target))
        device = os.fstat(folder).st_dev
    except OSError:  # it leads nowhere
        return None
    finally:
        os.close(folder)
    number = listed_numbers([target]).get(target) if is_secret else None
    return None if number is None else _secret(os.path.relpath(target, workspace), number, device, is_lasting=True)


def _secret(path: str, number: int, device: int, *, is_lasting: bool = False) -> HiddenEntry:
    return HiddenEntry(path=path, number=number, device=device, is_folder=False, is_secret=True, is_lasting=is_lasting)


def _is_odd(entry: os.DirEntry[str]) -> bool:
    """Whether it is neither a folder nor a link, of what is no file."""
    return not is_real_folder(entry) and not entry.is_symlink()


def _kind_of(entry: os.DirEntry[str]) -> int:
    try:
        return stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
    except OSError:  # it is gone
        return 0


# --- Sockets in a workspace. No namespace keeps a command from what a path leads to: a program of the person that
# answers there (an editor, a terminal multiplexer, an engine of containers) would do outside what the command says.

_GIT_MONITOR = "fsmonitor--daemon.ipc"
"""Git's own, which starts and stops with the person's commands, and answers only what has changed."""


def _socket_entry(path: str, number: int, folder: int) -> HiddenEntry | None:
    """A socket at which a program answers. `folder` is the descriptor of the folder that it lies in."""
    try:
        place = os.open(os.path.basename(path), _OPEN_PLACE, dir_fd=folder)
    except OSError:  # it is gone
        return None
    try:
        status = os.fstat(place)
        if not stat.S_ISSOCK(status.st_mode) or not is_answered(place):
            return None
    finally:
        os.close(place)
    return HiddenEntry(path=path, number=number, device=status.st_dev, is_folder=False, is_socket=True, is_pinned=True)


def _fetched_sockets(workspace: str, top: int) -> Iterator[HiddenEntry]:
    """Those in folders that tools fill, which are not looked through at every command, by the names that the kernel
    lists of those that are bound in this network namespace."""
    for place in sorted(bound_places()):
        path = os.path.relpath(place, workspace) if is_beneath(place, workspace) else ""
        if not _is_fetched(path) or os.path.basename(path) == _GIT_MONITOR:
            continue
        try:
            identity_at(path, workspace)
            folder = os.open(os.path.dirname(path), _OPEN_FOLDER, dir_fd=top)
        except (OSError, StartAgain):  # it was moved
            continue
        try:
            number = listed_numbers([place]).get(place)
            hidden = None if number is None else _socket_entry(path, number, folder)
        finally:
            os.close(folder)
        if hidden is not None:
            yield hidden


def _identity_of_several_names(status: os.stat_result) -> Identity | None:
    """None for what is no file, or has one name."""
    has_several = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    return (status.st_dev, status.st_ino) if has_several else None


def _is_mount_point(folder: int, name: str, above: bytes | None = None) -> bool:
    """`above` is the mount of the folder, where that was asked."""
    try:
        place = os.open(name, _OPEN_PLACE, dir_fd=folder)
    except OSError:  # it is gone
        return False
    try:
        return _mount_id(place) != (above or _mount_id(folder))
    finally:
        os.close(place)


def _mount_id(descriptor: int) -> bytes:
    file = os.open(f"/proc/self/fdinfo/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        lines = os.read(file, _MOST_INFO_BYTES).splitlines()
    finally:
        os.close(file)
    return next(line for line in lines if line.startswith(b"mnt_id:"))


def _by_folder(paths: Iterable[str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for path in paths:
        parent, name = os.path.split(path)
        names.setdefault(parent, []).append(name)
    return names


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


# --- What no sandboxed process sees or changes, wherever it lies: ledgers with what is kept beside them, keys,
# decisions.

BESIDE_LEDGERS = (
    "-wal", "-shm", "-journal", "-lock", "-head", "-near-", "-import.", "-files", ".replaced-", ".schema-",
)  # fmt: skip
"""How the names of what lies beside a ledger go on after its own; docs/concepts.md lists them."""
_MADE_FILES = ("-wal", "-shm", "-journal", "-lock", "-head", "-import.lock")
_DATA_ENDINGS = ("", "-wal", "-journal")
_REPLACED = ("-near-", "-import.json", "-import.log", ".replaced-", ".schema-")
_MADE_FOLDER = "-files"
"""Made, empty, beside a ledger that lies open in a workspace: over what is not there nothing can be mounted, and what a
command made by such a name would be believed. SQLite would take a journal or a log for its own. Empty ones say nothing
to it, nor to Weft."""
_NO_ROOM_TO_WRITE = (errno.EROFS, errno.EACCES, errno.EPERM)
MOST_COVERS = 1500
"""Bubblewrap takes 9,000 words, of which a cover needs five."""
_OTHER_DESCRIPTORS = 256
"""A process needs one for each file that is covered, and these beside."""
_MOST_GATHERED = 20
"""So many folders are hidden whole instead."""


class ProtectedPlaces(Struct, frozen=True, kw_only=True):
    """What is hidden from every sandboxed process."""

    ledgers: tuple[Path, ...]
    """Files of databases. What is kept beside one is hidden with it."""
    folders: tuple[Path, ...]
    """Keys, decisions, configuration, what is kept of resources; also those that do not exist yet."""
    others: Callable[[], Collection[str]] = tuple
    """The real paths of further ledgers that the person trusts, as they are when something is started. They are hidden
    as those are that are named."""
    secrets: SecretFiles = SecretFiles()
    """Files of the workspace that are hidden from commands, though not from other tools."""
    programs: Callable[[], Collection[str]] = tuple
    """The real paths of what Weft starts with more than a command has, such as MCP servers with their keys, as they are
    when something is started. They are seen, and no command can write them."""

    @property
    def paths(self) -> tuple[Path, ...]:
        return (*self.ledgers, *self.folders)

    @property
    def withheld(self) -> tuple[Path, ...]:
        """What tools for files neither read nor write: also the further ledgers, as they are now."""
        return (*self.paths, *map(Path, self.others()))

    def covers(self, mounts: Iterable[Mount], real_paths: Mapping[str, str] | None = None) -> list[Mount]:
        """What hides these places wherever one of the mounts shows them. `real_paths` has those of sources that no
        command can change."""
        real_of = real_paths or {}
        binds = [mount for mount in mounts if mount.kind in (MountKind.READ_ONLY, MountKind.WRITABLE)]
        sources = [(real_of.get(bind.source) or os.path.realpath(bind.source), bind) for bind in binds]
        folders = [place for folder in self.folders for place in _real_places(folder)]
        self.ensure_outside(source for source, _ in sources)
        return list(self._covers(sources, folders))

    def linked_ledgers(self) -> dict[Identity, str]:
        """The files of ledgers that have several names, with the real path of the one that is known."""
        linked = {}
        for ledger in dict.fromkeys((*map(str, self.ledgers), *self.others())):
            for file in (ledger + ending for ending in _DATA_ENDINGS):
                with suppress(OSError):  # it is not there
                    identity = _identity_of_several_names(os.stat(file))
                    if identity is not None:
                        linked[identity] = os.path.realpath(file)
        return linked

    def ensure_outside(self, paths: Iterable[str | Path]) -> None:
        """Raises InvalidInput for a path that lies in one of these places: it is no workspace, and is not shown."""
        folders = [place for folder in self.folders for place in _real_places(folder)]
        for path in paths:
            for folder in folders:
                if is_beneath(os.path.realpath(path), folder):
                    raise InvalidInput(
                        f"{path} lies in {folder}, which no command in the sandbox may see", "name another folder"
                    )

    def open_ledgers(self, folder: str) -> list[str]:
        """The ledgers that lie in a folder and in no `.weft`: beside those a command could make files."""
        ledgers = dict.fromkeys((*map(os.path.realpath, self.ledgers), *self.others()))
        return [ledger for ledger in ledgers if _is_open_ledger(ledger, folder)]

    @property
    def replaced_beginnings(self) -> tuple[str, ...]:
        """How the paths begin of files beside ledgers that Weft itself replaces, and believes nothing of."""
        return tuple(ledger + ending for ledger in self._all_ledgers for ending in _REPLACED)

    @property
    def _all_ledgers(self) -> tuple[str, ...]:
        named = [place for ledger in self.ledgers for place in _real_places(ledger)]
        return tuple(dict.fromkeys((*named, *self.others())))

    def _covers(self, sources: Sequence[tuple[str, Mount]], folders: Sequence[str]) -> Iterator[Mount]:
        for ledger in self._all_ledgers:
            if any(is_beneath(ledger, source) for source, _ in sources):
                if any(bind.kind is MountKind.WRITABLE and _is_open_ledger(ledger, source) for source, bind in sources):
                    _make_missing(ledger)
                for file in ledger_files(Path(ledger)):
                    yield from _covers_of(str(file), sources)
        for folder in folders:
            yield from _covers_of(folder, sources)


def few_entries(entries: Sequence[HiddenEntry], others: int) -> tuple[HiddenEntry, ...]:
    """What of a workspace is covered so that no more mounts are needed than bubblewrap makes; `others` are needed
    beside. Where it would be more, folders that hold many such entries are hidden whole. Raises InvalidInput where
    that does not help."""
    few, largest = list(entries), ""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    has_any = descriptors == resource.RLIM_INFINITY
    most = MOST_COVERS if has_any else max(0, min(MOST_COVERS, descriptors - _OTHER_DESCRIPTORS))
    for _ in range(_MOST_GATHERED):
        if _mounts_for(few) + others <= most:
            return tuple(few)
        beneath = Counter(folder for entry in few for folder in _folders_on_way(entry.path))
        largest, count = max(beneath.items(), key=lambda pair: (pair[1], len(pair[0])), default=("", 0))
        if count < 2:
            break
        few = [entry for entry in few if not is_beneath(entry.path, largest)]
        few.append(HiddenEntry(path=largest, number=0, is_folder=True, is_pinned=True, is_gathered=True))
    where = f", some of them in {quoted(largest, 200)}" if largest else ""
    raise InvalidInput(
        f"the workspace holds more than {most} files and folders that must be hidden{where}",
        "remove what a program made there, or make a folder with fewer of them the workspace",
    )


def _mounts_for(entries: Sequence[HiddenEntry]) -> int:
    """Covers, and folders that are held in their place."""
    pinned = {folder for entry in entries if entry.is_pinned for folder in _folders_on_way(entry.path)}
    return len(entries) + len(pinned)


def _folders_on_way(path: str) -> Iterator[str]:
    while path := os.path.dirname(path):
        yield path


def _covers_of(place: str, sources: Sequence[tuple[str, Mount]]) -> Iterator[Mount]:
    """Covers of one place of the machine, at each place inside at which it would be seen."""
    for source, bind in sources:
        if not is_beneath(place, source) or os.path.islink(place):
            continue
        inside = os.path.normpath(os.path.join(bind.place, os.path.relpath(place, source)))
        if os.path.lexists(place):
            yield cover(inside, is_folder=os.path.isdir(place))
        elif bind.kind is MountKind.WRITABLE and LEDGER_FOLDER not in Path(place).parts:
            os.makedirs(place, 0o700)  # else the command could make it, and what it wrote there would be believed
            yield cover(inside, is_folder=True)


def _is_open_ledger(ledger: str, folder: str) -> bool:
    """Whether a ledger lies in a folder so that no cover of a `.weft` hides it: one in a folder that tools fill is not
    looked for."""
    if not is_beneath(ledger, folder) or not stat.S_ISREG(_mode_of(ledger)):
        return False
    parts = Path(os.path.relpath(ledger, folder)).parts
    return LEDGER_FOLDER not in parts or not FETCHED_FOLDERS.isdisjoint(parts)


def _mode_of(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _make_missing(ledger: str) -> None:
    try:
        for name in _MADE_FILES:
            with suppress(FileExistsError):
                os.close(open_private(Path(ledger + name)))
        with suppress(FileExistsError):
            os.mkdir(ledger + _MADE_FOLDER, PRIVATE_FOLDER)
    except OSError as error:
        if error.errno not in _NO_ROOM_TO_WRITE:  # where this process cannot write, no command can
            raise StoreFailed(
                f"what lies beside the ledger {ledger} cannot be hidden: {error.strerror}", "make room there"
            ) from None


def ledger_files(ledger: Path) -> Iterator[Path]:
    """The file of a ledger, and what lies beside it, as far as it is there."""
    try:
        names = os.listdir(ledger.parent)
    except OSError:  # it is gone, or cannot be read, neither by a command
        return
    beside = tuple(ledger.name + ending for ending in BESIDE_LEDGERS)
    yield from (ledger.with_name(name) for name in sorted(names) if name == ledger.name or name.startswith(beside))


def _real_places(path: Path) -> tuple[str, ...]:
    """The path with the links on its way resolved; where it is a link itself, also what that leads to."""
    return tuple(dict.fromkeys((str(path.parent.resolve() / path.name), os.path.realpath(path))))


# --- Which files of a workspace are hidden from commands in the sandbox, for the tools that read files outside of it.


class HiddenFiles:
    """Those of one workspace."""

    def __init__(self, workspace: Path, secrets: SecretFiles, covered_places: Path | None) -> None:
        """`covered_places`: beneath it is noted what was covered; see `PersonFolders`."""
        self._workspace, self._secrets, self._noted = os.path.realpath(workspace), secrets, covered_places

    def is_hidden(self, path: str, asked: str | None = None) -> bool:
        """Whether commands do not see a file, by its path from the workspace on, without links. `asked` is how it was
        named."""
        if asked is not None:
            named = os.path.relpath(os.path.join(self._workspace, asked), self._workspace)
            if is_linked_secret(self._workspace, named, self._secrets):
                return True
        return self.look()(path)

    def look(self) -> Callable[[str], bool]:
        """The same of many files: what was covered is read once."""
        numbers = self._covered()

        def is_hidden(path: str) -> bool:
            if numbers is None or self._secrets.hides(self._workspace, path):
                return True
            return bool(numbers) and _number(os.path.join(self._workspace, path)) in numbers

        return is_hidden

    def is_hidden_by_name(self, path: str) -> bool:
        """Whether a file is hidden for its name, or would be if the person did not show it."""
        return SecretFiles(more=self._secrets.more).hides(self._workspace, path)

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Of the files that were covered, as they are noted when this is first asked. Raises StoreFailed where that
        cannot be known."""
        numbers = self._covered()
        if numbers is None:
            raise StoreFailed(
                f"what is hidden from commands in {self._workspace} cannot be read in {self._noted}",
                "make its files readable",
            )
        return numbers

    def _covered(self) -> frozenset[int] | None:
        """None where it cannot be known."""
        if self._noted is None:
            return frozenset()
        try:
            return remembered_files(self._noted, Path(self._workspace))
        except (OSError, DecodeError):
            return None


def _number(place: str) -> int | None:
    try:
        return os.lstat(place).st_ino
    except OSError:  # it is gone
        return None


# --- Which sockets of the file system a program has open.

_BOUND_SOCKETS = "/proc/net/unix"


def is_answered(place: int) -> bool:
    """Whether a program has the socket open to which a descriptor of its path leads; also one in another namespace.
    Nothing is sent, and nobody notices: the kernel connects no socket of datagrams to one of streams."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(f"/proc/self/fd/{place}")
        except ConnectionRefusedError:  # it was left there
            return False
        except OSError:
            return True
    return True


def bound_places() -> set[str]:
    """The paths by which those of this network namespace were bound, as far as they have a folder in them."""
    try:
        with open(_BOUND_SOCKETS, encoding="utf-8", errors="surrogateescape") as listed:
            lines = [line.rstrip("\n").split(" ", 7) for line in listed if "/" in line]
    except OSError:  # a system that lists none
        return set()
    return {words[7].lstrip() for words in lines if len(words) > 7}
