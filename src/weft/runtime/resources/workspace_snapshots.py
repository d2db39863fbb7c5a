"""Keeps the workspace of a turn: before the first call that may change it, and after each such call.

For the turns of other tools, the folder of a session is kept when an import finds that a turn has
ended.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType

from msgspec import Struct
from msgspec.structs import replace

from weft.exchange.importing.run import EndedTurn
from weft.kernel.clock import Clock
from weft.kernel.enums import ResourceKind, SnapshotState
from weft.kernel.errors import InvalidInput, NotAllowed, WeftError
from weft.ledger.api import KeptState, Ledger, NewResource, NewSnapshot, ResourceFailure, ResourceLog, Snapshot
from weft.runtime.ledger_port import Executor
from weft.runtime.resources.local_drivers import WHOLE_METHOD, DirectoryDriver, real_folder
from weft.runtime.tool.tool_contract import BUSY_SECONDS, NotYet

# --- The files of a turn: its workspace is kept before the first call that may change it, and after each such call.

NOT_KEPT = "the folder is not kept, so nothing could be given back"
NOT_WHOLE = "the turn began before the folder was trusted, so git's folders and ignored files are not kept"


class WorkspaceSnapshots:
    """Keeps one workspace for the turns of one session, by its id."""

    def __init__(
        self,
        ledger: Ledger,
        crossing: Executor,
        driver: DirectoryDriver,
        session: str,
        folder: Path,
        *,
        is_whole: Callable[[], bool] | None = None,
    ) -> None:
        """`is_whole` says whether what a turn begins with is kept with git's folders and ignored files: where commands
        may run that nobody is asked about."""
        self._is_whole = is_whole or (lambda: False)
        self._obstacles: dict[str, str | None] = {}
        """Why what turns began with is not whole."""
        self._log, self._crossing, self._driver = ResourceLog(ledger), crossing, driver
        self._session, self._folder = session, folder
        self._lock = asyncio.Lock()
        self._beginnings: dict[str, tuple[KeptState, ...]] = {}
        """What turns began with, until it is recorded; nothing where it is already, or may not be kept."""
        self._resource = ""
        """Its id; empty where nothing may be kept."""
        self._unrecorded: dict[int, tuple[KeptState, ExitStack]] = {}
        """What was kept and is not recorded yet, by its identity, each with what keeps it from being thrown away."""

    async def before(self, turn: str) -> tuple[KeptState, ...]:
        """What is to be recorded with the decision about a call of a turn: the workspace as it is, until the first call
        that may change it runs."""
        async with self._lock:
            if turn not in self._beginnings:
                self._beginnings[turn] = await self._crossing.run(partial(self._snapshot_before_turn, turn))
            return self._beginnings[turn]

    async def why_not_whole(self, turn: str) -> str | None:
        """See `WorkspaceKeeper`."""
        return self._obstacles.get(turn, NOT_KEPT)

    async def begin(self, turn: str) -> None:
        """A call runs, so its decision is recorded, and what the turn began with. Where a process decided that kept no
        workspaces, that is recorded now."""
        async with self._lock:
            while turn not in self._beginnings:
                try:
                    await self._crossing.run(partial(self._record_beginning, turn))
                    break
                except NotYet:
                    await asyncio.sleep(BUSY_SECONDS)
            self._beginnings[turn] = ()

    async def after(self) -> tuple[KeptState, ...]:
        """What is to be recorded with the result of a call."""
        async with self._lock:
            return (await self._crossing.run(self._take_snapshot),) if self._resource else ()

    async def recorded(self, kept: Sequence[KeptState] | None) -> None:
        """See `WorkspaceKeeper`."""
        for key in list(self._unrecorded) if kept is None else [id(state) for state in kept]:
            if key in self._unrecorded:
                self._unrecorded.pop(key)[1].close()

    def _snapshot_before_turn(self, turn: str) -> tuple[KeptState, ...]:
        try:
            self._resource = workspace_resource(self._log, self._driver, self._session, self._folder)
        except (NotAllowed, InvalidInput):  # whoever acts may not, or the folder is gone: nothing is kept
            self._resource = ""
            self._obstacles[turn] = NOT_KEPT
            return ()
        if self._log.is_worked_on(self._resource):  # from now on nobody begins to, for the turn has its session
            raise NotYet(f"somebody else is working in {self._folder}")
        if self._log.is_begun(turn, self._resource):
            self._obstacles[turn] = None if any(map(self._is_whole_beginning, self._log.tried_in(turn))) else NOT_WHOLE
            return ()
        state, self._obstacles[turn] = self._kept_whole()
        return (state,)

    def _is_whole_beginning(self, snapshot: Snapshot) -> bool:
        is_whole = snapshot.method == WHOLE_METHOD and snapshot.state is SnapshotState.OK
        return is_whole and snapshot.is_before and snapshot.resource == self._resource

    def _record_beginning(self, turn: str) -> None:
        for state in self._snapshot_before_turn(turn):
            self._log.record_snapshot(state.resource, state.taken, run=turn, is_before=True)
            self._unrecorded.pop(id(state))[1].close()

    def _kept_whole(self) -> tuple[KeptState, str | None]:
        """What a turn begins with, and why that is not whole. Where git's folders cannot be kept the files are."""
        if not self._is_whole():
            return self._take_snapshot(is_before=True), NOT_WHOLE
        state = self._take_snapshot(is_before=True, is_whole=True)
        if not isinstance(state.taken, ResourceFailure):
            return state, None
        why = state.taken.message
        self._unrecorded.pop(id(state))[1].close()
        return self._take_snapshot(is_before=True), f"not all of the folder can be kept: {why}"

    def _take_snapshot(self, *, is_before: bool = False, is_whole: bool = False) -> KeptState:
        """Nothing of it is thrown away until it is recorded."""
        taken: NewSnapshot | ResourceFailure
        with ExitStack() as stack:
            try:
                stack.enter_context(self._driver.storing())
                taken = self._driver.take(self._folder, is_whole=is_whole)
            except WeftError as error:
                taken = ResourceFailure(error.code, str(error))
            state = KeptState(resource=self._resource, taken=taken, is_before=is_before)
            self._unrecorded[id(state)] = state, stack.pop_all()
        return state


def workspace_resource(log: ResourceLog, driver: DirectoryDriver, session: str, folder: Path) -> str:
    """The id of the resource that a folder is, which the session owns from now on."""
    found = driver.describe(str(folder))
    known = log.find_at(ResourceKind.DIRECTORY.value, found.place, driver.machine)
    if known is None:
        new = NewResource(
            name=found.name,
            kind=driver.kind,
            place=found.place,
            capabilities=found.capabilities,
            session=session,
            machine=driver.machine,
        )
        return log.declare(new).id
    if known.owner is None or known.owner.id != session:
        log.take_over(known.id, session)
    return known.id


# --- Keeps folders for the turns of other tools: when an import that goes on finds that a turn has ended, the folder
# that its session works in is kept, and recorded as the files of that turn.

MISSED = ResourceFailure("Missed", "another turn had ended before the folder was looked at")


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
    """Keeps these folders while it is entered. `report` hears of each try, from another thread."""

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
        self._thread = threading.Thread(target=self._follow_turns, name="followed folders", daemon=True)

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

    def _follow_turns(self) -> None:
        for folder in self._folders:
            self._report_work(folder, None, partial(self._look_first, folder))
        while turns := self._next_turns():
            for folder in self._folders:
                own = [turn for turn in turns if self._folder_of(turn) is folder]
                if own:
                    self._report_work(folder, own[-1].turn, partial(self._keep_folder, folder, own))

    def _next_turns(self) -> list[EndedTurn]:
        """Those that wait; none once it is closed."""
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._is_closed)
            turns, self._waiting = self._waiting, []
            return turns

    def _report_work(self, folder: _Folder, turn: str | None, work: Callable[[], KeptFolder]) -> None:
        begun = self._clock.monotonic()
        try:
            kept = work()
        except Exception as error:  # whatever it was: people hear of it, and the import goes on
            kept = KeptFolder(folder=str(folder.path), turn=turn, error=f"{type(error).__name__}: {error}"[:500])
        self._report(replace(kept, seconds=self._clock.monotonic() - begun))

    def _look_first(self, folder: _Folder) -> KeptFolder:
        taken = self._take_folder(folder)
        return KeptFolder(
            folder=str(folder.path), turn=None, error=taken.message if isinstance(taken, ResourceFailure) else None
        )

    def _take_folder(self, folder: _Folder) -> NewSnapshot | ResourceFailure:
        """The folder as it is now. What it was like before is not known any more after a failure."""
        try:
            folder.state = self._driver.take(folder.path)
        except WeftError as error:
            folder.state = None
            return ResourceFailure(error.code, str(error))
        return folder.state

    def _keep_folder(self, folder: _Folder, turns: Sequence[EndedTurn]) -> KeptFolder:
        with self._driver.files.hold():  # nothing is removed from the store until all is recorded
            before = folder.state
            taken = self._take_folder(folder)
            for turn in turns[:-1]:
                self._record_snapshot(folder, turn, before, MISSED)
            snapshot = self._record_snapshot(folder, turns[-1], before, taken)
        failed = isinstance(taken, ResourceFailure)
        return KeptFolder(
            folder=str(folder.path),
            turn=turns[-1].turn,
            snapshot=None if failed else snapshot,
            error=taken.message if isinstance(taken, ResourceFailure) else None,
        )

    def _record_snapshot(
        self, folder: _Folder, turn: EndedTurn, before: NewSnapshot | None, taken: NewSnapshot | ResourceFailure
    ) -> str:
        resource = workspace_resource(self._log, self._driver, turn.session, folder.path)
        before = self._beginning_of_turn(turn, before)
        known = self._ledger.resources.snapshots_before_turn(turn.turn)
        trees = {one.external_id for one in known if one.resource == resource}
        if before is not None and before.external_id not in trees and before.external_id in self._driver.files.ids():
            self._log.record_snapshot(resource, before, run=turn.turn, is_before=True)
        self._last[turn.session] = _KeptTurn(turn.turn, before)
        return self._log.record_snapshot(resource, taken, run=turn.turn).id

    def _beginning_of_turn(self, turn: EndedTurn, before: NewSnapshot | None) -> NewSnapshot | None:
        """What a turn began with: what the folder was like before it, or, where it is a longer version of the turn that
        was kept last, what that one began with."""
        last = self._last.get(turn.session)
        if last is None:
            return before
        earlier, now = self._ledger.turn(last.id), self._ledger.turn(turn.turn)
        is_version = not earlier.is_current and earlier.parent_id == now.parent_id
        return last.before if is_version else before
