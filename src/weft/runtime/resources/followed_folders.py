"""Keeps folders for the turns of other tools: when an import that goes on finds that a turn has ended, the folder that
its session works in is kept, and recorded as the files of that turn.

A thread of its own keeps them, one after the other, so that the import waits for none. What a folder was like when the
watch began, or when the last turn in it had ended, is what the next turn began with. Of several turns that ended before
anybody looked, the last one has the files; that those of the others are not known is recorded, too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType

from msgspec import Struct
from msgspec.structs import replace

from weft.exchange.importing.run import EndedTurn
from weft.kernel.clock import Clock
from weft.kernel.errors import WeftError
from weft.ledger.api import Failure, Ledger, NewSnapshot, ResourceLog
from weft.runtime.resources.directory_driver import DirectoryDriver, real_folder
from weft.runtime.resources.workspace_snapshots import workspace_resource

MISSED = Failure("Missed", "another turn had ended before the folder was looked at")


class KeptFolder(Struct, frozen=True, kw_only=True, tag="kept"):
    """A folder was kept for a turn of another tool, or could not be: then `error` says why."""

    folder: str
    turn: str | None
    """None: as it was when the watch began."""
    snapshot: str | None = None
    seconds: float = 0.0
    error: str | None = None


class _Folder(Struct):
    """A folder that was named, and what it was like when it was last looked at."""

    path: Path
    names: frozenset[str]
    """Under which sessions may tell of it: as it was named, and without links."""
    state: NewSnapshot | None = None


class _KeptTurn(Struct, frozen=True):
    """The turn of a session that was kept last, and what it began with."""

    id: str
    before: NewSnapshot | None


class FollowedFolders(AbstractContextManager["FollowedFolders"]):
    """Keeps these folders while it is entered. `tell` hears of each try, from another thread."""

    def __init__(
        self,
        ledger: Ledger,
        driver: DirectoryDriver,
        folders: Sequence[Path],
        clock: Clock,
        report: Callable[[KeptFolder], None],
    ) -> None:
        """Raises InvalidInput where a folder is none."""
        self._ledger, self._driver, self._clock, self._report = ledger, driver, clock, report
        self._log = ResourceLog(ledger)
        real = {real_folder(str(folder)): os.path.abspath(folder) for folder in folders}
        self._folders = [_Folder(path, frozenset((str(path), name))) for path, name in real.items()]
        self._folders.sort(key=lambda folder: -len(folder.path.parts))  # the innermost first
        self._begun = clock.now_ms()
        self._last: dict[str, _KeptTurn] = {}
        self._waiting: list[EndedTurn] = []
        self._change = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="followed folders", daemon=True)

    def __enter__(self) -> FollowedFolders:
        self._ledger.trust.ensure("keep the files of turns")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What has ended by now is kept first; a second interrupt does not wait for it."""
        with self._change:
            self._is_closed = True
            self._change.notify()
        self._thread.join()

    def on_ended(self, turns: Sequence[EndedTurn]) -> None:
        """Turns that an import brought. Those that ended before this watch began are history: the folder is not what
        it was then. So are those that tell no time. A subagent's files are those of the turn that started it."""
        live = [turn for turn in turns if not turn.is_subagent and (turn.ended_at or 0) >= self._begun]
        if any(self._folder_of(turn) is not None for turn in live):
            with self._change:
                self._waiting += live
                self._change.notify()

    def _folder_of(self, turn: EndedTurn) -> _Folder | None:
        """The innermost folder that the turn's workspace is, or lies in. The workspace is what a file tells: it is
        compared as a text, and never looked up."""
        if turn.workspace is None or not os.path.isabs(turn.workspace):
            return None
        place = Path(os.path.normpath(turn.workspace))
        above = {str(place), *map(str, place.parents)}
        return next((folder for folder in self._folders if folder.names & above), None)

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        for folder in self._folders:
            self._guarded(folder, None, partial(self._look_first, folder))
        while turns := self._next_turns():
            for folder in self._folders:
                own = [turn for turn in turns if self._folder_of(turn) is folder]
                if own:
                    self._guarded(folder, own[-1].turn, partial(self._keep, folder, own))

    def _next_turns(self) -> list[EndedTurn]:
        """Those that wait; none once it is closed."""
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._is_closed)
            turns, self._waiting = self._waiting, []
            return turns

    def _guarded(self, folder: _Folder, turn: str | None, work: Callable[[], KeptFolder]) -> None:
        begun = self._clock.monotonic()
        try:
            kept = work()
        except Exception as error:  # whatever it was: people hear of it, and the import goes on
            kept = KeptFolder(folder=str(folder.path), turn=turn, error=f"{type(error).__name__}: {error}"[:500])
        self._report(replace(kept, seconds=self._clock.monotonic() - begun))

    def _look_first(self, folder: _Folder) -> KeptFolder:
        taken = self._taken(folder)
        return KeptFolder(
            folder=str(folder.path), turn=None, error=taken.message if isinstance(taken, Failure) else None
        )

    def _taken(self, folder: _Folder) -> NewSnapshot | Failure:
        """The folder as it is now. What it was like before is not known any more after a failure."""
        try:
            folder.state = self._driver.take(folder.path)
        except WeftError as error:
            folder.state = None
            return Failure(error.code, str(error))
        return folder.state

    def _keep(self, folder: _Folder, turns: Sequence[EndedTurn]) -> KeptFolder:
        with self._driver.files.hold():  # nothing is removed from the store until all is recorded
            before = folder.state
            taken = self._taken(folder)
            for turn in turns[:-1]:
                self._record(folder, turn, before, MISSED)
            snapshot = self._record(folder, turns[-1], before, taken)
        failed = isinstance(taken, Failure)
        return KeptFolder(
            folder=str(folder.path),
            turn=turns[-1].turn,
            snapshot=None if failed else snapshot,
            error=taken.message if isinstance(taken, Failure) else None,
        )

    def _record(
        self, folder: _Folder, turn: EndedTurn, before: NewSnapshot | None, taken: NewSnapshot | Failure
    ) -> str:
        resource = workspace_resource(self._log, self._driver, turn.session, folder.path)
        before = self._beginning(turn, before)
        known = self._ledger.resources.snapshots_before_turn(turn.turn)
        trees = {one.external_id for one in known if one.resource == resource}
        if before is not None and before.external_id not in trees and before.external_id in self._driver.files.ids():
            self._log.record_snapshot(resource, before, run=turn.turn, is_before=True)
        self._last[turn.session] = _KeptTurn(turn.turn, before)
        return self._log.record_snapshot(resource, taken, run=turn.turn).id

    def _beginning(self, turn: EndedTurn, before: NewSnapshot | None) -> NewSnapshot | None:
        """What a turn began with: what the folder was like before it, or, where it is a longer version of the turn that
        was kept last, what that one began with."""
        last = self._last.get(turn.session)
        if last is None:
            return before
        earlier, now = self._ledger.turn(last.id), self._ledger.turn(turn.turn)
        is_version = not earlier.is_current and earlier.parent_id == now.parent_id
        return last.before if is_version else before
