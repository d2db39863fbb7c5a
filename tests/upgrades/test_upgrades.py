"""Ledgers of earlier versions are a promise: this version opens, upgrades and verifies them, and they say the same.

Each folder schema-NNNN was written by scripts/upgrade_fixtures.py of the version that had that schema number.
"""

import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from msgspec import to_builtins

import weft
from tests.postgres import new_name, shared_server
from tests.sizes import share
from tests.surfaces.shell import spawn
from tests.upgrades import description
from tests.upgrades.description import SteppingClock, describe, describe_turns, schema_number, shipped_schema_number
from weft.kernel.errors import LedgerTooOld

FOLDERS = sorted(description.FOLDER.glob("schema-*"))
SOME = [FOLDERS[0], *FOLDERS[-2:]]
"""What `make test` takes of them: the oldest, which all steps upgrade, the one before this schema, and this one."""
MORE = [*SOME, *share(FOLDERS[1:-2], test=1)]
"""Where it takes some more."""
IN_POSTGRESQL = share(SOME, test=1)
"""Those whose ledger in PostgreSQL it restores, too: each of them in turn."""
VERIFIER = Path(__file__).parents[2] / "tools" / "verify_bundle.py"


def unpacked(folder: Path, name: str) -> bytes:
    return gzip.decompress((folder / name).read_bytes())


def expected_of(folder: Path, engine: str) -> dict[str, Any]:
    promised: dict[str, Any] = json.loads((folder / description.EXPECTED).read_text())[engine]
    return promised


def copy_of_file(folder: Path, target: Path) -> Path:
    """The SQLite ledger with its head file, as its last writer left it."""
    path = target / "ledger.db"
    path.write_bytes(unpacked(folder, description.LEDGER))
    shutil.copyfile(folder / description.HEAD, target / description.HEAD)
    return path


def restored_dump(folder: Path) -> str:
    """The PostgreSQL ledger, restored into a schema of its own."""
    server, name = shared_server(), new_name()
    dump = unpacked(folder, description.DUMP).decode().replace(description.SCHEMA, name)
    server.run(
        *("psql", "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-h", str(server.folder), "-U", "weft", "postgres"),
        given=dump,
    )
    return server.address(name)


def run_weft(folder: Path, *arguments: str) -> None:
    ended = spawn(folder, *arguments, environment={"HOME": str(folder)})
    assert ended.returncode == 0, ended.stderr


def problems(ledger: weft.Ledger, receipt: weft.Receipt | None = None) -> list[str]:
    return [str(problem) for problem in ledger.verify(receipt=receipt)]


def assert_sessions_go_on(ledger: weft.Ledger) -> None:
    """A turn is appended to each session, behind its head, and the ledger is as sound as before. One that was paused is
    resumed first."""
    sessions = ledger.sessions()
    assert sessions
    for session in sessions:
        if session.lifecycle == "paused":
            weft.Programs(ledger).step_session(session.label, "resume")
        turn = ledger.record_turn(session=session.label, query="Do you go on?", response="I do.")
        assert (turn.parent_id, ledger.session(session.label).head) == (session.head, turn.id)
    assert problems(ledger) == []


class Promise:
    """A copy of a promised ledger, and what it shall hold."""

    def __init__(self, address: str, expected: dict[str, Any]) -> None:
        self.address, self.expected = address, expected
        self.described: dict[str, Any] = expected["described"]

    def open(self, **options: Any) -> weft.Ledger:
        """At the time when it was left: retry keys are remembered for some days only."""
        return weft.open(self.address, clock=SteppingClock(self.expected["clock"]), **options)

    def assert_kept(self, ledger: weft.Ledger) -> None:
        """Turns that a killed writer left open may have been closed as failed; everything else is as it was."""
        described = describe(ledger, self.described["events"])
        for turn in self.open_turns:
            assert described["turns"].pop(turn)["status"] in ("pending", "failed")
        closed = {id: turn for id, turn in self.described["turns"].items() if id not in self.open_turns}
        assert described == {**self.described, "turns": closed}

    @property
    def open_turns(self) -> list[str]:
        return [id for id, turn in self.described["turns"].items() if turn["status"] == "pending"]


def marks_of(folder: Path, some: Sequence[Path] = SOME) -> list[pytest.MarkDecorator]:
    return [] if folder in some else [pytest.mark.prove]


@pytest.fixture(params=[pytest.param(folder, id=folder.name, marks=marks_of(folder)) for folder in FOLDERS])
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture
def file(folder: Path, tmp_path: Path) -> Promise:
    return Promise(str(copy_of_file(folder, tmp_path)), expected_of(folder, "sqlite"))


def kept_ledgers(files: Sequence[Path] = SOME) -> list[ParameterSet]:
    """Each folder with each engine. `make test` takes these files, and one ledger of PostgreSQL."""
    return [
        pytest.param((folder, engine), id=f"{folder.name}-{engine}", marks=marks_of(folder, taken))
        for folder in FOLDERS
        for engine, taken in (("sqlite", files), ("postgres", IN_POSTGRESQL))
    ]


@pytest.fixture
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Promise:
    folder, engine = request.param
    address = str(copy_of_file(folder, tmp_path)) if engine == "sqlite" else restored_dump(folder)
    return Promise(address, expected_of(folder, engine))


every_file = pytest.mark.parametrize("ledger", kept_ledgers(MORE), indirect=True)
some_ledgers = pytest.mark.parametrize("ledger", kept_ledgers(), indirect=True)


def test_the_ledgers_of_this_schema_are_promised() -> None:
    number = shipped_schema_number()
    assert description.FOLDER / f"schema-{number:04}" in FOLDERS, (
        f"there is no fixture of schema {number}: run scripts/upgrade_fixtures.py and commit what it writes"
    )


def test_a_file_of_an_earlier_schema_is_upgraded_behind_a_backup(file: Promise) -> None:
    path = Path(file.address)
    before, shipped = schema_number(path), shipped_schema_number()
    file.open().close()
    assert schema_number(path) == shipped
    backup = path.with_name(f"{path.name}.schema-{before}.backup")
    assert backup.exists() == (before < shipped)


@pytest.mark.slow("upgrades a ledger with everything, asks for all of it and verifies it")
@every_file
def test_a_promised_ledger_holds_what_it_held(ledger: Promise) -> None:
    with ledger.open() as opened:
        ledger.assert_kept(opened)
        assert problems(opened, weft.Receipt(**ledger.expected["receipt"])) == []
        assert len(opened.imports.provisional()) == ledger.expected["provisional"]
        assert opened.upkeep.rebuild() == 0
        ledger.assert_kept(opened)


@some_ledgers
def test_every_session_of_a_promised_ledger_goes_on(ledger: Promise) -> None:
    with ledger.open(lease_ttl=0) as opened:
        assert_sessions_go_on(opened)
        in_session = [turn for turn in map(opened.turn, ledger.open_turns) if turn.session_id is not None]
        assert [turn.status for turn in in_session] == ["failed"]


def test_a_session_that_another_machine_wrote_to_is_still_leased(file: Promise) -> None:
    with file.open() as opened, pytest.raises(weft.WeftError, match="halted"):
        opened.record_turn(session="halted", query="Is it free?")


def test_an_agent_that_another_machine_runs_is_still_held(file: Promise) -> None:
    with file.open() as opened:
        programs = weft.Programs(opened)
        with pytest.raises(weft.WeftError, match=description.HELD_AGENT):
            programs.hold_agent(description.HELD_AGENT)
        programs.step_agent(description.HELD_AGENT, "reset")
        programs.hold_agent(description.HELD_AGENT)


@some_ledgers
def test_a_retry_key_of_a_promised_ledger_gives_the_first_answer(ledger: Promise) -> None:
    kind, name, config = description.RETRIED
    with ledger.open() as opened:
        programs, events = weft.Programs(opened), opened.newest()
        first = next(program for program in ledger.described["programs"] if program["name"] == name)
        again = programs.create(kind, name, config, tagged=["promised"], key=description.RETRY_KEY)
        assert (again.id, opened.newest()) == (first["id"], events)
        with pytest.raises(weft.WeftError, match="key"):
            programs.create(kind, "lantern", config, key=description.RETRY_KEY)


@some_ledgers
def test_a_turn_that_a_promised_ledger_recorded_with_a_key_is_recorded_once(ledger: Promise) -> None:
    with ledger.open() as opened:
        first = ledger.expected.get("retried")  # schema 11 had no retry keys of turns
        turn, events = opened.record_turn(**description.RETRIED_TURN), opened.newest()
        assert first is None or first == to_builtins(turn)
        assert (opened.record_turn(**description.RETRIED_TURN), opened.newest()) == (turn, events)
        with pytest.raises(weft.WeftError, match="key"):
            opened.record_turn(**{**description.RETRIED_TURN, "query": "Something else?"})


@pytest.mark.slow("imports the facts of a ledger with everything, asks for all of them and verifies it")
def test_a_promised_facts_file_gives_the_same_ledger(folder: Path, tmp_path: Path) -> None:
    promise = Promise(str(tmp_path / "ledger.db"), expected_of(folder, "sqlite"))
    facts = tmp_path / "facts.jsonl"
    facts.write_bytes(unpacked(folder, description.FACTS))
    with promise.open() as opened:
        opened.upkeep.import_facts(facts)
        weft.Programs(opened).take_over(source=promise.expected["receipt"]["replica"])
        promise.assert_kept(opened)
        assert opened.upkeep.stats()["log"] == promise.expected["receipt"]["log"]
        assert problems(opened) == []
        assert_sessions_go_on(opened)


def test_a_promised_bundle_verifies_and_gives_the_same_turns(folder: Path, tmp_path: Path) -> None:
    promise = Promise(str(tmp_path / "ledger.db"), expected_of(folder, "sqlite"))
    bundle = str(folder / description.BUNDLE)
    subprocess.run([sys.executable, VERIFIER, bundle], check=True, capture_output=True)
    run_weft(tmp_path, "bundle", "verify", bundle)
    promise.open().close()
    run_weft(tmp_path, "bundle", "open", bundle, "--into", promise.address)
    with promise.open() as opened:
        assert describe_turns(opened) == {id: promise.described["turns"][id] for id in promise.expected["bundled"]}
        assert problems(opened) == []
        assert_sessions_go_on(opened)


OLDER = [
    pytest.param(folder, id=folder.name, marks=marks_of(folder))
    for folder in FOLDERS
    if int(folder.name[-4:]) < shipped_schema_number()
]


@pytest.mark.parametrize("folder", OLDER)
def test_a_ledger_of_an_earlier_version_is_refused_for_reading_only_and_upgraded_by_the_first_look(
    folder: Path, tmp_path: Path
) -> None:
    path, home = copy_of_file(folder, tmp_path), tmp_path / "home"
    home.mkdir()
    for address in (path, restored_dump(folder)):
        with pytest.raises(LedgerTooOld) as refused:
            weft.open(address, read_only=True)
        assert refused.value.found == int(folder.name[-4:])
    run_weft(home, "--ledger", str(path), "sessions")
    with weft.open(path, read_only=True) as ledger:
        assert ledger.sessions()
