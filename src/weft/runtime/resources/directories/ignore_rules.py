"""What a folder ignores, decided by git.

Git never sees the folder for this. The files with the rules are copied, never through a link, into empty folders of the
store, and git is asked about names there: whatever lies in the folder under such a name, a pipe or a link, is not
opened by it. Rules of the repository around the folder count, those of the user and of the system do not.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from weft.kernel.errors import LimitExceeded, StoreFailed
from weft.runtime.resources.directories.known_files import OuterFile, stamp_of
from weft.runtime.resources.directories.trees import joined
from weft.runtime.sandbox.git_program import Git
from weft.runtime.tools.beneath import READ_FLAGS

IGNORE_FILE = b".gitignore"
REPOSITORY = b".git"
_MOST_RULE_BYTES = 4 * 1024 * 1024
_MOST_ANSWER_BYTES = 64 * 1024
_GIT_FILE_BYTES = 8192
ANSWER_SECONDS, MOST_SECONDS = 30.0, 60.0
"""For the names of one folder, and of all folders together: some rules take endless time to compare with some names."""


class OuterRules:
    """Where rules lie outside of a folder: above it in its repository, and in the repository's own list."""

    def __init__(self, folder: Path) -> None:
        self.above: tuple[bytes, ...] = ()
        """The names of the folders from the top of the repository to the folder."""
        self._top, self._exclude = _repository_of(folder)
        if self._top is not None:
            self.above = tuple(os.fsencode(part) for part in folder.relative_to(self._top).parts)

    @property
    def files(self) -> list[OuterFile]:
        """All of them, also where none is yet, with what tells whether they changed."""
        paths = [self._exclude] if self._exclude else []
        if self._top is not None:
            paths += [folder / os.fsdecode(IGNORE_FILE) for folder in self._folders_above()]
        return [OuterFile(os.fsencode(path), _stamp(path)) for path in paths]

    def exclude_rules(self) -> bytes | None:
        return None if self._exclude is None else _read_rules(os.fsencode(self._exclude))

    def rules_above(self) -> list[tuple[bytes, bytes]]:
        """The path below the top of each folder above that has rules, and the rules."""
        rules = []
        for depth, folder in enumerate(self._folders_above()):
            text = _read_rules(os.fsencode(folder / os.fsdecode(IGNORE_FILE)))
            if text is not None:
                rules.append((b"/".join(self.above[:depth]), text))
        return rules

    def _folders_above(self) -> list[Path]:
        if self._top is None:
            return []
        parts = [os.fsdecode(name) for name in self.above]
        return [self._top.joinpath(*parts[:depth]) for depth in range(len(parts))]


def _repository_of(folder: Path) -> tuple[Path | None, Path | None]:
    """The top of the repository that a folder lies in, and its own list of what is ignored."""
    for place in (folder, *folder.parents):
        mark = place / os.fsdecode(REPOSITORY)
        try:
            status = mark.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode):
            return place, mark / "info" / "exclude"
        if stat.S_ISREG(status.st_mode):
            return place, _linked_exclude(mark)
    return None, None


def _linked_exclude(mark: Path) -> Path | None:
    """Of a submodule or a second working tree, whose repository lies elsewhere."""
    text = _read_rules(os.fsencode(mark), _GIT_FILE_BYTES) or b""
    if not text.startswith(b"gitdir: ") or b"\0" in text:
        return None
    repository = mark.parent / os.fsdecode(text.removeprefix(b"gitdir: ").rstrip(b"\n"))
    common = _read_rules(os.fsencode(repository / "commondir"), _GIT_FILE_BYTES)
    if common and b"\0" not in common:
        repository = repository / os.fsdecode(common.rstrip(b"\n"))
    return repository / "info" / "exclude"


def _stamp(path: Path) -> tuple[int, int, int, int, int] | None:
    try:
        return stamp_of(path.lstat())
    except OSError:
        return None


def _read_rules(path: bytes, most: int = _MOST_RULE_BYTES, folder: int | None = None) -> bytes | None:
    """The bytes of a file of rules; None where there is no file that can be read."""
    try:
        descriptor = os.open(path, READ_FLAGS, dir_fd=folder)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        try:
            text = file.read(most + 1)
        except OSError:  # it can be opened and not read: rules that git could not read either
            return None
    if len(text) > most:
        raise LimitExceeded(f"the bytes of {os.fsdecode(path)!r}", len(text), most, "shorten the rules in it")
    return text


class IgnoreRules:
    """Answers what is ignored, as long as one snapshot is taken."""

    def __init__(self, git: Git, scratch: Path, outer: OuterRules) -> None:
        self._git, self._scratch = git, scratch
        self._above = b"/".join(outer.above)
        self._exclude = _effective(outer.exclude_rules())
        self._rules = {folder: rules for folder, text in outer.rules_above() if (rules := _effective(text))}
        self._has_outer = bool(self._exclude or self._rules)
        self._ruled: set[bytes] = set()
        """Folders with rules, as paths in the folder that is looked through."""
        self._files: _RuleTree | None = None
        self._folders: _RuleTree | None = None

    def __enter__(self) -> IgnoreRules:
        return self

    def __exit__(self, *_: object) -> None:
        for tree in (self._files, self._folders):
            if tree is not None:
                tree.close()

    def enter(self, folder: int, path: bytes, *, has_rules: bool) -> None:
        """A folder was opened, whose rules count from now on for it and what is below it."""
        rules = _effective(_read_rules(IGNORE_FILE, folder=folder)) if has_rules else None
        if rules:
            self._ruled.add(path)
            inner = joined(self._above, path) if path else self._above
            self._rules[inner] = rules
            for tree in (self._files, self._folders):
                if tree is not None:
                    tree.add(inner, rules)

    def ignored(self, path: bytes, names: Sequence[tuple[bytes, bool]]) -> set[bytes]:
        """Those of the names in a folder that are ignored; each with whether it is a folder."""
        if not names or not (self._has_outer or any(folder in self._ruled for folder in _self_and_above(path))):
            return set()
        if self._files is None or self._folders is None:
            self._files = _RuleTree(self._git, self._scratch, self._exclude, self._rules, of_folders=False)
            self._folders = _RuleTree(self._git, self._scratch, self._exclude, self._rules, of_folders=True)
        place = joined(self._above, path) if path else self._above
        files = self._files.ignored(place, [name for name, is_folder in names if not is_folder])
        return files | self._folders.ignored(place, [name for name, is_folder in names if is_folder])


class _RuleTree:
    """Rules in empty folders, and a git that is asked about names there.

    None of the names is there, and git takes what is not there for no folder. Where it is asked about folders alone, a
    rule for folders alone is therefore written as one for everything.
    """

    def __init__(
        self, git: Git, scratch: Path, exclude: bytes | None, rules: dict[bytes, bytes], *, of_folders: bool
    ) -> None:
        self._of_folders, self._spent = of_folders, 0.0
        self._top = os.fsencode(tempfile.mkdtemp(prefix="rules-", dir=scratch))
        self._write(self._top + b"/exclude", exclude or b"")
        os.mkdir(self._top + b"/top")
        for folder, text in rules.items():
            self.add(folder, text)
        self._process = git.start(
            *("check-ignore", "--stdin", "-z", "--no-index", "--verbose", "--non-matching"),
            work_tree=os.fsdecode(self._top + b"/top"),
            seconds=ANSWER_SECONDS,
            settings=[f"core.excludesFile={os.fsdecode(self._top)}/exclude"],
        )

    def close(self) -> None:
        self._process.__exit__(None, None, None)
        shutil.rmtree(self._top, ignore_errors=True)

    def add(self, folder: bytes, rules: bytes) -> None:
        place = b"/".join(filter(None, (self._top, b"top", folder)))
        os.makedirs(place, exist_ok=True)
        self._write(place + b"/" + IGNORE_FILE, rules)

    def ignored(self, folder: bytes, names: list[bytes]) -> set[bytes]:
        began = time.monotonic()
        try:
            if self._spent > MOST_SECONDS:
                raise StoreFailed(f"it has taken more than {MOST_SECONDS:g} seconds for the folders before")
            return self._ask(folder, names)
        except StoreFailed as error:
            raise StoreFailed(
                f"git cannot tell what the folder {os.fsdecode(folder)!r} ignores: {error}",
                "look for rules with many stars in .gitignore files, and simplify them",
            ) from None
        finally:
            self._spent += time.monotonic() - began

    def _ask(self, folder: bytes, names: list[bytes]) -> set[bytes]:
        paths = [b"./" + joined(folder, name) for name in names]  # a colon in front would be a sign of git's
        self._process.write(b"".join(path + b"\0" for path in paths))
        found = set()
        for name in names:
            _, _, pattern, _ = (self._process.read_until(b"\0", _MOST_ANSWER_BYTES) for _ in range(4))
            if pattern and not pattern.startswith(b"!"):
                found.add(name)
        return found

    def _write(self, path: bytes, rules: bytes) -> None:
        with open(path, "wb") as file:
            file.write(_for_folders(rules) if self._of_folders else rules)


def _effective(rules: bytes | None) -> bytes | None:
    """None where there is no rule among the lines."""
    if rules is None or all(not line.strip() or line.startswith(b"#") for line in rules.splitlines()):
        return None
    return rules


def _for_folders(rules: bytes) -> bytes:
    """The same rules for names that are all those of folders: without the slash at the end that asks for one."""
    return b"\n".join(map(_rule_for_folders, rules.split(b"\n")))


def _rule_for_folders(line: bytes) -> bytes:
    rule = line.removesuffix(b"\r")
    bare = rule.rstrip(b" ")
    if len(bare) < len(rule) and bare.endswith(b"\\"):  # the space after a backslash belongs to the name
        return line
    if not bare.endswith(b"/") or bare.startswith(b"#"):
        return line
    bare = bare[:-1]
    return bare[:-1] + b"\\ " if bare.endswith(b" ") else bare


def _self_and_above(path: bytes) -> Iterable[bytes]:
    while path:
        yield path
        path = path.rpartition(b"/")[0]
    yield b""
