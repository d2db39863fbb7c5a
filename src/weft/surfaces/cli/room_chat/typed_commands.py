"""What a person types in a room beside messages: its commands, and what a word that is being typed can become."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.chat.room_stream import Suggestion

ROOM_COMMANDS = {
    "help": ("", "this list"),
    "who": ("", "who takes part, and what they do"),
    "add": ("AGENT", "let an agent in; mentioning it does so too"),
    "invite": ("PERSON", "let a person in"),
    "remove": ("NAME", "take an agent or a person out"),
    "title": ("TEXT", "give the room another title"),
    "read": ("[N]", "show the last messages again"),
    "approve": ("[ID]", "allow the tool call that waits for you"),
    "reject": ("[ID]", "refuse it"),
    "interrupt": ("", "cut the answers short that are being written to you; so does Ctrl-C"),
    "leave": ("", "take part no longer"),
    "quit": ("", "close this; you still take part. So does Ctrl-D"),
}
Suggest = Callable[[str], Sequence[Suggestion]]
"""By the letters that were typed of a name, whom they may mean, the likeliest first."""


def room_completions(before: str, suggest: Suggest) -> list[str]:
    """What the last word of a text can become: a command's name, a name that it takes, or a mention."""
    if before.startswith("/") and "\n" not in before:
        return _command_completions(before, suggest)
    at = before.rfind("@")
    if at < 0 or (at and (before[at - 1].isalnum() or before[at - 1] in '\\@"')):
        return []
    letters = before[at + 1 :]
    is_quoted = letters.startswith('"')
    letters = letters.removeprefix('"')
    if ('"' if is_quoted else " ") in letters or "\n" in letters:
        return []
    return [f"@{_quoted(one.name)} " for one in suggest(letters)]


def _command_completions(before: str, suggest: Suggest) -> list[str]:
    word, space, letters = before[1:].partition(" ")
    if not space:
        commands = ROOM_COMMANDS.items()
        return [f"/{name}{' ' if takes else ''}" for name, (takes, _) in commands if name.startswith(word)]
    if " " in letters or word not in ("add", "invite", "remove"):
        return []
    return [one.name for one in suggest(letters) if _is_named_behind(word, one)]


def _is_named_behind(command: str, one: Suggestion) -> bool:
    if command == "remove":
        return one.is_participant
    return not one.is_participant and (one.kind == "agent") == (command == "add")


def _quoted(name: str) -> str:
    """A name as it is typed behind `@`."""
    return f'"{name}"' if any(not (letter.isalnum() or letter in "-_.") for letter in name) else name
