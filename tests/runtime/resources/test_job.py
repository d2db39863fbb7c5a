"""The job of a broker that carries out what is wanted of resources."""

from __future__ import annotations

import asyncio
from pathlib import Path

import weft
from tests.ledger.histories import grow
from tests.runtime.broker.crash_driver import Doom, DoomedCrossing
from weft.kernel.enums import SnapshotState
from weft.ledger.api import ResourceLog
from weft.runtime.resources.controller import ResourceController, ResourceJob
from weft.runtime.resources.drivers import Drivers
from weft.runtime.resources.local_drivers import FileDriver


def test_open_wishes_are_carried_out_by_one_controller(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("one")
    driver, made = FileDriver(tmp_path / "copies"), 0

    def controller() -> ResourceController:
        nonlocal made
        made += 1
        return ResourceController(ledger, Drivers(driver))

    with weft.open(tmp_path / "ledger.db") as ledger:
        grow(ledger, "main", "one")
        job = ResourceJob(ledger, DoomedCrossing(Doom(), ledger), controller)
        assert (asyncio.run(job.run_due(0)), made) == (None, 1)
        resource = ResourceController(ledger, Drivers(driver)).add(driver, str(tmp_path / "note.txt"), session="main")
        log = ResourceLog(ledger)
        wish = log.request_snapshot(resource.id)
        assert (asyncio.run(job.run_due(0)), made) == (None, 1)
        assert ledger.resources.snapshot(wish).state is SnapshotState.OK
        log.request_restore(wish)
        assert (asyncio.run(job.run_due(0)), made) == (None, 1)
        assert log.pending() == ([], [])
