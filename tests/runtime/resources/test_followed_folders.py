"""Folders that are kept when turns of other tools end: real session files that grow, real folders, the real git."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import Queue

import orjson
import pytest

import weft
from tests.exchange.fixtures.codex import rollouts
from tests.ledger.histories import problems
from tests.surfaces.test_cli_import import SESSION, line
from weft.exchange.importers.port import load_importers
from weft.exchange.importing.run import ImportRun
from weft.kernel.clock import SystemClock, iso_from_ms
from weft.kernel.enums import SnapshotState
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.ledger.api import Ledger, Snapshot
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.folder_snapshots.snapshot_objects import SnapshotLimit
from weft.runtime.resources.local_drivers import DirectoryDriver
from weft.runtime.resources.turn_files import TurnFiles
from weft.runtime.resources.workspace_snapshots import FollowedFolders, KeptFolder

LONG_AGO = "2026-01-02T03:04:05.678Z"
SECONDS = 60
Lines = Callable[[int, str, str], str]


def claude_turn(number: int, workspace: str, at: str) -> str:
    asked, answered, ended = f"u{number}", f"a{number}", f"e{number}"
    told = {"cwd": workspace, "timestamp": at}
    return (
        line(asked, f"e{number - 1}" if number else None, "user", f"question {number}", **told)
        + line(answered, asked, "assistant", [{"type": "text", "text": f"answer {number}"}], **told)
        + line(ended, answered, "system", "", subtype="turn_duration", durationMs=5, **told)
    )


def codex_turn(number: int, workspace: str, at: str) -> str:
    turn = rollouts.turn_id(number + 1)
    lines = [] if number else [rollouts.meta(cwd=workspace)]
    lines += [rollouts.started(turn), rollouts.context(turn, cwd=workspace), rollouts.user(f"question {number}")]
    lines += [rollouts.said(f"answer {number}"), rollouts.complete(turn)]
    return "".join(orjson.dumps(one).decode() + "\n" for one in lines).replace(rollouts.AT, at)


class FollowedTool:
    """A tool that works in a folder and writes its session file, and an import that follows it."""

    def __init__(self, place: Path, ledger: Ledger, lines: Lines, origin: str) -> None:
        self.folder, self.ledger, self._lines, self._origin = place / "project", ledger, lines, origin
        self.folder.mkdir()
        self.path = place / "sessions" / f"rollout-{SESSION}.jsonl"
        self.path.parent.mkdir()
        self.limit = SnapshotLimit()
        self.kept: Queue[KeptFolder] = Queue()
        self.turns = 0

    @property
    def driver(self) -> DirectoryDriver:
        return DirectoryDriver(FileStore(self.folder.parent / "kept"), self.limit)

    def followed(self, *folders: Path) -> FollowedFolders:
        named = folders or (self.folder,)
        return FollowedFolders(self.ledger, self.driver, named, SystemClock(), self.kept.put)

    def next_kept(self) -> KeptFolder:
        return self.kept.get(timeout=SECONDS)

    def write(self, *, workspace: str | None = None, at: str | None = None) -> None:
        """Another turn of the session, which ends now."""
        now = at or iso_from_ms(SystemClock().now_ms())
        with self.path.open("a") as file:
            file.write(self._lines(self.turns, workspace or str(self.folder), now))
        self.turns += 1

    def take_in(self, followed: FollowedFolders) -> None:
        importers = load_importers(self._origin)
        run = ImportRun(self.ledger, importers, SystemClock(), follow=True, on_ended=followed.on_ended)
        assert run.run([self.path]).problems == []

    def turn(self, followed: FollowedFolders, **files: str) -> KeptFolder:
        """A turn that writes these files, ends, and is imported; what was kept of it."""
        for name, text in files.items():
            (self.folder / name).write_text(text)
        self.write()
        self.take_in(followed)
        return self.next_kept()

    @property
    def session(self) -> str:
        (session,) = self.ledger.sessions()
        return session.label

    def ids(self) -> list[str]:
        return [turn.id for turn in self.ledger.thread(self.session).turns]

    def snapshots(self) -> list[Snapshot]:
        (resource,) = self.ledger.resources.list()
        return self.ledger.resources.snapshots(resource.id)[::-1]


@pytest.fixture(params=["claude-code", "codex"])
def tool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FollowedTool]:
    with weft.open(tmp_path / "ledger.db") as ledger:
        yield FollowedTool(
            tmp_path, ledger, claude_turn if request.param == "claude-code" else codex_turn, request.param
        )
        ledger.upkeep.catch_up()
        assert problems(ledger) == []


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[FollowedTool]:
    with weft.open(tmp_path / "ledger.db") as ledger:
        yield FollowedTool(tmp_path, ledger, claude_turn, "claude-code")
        ledger.upkeep.catch_up()
        assert problems(ledger) == []


def listed(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.is_file()}


def test_each_turn_of_another_tool_has_its_files_and_can_be_undone(tool: FollowedTool, tmp_path: Path) -> None:
    (tool.folder / "own").write_text("mine")
    with tool.followed() as followed:
        assert tool.next_kept().turn is None, "the folder as it was when the watch began"
        assert tool.turn(followed, a="1").error is None
        tool.turn(followed, a="2", b="new")
    first, second = tool.ids()
    assert [(one.run, one.is_before) for one in tool.snapshots()] == [(first, True), (first, False), (second, False)]
    (resource,) = tool.ledger.resources.list(kind="directory")
    assert resource.owner is not None
    assert resource.owner.name == tool.session
    files = TurnFiles(tool.ledger, tool.driver)
    files.check_out(first, str(tmp_path / "first"))
    assert listed(tmp_path / "first") == {"a": "1", "own": "mine"}
    changed = [change.path for change in files.changes(files.snapshot_of(first), files.snapshot_of(second))]
    assert sorted(map(str, changed)) == ["a", "b"]
    files.undo(tool.session)
    assert listed(tool.folder) == {"a": "1", "own": "mine"}
    files.undo(tool.session)
    assert listed(tool.folder) == {"own": "mine"}
    files.redo(tool.session)
    assert listed(tool.folder) == {"a": "1", "own": "mine"}


def test_what_changed_while_nobody_watched_is_what_the_next_turn_began_with(tool: FollowedTool) -> None:
    with tool.followed() as followed:
        tool.next_kept()
        tool.turn(followed, a="1")
    (tool.folder / "a").write_text("by hand")
    with tool.followed() as followed:
        tool.next_kept()
        tool.turn(followed, a="2")
    TurnFiles(tool.ledger, tool.driver).undo(tool.session)
    assert listed(tool.folder) == {"a": "by hand"}


def test_turns_that_ended_before_the_watch_began_get_no_files(tool: FollowedTool) -> None:
    tool.write(at=LONG_AGO)
    with tool.followed() as followed:
        tool.next_kept()
        tool.take_in(followed)
        tool.turn(followed, a="1")
    old, new = tool.ids()
    assert {one.run for one in tool.snapshots()} == {new}
    with pytest.raises(NotApplicable, match="no files are known"):
        TurnFiles(tool.ledger, tool.driver).snapshot_of(old)


def test_of_turns_that_ended_together_the_last_has_the_files_and_the_others_say_so(claude: FollowedTool) -> None:
    with claude.followed() as followed:
        claude.next_kept()
        claude.write()
        claude.turn(followed, a="2")
    first, second = claude.ids()
    told = [(one.run, one.is_before, one.state, one.error_code) for one in claude.snapshots()]
    assert told == [
        (first, True, SnapshotState.OK, None),
        (first, False, SnapshotState.ERROR, "Missed"),
        (second, True, SnapshotState.OK, None),
        (second, False, SnapshotState.OK, None),
    ]


def test_a_turn_belongs_to_the_innermost_folder_that_its_workspace_is_in(claude: FollowedTool, tmp_path: Path) -> None:
    inner = claude.folder / "inner"
    (inner / "deep").mkdir(parents=True)
    other = tmp_path / "other"
    other.mkdir()
    with claude.followed(claude.folder, inner, other) as followed:
        assert {claude.next_kept().folder for _ in range(3)} == {str(claude.folder), str(inner), str(other)}
        claude.write(workspace=f"{inner}/deep/../deep")
        claude.take_in(followed)
        assert claude.next_kept().folder == str(inner)
        claude.write(workspace=f"{claude.folder}-not")
        claude.write(workspace="relative/project")
        claude.write(workspace=str(tmp_path))
        claude.take_in(followed)
    assert claude.kept.empty()


def test_a_folder_that_was_named_by_a_link_is_found_by_both_names(claude: FollowedTool, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(claude.folder)
    with claude.followed(tmp_path / "link") as followed:
        claude.next_kept()
        claude.write(workspace=str(tmp_path / "link"))
        claude.take_in(followed)
        assert claude.next_kept().folder == str(claude.folder)
        claude.turn(followed)
    assert {one.run for one in claude.snapshots()} == set(claude.ids())


def test_a_longer_version_of_a_turn_began_with_what_the_first_one_began_with(claude: FollowedTool) -> None:
    with claude.followed() as followed:
        claude.next_kept()
        claude.turn(followed, a="1")
        (old,) = claude.ids()
        (claude.folder / "a").write_text("2")
        now = {"cwd": str(claude.folder), "timestamp": iso_from_ms(SystemClock().now_ms())}
        *before, _ = claude.path.read_text().splitlines(keepends=True)
        more = line("a9", "a0", "assistant", [{"type": "text", "text": "and more"}], **now)
        ended = line("e9", "a9", "system", "", subtype="turn_duration", durationMs=5, **now)
        claude.path.write_text("".join([*before, more, ended]))
        claude.take_in(followed)
        claude.next_kept()
    (new,) = claude.ids()
    assert new != old
    TurnFiles(claude.ledger, claude.driver).undo(claude.session)
    assert listed(claude.folder) == {}


def test_what_was_removed_from_the_store_before_it_was_recorded_is_not_recorded(claude: FollowedTool) -> None:
    (claude.folder / "a").write_text("0")
    with claude.followed() as followed:
        claude.next_kept()
        assert claude.driver.files.prune(list) == 1
        claude.turn(followed, a="1")
    (snapshot,) = claude.snapshots()
    assert not snapshot.is_before
    with pytest.raises(NotApplicable, match="before that turn is not known"):
        TurnFiles(claude.ledger, claude.driver).undo(claude.session)


def test_a_folder_that_cannot_be_kept_is_told_and_recorded_and_the_import_goes_on(claude: FollowedTool) -> None:
    claude.limit = SnapshotLimit(files=2)
    with claude.followed() as followed:
        assert claude.next_kept().error is None
        for name in "abc":
            (claude.folder / name).write_text(name)
        kept = claude.turn(followed)
        assert kept.snapshot is None
        assert kept.error
        (claude.folder / "a").unlink()
        (claude.folder / "b").unlink()
        assert claude.turn(followed).error is None
    assert [one.state for one in claude.snapshots()] == [SnapshotState.OK, SnapshotState.ERROR, SnapshotState.OK]
    assert len(claude.ids()) == 2


def test_a_folder_that_goes_away_harms_nothing_else(claude: FollowedTool) -> None:
    with ExitStack() as stack:
        followed = stack.enter_context(claude.followed())
        claude.next_kept()
        claude.turn(followed, a="1")
        os.rename(claude.folder, claude.folder.with_name("moved"))
        claude.write()
        claude.take_in(followed)
        assert claude.next_kept().error
        os.rename(claude.folder.with_name("moved"), claude.folder)
        assert claude.turn(followed, a="3").error is None
    assert len(claude.ids()) == 3


def test_what_is_no_folder_is_refused_before_anything_begins(claude: FollowedTool, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be opened"):
        claude.followed(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="is not a folder"):
        claude.followed(tmp_path / "ledger.db")
