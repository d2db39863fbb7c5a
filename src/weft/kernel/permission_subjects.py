"""What permissions are said of: commands of a shell's line, as patterns for tools are compared
with them; hosts that something may reach; and files that programs run by themselves, outside of any
sandbox.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from weft.kernel.errors import InvalidInput, quoted
from weft.kernel.typed_names import shell_line, shell_word

# --- Reads a line of a shell that lies in a small closed grammar, or says that it does not.

LONGEST_LINE = 65_536
NULL_DEVICE = "/dev/null"
_CHARACTERS = re.compile(r"[ -~]+")
_BLANKS = re.compile(r" *+")
_WORD_OF_COMMAND = re.compile(r"[A-Za-z0-9_./+-]++(?=[ ;&|]|\Z)")
_WORD = re.compile(r"""(?:[A-Za-z0-9_./:,+@%=^-]|'[^'$`\[]*+'|"[^"$`\[\\!]*+")++(?=[ ;&|]|\Z)""")
_QUOTED = re.compile(r"""(['"])(.*?)\1""")
_COPY = re.compile(r"(?:2>&1|1?>&2|>&1)(?=[ ;&|]|\Z)")
_REDIRECTION = re.compile(r"[12]?(>>?+)(?![>&|<(])|(<)(?![>&<(])")
_OPERATOR = re.compile(r"&&|\|\||;|\|")
_GRAMMAR_WORDS = frozenset(
    "case coproc do done elif else esac fi for foreach function if in namespace nocorrect noglob repeat select then "
    "time until while".split()
)
"""Of any shell that may be /bin/sh. Other words of their grammars are made of characters that no name has."""


class NotPlain(Exception):
    """What the line would run is known only to the shell that runs it."""


class Redirection(Struct, frozen=True):
    """A file below the command's folder that is opened for it."""

    operator: str
    target: str


class SimpleCommand(Struct, frozen=True):
    """A command with its words, quotes taken off, the variables that are set for it, and the files it opens."""

    words: tuple[str, ...] = ()
    assignments: tuple[str, ...] = ()
    """Of a line read here there are none: what is set for one command of it may change what the next one means."""
    redirections: tuple[Redirection, ...] = ()


def is_plain_value(text: str) -> bool:
    """Whether a variable may have this value while a line is run: no reading of it comes to a command."""
    return text.isascii() and text.isprintable() and {"$", "`", "["}.isdisjoint(text)


def simple_commands(line: str) -> tuple[SimpleCommand, ...]:
    """The commands that a line consists of, in their order. Raises NotPlain."""
    if len(line) > LONGEST_LINE or _CHARACTERS.fullmatch(line) is None:
        raise NotPlain
    return tuple(_LineReader(line).commands())


class _LineReader:
    """Walks a line once."""

    def __init__(self, line: str) -> None:
        self._line, self._at = line, 0

    def commands(self) -> list[SimpleCommand]:
        commands = [self._command()]
        while self._at < len(self._line):
            self._take(_OPERATOR)
            commands.append(self._command())
        return commands

    def _command(self) -> SimpleCommand:
        """Behind it the line ends, or an operator stands."""
        self._skip_blanks()
        name = self._take(_WORD_OF_COMMAND)
        if name in _GRAMMAR_WORDS:
            raise NotPlain
        words: list[str] = [name]
        redirections: list[Redirection] = []
        is_behind_words = False
        self._skip_blanks()
        while self._at < len(self._line) and _OPERATOR.match(self._line, self._at) is None:
            if _COPY.match(self._line, self._at) is not None:
                self._take(_COPY)
                is_behind_words = True
            elif _REDIRECTION.match(self._line, self._at) is not None:
                redirections += self._redirection()
                is_behind_words = True
            elif is_behind_words:
                raise NotPlain
            else:
                words.append(_unquoted(self._take(_WORD)))
            self._skip_blanks()
        return SimpleCommand(tuple(words), redirections=tuple(redirections))

    def _redirection(self) -> Iterator[Redirection]:
        operator = self._take(_REDIRECTION).lstrip("12")
        self._skip_blanks()
        target = _unquoted(self._take(_WORD))
        if not target or (target.startswith("/") and target != NULL_DEVICE) or ".." in target.split("/"):
            raise NotPlain
        if target != NULL_DEVICE:
            yield Redirection(operator, target)

    def _skip_blanks(self) -> None:
        blanks = _BLANKS.match(self._line, self._at)
        self._at = self._at if blanks is None else blanks.end()

    def _take(self, pattern: re.Pattern[str]) -> str:
        """What stands here, and go on behind it. Raises NotPlain where the pattern does not fit."""
        match = pattern.match(self._line, self._at)
        if match is None:
            raise NotPlain
        self._at = match.end()
        return match[0]


def _unquoted(word: str) -> str:
    return _QUOTED.sub(r"\2", word)


# --- What a command is, as patterns for tools are compared with it: `shell(git *)`.

_DEEPEST = 8
_SHELLS = frozenset("sh bash dash ash ksh zsh mksh busybox".split())
_INLINE_OPTION = re.compile(r"-[eu]*c")  # not x: what a shell shows then, it expands
_NAME_VALUE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.S)
PLAIN_BUILTINS = frozenset("cd command echo false pwd test true type".split())
"""What a shell does itself, and what changes nothing that later words mean but the folder they are relative to."""
_OTHER_BUILTINS = frozenset(
    ". : alias autoload bg bind break builtin caller chdir compgen compound complete compopt continue declare dirs "
    "disown enable enum eval exec exit export fc fg float functions getopts global hash help hist history integer jobs "
    "kill let local login logout logoff mapfile nameref newgrp popd print printf pushd read readarray readonly rehash "
    "return set setopt shift shopt source stop suspend times trap typeset ulimit umask unalias unset unsetopt wait "
    "whence".split()
)
"""Of bash, dash, ksh, mksh, zsh and busybox: they read words as commands, names or expressions, change what later
commands mean, or are of no use in a pattern."""
_RUNNERS = frozenset(
    "xargs parallel watch ssh su script toybox flock strace ltrace gdb chroot unshare nsenter setpriv runuser at batch "
    "crontab systemd-run doas sudoedit pkexec rsh rlogin expect unbuffer entr find-exec fish csh tcsh pwsh".split()
)
"""Programs that run words which they read elsewhere, or in a way that is not told here."""
_FIND_RUNS = frozenset("-exec -execdir -ok -okdir -fprint -fprintf -fls -fprint0 -delete".split())
_DURATION = re.compile(r"[0-9.]+[smhd]?")


def line_subjects(line: str, environment: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """The subjects of a line that a shell would run, with these variables set for it."""
    try:
        if not all(map(is_plain_value, (environment or {}).values())):
            raise NotPlain
        return tuple(dict.fromkeys(_of_line(line, _assigned(environment), 0)))
    except NotPlain:
        return None


def command_subjects(words: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """The subjects of a command that no shell reads: its words are what they are."""
    try:
        return tuple(dict.fromkeys(_of_command(SimpleCommand(tuple(words), _assigned(environment)), 0)))
    except NotPlain:
        return None


def _assigned(environment: Mapping[str, str] | None) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in sorted((environment or {}).items()))


def _of_line(line: str, assignments: tuple[str, ...], depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        raise NotPlain
    commands = simple_commands(line)
    if any("cd" in command.words for command in commands) and any(command.redirections for command in commands):
        raise NotPlain  # where the file lies depends on whether the folder was changed
    for command in commands:
        yield from _of_command(SimpleCommand(command.words, assignments, command.redirections), depth)


def _of_command(command: SimpleCommand, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        raise NotPlain
    words = command.words
    assigned = " ".join(map(_assignment_text, command.assignments))
    if assigned or words:
        yield " ".join(filter(None, (assigned, shell_line(words))))
    for redirection in command.redirections:
        yield f"{redirection.operator} {shell_word(redirection.target)}"
    if words:
        if assigned:
            yield shell_line(words)
        yield from _of_words(words, command.assignments, depth)


def _assignment_text(assignment: str) -> str:
    name, _, value = assignment.partition("=")
    return f"{name}={shell_word(value) if value else ''}"


def _of_words(words: tuple[str, ...], assignments: tuple[str, ...], depth: int) -> Iterator[str]:
    """What is behind the name of a command: its name without a path, and the command that it runs."""
    name = words[0].rpartition("/")[2]
    if not name:
        raise NotPlain
    if name != words[0]:
        yield shell_line((name, *words[1:]))
    if name in _OTHER_BUILTINS or name in _RUNNERS or (name == "find" and not _FIND_RUNS.isdisjoint(words)):
        raise NotPlain
    if name in _SHELLS:
        if len(words) < 3 or not _INLINE_OPTION.fullmatch(words[1]) or words[2][:1] in "-+":
            raise NotPlain  # a script, what comes on its standard input, or more options
        if assignments:
            raise NotPlain  # BASH_ENV and others name what it runs before
        yield from _of_line(words[2], (), depth + 1)
    elif name in _WRAPPERS:
        inner = _WRAPPERS[name](words[1:])
        if inner.words or inner.assignments:
            yield from _of_command(SimpleCommand(inner.words, (*assignments, *inner.assignments)), depth + 1)


def _after_options(words: tuple[str, ...], plain: str, valued: str = "") -> tuple[str, ...]:
    """The words behind options: letters that stand alone, and those with a value. Other options are not known."""
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        option = rest.pop(0)
        if option == "--":
            break
        letter, value = option[1:2], option[2:]
        if option.startswith("--"):
            raise NotPlain
        if letter in valued:
            if not value and not rest:
                raise NotPlain
            value or rest.pop(0)
        elif not set(option[1:]) <= set(plain):
            raise NotPlain
    return tuple(rest)


def _plain_wrapper(plain: str = "", valued: str = "") -> Callable[[tuple[str, ...]], SimpleCommand]:
    return lambda words: SimpleCommand(_after_options(words, plain, valued))


def _after_env(words: tuple[str, ...]) -> SimpleCommand:
    rest = words[1:] if words[:1] == ("-",) else _after_options(words, "iv0", "u")
    assignments = []
    while rest and "=" in rest[0]:
        if not _NAME_VALUE.fullmatch(rest[0]):
            raise NotPlain
        assignments.append(rest[0])
        rest = rest[1:]
    return SimpleCommand(rest, tuple(assignments))


def _after_timeout(words: tuple[str, ...]) -> SimpleCommand:
    rest = _after_options(words, "v", "ks")
    if rest and not _DURATION.fullmatch(rest[0]):
        raise NotPlain
    return SimpleCommand(rest[1:])


def _after_command(words: tuple[str, ...]) -> SimpleCommand:
    """`command -v NAME` looks a name up and runs nothing."""
    if words[:1] in (("-v",), ("-V",)):
        return SimpleCommand()
    return SimpleCommand(_after_options(words, "p"))


def _after_sudo(words: tuple[str, ...]) -> SimpleCommand:
    inner = _after_env(_after_options(words, "nEHSkb", "ug"))
    return inner if inner.words else SimpleCommand()


_WRAPPERS: dict[str, Callable[[tuple[str, ...]], SimpleCommand]] = {
    "env": _after_env,
    "sudo": _after_sudo,
    "timeout": _after_timeout,
    "command": _after_command,
    "nohup": _plain_wrapper(),
    "setsid": _plain_wrapper("cfw"),
    "nice": _plain_wrapper(valued="n"),
    "ionice": _plain_wrapper("t", "cn"),
    "stdbuf": _plain_wrapper(valued="ioe"),
    "time": _plain_wrapper("pvqa", "fo"),
    "chronic": _plain_wrapper("ve"),
}


# --- Names of servers that something may reach: `HOST`, `HOST:PORT`, `[IPv6]`, or `*` for every public one.

WEB_PORTS = (80, 443)
ANY_HOST = "*"
_HIGHEST_PORT = 65535
_LONGEST_NAME = 253
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_WITH_PORT = re.compile(r"(\*|\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")


class Endpoint(Struct, frozen=True, order=True):
    """A port of a host; the host `*` is every public one."""

    host: str
    port: int

    def covers(self, other: Endpoint) -> bool:
        return self.port == other.port and self.host in (ANY_HOST, other.host)


def host_name(text: str) -> str:
    """A host in its one form: lower case, without a dot at its end, addresses as Python writes them."""
    name = text.strip().lower().removesuffix(".")
    if name.startswith("[") and name.endswith("]"):
        return _address(text, name[1:-1])
    if not name.isascii() or len(name) > _LONGEST_NAME or not _HOST_NAME.fullmatch(name):
        raise _no_host(text)
    return _address(text, name) if _NUMBER.fullmatch(name.rpartition(".")[2]) else name


def _address(text: str, address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        raise _no_host(text) from None


def _no_host(text: str) -> InvalidInput:
    return InvalidInput(f"{quoted(text)} is no host", "give a name such as pypi.org, or HOST:PORT")


def endpoints_of(hosts: Iterable[str]) -> frozenset[Endpoint]:
    """The endpoints that a list of hosts stands for."""
    return frozenset(endpoint for host in hosts for endpoint in _endpoints(host))


def _endpoints(text: str) -> list[Endpoint]:
    parts = _WITH_PORT.fullmatch(text.strip())
    if parts is None:
        raise _no_host(text)
    host = ANY_HOST if parts[1] == ANY_HOST else host_name(parts[1])
    ports = WEB_PORTS if parts[2] is None else (int(parts[2]),)
    if not all(0 < port <= _HIGHEST_PORT for port in ports):
        raise _no_host(text)
    return [Endpoint(host, port) for port in ports]


def common_endpoints(one: frozenset[Endpoint], other: frozenset[Endpoint]) -> frozenset[Endpoint]:
    """What both allow."""
    narrow = {endpoint for endpoint in one if any(wide.covers(endpoint) for wide in other)}
    return frozenset(narrow | {endpoint for endpoint in other if any(wide.covers(endpoint) for wide in one)})


def host_texts(endpoints: Iterable[Endpoint]) -> tuple[str, ...]:
    """The shortest list of hosts that stands for these endpoints."""
    ports: dict[str, set[int]] = {}
    for endpoint in sorted(endpoints):
        ports.setdefault(endpoint.host, set()).add(endpoint.port)
    texts: list[str] = []
    for host, numbers in ports.items():
        shown = f"[{host}]" if ":" in host else host
        texts += [shown] if numbers.issuperset(WEB_PORTS) else []
        singles = numbers - set(WEB_PORTS) if numbers.issuperset(WEB_PORTS) else numbers
        texts += [f"{shown}:{port}" for port in sorted(singles)]
    return tuple(texts)


# --- Files that programs run by themselves, outside of any sandbox, when a person does something else: enters a
# folder, opens an editor, commits, builds, pushes.

MOST_NAMED = 10
"""So many of them are named where people look; the rest are counted."""

_RUNNER_OF_FILE = {
    ".envrc": "direnv, when a shell enters the folder",
    ".mise.toml mise.toml .tool-versions .mise/ shell.nix flake.nix default.nix": "the tool that makes the environment",
    ".bashrc .bash_profile .profile .zshrc .zshenv .inputrc": "a shell, when it starts there",
    "makefile gnumakefile *.mk cmakelists.txt *.cmake meson.build configure build.ninja build.bazel sconstruct wscript "
    "justfile .justfile taskfile.yml taskfile.yaml rakefile build.gradle build.gradle.kts settings.gradle "
    "settings.gradle.kts gradlew gradle/ pom.xml mvnw .mvn/ build.rs cargo.toml .cargo/ setup.py setup.cfg "
    "pyproject.toml composer.json gemfile *.gemspec build.sbt mix.exs dune-project": (
        "a build tool, when the project is built or installed"
    ),
    "package.json .npmrc .yarnrc .yarnrc.yml .yarn/ .pnpmfile.cjs deno.json deno.jsonc bunfig.toml": (
        "a package manager of JavaScript, when it installs or runs a script"
    ),
    "conftest.py noxfile.py tox.ini pytest.ini": "the tests, when they are run",
    "*.config.js *.config.cjs *.config.mjs *.config.ts *.config.mts .eslintrc.js .eslintrc.cjs .babelrc.js "
    ".prettierrc.js .mocharc.js gulpfile.js gruntfile.js .gdbinit .lldbinit .pdbrc .rprofile .irbrc .pryrc .ipython/": (
        "the tool that it configures, when that is run"
    ),
    "sitecustomize.py usercustomize.py *.pth": "every Python that finds it on its path",
    ".pre-commit-config.yaml .pre-commit-hooks.yaml .husky/ .githooks/ .git/ .gitconfig .gitmodules lefthook.yml "
    ".lefthook.yml .lefthook/ .overcommit.yml .lintstagedrc .lintstagedrc.json": (
        "git, when somebody commits, pushes or pulls"
    ),
    ".vscode/ .idea/ .fleet/ .zed/ .vs/ *.code-workspace .exrc .nvimrc .nvim.lua .lvimrc .vimrc .dir-locals.el "
    ".devcontainer/ .devcontainer.json": "an editor, when the folder is opened",
    ".claude/ .cursor/ .codex/ .gemini/ .mcp.json": "coding agents, when they start there",
    "dockerfile dockerfile.* *.dockerfile containerfile compose.yml compose.yaml docker-compose.yml "
    "docker-compose.yaml docker-compose.*.yml vagrantfile procfile tiltfile": (
        "the tool that makes containers, when they are built"
    ),
    ".github/workflows/ .github/actions/ .gitlab-ci.yml .gitlab/ .circleci/ .buildkite/ .drone.yml .travis.yml "
    "jenkinsfile azure-pipelines.yml bitbucket-pipelines.yml .woodpecker/ .woodpecker.yml .forgejo/ .gitea/": (
        "the server that builds, when it is pushed"
    ),
}
"""By the names of files, with `*` for any characters, and of folders with a slash behind them, in small letters."""


def _by_name() -> tuple[dict[str, str], dict[str, str], tuple[tuple[str, str], ...]]:
    """Who runs them: by the whole name, by the name of a folder on the way, and by patterns."""
    runners = {name: runner for names, runner in _RUNNER_OF_FILE.items() for name in names.split()}
    files = {name: runner for name, runner in runners.items() if not name.endswith("/") and "*" not in name}
    folders = {name: runner for name, runner in runners.items() if name.endswith("/")}
    return files, folders, tuple((name, runner) for name, runner in runners.items() if "*" in name)


_FILES, _FOLDERS, _PATTERNS = _by_name()


def self_running(paths: Iterable[str], programs: Mapping[str, str] = {}) -> dict[str, str]:
    """Those of these paths that something runs by itself, in their order, each with what runs it. `programs`: by path,
    with a slash before it and in small letters, what else is run there; a slash behind it says a folder."""
    runners = ((path, _runner(path) or _runner_of(f"/{path.lower()}", programs)) for path in paths)
    return {path: runner for path, runner in runners if runner is not None}


def _runner_of(place: str, programs: Mapping[str, str]) -> str | None:
    folders = (runner for program, runner in programs.items() if program.endswith("/") and place.startswith(program))
    return programs.get(place) or next(folders, None)


def _runner(path: str) -> str | None:
    """File systems that take large letters for small ones are common, so they count as the same."""
    place = f"/{path.lower()}"
    for folder, runner in _FOLDERS.items():
        if f"/{folder}" in place:
            return runner
    name = place.rpartition("/")[2]
    return _FILES.get(name) or next((runner for pattern, runner in _PATTERNS if fnmatchcase(name, pattern)), None)


def self_running_words(runners: Mapping[str, str], most: int = MOST_NAMED) -> str:
    """`runs by itself: .envrc (direnv, when a shell enters the folder)`; nothing where there is none."""
    if not runners:
        return ""
    named = [f"{path} ({runner})" for path, runner in list(runners.items())[:most]]
    more = [f"and {len(runners) - most} more"] if len(runners) > most else []
    return f"runs by itself: {', '.join([*named, *more])}"
