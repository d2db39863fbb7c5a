"""From a tree of messages to turns: a prompt with all that answers it, up to the next prompt.

A branch that leaves in the middle of an answer is another answer to the same prompt: it begins with what both share.
A prompt that hangs in the middle of an answer follows that answer as far as it had come; in a tree whose answers stay
whole, all of it: so the first origins with trees were mapped, and what was imported keeps its digests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Put there by nobody who asks or answers: it belongs to whatever it stands in."""
    NOTHING = auto()
    """It says nothing: what follows it follows its parent."""


class PlannedBranch(Struct):
    """A turn to be: its messages, of which the first `shared` belong to an earlier answer too."""

    nodes: list[str]
    parent: int | None
    shared: int = 0
    begun: int | None = None
    """The place of the first message that asks or answers."""
    prompt: str | None = None
    leaves: str | None = None
    """The message that the answer is known by which this one leaves."""
    is_followed: bool = False


class _Place(Struct, frozen=True):
    """After `depth` messages of a turn."""

    turn: int
    depth: int


class Tree:
    """Takes messages one after another, parents first."""

    def __init__(self, *, whole_answers: bool = False) -> None:
        self._whole = whole_answers
        self.plans: list[PlannedBranch] = []
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
        if part is not Part.NOTHING:
            place = self._begin(node, None, part) if place is None else self._grow(place, node, part)
        if place is not None:
            self._places[node] = place

    def _begin(self, node: str, parent: int | None, part: Part, leaves: str | None = None) -> _Place:
        begun = None if part is Part.OTHER else 0
        prompt = node if part is Part.PROMPT else None
        self.plans.append(PlannedBranch([node], parent, begun=begun, prompt=prompt, leaves=leaves))
        return _Place(len(self.plans) - 1, 1)

    def _grow(self, place: _Place, node: str, part: Part) -> _Place:
        plan = self.plans[place.turn]
        is_tip = place.depth == len(plan.nodes)
        if part is Part.PROMPT and self._is_begun(plan, place.depth):
            owner = place.turn if is_tip or self._whole else self._cut(place)
            self.plans[owner].is_followed = not self._whole
            return self._begin(node, owner, part)
        if is_tip and not plan.is_followed:
            plan.nodes.append(node)
            if plan.begun is None and part is not Part.OTHER:
                plan.begun = place.depth
                plan.prompt = node if part is Part.PROMPT else None
            return _Place(place.turn, place.depth + 1)
        if place.depth > LONGEST_SHARED:
            plan.is_followed = not self._whole
            return self._begin(node, place.turn, part, known_by(plan))
        return self._branch(plan, place.depth, [node], part)

    def _is_begun(self, plan: PlannedBranch, depth: int) -> bool:
        """Has anybody asked or answered so far; in a whole answer: at all?"""
        if self._whole:
            return plan.begun is not None or depth < len(plan.nodes)
        return plan.begun is not None and plan.begun < depth

    def _branch(self, plan: PlannedBranch, depth: int, more: list[str], part: Part) -> _Place:
        begun = plan.begun if plan.begun is not None and plan.begun < depth else None
        if begun is None and more and part is not Part.OTHER:
            begun = depth
        nodes = [*plan.nodes[:depth], *more]
        self.plans.append(PlannedBranch(nodes, plan.parent, depth, begun, leaves=known_by(plan)))
        return _Place(len(self.plans) - 1, depth + len(more))

    def _cut(self, place: _Place) -> int:
        """A turn that ends here."""
        if place.depth > LONGEST_SHARED:
            return place.turn
        if place not in self._cuts:
            made = self._branch(self.plans[place.turn], place.depth, [], Part.OTHER)
            self._cuts[place] = made.turn
        return self._cuts[place]


def known_by(plan: PlannedBranch) -> str:
    """Its prompt, or its first message; of an answer that leaves another, the other's."""
    return plan.leaves or plan.prompt or plan.nodes[0]


def keys_of(plans: Sequence[PlannedBranch], name: Callable[[str], str]) -> list[str]:
    """What each turn goes by: of several answers to a prompt the first goes by the prompt's name, the others by it and
    by the first message of their own."""
    taken: dict[str, int] = {}
    keys: list[str] = []
    for plan in plans:
        key = name(known_by(plan))
        if plan.leaves is not None:
            key = f"{key}#{name(plan.nodes[min(plan.shared, len(plan.nodes) - 1)])}"
        own = key
        while own in taken:
            taken[key] += 1
            own = f"{key}~{taken[key]}"
        taken[own] = 1
        keys.append(own)
    return keys


def ends_of(tree: Tree, order: Sequence[str], last: str | None, size: int) -> list[int]:
    """How far each turn goes into the bytes of its conversation: all the way for the one that the conversation stands
    on, `last`; else by the place of its last message."""
    head = tree.turn_of(last) if last is not None and last in tree else None
    places = {node: number for number, node in enumerate(order, 1)}
    return [
        size if number == head else min(max(places[node] for node in plan.nodes), max(size - 1, 0))
        for number, plan in enumerate(tree.plans)
    ]


def in_order(parents: dict[str, str | None], children: Callable[[str], list[str]]) -> list[str]:
    """Every node after its parent, branch by branch; those whose parent is not there, or leads back to them, begin a
    tree."""
    roots = [id for id, parent in parents.items() if parent is None or parent not in parents]
    order: list[str] = []
    seen: set[str] = set()
    for start in [*roots, *parents]:  # what no root leads to comes last
        waiting = [start]
        while waiting:
            id = waiting.pop()
            if id in seen:
                continue
            seen.add(id)
            order.append(id)
            waiting += reversed([child for child in children(id) if child in parents and child not in seen])
    return order
