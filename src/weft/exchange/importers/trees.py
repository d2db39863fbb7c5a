"""Turns of a conversation whose messages form a tree: every prompt begins one, and a second answer to the same prompt
is another turn beside the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any

from msgspec import Struct

LONGEST_SHARED = 256
"""An answer that leaves another one later than this is told as its continuation, not with all that led to it."""


class Standing(Enum):
    """What a message is to the turns of its conversation."""

    PROMPT = auto()
    INJECTED = auto()
    """Put there by no person: it belongs to the turn under way, or begins one if none is."""
    ANSWER = auto()
    NOTHING = auto()
    """It says nothing: what follows it follows its parent."""


class Node(Struct, frozen=True, gc=False):
    name: str
    """By which a turn that begins with it is known."""
    parent: int | None
    standing: Standing


class Plan(Struct):
    """A turn to be: its nodes, of which the first `shared` belong to an earlier answer to the same prompt too."""

    nodes: list[int]
    parent: int | None
    shared: int = 0
    prompt: int | None = None
    continues: str | None = None
    is_begun: bool = False
    key: str = ""


class Turns(Struct):
    plans: list[Plan]
    of: list[int | None]
    """The turn that each node belongs to, or follows."""


def turns_of(nodes: Sequence[Node]) -> Turns:
    """Nodes come after their parents; of several answers to a prompt the first goes by the prompt's name."""
    plans: list[Plan] = []
    places: list[tuple[int | None, int]] = []
    for number, node in enumerate(nodes):
        place = (None, 0) if node.parent is None else places[node.parent]
        if node.standing is not Standing.NOTHING:
            turn = _turn(plans, place, node, nodes)
            plan = plans[turn]
            plan.nodes.append(number)
            if node.standing is Standing.PROMPT and plan.prompt is None:
                plan.prompt = number
            plan.is_begun |= node.standing is not Standing.INJECTED
            place = (turn, len(plan.nodes))
        places.append(place)
    _name(plans, nodes)
    return Turns(plans, [turn for turn, _ in places])


def _turn(plans: list[Plan], place: tuple[int | None, int], node: Node, nodes: Sequence[Node]) -> int:
    """The turn that a node belongs to: the one it follows, or a new one."""
    turn, depth = place
    if turn is None:
        return _begin(plans, None)
    plan = plans[turn]
    is_tip = depth == len(plan.nodes)
    if node.standing is Standing.PROMPT:
        return _begin(plans, turn) if plan.is_begun or not is_tip else turn
    if is_tip:
        return turn
    if depth > LONGEST_SHARED:
        return _begin(plans, turn, continues=_key(plan, nodes))
    return _begin(
        plans,
        plan.parent,
        nodes=plan.nodes[:depth],
        shared=depth,
        continues=_key(plan, nodes),
        prompt=plan.prompt if plan.prompt in plan.nodes[:depth] else None,
        is_begun=any(nodes[each].standing is not Standing.INJECTED for each in plan.nodes[:depth]),
    )


def _begin(plans: list[Plan], parent: int | None, **what: Any) -> int:
    plans.append(Plan(**{"nodes": [], "parent": parent, **what}))
    return len(plans) - 1


def _key(plan: Plan, nodes: Sequence[Node]) -> str:
    if plan.continues is not None:
        return plan.continues
    return nodes[plan.nodes[0] if plan.prompt is None else plan.prompt].name


def _name(plans: list[Plan], nodes: Sequence[Node]) -> None:
    taken: dict[str, int] = {}
    for plan in plans:
        key = _key(plan, nodes)
        if plan.continues is not None:
            key = f"{key}#{nodes[plan.nodes[plan.shared]].name}"
        plan.key = key
        while plan.key in taken:
            taken[key] += 1
            plan.key = f"{key}~{taken[key]}"
        taken[plan.key] = 1


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
