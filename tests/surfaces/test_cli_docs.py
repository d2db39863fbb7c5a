"""docs/cli.md says what the program does, both ways, and its examples are run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tests.surfaces.shell import Answer, Shell, masked
from weft.surfaces.cli.command_line import EXIT_CODES, SHARED, shared_options
from weft.surfaces.cli.main import COMMON, SUMMARIES, weft
from weft.surfaces.cli.sessions.recording import TurnInput

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
SECTIONS = dict(re.findall(r"^### weft (\S+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
ROOT = click.Context(weft, info_name="weft")
ON_DISK = True  # an example runs a command in a sandbox
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)


def command(name: str) -> click.Command:
    found = weft.get_command(ROOT, name)
    assert found is not None
    return found


def documented_options(text: str) -> dict[frozenset[str], str]:
    """Each bullet: the spellings of an option, and what it does."""
    bullets = re.findall(r"^- (`-.*?`): (.*)$", text, re.MULTILINE)
    return {frozenset(re.findall(r"(?<![\w-])-{1,2}[a-z][a-z-]*", names)): meaning for names, meaning in bullets}


def real_options(params: list[click.Parameter]) -> dict[frozenset[str], str | None]:
    return {frozenset(param.opts): param.help for param in params if isinstance(param, click.Option)}


def test_every_command_is_documented_and_every_documented_command_exists() -> None:
    assert set(SECTIONS) == set(SUMMARIES)


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_command_is_documented_as_it_is(name: str) -> None:
    found = command(name)
    usage = found.get_usage(click.Context(found, parent=ROOT, info_name=name)).removeprefix("Usage: ")
    assert f"`{usage}`" in SECTIONS[name]
    own = [param for param in found.params if param.name not in SHARED]
    assert documented_options(SECTIONS[name]) == real_options(own)
    assert f"$ weft {name}" in SECTIONS[name]


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_command_has_help_that_begins_with_its_summary(name: str) -> None:
    found = command(name)
    assert found.name == name
    assert found.help is not None
    assert found.help.split("\n")[0] == SUMMARIES[name]
    assert all(param.help for param in found.params if isinstance(param, click.Option))
    said = " ".join(SECTIONS[name].split("\n\n")[1].split())
    assert said.replace("`", "").startswith(SUMMARIES[name].rstrip("."))


PARTS = dict(re.findall(r"^#### weft (\S+ \S+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
ACTING = ("actor", "retry_key")
GROUPS = {name: found for name in SUMMARIES if isinstance(found := command(name), click.Group)}


def test_every_command_of_a_group_is_documented_and_every_documented_one_exists() -> None:
    assert set(PARTS) == {f"{name} {part}" for name, group in GROUPS.items() for part in group.commands}


@pytest.mark.parametrize("name", PARTS)
def test_a_command_of_a_group_is_documented_as_it_is(name: str) -> None:
    group, part = name.split()
    found = GROUPS[group].commands[part]
    above = click.Context(GROUPS[group], parent=ROOT, info_name=group)
    usage = found.get_usage(click.Context(found, parent=above, info_name=part)).removeprefix("Usage: ")
    assert f"`{' '.join(usage.split())}`" in PARTS[name]
    own = [param for param in found.params if param.name not in (*SHARED, *ACTING)]
    assert documented_options(PARTS[name]) == real_options(own)
    assert {param.name for param in found.params} >= set(SHARED)
    assert f"weft {name}" in PAGE.replace(f"#### weft {name}", "")
    assert found.help is not None
    assert all(param.help for param in found.params if isinstance(param, click.Option))


def test_the_options_of_whoever_changes_programs_are_documented_once() -> None:
    text = PAGE.split("\n## Work\n")[1].split("\n### ")[0]
    group = command("provider")
    assert isinstance(group, click.Group)
    acting = [param for param in group.commands["create"].params if param.name in ACTING]
    assert documented_options(text) == real_options(acting)


def test_the_shared_options_are_documented_once() -> None:
    text = PAGE.split("## Options of every command")[1].split("\n## ")[0]
    assert documented_options(text) == real_options(shared_options())
    assert {name for param in weft.params for name in param.opts} >= {"--version", "-V", "--json", "--ledger"}
    for name in SUMMARIES:
        assert {param.name for param in command(name).params} >= set(SHARED)


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


def test_the_exit_codes_are_documented() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", PAGE, re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == EXIT_CODES


def test_the_fields_of_a_turn_are_documented() -> None:
    listed = SECTIONS["record"].split("with the fields of")[1].split("It is read from")[0]
    fields = set(re.findall(r"`([a-z_]+)`", listed))
    assert fields == set(TurnInput.__struct_fields__)


def test_the_ways_to_name_a_turn_are_documented_as_the_help_tells_them(shell: Shell) -> None:
    told = shell("help", "revisions").out
    names = re.findall(r"^\| `(\S+)` \|", PAGE.split("## Naming a turn")[1].split("\n## ")[0], re.MULTILINE)
    assert re.findall(r"^  (\S+)  ", told, re.MULTILINE) == names


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


@pytest.mark.slow("runs all examples of the page, some 300 commands")
@pytest.mark.usefixtures("one_minilm")
def test_the_examples_do_what_the_page_says(shell: Shell) -> None:
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
        if output:
            said, got = said + output, got + answer.out
    assert masked(got) == masked(said)
