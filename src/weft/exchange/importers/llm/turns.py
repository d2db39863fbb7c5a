"""Turns of one conversation: a prompt, and the calls of models and tools that answer it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.exchange.importers.llm.rows import Answer, Call, Node, Session
from weft.exchange.importers.port import Item, NativeMessage, NativeTurn
from weft.exchange.importers.records.builder import PendingCall, finished_items, identity
from weft.exchange.importers.records.values import canonical, fingerprint, mapping, present
from weft.exchange.importers.trees import Part, PlannedBranch, Tree
from weft.kernel.enums import MessageRole, MessageSource

ROLES = {
    "system": MessageRole.SYSTEM,
    "developer": MessageRole.SYSTEM,
    "user": MessageRole.USER,
    "assistant": MessageRole.ASSISTANT,
}


def turns_of(session: Session, goes_on: Callable[[str, Session], bool]) -> list[NativeTurn]:
    """`goes_on` tells whether a message that nothing follows here is followed in another conversation."""
    tree = Tree()
    for id, parent in session.parents.items():
        tree.add(id, parent, _part(session, id, parent))
    keys: set[str] = set()
    turns = []
    places = {id: place for place, id in enumerate(session.parents, 1)}
    head = tree.turn_of(session.tip) if session.tip is not None and session.tip in tree else None
    for number, plan in enumerate(tree.plans):
        turn = _Turn(session, plan).made(is_last=number == len(tree.plans) - 1)
        turn.end = places[plan.nodes[-1]] if number != head else len(places) + 1
        if goes_on(plan.nodes[-1], session):
            turn.key = f"{turn.key}#{plan.nodes[-1]}"
        if turn.key in keys:
            turn.key = f"{turn.key}~{fingerprint(plan.nodes)}"
        keys.add(turn.key)
        turns.append(turn)
    return turns


def _part(session: Session, id: str, parent: str | None) -> Part:
    """Several messages of the user in a row are one prompt; one that holds results is none."""
    node = session.nodes[id]
    if node.role == "assistant":
        return Part.ANSWER
    above = None if parent is None else session.nodes[parent]
    is_prompt = node.role == "user" and not node.answers and (above is None or above.role != "user")
    return Part.PROMPT if is_prompt else Part.OTHER


class _Turn:
    def __init__(self, session: Session, plan: PlannedBranch) -> None:
        self._session, self._plan = session, plan
        self._items: list[NativeMessage | PendingCall] = []
        self._open: list[PendingCall] = []
        self._counted: set[str] = set()
        self._calls: list[Call] = []

    def made(self, is_last: bool) -> NativeTurn:
        for place, id in enumerate(self._plan.nodes):
            self._take(self._session.nodes[id], is_shared=place < self._plan.shared)
        items: list[Item] = list(finished_items(self._items))
        starts = [call.at for call in self._calls if call.at is not None]
        ends = [call.at + (call.duration or 0) for call in self._calls if call.at is not None]
        first = self._calls[0] if self._calls else None
        return NativeTurn(
            key=self._key(),
            records=identity(items) or (canonical(self._plan.nodes),),
            names=tuple(call.id for call in self._calls),
            items=tuple(items),
            parent=self._plan.parent,
            closed=not (is_last and self._open),
            started=min(starts, default=None),
            ended=max(ends, default=None),
            tools=next((call.tools for call in self._calls if call.tools), None),
            config=None if first is None else present(options=first.options),
            metadata=None if first is None else present(**mapping(first.metadata)),
        )

    def _key(self) -> str:
        """The first call, and the first of every thread that went on from another one's: forks share what is theirs."""
        texts: list[str] = []
        thread = None
        for call in self._calls:
            if call.thread != thread:
                texts.append(call.id)
            thread = call.thread
        return "#".join(texts) or f"{self._session.id}/{self._plan.nodes[-1]}"

    def _take(self, node: Node, is_shared: bool) -> None:
        call = None if node.call is None else self._session.calls.get(node.call)
        if call is not None and call not in self._calls:
            self._calls.append(call)
        for answer in node.answers:
            self._answer(answer)
        if node.role == "tool" and not (node.parts or node.beside):
            return
        self._items.append(self._message(node, call, is_shared))
        asked = [PendingCall(each.id or "", each.name, each.arguments, detail=each.detail) for each in node.calls]
        self._open = [*self._open, *asked] if asked else self._open
        self._items += asked

    def _message(self, node: Node, call: Call | None, is_shared: bool) -> NativeMessage:
        role = ROLES.get(node.role, MessageRole.SYSTEM)
        is_first = call is not None and call.id not in self._counted
        if call is not None:
            self._counted.add(call.id)
        is_answer = role is MessageRole.ASSISTANT
        return NativeMessage(
            role=role,
            parts=tuple(node.parts),
            native=call.id if call is not None and is_first and is_answer else None,
            at=None if call is None else call.at,
            source=_source(role),
            model=None if call is None else call.model,
            tokens=call.tokens if call is not None and is_first and not is_shared else None,
            metadata=present(
                role=node.role if node.role not in ROLES else None,
                beside=node.beside,
                duration_ms=call.duration if call is not None and is_first else None,
            ),
            files=tuple(node.files),
        )

    def _answer(self, answer: Answer) -> None:
        """To the call of this id; without one, to the first of its name that is open."""
        named = [asked for asked in self._open if answer.id is not None and asked.id == answer.id]
        if not named:
            named = [asked for asked in self._open if asked.name == answer.name and (answer.id is None or not asked.id)]
        if not named:
            self._items.append(_stray(answer))
            return
        asked = named[0]
        self._open.remove(asked)
        if answer.error is not None:
            asked.fail(answer.error)
        asked.result = answer.output
        if answer.error is None:
            asked.answer(answer.output)


def _source(role: MessageRole) -> MessageSource | None:
    if role is MessageRole.USER:
        return MessageSource.HUMAN
    return MessageSource.EVENT if role is MessageRole.SYSTEM else None


def _stray(answer: Answer) -> NativeMessage:
    """A result that nobody asked for here."""
    value: Any = present(id=answer.id, name=answer.name, output=answer.output, error=answer.error)
    return NativeMessage(
        role=MessageRole.SYSTEM, parts=(), source=MessageSource.EVENT, metadata={"tool_result": value or {}}
    )
