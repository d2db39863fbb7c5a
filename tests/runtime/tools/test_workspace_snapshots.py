"""Turns that work in a folder keep what it was like before and after: by tools and by shell commands, also killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.faults.processes import KILLED, Say, run
from tests.runtime.broker.crash_driver import Died, Doom, DoomedCrossing, raise_died
from tests.runtime.broker.test_crashes import dead_owner
from tests.runtime.scripted import Script, chat_saying, scripted
from tests.runtime.tools.test_coding_session import prepare, work
from tests.sandbox import machine_sandbox
from tests.sizes import share
from weft.kernel.clock import SystemClock
from weft.kernel.enums import SnapshotState, VolumeMode
from weft.kernel.errors import InUse
from weft.ledger.api import Ledger, PlannedResource, ResourceLog, RunWriter, Snapshot
from weft.programs import Programs
from weft.runtime.folder_snapshots.snapshot_objects import SnapshotLimit, locked
from weft.runtime.invoke.toolbox import ToolboxSettings
from weft.runtime.resources.local_drivers import DirectoryDriver
from weft.runtime.resources.workspace_snapshots import WorkspaceSnapshots
from weft.runtime.tools.shell import ShellTool
from weft.surfaces.cli.work.sandbox_access import SnapshotSettings, directory_driver

SHELL = "rm calc.sh && mkdir -p empty deep/er && printf two > deep/b.txt && chmod 600 deep/b.txt && ln -s b deep/link"
WRITING: tuple[tuple[str, dict[str, Any]], ...] = (
    ("write", {"path": "a.txt", "content": "one\n"}),
    ("shell", {"cmd": SHELL}),
)
MORE: tuple[tuple[str, dict[str, Any]], ...] = (("write", {"path": "a.txt", "content": "three\n"}),)


def replies(*calls: tuple[str, dict[str, Any]]) -> Callable[[Any], Script]:
    """One call after the other, by how many results the last turn of a request holds."""

    def reply(body: Any) -> Script:
        last = max(n for n, message in enumerate(body["messages"]) if message["role"] == "user")
        place = sum(message["role"] == "tool" for message in body["messages"][last:])
        if place == len(calls):
            return chat_saying({"content": "Done"})
        name, arguments = calls[place]
        function = {"name": name, "arguments": json.dumps(arguments)}
        uses = [{"id": f"call-{len(body['messages'])}", "type": "function", "function": function}]
        return chat_saying({"content": None, "tool_calls": uses}, "tool_calls")

    return reply


def files_of(folder: Path) -> dict[str, tuple[int, str]]:
    """What lies in a folder, but for git's own and what is ignored."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.split("/")[0] != ".git" and name != "runs.log":
            held = str(path.readlink()) if path.is_symlink() else "" if path.is_dir() else path.read_text()
            found[name] = (path.lstat().st_mode, held)
    return found


def restored(driver: DirectoryDriver, snapshots: list[Snapshot], folder: Path) -> dict[str, tuple[int, str]]:
    (snapshot,) = snapshots
    assert snapshot.external_id is not None
    driver.files.restore(snapshot.external_id, folder)
    return files_of(folder)


def head_of(ledger: Ledger) -> str:
    turn = ledger.session("main").head
    assert turn is not None
    return turn


async def one_turn(
    folder: Path, workspace: Path, driver: DirectoryDriver | None, *calls: tuple[str, dict[str, Any]], key: str = "once"
) -> str:
    async with scripted([]) as server:
        server.script_of = replies(*calls)
        with weft.open(folder / "ledger.db") as ledger:
            await work(ledger, server.url, workspace, Doom(), tools=ToolboxSettings(files=driver), key=key)
            assert list(ledger.verify()) == []
            return head_of(ledger)


def driver_of(folder: Path, settings: SnapshotSettings) -> DirectoryDriver:
    with weft.open(folder / "ledger.db") as ledger:
        return directory_driver(ledger, settings)


def test_a_folder_that_a_fork_keeps_is_changed_by_the_other_branch_once_it_is_migrated(tmp_path: Path) -> None:
    workspace = prepare(tmp_path)
    driver = driver_of(tmp_path, SnapshotSettings())
    asyncio.run(one_turn(tmp_path, workspace, driver, WRITING[0], key="first"))
    with weft.open(tmp_path / "ledger.db") as ledger:
        (folder,) = ledger.resources.list(session="main")
        plan = [PlannedResource(resource=folder.id, mode=VolumeMode.KEEP, is_kept_by_fork=True)]
        ResourceLog(ledger).fork("main", plan, label="alt")
    refused = asyncio.run(one_turn(tmp_path, workspace, driver, *MORE, key="second"))
    assert (workspace / "a.txt").read_text() == "one\n"
    with weft.open(tmp_path / "ledger.db") as ledger:
        (call,) = ledger.tool_calls(refused)
        assert call.outcome == "error"
        assert "with session 'alt'" in str(call.error)
        owner = ledger.resources.get(folder.id).owner
        assert owner is not None
        assert owner.name == "alt"
        ledger.resources.migrate(folder.id, session="main")
    asyncio.run(one_turn(tmp_path, workspace, driver, *MORE, key="third"))
    assert (workspace / "a.txt").read_text() == "three\n"


def test_every_turn_has_its_files_before_and_after(tmp_path: Path) -> None:
    machine_sandbox()
    workspace = prepare(tmp_path)
    driver = driver_of(tmp_path, SnapshotSettings())
    states = [files_of(workspace)]
    turns = []
    for number, calls in enumerate((WRITING, MORE)):
        turns.append(asyncio.run(one_turn(tmp_path, workspace, driver, *calls, key=str(number))))
        states.append(files_of(workspace))
    assert (states[2]["a.txt"][1], states[1]["a.txt"][1]) == ("three\n", "one\n")
    assert "calc.sh" not in states[1]
    with weft.open(tmp_path / "ledger.db", read_only=True) as ledger:
        for number, turn in enumerate(turns):
            before, after = ledger.resources.snapshots_before_turn(turn), ledger.resources.snapshots_of_turn(turn)
            assert restored(driver, before, tmp_path / f"before-{number}") == states[number]
            assert restored(driver, after, tmp_path / f"after-{number}") == states[number + 1]
        (resource,) = ledger.resources.list(session="main")
        assert resource.place == str(workspace)
        kept = ledger.resources.snapshots(resource.id)
        assert [one.is_before for one in kept] == [False, True, False, False, True]


def test_keeping_the_files_of_a_turn_takes_no_commit_of_its_own(tmp_path: Path) -> None:
    workspace = prepare(tmp_path)
    driver = driver_of(tmp_path, SnapshotSettings())
    counts = [0]
    for number, files in enumerate((driver, driver, None)):
        asyncio.run(one_turn(tmp_path, workspace, files, *MORE, key=str(number)))
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
            counts += database.execute("SELECT COUNT(*) FROM log").fetchone()
    _, second, without = (after - before for before, after in pairwise(counts))
    assert second == without, "only the first turn records more: what the folder is"


def test_a_turn_that_was_killed_keeps_one_beginning(tmp_path: Path) -> None:
    machine_sandbox()
    owner = dead_owner()
    for point in share(("after:8", "before:10"), test=1):
        folder = tmp_path / point.replace(":", "-")
        workspace = prepare(folder)
        first = files_of(workspace)
        driver = driver_of(folder, SnapshotSettings())

        async def killed_and_resumed() -> None:
            settings = ToolboxSettings(files=driver)  # noqa: B023
            async with scripted([]) as server:
                server.script_of = replies(*WRITING)
                with weft.open(folder / "ledger.db") as ledger:  # noqa: B023
                    ledger._owner = owner
                    with suppress(Died):
                        await work(ledger, server.url, workspace, Doom(point, raise_died), tools=settings)  # noqa: B023
                    ledger._writer.give_all_up()
                with weft.open(folder / "ledger.db") as ledger:  # noqa: B023
                    await work(ledger, server.url, workspace, Doom(), tools=settings)  # noqa: B023

        asyncio.run(killed_and_resumed())
        with weft.open(folder / "ledger.db", read_only=True) as ledger:
            turn = head_of(ledger)
            kept = ledger.resources.snapshots(ledger.resources.list()[0].id)
            assert sum(one.is_before for one in kept) == 1, point
            assert restored(driver, ledger.resources.snapshots_before_turn(turn), folder / "before") == first
            after = restored(driver, ledger.resources.snapshots_of_turn(turn), folder / "after")
            assert after == files_of(workspace), point
            assert list(ledger.verify()) == []


def test_nothing_that_a_turn_keeps_is_thrown_away_before_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = prepare(tmp_path)
    driver = driver_of(tmp_path, SnapshotSettings())
    record, refused = RunWriter.record, 0

    def recorded(writer: RunWriter, entries: Any, then: Any = None) -> Any:
        nonlocal refused
        if any(getattr(entry, "kept", ()) for entry in entries):
            with pytest.raises(InUse), locked(driver.files.path / "lock", SystemClock(), wait_seconds=0):
                pass
            refused += 1
        return record(writer, entries, then)

    monkeypatch.setattr(RunWriter, "record", recorded)
    asyncio.run(one_turn(tmp_path, workspace, driver, *MORE))
    assert refused > 0
    with locked(driver.files.path / "lock", SystemClock(), wait_seconds=0):
        pass  # and nobody holds it afterwards


def die_in_a_call(say: Say, folder: str, workspace: str) -> None:
    """A process that is killed in the middle of a command, which has changed a file by then."""

    async def perform(*_: Any) -> Any:
        Path(workspace, "calc.sh").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    ShellTool.perform = perform  # type: ignore[method-assign, assignment]
    driver = driver_of(Path(folder), SnapshotSettings())
    asyncio.run(one_turn(Path(folder), Path(workspace), driver, ("shell", {"cmd": "true"})))


def test_what_a_turn_began_with_is_there_though_its_broker_dies_in_the_middle_of_the_first_call(tmp_path: Path) -> None:
    workspace = prepare(tmp_path)
    first = files_of(workspace)
    code, _ = run(die_in_a_call, str(tmp_path), str(workspace))
    assert code == KILLED
    assert files_of(workspace) != first
    driver = driver_of(tmp_path, SnapshotSettings())
    with weft.open(tmp_path / "ledger.db", read_only=True) as ledger:
        (resource,) = ledger.resources.list()
        (kept,) = ledger.resources.snapshots(resource.id)
        assert kept.is_before
        assert restored(driver, [kept], tmp_path / "before") == first


def test_what_cannot_be_kept_is_recorded_and_the_result_is_as_ever(tmp_path: Path) -> None:
    machine_sandbox()
    workspace = prepare(tmp_path)
    driver = driver_of(tmp_path, SnapshotSettings(files=2))
    turn = asyncio.run(one_turn(tmp_path, workspace, driver, *WRITING))
    with weft.open(tmp_path / "ledger.db", read_only=True) as ledger:
        calls = ledger.tool_calls(turn)
        assert [call.outcome for call in calls] == ["ok", "ok"]
        kept = ledger.resources.snapshots(ledger.resources.list()[0].id)
        assert {(one.state, one.error_code) for one in kept} == {(SnapshotState.ERROR, "limit_exceeded")}
        assert ledger.resources.snapshots_of_turn(turn) == []
    assert (workspace / "a.txt").read_text() == "one\n"


def test_nothing_is_kept_for_whoever_may_not_change_resources(tmp_path: Path) -> None:
    workspace = prepare(tmp_path)
    with weft.open(tmp_path / "ledger.db") as ledger:
        session = Programs(ledger).create_session("main").id
        Programs(ledger).create("human", "guest", {"permissions": ["session:*", "turn:*", "content:*", "ledger:read"]})
        driver = directory_driver(ledger, SnapshotSettings())
        for owner, kept in ((ledger.acting_as("guest"), 0), (ledger, 2)):
            keeper = WorkspaceSnapshots(owner, DoomedCrossing(Doom(), owner), driver, session, workspace)

            async def around_a_call() -> int:
                kept = await keeper.before("a turn")  # noqa: B023
                await keeper.begin("a turn")  # noqa: B023
                return len((*kept, *await keeper.after()))  # noqa: B023

            assert asyncio.run(around_a_call()) == kept


def test_the_ledger_and_what_lies_beside_it_is_in_no_snapshot(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "a.txt").write_text("mine")
    (workspace / "ledger.db.txt").write_text("also mine")
    for name in ("ledger.db.replaced-1", "ledger.db-import.log", "ledger.db.schema-7.backup"):
        (workspace / name).write_text("the ledger's")
    with weft.open(workspace / "ledger.db") as ledger:
        driver = directory_driver(ledger, SnapshotSettings())
        taken = driver.take(workspace)
    assert set(restored_names(driver, taken.external_id, tmp_path / "copy")) == {"a.txt", "ledger.db.txt"}


def restored_names(driver: DirectoryDriver, tree: str, folder: Path) -> list[str]:
    driver.files.restore(tree, folder, limit=SnapshotLimit())
    return [path.name for path in folder.iterdir()]
