"""Commands try to bring what is hidden out of the look of the next command, or to write beside it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.kernel.errors import InvalidInput, StoreFailed
from weft.runtime.sandbox import hidden_places, remembered_places
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.hidden_places import ProtectedPlaces, SecretFiles
from weft.runtime.sandbox.processes import Ending, Limits, ProcessOutcome
from weft.runtime.sandbox.profiles import WORKSPACE_PROFILE
from weft.runtime.sandbox.sandbox_plan import PersonFolders
from weft.runtime.tool.tool_contract import ToolCallContext, ToolFailure
from weft.runtime.tools.shell import ShellTool

CANARY = "canary-6be2"
LOOK = "find . -type f -execdir cat {} + 2>/dev/null; find . -path './*/.weft/*'; true"
MANY = 5200
"""More folders than were once looked through."""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    for path in ("a/b/c/d/deep/.weft/ledger.db", "apps/web/.env", "node_modules/fetched/index.js"):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(CANARY if "index" not in path else "")
    return folder


@pytest.fixture
def run(workspace: Path, tmp_path: Path) -> Callable[..., ProcessOutcome]:
    """As in one ledger: what was covered is remembered from command to command."""

    def started(script: str, protected: ProtectedPlaces = UNPROTECTED, *, remembers: bool = True) -> ProcessOutcome:
        person = PersonFolders(covered_places=tmp_path / "state" if remembers else None)
        runner = CommandRunner(protected, sandbox=machine_sandbox(), person=person)
        limits = Limits(seconds=120)
        return asyncio.run(runner.run(WORKSPACE_PROFILE, ["/bin/sh", "-c", script], workspace=workspace, limits=limits))

    return started


Run = Callable[..., ProcessOutcome]


@pytest.mark.slow("folders are made and looked through by the thousand")
def test_no_number_of_folders_pushes_a_ledger_or_a_secret_out_of_the_look(run: Run, workspace: Path) -> None:
    """Made so that the walk would come to them first."""
    assert run(f"cd a && mkdir $(seq -f 0%.0f {MANY}) && mkdir -p ../0 && cd ../0 && mkdir $(seq {MANY})").succeeded
    outcome = run(f"{LOOK}; echo planted > a/b/c/d/deep/.weft/ledger.db; echo planted > apps/web/.env")
    assert CANARY.encode() not in outcome.stdout
    assert (workspace / "a/b/c/d/deep/.weft/ledger.db").read_text() == CANARY
    assert (workspace / "apps/web/.env").read_text() == CANARY


def test_where_the_look_cannot_come_to_its_end_nothing_runs(
    run: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden_places, "MOST_FOLDERS", 40)
    assert run("mkdir build && cd build && mkdir $(seq 50)").succeeded
    with pytest.raises(InvalidInput, match="more than 40 folders, most of them in 'build'"):
        run("echo ran > ran")
    assert not (workspace / "ran").exists()


MOVES = {
    "into a folder that tools fill": "mv apps/web node_modules/web",
    "into one that the command made": "mkdir -p x/__pycache__ && mv apps/web x/__pycache__/",
    "its folder becomes such a one": "mv apps .mypy_cache",
    "a decoy in its place": "mv apps/web node_modules/ && mkdir apps/web && echo decoy > apps/web/.env",
    "among what git keeps": "git init -q . && mv apps .git/apps",
    "into a folder that looks like a ledger's": "mkdir node_modules/.weft && mv apps/web node_modules/.weft/",
    "two steps": "mv apps/web apps/other && mv apps/other node_modules/fetched/",
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES.keys())
@pytest.mark.parametrize("remembers", [True, False])
def test_what_a_command_moves_to_where_no_look_comes_stays_hidden(run: Run, move: str, remembers: bool) -> None:
    assert run(move, remembers=remembers).succeeded
    for _ in range(3):
        assert CANARY.encode() not in run(LOOK, remembers=remembers).stdout


def test_what_was_moved_is_followed_on_every_further_way(run: Run, workspace: Path) -> None:
    moves = [
        "mv apps/web node_modules/one", "mv node_modules/one node_modules/fetched/two",
        "mv node_modules/fetched/two .tox", "mv .tox open", "mv open/.env open/other; mkdir .venv && mv open .venv/",
    ]  # fmt: skip
    for move in moves:
        run(move)
        outcome = run(LOOK)
        assert CANARY.encode() not in outcome.stdout, move
    assert (workspace / ".venv" / "open" / ".env").read_text() == CANARY


def test_nothing_is_forgotten_while_another_command_can_move_it(run: Run, workspace: Path) -> None:
    """One that runs beside moves it before the search comes to where it is, and brings it back afterwards."""
    run("mv apps/web node_modules/web")
    hiding = workspace.parent / "hiding"  # for what a process can do that moves it from folder to folder
    marker = workspace / "started"
    beside = threading.Thread(target=run, args=("touch started; while [ -e started ]; do sleep 0.05; done",))
    beside.start()
    try:
        while not marker.exists() and beside.is_alive():
            beside.join(0.01)
        (workspace / "node_modules" / "web").rename(hiding)
        with pytest.raises(StoreFailed, match=r"node_modules/web/\.env, which is hidden from commands, is not found"):
            run("true")
        hiding.rename(workspace / "node_modules" / "fetched" / "web")
    finally:
        marker.unlink()
        beside.join()
    assert CANARY.encode() not in run(LOOK).stdout


DEEP = "n" * 250


def move_down(workspace: Path, folder: str, file: Path) -> None:
    """To where no path leads, as a command does that goes down step by step."""
    above = os.open(workspace / folder, os.O_RDONLY)
    for _ in range(20):
        os.mkdir(DEEP, dir_fd=above)
        beneath = os.open(DEEP, os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = beneath
    os.rename(file, file.name, dst_dir_fd=above)
    os.close(above)


def test_a_path_that_is_too_long_hides_nothing_from_the_search(run: Run, workspace: Path) -> None:
    run("true")
    move_down(workspace, "node_modules", workspace / "apps" / "web")
    for _ in range(3):
        assert CANARY.encode() not in run("find . -name .env -execdir cat {} +").stdout


def test_what_a_link_led_to_stays_hidden_without_the_link(run: Run, workspace: Path) -> None:
    """Over a link nothing can be mounted, so a command can remove it."""
    (workspace / "settings").mkdir()
    (workspace / "apps/web/.env").rename(workspace / "settings/real")
    (workspace / ".env").symlink_to("settings/real")
    for script in ("rm .env", "mv settings moved", "mv moved node_modules/", "mv node_modules/moved apps", LOOK):
        run(script)
        assert CANARY.encode() not in run(LOOK).stdout


FOLDER_MOVES = {
    "its folder has another name": "mv .docker docker; mv config/gh gh",
    "it lies in a folder that tools fill": "mv .docker node_modules/x; mv config/gh node_modules/gh",
    "there and back": "mv .docker node_modules/x; mv node_modules/x x; mv config/gh y; mv y z",
    "the folder above it": "mkdir a2; mv .docker a2/b; mv a2 a3; mv config .venv; mv .venv plain",
}


@pytest.mark.parametrize("move", FOLDER_MOVES.values(), ids=FOLDER_MOVES.keys())
@pytest.mark.parametrize("is_in_one_step", [True, False])
def test_a_secret_that_its_folder_names_stays_hidden_in_a_folder_of_another_name(
    run: Run, workspace: Path, move: str, is_in_one_step: bool
) -> None:
    """`config.json` is one in `.docker` alone."""
    for path in (".docker/config.json", "config/gh/hosts.yml"):
        (workspace / path).parent.mkdir(parents=True)
        (workspace / path).write_text(CANARY)
    places = ProtectedPlaces(ledgers=(), folders=(), secrets=SecretFiles(more=("config/gh/hosts.yml",)))
    for step in ["true", *([move] if is_in_one_step else move.split(";"))]:
        assert run(step, places).succeeded
        assert CANARY.encode() not in run(LOOK, places).stdout
    assert CANARY.encode() not in run(f"{LOOK}; mkdir q; mv */config.json q", places).stdout


def test_where_nothing_is_remembered_no_command_renames_the_folder_that_names_a_secret(
    run: Run, workspace: Path
) -> None:
    (workspace / ".docker").mkdir()
    (workspace / ".docker/config.json").write_text(CANARY)
    moved = run("mv .docker docker; mkdir .tox; mv .docker .tox/; touch .docker/other", remembers=False)
    assert moved.stderr.count(b"Device or resource busy") == 2
    assert CANARY.encode() not in run(LOOK, remembers=False).stdout
    assert (workspace / ".docker/other").exists()


def test_in_a_workspace_of_a_secrets_folder_the_secret_is_hidden(tmp_path: Path) -> None:
    workspace = tmp_path / ".docker"
    workspace.mkdir()
    (workspace / "config.json").write_text(CANARY)
    runner = CommandRunner(UNPROTECTED, sandbox=machine_sandbox())
    outcome = asyncio.run(runner.run(WORKSPACE_PROFILE, ["/bin/sh", "-c", LOOK], workspace=workspace))
    assert CANARY.encode() not in outcome.stdout
    assert outcome.hidden == ()


def test_a_place_that_is_shown_and_is_gone_is_no_way_to_uncover_another(run: Run, workspace: Path) -> None:
    places = ProtectedPlaces(ledgers=(), folders=(), secrets=SecretFiles(shown=lambda: [str(workspace / "gone/.env")]))
    assert run("mv apps/web gone; true", places).succeeded
    assert CANARY.encode() not in run(LOOK, places).stdout


def test_no_other_secret_is_put_in_the_place_of_one_that_is_shown(run: Run, workspace: Path) -> None:
    shown = workspace / "apps/api/.env"
    shown.parent.mkdir()
    shown.write_text("shown\n")
    places = ProtectedPlaces(ledgers=(), folders=(), secrets=SecretFiles(shown=lambda: [str(shown)]))
    assert b"shown" in run(LOOK, places).stdout
    run("mv apps/api x; mv apps/web apps/api", places)
    assert CANARY.encode() not in run(LOOK, places).stdout


def test_what_is_gone_is_forgotten_and_searched_for_no_longer(
    run: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("true")
    (workspace / "apps/web/.env").rename(workspace / "apps/web/settings.txt")
    assert CANARY.encode() in run(LOOK).stdout  # the person's own choice of a name
    monkeypatch.setattr(hidden_places, "MOST_FETCHED_FOLDERS", 0)
    assert run("true").succeeded


def test_a_folder_with_a_longer_path_than_can_be_mounted_is_hidden_whole(run: Run, workspace: Path) -> None:
    run("true")
    move_down(workspace, ".", workspace / "apps" / "web")
    name = DEEP
    for script in (LOOK, f"mv {name} node_modules/; {LOOK}", f"mv node_modules/{name} x; mv x/* y; {LOOK}", LOOK):
        assert CANARY.encode() not in run(script).stdout
    assert run("ls -d y/n*").succeeded


def test_where_nothing_can_be_noted_nothing_runs(run: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*words: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(remembered_places, "new_file", full)
    with pytest.raises(StoreFailed, match=r"cannot be noted in .*: No space left on device"):
        run("echo ran > ran")
    assert not (workspace / "ran").exists()


@pytest.mark.parametrize("place", ["notes.txt", "apps/copy", "node_modules/fetched/x"])
@pytest.mark.parametrize("remembers", [True, False])
def test_another_name_of_a_secret_file_is_hidden(run: Run, workspace: Path, place: str, remembers: bool) -> None:
    os.link(workspace / "apps/web/.env", workspace / place)
    outcome = run(f"{LOOK}; echo planted > {place}", remembers=remembers)
    assert CANARY.encode() not in outcome.stdout
    assert (workspace / "apps/web/.env").read_text() == CANARY


@pytest.mark.parametrize("place", ["notes.db", "node_modules/fetched/x"])
@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("where", ["outside", "in the workspace", "in its .weft", "in another .weft"])
def test_another_name_of_a_ledger_is_hidden(
    run: Run, workspace: Path, tmp_path: Path, place: str, remembers: bool, where: str
) -> None:
    """A program without a sandbox, or a person, gave it that name."""
    ledgers = {
        "outside": tmp_path / "own.db",
        "in the workspace": workspace / "own.db",
        "in its .weft": workspace / ".weft" / "ledger.db",
        "in another .weft": workspace / "a/b/c/d/deep/.weft/ledger.db",
    }
    ledger = ledgers[where]
    ledger.parent.mkdir(exist_ok=True)
    ledger.write_text(CANARY)
    os.link(ledger, workspace / place)
    protected = ProtectedPlaces(ledgers=() if where == "in another .weft" else (ledger,), folders=())
    outcome = run(f"{LOOK}; echo planted > {place}; false", protected, remembers=remembers)
    assert CANARY.encode() not in outcome.stdout
    assert ledger.read_text() == CANARY
    assert outcome.hidden == (place,)


@pytest.mark.slow("thousands of files are made, looked through and gathered")
@pytest.mark.parametrize(
    "script", ["mkdir -p $(seq -f 'x/%.0f/.weft' 2100)", "mkdir x; cd x; touch $(seq -f .env.%.0f 2100)"]
)
def test_a_command_that_makes_much_to_be_hidden_keeps_no_other_from_running(
    run: Run, workspace: Path, script: str
) -> None:
    """Its folder is hidden whole."""
    assert run(script).succeeded
    outcome = run(f"ls x | wc -l; echo y > x/y; {LOOK}; echo ran; false")
    assert outcome.stdout == b"0\nran\n"
    assert outcome.hidden == ("x/",)


def test_more_to_hide_than_can_be_hidden_in_folders_is_refused(
    run: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden_places, "MOST_COVERS", 20)
    assert run("touch $(seq -f .env.%.0f 30)").succeeded
    with pytest.raises(InvalidInput, match="more than 20 files and folders that must be hidden"):
        run("true")


def make_ledger(path: Path, *words: str) -> None:
    with weft.open(path) as ledger:
        for word in words:
            ledger.record_turn(session="main", query=word, response="")


def words_of(path: Path) -> list[str]:
    with weft.open(path) as ledger:
        return [message.text for message in ledger.thread("main").messages if message.text]


def hot_journal(database: Path) -> bytes:
    """A journal that is rolled back into whatever database it lies beside: that one has these pages then."""
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        for setting in ("journal_mode = DELETE", "synchronous = OFF", "secure_delete = ON", "cache_spill = OFF"):
            connection.execute(f"PRAGMA {setting}").fetchall()
        connection.execute("BEGIN IMMEDIATE")
        for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE sql LIKE 'CREATE TABLE%'").fetchall():
            with contextlib.suppress(sqlite3.Error):  # a table that SQLite keeps for itself
                connection.execute(f"DELETE FROM {table}")
        return Path(f"{database}-journal").read_bytes()
    finally:
        connection.close()


def whole_log(database: Path) -> bytes:
    """A log with every page of a database, which is read in place of those of whatever database it lies beside."""
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
        connection.execute("VACUUM")
        return Path(f"{database}-wal").read_bytes()
    finally:
        connection.close()


def places_of(ledger: Path) -> ProtectedPlaces:
    return ProtectedPlaces(ledgers=(ledger,), folders=())


@pytest.mark.parametrize("folder", [".", "data"])
@pytest.mark.parametrize(("ending", "made"), [("-journal", hot_journal), ("-wal", whole_log)])
def test_a_command_makes_no_journal_or_log_that_is_taken_for_the_ledgers(
    run: Run, workspace: Path, tmp_path: Path, folder: str, ending: str, made: Callable[[Path], bytes]
) -> None:
    """What is prepared is another ledger, whole: it would take the place of the one that is there."""
    ledger = workspace / folder / "team.db"
    ledger.parent.mkdir(exist_ok=True)
    make_ledger(ledger, "mine")
    make_ledger(tmp_path / "other.db", "planted")
    (workspace / "prepared").write_bytes(made(tmp_path / "other.db"))
    outcome = run(f"cp prepared {folder}/team.db{ending} && echo made; true", places_of(ledger))
    assert outcome.stdout == b""
    assert words_of(ledger) == ["mine"]


def test_a_log_stays_covered_when_others_close_the_ledger_meanwhile(run: Run, workspace: Path, tmp_path: Path) -> None:
    """The last connection that closes takes the log away, and with it the cover."""
    ledger = workspace / "team.db"
    make_ledger(ledger, "mine")
    make_ledger(tmp_path / "other.db", "planted")
    (workspace / "prepared").write_bytes(whole_log(tmp_path / "other.db"))
    script = "touch started; while [ -e started ]; do sleep 0.05; done; cp prepared team.db-wal && echo made; true"
    outcomes: list[ProcessOutcome] = []
    beside = threading.Thread(target=lambda: outcomes.append(run(script, places_of(ledger))))
    beside.start()
    while not (workspace / "started").exists() and beside.is_alive():
        beside.join(0.01)
    closing = "import sys, weft; weft.open(sys.argv[1]).close()"
    subprocess.run([sys.executable, "-c", closing, str(ledger)], check=True)
    (workspace / "started").unlink()
    beside.join()
    assert [(outcome.ending, outcome.stdout) for outcome in outcomes] == [(Ending.EXITED, b"")]
    assert words_of(ledger) == ["mine"]


NAMES = ("", "-journal", "-wal", "-shm", "-lock", "-head", "-import.lock")


@pytest.mark.parametrize("place", ["team.db", "node_modules/.weft/team.db"])
def test_nothing_beside_a_ledger_in_the_workspace_is_made_moved_or_linked(
    run: Run, workspace: Path, place: str
) -> None:
    ledger = workspace / place
    ledger.parent.mkdir(exist_ok=True)
    make_ledger(ledger, "mine")
    tries = "echo planted > {0}; echo planted > x; mv x {0}; ln {0} y; mv {0} z; rm -f {0}; ln -sf /etc/passwd {0}"
    script = "; ".join(tries.format(f"{place}{name}") for name in NAMES)
    run(f"{script}; mkdir -p {place}-files/trees; echo planted > {place}-files/trees/config; true", places_of(ledger))
    beside = [path for path in ledger.parent.iterdir() if path.name.startswith("team.db")]
    assert not any(path.is_symlink() for path in beside)
    assert {path.name for path in beside} >= {f"team.db{name}" for name in ("-journal", "-lock", "-head")}
    assert b"planted" not in b"".join(path.read_bytes() for path in beside if path.is_file())
    assert list(Path(f"{ledger}-files").iterdir()) == []
    taken = [workspace / name for name in "yz" if (workspace / name).exists()]  # a copy of a cover, across mounts
    assert b"".join(path.read_bytes() for path in taken) == b""
    assert words_of(ledger) == ["mine"]


def test_beside_a_ledger_in_its_own_folder_nothing_is_made(run: Run, workspace: Path) -> None:
    ledger = workspace / ".weft" / "ledger.db"
    ledger.parent.mkdir()
    make_ledger(ledger, "mine")
    before = sorted(ledger.parent.iterdir())
    run("true", places_of(ledger))
    assert sorted(ledger.parent.iterdir()) == before


def rename_over(file: Path) -> None:
    file.with_name("aside").write_text(CANARY)
    file.with_name("aside").rename(file)


def write_anew(file: Path) -> None:
    file.unlink()
    file.write_text(CANARY)


REPLACED = {
    "an editor renames a new file to its place": rename_over,
    "it is removed and written anew": write_anew,
    "it is renamed and written anew": lambda file: (file.rename(file.with_name(".env~")), file.write_text(CANARY)),
}


@pytest.mark.parametrize("replace", REPLACED.values(), ids=REPLACED.keys())
def test_a_command_is_killed_when_somebody_replaces_what_is_hidden_from_it(
    run: Run, workspace: Path, replace: Callable[[Path], object]
) -> None:
    file = workspace / "apps/web/.env"
    outcomes: list[ProcessOutcome] = []
    script = "touch started; while :; do sleep 0.1; done"
    beside = threading.Thread(target=lambda: outcomes.append(run(script)))
    beside.start()
    while not (workspace / "started").exists() and beside.is_alive():
        beside.join(0.01)
    replace(file)
    beside.join()
    assert [(outcome.ending, outcome.uncovered) for outcome in outcomes] == [(Ending.UNCOVERED, str(file))]
    assert CANARY.encode() not in run(LOOK).stdout


def test_a_command_goes_on_when_what_is_hidden_from_it_is_moved_or_written(run: Run, workspace: Path) -> None:
    """The cover goes with it: by another command in the workspace, or by the person."""
    outcomes: list[ProcessOutcome] = []
    script = f"touch started; while [ -e started ]; do sleep 0.05; done; {LOOK}"
    beside = threading.Thread(target=lambda: outcomes.append(run(script)))
    beside.start()
    while not (workspace / "started").exists() and beside.is_alive():
        beside.join(0.01)
    assert run("mv apps applications").succeeded
    (workspace / "applications/web/.env").write_text(f"{CANARY} and more")
    (workspace / "started").unlink()
    beside.join()
    assert [outcome.ending for outcome in outcomes] == [Ending.EXITED]
    assert CANARY.encode() not in outcomes[0].stdout


def test_the_tool_names_what_was_replaced(workspace: Path) -> None:
    """Also where the command ended at that moment."""
    file = workspace / "apps/web/.env"
    tool = ShellTool(workspace, runner=CommandRunner(UNPROTECTED, sandbox=machine_sandbox()))

    async def called() -> ToolFailure:
        running = asyncio.create_task(
            tool.invoke({"cmd": "touch started; while [ -e started ]; do :; done"}, ToolCallContext(turn="", call=""))
        )
        while not (workspace / "started").exists():
            await asyncio.sleep(0.01)
        rename_over(file)
        (workspace / "started").unlink()
        with pytest.raises(ToolFailure) as failure:
            await running
        return failure.value

    failure = asyncio.run(called())
    assert failure.code == "uncovered"
    assert failure.message == f"{file} was replaced meanwhile, outside or by the command: run it again"
