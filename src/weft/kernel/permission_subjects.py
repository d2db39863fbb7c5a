"""What permissions are said of: commands of a shell's line, as patterns for tools are compared
with them; hosts that something may reach; and files that programs run by themselves, outside of any
sandbox.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from typing import NamedTuple

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
        commands = [self._read_command()]
        while self._at < len(self._line):
            self._take_pattern(_OPERATOR)
            commands.append(self._read_command())
        return commands

    def _read_command(self) -> SimpleCommand:
        """Behind it the line ends, or an operator stands."""
        self._skip_blanks()
        name = self._take_pattern(_WORD_OF_COMMAND)
        if name in _GRAMMAR_WORDS:
            raise NotPlain
        words: list[str] = [name]
        redirections: list[Redirection] = []
        is_behind_words = False
        self._skip_blanks()
        while self._at < len(self._line) and _OPERATOR.match(self._line, self._at) is None:
            if _COPY.match(self._line, self._at) is not None:
                self._take_pattern(_COPY)
                is_behind_words = True
            elif _REDIRECTION.match(self._line, self._at) is not None:
                redirections += self._read_redirection()
                is_behind_words = True
            elif is_behind_words:
                raise NotPlain
            else:
                words.append(_unquoted_word(self._take_pattern(_WORD)))
            self._skip_blanks()
        return SimpleCommand(tuple(words), redirections=tuple(redirections))

    def _read_redirection(self) -> Iterator[Redirection]:
        operator = self._take_pattern(_REDIRECTION).lstrip("12")
        self._skip_blanks()
        target = _unquoted_word(self._take_pattern(_WORD))
        if not target or (target.startswith("/") and target != NULL_DEVICE) or ".." in target.split("/"):
            raise NotPlain
        if target != NULL_DEVICE:
            yield Redirection(operator, target)

    def _skip_blanks(self) -> None:
        blanks = _BLANKS.match(self._line, self._at)
        self._at = self._at if blanks is None else blanks.end()

    def _take_pattern(self, pattern: re.Pattern[str]) -> str:
        """What stands here, and go on behind it. Raises NotPlain where the pattern does not fit."""
        match = pattern.match(self._line, self._at)
        if match is None:
            raise NotPlain
        self._at = match.end()
        return match[0]


def _unquoted_word(word: str) -> str:
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
        return tuple(dict.fromkeys(_of_line(line, _assigned_words(environment), 0)))
    except NotPlain:
        return None


def command_subjects(words: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """The subjects of a command that no shell reads: its words are what they are."""
    try:
        return tuple(dict.fromkeys(_of_command(SimpleCommand(tuple(words), _assigned_words(environment)), 0)))
    except NotPlain:
        return None


def _assigned_words(environment: Mapping[str, str] | None) -> tuple[str, ...]:
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


class HostEndpoint(Struct, frozen=True, order=True):
    """A port of a host; the host `*` is every public one."""

    host: str
    port: int

    def covers(self, other: HostEndpoint) -> bool:
        return self.port == other.port and self.host in (ANY_HOST, other.host)


def host_name(text: str) -> str:
    """A host in its one form: lower case, without a dot at its end, addresses as Python writes them."""
    name = text.strip().lower().removesuffix(".")
    if name.startswith("[") and name.endswith("]"):
        return _host_address(text, name[1:-1])
    if not name.isascii() or len(name) > _LONGEST_NAME or not _HOST_NAME.fullmatch(name):
        raise _no_host(text)
    return _host_address(text, name) if _NUMBER.fullmatch(name.rpartition(".")[2]) else name


def _host_address(text: str, address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        raise _no_host(text) from None


def _no_host(text: str) -> InvalidInput:
    return InvalidInput(f"{quoted(text)} is no host", "give a name such as pypi.org, or HOST:PORT")


def endpoints_of(hosts: Iterable[str]) -> frozenset[HostEndpoint]:
    """The endpoints that a list of hosts stands for."""
    return frozenset(endpoint for host in hosts for endpoint in _endpoints_of(host))


def _endpoints_of(text: str) -> list[HostEndpoint]:
    parts = _WITH_PORT.fullmatch(text.strip())
    if parts is None:
        raise _no_host(text)
    host = ANY_HOST if parts[1] == ANY_HOST else host_name(parts[1])
    ports = WEB_PORTS if parts[2] is None else (int(parts[2]),)
    if not all(0 < port <= _HIGHEST_PORT for port in ports):
        raise _no_host(text)
    return [HostEndpoint(host, port) for port in ports]


def common_endpoints(one: frozenset[HostEndpoint], other: frozenset[HostEndpoint]) -> frozenset[HostEndpoint]:
    """What both allow."""
    narrow = {endpoint for endpoint in one if any(wide.covers(endpoint) for wide in other)}
    return frozenset(narrow | {endpoint for endpoint in other if any(wide.covers(endpoint) for wide in one)})


def host_texts(endpoints: Iterable[HostEndpoint]) -> tuple[str, ...]:
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

_FILES_OF_RUNNER = {
    "direnv, when a shell enters the folder": ".envrc .envrc.local .envrc.private",
    "the tool that makes the environment": (
        "mise.toml mise.*.toml .mise.toml .mise.*.toml .mise/ .config/mise/ .config/mise.toml .rtx.toml "
        ".tool-versions .asdfrc .prototools .proto/ .sdkmanrc aqua.yaml aqua.yml .aqua.yaml .aqua.yml pkgx.yml "
        "pkgx.yaml .pkgx.yml .pkgx.yaml .hermit/ *.nix devenv.yaml devenv.yml devbox.json .devbox/ .flox/ pixi.toml "
        "environment.yml environment.yaml spack.yaml manifest.scm guix.scm brewfile .autoenv .autoenv.zsh .autoenv/ "
        ".env.enter .env.leave .ondirrc pyvenv.cfg"
    ),
    "a shell or terminal, when it starts there": (
        ".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin "
        ".zlogout .kshrc .mkshrc .cshrc .tcshrc .login .inputrc .config/fish/ config.fish .screenrc .tmux.conf "
        ".tmuxinator.yml .tmuxp.yaml .tmuxp.yml .wezterm.lua .mc.menu profile.ps1 microsoft.powershell_profile.ps1 "
        ".xinitrc .xsession .xprofile"
    ),
    "the desktop, ssh or a timer of the system": ".config/autostart/ .config/systemd/ .ssh/ autorun.inf desktop.ini",
    "a build tool, when the project is built or installed": (
        "makefile gnumakefile bsdmakefile makefile.am makefile.in makefile.win makevars makevars.win *.mk *.mak "
        "cmakelists.txt *.cmake cmakepresets.json cmakeuserpresets.json meson.build *.wrap configure configure.ac "
        "configure.in aclocal.m4 acinclude.m4 autogen.sh *.ninja sconstruct sconscript wscript tupfile tupfile.lua "
        "tuprules.tup tuprules.lua conanfile.py conanfile.txt vcpkg.json vcpkg-configuration.json premake4.lua "
        "premake5.lua xmake.lua *.pro *.pri *.qbs *.gyp *.gypi *.gn *.gni *.do BUILD build.plz build.pants build.sc "
        "build.mill WORKSPACE workspace.bazel workspace.bzlmod module.bazel *.bzl *.bazel *.bazelrc .bazeliskrc "
        ".bazelversion *.bazelproject BUCK TARGETS *.bxl .buckconfig .buckconfig.local .buckconfig.d/ pants.toml "
        "pants.*.toml .pants.rc .pants.bootstrap .plzconfig .plzconfig.* justfile .justfile *.just taskfile.* "
        ".taskrc.yml .taskrc.yaml maskfile.md makefile.toml magefile.go magefiles/ tasks.py fabfile.py dodo.py "
        "duties.py pavement.py poe_tasks.toml snakefile *.smk nextflow.config dvc.yaml .dvc .dvc/config "
        ".dvc/config.local .moon/ moon.yml earthfile dagger.json .dagger/ bacon.toml .air.toml nodemon.json "
        "process-compose.yml process-compose.yaml mprocs.yaml *.gradle *.gradle.kts *.gradle.dcl .gradle "
        ".gradle/init.gradle .gradle/init.d/ .gradle/gradle.properties .gradle/config.properties gradle.properties "
        "local.properties gradlew gradlew.bat gradle/ buildsrc/ pom.xml mvnw mvnw.cmd .mvn/ build.xml ivy.xml *.sbt "
        ".sbtopts .jvmopts .mill-jvm-opts .scalafix.conf .bsp/ project.clj deps.edn bb.edn build.boot shadow-cljs.edn "
        "jbang-catalog.json jreleaser.yml *.csproj *.fsproj *.vbproj *.vcxproj *.shproj *.sqlproj *.esproj *.njsproj "
        "*.pyproj *.wapproj *.wixproj *.proj *.projitems *.props *.targets *.tasks *.sln *.slnx *.slnf *.user *.suo "
        "*.resx *.rsp *.cake nuget.config global.json packages.config dotnet-tools.json launchsettings.json .paket/ "
        "paket.dependencies .nuke/ psakefile.ps1 *.build.ps1 setup.py setup.cfg pyproject.toml hatch.toml "
        "hatch_build.py pdm.toml .pdm.toml poetry.toml uv.toml pip.conf pip.ini pipfile build.rs cargo.toml .cargo/ "
        "rust-toolchain rust-toolchain.toml cross.toml trunk.toml dioxus.toml go.work .goreleaser.yml "
        ".goreleaser.yaml goreleaser.yml goreleaser.yaml wails.json buf.gen.yaml gemfile gemfile.* gems.rb *.gemspec "
        "rakefile rakefile.rb *.rake thorfile *.thor capfile appraisals .bundle/ composer.json robofile.php "
        "deploy.php castor.php makefile.pl build.pl cpanfile dist.ini mix.exs rebar.config rebar.config.script dune "
        "dune-project dune-workspace *.opam myocamlbuild.ml *.cabal cabal.project cabal.project.* setup.hs setup.lhs "
        "stack.yaml package.yaml hie.yaml shakefile.hs build.zig build.zig.zon *.nimble *.nims nim.cfg *.rockspec "
        "dub.json dub.sdl shard.yml pubspec.yaml package.swift *.podspec podfile cartfile fastfile fastlane/ "
        "project.pbxproj *.xcscheme *.xcconfig *.xcworkspacedata tuist/ *.asd _targets.r renv renv/activate.r "
        "renv/settings.json latexmkrc .latexmkrc texmf.cnf arara.yaml .arararc.yaml mkdocs.yml mkdocs.yaml conf.py "
        "_plugins/"
    ),
    "a package manager of JavaScript, when it installs or runs a script": (
        "package.json package.json5 .npmrc .yarnrc .yarnrc.yml .yarn/ .pnpmfile.cjs .pnpmfile.mjs pnpmfile.js "
        "pnpm-workspace.yaml .pnp.cjs .pnp.js .pnp.loader.mjs deno.json deno.jsonc bunfig.toml .bowerrc bower.json "
        "lerna.json nx.json project.json turbo.json turbo.jsonc rush.json .rush/ angular.json"
    ),
    "the tests, when they are run": (
        "conftest.py noxfile.py tox.ini tox.toml pytest.ini .pytest.ini pytest.toml .pytest.toml behave.ini .behaverc "
        "robot.toml .rspec .rspec-local cucumber.yml .mocharc.* .taprc .nycrc .nycrc.* .c8rc.json .testcaferc.* "
        "testem.js testem.json nightwatch.json .busted .proverc phpunit.xml phpunit.xml.dist phpunit.dist.xml "
        "*.runsettings nextest.toml locustfile.py .coveragerc .coveragerc.* .kitchen.yml kitchen.yml"
    ),
    "the tool that it configures, when that is run": (
        "*.config.js *.config.cjs *.config.mjs *.config.ts *.config.mts *.config.cts *.conf.js *.conf.cjs *.conf.mjs "
        "*.conf.ts *.conf.mts .*rc.js .*rc.cjs .*rc.mjs .*rc.ts .*rc.mts .*rc.cts gulpfile.* gruntfile.* jakefile "
        "jakefile.js knexfile.* .sequelizerc ember-cli-build.js .storybook/ tsconfig.json tsconfig.*.json "
        "jsconfig.json .parcelrc .babelrc .babelrc.json .eslintrc .eslintrc.* .oxlintrc.json tslint.json .prettierrc "
        ".prettierrc.* .stylelintrc .stylelintrc.* .postcssrc .postcssrc.* .textlintrc .textlintrc.* .remarkrc "
        ".remarkrc.* .markdownlint-cli2.* .spectral.* .secretlintrc .secretlintrc.* .release-it.* .releaserc "
        ".releaserc.* .versionrc .versionrc.* .pylintrc pylintrc .pylintrc.toml pylintrc.toml .flake8 mypy.ini "
        ".mypy.ini .sqlfluff .importlinter .gitlint .ansible-lint .rubocop.yml .rubocop_todo.yml .standard.yml "
        ".erb-lint.yml .erb_lint.yml .simplecov .yardopts .solargraph.yml guardfile dangerfile steepfile "
        ".golangci.yml .golangci.yaml .golangci.toml .golangci.json .custom-gcl.yml .luacheckrc .luacov config.ld "
        ".php-cs-fixer.php .php-cs-fixer.dist.php .php_cs .php_cs.dist phpstan.neon phpstan.neon.dist "
        "phpstan.dist.neon psalm.xml psalm.xml.dist rector.php ecs.php phpcs.xml phpcs.xml.dist .phpcs.xml "
        ".phpcs.xml.dist .phan/ .formatter.exs .credo.exs .tflint.hcl .trunk .trunk/trunk.yaml .trunk/plugins/ "
        "sgconfig.yml .mega-linter.yml .arcconfig .arclint analysis_options.yaml .gdbinit .lldbinit .radare2rc "
        "*-gdb.py *-gdb.gdb *-gdb.scm .pdbrc .pdbrc.py .byebugrc .perldb .rprofile .renviron *.rproj .irbrc .pryrc "
        ".iex.exs .ghci .ocamlinit .erlang .guile .sbclrc .replyrc .ipython/ ipython_config.py .jupyter/ "
        "jupyter_*_config.py gunicorn.conf.py uwsgi.ini celeryconfig.py config.ru .htaccess .user.ini project.godot "
        "plugin.cfg"
    ),
    "every Python that finds it on its path": "sitecustomize.py usercustomize.py *.pth *._pth",
    "a version control, when somebody looks at the state, commits, pushes or pulls": (
        ".hg .hg/hgrc .hg/hgrc-not-shared .hg/sharedpath .hg/requires .hgrc .hgsub .hgsubstate .sl .sl/config .jj "
        ".jj/repo .jj/repo/config.toml .jj/repo/config-id .jj/config.toml .jj/workspace-config.toml .svn/ .bzr/ "
        "_darcs/prefs/ .pijul/config .fossil-settings/ .fslckout _fossil_ cvs/ .repo/ .datalad/"
    ),
    "git, when somebody commits, pushes or pulls": (
        ".pre-commit-config.yaml .pre-commit-config.yml .pre-commit-hooks.yaml prek.toml .husky/ .huskyrc .huskyrc.* "
        ".githooks/ .git-hooks/ .hooks/ githooks/ git-hooks/ .git/ .gitconfig .gitmodules lefthook.* .lefthook.* "
        "lefthook-local.* .lefthook-local.* .lefthook/ .lefthook-local/ .overcommit.yml .lintstagedrc .lintstagedrc.* "
        ".simple-git-hooks.* simple-git-hooks.* .commitlintrc .commitlintrc.* .czrc .cz.json .cz.toml .cz.yaml "
        "cog.toml hk.pkl .rusty-hook.toml .cargo-husky/ captainhook.json grumphp.yml grumphp.yml.dist "
        ".bumpversion.cfg .bumpversion.toml"
    ),
    "an editor, when the folder is opened": (
        ".vscode/ .idea/ .run/ .fleet/ .zed/ .vs/ .helix/ .nova/ .theia/ .vim/ .nvim/ .settings/ "
        ".externaltoolbuilders/ .bloop/ .swiftpm/ nbproject/ .project .classpath .factorypath *.launch *.iml *.ipr "
        "*.iws *.code-workspace *.sublime-project *.sublime-workspace .exrc _exrc .nvimrc .nvim.lua .lazy.lua "
        ".neoconf.json .luarc.json .luarc.jsonc .lvimrc .local.vimrc .vimrc _vimrc .vimrc.local .vimspector.json "
        ".ycm_extra_conf.py .dir-locals.el .dir-locals-2.el .emacs .emacs.d/ .emacs.desktop .kateproject "
        "rust-project.json rust-analyzer.toml .rust-analyzer.toml .devcontainer/ .devcontainer.json devfile.yaml "
        ".devfile.yaml .gitpod.yml .gitpod.dockerfile .ona/ .idx/ .replit replit.nix .codesandbox/ .stackblitzrc "
        ".vscode-test.*"
    ),
    "coding agents, when they start there": (
        ".claude/ .cursor/ .codex/ .gemini/ .qwen/ .kiro/ .amazonq/ .windsurf/ .trae/ .roo/ .continue/ .opencode/ "
        ".factory/ .junie/ .augment/ .goose/ .copilot/ .github/hooks/ .pi/ .agents/ .tabnine/ .mcp.json mcp.json "
        "opencode.json opencode.jsonc crush.json .crush.json .aider.conf.yml"
    ),
    "coding agents, which take it for instructions": (
        "agents.md agents.override.md agent.md claude.md claude.local.md gemini.md qwen.md warp.md crush.md "
        "crush.local.md replit.md copilot-instructions.md *.instructions.md .cursorrules .windsurfrules .clinerules "
        ".clinerules/ .roorules .goosehints .augment-guidelines .rules"
    ),
    "the tool that makes containers, when they are built": (
        "dockerfile dockerfile.* *.dockerfile containerfile containerfile.* compose.yml compose.yaml compose.*.yml "
        "compose.*.yaml docker-compose.yml docker-compose.yaml docker-compose.*.yml docker-compose.*.yaml "
        "docker-bake.hcl docker-bake.json docker-bake.override.* vagrantfile procfile procfile.* tiltfile "
        "skaffold.yaml skaffold.yml devspace.yaml okteto.yml garden.yml werf.yaml Singularity nixpacks.toml"
    ),
    "the tool that deploys, when it looks or changes something": (
        "ansible.cfg .ansible.cfg *.tf *.tf.json *.tofu *.tofu.json .terraform/ .terraformrc terragrunt.hcl "
        "terragrunt.hcl.json *.pkr.hcl *.pkr.json pulumi.yaml pulumi.*.yaml cdk.json cdktf.json serverless.yml "
        "serverless.yaml serverless.json serverless.ts samconfig.toml helmfile.yaml helmfile.yml helmfile.yaml.gotmpl "
        "helmfile.d/ saltfile puppetfile policyfile.rb berksfile knife.rb .chef/ firebase.json netlify.toml "
        "vercel.json now.json wrangler.toml wrangler.json wrangler.jsonc fly.toml render.yaml railway.json "
        "railway.toml app.json amplify.yml"
    ),
    "the server that builds, when it is pushed": (
        ".github/workflows/ .github/actions/ action.yml action.yaml .gitlab-ci.yml *.gitlab-ci.yml .gitlab/ "
        ".circleci/ .buildkite/ .drone.yml .drone.star .drone.jsonnet .travis.yml jenkinsfile jenkinsfile.* "
        "*.jenkinsfile azure-pipelines*.yml azure-pipelines*.yaml .azure-pipelines/ .pipelines/ "
        "bitbucket-pipelines.yml .woodpecker/ .woodpecker.yml .woodpecker.yaml .forgejo/ .gitea/ appveyor.yml "
        ".appveyor.yml .appveyor/ cloudbuild.yaml cloudbuild.yml buildspec.yml buildspec.yaml .semaphore/ .cirrus.yml "
        ".cirrus.star codefresh.yml .teamcity/ wercker.yml bamboo-specs/ .harness/ .tekton/ screwdriver.yaml .builds/ "
        ".build.yml .readthedocs.yml .readthedocs.yaml .prow.yaml .zuul.yaml zuul.yaml .zuul.d/ zuul.d/ "
        ".onedev-buildspec.yml codemagic.yaml bitrise.yml .taskcluster.yml .packit.yml .packit.yaml .copr/"
    ),
}
"""By what runs them, names of files: `*` stands for any characters, a slash behind a name says that it is a folder and
means all that lies in it. A name in small letters means any letters; one in capitals only itself, as `build` is also
what people call other things. Of folders in which tools note what they do, only what runs something is named."""


class _RunnersByName(NamedTuple):
    """Who runs files: by the whole name; by a folder, or folders, on the way; by the end of the path; by the end of the
    name from a dot on, or its beginning up to one; and by other patterns, one group for each of `runners`."""

    files: dict[str, str]
    folders: dict[str, str]
    ways: dict[str, str]
    ends: dict[str, str]
    endings: dict[str, str]
    beginnings: dict[str, str]
    pattern: re.Pattern[str]
    runners: list[str]


def _by_name() -> _RunnersByName:
    patterns: dict[str, list[str]] = {}
    names = _RunnersByName({}, {}, {}, {}, {}, {}, re.compile(""), [])
    for runner, written in _FILES_OF_RUNNER.items():
        for name in written.split():
            if name.startswith("*.") and "*" not in name[1:]:
                names.endings[name[1:]] = runner
            elif name.endswith(".*") and "*" not in name[:-1]:
                names.beginnings[name[:-1]] = runner
            elif "*" in name:
                patterns.setdefault(runner, []).append(translate(name))
            elif name.endswith("/") and "/" in name[:-1]:
                names.ways[f"/{name}"] = runner
            elif name.endswith("/"):
                names.folders[name[:-1]] = runner
            elif "/" in name:
                names.ends[f"/{name}"] = runner
            else:
                names.files[name] = runner
    pattern = re.compile("|".join(f"({'|'.join(of_runner)})" for of_runner in patterns.values()))
    return names._replace(pattern=pattern, runners=list(patterns))


_NAMES = _by_name()
_ENDS = tuple(_NAMES.ends)


def self_running(paths: Iterable[str], programs: Mapping[str, str] = {}) -> dict[str, str]:
    """Those of these paths that something runs by itself, in their order, each with what runs it. `programs`: by path,
    with a slash before it and in small letters, what else is run there; a slash behind it says a folder."""
    runners = ((path, _self_runner(path) or _runner_of(f"/{path.lower()}", programs)) for path in paths)
    return {path: runner for path, runner in runners if runner is not None}


def _runner_of(place: str, programs: Mapping[str, str]) -> str | None:
    folders = (runner for program, runner in programs.items() if program.endswith("/") and place.startswith(program))
    return programs.get(place) or next(folders, None)


def _self_runner(path: str) -> str | None:
    """File systems that take large letters for small ones are common, so they count as the same. What has the name of a
    hidden folder counts like what lies in it: a link by that name leads to another folder. Names such as `gradle` are
    also words of commands."""
    small = path.lower()
    *above, name = small.split("/")
    for folder in (*above, name) if name.startswith(".") else above:
        if folder in _NAMES.folders:
            return _NAMES.folders[folder]
    runner = _NAMES.files.get(name) or _NAMES.files.get(path.rpartition("/")[2])
    return runner or _runner_by_way(f"/{small}") or _runner_by_form(name)


def _runner_by_way(place: str) -> str | None:
    if place.endswith(_ENDS):
        return next(runner for end, runner in _NAMES.ends.items() if place.endswith(end))
    return next((runner for way, runner in _NAMES.ways.items() if way in f"{place}/"), None)


def _runner_by_form(name: str) -> str | None:
    for place, sign in enumerate(name):
        if sign == ".":
            runner = _NAMES.endings.get(name[place:]) or _NAMES.beginnings.get(name[: place + 1])
            if runner is not None:
                return runner
    match = _NAMES.pattern.fullmatch(name)
    return None if match is None or match.lastindex is None else _NAMES.runners[match.lastindex - 1]


def self_running_words(runners: Mapping[str, str], most: int = MOST_NAMED) -> str:
    """`runs by itself: .envrc (direnv, when a shell enters the folder)`; nothing where there is none. Of each runner
    the first file comes before the second of any, so that many harmless ones do not keep another out of sight."""
    if not runners:
        return ""
    count_of_runner: dict[str, int] = {}
    rank_of_path: dict[str, int] = {}
    for path, runner in runners.items():
        rank_of_path[path] = count_of_runner.get(runner, 0)
        count_of_runner[runner] = rank_of_path[path] + 1
    named = [f"{path} ({runners[path]})" for path in sorted(runners, key=rank_of_path.__getitem__)[:most]]
    more = [f"and {len(runners) - most} more"] if len(runners) > most else []
    return f"runs by itself: {', '.join([*named, *more])}"
