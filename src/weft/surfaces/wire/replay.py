"""Answers about threads that were run again."""

from __future__ import annotations

from msgspec import Struct, field

from weft.runtime.recorded_threads import ReplaySpending
from weft.runtime.thread_replay import PolicyReplay, ThreadReplay


class ReplayReport(Struct, kw_only=True):
    """`replay`: how threads went when they were run again, each and together."""

    threads: list[ThreadReplay] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)
    """How many threads ended how."""
    recorded_spending: ReplaySpending = field(default_factory=ReplaySpending)
    """Of the exchanges that were replayed."""
    replayed_spending: ReplaySpending = field(default_factory=ReplaySpending)

    def add(self, thread: ThreadReplay) -> None:
        self.threads.append(thread)
        self.outcomes[thread.outcome] = self.outcomes.get(thread.outcome, 0) + 1
        self.recorded_spending.add(thread.recorded_spending)
        self.replayed_spending.add(thread.replayed_spending)


class PolicyReplayReport(Struct, kw_only=True):
    """`replay --policy`: how a policy would have decided about the calls of threads."""

    policy: str
    threads: list[PolicyReplay] = field(default_factory=list)
    calls: int = 0
    changed: int = 0

    def add(self, thread: PolicyReplay) -> None:
        self.threads.append(thread)
        self.calls += thread.calls
        self.changed += thread.changed
