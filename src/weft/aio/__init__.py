"""The asynchronous mirror of the public API: the same verbs, awaited. docs/python.md says how.

`make docs` writes this module from the synchronous API, and a test compares the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from datetime import UTC, tzinfo
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.aio import crossing
from weft.aio.ledger import AsyncLedger
from weft.aio.open_ledger import AsyncOpenLedger, SharedInference
from weft.aio.programs import AsyncPrograms
from weft.kernel.clock import Clock, RandomBytes, system_random
from weft.ledger.api.base import LEASE_TTL
from weft.surfaces import opening
from weft.surfaces.opening import StagedProgress, environment_variable

if TYPE_CHECKING:
    from weft.kernel.authority import Authority
    from weft.ledger.api import RepositoryOf
    from weft.ledger.upkeep.ledger_copy import CopyResult, SalvageResult
    from weft.store.port import Diagnosis, Progress
    from weft.store.replicas import TrustStore
    from weft.store.sqlite.examination import RestoreResult


class Opening:
    """A ledger on its way: `async with open(…) as ledger`, or `ledger = await open(…)` and `await ledger.close()`."""

    def __init__(self, threads: int, arguments: dict[str, Any]) -> None:
        self._threads, self._arguments = threads, arguments
        self._ledger: AsyncOpenLedger | None = None

    def __await__(self) -> Generator[Any, None, AsyncOpenLedger]:
        return self._open().__await__()

    async def _open(self) -> AsyncOpenLedger:
        pool = crossing.Pool(self._threads)
        step = pool.start(partial(opening.open, **self._arguments))
        try:
            return AsyncOpenLedger(await asyncio.shield(step), pool, SharedInference(self._arguments["variable"]))
        except BaseException:  # also a cancelled task leaves no ledger open
            await asyncio.wait({step})
            failed = step.cancelled() or step.exception() is not None
            await pool.close((lambda: None) if failed else step.result().close)
            raise

    async def __aenter__(self) -> AsyncOpenLedger:
        self._ledger = await self._open()
        return self._ledger

    async def __aexit__(self, *_: object) -> None:
        if self._ledger is not None:
            await self._ledger.close()


def open(
    path: str | Path,
    *,
    create: bool = True,
    read_only: bool = False,
    accept_rollback: bool = False,
    clock: Clock | None = None,
    random_bytes: RandomBytes = system_random,
    lease_ttl: float = LEASE_TTL,
    zone: tzinfo = UTC,
    variable: Callable[[str], str | None] | None = environment_variable,
    trust: TrustStore | None = None,
    acting_as: Authority | str | None = None,
    repository_of: RepositoryOf | None = None,
    progress: StagedProgress | None = None,
    threads: int = crossing.THREADS,
) -> Opening:
    """Open the ledger at `path`, or make one there; ":memory:" lives as long as the ledger is open. In a PostgreSQL
    database it is a schema: `postgresql://user@host:port/database?ledger=NAME`. `variable` looks up the variables that
    programs name and that keys are kept in: those of the environment, unless it is another function; with None none is
    set. `trust` knows which ledgers a person trusts: another one can be read and recorded in, and nothing else; a new
    one joins them. `acting_as` names somebody in whose name it is read and changed, as `Ledger.acting_as` does.
    `repository_of` gives the repository of a folder, so that its worktrees are one project; without it, only what
    sessions recorded is used. `progress` is told how far it is with the views that an older version computed by other
    rules, which are made anew once.

    At most so many `threads` work for it at once."""
    return Opening(
        threads,
        {
            "path": path,
            "create": create,
            "read_only": read_only,
            "accept_rollback": accept_rollback,
            "clock": clock,
            "random_bytes": random_bytes,
            "lease_ttl": lease_ttl,
            "zone": zone,
            "variable": variable,
            "trust": trust,
            "acting_as": acting_as,
            "repository_of": repository_of,
            "progress": progress,
        },
    )


async def copy(
    source: str | Path | AsyncLedger,
    target: str | Path,
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
    beside: Callable[[], object] | None = None,
) -> CopyResult:
    """Copy a ledger, by its address or open, to a new address, on whatever backend: same facts, same order, same
    digests, a replica id of its own. One that was cut short is run again and goes on where it was. `beside` is called
    before the copy counts as finished, so that what belongs beside it is there first."""
    return await crossing.alone(
        partial(
            opening.copy,
            source=source._sync if isinstance(source, AsyncLedger) else source,
            target=target,
            progress=crossing.in_event_loop(progress),
            clock=clock,
            beside=beside,
        )
    )


def examine(path: str | Path, *, full: bool = False, clock: Clock | None = None) -> AsyncIterator[Diagnosis]:
    """What is wrong with the ledger at `path` and what to do about it, in whatever state it is, without changing a byte
    of it. Quick, unless `full` verifies everything."""
    return crossing.each_alone(partial(opening.examine, path=path, full=full, clock=clock))


async def restore(
    backup: str | Path,
    path: str | Path,
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
    beside: Callable[[], object] | None = None,
) -> RestoreResult:
    """Put a backup in the place of the ledger at `path`, which nobody has open. What lay there is moved aside. `beside`
    is called before that, once the copy is written: what belongs beside the ledger is then there first."""
    return await crossing.alone(
        partial(
            opening.restore,
            backup=backup,
            path=path,
            progress=crossing.in_event_loop(progress),
            clock=clock,
            beside=beside,
        )
    )


async def salvage(
    damaged: str | Path,
    new: str | Path,
    *,
    others: Sequence[str | Path] = (),
    progress: StagedProgress | None = None,
    clock: Clock | None = None,
) -> SalvageResult:
    """Make a new ledger of everything that still verifies in a damaged file, and in `others`: older copies of it, whose
    facts fill the holes. None of them is touched."""
    return await crossing.alone(
        partial(
            opening.salvage,
            damaged=damaged,
            new=new,
            others=others,
            progress=crossing.in_event_loop(progress),
            clock=clock,
        )
    )


__all__ = ["AsyncLedger", "AsyncOpenLedger", "AsyncPrograms", "copy", "examine", "open", "restore", "salvage"]
