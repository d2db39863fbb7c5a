"""One at a time changes a resource: whoever restores it, keeps it or removes it, or the turn that works with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.ledger.histories import grow
from tests.runtime.resources.test_turn_files import Desk, listed
from tests.runtime.tools.test_coding_session import prepare
from tests.runtime.tools.test_workspace_snapshots import MORE, driver_of, head_of, one_turn
from weft.kernel.errors import LeaseLost, NotApplicable
from weft.ledger.api import Lease, Ledger, ResourceLog
from weft.runtime.broker import turn_runner
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.folder_snapshots.snapshot_changes import FolderRestoring
from weft.runtime.resources.controller import ResourceController
from weft.runtime.resources.drivers import Drivers
from weft.runtime.resources.local_drivers import DirectoryDriver
from weft.runtime.resources.turn_files import TurnFiles
from weft.runtime.tools import workspace_tools
from weft.surfaces.cli.work.sandbox_access import SnapshotSettings

ALWAYS_STALE = 1e-9


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    folder = tmp_path / "project"
    folder.mkdir()
    with weft.open(tmp_path / "ledger.db") as ledger:
        yield Desk(ledger, folder, DirectoryDriver(FileStore(tmp_path / "kept")))


def held(log: ResourceLog, resource: str) -> Lease:
    lease = log.hold(resource)
    assert isinstance(lease, Lease)
    return lease


# --- turns and restores ----------------------------------------------------------------------------------------------


def test_nothing_is_restored_in_place_while_a_turn_works_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = prepare(tmp_path)
    driver = driver_of(tmp_path, SnapshotSettings())
    first = asyncio.run(one_turn(tmp_path, workspace, driver, *MORE, key="first"))
    refused: list[str] = []
    perform = workspace_tools.WriteTool.perform

    async def meanwhile(*arguments: Any) -> Any:
        with weft.open(tmp_path / "ledger.db") as other:
            files, controller = TurnFiles(other, driver), ResourceController(other, Drivers(driver))
            (resource,) = other.resources.list()
            (kept,) = other.resources.snapshots_of_turn(first)
            acts: list[Callable[[], object]] = [
                lambda: files.undo("main"),
                lambda: files.check_out(first),
                lambda: controller.restore(kept),
                lambda: controller.discard(resource),
            ]
            for act in acts:
                with pytest.raises(NotApplicable, match="session 'main' is working in") as error:
                    act()
                refused.append(str(error.value))
            assert ResourceLog(other).pending() == ([], [])
            assert controller.snapshot(resource).state == "ok", "whoever only looks may"
            assert controller.restore(kept, place=str(tmp_path / "beside")).outcome == "ok"
        return await perform(*arguments)

    monkeypatch.setattr(workspace_tools.WriteTool, "perform", meanwhile)
    asyncio.run(one_turn(tmp_path, workspace, driver, *MORE, key="second"))
    assert len(refused) == 4
    monkeypatch.undo()
    with weft.open(tmp_path / "ledger.db") as ledger:
        TurnFiles(ledger, driver).undo("main")
        assert head_of(ledger) == first


def test_a_call_that_may_change_files_waits_until_they_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = prepare(tmp_path)
    driver = driver_of(tmp_path, SnapshotSettings())
    asyncio.run(one_turn(tmp_path, workspace, driver, ("write", {"path": "a.txt", "content": "one\n"}), key="first"))
    monkeypatch.setattr(turn_runner, "BUSY_SECONDS", 0.0)
    asked = 0
    with weft.open(tmp_path / "ledger.db") as other:
        log = ResourceLog(other)
        lease = held(log, other.resources.list()[0].id)
        is_held = ResourceLog.is_worked_on

        def looked(self: ResourceLog, resource: str) -> bool:
            nonlocal asked
            asked += 1
            if asked == 4:
                assert (workspace / "a.txt").read_text() == "one\n"
                (workspace / "b.txt").write_text("restored\n")
                log.let_go(lease)
            return is_held(self, resource)

        monkeypatch.setattr(ResourceLog, "is_worked_on", looked)
        turn = asyncio.run(one_turn(tmp_path, workspace, driver, *MORE, key="second"))
        assert asked >= 4
        assert (workspace / "a.txt").read_text() == "three\n"
        (before,) = other.resources.snapshots_before_turn(turn)
        driver.files.restore(before.external_id or "", tmp_path / "before")
        assert (tmp_path / "before" / "b.txt").read_text() == "restored\n"


def test_no_turn_begins_between_the_move_of_an_undo_and_its_files(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.work("main", a="1")
    desk.work("main", a="2")
    move, (resource,) = ResourceLog.undo, desk.ledger.resources.list()
    is_held: list[bool] = []

    def moved(self: ResourceLog, *arguments: Any, **options: Any) -> Any:
        wishes = move(self, *arguments, **options)
        with weft.open(desk.folder.parent / "ledger.db") as other:
            is_held.append(ResourceLog(other).is_worked_on(resource.id))
        return wishes

    monkeypatch.setattr(ResourceLog, "undo", moved)
    desk.files.undo("main")
    assert is_held == [True]
    assert not ResourceLog(desk.ledger).is_worked_on(resource.id)
    assert listed(desk.folder) == {"a": "1"}


# --- leases ----------------------------------------------------------------------------------------------------------


def test_a_lease_is_renewed_while_the_work_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    renewed, renew = threading.Event(), ResourceLog.renew

    def counted(self: ResourceLog, lease: Lease) -> bool:
        is_ours = renew(self, lease)
        renewed.set()
        return is_ours

    class SlowDriver(DirectoryDriver):
        def take(self, folder: Path, *, is_resolved: bool = False, is_whole: bool = False) -> Any:
            assert renewed.wait(120)
            return super().take(folder, is_resolved=is_resolved, is_whole=is_whole)

    monkeypatch.setattr(ResourceLog, "renew", counted)
    driver = SlowDriver(FileStore(tmp_path / "kept"))
    with weft.open(tmp_path / "ledger.db", lease_ttl=0.3) as ledger:
        grow(ledger, "main", "one")
        controller = ResourceController(ledger, Drivers(driver))
        resource = controller.add(driver, str(folder), session="main")
        assert controller.snapshot(resource).state == "ok"


def take_away(ledger: Ledger, resource: str) -> None:
    """As whoever finds a lease that was not renewed takes it over."""
    change = "UPDATE lease SET owner = 'another', epoch = epoch + 1 WHERE key = ?"
    ledger._writer.write(lambda append: append.sql.run(change, (resource,)))


def test_whoever_lost_the_lease_stops_and_leaves_the_rest_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    path, driver = tmp_path / "ledger.db", DirectoryDriver(FileStore(tmp_path / "kept"))
    for name in "abc":
        (folder / name).write_text("kept")
    with weft.open(path) as ledger:
        grow(ledger, "main", "one")
        controller = ResourceController(ledger, Drivers(driver))
        resource = controller.add(driver, str(folder), session="main")
        kept = controller.snapshot(resource)
    for name in "abc":
        (folder / name).write_text("changed")
    write = FolderRestoring._write_file

    def lost(self: FolderRestoring, *arguments: Any) -> None:
        write(self, *arguments)
        take_away(ledger, resource.id)

    monkeypatch.setattr(FolderRestoring, "_write_file", lost)
    with weft.open(path, lease_ttl=ALWAYS_STALE) as ledger:
        log = ResourceLog(ledger)
        done = ResourceController(ledger, Drivers(driver)).restore(kept)
        assert done.outcome is None
        assert listed(folder) == {"a": "kept", "b": "changed", "c": "changed"}
        assert [one.id for one in log.pending()[1]] == [done.id]


def test_what_somebody_else_works_on_is_neither_looked_at_nor_discarded(desk: Desk) -> None:
    desk.work("main", a="1")
    (resource,) = desk.ledger.resources.list()
    controller = ResourceController(desk.ledger, Drivers(desk.driver))
    with weft.open(desk.folder.parent / "ledger.db") as other:
        lease = held(ResourceLog(other), resource.id)
        for act in (controller.probe, controller.discard):
            with pytest.raises(NotApplicable, match="somebody else is working in 'project'"):
                act(resource)
        ResourceLog(other).let_go(lease)
    assert controller.probe(resource) == "alive"
    assert controller.discard(resource).resource.owner is None


def test_a_lease_that_was_lost_moves_no_head(desk: Desk) -> None:
    desk.work("main", a="1")
    turn = desk.work("main", a="2")
    (resource,) = desk.ledger.resources.list()
    log = ResourceLog(desk.ledger)
    lease = held(log, resource.id)
    take_away(desk.ledger, resource.id)
    with pytest.raises(LeaseLost):
        log.undo("main", expected=turn, to=None, kept=[], snapshots=[], held=[lease])
    assert desk.ledger.session("main").head == turn
