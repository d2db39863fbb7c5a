"""No path opens anything outside the workspace, by any tool, however it is written and whatever changes meanwhile."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.tools.conftest import CANARY, call, perform, plan, tree_digest
from tests.runtime.tools.hostile_paths import LOOKING_HOSTILE, hostile_paths, lay_traps
from tests.sizes import sized
from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import ReadLimits
from weft.runtime.opened_folders import exchange_names
from weft.runtime.tool.tool_contract import PlannedTool, ToolFailure
from weft.runtime.tool.workspace import WorkspaceFolder, digest_of
from weft.runtime.tools.reading_tools import GrepTool, ReadTool
from weft.runtime.tools.workspace_tools import EditTool, WriteTool

pytestmark = pytest.mark.usefixtures("each_opening")

ON_PATHS: dict[str, tuple[Callable[[WorkspaceFolder], PlannedTool], dict[str, str]]] = {
    "read": (ReadTool, {}),
    "write": (WriteTool, {"content": "overwritten"}),
    "edit": (EditTool, {"old_text": "a", "new_text": "b", "replace_all": "true"}),
}


@pytest.mark.parametrize("name", ON_PATHS)
def test_no_hostile_path_opens_anything_outside(name: str, place: Path, workspace: WorkspaceFolder) -> None:
    lay_traps(place)
    outside, ledger = tree_digest(place.parent / "outside"), tree_digest(place / ".weft")
    before = tree_digest(place)
    tool = ON_PATHS[name][0](workspace)
    for path in hostile_paths(place):
        with pytest.raises((ToolFailure, LimitExceeded)) as failure:
            call(tool, path=path, **ON_PATHS[name][1])
        assert CANARY not in str(failure.value)
    assert (tree_digest(place.parent / "outside"), tree_digest(place / ".weft")) == (outside, ledger)
    assert tree_digest(place) == before


def test_a_name_that_only_looks_hostile_is_a_name_in_the_workspace(place: Path, workspace: WorkspaceFolder) -> None:
    for path in LOOKING_HOSTILE:
        planned = plan(WriteTool(workspace), path=path, content="x")
        assert planned.subjects is not None
        perform(WriteTool(workspace), planned)
        assert (place / planned.subjects[0]).read_text() == "x"
        assert (place / planned.subjects[0]).resolve().is_relative_to(place)
    assert sorted(path.name for path in place.parent.iterdir()) == ["outside", "workspace"]


@pytest.mark.parametrize(
    ("path", "subject"),
    [
        ("src/../x.txt", "x.txt"),
        ("./src//./a.txt", "src/a.txt"),
        ("{place}/src/a.txt", "src/a.txt"),
        ("docs/a.txt", "src/a.txt"),
        ("docs/../a.txt", "a.txt"),
        ("absolute/a.txt", "src/a.txt"),
        ("alias.txt", "x.txt"),
        ("new/folder/a.txt", "new/folder/a.txt"),
    ],
)
def test_the_subject_of_a_plan_is_where_the_path_leads(
    path: str, subject: str, place: Path, workspace: WorkspaceFolder
) -> None:
    (place / "docs").symlink_to("src")
    (place / "absolute").symlink_to(place / "src")
    (place / "alias.txt").symlink_to("x.txt")
    planned = plan(WriteTool(workspace), path=path.replace("{place}", str(place)), content="x")
    assert planned.subjects == (subject,)
    assert planned.exact["path"] == subject
    perform(WriteTool(workspace), planned)
    assert (place / subject).read_text() == "x"
    assert (place / "alias.txt").is_symlink()


def swap_file(place: Path) -> None:
    (place / "src" / "a.txt").unlink()
    (place / "src" / "a.txt").symlink_to(place.parent / "outside" / "canary.txt")


def swap_folder(place: Path) -> None:
    (place / "src").rename(place / "moved")
    (place / "src").symlink_to(place.parent / "outside")


def swap_workspace(place: Path) -> None:
    place.rename(place.with_name("moved"))
    place.symlink_to(place.parent / "outside")


def swap_workspace_for_a_folder(place: Path) -> None:
    place.rename(place.with_name("moved"))
    (place / "src").mkdir(parents=True)
    (place / "src" / "a.txt").write_text("a")


def swap_for_a_pipe(place: Path) -> None:
    (place / "src" / "a.txt").unlink()
    os.mkfifo(place / "src" / "a.txt")


@pytest.mark.parametrize("swap", [swap_file, swap_folder, swap_workspace, swap_workspace_for_a_folder, swap_for_a_pipe])
@pytest.mark.parametrize("name", ON_PATHS)
def test_a_link_put_in_place_between_plan_and_perform_is_refused(
    name: str, swap: Callable[[Path], None], place: Path, workspace: WorkspaceFolder
) -> None:
    (place / "src" / "a.txt").write_text("a")
    (place.parent / "outside" / "a.txt").write_text("a")
    tool = ON_PATHS[name][0](workspace)
    planned = plan(tool, path="src/a.txt", **ON_PATHS[name][1])
    outside = tree_digest(place.parent / "outside")
    swap(place)
    with pytest.raises(ToolFailure) as failure:
        perform(tool, planned)
    assert failure.value.code in ("changed", "not_a_file")
    assert tree_digest(place.parent / "outside") == outside


def exchange(one: Path, other: Path) -> None:
    """Each takes the other's name, in one step."""
    here, flag = -100, 2
    assert ctypes.CDLL(None).renameat2(here, os.fsencode(one), here, os.fsencode(other), flag) == 0


def test_links_that_are_swapped_all_the_while_never_lead_outside(place: Path, workspace: WorkspaceFolder) -> None:
    """One thread swaps a folder for a link to the outside and back; what is read and written stays inside."""
    outside = place.parent / "outside"
    (outside / "a.txt").write_text(CANARY)
    (place / "here").mkdir()
    (place / "here" / "a.txt").write_text("inside")
    (place / "other").symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            exchange(place / "here", place / "other")

    swapping = threading.Thread(target=swap)
    swapping.start()
    before = tree_digest(outside)
    texts: set[str] = set()
    codes: set[str] = set()
    try:
        for number in range(sized(test=10, prove=400)):
            for tool, arguments in ((ReadTool(workspace), {}), (WriteTool(workspace), {"content": f"{number}"})):
                try:
                    texts.add(str(call(tool, path="here/a.txt", **arguments).result))
                except ToolFailure as failure:
                    codes.add(failure.code)
    finally:
        stop.set()
        swapping.join()
    assert not any(CANARY in text for text in texts)
    assert codes <= {"changed", "outside"}
    assert tree_digest(outside) == before


def test_a_file_that_is_too_large_is_neither_read_nor_written(place: Path) -> None:
    workspace = WorkspaceFolder(place, limits=ReadLimits(held_bytes=10))
    (place / "large.txt").write_bytes(b"12345678901")
    with pytest.raises(LimitExceeded):
        call(ReadTool(workspace), path="large.txt")
    with pytest.raises(LimitExceeded):
        call(WriteTool(workspace), path="new.txt", content="12345678901")
    (place / "small.txt").write_text("aaaa")
    with pytest.raises(LimitExceeded):
        call(EditTool(workspace), path="small.txt", old_text="a", new_text="aaa", replace_all=True)
    assert not (place / "new.txt").exists()
    assert (place / "small.txt").read_text() == "aaaa"


def test_files_that_the_owner_withholds_are_not_opened_under_any_name(place: Path) -> None:
    (place / "ledger.db").write_text(CANARY)
    (place / "private").mkdir()
    (place / "private" / "a.txt").write_text(CANARY)
    os.link(place / "ledger.db", place / "other.db")
    (place / "alias").symlink_to("private")
    workspace = WorkspaceFolder(place, withheld=[place / "ledger.db", place / "private"])
    for path in ("ledger.db", "other.db", "private/a.txt", "private/new.txt", "alias/a.txt"):
        for tool, arguments in ((ReadTool(workspace), {}), (WriteTool(workspace), {"content": "x"})):
            with pytest.raises(ToolFailure, match="not for tools"):
                call(tool, path=path, **arguments)


def test_what_a_database_keeps_beside_it_is_withheld_also_where_it_appears_later(place: Path) -> None:
    (place / "src" / "ledger.db").write_text(CANARY)
    (place / "src" / "ledger.db-wal").write_text(CANARY)
    (place / "alias").symlink_to("src")
    workspace = WorkspaceFolder(place, withheld=[place / "alias" / "ledger.db"])
    (place / "src" / "ledger.db-wal").unlink()
    for ending in ("-wal", "-shm", "-journal", "-head", "-lock"):
        (place / "src" / f"ledger.db{ending}").write_text(CANARY)
    for ending in ("", "-wal", "-shm", "-journal", "-head", "-lock"):
        for folder in ("src", "alias", "src/../src"):
            path = f"{folder}/ledger.db{ending}"
            for tool, arguments in ((ReadTool(workspace), {}), (WriteTool(workspace), {"content": "x"})):
                with pytest.raises(ToolFailure, match="not for tools"):
                    call(tool, path=path, **arguments)
            with pytest.raises(ToolFailure, match="not for tools"):
                workspace.read(f"src/ledger.db{ending}")
    assert call(GrepTool(workspace), pattern="canary").result["matches"] == 0
    (place / "src" / "ledger.db-other").write_text("readable")
    assert "readable" in call(ReadTool(workspace), path="src/ledger.db-other").result["text"]


def test_a_replaced_file_keeps_its_mode_and_loses_setuid(place: Path, workspace: WorkspaceFolder) -> None:
    script = place / "run.sh"
    script.write_text("a")
    script.chmod(0o4751)
    workspace.replace("run.sh", b"b", before=digest_of(b"a"), token="01CALL")
    assert script.stat().st_mode & 0o7777 == 0o751
    assert sorted(path.name for path in place.iterdir()) == [".weft", "run.sh", "src"]


def test_what_a_crash_left_beside_a_file_is_removed_by_the_call_that_is_repeated(
    place: Path, workspace: WorkspaceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = WriteTool(workspace)
    planned = plan(tool, path="a.txt", content="new")

    class Crash(BaseException):
        pass

    def crash(*_: object, **__: object) -> None:
        raise Crash

    with monkeypatch.context() as patches:
        patches.setattr(os, "link", crash)
        patches.setattr(os, "unlink", lambda *_, **__: None)  # a process that died removes nothing
        with pytest.raises(Crash):
            perform(tool, planned)
    assert len(list(place.glob(".weft-*.partial"))) == 1
    perform(tool, planned)
    assert (place / "a.txt").read_text() == "new"
    assert list(place.glob(".weft-*.partial")) == []


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_change_of_the_last_moment_is_not_lost(
    can_exchange: bool, place: Path, workspace: WorkspaceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = place / "a.txt"
    file.write_text("present")
    planned = plan(WriteTool(workspace), path="a.txt", content="new")

    def changed_before(folder: int, one: str, other: str) -> bool:
        if can_exchange and file.read_text() == "present":
            file.write_text("another program's")
        return can_exchange and exchange_names(folder, one, other)

    monkeypatch.setattr("weft.runtime.opened_folders.exchange_names", changed_before)
    if can_exchange:
        with pytest.raises(ToolFailure, match="has changed"):
            perform(WriteTool(workspace), planned)
    else:
        perform(WriteTool(workspace), planned)
    assert file.read_text() == ("another program's" if can_exchange else "new")
    assert sorted(path.name for path in place.iterdir()) == [".weft", "a.txt", "src"]


@pytest.mark.parametrize("step", ["link", "exchange"])
def test_nothing_is_left_beside_a_file_where_a_crash_came_after_it_took_its_name(
    step: str, place: Path, workspace: WorkspaceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    if step == "exchange":
        (place / "a.txt").write_text("present")
    tool = WriteTool(workspace)
    planned = plan(tool, path="a.txt", content="new")

    class Crash(BaseException):
        pass

    def crash(_: int) -> None:
        raise Crash

    with monkeypatch.context() as patches:
        patches.setattr("weft.runtime.tool.workspace._sync_folder", crash)
        patches.setattr(os, "unlink", lambda *_, **__: None)  # a process that died removes nothing
        with pytest.raises(Crash):
            perform(tool, planned)
    assert len(list(place.glob(".weft-*.partial"))) == 1
    assert perform(tool, planned).result["created"] is (step == "link")
    assert list(place.glob(".weft-*.partial")) == []
    assert (place / "a.txt").read_text() == "new"
