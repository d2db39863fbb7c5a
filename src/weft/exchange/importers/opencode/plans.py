"""Which messages make one turn: a user's message and every response whose `parentID` names it.

Ids may be missing, repeated or redacted; then a response belongs to the prompt before it, and a turn is known by its
session and its place in it.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from weft.exchange.importers.opencode.rows import HIDDEN, Head

ROLES = frozenset({"user", "assistant", "system"})


class Plan(Struct):
    """A turn to be: numbers of its messages."""

    key: str
    messages: list[int]
    parent: int | None
    is_compaction: bool = False
    is_cut: bool = False
    """A compaction came in the middle of its answer: what follows is another turn."""


class Planner:
    """Takes the messages of a session one after another."""

    def __init__(self, session_id: str, heads: list[Head | None]) -> None:
        self._session, self._heads = session_id, heads
        counted = Counter(head.id for head in heads if head is not None and head.id is not None)
        self._unique = {id for id, times in counted.items() if times == 1 and id != HIDDEN}
        self._ids = frozenset(counted)
        self._prompts: dict[str, int] = {}
        self._prompt: int | None = None
        self._goes_on: dict[int, int] = {}
        self._taken: dict[str, int] = {}
        self.plans: list[Plan] = []
        self.strays: list[int] = []
        """Messages that belong to no turn, since what they are is not known."""
        self.turns: dict[str, int] = {}
        """The turn that a message belongs to, by the message's id."""

    def plan(self) -> list[Plan]:
        for number, head in enumerate(self._heads):
            if head is not None and head.begins is not None:
                self._placed(number, head)
            elif head is not None and head.role == "user":
                self._user(number, head)
            elif head is not None and head.role == "assistant":
                self._assistant(number, head)
            elif head is None or head.role not in ROLES:
                self.strays.append(number)
            elif self.plans:
                self.plans[-1].messages.append(number)
            else:
                self._begin(number, self._name(number))
        for turn, plan in enumerate(self.plans):
            self.turns |= {id: turn for number in plan.messages if (id := self.native(number)) is not None}
        return self.plans

    def native(self, number: int) -> str | None:
        """A message's own id, where it has one that tells it from others."""
        head = self._heads[number]
        return head.id if head is not None and head.id in self._unique else None

    def _name(self, number: int) -> str:
        return self.native(number) or f"{self._session}#{number}"

    def _begin(self, number: int, key: str, is_compaction: bool = False) -> int:
        unique = key
        while unique in self._taken:
            self._taken[key] += 1
            unique = f"{key}~{self._taken[key]}"
        self._taken[unique] = 1
        parent = len(self.plans) - 1 if self.plans else None
        self.plans.append(Plan(unique, [number], parent, is_compaction))
        return len(self.plans) - 1

    def _placed(self, number: int, head: Head) -> None:
        if head.begins or not self.plans:
            self._begin(number, self._name(number), head.is_summary)
        else:
            self.plans[-1].messages.append(number)

    def _user(self, number: int, head: Head) -> None:
        if head.is_notice and self.plans:
            self.plans[-1].messages.append(number)
            return
        self._prompt = self._begin(number, self._name(number), head.compacts)
        if (id := self.native(number)) is not None:
            self._prompts[id] = self._prompt

    def _assistant(self, number: int, head: Head) -> None:
        parent = None if head.parent == HIDDEN else head.parent
        target = self._answered(parent)
        if head.is_summary and (target is None or not self.plans[target].is_compaction):
            self._begin(number, self._name(number), is_compaction=True)
            if target is not None:
                self.plans[target].is_cut = True
        elif target is None:
            target = self._begin(number, parent or self._name(number))
            if parent is not None:
                self._prompts[parent] = target
        elif self.plans[target].is_cut:
            first = self._prompts.get(parent or "", self._prompt)
            again = self._begin(number, f"{self.plans[target].key}#{self._name(number)}")
            self._goes_on[target if first is None else first] = again
        else:
            self.plans[target].messages.append(number)

    def _answered(self, parent: str | None) -> int | None:
        """The turn that a response belongs to. A parent that is not in the file will begin one of its own."""
        if parent is None or (parent in self._ids and parent not in self._prompts):
            turn = self._prompt
        else:
            turn = self._prompts.get(parent)
        return None if turn is None else self._goes_on.get(turn, turn)
