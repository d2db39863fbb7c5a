"""What a command is, as patterns for tools are compared with it: `shell(git *)`.

A line has one subject for each of its simple commands, and one for each file that it opens (`> notes.txt`). A command
that runs another one (`nohup`, `env`, `sh -c`), one that is called by a path, and one with assignments before it, has
the subjects of both: what allows it must allow each, and what denies one denies it. None where not everything that
would run is known: no pattern allows that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from weft.kernel.shell_syntax import NotPlain, SimpleCommand, is_plain_value, simple_commands
from weft.kernel.shell_words import shell_line, shell_word

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
