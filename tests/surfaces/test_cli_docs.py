"""docs/cli.md is written from the program, and its examples are run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from scripts.generate_cli_docs import ACTING, FRAME, PAGE, cli_page, prose
from tests.surfaces.shell import Answer, Shell, masked
from weft.surfaces.cli.command_line import SHARED
from weft.surfaces.cli.main import COMMON, SUMMARIES
from weft.surfaces.cli.main import weft as weft_command
from weft.surfaces.cli.screen import Screen
from weft.surfaces.cli.sessions.recording import TurnInput

ROOT = click.Context(weft_command, info_name="weft")
ON_DISK = True  # an example runs a command in a sandbox
BLOCKS = re.findall(r"```console\n(.*?)```", FRAME.read_text(), re.DOTALL)


def command(name: str) -> click.Command:
    named_command = weft_command.get_command(ROOT, name)
    assert named_command is not None
    return named_command


VERBS = {
    f"{name} {verb}": verb_command
    for name in SUMMARIES
    if isinstance(group := command(name), click.Group)
    for verb, verb_command in group.commands.items()
}


def test_the_page_is_what_the_program_says_of_itself() -> None:
    assert PAGE.read_text() == cli_page(), "run `make docs`"


def test_the_page_has_every_command_with_its_options() -> None:
    page = PAGE.read_text()
    shown = re.findall(r"^#{3,4} weft (.+)$", page, re.MULTILINE)
    assert sorted(shown) == sorted([*SUMMARIES, *(path for path, verb in VERBS.items() if not verb.hidden)])
    for path in shown:
        section = page.split(f"# weft {path}\n", 1)[1].split("\n##", 1)[0]
        params = (VERBS.get(path) or command(path)).params
        hidden = (*SHARED, *ACTING) if path in VERBS else SHARED
        spellings = {name for param in params if param.name not in hidden for name in option_names(param)}
        assert {name for name in spellings if not re.search(rf"`[^`]*{re.escape(name)}\b", section)} == set(), path


def option_names(param: click.Parameter) -> list[str]:
    return param.opts if isinstance(param, click.Option) and not param.hidden else []


def test_every_heading_of_the_frame_is_a_command() -> None:
    headings = re.findall(r"^#{3,4} weft (.+)$", FRAME.read_text(), re.MULTILINE)
    assert set(headings) <= {*SUMMARIES, *VERBS}


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_command_has_help_that_begins_with_its_summary(name: str) -> None:
    named_command = command(name)
    assert named_command.name == name
    assert named_command.help is not None
    assert named_command.help.split("\n")[0] == SUMMARIES[name]
    assert {param.name for param in named_command.params} >= set(SHARED)
    assert f"$ weft {name}" in "\n".join(BLOCKS)


@pytest.mark.parametrize("path", [*SUMMARIES, *VERBS])
def test_every_option_has_help(path: str) -> None:
    named_command = VERBS.get(path) or command(path)
    assert named_command.help
    assert all(param.help for param in named_command.params if isinstance(param, click.Option))


ONE_SPELLING = {"--workspace", "--folder", "--seconds", "--silence", "--call-seconds", "--timeout-ms", "--persona"}
"""Spellings that gave way to another one: --in, --timeout and --agent."""


@pytest.mark.parametrize("path", [*SUMMARIES, *VERBS])
def test_one_thing_is_spelled_alike_everywhere_and_every_default_is_told(path: str) -> None:
    options = [param for param in (VERBS.get(path) or command(path)).params if isinstance(param, click.Option)]
    shown = {name for option in options if not option.hidden for name in option.opts}
    assert shown.isdisjoint(ONE_SPELLING)
    assert "--yes" not in shown or "-y" in shown
    assert "-n" not in shown or "--limit" in shown
    assert "--as" not in shown or {option.metavar for option in options if "--as" in option.opts} == {"NAME"}
    untold = [option.opts for option in options if has_untold_default(option)]
    assert untold == []


def has_untold_default(option: click.Option) -> bool:
    default = option.to_info_dict()["default"]
    if option.is_flag or option.hidden or option.multiple or option.show_default or default in (None, ""):
        return False
    words, value = option.help or "", f"{default:g}" if isinstance(default, float) else str(default)
    return "efault" not in words and value not in words


@pytest.mark.parametrize(
    ("words", "successor"),
    [
        (("export", "main", "--as", "markdown"), ("export", "main", "--format", "markdown")),
        (("resume", "main", "--as", "emacs"), ("resume", "main", "--tool", "emacs")),
        (("send", "x", "--workspace", "nowhere"), ("send", "x", "--in", "nowhere")),
        (("send", "x", "--persona", "nobody"), ("send", "x", "--agent", "nobody")),
        (("fork", "main", "b", "--persona", "r", "--dry-run"), ("fork", "main", "b", "--agent", "r", "--dry-run")),
        (("pull", "nowhere", "--silence", "5"), ("pull", "nowhere", "--timeout", "5")),
        (("sandbox", "run", "--timeout-ms", "9000", "echo", "x"), ("sandbox", "run", "--timeout", "9", "echo", "x")),
        (("resource", "exec", "x", "--seconds", "5", "ls"), ("resource", "exec", "x", "--timeout", "5", "ls")),
    ],
)
def test_an_earlier_spelling_of_an_option_still_works(
    weft: Shell, words: tuple[str, ...], successor: tuple[str, ...]
) -> None:
    weft.record("one")
    old, new = weft(*words), weft(*successor)
    assert (old.code, masked(old.out)) == (new.code, masked(new.out))
    assert "has no option" not in old.err


@pytest.mark.parametrize(
    ("paragraph", "markdown"),
    [
        ("With --files FILE, - is stdin.", "With `--files` FILE, `-` is stdin."),
        (
            "One of SERVER/* (or claude-*): see docs/tools.md.",
            "One of `SERVER/*` (or `claude-*`): see [tools.md](tools.md).",
        ),
        ("docs/reading.md#audit says `weft log -n 3`.", "[reading.md](reading.md#audit) says `weft log -n 3`."),
        ("A non-empty read-only list, well.", "A non-empty read-only list, well."),
    ],
)
def test_a_help_text_becomes_markdown(paragraph: str, markdown: str) -> None:
    assert prose(paragraph) == markdown


def test_the_help_is_one_screen_of_common_commands(shell: Shell) -> None:
    shown = shell("--help").out.splitlines()
    names = [name for group in COMMON.values() for name in group]
    assert len(shown) <= 50
    assert set(names) <= set(SUMMARIES)
    assert len(names) == len(set(names))
    assert all(f"  {name} " in "\n".join(shown) for name in names)


def test_the_help_of_everything_lists_every_command_and_exit_code(shell: Shell) -> None:
    shown = shell("help", "--all").out
    assert [name for name in SUMMARIES if f"\n  {name} " not in shown] == []
    assert "Exit codes:" in shown
    assert shell("help", "--all", "log").code == 2


def test_the_help_names_every_field_of_a_turn() -> None:
    assert [name for name in TurnInput.__struct_fields__ if name not in (command("record").help or "")] == []


def run_example(shell: Shell, line: str) -> Answer:
    """One line of an example: `weft …`, `echo TEXT | weft …`, `weft … > FILE`."""
    words, stdin, target = shlex.split(line), "", None
    if words[0] == "echo":
        assert words[2] == "|"
        words, stdin = words[3:], words[1] + "\n"
    if words[-2] == ">":
        words, target = words[:-2], words[-1]
    if words[0] == "mkdir":
        Path(words[1]).mkdir()
        return Answer(0, "", "")
    assert words[0] == "weft"
    answer = shell(*words[1:], stdin=stdin)
    if target is None:
        return answer
    Path(target).write_text(answer.out)
    return answer._replace(out="")


def watched_headers(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The heads of the tables that commands show from now on."""
    headers: list[Sequence[str]] = []
    plain_table = Screen.table

    def table(screen: Screen, rows: Any, header: Sequence[str], **options: Any) -> None:
        headers.append(header)
        plain_table(screen, rows, header, **options)

    monkeypatch.setattr(Screen, "table", table)
    return headers


@pytest.mark.slow("runs all examples of the page, some 300 commands")
@pytest.mark.usefixtures("one_minilm")
def test_the_examples_do_what_the_page_says(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    headers, shown = watched_headers(monkeypatch), set[tuple[str, str]]()
    examples = [
        (line, output)
        for block in BLOCKS
        for line, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]
    assert len(examples) >= len(SUMMARIES)
    said, got = "", ""
    for line, output in examples:
        answer = run_example(shell, line)
        assert answer.code == 0, f"{line}\n{answer.err}"
        shown |= {(line, ", ".join(header)) for header in headers}
        headers.clear()
        if output:
            said, got = said + output, got + answer.out
    assert masked(got) == masked(said)
    assert len(shown) >= MIN_TABLES
    fixed = [(line, header) for line, header in shown if not line.startswith("weft compact ")]  # a column for each
    assert [(line, header) for line, header in fixed if header not in documented_columns(line)] == []


MIN_TABLES = 20
"""So many examples at least show a table."""


def documented_columns(line: str) -> list[str]:
    """What the page says of the columns of this command in a pipe; its options may give others."""
    page = PAGE.read_text().split("## Columns in a pipe")[1]
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", page, re.MULTILINE)
    return [columns for commands, columns in rows if shlex.split(line)[1] in re.split(", | ", commands)]
