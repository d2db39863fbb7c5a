"""The files of a turn: its workspace is kept before the first call that may change it, and after each such call.

What it was like before is recorded with the decision that the call may run, and so before it runs: whoever dies in the
middle of a call leaves that. What it was like after is recorded with the result. A folder belongs to the session that
works in it: another one that begins to takes it over, and that is recorded. What cannot be kept is recorded as that,
and stands in nobody's way. For whoever may not change resources nothing is kept. While somebody restores the folder, or
keeps it, a call that may change it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from weft.kernel.enums import ResourceKind, SnapshotState
from weft.kernel.errors import InvalidInput, NotAllowed, WeftError
from weft.ledger.api import Failure, KeptState, Ledger, NewResource, NewSnapshot, ResourceLog, Snapshot
from weft.runtime.broker.tools import BUSY_SECONDS, NotYet
from weft.runtime.resources.directory_driver import WHOLE_METHOD, DirectoryDriver
from weft.runtime.turns.ledger_port import Crossing

NOT_KEPT = "the folder is not kept, so nothing could be given back"
NOT_WHOLE = "the turn began before the folder was trusted, so git's folders and ignored files are not kept"


class WorkspaceSnapshots:
    """Keeps one workspace for the turns of one session, by its id."""

    def __init__(
        self,
        ledger: Ledger,
        crossing: Crossing,
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
                self._beginnings[turn] = await self._crossing.run(partial(self._beginning, turn))
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
            return (await self._crossing.run(self._kept),) if self._resource else ()

    async def recorded(self, kept: Sequence[KeptState] | None) -> None:
        """See `WorkspaceKeeper`."""
        for key in list(self._unrecorded) if kept is None else [id(state) for state in kept]:
            if key in self._unrecorded:
                self._unrecorded.pop(key)[1].close()

    def _beginning(self, turn: str) -> tuple[KeptState, ...]:
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
        for state in self._beginning(turn):
            self._log.record_snapshot(state.resource, state.taken, run=turn, is_before=True)
            self._unrecorded.pop(id(state))[1].close()

    def _kept_whole(self) -> tuple[KeptState, str | None]:
        """What a turn begins with, and why that is not whole. Where git's folders cannot be kept the files are."""
        if not self._is_whole():
            return self._kept(is_before=True), NOT_WHOLE
        state = self._kept(is_before=True, is_whole=True)
        if not isinstance(state.taken, Failure):
            return state, None
        why = state.taken.message
        self._unrecorded.pop(id(state))[1].close()
        return self._kept(is_before=True), f"not all of the folder can be kept: {why}"

    def _kept(self, *, is_before: bool = False, is_whole: bool = False) -> KeptState:
        """Nothing of it is thrown away until it is recorded."""
        taken: NewSnapshot | Failure
        with ExitStack() as stack:
            try:
                stack.enter_context(self._driver.storing())
                taken = self._driver.take(self._folder, is_whole=is_whole)
            except WeftError as error:
                taken = Failure(error.code, str(error))
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
