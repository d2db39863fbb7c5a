"""What a person types in a conversation: a message, over several lines if need be, or a command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from msgspec import Struct

COMMANDS = {
    "help": ("", "this list"),
    "fork": ("[LABEL]", "go on in a new session from here, with a copy of the files; this one stays as it is"),
    "undo": ("", "go back before the last exchange, and its files; both stay in the ledger"),
    "redo": ("", "take the last undo back"),
    "model": ("[NAME]", "list the models, or be answered by another one from now on"),
    "steer": ("TEXT", "say something to the turn that runs here, also while its answer comes"),
    "interrupt": ("", "cut the turn short that runs here, also while its answer comes; so does Ctrl-C"),
    "approve": ("[ID]", "allow the tool call that waits for you, also while its turn does"),
    "reject": ("[ID]", "refuse it"),
    "retry": ("", "try the last turn again, if it failed"),
    "compact": ("[FOCUS]", "let a summary stand for what was said so far"),
    "tree": ("", "the whole tree of this conversation"),
    "cost": ("", "tokens and cost of this session"),
    "sessions": ("", "the sessions of this ledger"),
    "switch": ("SESSION", "go on in another session"),
    "show": ("[TURN]", "one turn in full; without a name the last"),
    "quit": ("", "leave; so does Ctrl-D"),
}
OTHER_NAMES = {"exit": "quit", "q": "quit", "?": "help", "h": "help", "models": "model", "usage": "cost"}
FENCE = '"""'
MORE = "\\"


class TypedMessage(Struct, frozen=True):
    """A message that was typed."""

    text: str


class Command(Struct, frozen=True):
    """A command that was typed, with what stands behind it."""

    name: str
    argument: str = ""


class Unknown(Struct, frozen=True):
    """Looks like a command and is none."""

    name: str
    near: str | None


TypedInput = TypedMessage | Command | Unknown | None


def needs_more(lines: Sequence[str]) -> bool:
    """Whether what was typed goes on in the next line: a block that is not closed, or a backslash at the end."""
    if not lines:
        return True
    if lines[0].startswith(FENCE):
        opening = lines[0].removeprefix(FENCE)
        return FENCE not in opening and not any(FENCE in line for line in lines[1:])
    return lines[-1].endswith(MORE)


def read_typed(lines: Sequence[str], commands: Mapping[str, tuple[str, str]] = COMMANDS) -> TypedInput:
    """What the lines mean, where these commands are known. Nothing at all is None; `//` begins a message that begins
    with a slash."""
    text = _text(lines)
    if not text.strip():
        return None
    if lines[0].startswith(FENCE):
        return TypedMessage(text)
    if text.startswith("//"):
        return TypedMessage(text[1:])
    if not text.startswith("/"):
        return TypedMessage(text)
    word, _, argument = text[1:].strip().partition(" ")
    name = OTHER_NAMES.get(word.lower(), word.lower())
    if name in commands:
        return Command(name, argument.strip())
    near = get_close_matches(name, commands, n=1)
    return Unknown(word, near[0] if near else None)


def _text(lines: Sequence[str]) -> str:
    if lines and lines[0].startswith(FENCE):
        whole = "\n".join(lines).removeprefix(FENCE)
        return whole.partition(FENCE)[0].strip("\n")
    return "\n".join(line.removesuffix(MORE) for line in lines)


def completions(line: str, labels: Iterable[str], models: Iterable[str]) -> list[str]:
    """What the last word of a line could become: a command's name, then what that command takes."""
    if not line.startswith("/"):
        return []
    word, space, argument = line[1:].partition(" ")
    if not space:
        return [f"/{name}{' ' if takes else ''}" for name, (takes, _) in COMMANDS.items() if name.startswith(word)]
    taken = {"model": models, "switch": labels, "show": labels}.get(OTHER_NAMES.get(word, word), ())
    last = argument.rpartition(" ")[2]
    return [name for name in taken if name.startswith(last)]


def free_label(wanted: str, taken: Iterable[str]) -> str:
    """The label, or with the first number behind it that nobody has."""
    labels = set(taken)
    if wanted not in labels:
        return wanted
    number = 2
    while f"{wanted}-{number}" in labels:
        number += 1
    return f"{wanted}-{number}"
