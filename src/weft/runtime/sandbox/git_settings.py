"""Git's configuration as a program in the sandbox may have it: known names, values of known forms.

The files that a configuration includes are listed, with what of the way to them a command could
change.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

# --- Git's configuration as a program in the sandbox may have it: settings of known names with values of known forms.

CONFIG_BYTES = 256 * 1024
READ_ONLY_SETTINGS = (
    "git's configuration is read-only in the sandbox: a person runs commands that write it (`git config`, "
    "`git remote`, `git branch -u`) outside of it"
)
LOST_SETTINGS = (
    "git's settings for all repositories (`git config --global`) were written to the home folder of the sandbox, which "
    "is gone now: a person sets them outside of it, and `git -c NAME=VALUE` sets one for a single command"
)
NOT_CLEANED = "could not be looked through, and is once more before the next command"
_REFUSED_WRITES = (b"Device or resource busy", b"Read-only file system")
_SECTION = re.compile(r'\s*\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\\n]|\\[^\n])*)")?\s*\]')
_NAME = re.compile(r"[ \t]*([A-Za-z][A-Za-z0-9-]*)[ \t]*")
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", "\\": "\\", '"': '"'}
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*)(?::[0-9]{1,5})?"
_USER = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"
_SCP_ADDRESS = re.compile(rf"(?:{_USER}@)?[A-Za-z0-9_][A-Za-z0-9_.-]*:(?![:-])[^\s?#]+")
_LOCAL_ADDRESS = re.compile(r"(?:/|\.{1,2}/)[^\x00-\x1f\x7f]*")
_PLAIN = re.compile(r"[^\x00-\x1f\x7f]{1,1000}")


class GitSetting(Struct, frozen=True):
    """One line of a configuration. A section with a subsection has one value for each of those."""

    section: str
    subsection: str | None
    name: str
    value: str

    @property
    def key(self) -> str:
        parts = (self.section, self.subsection, self.name)
        return ".".join(part for part in parts if part is not None)


class UnreadableSettings(Exception):
    """Git stops with an error there."""


class GitIdentity(Struct, frozen=True):
    """Who a person is in commits, as their own configuration says."""

    name: str = ""
    email: str = ""


class GitLeftovers(Struct, frozen=True):
    """What is to be said of git after a command: what was taken away from new repositories, what still runs by itself,
    both as paths in the workspace, which repositories could only be read, with why, and the branches that follow a
    remote's from now on, what could not be done afterwards, and what was done first about one that was cut off."""

    taken_away: tuple[str, ...] = ()
    runs_by_itself: tuple[str, ...] = ()
    not_cleaned: tuple[str, ...] = ()
    """What could not be looked at or mended; the next command looks at it once more."""
    read_only: tuple[str, ...] = ()
    upstreams: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    interrupted: tuple[str, ...] = ()
    has_lost_settings: bool = False
    """Whether it wrote settings for all repositories, which are gone with its home folder."""

    def sentences(self, errors: bytes) -> list[str]:
        """For whoever reads the result. `errors` is what the command wrote to its error stream."""
        sentences = [*self.interrupted, *self.failures]
        if any(b"config" in line and any(why in line for why in _REFUSED_WRITES) for line in errors.splitlines()):
            sentences.append(READ_ONLY_SETTINGS)
        if self.has_lost_settings:
            sentences.append(LOST_SETTINGS)
        if b"Read-only file system" in errors:
            sentences += [f"this repository can only be read here: {name}" for name in self.read_only]
        sentences += [f"follows the branch of the remote that it was made from: {name}" for name in self.upstreams]
        sentences += [f"taken away, for git would obey it outside of the sandbox: {name}" for name in self.taken_away]
        sentences += [f"{NOT_CLEANED}: {name}" for name in self.not_cleaned]
        return sentences + [f"runs by itself outside of the sandbox: {name}" for name in self.runs_by_itself]


def read_settings(config: bytes) -> Iterator[GitSetting]:
    """The settings of a configuration in their order, up to what git could not read either."""
    with suppress(UnreadableSettings):
        yield from _read_settings(config)


def restored_settings(before: bytes, now: bytes) -> bytes | None:
    """What a configuration said before, with the harmless part of what was added since; None where nothing else was
    added."""
    old = frozenset(read_settings(before))
    try:
        added = [setting for setting in _read_settings(now) if setting not in old]
    except UnreadableSettings:
        return before
    harmless = [_harmless(setting) for setting in added]
    if harmless == added:
        return None
    return before + b"\n" + b"".join(_line_of(setting) for setting in harmless if setting is not None)


def upstream_settings(config: bytes, branch: str, start: str) -> bytes | None:
    """What git adds to a configuration for a branch that was made from a remote's, whose name is `start`; None where
    that is none of a remote's, or something is configured for the branch or for all of them."""
    try:
        settings = list(_read_settings(config))
    except UnreadableSettings:
        return None
    sections = {(setting.section, setting.subsection) for setting in settings}
    if ("branch", branch) in sections or any(setting.key == "branch.autosetupmerge" for setting in settings):
        return None
    remotes = {
        setting.subsection
        for setting in settings
        if (setting.section, setting.name) == ("remote", "url") and setting.subsection
    }
    name = start.removeprefix("refs/remotes/")
    remote = max((remote for remote in remotes if name.startswith(f"{remote}/")), key=len, default=None)
    if remote is None or _name(remote) is None:
        return None
    merge = f"refs/heads/{name.removeprefix(f'{remote}/')}"
    if any(_branch(text) is None or ".." in text or "//" in text for text in (merge, f"refs/heads/{branch}")):
        return None
    lines = (GitSetting("branch", branch, "remote", remote), GitSetting("branch", branch, "merge", merge))
    return (b"" if config.endswith(b"\n") else b"\n") + b"".join(map(_line_of, lines))


def _read_settings(config: bytes) -> Iterator[GitSetting]:
    text = config.decode("utf-8", "surrogateescape").removeprefix("\ufeff").replace("\r\n", "\n")
    position, section, subsection = 0, "", None
    while position < len(text):
        if (blank := re.compile(r"\s+|[#;][^\n]*").match(text, position)) is not None:
            position = blank.end()
        elif (heading := _SECTION.match(text, position)) is not None:
            section, subsection = _split_heading(heading[1], heading[2])
            position = heading.end()
        elif section and (name := _NAME.match(text, position)) is not None:
            value, position = _read_value(text, name.end())
            if value is None:
                raise UnreadableSettings
            yield GitSetting(section, subsection, name[1].lower(), value)
        else:
            raise UnreadableSettings


def _split_heading(name: str, quoted: str | None) -> tuple[str, str | None]:
    if quoted is not None:
        return name.lower(), re.sub(r"\\(.)", r"\1", quoted)
    section, dot, rest = name.partition(".")
    return section.lower(), rest.lower() if dot else None


def _read_value(text: str, position: int) -> tuple[str | None, int]:
    """The value after a name, and where it ends; None where it has no end. A name without a value is true."""
    if position >= len(text) or text[position] in "\n#;":
        return "true", position
    if text[position] != "=":
        return None, position
    characters: list[str] = []
    length = 0  # without the blanks at the end
    is_quoted = False
    position += 1
    while position < len(text) and (is_quoted or text[position] not in "#;") and text[position] != "\n":
        character = text[position]
        position += 1
        if character == "\\":
            escaped = text[position : position + 1]
            position += 1
            if escaped == "\n":
                continue
            if escaped not in _ESCAPES:
                return None, position
            characters.append(_ESCAPES[escaped])
            length = len(characters)
        elif character == '"':
            is_quoted = not is_quoted
            length = len(characters)
        elif is_quoted or not character.isspace():
            characters.append(character)
            length = len(characters)
        elif characters:
            characters.append(character)
    return (None if is_quoted else "".join(characters[:length])), position


def _accepting(pattern: str) -> Callable[[str], str | None]:
    accepts = re.compile(pattern, re.IGNORECASE).fullmatch
    return lambda value: value if accepts(value) else None


def plain_address(value: str) -> str | None:
    """Where a remote lies, without a password or token; None for a form that names a program or hides something."""
    if _LOCAL_ADDRESS.fullmatch(value):
        return value
    if "://" not in value:
        return value if _SCP_ADDRESS.fullmatch(value) else None
    return _plain_url(value)


def _plain_url(value: str) -> str | None:
    """A query and a fragment can hold a token, what is before the `@` a password; of `ssh` it names an account."""
    try:
        address = urlsplit(value)
    except ValueError:
        return None
    is_plain = _PLAIN.fullmatch(value) and not address.query and not address.fragment
    user, _, host = address.netloc.rpartition("@")
    has_host = address.scheme in ("https", "http", "ssh", "git") and re.fullmatch(_HOST, host)
    is_file = address.scheme == "file" and not address.netloc
    if not is_plain or not (has_host or is_file):
        return None
    account = user.partition(":")[0]
    before = f"{account}@" if address.scheme == "ssh" and re.fullmatch(_USER, account) else ""
    return f"{address.scheme}://{before}{host}{address.path}"


_truth = _accepting("true|false|yes|no|on|off|1|0|")
_text = _accepting(_PLAIN.pattern)
_references = _accepting(r"[+^]?refs/[\w./*@+-]*(?::refs/[\w./*@+-]*)?|\+?HEAD")
_branch = _accepting(r'refs/heads/[^\x00-\x20\x7f~^:?*\[\\"]{1,500}')
_name = _accepting(r"\.|[\w][\w./@+-]{0,200}")
_HARMLESS: Mapping[tuple[str, bool, str], Callable[[str], str | None]] = {
    ("core", False, "repositoryformatversion"): _accepting("[01]"),
    **{
        ("core", False, name): _truth
        for name in (
            "filemode", "bare", "ignorecase", "precomposeunicode", "symlinks", "protecthfs", "protectntfs", "quotepath",
            "sparsecheckout", "sparsecheckoutcone", "longpaths",
        )
    },
    ("core", False, "autocrlf"): _accepting("true|false|input"),
    ("core", False, "eol"): _accepting("lf|crlf|native"),
    ("core", False, "logallrefupdates"): _accepting("true|false|always"),
    ("core", False, "abbrev"): _accepting("[0-9]{1,2}|auto|no"),
    ("extensions", False, "objectformat"): _accepting("sha1|sha256"),
    ("extensions", False, "compatobjectformat"): _accepting("sha1|sha256"),
    ("extensions", False, "refstorage"): _accepting("files|reftable"),
    ("extensions", False, "worktreeconfig"): _truth,
    ("extensions", False, "relativeworktrees"): _truth,
    ("extensions", False, "preciousobjects"): _truth,
    ("extensions", False, "noop"): _truth,
    ("extensions", False, "partialclone"): _name,
    ("index", False, "sparse"): _truth,
    ("remote", True, "url"): plain_address,
    ("remote", True, "pushurl"): plain_address,
    ("remote", True, "fetch"): _references,
    ("remote", True, "push"): _references,
    ("remote", True, "tagopt"): _accepting("--tags|--no-tags"),
    ("remote", True, "promisor"): _truth,
    ("remote", True, "partialclonefilter"): _accepting("[a-z0-9:=]{1,50}"),
    ("branch", True, "remote"): _name,
    ("branch", True, "merge"): _branch,
    ("branch", True, "rebase"): _accepting("true|false|merges"),
    ("submodule", True, "active"): _truth,
    ("submodule", True, "url"): plain_address,
    ("user", False, "name"): _text,
    ("user", False, "email"): _text,
}  # fmt: skip


def harmless_settings(config: bytes) -> bytes:
    """A configuration with nothing but what is known to name no program, to include no file and to tell no secret."""
    return b"".join(map(_line_of, filter(None, map(_harmless, read_settings(config)))))


def withheld_keys(config: bytes) -> tuple[str, ...]:
    """The settings that a harmless configuration does not have, or has without a part of their value."""
    return tuple(dict.fromkeys(setting.key for setting in read_settings(config) if _harmless(setting) != setting))


def included_paths(config: bytes) -> tuple[str, ...]:
    """The files that a configuration includes, as it names them."""
    settings = read_settings(config)
    return tuple(
        setting.value for setting in settings if setting.section in ("include", "includeif") and setting.name == "path"
    )


def names_strategy_by_path(options: bytes) -> bool:
    """Whether the options of unfinished picks, which have the form of a configuration, may name the program of a
    strategy by a path."""
    try:
        settings = list(_read_settings(options))
    except UnreadableSettings:
        return True
    return any("/" in setting.value for setting in settings if setting.key == "options.strategy")


def object_format(config: bytes) -> str:
    """The hash that names a repository's objects."""
    values = [setting.value for setting in read_settings(config) if setting.key == "extensions.objectformat"]
    return "sha256" if values and values[-1] == "sha256" else "sha1"


def has_worktree_settings(config: bytes) -> bool:
    """Whether git reads `config.worktree` beside this configuration."""
    values = [setting.value.lower() for setting in read_settings(config) if setting.key == "extensions.worktreeconfig"]
    return bool(values) and values[-1] not in ("false", "no", "off", "0", "")


def _harmless(setting: GitSetting) -> GitSetting | None:
    accept = _HARMLESS.get((setting.section, setting.subsection is not None, setting.name))
    if accept is None or (setting.subsection is not None and not _PLAIN.fullmatch(setting.subsection)):
        return None
    value = accept(setting.value)
    return None if value is None else GitSetting(setting.section, setting.subsection, setting.name, value)


def _line_of(setting: GitSetting) -> bytes:
    subsection = "" if setting.subsection is None else f" {_quoted_value(setting.subsection)}"
    line = f"[{setting.section}{subsection}]\n\t{setting.name} = {_quoted_value(setting.value)}\n"
    return line.encode("utf-8", "surrogateescape")


def _quoted_value(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_SYSTEM_SETTINGS = (
    GitSetting("safe", None, "directory", "*"),  # a folder's owner may have another number inside
    GitSetting("branch", None, "autosetupmerge", "false"),  # it would write the configuration, and stop half-way
    GitSetting("gc", None, "auto", "0"),  # it would be killed at the end of the command
    GitSetting("maintenance", None, "auto", "false"),
)


def system_settings(identity: GitIdentity | None) -> bytes:
    """The configuration of the system inside: a repository's own says otherwise where it says something."""
    person = [("name", identity.name), ("email", identity.email)] if identity is not None else []
    settings = [GitSetting("user", None, name, value) for name, value in person if _PLAIN.fullmatch(value)]
    return b"".join(map(_line_of, (*_SYSTEM_SETTINGS, *settings)))


# --- The files that a configuration of git includes, and what of the way to them a command could change.

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
    for path, _ in files_read(settings, home):
        included = _follow(path, is_writable)
        if included.file is not None or included.links or included.missing is not None:
            yield included


def files_read(settings: Iterable[str], home: Path | None) -> Iterator[tuple[str, bytes]]:
    """Files of settings and what they include, each with what it says: nothing where it is not there."""
    waiting, seen = [(path, 0) for path in settings], set[str]()
    while waiting and len(seen) < _MOST_FILES:
        path, level = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        content = _read_regular_file(path)
        yield path, content
        if level < _MOST_LEVELS:
            waiting += [(inner, level + 1) for inner in _inner_paths(path, content, home)]


def _inner_paths(path: str, settings: bytes, home: Path | None) -> Iterator[str]:
    for named in included_paths(settings):
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


def _read_regular_file(path: str) -> bytes:
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
