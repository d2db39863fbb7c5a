"""Resources of an open ledger, acted on from a Python program: declared, looked at, kept, brought back, forked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import weft
import weft.aio
from weft.kernel.errors import InvalidInput, NotAllowed, NotTrusted, Unsupported


@pytest.fixture
def place(folder: Path) -> Path:
    made = folder / "notes"
    made.mkdir(parents=True)
    (made / "a.txt").write_text("one")
    return made


@pytest.fixture
def path(folder: Path, place: Path) -> Path:
    path = folder / "program.db"
    with weft.open(path) as ledger:
        ledger.record_turn(session="main", query="Which notes?", response="One.")
    return path


def test_a_folder_is_declared_kept_and_brought_back(path: Path, place: Path, folder: Path) -> None:
    with weft.open(path) as ledger:
        resource = ledger.resources.declare(str(place), session="main")
        assert (resource.kind, resource.name, resource.place) == ("directory", "notes", str(place))
        assert ledger.resources.probe("notes") == "alive"
        kept = ledger.resources.take_snapshot("notes")
        assert kept.state == "ok"
        (place / "a.txt").write_text("two")
        done = ledger.resources.restore(kept.id)
        assert (done.outcome, (place / "a.txt").read_text()) == ("ok", "one")
        before = ledger.resources.snapshots("notes")[0]
        ledger.resources.restore(before.id, place=str(folder / "as-it-was"))
        assert (folder / "as-it-was" / "a.txt").read_text() == "two"
        assert list(ledger.verify()) == []


def test_a_fork_is_planned_and_carried_out(path: Path, place: Path, folder: Path) -> None:
    with weft.open(path) as ledger:
        ledger.resources.declare(str(place), session="main")
        (line,) = plan = ledger.resources.plan_fork("main", "other")
        assert (line.mode, line.resource.name, line.place) == ("snapshot", "notes", f"{place}-other")
        assert not Path(f"{place}-other").exists()
        done = ledger.resources.fork("main", "other", plan, agent="ann")
        assert [restore.outcome for restore in done.restores] == ["ok"]
        assert (folder / "notes-other" / "a.txt").read_text() == "one"
        assert ledger.session("other").persona_id == "ann"
        assert ledger.session("other").id == done.session
        assert [one.place for one in ledger.resources.list(session="other")] == [f"{place}-other"]


def test_the_same_is_awaited(path: Path, place: Path) -> None:
    async def main() -> None:
        async with weft.aio.open(path) as ledger:
            resources = ledger.resources
            await resources.declare(str(place), session="main")
            assert await resources.probe("notes") == "alive"
            kept = await resources.take_snapshot("notes")
            (place / "a.txt").write_text("two")
            assert (await resources.restore(kept.id)).outcome == "ok"
            assert (place / "a.txt").read_text() == "one"
            async with await ledger.begin_turn(session="main") as writer:
                mounted = await resources.mount("notes", "/notes", mode="ro", run=writer.id)
                assert [(one.mount, one.mode) for one in mounted.uses if one.way == "mounted"] == [("/notes", "ro")]
                assert all(one.way == "attached" for one in (await resources.unmount("notes", run=writer.id)).uses)
                await writer.response("Done.")
                await writer.finish()
            (line,) = await resources.plan_fork("main", "other")
            assert (await resources.fork("main", "other")).lines[0].place == line.place
            assert len(await resources.list(session="other")) == 1

    asyncio.run(main())


def test_only_the_owner_of_a_ledger_that_may_act_acts_on_resources(path: Path, place: Path) -> None:
    with weft.open(path) as ledger:
        ledger.programs.create("human", "ann", {"permissions": ["resource:change", "session:move"]})
        with pytest.raises(NotAllowed, match="declare a resource"):
            ledger.acting_as("ann").resources.declare(str(place))
        with pytest.raises(NotAllowed, match="reach the files of this machine"):
            ledger.acting_as("ann").machine.drivers()
        with pytest.raises(InvalidInput, match="nothing is at"):
            ledger.resources.declare("nowhere")
        ledger.resources.declare("https://example.org/x", name="page")
        with pytest.raises(Unsupported, match="nothing can be kept"):
            ledger.resources.take_snapshot("page")
    trust = weft.user_trust()
    trust.revoke(str(path.resolve()))
    with weft.open(path, trust=trust) as ledger:
        with pytest.raises(NotTrusted):
            ledger.resources.declare(str(place))
        assert [one.name for one in ledger.resources.list()] == ["page"]
