"""Names that are commands to a shell: sessions, programs and folders that came from somebody else."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.attacks.interactive_shells import PROMPT, STARTED, InteractiveShell, install_weft, interactive
from tests.sizes import share
from tests.sources import LOAD, Module, shipped
from weft.kernel.errors import Action, Advice
from weft.kernel.typed_names import shell_line, shell_word
from weft.surfaces.wire.hints import COMMAND_LINE, phrase

TOUCH = "$(touch ran)"
SHELL_LABELS = (
    TOUCH,
    "`touch ran`",
    "a;touch ran",
    "a'$(touch ran)'b",
    '"$(touch ran)"',
    "!!",
    "*",
    "a & touch ran",
    r"\'$(touch ran)",
    "{touch,ran}",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def bash(folder: Path, tmp_path: Path) -> Iterator[InteractiveShell]:
    environment = {
        "PATH": f"{install_weft(tmp_path / 'bin')}:{os.environ['PATH']}",
        "WEFT_LEDGER": str(folder / "ledger.db"),
    }
    with interactive(STARTED["bash"], folder, environment) as shell:
        shell.wait_for(PROMPT)
        shell.press('eval "$(weft completion bash)"\n')
        shell.wait_for(PROMPT)
        yield shell


def record_in(folder: Path, *labels: str) -> None:
    with weft.open(folder / "ledger.db") as ledger:
        for label in labels:
            ledger.record_turn(session=label, query=f"asked in {label[::-1]}")


def completed(bash: InteractiveShell, keys: str, shown: str) -> str:
    """What a line does that was completed with TAB and sent with Enter."""
    bash.press(f"{keys}\t")
    bash.wait_for(shown)
    bash.press("\n")
    return bash.wait_for(PROMPT)


@pytest.mark.slow("starts bash, which starts the program for each completion")
@pytest.mark.parametrize("opened", share(["", "'", '"'], test=1))
def test_a_session_named_as_a_command_is_completed_as_one_word(
    bash: InteractiveShell, folder: Path, opened: str
) -> None:
    record_in(folder, TOUCH)
    answer = completed(bash, f"weft log {opened}", "touch ran)")
    assert f"asked in {TOUCH[::-1]}" in answer
    assert not (folder / "ran").exists()


@pytest.mark.slow("starts bash, which starts the program for each completion")
def test_a_session_named_as_a_pattern_is_completed_as_it_is_called(bash: InteractiveShell, folder: Path) -> None:
    record_in(folder, "a*z")
    (folder / "aXz").touch()
    assert "asked in z*a" in completed(bash, "weft log a", "z")


def test_a_word_with_a_quote_inside_is_left_as_it_was_typed(bash: InteractiveShell, folder: Path) -> None:
    record_in(folder, "it's here")
    bash.press("weft log 'it'\\''s\t'\n")
    assert 'no session or turn "it\'s"' in bash.wait_for(PROMPT)


@pytest.mark.parametrize("label", SHELL_LABELS)
def test_a_hint_that_is_copied_into_a_shell_names_the_session(label: str, tmp_path: Path) -> None:
    hint = phrase(Action.RESTORE_SESSION.of(session=label))
    command = hint.removesuffix("` brings it back").removeprefix("`weft restore ")
    for shell in ("sh", "bash"):
        copied = subprocess.run(
            [shell, "-c", f"printf %s {command}"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert copied.stdout == label
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"))))
@settings(max_examples=200)
def test_a_line_of_words_is_read_as_the_same_words(words: list[str]) -> None:
    assert shlex.split(shell_line(words)) == words


@given(st.text(st.sampled_from("a'\\\"$(`!*; \n=%~#{}")))
def test_fish_reads_a_word_as_sh_does(text: str) -> None:
    """Fish takes `\\'` and `\\\\` between single quotes as escapes: neither is written there."""
    word = shell_word(text)
    assert re.fullmatch(r"[^'\\]*|(?:'[^'\\]*'|\\['\\])*", word)
    assert shlex.split(word) == [text]


@pytest.mark.parametrize("action", sorted(COMMAND_LINE))
def test_every_hint_quotes_what_stands_in_its_command(action: Action) -> None:
    names = re.findall(r"{(\w+)}", COMMAND_LINE[action])
    shown = phrase(Advice(action, {name: "weft log" if name == "command" else TOUCH for name in names}))
    commands = shown.split("`")[1::2]
    assert [command for command in commands if TOUCH in command.replace(f"'{TOUCH}'", "")] == []


def test_zsh_and_fish_quote_what_they_insert(folder: Path, tmp_path: Path) -> None:
    """Neither script says otherwise: `compadd -Q`, `eval` and `source` would take a name as it is."""
    program = install_weft(tmp_path / "bin") / "weft"
    for shell in ("zsh", "fish"):
        script = subprocess.run([program, "completion", shell], capture_output=True, text=True, check=True).stdout
        assert not re.search(r"compadd[^\n]* -\w*Q|^ *eval |^ *source ", script, re.MULTILINE)


def texts_with_values(module: Module) -> Iterator[tuple[str, ast.expr]]:
    """What stands before each value of every f-string of a module, and the value."""
    for text in module.nodes_of(ast.JoinedStr):
        before = ""
        for part in text.values:
            if isinstance(part, ast.FormattedValue):
                yield before, part.value
                before += "VALUE"
            else:
                before += str(part.value)  # type: ignore[attr-defined]


def is_shell_word(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and getattr(value.func, "id", "") in {"shell_word", "shell_line"}


@LOAD
def test_every_printed_command_quotes_the_names_in_it() -> None:
    """Between backquotes, or behind `undo:`."""
    unquoted = [
        f"{module.path}: {before}"
        for module in shipped()
        for before, value in texts_with_values(module)
        if re.search(r"(`|undo: )weft [^`]*$", before) and not is_shell_word(value)
    ]
    assert unquoted == []


@LOAD
def test_shells_are_quoted_for_in_one_module() -> None:
    other_quoting = re.compile(r"shlex\.(quote|join)|from shlex import")
    assert [module.path for module in shipped() if other_quoting.search(module.source)] == []
