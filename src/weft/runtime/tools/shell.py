"""The tool `shell`: runs a command in the workspace, in the sandbox that the profile says.

Which files of the workspace a command names and executes is found, and those that were approved are
held while it runs. Variables that change what is run are refused.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from weft.kernel.errors import quoted
from weft.kernel.permission_subjects import command_subjects, line_subjects, self_running_words
from weft.kernel.typed_names import shell_line, shell_word
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.git_view import GitPrograms
from weft.runtime.sandbox.hidden_places import LEDGER_FOLDER
from weft.runtime.sandbox.processes import GIB, MIB, Ending, Limits, ProcessOutcome
from weft.runtime.sandbox.profiles import WORKSPACE_PROFILE, SandboxProfile, file_of, uncovered
from weft.runtime.tool.tool_contract import CallPlan, StructTool, ToolCallContext, ToolFailure, ToolOutput, in_thread

# --- Variables that a model may set for a command, and those that it may not: they change what is run.

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_BYTES = 32 * 1024
_PLAIN_LOCALES = frozenset({"C", "POSIX", "C.UTF-8", "C.utf8", "en_US.UTF-8"})
_CHANGES_WHAT_RUNS = tuple(
    """
    LD_* DYLD_* GLIBC_* MALLOC_* GCONV_PATH LOCPATH NLSPATH HOSTALIASES RES_OPTIONS TZDIR PATH HOME PWD OLDPWD USER
    LOGNAME SHELL TMPDIR ENV BASH_* SHELLOPTS BASHOPTS IFS CDPATH GLOBIGNORE FPATH ZDOTDIR PS? PROMPT_COMMAND
    INPUTRC TERMINFO* TERMCAP LANGUAGE XDG_* WEFT_* SUDO_* SYSTEMD_* DBUS_* GIT_* SSH_* HG* SVN_* GPG_* RSYNC_*
    *ASKPASS* *EDITOR VISUAL *PAGER BROWSER LESS* MAN_* *_COMMAND *_WRAPPER *_PRELOAD PYTHON* PIP_* UV_* VIRTUAL_ENV
    CONDA_* POETRY_* PYTEST_* TOX_* NOX_* PERL* RUBY* GEM_* BUNDLE_* LUA_* PHP* R_* NODE_* NPM_* YARN_* PNPM_* BUN_*
    DENO_* ELECTRON_* PUPPETEER_* PLAYWRIGHT_* CHROME_* JAVA_* _JAVA_* JDK_* CLASSPATH MAVEN_* GRADLE_* ANT_*
    DOTNET_* COR_* CORECLR_* CARGO_* RUST* GOFLAGS GOPATH GOROOT GOENV GOBIN GOPROXY GOTOOLCHAIN GOEXPERIMENT CGO_*
    MAKEFLAGS MAKEFILES MAKE_* MFLAGS GNUMAKEFLAGS CMAKE_* PKG_CONFIG* CC CXX CPP LD AR AS NM FC CFLAGS CXXFLAGS
    CPPFLAGS LDFLAGS LIBRARY_PATH CPATH *_INCLUDE_PATH GCC_* COMPILER_PATH GDB* *_PROXY SSL_* OPENSSL_* CURL_*
    WGETRC REQUESTS_* AWS_* GOOGLE_* AZURE_* DOCKER_* KUBECONFIG *_OPTIONS *_OPTS
    """.split()
)
"""Names with `*` and `?`, compared without regard to case."""


def checked_environment(variables: Mapping[str, Any]) -> dict[str, str]:
    """The variables, sorted by name. Raises ToolFailure with those that are refused."""
    refused = [name for name, value in variables.items() if not _is_taken(name, value)]
    if refused:
        raise ToolFailure(
            "environment_refused",
            f"these variables change what is run, or are none: {', '.join(sorted(refused))[:400]}",
            {"names": sorted(refused)[:100]},
        )
    if sum(len(name) + len(value.encode()) for name, value in variables.items()) > _LONGEST_BYTES:
        raise ToolFailure("too_large", f"the environment has more than {_LONGEST_BYTES} bytes")
    return dict(sorted(variables.items()))


def _is_taken(name: str, value: Any) -> bool:
    if not isinstance(value, str) or "\0" in value or not _NAME.fullmatch(name):
        return False
    if name == "LANG" or name.startswith("LC_"):
        return value in _PLAIN_LOCALES
    return not any(fnmatchcase(name.upper(), pattern) for pattern in _CHANGES_WHAT_RUNS)


# --- Which of the files that a command names it executes, or has an interpreter execute: `./x`, `sh x`, `make`,
# `pytest`.

_BETWEEN_COMMANDS = re.compile(
    r"[@+!?*]\([^()\s]*\)|&&|\|\||<\(|\$\(|[;&|\n()`]|>>?|<<?|(?<![^\s;&|()])(?:\{(?=\s)|\}(?![^\s;&|()]))"
)
"""A brace within a word separates nothing: the shell puts several words in its place, as it does for `@(a|b)`."""
_IN_A_WORD = tuple("@+!?*")
_WRITES = frozenset((">", ">>"))
_REDIRECTIONS = _WRITES | {"<", "<<"}
_SUBSTITUTIONS = frozenset(("$(", "`", "<("))
_QUOTES = str.maketrans("", "", "'\"\\")
_INTERPRETER = re.compile(
    r"(?:ba|da|a|k|z|mk|fi|c|tc)?sh|busybox|source|\.|(?:python|pypy|perl|ruby|php|lua|tclsh|wish)[0-9.]*|luajit|node|nodejs|"
    r"deno|bun|tsx|ts-node|Rscript|julia|guile|racket|expect|osascript|pwsh|java|groovy|scala|kotlin|elixir|erl|escript"
)
_SHELL_TEXT = re.compile(r"-[a-z]*c")
_CODE_OPTIONS = frozenset(("-c", "-e", "-E", "-p", "-r", "--eval", "--print"))
_VALUE_OPTIONS = frozenset(
    "-W -X -I -O -o -C --require --import --loader --experimental-loader --rcfile --init-file --env-file --config "
    "--import-map -L".split()
)
"""Options of interpreters with a value behind them: the script comes later."""
_MODULE_OPTION = "-m"
_OPTION = re.compile(r"-|\+[A-Za-z]")
_DURATION = re.compile(r"[0-9.]+[smhd]?")
MOST_ARGUMENTS = 32
"""Words behind a program that are looked at for it."""
_SUBCOMMANDS = frozenset("run test exec start debug serve bench".split())
_WRAPPERS = frozenset(
    "env nohup time timeout nice ionice sudo doas exec command builtin xargs stdbuf setsid chronic flock strace watch "
    "parallel entr uv uvx poetry pipenv hatch pdm rye conda mamba run npx bunx pnpx then do else elif if while until ! "
    "-exec -execdir -ok -okdir -- -m".split()
)
_ALL_FILES = frozenset(("pytest", "py.test"))
_PROGRAM_OPTION = frozenset("make gmake ninja just rake task awk gawk mawk sed".split())
"""Programs that read what they do from the file behind `-f`."""
_READ_BY = {
    "make": ("Makefile", "makefile", "GNUmakefile"),
    "gmake": ("Makefile", "makefile", "GNUmakefile"),
    "just": ("justfile", "Justfile"),
    "tox": ("tox.ini", "pyproject.toml"),
    "nox": ("noxfile.py",),
    "pytest": ("conftest.py", "pytest.ini", "tests/conftest.py"),
    "py.test": ("conftest.py", "pytest.ini", "tests/conftest.py"),
    "ninja": ("build.ninja",),
    "rake": ("Rakefile",),
    "task": ("Taskfile.yml",),
    "pip": ("setup.py",),
    "cargo": ("Cargo.toml", "build.rs"),
    "npm": ("package.json",),
    "pnpm": ("package.json",),
    "yarn": ("package.json",),
    "bun": ("package.json",),
}
"""What they execute without being told."""
_CHANGING = frozenset(
    "install i add remove rm uninstall un update up upgrade version pkg init create set link unlink dedupe fix "
    "new import migrate publish pack release".split()
)
"""With these words package managers change the file that they read."""


_PUT_IN_PLACE = re.compile(r"[*?\[~${]|[@+!]\(")


def executed_words(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names of files that a command may execute, whether there are such files or not; and those that it writes by a
    redirection."""
    executed: dict[str, None] = {}
    written: dict[str, None] = {}
    before: list[str] = []
    for words, operator in _commands(" ".join(argv)):
        if operator in _WRITES:
            written.update(dict.fromkeys(words[:1]))
        elif operator == "<":
            executed.update(dict.fromkeys(words[:1]))
        elif operator == "|" and _runs_what_it_reads(words):
            executed.update(dict.fromkeys(before))
        elif operator in _SUBSTITUTIONS and _runs_what_it_reads(before):
            executed.update(dict.fromkeys(words))
        before = words[operator in _REDIRECTIONS :]
        executed.update(dict.fromkeys(_of_command(before)))
    return list(executed), list(written)


def patterns_executed(argv: Sequence[str]) -> list[str]:
    """Words that name what a command executes only once a shell has put other words in their place: nobody can tell
    before which file that is."""
    return [word for word in executed_words(argv)[0] if _PUT_IN_PLACE.search(word)]


def scripts_run(argv: Sequence[str]) -> list[str]:
    """The scripts that interpreters are given by name, but those that the command itself writes by a redirection."""
    written = set(executed_words(argv)[1])
    commands = (words[operator in _REDIRECTIONS :] for words, operator in _commands(" ".join(argv)))
    scripts = dict.fromkeys(word for words in commands for word in _scripts(words))
    return [word for word in scripts if word not in written]


def _scripts(words: Sequence[str]) -> Iterator[str]:
    for place, word in _beginnings(words):
        name = word.rpartition("/")[2]
        if _INTERPRETER.fullmatch(name):
            rest = words[place + 1 : place + 1 + MOST_ARGUMENTS]
            # the number belongs to a redirection: `sh 2>&1`
            yield from (file for file, is_script in _of_interpreter(name, rest) if is_script and not file.isdecimal())


def _runs_what_it_reads(words: Sequence[str]) -> bool:
    return any(word == "eval" or _INTERPRETER.fullmatch(word.rpartition("/")[2]) for word in words)


def _commands(text: str) -> Iterator[tuple[list[str], str]]:
    """The words of each command, quotes taken off, behind the operator that stands before it."""
    start, operator = 0, ""
    for match in _BETWEEN_COMMANDS.finditer(text):
        if match[0].startswith(_IN_A_WORD):
            continue
        yield text[start : match.start()].translate(_QUOTES).split(), operator
        start, operator = match.end(), match[0]
    yield text[start:].translate(_QUOTES).split(), operator


def _beginnings(words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The words that are run, with their places: the first, and those behind wrappers."""
    may_begin = True
    for place, word in enumerate(words):
        name = word.rpartition("/")[2]
        is_wrapper = name in _WRAPPERS or _SHELL_TEXT.fullmatch(word) is not None
        if may_begin and not is_wrapper:
            yield place, word
        is_between = "=" in name or word.startswith("-") or _DURATION.fullmatch(word) is not None
        may_begin = is_wrapper or (may_begin and is_between)


def _of_command(words: Sequence[str]) -> Iterator[str]:
    """Words behind a wrapper, and every word that is the name of an interpreter, may begin a command of their own."""
    yield from (word for _, word in _beginnings(words))
    for place, word in enumerate(words):
        name = word.rpartition("/")[2]
        rest = words[place + 1 : place + 1 + MOST_ARGUMENTS]
        if _INTERPRETER.fullmatch(name):
            yield from (file for file, _ in _of_interpreter(name, rest))
        if name in _READ_BY and (name == "pip" or _CHANGING.isdisjoint(rest)):
            yield from _READ_BY[name]
        if name in _PROGRAM_OPTION:
            yield from _behind_option("-f", rest)
        if name == "go":
            yield from (file for file in rest if file.endswith(".go"))
        if name in _ALL_FILES:
            yield from (file.partition("::")[0] for file in rest if not file.startswith("-"))


def _of_interpreter(name: str, rest: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """What it loads, and its script, of which that is said."""
    is_shell = name.endswith("sh")
    words = iter(enumerate(rest))
    for place, word in words:
        value = rest[place + 1 : place + 2]
        if is_shell and _SHELL_TEXT.fullmatch(word):
            return  # a command follows
        if word == _MODULE_OPTION:
            path = "".join(value).replace(".", "/")
            yield from ((file, False) for file in (f"{path}.py", f"{path}/__main__.py", f"{path}/__init__.py"))
            return
        if word in _VALUE_OPTIONS or (word == "-r" and not name.startswith("php")):
            yield from ((file, False) for file in value)
            next(words, None)
        elif word in _CODE_OPTIONS and not is_shell:
            return
        elif _OPTION.match(word):
            yield word.partition("=")[2], False
        elif word not in _SUBCOMMANDS:
            yield word, True
            return


def _behind_option(option: str, rest: Sequence[str]) -> Iterator[str]:
    for place, word in enumerate(rest):
        if word == option:
            yield from rest[place + 1 : place + 2]
        elif word.startswith(option):
            yield word.removeprefix(option)


# --- The files that an approved command executes, read once and held while it runs.

MOST_HELD_BYTES = 64 * MIB
_DIGEST = "sha256 "


class HeldFile(Struct, frozen=True):
    """A file as it was read."""

    place: str
    """Where it lies, links resolved."""
    data: bytes
    mode: int
    """Its permissions for reading and executing."""
    traces: tuple[tuple[int, ...], ...]
    """What the file, and each folder and link on the way to it, were when it was read."""


def hold_files(workspace: str, names: Sequence[str], digests: Mapping[str, str]) -> dict[str, HeldFile]:
    """Files below the workspace by their names. Raises ToolFailure where one is not what the digests say."""
    held = {name: _hold(workspace, name, digests[name]) for name in names}
    if sum(len(file.data) for file in held.values()) > MOST_HELD_BYTES:
        raise ToolFailure("too_large", f"the files that it executes have more than {MOST_HELD_BYTES} bytes")
    return held


def replaced_files(workspace: str, held: Mapping[str, HeldFile]) -> list[str]:
    """Those that somebody changed, moved or replaced since they were read."""
    return [name for name, file in held.items() if _traces(workspace, name) != file.traces]


def can_be_held(description: str) -> bool:
    """Whether what was approved of a file is the digest of its bytes, and it lies in the workspace."""
    return _DIGEST in description


def _hold(workspace: str, name: str, description: str) -> HeldFile:
    traces = _traces(workspace, name)  # before it is opened: what happens from here on is seen
    path = os.path.join(workspace, name)
    place = os.path.realpath(path)
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise _changed(name) from None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        data = file.read(MOST_HELD_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
    link = "" if place == path else f"link {os.path.relpath(place, workspace)} "
    if description != f"{link}{_DIGEST}{hashlib.sha256(data).hexdigest()}":
        raise _changed(name)
    return HeldFile(place, data, stat.S_IMODE(status.st_mode) & 0o555, traces)


def _traces(workspace: str, name: str) -> tuple[tuple[int, ...], ...]:
    """By what is seen whether somebody touched a file or moved something on the way to it. A folder is known by its
    number alone, since whatever is written in it changes its times."""
    path = os.path.join(workspace, name)
    real = os.path.relpath(os.path.realpath(path), os.path.realpath(workspace))
    names = [name] if real == name else [name, real]
    return tuple(
        _trace(os.path.join(workspace, *words[: depth + 1]))
        for words in (name.split("/") for name in names)
        for depth in range(len(words))
    )


def _trace(path: str) -> tuple[int, ...]:
    try:
        status = os.lstat(path)
    except OSError:
        return ()
    identity = (status.st_dev, status.st_ino, status.st_mode)
    return identity if stat.S_ISDIR(status.st_mode) else (*identity, status.st_mtime_ns, status.st_ctime_ns)


def _changed(name: str) -> ToolFailure:
    return ToolFailure("changed", f"changed since it was planned: {name}", {"changed": [name]})


# --- Which files of a workspace the words of a command name, with the digests of what they hold now.

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


# --- The tool `shell`: runs a command in the workspace, in the sandbox that the profile says.

SHELL_LIMITS = Limits(seconds=120, output=8 * MIB, memory=2 * GIB, processes=512)
LONGEST_TIMEOUT_MS = 600_000
LONGEST_COMMAND_BYTES = 128 * 1024
_MOST_SHARED_FILES = 20
"""So many are named."""
_SHELLS = ("/bin/bash", "/bin/sh")
"""The first of them that is here reads the command."""

_DESCRIPTION = """\
Run a command in the workspace. `cmd` as text is run by bash; as a list it is one command with its arguments, and no
shell reads it. There is no terminal, no input and, unless hosts are granted, no network. `cwd` is a folder of the
workspace. The whole process tree ends with the command, and when `timeout_ms` has passed."""


class ShellArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model asks for."""

    cmd: Annotated[str | list[str], Meta(description="A text for the shell, or a list of words.")]
    cwd: Annotated[str, Meta(description="A folder of the workspace.")] = "."
    timeout_ms: Annotated[int, Meta(ge=1, le=LONGEST_TIMEOUT_MS)] | None = None
    env: dict[str, str] = {}


class ShellTool(StructTool[ShellArguments]):
    """Commands in one workspace, under one profile."""

    def __init__(
        self,
        workspace: Path,
        *,
        runner: CommandRunner,
        profile: SandboxProfile = WORKSPACE_PROFILE,
        limits: Limits = SHELL_LIMITS,
        programs: GitPrograms | None = None,
    ) -> None:
        super().__init__("shell", _DESCRIPTION, ShellArguments)
        self._programs = programs or GitPrograms(workspace, runner.person.git_person)
        self._workspace, self._profile = workspace.resolve(), profile
        self._identity = _identity(self._workspace)
        self._is_outward = profile.is_unconfined or bool(profile.endpoints)
        self._runner, self._limits = runner, limits

    def plan_of(self, arguments: ShellArguments) -> CallPlan:
        asked = _checked(arguments)
        environment = checked_environment(asked.env)
        self._ensure_same_folder()
        folder = _folder(self._workspace, asked.cwd)
        is_line = isinstance(asked.cmd, str)
        argv = [_shell(), "-c", asked.cmd] if isinstance(asked.cmd, str) else list(asked.cmd)
        timeout_ms = asked.timeout_ms or int(self._limits.seconds * 1000)
        subjects = line_subjects(argv[-1], environment) if is_line else command_subjects(argv, environment)
        exact = {
            "argv": argv,
            "cwd": folder,
            "env": environment,
            "timeout_ms": timeout_ms,
            **self._circumstances(folder, argv),
        }
        return CallPlan(
            tool="shell",
            exact=exact,
            subjects=subjects,
            shown=_shown(asked.cmd, exact, self._programs),
            confined_to=None if self._is_outward else exact["workspace"],
            uncovers=tuple(exact["uncovered"]),
            is_outward=self._is_outward,
            varying=("files", "held", "uncovered", "withheld"),
        )

    def _ensure_same_folder(self) -> None:
        """Whether the folder may be named was asked when the turn was planned: a link would lead elsewhere since."""
        if self._workspace.resolve() != self._workspace or _identity(self._workspace) != self._identity:
            raise ToolFailure("changed", "another folder has taken the workspace's place")

    def _circumstances(self, folder: str, argv: list[str]) -> dict[str, Any]:
        """What must be the same when the command runs."""
        workspace = str(self._workspace.resolve())
        files = named_files(workspace, folder, argv)
        return {
            "workspace": workspace,
            "profile": str(self._profile),
            "granted_by": self._profile.granted_by,
            "readable": [str(path) for path in self._runner.readable],
            "withheld": [str(path) for path in self._runner.protected.paths],
            "files": files.digests,
            "held": [] if self._profile.is_unconfined else files.executed,
            "uncovered": [] if self._profile.is_unconfined else self._hidden(workspace, files.digests),
        }

    def _hidden(self, workspace: str, digests: Mapping[str, str]) -> list[str]:
        """Of the files that a command names those that are hidden from commands, and whose bytes can be approved."""
        secrets = self._runner.protected.secrets
        return [name for name, digest in digests.items() if can_be_held(digest) and secrets.hides(workspace, name)]

    def _changed(self, exact: dict[str, Any]) -> list[str]:
        """What is no longer as it was planned."""
        folder = exact["cwd"]
        now = {"cwd": _folder(self._workspace, folder), **self._circumstances(folder, exact["argv"])}
        return sorted(name for name, value in now.items() if exact.get(name) != value)

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        # The order of locks: the gate has the folder's lock around all of this (`hold_folder`), `run` takes the
        # workspace's turn for as long as the sandbox is made (`SandboxGuard`), and in that turn what the command holds
        # to its end. Whoever has a turn never waits for a folder's lock, or two calls would wait for each other. The
        # files are read before the turn: what is done to them until then is found by `replaced_files`.
        exact = plan.exact
        # a folder that is replaced after this is not worked in: `folder` does not lie in what is mounted then
        await in_thread(self._ensure_same_folder)
        changed = await in_thread(lambda: self._changed(exact))
        if changed or plan.tool != "shell":
            raise ToolFailure("changed", f"changed since it was planned: {', '.join(changed)}", {"changed": changed})
        # what a policy allows, or a person allowed for a session, holds and uncovers nothing
        names = dict.fromkeys([*exact["held"], *exact["uncovered"]]) if context.is_approved else {}
        held = await in_thread(lambda: hold_files(exact["workspace"], list(names), exact["files"]))
        limits = msgspec.structs.replace(self._limits, seconds=exact["timeout_ms"] / 1000)
        began = time.monotonic()
        outcome = await self._runner.run(
            self._profile,
            exact["argv"],
            workspace=self._workspace,
            folder=exact["cwd"],
            environment=exact["env"],
            held_files=[
                file_of(file.place, file.data, file.mode)
                for name, file in held.items()
                if name not in exact["uncovered"]
            ],
            uncovered_files=[
                uncovered(file.place, file.data, file.mode) for name, file in held.items() if name in exact["uncovered"]
            ],
            limits=limits,
        )
        duration_ms = round(1000 * (time.monotonic() - began))
        replaced = await in_thread(lambda: replaced_files(exact["workspace"], held))
        if replaced:
            why = f"replaced while the command ran, so other bytes may have run: {', '.join(replaced)}"
            raise ToolFailure("changed", why, {**_told(outcome, duration_ms), "changed": replaced})
        return ToolOutput(result=_result(outcome, limits, duration_ms), duration_ms=duration_ms)


def _checked(asked: ShellArguments) -> ShellArguments:
    words = [asked.cmd] if isinstance(asked.cmd, str) else asked.cmd
    if not words or not words[0].strip() or any("\0" in word for word in (*words, asked.cwd)):
        raise ToolFailure("invalid_arguments", "the command is empty, or has a NUL in it")
    try:
        size = sum(len(word.encode()) for word in (*words, asked.cwd))
    except UnicodeEncodeError:
        raise ToolFailure("invalid_arguments", "the command is no Unicode text") from None
    if size > LONGEST_COMMAND_BYTES:
        raise ToolFailure("too_large", f"the command has more than {LONGEST_COMMAND_BYTES} bytes")
    return asked


def _shell() -> str:
    return next(path for path in _SHELLS if os.path.exists(path) or path == _SHELLS[-1])


def _identity(folder: Path) -> tuple[int, int] | None:
    """None where nothing is there."""
    try:
        status = os.stat(folder, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _folder(workspace: Path, asked: str) -> str:
    """A folder of the workspace, links resolved. The ledger's own folder is none."""
    root = workspace.resolve()
    folder = (root / asked).resolve()
    inside = folder == root or root in folder.parents
    if not inside or not folder.is_dir() or root / LEDGER_FOLDER in (folder, *folder.parents):
        raise ToolFailure("not_found", f"{quoted(asked, 200)} is no folder of the workspace", {"cwd": asked})
    return str(folder)


def _shown(cmd: str | list[str], exact: dict[str, Any], programs: GitPrograms) -> str:
    """All of it, for whoever approves."""
    lines = [cmd if isinstance(cmd, str) else shell_line(cmd), "", f"in {os.path.join(exact['cwd'], '')}"]
    lines += [f"with {name}={shell_word(value)}" for name, value in exact["env"].items()]
    grant = f", granted by {exact['granted_by']}" if exact["granted_by"] else ""
    lines.append(f"sandbox {exact['profile']}{grant}, at most {exact['timeout_ms']} ms")
    for name, digest in exact["files"].items():
        lines.append(f"file {name}: {digest}{', held while it runs' if name in exact['held'] else ''}")
    patterns = [word for word in patterns_executed(exact["argv"]) if os.path.normpath(word) not in exact["held"]]
    if patterns:
        lines.append(f"No file is held for {', '.join(patterns)}: the shell finds out which it is when it runs.")
    unknown = unknown_scripts(exact["workspace"], exact["cwd"], exact["argv"])
    unknown = [word for word in unknown if word not in patterns]
    if unknown:
        lines.append(f"No file is held for {', '.join(unknown)}: it is no file of the workspace now.")
    if exact["held"]:
        lines.append("This covers the held files as they are now, and not what they call.")
    if exact["uncovered"]:
        lines.append(f"hidden files named by this command: {', '.join(exact['uncovered'])}")
        lines.append("If you allow this call, this one command reads them as they are now; its result may tell them.")
    words = {word: _from_workspace(word, exact) for word in named_words(exact["argv"]) if len(word.split()) == 1}
    runners = programs.self_running([*words, *words.values()])
    named = {word: runners.get(word) or runners[path] for word, path in words.items() if {word, path} & runners.keys()}
    lines += [self_running_words(named)] if named else []
    return "\n".join(lines)


def _from_workspace(word: str, exact: dict[str, Any]) -> str:
    return os.path.relpath(os.path.join(exact["cwd"], word), exact["workspace"])


def _told(outcome: ProcessOutcome, duration_ms: int) -> dict[str, Any]:
    result: dict[str, Any] = {"rc": outcome.code}
    invalid = []
    for name, data in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        result[name], is_valid = decoded(data)
        invalid += [] if is_valid else [name]
    result["duration_ms"] = duration_ms
    if invalid:
        result["invalid_utf8"] = invalid
    if outcome.refused_hosts:
        result["refused_hosts"] = list(outcome.refused_hosts)
    if outcome.hidden:
        result["hidden"] = list(outcome.hidden)
    if outcome.shared_files:
        result["shared_files"] = [decoded(os.fsencode(path))[0] for path in outcome.shared_files[:_MOST_SHARED_FILES]]
        if len(outcome.shared_files) > _MOST_SHARED_FILES:
            result["shared_files"].append(f"and {len(outcome.shared_files) - _MOST_SHARED_FILES} more")
    if sentences := outcome.git.sentences(outcome.stderr):
        result["git"] = sentences
    return result


def _result(outcome: ProcessOutcome, limits: Limits, duration_ms: int) -> dict[str, Any]:
    """The result, or ToolFailure where a limit ended the command; what it wrote until then is in the details."""
    result = _told(outcome, duration_ms)
    if outcome.ending is Ending.EXITED:
        return result
    replaced = outcome.uncovered or "git's configuration"
    exceeded = {
        Ending.TIMED_OUT: f"it took longer than {round(limits.seconds * 1000)} ms",
        Ending.TOO_MUCH_OUTPUT: f"it wrote more than {limits.output} bytes",
        Ending.TOO_MUCH_MEMORY: f"it took more than {limits.memory} bytes of memory",
        Ending.TOO_MANY_PROCESSES: f"it had more than {limits.processes} processes and threads",
        Ending.TOO_MUCH_DISK: f"it wrote more than {limits.disk} bytes, or more files than it may",
        Ending.UNCOVERED: f"{replaced} was replaced meanwhile, outside or by the command: run it again",
    }
    raise ToolFailure(str(outcome.ending), exceeded[outcome.ending], result)


def decoded(data: bytes) -> tuple[str, bool]:
    """Output as text, and whether it was UTF-8. Bytes that are none stand as `\\xNN`."""
    try:
        return data.decode(), True
    except UnicodeDecodeError:
        return data.decode(errors="backslashreplace"), False
