"""The graph of a ledger, awaited.

`make docs` writes this module from the synchronous API, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.aio import crossing
from weft.graph.graph import FEW_PATHS, GRAPH_ORIGIN, LIMIT, LONGEST_PATH, Graph, When

if TYPE_CHECKING:
    from weft.aio.ledger import AsyncLedger
    from weft.graph.edge_reader import (
        Ancestry,
        CallPair,
        GraphNode,
        GraphWalk,
        Neighbours,
        PathsFound,
        PolicyStep,
        ResourceState,
        RunHistory,
    )
    from weft.graph.event_lines import IngestedEvents


class AsyncGraph(crossing.Mirror["Graph"]):
    """`ledger.graph`: nodes, edges and the questions about them. What may not be read is not in any answer."""

    _sync: Graph

    def __init__(self, ledger: AsyncLedger) -> None:
        super().__init__(Graph(ledger._sync), ledger._pool)
        self.ledger = ledger

    async def catch_up(self, *, progress: Any = None) -> None:
        """Bring the graph up to the newest fact. Every other verb does that first; this one tells how far it is."""
        await self._run(partial(self._sync.catch_up, progress=crossing.in_event_loop(progress)))

    async def node(self, name: str, *, known_at: When = None) -> GraphNode:
        """A node, by its name. With `known_at` as it was known then, which takes as long as making the views anew up to
        that time; raises NotFound for one that was not known yet."""
        return await self._run(partial(self._sync.node, name=name, known_at=known_at))

    async def neighbours(
        self,
        name: str,
        types: Sequence[str] = (),
        *,
        direction: str = "both",
        at: When = None,
        known_at: When = None,
        limit: int = LIMIT,
    ) -> Neighbours:
        """The edges of a node, of these types or all, that lead from it (`out`), to it (`in`) or both."""
        return await self._run(
            partial(
                self._sync.neighbours,
                name=name,
                types=types,
                direction=direction,
                at=at,
                known_at=known_at,
                limit=limit,
            )
        )

    async def path(
        self,
        start: str,
        end: str,
        types: Sequence[str] = (),
        *,
        at: When = None,
        known_at: When = None,
        limit: int = FEW_PATHS,
        longest: int = LONGEST_PATH,
    ) -> PathsFound:
        """The ways between two nodes that tell most, whichever way the edges lead, of at most `longest` edges: an edge
        costs more where it is one of many, and the ways that cost least are given."""
        return await self._run(
            partial(
                self._sync.path,
                start=start,
                end=end,
                types=types,
                at=at,
                known_at=known_at,
                limit=limit,
                longest=longest,
            )
        )

    async def history(self, run: str, *, known_at: When = None, limit: int = LIMIT) -> RunHistory:
        """The events of a turn in order."""
        return await self._run(partial(self._sync.history, run=run, known_at=known_at, limit=limit))

    async def lineage(self, name: str, *, at: When = None, known_at: When = None, limit: int = LIMIT) -> GraphWalk:
        """What a node was derived from, step by step."""
        return await self._run(partial(self._sync.lineage, name=name, at=at, known_at=known_at, limit=limit))

    async def calls(self, name: str, *, known_at: When = None, limit: int = LIMIT) -> list[CallPair]:
        """The tool calls of a turn or of an answer, each with its results."""
        return await self._run(partial(self._sync.calls, name=name, known_at=known_at, limit=limit))

    async def resources(
        self, name: str | None = None, *, at: When = None, known_at: When = None, limit: int = LIMIT
    ) -> list[ResourceState]:
        """Who owned, used and mounted resources at a time, by default now: all resources, one, or those of a turn, a
        session or an agent."""
        return await self._run(partial(self._sync.resources, name=name, at=at, known_at=known_at, limit=limit))

    async def policies(
        self, name: str | None = None, *, at: When = None, known_at: When = None, limit: int = LIMIT
    ) -> list[PolicyStep]:
        """Which approval policies were proposed and active, and for how long: all, one, or those of an agent. With `at`
        those that were then."""
        return await self._run(partial(self._sync.policies, name=name, at=at, known_at=known_at, limit=limit))

    async def ancestry(self, name: str, *, known_at: When = None, limit: int = LIMIT) -> Ancestry:
        """Of which sessions a session is a fork or a subagent, and they in turn; of a turn, those of its session."""
        return await self._run(partial(self._sync.ancestry, name=name, known_at=known_at, limit=limit))

    async def emit(self, target: str | Path | Any, *, turn: str | None = None) -> int:
        """Write events in the shapes of the agent graph's schema, as JSON lines to a new file or an open binary one:
        all of them, or those of a turn's thread. Each carries its stream, what it follows and the salts of its texts,
        so that `ingest` can hold it against its id. Returns the number of lines."""
        return await self._run(partial(self._sync.emit, target=target, turn=turn))

    async def ingest(
        self, events: str | Path | Iterable[bytes | str | dict[str, Any]], *, origin: str = GRAPH_ORIGIN
    ) -> IngestedEvents:
        """Take events in: of a file of JSON lines, or as they are given. One that carries what `emit` writes is held
        against its id. Of other programs' events, runs become imported turns of this origin, known by their native ids,
        and others become nodes and edges. One that is bad is refused with its line, and nothing is written. What comes
        in has no authority."""
        return await self._run(partial(self._sync.ingest, events=events, origin=origin))
