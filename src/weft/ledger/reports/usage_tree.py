"""What a turn has cost with everything that it started: its workers' turns, and those of their workers.

Every response counts once, for the turn that it was seen in first. Subagents of imported sessions are workers here,
wherever their session names the turn that started it.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timezone
from functools import cached_property

from msgspec import Struct

from weft.ledger.reports.counted_turns import counted_response
from weft.ledger.reports.responses import reported_in
from weft.ledger.reports.spending import Spending, Sums, Tally, UnpricedModel
from weft.ledger.reports.usage import Prices, Survey
from weft.ledger.views.rows import TurnRow, load_session_number
from weft.ledger.views.values import text_of
from weft.store.port import ReadTxn
from weft.store.sql import Row, rows_in


class TurnUsage(Struct, frozen=True, kw_only=True):
    """One turn: what it cost itself, and with its workers."""

    turn: str
    status: str
    own: Spending
    total: Spending
    workers: tuple[WorkerUsage, ...] = ()


class WorkerUsage(Struct, frozen=True, kw_only=True):
    """A session that a turn started, with all of its turns."""

    session: str
    session_id: str
    task: str | None
    total: Spending
    turns: tuple[TurnUsage, ...]


class UsageTree(Struct, frozen=True, kw_only=True):
    """What a turn has cost with its workers' turns and theirs."""

    session: str | None
    root: TurnUsage
    turns: int
    """How many there are in the tree."""
    unpriced: tuple[UnpricedModel, ...]
    prices_as_of: str | None
    prices_from: str | None


class _TurnTree:
    """The turns below one, by the sessions that it started, and the tallies of them all."""

    def __init__(self, txn: ReadTxn) -> None:
        self._sql = txn.sql
        self.sessions: dict[str, list[Row]] = defaultdict(list)
        """By turn those that it started."""
        self.seen: dict[str, None] = {}
        """The turns, in the order in which they were found."""
        self.sums = Sums()

    @cached_property
    def turns(self) -> dict[int, list[Row]]:
        """Of all sessions that a turn started: a session's turns are not indexed, so they are read at once."""
        found: dict[int, list[Row]] = defaultdict(list)
        for n, id, status in self._sql.all(
            "SELECT session, id, status FROM turn WHERE session IN"
            " (SELECT n FROM session WHERE parent_turn IS NOT NULL) ORDER BY n"
        ):
            found[n].append((str(id), str(status)))
        return found

    def find(self, turn: str) -> None:
        """Note every turn below one, each once, whatever sessions name as their parents."""
        query = "SELECT n, id, label, task, parent_turn FROM session WHERE parent_turn IN"
        level = {turn: None}
        while level:
            self.seen |= level
            started = sorted(rows_in(self._sql, query, level))
            for *session, parent in started:
                self.sessions[parent].append(tuple(session))
            below = dict.fromkeys(id for session in started for id, _ in self.turns[session[0]])
            level = {id: None for id in below if id not in self.seen}

    def node(self, txn: ReadTxn, turn: str, status: str, above: frozenset[str]) -> tuple[TurnUsage, Tally]:
        """A turn with what it started, and the sum of it all."""
        own = self.sums.by_key.get(turn) or Tally()
        total, workers, above = Tally(), list[WorkerUsage](), above | {turn}
        total.add_tally(own)
        for n, id, label, task in self.sessions[turn]:
            nodes = [self.node(txn, below, state, above) for below, state in self.turns[n] if below not in above]
            spent = Tally()
            for _, tally in nodes:
                spent.add_tally(tally)
            total.add_tally(spent)
            workers.append(
                WorkerUsage(
                    session=label,
                    session_id=id,
                    task=None if task is None else text_of(txn, task),
                    total=spent.spending(),
                    turns=tuple(node for node, _ in nodes),
                )
            )
        usage = TurnUsage(turn=turn, status=status, own=own.spending(), total=total.spending(), workers=tuple(workers))
        return usage, total


def usage_tree(txn: ReadTxn, root: TurnRow, prices: Prices) -> UsageTree:
    """What a turn and everything below it cost."""
    survey = Survey(txn, timezone.utc, prices)  # noqa: UP017 - the alias hides what it is
    tree = _TurnTree(txn)
    tree.find(root.id)
    for response in survey.responses_of(list(reported_in(txn.sql, tree.seen))):
        if response.first.turn.id in tree.seen:
            survey.add(tree.sums, response.first.turn.id, counted_response(response))
    session = None if root.session is None else load_session_number(txn.sql, root.session)
    usage, _ = tree.node(txn, root.id, root.status, frozenset())
    return UsageTree(
        session=None if session is None else session.label,
        root=usage,
        turns=len(tree.seen),
        unpriced=tree.sums.unpriced(),
        prices_as_of=survey.as_of,
        prices_from=survey.prices.source,
    )
