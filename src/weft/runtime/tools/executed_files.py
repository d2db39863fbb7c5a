"""Which of the files that a command names it executes, or has an interpreter execute: `./x`, `sh x`, `make`, `pytest`.

Those are held while an approved command runs: it finds their approved bytes, whatever becomes of them in the workspace.
A held file cannot be written, renamed or removed by the command either. So files that a command only reads or changes
are not held: `sed -i s/a/b/ x.sh`, `git add x.sh`, `black x.py`, `rm x.py` and `npm install` (package.json) work as
before, and their files are compared with what was approved when the command begins. Nor is a file held that the command
itself writes by a redirection: `cat > x.py <<E …; python x.py` runs what the approved text says. A line that changes a
file in another way and then runs it (`git pull && ./build.sh`) fails where the change reaches the held file: what it
would run then is nothing that was approved.

The words of a text are told apart roughly, since it may be any text at all. What is not seen here (`f=x; sh $f.sh`) is
not held; the approval shows of each file whether it is, and names scripts of interpreters that are no file there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

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
