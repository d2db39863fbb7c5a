"""From a tree of messages to turns: a prompt with all that answers it, up to the next prompt.

A branch that leaves in the middle of an answer is another answer to the same prompt: it begins with what both share.
A prompt that hangs in the middle of an answer follows that answer as far as it had come.
"""

from __future__ import annotations

from enum import Enum, auto

from msgspec import Struct

LONGEST_SHARED = 256
"""An answer that leaves another one later than this is told as its continuation, not with all that led to it."""


class Part(Enum):
    """What a message is to the turns."""

    PROMPT = auto()
    """A turn begins, unless nothing was asked or answered yet."""
    ANSWER = auto()
    OTHER = auto()
    """Belongs to whatever it stands in."""


class Plan(Struct):
    """A turn to be: its messages, of which the first `shared` belong to an earlier answer too."""

    nodes: list[str]
    parent: int | None
    shared: int = 0
    begun: int | None = None
    """The place of the first message that asks or answers."""
    is_followed: bool = False


class _Place(Struct, frozen=True):
    """After `depth` messages of a turn."""

    turn: int
    depth: int


class Tree:
    """Takes messages one after another, parents first."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self._places: dict[str, _Place] = {}
        self._cuts: dict[_Place, int] = {}

    def __contains__(self, node: str) -> bool:
        return node in self._places

    def turn_of(self, node: str) -> int:
        """The turn that ends with this message, or that had come as far first."""
        place = self._places[node]
        return self._cuts.get(place, place.turn)

    def add(self, node: str, parent: str | None, part: Part) -> None:
        """A message under another; one that is known already stays where it is."""
        if node in self._places:
            return
        place = None if parent is None else self._places.get(parent)
        self._places[node] = self._begin(node, None, part) if place is None else self._grow(place, node, part)

    def _begin(self, node: str, parent: int | None, part: Part) -> _Place:
        begun = None if part is Part.OTHER else 0
        self.plans.append(Plan([node], parent, begun=begun))
        return _Place(len(self.plans) - 1, 1)

    def _grow(self, place: _Place, node: str, part: Part) -> _Place:
        plan = self.plans[place.turn]
        is_tip = place.depth == len(plan.nodes)
        is_begun = plan.begun is not None and plan.begun < place.depth
        if part is Part.PROMPT and is_begun:
            owner = place.turn if is_tip else self._cut(place)
            self.plans[owner].is_followed = True
            return self._begin(node, owner, part)
        if is_tip and not plan.is_followed:
            plan.nodes.append(node)
            if plan.begun is None and part is not Part.OTHER:
                plan.begun = place.depth
            return _Place(place.turn, place.depth + 1)
        if place.depth > LONGEST_SHARED:
            plan.is_followed = True
            return self._begin(node, place.turn, part)
        return self._branch(plan, place.depth, [node], part)

    def _branch(self, plan: Plan, depth: int, more: list[str], part: Part) -> _Place:
        begun = plan.begun if plan.begun is not None and plan.begun < depth else None
        if begun is None and more and part is not Part.OTHER:
            begun = depth
        self.plans.append(Plan([*plan.nodes[:depth], *more], plan.parent, depth, begun))
        return _Place(len(self.plans) - 1, depth + len(more))

    def _cut(self, place: _Place) -> int:
        """A turn that ends here."""
        if place.depth > LONGEST_SHARED:
            return place.turn
        if place not in self._cuts:
            made = self._branch(self.plans[place.turn], place.depth, [], Part.OTHER)
            self._cuts[place] = made.turn
        return self._cuts[place]
