"""The files of a turn: its workspace is kept before the first call that may change it, and after each such call.

What was kept is recorded with the result of the call, in the same transaction. A folder belongs to the session that
works in it: another one that begins to takes it over, and that is recorded. What cannot be kept is recorded as that,
and stands in nobody's way. For whoever may not change resources nothing is kept.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from weft.kernel.enums import ResourceKind
from weft.kernel.errors import InvalidInput, NotAllowed, WeftError
from weft.ledger.api import Failure, KeptState, Ledger, NewResource, ResourceLog
from weft.runtime.resources.directory_driver import DirectoryDriver
from weft.runtime.turns.ledger_port import Crossing


class WorkspaceSnapshots:
    """Keeps one workspace for the turns of one session, by its id."""

    def __init__(self, ledger: Ledger, crossing: Crossing, driver: DirectoryDriver, session: str, folder: Path) -> None:
        self._log, self._crossing, self._driver = ResourceLog(ledger), crossing, driver
        self._session, self._folder = session, folder
        self._lock = asyncio.Lock()
        self._seen: set[str] = set()
        """Turns whose beginning is kept, or was by another broker."""
        self._waiting: list[KeptState] = []
        self._resource = ""
        """Its id; empty where nothing may be kept."""

    async def before(self, turn: str) -> None:
        """Keep the workspace as it is before a call of a turn, if it is the first that may change it."""
        async with self._lock:
            if turn not in self._seen:
                await self._crossing.run(partial(self._keep_beginning, turn))
                self._seen.add(turn)

    async def after(self) -> tuple[KeptState, ...]:
        """What is to be recorded with the result of a call."""
        async with self._lock:
            if not self._resource:
                return ()
            state = await self._crossing.run(self._kept)
            kept, self._waiting = (*self._waiting, state), []
            return kept

    def _keep_beginning(self, turn: str) -> None:
        try:
            self._resource = workspace_resource(self._log, self._driver, self._session, self._folder)
        except (NotAllowed, InvalidInput):  # whoever acts may not, or the folder is gone: nothing is kept
            self._resource = ""
            return
        if not self._log.is_kept(turn):
            self._waiting = [self._kept(is_before=True)]

    def _kept(self, *, is_before: bool = False) -> KeptState:
        try:
            return KeptState(resource=self._resource, taken=self._driver.take(self._folder), is_before=is_before)
        except WeftError as error:
            failure = Failure(type(error).__name__, str(error))
            return KeptState(resource=self._resource, taken=failure, is_before=is_before)


def workspace_resource(log: ResourceLog, driver: DirectoryDriver, session: str, folder: Path) -> str:
    """The id of the resource that a folder is, which the session owns from now on."""
    found = driver.describe(str(folder))
    known = log.find_at(ResourceKind.DIRECTORY.value, found.place)
    if known is None:
        new = NewResource(
            name=found.name, kind=driver.kind, place=found.place, capabilities=found.capabilities, session=session
        )
        return log.declare(new).id
    if known.owner is None or known.owner.id != session:
        log.take_over(known.id, session)
    return known.id
