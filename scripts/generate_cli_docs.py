"""Writes docs/cli.md from the commands of click and from scripts/cli_page.md, which has the introduction and, by
command, examples that a test runs. `make docs` runs it; a test compares page and program."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from weft.surfaces.cli.command_help import REVISIONS
from weft.surfaces.cli.command_line import EXIT_CODES, SHARED, shared_options
from weft.surfaces.cli.main import COMMANDS, weft

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cli.md"
FRAME = ROOT / "scripts" / "cli_page.md"
WIDTH = 120
ACTING = ("actor", "retry_key")
"""Options of every command that changes programs: told once, before them."""
MARKED = re.compile(r"^(\()?(-|-{1,2}[a-zA-Z].*|.*[*_<>|{}$~@].*)$")
"""A word of a help text that Markdown would read as something else than the word: it becomes code."""


def code(words: str) -> str:
    return f"``{words}``" if "`" in words else f"`{words}`"


def prose(paragraph: str) -> str:
    """A paragraph of a help text as Markdown: options and names as code, pages as links, filled lines."""
    pieces = re.split(r"(`[^`]*`)", " ".join(paragraph.split()))
    text = "".join(piece if number % 2 else _marked_words(piece) for number, piece in enumerate(pieces))
    text = re.sub(r"`?\bdocs/(\w+\.md)(#[\w-]+)?`?", r"[\1](\1\2)", text)
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _marked_words(text: str) -> str:
    return " ".join(_marked(word) for word in text.split(" "))


def _marked(word: str) -> str:
    core = word.rstrip(".,;:)!?") if not word.endswith("…") else word
    opening = "(" if core.startswith("(") and ")" not in core else ""
    core = core.removeprefix(opening)
    if not core or core.startswith("docs/") or not MARKED.match(core):
        return word
    return f"{opening}{code(core)}{word[len(opening) + len(core) :]}"


def help_blocks(help_text: str) -> Iterator[str]:
    """A help text as Markdown; what click leaves as it is written (after a line with \\b) stays so."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(help_text)):
        if paragraph.startswith("\b"):
            yield f"```text\n{textwrap.dedent(paragraph.removeprefix(chr(8)).lstrip(chr(10))).rstrip()}\n```"
        else:
            yield prose(paragraph)


def option_lines(params: Sequence[click.Parameter]) -> Iterator[str]:
    """What a command's help says of its options: spellings, value, meaning, default."""
    ctx = click.Context(click.Command("weft"))
    for param in params:
        if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None:
            spellings, meaning = record
            yield f"- {code(spellings)}: {' '.join(meaning.split())}"


def own_options(command: click.Command, hidden: Sequence[str] = ()) -> list[click.Parameter]:
    return [param for param in command.params if param.name not in (*SHARED, *hidden)]


def command_part(path: str, command: click.Command, context: click.Context, hidden: Sequence[str]) -> Iterator[str]:
    """Usage, help text and options of one command."""
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield code(" ".join(usage.split()))
    assert command.help is not None, f"{path} has a help text"
    yield from help_blocks(command.help)
    if lines := list(option_lines(own_options(command, hidden))):
        yield "\n".join(lines)


def command_parts(name: str, frame: dict[str, str]) -> Iterator[str]:
    """A command, and the commands that it has of its own, each with its examples."""
    root = click.Context(weft, info_name="weft")
    command = weft.get_command(root, name)
    assert command is not None, f"{name} is a command"
    context = click.Context(command, parent=root, info_name=name)
    yield f"### weft {name}"
    yield from command_part(name, command, context, ())
    yield from examples(frame, f"weft {name}")
    for verb, verb_command in command.commands.items() if isinstance(command, click.Group) else ():
        if verb_command.hidden:
            continue
        path = f"weft {name} {verb}"
        yield f"#### {path}"
        yield from command_part(path, verb_command, click.Context(verb_command, parent=context, info_name=verb), ACTING)
        yield from examples(frame, path)


def examples(frame: dict[str, str], path: str) -> Iterator[str]:
    if blocks := frame.get(path, ""):
        yield blocks


def acting_options() -> list[click.Parameter]:
    """The options that commands take which change programs."""
    group = weft.get_command(click.Context(weft), "provider")
    assert isinstance(group, click.Group)
    return [param for param in group.commands["create"].params if param.name in ACTING]


def revision_rows() -> Iterator[str]:
    yield "| name | turn |"
    yield "|---|---|"
    for name, meaning in re.findall(r"^  (\S+)  +(.*)$", REVISIONS, re.MULTILINE):
        marked = re.sub(r"`[^`]*`|\{[^}]*\}|\bmain\S*", lambda words: code(words[0].strip("`")), meaning)
        yield f"| {code(name)} | {marked} |"


def exit_code_rows() -> Iterator[str]:
    yield "| code | meaning |"
    yield "|---|---|"
    yield from (f"| {number} | {meaning} |" for number, meaning in EXIT_CODES.items())


def cli_page() -> str:
    """The page: the frame's introduction, then every command in the frame's order of headings."""
    headings = "|".join(_headings())
    opening, *sections = re.split(rf"^## (?=(?:{headings})$)", FRAME.read_text(), flags=re.MULTILINE)
    fillings = {
        "{revisions}": revision_rows(),
        "{shared options}": option_lines(shared_options()),
        "{acting options}": option_lines(acting_options()),
        "{exit codes}": exit_code_rows(),
    }
    text = "\n\n".join([opening.strip(), *(part for section in sections for part in _section(section))])
    for mark, lines in fillings.items():
        text = text.replace(mark, "\n".join(lines))
    return text + "\n"


def _headings() -> dict[str, str]:
    return {group.capitalize(): group for group in COMMANDS}


def _section(section: str) -> Iterator[str]:
    title, _, body = section.partition("\n")
    introduction, *parts = re.split(r"^#{3,4} ", body, flags=re.MULTILINE)
    frame = {path: blocks.strip() for path, _, blocks in (part.partition("\n") for part in parts)}
    yield f"## {title}"
    if introduction.strip():
        yield introduction.strip()
    for name in COMMANDS[_headings()[title]]:
        yield from command_parts(name, frame)


def main() -> None:
    PAGE.write_text(cli_page())
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
