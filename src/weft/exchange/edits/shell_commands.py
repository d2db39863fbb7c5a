"""What a shell command may have done to files, told by its words alone: nothing, something to paths that it names, or
nobody knows what. Whatever is not surely a command that only reads counts as one that may have written."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from weft.exchange.edits.arguments import opened

_SHELLS = frozenset(
    {"bash", "shell", "exec", "exec_command", "shell_command", "execute_command", "local_shell", "run_terminal_cmd"}
    | {"run_shell_command", "container.exec", "terminal", "write_stdin", "powershell", "monitor"}
)
_READERS = frozenset(
    "[ awk basename cat cd cmp column comm cut date diff dirname du echo expr false fd file find git grep head hostname"
    " id jq less ls nl od pgrep printf ps pwd readlink realpath rg sed seq sleep sort stat strings tail test tr tree"
    " true type uname uniq wc which whoami xxd".split()
)
_WRITING_OPTIONS = {"sed": "i", "awk": "i", "sort": "o", "tree": "o", "fd": "xX", "xxd": "r"}
"""Letters of options with which a command that else reads may write."""
_GIT_READERS = frozenset(
    "add blame describe diff fetch grep log ls-files ls-tree push remote rev-parse show status".split()
)
_HARMLESS = re.compile(r"\d?>>?[ \t]*+/dev/null|\d?>&\d|&>[ \t]*+/dev/null")
_ACTS = re.compile(r"[<>`]|\$\(|-exec|-delete|-fprint|-ok|--output|--in-place|system\(")
_PARTS = re.compile(r"&&|\|\||[;|\n&]")
_ASSIGNMENT = re.compile(r"\w++=\S*+")
_TARGETS = re.compile(r">{1,2}[ \t]*+([\w./@+-]++)")
_ALL = re.compile(
    r"\bgit[ \t]++(?:-\S++[ \t]++)*+"
    r"(?:am|apply|checkout|cherry-pick|clean|merge|pull|rebase|reset|restore|revert|stash|switch)\b"
)
_WORD = re.compile(r"[\w./@+~-]++")
_NAMED = re.compile(r"\b(?:rm|mv|cp|tee|truncate|install|ln|patch|perl|ruby|sed|dd|touch|rsync|unlink)\b")


class ShellEffect(Struct, frozen=True):
    """What a command may have done."""

    is_reading: bool
    changes_all: bool = False
    """Whether it may have changed any file of the workspace at once."""
    paths: tuple[str, ...] = ()
    """Words that may be paths which it wrote to, moved or removed."""


def shell_command(name: str, arguments: Any) -> str | None:
    """The words of a command, where a call ran one."""
    if name.lower() not in _SHELLS:
        return None
    given = opened(arguments)
    if isinstance(given, str):
        return given
    value = next((given[key] for key in ("command", "cmd", "chars") if key in given), "") if given else ""
    if isinstance(value, list):
        words = [word for word in value if isinstance(word, str)]
        return words[-1] if len(words) == 3 and words[1] in ("-lc", "-c") else " ".join(words)
    return value if isinstance(value, str) else ""


def effect_of(command: str) -> ShellEffect:
    plain = _HARMLESS.sub(" ", command)
    if not _ACTS.search(plain) and all(_is_reader(part) for part in _PARTS.split(plain)):
        return ShellEffect(True)
    paths = [found[1] for found in _TARGETS.finditer(plain)]
    for part in _PARTS.split(plain):
        if _NAMED.search(part):
            paths += _WORD.findall(part)
    return ShellEffect(False, bool(_ALL.search(plain)), tuple(dict.fromkeys(paths)))


def _is_reader(part: str) -> bool:
    words = [word for word in part.split() if not _ASSIGNMENT.fullmatch(word)]
    if not words:
        return True
    if words[0] == "git":
        return next((word for word in words[1:] if not word.startswith("-")), "") in _GIT_READERS
    letters = _WRITING_OPTIONS.get(words[0], "")
    options = [word for word in words[1:] if word.startswith("-") and not word.startswith("--")]
    return words[0] in _READERS and not any(letter in word for word in options for letter in letters)
