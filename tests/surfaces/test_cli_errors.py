"""Errors, exit codes and how both are told."""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import weft as library
from tests.surfaces.shell import PROGRAM, Shell, on_terminal, running, spawn
from weft.exchange import importers
from weft.kernel import errors
from weft.surfaces.cli.command_line import EXIT_CODES, MOVED, UNFINISHED, exit_code, hint_of
from weft.surfaces.cli.main import SUMMARIES, run
from weft.surfaces.cli.main import weft as weft_command

MORE_THAN_A_PIPE_HOLDS = 1 << 20
ROOT = Path(__file__).parents[2]


def test_a_missing_ledger_is_told_with_what_to_do(shell: Shell, folder: Path) -> None:
    no_ledger = {"init", "import", "completion", "help", "doctor", "copy", "key", "clone", "credential", "sandbox"}
    no_ledger |= {"mcp", "token"}
    for name in SUMMARIES.keys() - no_ledger:
        needs = {"show": ["x"], "tree": ["x"], "diff": ["a", "b"], "reflog": ["x"], "fork": ["a", "b"], "delete": ["x"]}
        needs |= {"move": ["a", "b"], "restore": ["x"], "rename": ["a", "b"], "alias": ["a", "b"], "archive": ["x"]}
        needs |= {"facts": ["export", "f"], "backup": ["f"], "compact": ["--summary", "x"]}
        needs |= {"record": ["--query", "x"], "files": ["f"], "blame": ["f"]}
        needs |= {
            "erase": ["x", "--dry-run"],
            "bundle": ["create", "x", "-o", "f"],
            "export": ["x", "--as", "markdown"],
        }
        needs |= {"resume": ["x", "--as", "codex"], "cherry-pick": ["x", "--onto", "y"]}
        needs |= {"summarize": ["x", "--into", "y", "--text", "z"]}
        needs |= {"nodes": ["--tag", "x"], "tag": ["list", "x"], "apply": [os.devnull]}
        needs |= {name: ["list"] for name in ("provider", "model", "agent", "task", "code", "human", "program")}
        needs |= {"info": ["query"], "session": ["pause", "x"], "settle": ["x"], "embed": ["x"], "similar": ["x"]}
        needs |= {
            "send": ["x"],
            "interrupt": ["x"],
            "follow": ["main"],
            "retry": ["x"],
            "substitute": ["x", "--with", "y"],
            "checkout": ["x"],
            "merge": ["x", "--into", "y", "--text", "z"],
            "config": ["x"],
            "toolset": ["list"],
            "room": ["list"],
            "trigger": ["list"],
            "resource": ["list"],
            "replay": ["x", "--model", "y"],
            "bisect": ["x", "--check", "true"],
            "policy": ["list"],
            "graph": ["policies"],
            "approve": ["x"],
            "reject": ["x"],
            "route": ["x"],
        }
        answer = shell(name, *needs.get(name, []))
        assert answer.code == 7, name
        assert answer.err.startswith(f"weft: there is no ledger at {folder} or above it, nor at "), name
        assert "hint: `weft import` makes yours" in answer.err
        assert "`weft init` makes an empty one here" in answer.err
    assert list(folder.iterdir()) == []


def test_a_named_ledger_that_is_missing_is_not_made(shell: Shell, folder: Path) -> None:
    answer = shell("--ledger", "gone.db", "record", "--query", "x")
    assert answer.code == 7
    assert "there is no ledger at gone.db" in answer.err
    assert not (folder / "gone.db").exists()


@pytest.mark.parametrize("name", ["my own.db", "there"])
def test_the_hint_of_a_named_ledger_that_is_missing_makes_that_one(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    refused = shell("--ledger", name, "log")
    command = f"`weft init {shlex.quote(name)}`"
    assert refused.err.splitlines()[1] == f"hint: {command} makes it, or name another with --ledger"
    assert f"do: {command} makes it" in shell("--ledger", name, "doctor").out
    monkeypatch.setenv("WEFT_LEDGER", name)
    assert command in shell("log").err
    monkeypatch.delenv("WEFT_LEDGER")
    assert shell("init", name).code == 0
    assert shell("--ledger", name, "log").code == 0


def test_the_place_of_a_new_ledger_is_shown_without_the_way_to_it(shell: Shell, folder: Path) -> None:
    (folder / "inner").mkdir()
    assert shell("init", "inner/../other.db").out == f"made a ledger at {folder.resolve() / 'other.db'}\n"
    named = shell("--ledger", "inner/../named.db", "init")
    assert named.out == f"made a ledger at {folder.resolve() / 'named.db'}\n"
    (folder / "elsewhere").mkdir()
    (folder / "inner" / ".weft").symlink_to(folder / "elsewhere")
    assert shell("init", "inner/../inner").code != 0
    assert not any((folder / "elsewhere").iterdir())


def test_the_password_of_an_address_stands_in_no_hint() -> None:
    assert "word" not in hint_of(errors.LedgerMissing("postgresql://ann:word@host/db?ledger=x"))


def test_a_file_that_is_no_ledger_is_left_alone(shell: Shell, folder: Path) -> None:
    (folder / "notes.db").write_text("these are notes, not a database" * 100)
    refused = shell("init", "notes.db")
    assert refused.code == 7
    assert "hint: name a file that does not exist yet" in refused.err
    assert [path.name for path in folder.iterdir()] == ["notes.db"]


def test_an_import_offers_to_make_the_ledger_that_is_named(shell: Shell, folder: Path) -> None:
    (folder / "sessions").mkdir()
    refused = shell("--ledger", "new.db", "import", "sessions")
    assert (refused.code, "hint: `weft init new.db` makes it" in refused.err) == (7, True)
    assert not (folder / "new.db").exists()
    code, screen = on_terminal(folder, "--ledger", "new.db", "import", "sessions", typed="y\n")
    assert "there is no ledger at new.db; make it? [Y/n]" in screen
    assert (code, (folder / "new.db").exists()) == (0, True)


@pytest.mark.parametrize("name", ["~nobody-of-this-name/ledger.db", "x" * 5000])
def test_a_ledger_where_nothing_can_be_is_refused_in_words(shell: Shell, name: str) -> None:
    for words in (("log", "--ledger", name), ("copy", name, "new.db")):
        answer = shell(*words)
        assert (answer.code, "Traceback" in answer.err) == (7, False), words
        assert "hint: " in answer.err
    assert shell("doctor", "--ledger", name).code == 1


def test_a_backend_that_is_not_there_yet_is_refused(shell: Shell) -> None:
    answer = shell("--ledger", "mysql://host/db", "log")
    assert answer.code == 7
    assert "no backend for mysql://" in answer.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (click.UsageError("x"), 2),
        (click.BadParameter("x"), 2),
        (errors.NotFound("turn", "x"), 3),
        (errors.AmbiguousName("x", ["a", "b"]), 3),
        (errors.HeadMoved("main", None, None), 4),
        (errors.SessionBusy("main", "t", "o"), 4),
        (errors.LabelTaken("a", "b"), 4),
        (errors.LeaseLost("t"), 4),
        (errors.TurnClosed("t", "failed"), 4),
        (errors.NotApplicable("x"), 4),
        (errors.ReplicaDiverged("x"), 4),
        (errors.PeerRefused("InvalidFact", "x"), 4),
        (errors.InvalidInput("x"), 5),
        (errors.NoCanonicalForm("$", "x"), 5),
        (errors.ContentTooLarge(1), 5),
        (errors.LimitExceeded("its bytes", 2, 1), 5),
        (errors.InvalidFact("line 1", "x"), 5),
        (errors.InvalidBundle("x"), 5),
        (errors.InvalidKey("x"), 5),
        (errors.WithheldShows(["x"]), 4),
        (errors.FactDamaged("event", "x", "y"), 6),
        (errors.ContentMissing("x"), 6),
        (errors.LogCut(2, 1, "is shorter"), 6),
        (errors.LedgerMissing("x"), 7),
        (errors.NotALedger("x", "y"), 7),
        (errors.LedgerTooNew(9, 1), 7),
        (errors.ReadOnlyLedger("x"), 7),
        (errors.Unsupported("x"), 7),
        (errors.StoreFailed("x"), 7),
        (errors.ProtocolBroken("x"), 7),
        (errors.ConnectionCut("x"), 7),
        (errors.CredentialMissing("a", "b"), 8),
        (errors.NotAllowed("tool:x", ["agent:a"]), 4),
        (PermissionError(13, "Permission denied", "x"), 7),
        (RuntimeError("x"), 70),
    ],
)
def test_the_exit_code_follows_the_tree_of_errors(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_every_error_of_the_library_has_a_documented_code() -> None:
    waiting: list[type[BaseException]] = [errors.WeftError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        assert exit_code(kind.__new__(kind)) in EXIT_CODES.keys() - {0, 1, 2, 70, 130}, kind


def test_errors_are_a_message_and_a_hint_on_stderr(weft: Shell) -> None:
    answer = weft("show", "nobody")
    assert (answer.code, answer.out) == (3, "")
    assert answer.err.splitlines() == [
        "weft: no session or turn 'nobody' in this ledger",
        "hint: name a session (its first 6 letters do), an id (or its last 6) or a digest",
    ]


def test_errors_are_json_on_stderr_when_json_is_asked_for(weft: Shell) -> None:
    for arguments in (("--json", "show", "nobody"), ("show", "nobody", "--json")):
        answer = weft(*arguments)
        assert (answer.code, answer.out) == (3, "")
        assert answer.error["code"] == "not_found"
        assert answer.error["message"] == "no session or turn 'nobody' in this ledger"
        assert answer.error["hint"]


def test_an_ambiguous_name_lists_what_it_could_mean(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def either(*_: object) -> None:
        raise errors.AmbiguousName("4f9c2a1", ["one", "two"])

    monkeypatch.setattr("weft.ledger.api.ledger.Ledger.point", either)
    answer = weft("show", "4f9c2a1")
    assert answer.code == 3
    assert answer.err == "weft: '4f9c2a1' could be one, two\nhint: type more characters of it\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("lgo",), "did you mean log?"),
        (("log", "--grpah"), "--grpah"),
        (("diff",), "the argument LEFT is missing"),
        (("log", "-n", "many"), "many"),
        (("completion", "tcsh"), "tcsh"),
        (("help", "everything"), "topics are"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong_and_where_help_is(
    weft: Shell, arguments: tuple[str, ...], complaint: str
) -> None:
    answer = weft(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert complaint in answer.err
    assert "--help` shows how it is used" in answer.err
    assert weft(*arguments, "--json").error["message"]


def test_a_busy_session_is_a_conflict(weft: Shell, folder: Path) -> None:
    with library.open(folder / ".weft" / "ledger.db") as ledger, ledger.begin_turn(session="main"):
        answer = weft("record", stdin='{"query": "x", "wait": 0, "session": "main"}')
        assert answer.code == 4
        assert "is recording turn" in answer.err
        assert weft("move", "main", "--reset").code == 4


def test_a_newer_ledger_is_not_touched(weft: Shell, folder: Path) -> None:
    import sqlite3

    connection = sqlite3.connect(folder / ".weft" / "ledger.db")
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    for command in (("log",), ("record", "--query", "x")):
        answer = weft(*command)
        assert answer.code == 7
        assert "upgrade weft" in answer.err


def test_a_fault_of_our_own_ends_with_its_own_code_and_a_traceback(
    weft: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.ledger.api.upkeep.Upkeep.stats", lambda _: 1 // 0)
    answer = weft("stats")
    assert answer.code == 70
    assert "Traceback" in answer.err


def test_an_interrupt_ends_with_130(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.ledger.api.upkeep.Upkeep.stats", interrupted)
    answer = weft("stats")
    assert answer.code == 130
    assert "interrupted" in answer.err


def test_a_real_interrupt_ends_with_130(weft: Shell, folder: Path) -> None:
    with running(folder, "record", stdin=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdin is not None
        assert reading.stderr is not None
        reading.stdin.write(b" " * MORE_THAN_A_PIPE_HOLDS)
        reading.stdin.flush()  # returns once the program reads
        reading.send_signal(signal.SIGINT)
        reading.stdin.close()  # Python notices a signal that comes just before a read once that read has ended
        complaint = reading.stderr.read()
        assert reading.wait() == 130
    assert complaint.strip() == b"weft: interrupted"


def test_an_interrupt_is_json_where_json_was_asked_for(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.ledger.api.upkeep.Upkeep.stats", interrupted)
    answer = weft("stats", "--json")
    assert (answer.code, answer.error["code"], answer.error["message"]) == (130, "interrupted", "interrupted")


INTERRUPTING = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
if "INTERRUPTED_TWICE" in os.environ:
    write = sys.stderr.write
    def write_interrupted(text):
        os.kill(os.getpid(), signal.SIGINT)
        return write(text)
    sys.stderr.write = write_interrupted
"""


def interrupted_at(module: str, folder: Path, *program: str, **variables: str) -> tuple[int, bytes, bytes]:
    """The program, with a Ctrl-C that comes when it is about to import a module."""
    (folder / "sitecustomize.py").write_text(INTERRUPTING)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "INTERRUPTED_AT": module, **variables}
    command = [sys.executable, *program, "log"]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=300, check=False)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("module", ["weft.surfaces.cli.main", "click", "weft.kernel.errors"])
def test_an_interrupt_while_the_program_is_loaded_leaves_no_traceback(folder: Path, module: str) -> None:
    assert interrupted_at(module, folder, "-m", "weft") == (130, b"", b"weft: interrupted\n")


def test_next_to_nothing_is_loaded_before_an_interrupt_is_answered() -> None:
    program = "import sys; before = {*sys.modules}; import weft.surfaces.cli.entry; print(*{*sys.modules} - before)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    named = {"weft", "weft.surfaces", "weft.surfaces.cli", "weft.surfaces.cli.entry", "__future__"}
    assert set(loaded.split()) <= named


def test_every_way_to_start_the_program_answers_an_early_interrupt(folder: Path) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, name = scripts["weft"].split(":")
    script = f"import sys; from {module} import {name}; sys.exit({name}())"
    for program in (["-m", "weft.surfaces.cli"], ["-c", script]):
        assert interrupted_at("click", folder, *program) == (130, b"", b"weft: interrupted\n")


def test_a_second_interrupt_does_not_break_into_the_answer_to_the_first(folder: Path) -> None:
    ended = interrupted_at("click", folder, "-m", "weft", INTERRUPTED_TWICE="1")
    assert ended == (130, b"", b"weft: interrupted\n")


def test_an_early_interrupt_without_a_stream_for_errors_ends_with_130(folder: Path) -> None:
    closed = "import os, runpy, sys; os.close(2); sys.argv = ['weft']; runpy.run_module('weft', run_name='__main__')"
    assert interrupted_at("click", folder, "-c", closed)[0] == 130


def test_an_empty_name_of_a_ledger_is_no_other_ledger(weft: Shell) -> None:
    for arguments in (["log", "--ledger", ""], ["--ledger", "", "log"]):
        answer = weft(*arguments)
        assert (answer.code, answer.out) == (5, "")
        assert answer.err == "weft: --ledger is empty\nhint: name a ledger, or leave --ledger out\n"


def test_an_argument_that_is_missing_is_told_on_one_line(weft: Shell) -> None:
    missing = weft("agent", "visibility", "ada")
    assert (missing.code, "\\n" in missing.err, "public, private" in missing.err) == (2, False, True), missing.err
    assert "\n" not in weft("agent", "visibility", "ada", "--json").error["message"]


def test_a_no_is_an_answer_and_no_interrupt(weft: Shell, folder: Path) -> None:
    assert weft("key", "create", "mine").code == 0
    code, shown = on_terminal(folder, "key", "delete", "mine", typed="n\n")
    assert (code, "weft: nothing was changed" in shown, "interrupted" in shown) == (4, True, False), shown
    assert weft.json("key", "list")
    refused = weft("key", "delete", "mine")
    assert (refused.code, "nobody is there to say yes" in refused.err) == (4, True)
    code, shown = on_terminal(folder, "key", "delete", "mine", typed="\x04")
    assert (code, "weft: interrupted" in shown) == (130, True), shown


def test_every_question_is_asked_in_one_place() -> None:
    cli = Path(library.__file__).parent / "surfaces" / "cli"
    aborting = [file.name for file in cli.rglob("*.py") if re.search(r"confirm\(.*abort=True", file.read_text())]
    assert aborting == []


def test_a_reader_that_goes_away_ends_the_program_quietly(weft: Shell, folder: Path) -> None:
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        ledger.record_turns(
            [{"session": "main", "query": f"a question of some length, number {i}"} for i in range(1000)]
        )
    with running(folder, "log", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writing:
        assert writing.stdout is not None
        assert writing.stderr is not None
        assert writing.stdout.readline().startswith(b"turn ")
        writing.stdout.close()
        assert writing.stderr.read() == b""
        assert writing.wait() == -signal.SIGPIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_answered_with_how_to_go_on(weft: Shell, folder: Path) -> None:
    weft.record("one")
    with open("/dev/full", "wb") as full:
        ended = subprocess.run([*PROGRAM, "sessions"], cwd=folder, stdout=full, stderr=subprocess.PIPE, check=False)
    assert ended.returncode == 7
    assert b"No space left on device" in ended.stderr
    assert b"free space there, or write to another place" in ended.stderr


def test_without_arguments_the_help_is_shown(shell: Shell) -> None:
    answer = shell()
    assert answer.code == 0
    assert answer.out == shell("--help").out == shell("help").out


def test_the_program_says_its_version(folder: Path) -> None:
    shown = spawn(folder, "--version")
    assert (shown.returncode, shown.stdout.decode()) == (0, f"weft {library.__version__}\n")


def test_exit_codes_stand_in_the_help(shell: Shell) -> None:
    topic, epilog = shell("help", "exit-codes").out, " ".join(shell("help", "--all").out.split())
    for code, meaning in EXIT_CODES.items():
        assert f"  {code:<4} {meaning}\n" in topic
        assert f"{code} {meaning}" in epilog


UNFINISHED_ENDINGS = {
    "_fork_code": "fork",
    "_undo_code": "undo",
    "_merge_code": "merge",
    "work_exit_code": "agent run or task run",
}
"""By function that ends so, the commands that call it."""


def test_the_meaning_of_unfinished_names_every_command_that_ends_so() -> None:
    folder = Path(library.__file__).parent / "surfaces" / "cli"
    sources = [
        file.read_text()
        for file in folder.rglob("*.py")
        if file.name not in ("terminal.py", "command_line.py")  # a conversation goes on; where the code is defined
    ]
    functions = {
        node.name
        for source in sources
        if "UNFINISHED" in source
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if any(isinstance(part, ast.Name) and part.id == "UNFINISHED" for part in ast.walk(node))
    }
    assert functions == UNFINISHED_ENDINGS.keys()
    assert [words for words in UNFINISHED_ENDINGS.values() if words not in EXIT_CODES[UNFINISHED]] == []


def test_output_that_the_terminal_cannot_show_is_escaped_not_refused(weft: Shell, folder: Path) -> None:
    weft.record("caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{GRINNING FACE}")
    shown = spawn(folder, "log", "--oneline", environment={"PYTHONIOENCODING": "latin-1"})
    assert shown.returncode == 0
    assert b"caf\xe9 \\U0001f600" in shown.stdout


def test_a_folder_that_is_gone_is_told(shell: Shell, folder: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    answer = shell("log")
    os.chdir(folder)
    assert answer.code == 7
    assert answer.err.startswith("weft: ")


def test_run_is_the_program_without_a_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "revisions"]) == 0
    assert "main~2" in capsys.readouterr().out
    assert "weft.surfaces.cli.main" in sys.modules


def test_a_group_without_a_command_answers_with_its_help(shell: Shell) -> None:
    commands = {name: weft_command.get_command(click.Context(weft_command), name) for name in SUMMARIES}
    groups = [name for name, one in commands.items() if isinstance(one, click.Group) and not one.invoke_without_command]
    assert {"model", "program", "session", "bundle"} <= set(groups)
    for name in groups:
        assert shell(name) == (0, shell(name, "--help").out, ""), name


def test_a_wrong_command_of_a_group_is_answered_with_the_one_that_was_meant(shell: Shell) -> None:
    for arguments, meant in {
        ("session", "sned"): "`weft session send`",
        ("session", "list"): "`weft sessions`",
        ("info", "get"): "`weft program get`",
        ("token", "list"): "`weft token list-revoked`",
    }.items():
        answer = shell(*arguments)
        said = f"weft: weft {arguments[0]} has no command {arguments[1]!r}; did you mean {meant}?"
        assert (answer.code, answer.err.splitlines()[0]) == (2, said)
    assert shell("sandbox", "list").err.startswith("weft: weft sandbox has no command 'list'\nhint: ")
    assert shell("info", "frobnicate").err.startswith("weft: weft info has no command 'frobnicate'\nhint: `weft info -")


def test_an_option_of_another_command_is_answered_with_the_commands_that_have_it(shell: Shell) -> None:
    for arguments, told in {
        (
            "log",
            "--since=yesterday",
        ): "weft log has no option '--since'; `weft search --since`, `weft sessions --since` and"
        " `weft projects --since` have it",
        ("reflog", "--chart"): "weft reflog has no option '--chart'; `weft usage --chart` has it",
        ("log", "--grpah"): "weft log has no option '--grpah'; did you mean --graph?",
        ("log", "--frobnicate"): "weft log has no option '--frobnicate'",
        ("session", "send", "--frobnicate", "x"): "weft session send has no option '--frobnicate'",
        ("log", "-x"): "weft log has no option '-x'",
        ("--chart",): "weft has no option '--chart'; `weft usage --chart` has it",
    }.items():
        answer = shell(*arguments)
        assert (answer.code, answer.err.splitlines()[0]) == (2, f"weft: {told}")
    assert shell("log", "--since", "x", "--json").error["code"] == "usage"


def test_an_option_without_its_value_names_the_help_of_its_command(shell: Shell) -> None:
    assert "hint: `weft bundle open --help` shows" in shell("bundle", "open", "x", "--into").err
    assert "hint: `weft log --help` shows" in shell("log", "-n").err


def test_the_help_names_every_variable_that_importers_go_by(weft: Shell) -> None:
    text = weft("help", "environment").out
    named = {
        name
        for path in Path(importers.__path__[0]).rglob("*.py")
        for name in re.findall(r'(?:environment(?:\.get\(|\[)|folder\()"([A-Z_]+)"', path.read_text())
    }
    assert {"CODEX_HOME", "PI_CODING_AGENT_DIR"} <= named
    assert [name for name in sorted(named) if name not in text] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("log", "-n", "many"), "'many' is no whole number"),
        (("log", "-n", "-1"), "-1 is less than 0"),
        (("graph", "history", "main", "-n", "0"), "0 is not between 1 and 10000"),
        (("bisect", "main", "--timeout", "soon"), "'soon' is no number"),
        (("bisect", "main", "--timeout", "0"), "0.0 is not more than 0"),
    ],
)
def test_numbers_are_refused_in_plain_words(weft: Shell, arguments: tuple[str, ...], said: str) -> None:
    answer = weft(*arguments)
    assert (answer.code, said in answer.err, "x>" in answer.err) == (2, True, False), answer.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("merge", "plans"), "the option --into is missing"),
        (("bundle", "create", "main"), "the option -o or --output is missing"),
        (("completion",), "the argument {bash|zsh|fish} is missing: one of bash, zsh, fish"),
        (("log", "main", "plans"), "there is one argument too many: plans"),
        (("log", "main", "plans", "draft"), "there are too many arguments: plans draft"),
        (("usage", "--by", "colour"), "invalid value for '--by': 'colour' is not one of 'day', 'week', 'month'"),
        (("diff",), "the argument LEFT is missing; --files alone compares the latest turn"),
    ],
)
def test_what_is_wrong_with_a_line_is_told_in_the_style_of_other_errors(
    weft: Shell, arguments: tuple[str, ...], said: str
) -> None:
    answer = weft(*arguments)
    first = answer.err.splitlines()[0]
    assert (answer.code, first.startswith(f"weft: {said}"), first.endswith(".")) == (2, True, False), answer.err


def test_a_deleted_session_is_restored_by_what_its_name_is_answered_with(weft: Shell) -> None:
    weft.record("x", session="plans")
    assert weft("delete", "plans").code == 0
    for words in (("log", "plans"), ("rename", "plans", "y"), ("delete", "plans")):
        answer = weft(*words)
        assert (answer.code, "hint: `weft restore plans` brings it back" in answer.err) == (3, True), answer.err
    assert weft("human", "create", "bob").code == 0
    hidden = weft("--as", "bob", "log", "plans")
    assert (hidden.code, "restore" in hidden.err) == (3, False), hidden.err


def test_a_mistyped_session_is_answered_with_those_that_are_nearly_called_so(weft: Shell) -> None:
    weft.record("x", session="plans")
    weft.record("x", session="places")
    for words in (("log", "plasn"), ("rename", "plasn", "y"), ("session", "pause", "plasn"), ("undo", "plasn")):
        answer = weft(*words)
        assert (answer.code, "hint: did you mean 'plans' or 'places'?" in answer.err) == (3, True), (words, answer.err)
    assert "`weft sessions` lists them" in weft("undo", "zzzzzz").err
    error = weft("log", "plasn", "--json").error
    assert (error["action"], error["arguments"]) == ("choose_near_session", {"names": "'plans' or 'places'"})


def test_a_session_that_cannot_be_read_is_not_named_beside_a_mistyped_one(weft: Shell) -> None:
    weft.record("x", session="plans")
    assert weft("agent", "create", "ada").code == 0
    assert weft("human", "create", "bob").code == 0
    hidden = weft("--as", "bob", "log", "plasn")
    assert (hidden.code, "plans" in hidden.err) == (3, False), hidden.err


def test_what_is_not_there_is_listed_by_the_command_of_its_kind(weft: Shell) -> None:
    assert "hint: `weft agent list` lists them" in weft("agent", "status", "nobody").err
    assert "hint: `weft task list` lists them" in weft("task", "show", "nothing").err
    assert "hint: `weft mcp list` lists them" in weft("mcp-server", "remove", "nothing").err


def test_a_person_who_is_needed_and_not_there_is_one_error(weft: Shell) -> None:
    assert weft("key", "create", "mine").code == 0
    refused = weft("key", "delete", "mine", "--json")
    assert (refused.code, refused.error["code"]) == (4, "nobody_to_ask")
    assert refused.error["hint"] == "say --yes; a private key is gone for good"


def test_all_commands_are_listed_by_every_way_to_ask_for_them(shell: Shell) -> None:
    listed = shell("help", "--all").out
    for arguments in (("--help", "--all"), ("--all", "--help"), ("--all",)):
        assert shell(*arguments).out == listed
    assert (shell("--all", "log").code, shell("sessions", "--all", "--help").code) == (2, 0)
    assert "\n  substitute " not in shell("--help").out


def test_a_command_of_a_group_is_explained(shell: Shell) -> None:
    assert shell("help", "agent", "run").out == shell("agent", "run", "--help").out
    assert "did you mean run?" in shell("help", "agent", "rnu").err
    assert "did you mean revisions?" in shell("help", "revison").err
    assert "`weft log` has no commands" in shell("help", "log", "x").err
    assert shell.json("help", "agent", "run")["topic"] == "agent run"


def test_the_words_of_other_tools_lead_to_commands(shell: Shell) -> None:
    from weft.surfaces.cli.main import MEANT

    assert "did you mean record?" in shell("commit").err
    assert MEANT.keys().isdisjoint(SUMMARIES)
    assert {meant.split()[0] for words in MEANT.values() for meant in words.split(" or ")} <= SUMMARIES.keys()


def test_a_mistyped_field_of_a_turn_is_answered_with_the_one_that_is_meant(weft: Shell) -> None:
    answer = weft("record", stdin='{"qurey": "Hi"}')
    assert (answer.code, answer.err) == (5, "weft: a turn has no field 'qurey'\nhint: did you mean 'query'?\n")


def test_who_holds_a_session_is_told_as_a_process(weft: Shell) -> None:
    with library.open(weft.folder / ".weft" / "ledger.db") as ledger:
        ledger.begin_turn(session="busy")
        refused = weft("record", "--session", "busy", "--query", "x")
    assert f"(held by process {os.getpid()} of {os.uname().nodename})" in refused.err


@pytest.mark.parametrize(("kind", "words"), [("agent", "an agent"), ("task", "a task"), ("information", "information")])
def test_a_kind_stands_in_a_sentence_with_its_article(kind: str, words: str) -> None:
    assert errors.with_article(kind) == words


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (("mcp-server",), ("mcp",)),
        (("mcp-server", "list", "--json"), ("mcp", "list", "--json")),
        (("export-facts",), ("facts", "export")),
        (("import-facts", "gone.jsonl"), ("facts", "import", "gone.jsonl")),
        (("help", "mcp-server"), ("help", "mcp")),
    ],
)
def test_a_command_that_moved_still_answers_to_its_name(
    weft: Shell, before: tuple[str, ...], now: tuple[str, ...]
) -> None:
    weft.record("one")
    assert weft(*before) == weft(*now)
    listed = weft("help", "--all").out
    assert [name for name in MOVED if f"\n  {name} " in listed] == []
