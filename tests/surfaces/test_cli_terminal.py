"""What a terminal gets: colour, lines, a pager, completion; and what it must never get from stored text."""

from __future__ import annotations

import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from importlib import import_module
from pathlib import Path

import click
import pytest

import weft as library
from scripts.dump_cli import MAKING, READING, lines_of
from tests.sizes import share
from tests.surfaces.shell import Shell, masked, on_terminal, spawn
from tests.surfaces.test_cli_turn_files import Desk
from weft.ledger.read.session_list import first_line
from weft.surfaces.cli.command_line import BUG, OK
from weft.surfaces.cli.main import MODULE_OF, SUMMARIES, run
from weft.surfaces.cli.main import weft as program
from weft.surfaces.cli.screen import Screen, Span
from weft.surfaces.cli.verb_commands import command_named
from weft.surfaces.plain_text import cut, safe, safe_json, safe_lines, width
from weft.verbs import every_verb

ESC = "\x1b"
HOSTILE = (
    "clear \x1b[2J title \x1b]0;pwned\x07 c1 \x9b31m bell \x07 back \x08\x08 return \rover"
    " bidi \u202eevil\u2066 hidden \U000e0041\u200b line \u2028 nul \0 delete \x7f bom \ufeff"
)
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028\u202e\u2066\ufeff\U000e0041]")
STYLING = re.compile(r"\x1b\[[0-9;]*m")


def plain(shown: str) -> str:
    """Without the program's own colours."""
    return STYLING.sub("", shown)


@pytest.fixture
def forked(weft: Shell) -> Shell:
    weft.record("first question", model="m")
    weft.record("second question", usage={"input_tokens": 3})
    weft("fork", "main~1", "alt")
    weft.record("another way", session="alt")
    return weft


def test_a_terminal_gets_colour_and_unicode_lines(forked: Shell) -> None:
    code, shown = on_terminal(forked.folder, "log", "--graph", "--oneline")
    assert code == 0
    assert f"{ESC}[33m" in shown
    assert (
        masked(plain(shown))
        == """\
● T1 (alt) another way
│ ● T2 (main) second question
├─╯
● T3 first question
"""
    )


def test_a_terminal_that_is_not_utf8_gets_ascii_lines(forked: Shell) -> None:
    _, shown = on_terminal(forked.folder, "log", "--graph", "--oneline", PYTHONIOENCODING="latin-1")
    assert "|/" in shown
    assert "●" not in shown


FURTHER_READING = """
diff main side | diff main side -p | diff --files | diff --files -p | diff main~1 main --files -p | show main --full
"""


def test_whatever_only_reads_is_shown_in_colour_at_two_widths(
    weft: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in lines_of(MAKING):
        weft(*words)
    desk = Desk(weft, folder)
    for text in ("one\ntwo\n", "one\n2\n"):
        desk.work("main", page=text)
    monkeypatch.setenv("TERM", "xterm-256color")
    commands = list(
        {call_form(words): words for words in (*lines_of(READING), *lines_of(FURTHER_READING))[::-1]}.values()
    )
    assert len(commands) > 90
    for columns in ("80", "140"):
        monkeypatch.setenv("COLUMNS", columns)
        shown = {tuple(words): in_colour(monkeypatch, words) for words in commands}
        assert [(words, text[-600:]) for words, (code, text) in shown.items() if code == BUG] == []
        commands = [list(words) for words, (code, text) in shown.items() if code == OK and ESC in text]
        assert len({words[0] for words in commands}) > 25


def call_form(words: list[str]) -> tuple[str, ...]:
    """The command and the options of a line: lines with other values show the same in the same way."""
    is_group = isinstance(program.get_command(click.Context(program), words[0]), click.Group)
    return (*words[: 1 + is_group], *(word for word in words if word.startswith("-")))


def in_colour(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> tuple[int, str]:
    """What a command of this process sends to a terminal, with its exit code."""
    terminal, theirs = pty.openpty()
    shown = bytearray()

    def listen() -> None:
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # Linux says so when the other side of a terminal is closed
                return
            shown.extend(piece)

    listener = threading.Thread(target=listen)
    listener.start()
    with (
        monkeypatch.context() as patch,
        open(theirs, "w", encoding="utf-8") as stream,
        open(os.devnull, encoding="utf-8") as nothing,
    ):
        patch.setattr(sys, "stdin", nothing)
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        code = run([*words, "--no-pager"])
    listener.join()
    os.close(terminal)
    return code, shown.decode()


@pytest.mark.parametrize("arguments", [("--no-color",), ("-q", "--no-color")])
def test_colours_can_be_refused_by_option(forked: Shell, arguments: tuple[str, ...]) -> None:
    _, shown = on_terminal(forked.folder, "log", *arguments)
    assert ESC not in shown


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_refused_by_the_environment(forked: Shell, environment: dict[str, str]) -> None:
    _, shown = on_terminal(forked.folder, "sessions", **environment)
    assert ESC not in shown
    assert "SESSION" in shown


@pytest.mark.parametrize(
    "arguments",
    share(
        [("log", "--graph"), ("show", "main"), ("tree", "main"), ("sessions",), ("diff", "main", "alt"), ("stats",)],
        test=2,
    ),
)
def test_what_is_piped_is_plain(forked: Shell, arguments: tuple[str, ...]) -> None:
    shown = spawn(forked.folder, *arguments, environment={"TERM": "xterm-256color"})
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"\x1b" not in shown.stdout
    assert shown.stdout.isascii()


def test_tables_are_aligned_on_a_terminal_and_tabbed_in_a_pipe(weft: Shell) -> None:
    weft.record("q", session="\N{CJK UNIFIED IDEOGRAPH-65E5}\N{CJK UNIFIED IDEOGRAPH-672C}")
    weft.record("q", session="a-longer-name")
    _, shown = on_terminal(weft.folder, "sessions", "--no-color")
    header, *rows = shown.splitlines()
    ends = [width(row[: row.index("20")]) for row in rows]
    assert set(ends) == {width(header[: header.index("LAST CHANGE")])}
    assert all(line.count("\t") == 6 for line in weft("sessions").out.splitlines())


def test_long_output_goes_through_the_pager_and_short_output_does_not(weft: Shell, folder: Path) -> None:
    pager = folder / "pager"
    pager.write_text("#!/bin/sh\nsed 's/^/> /'\n")
    pager.chmod(0o755)
    for i in range(15):
        weft.record(f"q{i}")
    settings = {"PAGER": str(pager), "LINES": "10"}
    assert on_terminal(folder, "log", "--oneline", **settings)[1].count("> ") == 15
    assert on_terminal(folder, "log", "--oneline", "-n", "3", **settings)[1].count("> ") == 0
    assert on_terminal(folder, "log", "--oneline", "--no-pager", **settings)[1].count("> ") == 0
    assert spawn(folder, "log", "--oneline", environment=settings).stdout.count(b"> ") == 0


def test_a_pager_that_is_left_early_leaves_no_noise(weft: Shell, folder: Path) -> None:
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        ledger.record_turns(
            [{"session": "main", "query": f"a question of some length, number {i}"} for i in range(300)]
        )
    _, shown = on_terminal(folder, "log", PAGER="head -n 1")
    assert "Traceback" not in shown
    assert "BrokenPipe" not in shown


@pytest.mark.parametrize(
    "arguments",
    share(
        [
            ("log",),
            ("log", "--oneline", "--graph"),
            ("log", "--json"),
            ("show", "main"),
            ("show", "main", "--full"),
            ("show", "main", "--json"),
            ("tree", "main"),
            ("diff", "main", "other", "--patch"),
            ("context",),
            ("sessions",),
            ("reflog", "main"),
            ("show", HOSTILE),
            ("show", HOSTILE, "--json"),
        ],
        test=4,
    ),
)
def test_no_stored_text_can_drive_the_terminal(weft: Shell, arguments: tuple[str, ...]) -> None:
    """Whoever wrote it: the query, the model, a tool's name, arguments or result, an error, a reason, a path."""
    turn = {
        "query": HOSTILE,
        "system": HOSTILE,
        "model": HOSTILE,
        "provider": HOSTILE,
        "workspace": HOSTILE,
        "response": {"content": [{"type": "reasoning", "text": HOSTILE}, {"type": "image_url", "url": HOSTILE}]},
        "tool_calls": [
            {"id": HOSTILE, "name": HOSTILE, "arguments": {HOSTILE: [HOSTILE]}, "result": {HOSTILE: HOSTILE}},
            {"name": "t", "error": {"message": HOSTILE, "code": HOSTILE}},
        ],
    }
    weft("record", stdin=json.dumps(turn))
    weft("record", stdin=json.dumps({**turn, "session": "other", "persona": HOSTILE}))
    weft("record", stdin=json.dumps({**turn, "error": {"message": HOSTILE, "code": HOSTILE}}))
    weft("move", "main", "main", "--reason", HOSTILE.replace("\0", ""))
    real = tuple(argument.replace("\0", "") for argument in arguments)
    _, shown = on_terminal(weft.folder, *real)
    assert FORBIDDEN.findall(plain(shown)) == []
    piped = spawn(weft.folder, *real)
    assert FORBIDDEN.findall(piped.stdout.decode() + piped.stderr.decode()) == []


def test_facts_are_not_written_to_a_terminal(weft: Shell) -> None:
    weft.record(HOSTILE)
    code, shown = on_terminal(weft.folder, "import-facts")
    assert (code, "pipe them in" in shown) == (2, True)
    code, shown = on_terminal(weft.folder, "export-facts", "-")
    assert code == 2
    assert "pwned" not in shown


def test_text_is_made_safe_and_still_readable() -> None:
    assert safe("a\x1b[31mb\u202ec\nd\te") == r"a\x1b[31mb\u202ec\nd\te"
    family = "\N{MAN}\u200d\N{WOMAN}"
    assert safe(f"{family} caf\u00e9 \u00a0\u3000") == f"{family} caf\u00e9 \u00a0\u3000"
    assert safe("\ud800") == r"\ud800"
    assert safe_lines("a\r\n\tb\n\n") == ["a", "    b", ""]
    assert safe_json('["\x7f\u202e\U000e0041"]') == r'["\u007f\u202e\udb40\udc41"]'
    assert json.loads(safe_json('["\x7f\u202e\U000e0041"]')) == ["\x7f\u202e\U000e0041"]
    assert first_line("\n  \n  hello \n there") == "hello"


def test_text_is_cut_by_the_columns_it_takes() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 6) == "abcde…"
    assert cut("\u65e5\u672c\u8a9e", 5) == "\u65e5\u672c…"
    assert (width("e\u0301"), width("\u65e5"), width("ab")) == (1, 2, 2)


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_every_shell_has_a_completion_script(shell: Shell, shell_name: str) -> None:
    answer = shell("completion", shell_name)
    assert answer.code == 0
    assert f"_WEFT_COMPLETE={shell_name}_complete" in answer.out
    assert shell.json("completion", shell_name)["shell"] == shell_name


def complete(folder: Path, *words: str, shell: str = "bash") -> list[str]:
    line = " ".join(("weft", *words))
    if shell == "fish":
        asked = {"COMP_WORDS": line, "COMP_CWORD": words[-1]}
    else:
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    shown = spawn(folder, environment={"_WEFT_COMPLETE": f"{shell}_complete", **asked})
    assert shown.stderr == b""
    return shown.stdout.decode().split()


COMPLETED = [
    (
        ("re",),
        {
            "read",
            "record",
            "reflog",
            "restore",
            "rename",
            "rebuild",
            "recover",
            "resume",
            "reject",
            "remote",
            "replay",
            "replica",
            "resource",
            "retry",
        },
    ),
    (("show", "a"), {"alt", "apart"}),
    (("log", "m"), {"main"}),
    (("move", "main", "al"), {"alt"}),
    (("log", "--session", "ap"), {"apart"}),
    (("fork", ""), {"main", "alt", "apart"}),
    (("graph", "neighbours", "m"), {"main"}),
    (("log", "--gr"), {"--graph"}),
    (("import", "--format", "openc"), {"opencode"}),
]


@pytest.mark.parametrize(("words", "expected"), [COMPLETED[0], *share(COMPLETED[1:], test=2)])
def test_commands_options_and_labels_are_completed(forked: Shell, words: tuple[str, ...], expected: set[str]) -> None:
    forked("fork", "main", "apart")
    assert {line.split(",", 1)[1] for line in complete(forked.folder, *words)} == expected


@pytest.mark.parametrize("words", [("import", "no"), ("backup", "no"), ("usage", "--prices", "no"), ("--ledger", "no")])
def test_files_are_completed_by_the_shell(forked: Shell, words: tuple[str, ...]) -> None:
    assert complete(forked.folder, *words) == ["file,no"]


def test_completion_works_in_the_other_shells_too(forked: Shell) -> None:
    assert "alt" in complete(forked.folder, "show", "al", shell="zsh")
    assert "plain,alt" in complete(forked.folder, "show", "al", shell="fish")


def test_completion_goes_by_the_ledger_on_the_line_and_is_silent_without_one(forked: Shell) -> None:
    forked("init", "other.db")
    forked("record", "--ledger", "other.db", "--session", "elsewhere", "--query", "x")
    assert complete(forked.folder, "--ledger", "other.db", "show", "e") == ["plain,elsewhere"]
    assert complete(forked.folder, "--ledger", "missing.db", "show", "e") == []


MOST_OWN_MODULES, MOST_MODULES = 215, 372
"""Of a `weft log`: each one more is time that every command takes."""


def loaded(*arguments: str, folder: Path) -> set[str]:
    """The modules that one command loads."""
    script = (
        "import sys; from weft.surfaces.cli.main import run; run(sys.argv[1:]);"
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script, *arguments], cwd=folder, capture_output=True, check=True)
    return set(ran.stderr.decode().splitlines())


COMMAND_MODULES = frozenset(f"weft.surfaces.cli.{name}" for name in MODULE_OF.values())


def test_a_command_loads_its_module_alone_and_nothing_that_it_does_not_need(forked: Shell) -> None:
    for command in ("log", "stats"):
        modules = loaded(command, folder=forked.folder)
        assert modules & COMMAND_MODULES == {f"weft.surfaces.cli.{MODULE_OF[command]}"}
        assert not {name.split(".")[0] for name in modules} & {"rich", "asyncio", "sqlite3", "difflib", "tempfile"}


def test_a_log_loads_no_more_modules_than_it_did(forked: Shell) -> None:
    modules = loaded("log", folder=forked.folder)
    print(len(modules), *sorted(modules), sep="\n")
    assert len([name for name in modules if name.startswith("weft.")]) <= MOST_OWN_MODULES
    assert len(modules) <= MOST_MODULES


def test_the_help_loads_no_ledger_and_no_command(folder: Path) -> None:
    modules = loaded("--help", folder=folder)
    assert not {name for name in modules if name.startswith(("weft.ledger", "weft.store", "rich", "apsw", "msgspec"))}
    assert not modules & COMMAND_MODULES


def test_every_command_of_the_list_has_its_module_and_the_other_way_round() -> None:
    assert MODULE_OF.keys() == SUMMARIES.keys()
    for name, module in MODULE_OF.items():
        assert isinstance(command_in(module, name), click.Command), name
    made = {
        name.removesuffix("_command").replace("_", "-")
        for module in COMMAND_MODULES
        for name, value in vars(import_module(module)).items()
        if isinstance(value, click.Command) and name.endswith("_command") and value.name in SUMMARIES
    }
    declared = {verb.name for verb in every_verb() if " " not in verb.name}
    assert made | declared == SUMMARIES.keys()
    assert made & declared == {"log"}, "a command of a class of its own"


def command_in(module: str, name: str) -> object:
    """A command of the module, or one that is made of a verb whose answer the module shows."""
    commands = vars(import_module(f"weft.surfaces.cli.{module}"))
    return commands.get(f"{name.replace('-', '_')}_command") or command_named(name)


PROGRESS = """
from weft.surfaces.cli import progress
with progress.Bar("too quick", shown=True) as bar:
    bar.staged("events", 1, 10)
progress.PATIENCE = 0
with progress.Bar("not wanted", shown=False) as bar:
    bar.staged("events", 1, 10)
with progress.Bar("verify", shown=True) as bar:
    bar.staged("events", 1, 10)
    bar.staged("views", 5, 10)
with progress.Bar("import", shown=True) as bar:
    bar.counted(7)
with progress.Bar("export", shown=True) as bar:
    bar.counted(3, 9)
"""


def test_progress_is_shown_where_it_is_wanted_and_once_work_takes_a_while(folder: Path) -> None:
    code, shown = on_terminal(folder, script=PROGRESS)
    assert code == 0
    assert all(title in shown for title in ("verify views", "import", "export", "3/9"))
    assert "too quick" not in shown
    assert "not wanted" not in shown


ITSELF = """
from threading import Event
from weft.surfaces.cli import progress
class Asked:
    quiet = json = False
progress.PATIENCE = 3600
with progress.Bar("too quick", shown=True, by_itself=True) as bar:
    pass
progress.PATIENCE = 0
with progress.Bar("not wanted", shown=False, by_itself=True) as bar:
    pass
drawn = Event()
rich_progress = progress._rich_progress
def watched(*arguments):
    made = rich_progress(*arguments)
    start = made.start
    made.start = lambda: (start(), drawn.set())
    return made
progress._rich_progress = watched
with progress.progress(Asked, "silent", by_itself=True) as bar:
    assert drawn.wait(60)
    bar.staged("speaks", 3, 9)
drawn.clear()
def items():
    yield 1
    assert drawn.wait(60)
    yield 2
assert list(progress.awaited(Asked, "slow", items())) == [1, 2]
Asked.quiet = True
with progress.progress(Asked, "hushed", by_itself=True) as bar:
    pass
"""


def test_a_bar_appears_by_itself_while_work_says_nothing(folder: Path) -> None:
    code, shown = on_terminal(folder, script=ITSELF)
    assert code == 0
    assert all(title in shown for title in ("silent", "silent speaks", "3/9", "slow"))
    assert "0/?" not in shown
    assert not any(title in shown for title in ("too quick", "not wanted", "hushed"))


AT_ONCE = """
from weft.surfaces.cli import main, progress
class AtOnce:
    def __init__(self, seconds, work):
        self.start = work
    def cancel(self):
        pass
progress.Timer = AtOnce
main.main()
"""
"""The command line, with bars that appear before the work begins."""


LONG_COMMANDS = [
    ("stats",),
    ("story", "all"),
    ("projects",),
    ("reflog",),
    ("context",),
    ("audit",),
    ("audit", "--list"),
    ("audit", "--suggest"),
    ("doctor",),
    ("secrets",),
]


@pytest.mark.parametrize("command", share(LONG_COMMANDS, test=4))
def test_a_command_that_may_take_long_shows_that_it_works(
    forked: Shell, folder: Path, command: tuple[str, ...]
) -> None:
    _, shown = on_terminal(folder, *command, script=AT_ONCE)
    assert f"{command[0]} " in shown
    assert "━" in shown


@pytest.mark.parametrize("silent", ["--quiet", "--json"])
def test_a_command_that_is_to_be_silent_shows_no_bar(forked: Shell, folder: Path, silent: str) -> None:
    assert "━" not in on_terminal(folder, "stats", silent, script=AT_ONCE)[1]


def test_an_upgrade_of_a_ledger_shows_how_far_it_is(forked: Shell, folder: Path) -> None:
    with closing(sqlite3.connect(folder / ".weft" / "ledger.db")) as database:
        database.execute("DELETE FROM local WHERE key = 'view_rules'")
        database.commit()
    slow = "from weft.surfaces.cli import main, progress; progress.PATIENCE = 0; main.main()"
    record = ("record", "--query", "x")
    code, shown = on_terminal(folder, *record, script=slow)
    assert (code, "upgrade views" in shown) == (0, True)
    assert "upgrade" not in on_terminal(folder, *record, script=slow)[1]


def test_progress_is_not_shown_in_a_pipe(forked: Shell) -> None:
    for command in (
        ("verify",),
        ("rebuild",),
        ("backup", "copy.db"),
        ("export-facts", "facts"),
        ("stats",),
        ("projects",),
    ):
        assert spawn(forked.folder, *command).stderr == b""


def test_the_package_runs_as_a_module(weft: Shell) -> None:
    made = subprocess.run([sys.executable, "-m", "weft", "--version"], cwd=weft.folder, capture_output=True, check=True)
    assert made.stdout.startswith(b"weft ")


def test_a_line_breaks_styles_is_wrapped_where_that_is_wanted_and_keeps_them() -> None:
    screen = Screen(color=True, unicode=True, terminal=True, columns=20, rows=24, paging=False)
    line: list[Span | str] = ["  ", Span("one two three", "warn"), ": four five six"]
    assert [screen.render(piece) for piece in screen.wrap(line, breaks_styles=True)] == [
        "  \x1b[35mone two three\x1b[0m:",
        "  four five six",
    ]
    red: list[Span | str] = [Span("a word in two lines is", "bad"), " red"]
    assert screen.wrap(red) == [red]
    assert [screen.render(piece) for piece in screen.wrap(red, breaks_styles=True)] == [
        "\x1b[31ma word in two lines\x1b[0m",
        "\x1b[31mis\x1b[0m red",
    ]
    assert [screen.render(piece) for piece in screen.wrap([Span("short", "bad")], breaks_styles=True)] == [
        "\x1b[31mshort\x1b[0m"
    ]
