"""The folder that tools work in: its files are read and written beneath it, and nothing else is.

Its files are walked without what `.gitignore` leaves out, and chosen by patterns of paths.
Paths are followed part by part. Links are followed as the kernel would, but no step leads out of the folder. What was
gone through is held open, so that nobody can put another folder in its place meanwhile.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType

from msgspec import Struct

from weft.kernel.authority import pattern_matcher
from weft.kernel.errors import InvalidInput, LimitExceeded
from weft.kernel.foreign_input import KIB, MIB, ReadBudget, ReadLimits
from weft.runtime import opened_folders
from weft.runtime.opened_folders import (
    FOLDER_FLAGS,
    READ_FLAGS,
    READ_FOLDER_FLAGS,
    Identity,
    open_beneath,
    open_folder,
)
from weft.runtime.sandbox.hidden_places import BESIDE_LEDGERS, LEDGER_FOLDER, ledger_files
from weft.runtime.tool.tool_contract import ToolFailure

# --- The folder that tools work in: its files are read and written beneath it, and nothing else is.

FILE_LIMITS = ReadLimits(held_bytes=32 * MIB, entries=200_000, seconds=20, advice="work on it in parts, with a command")
_CHUNK_BYTES, _SMALL_CHUNK_BYTES = 1 * MIB, 16 * 1024
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_MODE = 0o666
"""Less what the umask takes away."""
_PERMISSIONS = 0o777
"""The bits of a mode that a replaced file keeps: setuid, setgid and sticky bits are not among them."""
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class FileBytes(Struct, frozen=True):
    """All of a file, as it was when it was read."""

    data: bytes
    mode: int
    owner: tuple[int, int]

    @property
    def digest(self) -> str:
        return digest_of(self.data)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _own_and_beside(path: Path) -> Iterator[Path]:
    """A file or folder with all that a ledger has beside it now, and what it may have later."""
    yield from (path.with_name(path.name + ending) for ending in ("", *BESIDE_LEDGERS))
    yield from ledger_files(path)


class WorkspaceFolder:
    """One folder. `withheld` are files and folders in it that are not for tools, with what a database keeps beside
    them, and so is every folder `.weft`."""

    def __init__(self, root: Path, *, withheld: Sequence[Path] = (), limits: ReadLimits = FILE_LIMITS) -> None:
        if not root.is_dir():
            raise InvalidInput(f"the workspace {root} is not a folder", "make it first")
        self.root, self.limits = root.resolve(), limits
        self._identity = _identity_of(self.root)
        places = [path for own in withheld for path in _own_and_beside(own.parent.resolve() / own.name)]
        identities = frozenset(_identity_of(path) for path in (*places, self.root / LEDGER_FOLDER) if path.exists())
        paths = frozenset(path.relative_to(self.root).parts for path in places if self.root in path.parents)
        self.withheld = WithheldPaths(frozenset([LEDGER_FOLDER.casefold()]), identities, paths)

    def _open_folder_of(self, path: str) -> _OpenedFolder:
        """The folder's descriptor; what the system refuses inside is a failure of the call that names the path."""
        self.withheld.ensure_parts(parts_of(path))
        return _OpenedFolder(self.root, self._identity, path)

    def resolve(self, path: str) -> BeneathPath:
        """Where a path leads, without links. Raises ToolFailure where it leads out, or to what is withheld."""
        with (
            self._open_folder_of(path) as root,
            PathResolution(root, str(self.root), self.withheld, path) as resolution,
        ):
            resolved = resolution.run()
            self.withheld.ensure_parts(resolved.parts)
            return resolved

    def read(self, path: str) -> FileBytes:
        """All of the file at a resolved path."""
        with self._open_folder_of(path) as root:
            return self._read_all(open_beneath(root, parts_of(path), READ_FLAGS), path)

    def read_if_there(self, path: str) -> FileBytes | None:
        with self._open_folder_of(path) as root:
            try:
                descriptor = open_beneath(root, parts_of(path), READ_FLAGS)
            except FileNotFoundError:
                return None
            return self._read_all(descriptor, path)

    def _read_all(self, descriptor: int, path: str) -> FileBytes:
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            _ensure_regular(status, path)
            self.withheld.ensure(status, path)
            budget = ReadBudget(self.limits)
            what = f"the bytes of {path!r}"
            budget.check_held(status.st_size, what)
            chunks: list[bytes] = []
            size = 0
            while chunk := file.read(min(_CHUNK_BYTES, max(status.st_size - size, _SMALL_CHUNK_BYTES))):
                size += len(chunk)
                budget.check_held(size, what)
                chunks.append(chunk)
            return FileBytes(b"".join(chunks), status.st_mode, (status.st_uid, status.st_gid))

    @contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """The descriptor of the folder at a resolved path, to be listed."""
        with self._open_folder_of(path) as root:
            descriptor = open_beneath(root, parts_of(path), READ_FOLDER_FLAGS)
            try:
                self.withheld.ensure(os.fstat(descriptor), path)
                yield descriptor
            finally:
                os.close(descriptor)

    def replace(self, path: str, data: bytes, *, before: str | None, token: str) -> None:
        """Give the file at a resolved path new bytes. `before` is the digest of those it has now, None where there is
        no file; nothing is written where it has others, or has the new ones already.

        `token` names the file beside it that is written first: a repeated call removes what a crash left there."""
        ReadBudget(self.limits).check_held(len(data), f"the bytes of {path!r}")
        *parents, name = parts_of(path)
        aside = f".weft-{digest_of(token.encode())[:16]}.partial"
        with self._open_folder_of(path) as root:
            folder = open_folder(root, parents, make=before is None)
            try:
                _remove_file(folder, aside)
                present = self._present_file(folder, name, path)
                if present is not None and present.digest == digest_of(data):
                    return
                _ensure_unchanged(present, before, path)
                self._put_file(folder, name, aside, data, present)
            finally:
                os.close(folder)

    def _present_file(self, folder: int, name: str, path: str) -> FileBytes | None:
        try:
            descriptor = os.open(name, READ_FLAGS, dir_fd=folder)
        except FileNotFoundError:
            return None
        return self._read_all(descriptor, path)

    def _put_file(self, folder: int, name: str, aside: str, data: bytes, present: FileBytes | None) -> None:
        try:
            self._write_aside(folder, aside, data, present)
            if present is None:
                _publish_new(folder, aside, name)
            else:
                self._publish_file(folder, aside, name, present.digest)
            _sync_folder(folder)
        finally:
            _remove_file(folder, aside)

    def _publish_file(self, folder: int, aside: str, name: str, before: str) -> None:
        """Give a written file its name. What had the name is looked at afterwards, and put back if it was not what was
        planned: so no change of another program's is lost. Where names cannot be exchanged it is looked at before."""
        _ensure_unchanged(self._present_file(folder, name, name), before, name)
        if not opened_folders.exchange_names(folder, aside, name):
            os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
            return
        try:
            _ensure_unchanged(self._present_file(folder, aside, name), before, name)
        except BaseException:  # whatever it is now, its name is its own again
            opened_folders.exchange_names(folder, aside, name)
            raise

    def _write_aside(self, folder: int, aside: str, data: bytes, present: FileBytes | None) -> None:
        descriptor = os.open(aside, _NEW_FILE, _NEW_FILE_MODE if present is None else 0o600, dir_fd=folder)
        with open(descriptor, "wb") as file:
            if present is not None:
                status = os.fstat(descriptor)
                if (status.st_uid, status.st_gid) != present.owner:
                    os.fchown(descriptor, *present.owner)
                os.fchmod(descriptor, present.mode & _PERMISSIONS)
            file.write(data)
            file.flush()
            os.fsync(descriptor)


class _OpenedFolder:
    """A folder's descriptor while it is open. What the system refuses meanwhile is told as the failure of a call."""

    __slots__ = ("_descriptor", "_identity", "_path", "_root")

    def __init__(self, root: Path, identity: Identity, path: str) -> None:
        self._root, self._identity, self._path = root, identity, path

    def __enter__(self) -> int:
        try:
            self._descriptor = os.open(self._root, READ_FOLDER_FLAGS)
        except OSError as error:
            raise _tool_failure(self._path, error) from error
        status = os.fstat(self._descriptor)
        if (status.st_dev, status.st_ino) != self._identity:
            os.close(self._descriptor)
            raise ToolFailure("changed", "another folder has taken the workspace's place")
        return self._descriptor

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self._descriptor)
        if isinstance(error, OSError):
            raise _tool_failure(self._path, error) from error


def parts_of(path: str) -> tuple[str, ...]:
    """The parts of a resolved path."""
    return () if path == "." else tuple(path.split("/"))


def _identity_of(path: Path) -> Identity:
    status = path.stat()
    return status.st_dev, status.st_ino


def _ensure_regular(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ToolFailure("is_folder", f"{path!r} is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise ToolFailure("not_a_file", f"{path!r} is a device, a pipe or a socket")


def _ensure_unchanged(present: FileBytes | None, before: str | None, path: str) -> None:
    if (None if present is None else present.digest) != before:
        raise ToolFailure("changed", f"{path!r} has changed since this call was planned: read it again")


def _publish_new(folder: int, aside: str, name: str) -> None:
    """Give a written file its name, unless somebody else took the name in between."""
    try:
        os.link(aside, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise ToolFailure("changed", f"{name!r} has appeared since this call was planned: read it first") from None
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)  # a file system without hard links


def _remove_file(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):  # it is gone where it took its own name
        os.unlink(name, dir_fd=folder)


def _sync_folder(folder: int) -> None:
    descriptor = os.open(".", READ_FOLDER_FLAGS, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_CODES = {
    errno.ENOENT: ("not_found", "is not there"),
    errno.ENOTDIR: ("changed", "has a file or a link on its way, where there was a folder"),
    errno.ELOOP: ("changed", "has become a link, or has one on its way"),
    errno.EXDEV: ("outside", "leads out of the workspace"),
    errno.EISDIR: ("is_folder", "is a folder"),
    errno.ENXIO: ("not_a_file", "is a device, a pipe or a socket"),
    errno.EACCES: ("not_permitted", "may not be opened by the user that Weft runs as"),
    errno.EPERM: ("not_permitted", "may not be changed by the user that Weft runs as"),
    errno.ENAMETOOLONG: ("invalid_path", "has a name that is too long"),
    errno.ENOSPC: ("no_space", "does not fit on the disk"),
}


def _tool_failure(path: str, error: OSError) -> ToolFailure:
    """What the system refuses, as the failure that the model is told."""
    code, what = _CODES.get(error.errno or 0, ("system", f"cannot be used: {error.strerror}"))
    return ToolFailure(code, f"{path!r} {what}")


# --- Patterns of paths: `*` and `?` within a name, `[a-z]` for one character, `**` for any folders, `{a,b}` for
# choices.

LONGEST_PATTERN = 1000
MOST_CHOICES = 64
ANY_FOLDERS = "**"
States = frozenset[tuple[int, int]]
"""Pairs of a choice and of how many of its parts have been matched."""
NameMatcher = Callable[[str], bool]
_Sign = Callable[[str], bool] | None
"""What one character of a name must be; None stands for `*`."""


class PathPattern:
    """A pattern over whole paths, from the folder that it is used in."""

    def __init__(self, pattern: str) -> None:
        if not pattern or len(pattern) > LONGEST_PATTERN or "\0" in pattern:
            raise ToolFailure("invalid_pattern", f"a pattern has 1 to {LONGEST_PATTERN} characters")
        self._choices = [_pattern_parts(choice) for choice in choices_of(pattern)]
        self.start = self._closed_states((choice, 0) for choice in range(len(self._choices)))

    def after(self, states: States, name: str) -> States:
        """The states after one more part of a path. Without any, nothing at or below it matches."""
        return self._closed_states(
            (choice, index + (part is not None))
            for choice, index in states
            if index < len(self._choices[choice])
            for part in (self._choices[choice][index],)
            if part is None or part(name)
        )

    def is_match(self, states: States) -> bool:
        return any(index == len(self._choices[choice]) for choice, index in states)

    def matches(self, parts: Sequence[str]) -> bool:
        states = self.start
        for part in parts:
            states = self.after(states, part)
        return self.is_match(states)

    def _closed_states(self, states: Iterable[tuple[int, int]]) -> States:
        """With the states that are reached without a part: `**` stands for no folder as well."""
        reached = set(states)
        pending = list(reached)
        while pending:
            choice, index = pending.pop()
            parts = self._choices[choice]
            following = (choice, index + 1)
            if index < len(parts) and parts[index] is None and following not in reached:
                reached.add(following)
                pending.append(following)
        return frozenset(reached)


def _pattern_parts(pattern: str) -> list[NameMatcher | None]:
    """A matcher for each part, None for `**`."""
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    if ".." in names:
        raise ToolFailure("invalid_pattern", f"the pattern {pattern!r} goes back: name the folder as path")
    return [None if name == ANY_FOLDERS else name_matcher(name) for name in names]


def choices_of(pattern: str) -> list[str]:
    """`a{b,c}d` as `abd` and `acd`. A brace without its other stands for itself."""
    choices, complete = [pattern], list[str]()
    while choices:
        choice = choices.pop()
        span = _first_braces(choice)
        if span is None:
            complete.append(choice)
        else:
            begin, end = span
            inner = _split_choices(choice[begin + 1 : end])
            choices += [choice[:begin] + option + choice[end + 1 :] for option in reversed(inner)]
        if len(choices) + len(complete) > MOST_CHOICES:
            raise ToolFailure("invalid_pattern", f"a pattern stands for at most {MOST_CHOICES} choices")
    return complete


def _first_braces(pattern: str) -> tuple[int, int] | None:
    """Where the first braces with a comma begin and end."""
    opened: list[int] = []
    commas: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for position, sign in enumerate(pattern):
        if sign == "{":
            opened.append(position)
        elif sign == "," and opened:
            commas.add(opened[-1])
        elif sign == "}" and opened and (begin := opened.pop()) in commas:
            pairs.append((begin, position))
    return min(pairs, default=None)


def _split_choices(text: str) -> list[str]:
    options, depth, begin = [], 0, 0
    for position, sign in enumerate(text):
        depth += (sign == "{") - (sign == "}")
        if sign == "," and depth == 0:
            options.append(text[begin:position])
            begin = position + 1
    return [*options, text[begin:]]


@lru_cache(maxsize=1024)
def name_matcher(pattern: str) -> NameMatcher:
    """Whether a whole name fits. `\\` before a sign takes its meaning away."""
    if "[" not in pattern and "\\" not in pattern:
        return pattern_matcher(pattern)
    signs = _pattern_signs(pattern)
    return lambda name: _name_fits(signs, name)


def _name_fits(signs: Sequence[_Sign], name: str) -> bool:
    """Back to the last `*` alone: an earlier one cannot match what a later one does not."""
    at, position = 0, 0
    star, star_position = -1, 0
    while position < len(name):
        sign = signs[at] if at < len(signs) else None
        if at < len(signs) and sign is None:
            star, star_position = at, position
            at += 1
        elif sign is not None and sign(name[position]):
            at, position = at + 1, position + 1
        elif star >= 0:
            star_position += 1
            at, position = star + 1, star_position
        else:
            return False
    return all(sign is None for sign in signs[at:])


def _pattern_signs(pattern: str) -> list[_Sign]:
    signs: list[_Sign] = []
    position = 0
    while position < len(pattern):
        sign = pattern[position]
        end = _set_end(pattern, position) if sign == "[" else -1
        if sign == "*":
            signs.append(None)
        elif sign == "?":
            signs.append(lambda _: True)
        elif end > 0:
            signs.append(_one_of(pattern[position + 1 : end]))
            position = end
        else:
            if sign == "\\" and position + 1 < len(pattern):
                position += 1
            signs.append(pattern[position].__eq__)
        position += 1
    return signs


def _set_end(pattern: str, begin: int) -> int:
    """Where the set that begins here ends; a `]` that comes first belongs to it."""
    first = begin + 1 + (pattern[begin + 1 : begin + 2] in ("!", "^"))
    return pattern.find("]", first + 1)


def _one_of(text: str) -> Callable[[str], bool]:
    is_negated = text[:1] in ("!", "^")
    signs = text[is_negated:]
    ranges: list[tuple[str, str]] = []
    position = 0
    while position < len(signs):
        if signs[position + 1 : position + 2] == "-" and position + 2 < len(signs):
            ranges.append((signs[position], signs[position + 2]))
            position += 3
        else:
            ranges.append((signs[position], signs[position]))
            position += 1
    return lambda sign: any(low <= sign <= high for low, high in ranges) != is_negated


# --- The files beneath a folder of the workspace, without what `.gitignore` leaves out.

IGNORE_FILE = ".gitignore"
VERSION_FOLDERS = frozenset((".git", ".hg", ".svn", ".jj"))
IGNORE_FILE_BYTES = 64 * KIB
MOST_RULES = 500
"""Of one file; a longer one is not followed."""
DEEPEST_FOLDER = 100


class FolderEntry(Struct, frozen=True):
    """One thing in a folder. A link is a link, wherever it leads."""

    name: str
    is_folder: bool
    is_link: bool
    is_file: bool

    @property
    def shown(self) -> str:
        """With a `/` after a folder and an `@` after a link."""
        name = os.fsencode(self.name).decode(errors="backslashreplace")
        return name + ("/" if self.is_folder else "@" if self.is_link else "")


class IgnoreRule(Struct, frozen=True):
    pattern: PathPattern
    is_negated: bool
    is_for_folders: bool
    depth: int
    """Of the folder that its file lies in."""

    def fits(self, parts: tuple[str, ...], is_folder: bool) -> bool:
        return (is_folder or not self.is_for_folders) and self.pattern.matches(parts[self.depth :])


class FolderWalk:
    """One walk. `unreadable` counts folders that could not be opened; `is_complete` says whether no limit was met."""

    def __init__(self, workspace: WorkspaceFolder, budget: ReadBudget) -> None:
        self._workspace, self._budget = workspace, budget
        self.unreadable = 0
        self.is_complete = True

    def entries(self, path: str) -> list[FolderEntry]:
        """What is in the folder at a resolved path, in order, without what is withheld."""
        withheld = self._workspace.withheld
        found: list[FolderEntry] = []
        with self._workspace.folder(path) as folder, os.scandir(folder) as entries:
            for entry in entries:
                self._budget.take_entries()
                if not withheld.has_name(entry.name):
                    is_folder, is_file = entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)
                    found.append(FolderEntry(entry.name, is_folder, entry.is_symlink(), is_file))
        return sorted(found, key=lambda entry: entry.name)

    def files(self, path: str, enters: Callable[[tuple[str, ...]], bool]) -> Iterator[str]:
        """The resolved paths of regular files beneath a folder; `enters` is asked for each folder, by its parts."""
        try:
            yield from self._files(path, enters)
        except LimitExceeded:
            self.is_complete = False

    def _files(self, path: str, enters: Callable[[tuple[str, ...]], bool]) -> Iterator[str]:
        top = parts_of(path)
        pending: list[tuple[tuple[str, ...], tuple[IgnoreRule, ...]]] = [(top, self._rules_above(top))]
        while pending:
            parts, rules = pending.pop()
            self._budget.check_time()
            try:
                entries = self.entries("/".join(parts) or ".")
            except ToolFailure:
                if parts == top:
                    raise
                self.unreadable += 1
                continue
            if any(entry.name == IGNORE_FILE and entry.is_file for entry in entries):
                rules = (*rules, *self._folder_rules(parts))
            folders: list[tuple[tuple[str, ...], tuple[IgnoreRule, ...]]] = []
            for entry in entries:
                inner = (*parts, entry.name)
                if not (entry.is_folder or entry.is_file) or not _is_text(entry.name):
                    continue
                if entry.name in VERSION_FOLDERS or is_ignored(rules, inner, entry.is_folder):
                    continue
                if entry.is_file:
                    yield "/".join(inner)
                elif len(inner) <= DEEPEST_FOLDER and enters(inner):
                    folders.append((inner, rules))
            pending += reversed(folders)

    def _rules_above(self, parts: tuple[str, ...]) -> tuple[IgnoreRule, ...]:
        """Those of the folders above, which hold here too."""
        return tuple(rule for depth in range(len(parts)) for rule in self._folder_rules(parts[:depth]))

    def _folder_rules(self, folder: tuple[str, ...]) -> tuple[IgnoreRule, ...]:
        try:
            present = self._workspace.read_if_there("/".join((*folder, IGNORE_FILE)))
        except ToolFailure:
            return ()
        if present is None or len(present.data) > IGNORE_FILE_BYTES:
            return ()
        return ignore_rules(present.data.decode(errors="replace"), len(folder))


def _is_text(name: str) -> bool:
    """A name whose bytes are no UTF-8 cannot be told to a model, nor be named by it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def ignore_rules(text: str, depth: int) -> tuple[IgnoreRule, ...]:
    """The rules of one file, as git reads them."""
    lines = [line.rstrip("\r").rstrip() for line in text.split("\n")]
    lines = [line for line in lines if line and not line.startswith("#")]
    rules = (_ignore_rule(line, depth) for line in lines) if len(lines) <= MOST_RULES else ()
    return tuple(rule for rule in rules if rule is not None)


def _ignore_rule(line: str, depth: int) -> IgnoreRule | None:
    is_negated = line.startswith("!")
    pattern = line[is_negated:]
    is_for_folders = pattern.endswith("/")
    pattern = pattern.rstrip("/")
    is_anchored = "/" in pattern
    try:
        compiled = PathPattern(pattern.lstrip("/") if is_anchored else f"{ANY_FOLDERS}/{pattern}")
    except ToolFailure:  # git would not know what to make of it either
        return None
    return IgnoreRule(compiled, is_negated, is_for_folders, depth)


def is_ignored(rules: tuple[IgnoreRule, ...], parts: tuple[str, ...], is_folder: bool) -> bool:
    """The last rule that fits decides."""
    return next((not rule.is_negated for rule in reversed(rules) if rule.fits(parts, is_folder)), False)


# --- The path of a tool's file, followed part by part beneath the workspace, and what of it is withheld from tools.

MOST_LINKS = 40
LONGEST_PATH_BYTES = 4096


class BeneathPath(Struct, frozen=True):
    """A path without links, `.` and `..`, as its parts, from the folder that it lies beneath."""

    parts: tuple[str, ...]
    exists: bool

    @property
    def text(self) -> str:
        return "/".join(self.parts) or "."


class WithheldPaths(Struct, frozen=True):
    """What is neither opened nor listed: folders of these names at any depth, and these files and folders, under any
    name, and whatever takes their names."""

    names: frozenset[str] = frozenset()
    identities: frozenset[Identity] = frozenset()
    paths: frozenset[tuple[str, ...]] = frozenset()
    """The parts of their paths in the workspace."""

    def ensure_name(self, name: str) -> None:
        if self.has_name(name):
            raise ToolFailure("withheld", f"{name!r} holds a ledger, which tools neither read nor write")

    def has_name(self, name: str) -> bool:
        return name.casefold() in self.names

    def ensure(self, status: os.stat_result, path: str) -> None:
        if (status.st_dev, status.st_ino) in self.identities:
            raise ToolFailure("withheld", f"{path!r} is not for tools to read or write")

    def ensure_parts(self, parts: tuple[str, ...]) -> None:
        if any(parts[:count] in self.paths for count in range(1, len(parts) + 1)):
            raise ToolFailure("withheld", f"{'/'.join(parts)!r} is not for tools to read or write")


def checked_text(path: str) -> str:
    """Raises ToolFailure for a text that is the path of no file."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise ToolFailure("invalid_path", "a path is Unicode text without lone surrogates") from None
    if not path or "\0" in path or size > LONGEST_PATH_BYTES:
        raise ToolFailure("invalid_path", f"a path has 1 to {LONGEST_PATH_BYTES} bytes, none of them 0")
    return path


def outside(path: str) -> ToolFailure:
    return ToolFailure("outside", f"{path!r} leads out of the workspace")


class PathResolution:
    """One path on its way: the folders that were gone through, held open, and the parts that are still to come."""

    def __init__(self, root: int, place: str, withheld: WithheldPaths, path: str) -> None:
        self._place, self._withheld, self._path = place, withheld, checked_text(path)
        self._folders = [os.dup(root)]
        self._names: list[str] = []
        self._links = 0
        self._pending: list[str] = []

    def __enter__(self) -> PathResolution:
        return self

    def __exit__(self, *_: object) -> None:
        while self._folders:
            os.close(self._folders.pop())

    def run(self) -> BeneathPath:
        self._push_parts(self._path)
        while self._pending:
            name = self._pending.pop()
            if name in ("", "."):
                continue
            if name == "..":
                self._go_back()
                continue
            self._withheld.ensure_name(name)
            try:
                status = os.stat(name, dir_fd=self._folders[-1], follow_symlinks=False)
            except FileNotFoundError:
                return self._missing_path(name)
            if stat.S_ISLNK(status.st_mode):
                self._follow_link(name)
            elif stat.S_ISDIR(status.st_mode):
                self._enter_folder(name)
            else:
                return self._file_path(name, status)
        return BeneathPath(tuple(self._names), True)

    def _push_parts(self, path: str) -> None:
        """An absolute path is meant where it begins with the workspace's own; it goes on from there."""
        if path.startswith("/"):
            prefix = self._place.rstrip("/")
            if path != prefix and not path.startswith(prefix + "/"):
                raise outside(self._path)
            path = path[len(prefix) :]
            while len(self._folders) > 1:
                self._go_back()
        self._pending.extend(reversed(path.split("/")))

    def _go_back(self) -> None:
        if len(self._folders) == 1:
            raise outside(self._path)
        os.close(self._folders.pop())
        self._names.pop()

    def _follow_link(self, name: str) -> None:
        try:
            target = os.readlink(name, dir_fd=self._folders[-1])
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise ToolFailure("changed", f"{self._path!r} changes while it is looked at") from None
        self._links += 1
        if self._links > MOST_LINKS:
            raise ToolFailure("invalid_path", f"{self._path!r} leads through more than {MOST_LINKS} links")
        self._push_parts(checked_text(target))

    def _enter_folder(self, name: str) -> None:
        folder = os.open(name, FOLDER_FLAGS, dir_fd=self._folders[-1])
        self._folders.append(folder)
        self._names.append(name)
        self._withheld.ensure(os.fstat(folder), self._path)

    def _missing_path(self, name: str) -> BeneathPath:
        rest = [part for part in reversed(self._pending) if part not in ("", ".")]
        if ".." in rest:
            raise ToolFailure("not_found", f"{self._path!r} goes back from {name!r}, which is not there")
        for part in rest:
            self._withheld.ensure_name(part)
        return BeneathPath((*self._names, name, *rest), False)

    def _file_path(self, name: str, status: os.stat_result) -> BeneathPath:
        if any(part not in ("", ".") for part in self._pending):
            raise ToolFailure("not_found", f"{self._path!r} goes through {name!r}, which is no folder")
        self._withheld.ensure(status, self._path)
        return BeneathPath((*self._names, name), True)
