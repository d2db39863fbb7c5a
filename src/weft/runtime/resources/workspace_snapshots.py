"""The files of a turn: its workspace is kept before the first call that may change it, and after each such call.

What it was like before is recorded with the decision that the call may run, and so before it runs: whoever dies in the
middle of a call leaves that. What it was like after is recorded with the result. A folder belongs to the session that
works in it: another one that begins to takes it over, and that is recorded. What cannot be kept is recorded as that,
and stands in nobody's way. For whoever may not change resources nothing is kept. While somebody restores the folder, or
keeps it, a call that may change it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from weft.kernel.enums import ResourceKind
from weft.kernel.errors import InvalidInput, NotAllowed, WeftError
from weft.ledger.api import Failure, KeptState, Ledger, NewResource, NewSnapshot, ResourceLog
from weft.runtime.broker.tools import BUSY_SECONDS, NotYet
from weft.runtime.resources.directory_driver import DirectoryDriver
from weft.runtime.turns.ledger_port import Crossing


class WorkspaceSnapshots:
    """Keeps one workspace for the turns of one session, by its id."""

    def __init__(self, ledger: Ledger, crossing: Crossing, driver: DirectoryDriver, session: str, folder: Path) -> None:
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
            return ()
        if self._log.is_worked_on(self._resource):  # from now on nobody begins to, for the turn has its session
            raise NotYet(f"somebody else is working in {self._folder}")
        return () if self._log.is_begun(turn, self._resource) else (self._kept(is_before=True),)

    def _record_beginning(self, turn: str) -> None:
        for state in self._beginning(turn):
            self._log.record_snapshot(state.resource, state.taken, run=turn, is_before=True)
            self._unrecorded.pop(id(state))[1].close()

    def _kept(self, *, is_before: bool = False) -> KeptState:
        """Nothing of it is thrown away until it is recorded."""
        taken: NewSnapshot | Failure
        with ExitStack() as stack:
            try:
                stack.enter_context(self._driver.storing())
                taken = self._driver.take(self._folder)
            except WeftError as error:
                taken = Failure(type(error).__name__, str(error))
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
