"""Turns of a thread: what a person said, and everything up to the next time they did."""

from __future__ import annotations

from weft.exchange.importers.asked import Asked
from weft.exchange.importers.chat import plain as words_or_blocks
from weft.exchange.importers.identity import identity
from weft.exchange.importers.langgraph.messages import Message
from weft.exchange.importers.langgraph.states import Node
from weft.exchange.importers.langgraph.thread import Outcome, Thread
from weft.exchange.importers.langgraph.values import plain
from weft.exchange.importers.transcript import Item, NativeMessage, NativeTurn
from weft.exchange.importers.trees import Part, Plan, Tree
from weft.exchange.importers.values import canonical, mapping, present, text
from weft.kernel.enums import AgentRole, MessageRole, MessageSource

ROLES = {"user": MessageRole.USER, "assistant": MessageRole.ASSISTANT}


def turns_of(thread: Thread, session: str) -> list[NativeTurn]:
    nodes = thread.states.nodes
    tree = Tree()
    for id, node in nodes.items():
        tree.add(id, node.parent, _part(node, nodes))
    keys: set[str] = set()
    turns = [_Turn(thread, session, plan, keys).made(plan is tree.plans[-1]) for plan in tree.plans]
    for place, state in enumerate(thread.tips.values(), 1):  # the session stands where its last checkpoint does
        if state.tip is not None:
            turns[tree.turn_of(state.tip)].end = place
    return turns


def _part(node: Node, nodes: dict[str, Node]) -> Part:
    """Messages of a person that came together are one prompt."""
    if node.message.role == "assistant":
        return Part.ANSWER
    above = None if node.parent is None else nodes[node.parent]
    goes_on = above is not None and above.message.role == "user" and above.checkpoint == node.checkpoint
    return Part.PROMPT if node.message.role == "user" and not goes_on else Part.OTHER


class _Turn:
    def __init__(self, thread: Thread, session: str, plan: Plan, keys: set[str]) -> None:
        self._thread, self._session, self._plan, self._keys = thread, session, plan, keys
        self._nodes = [thread.states.nodes[id] for id in plan.nodes]
        self._items: list[NativeMessage | Asked] = []
        self._open: dict[str, Asked] = {}

    def made(self, is_last: bool) -> NativeTurn:
        for place, node in enumerate(self._nodes):
            self._take(node, is_shared=place < self._plan.shared)
        items: list[Item] = [item.made() if isinstance(item, Asked) else item for item in self._items]
        times = [node.at for node in self._nodes if node.at is not None]
        outcome = self._thread.outcomes.get(self._plan.nodes[-1], Outcome())
        last = self._nodes[-1].message
        is_answered = last.role == "assistant" and not last.calls
        return NativeTurn(
            key=self._key(),
            records=identity(items) or (canonical(self._plan.nodes),),
            names=tuple(id for node in self._nodes if (id := node.message.id) is not None),
            items=tuple(items),
            parent=self._plan.parent,
            closed=not is_last or (is_answered and outcome.interrupt is None),
            error=outcome.error,
            started=min(times, default=None),
            ended=max(times, default=None),
            role=AgentRole.WORKER if self._thread.place.namespace else AgentRole.UNIFIED,
            metadata=present(
                interrupt=outcome.interrupt,
                checkpoint=self._nodes[-1].checkpoint,
                run=text(self._thread.metadata.get("run_id")),
            ),
        )

    def _key(self) -> str:
        """The first prompt's id, which is its own within a thread; of another answer, also where that begins."""
        first = next((node for node in self._nodes if node.message.role == "user"), self._nodes[0])
        key = f"{self._session}/{first.message.id or first.id}"
        if self._plan.shared:
            own = self._nodes[min(self._plan.shared, len(self._nodes) - 1)]
            key = f"{key}#{own.message.id or own.id}"
        if key in self._keys:
            key = f"{key}~{self._nodes[-1].id}"
        self._keys.add(key)
        return key

    def _take(self, node: Node, is_shared: bool) -> None:
        message = node.message
        if message.role == "tool" and self._answer(node):
            return
        content = message.content
        role = ROLES.get(message.role, MessageRole.SYSTEM)
        is_answer = role is MessageRole.ASSISTANT
        response = message.response
        self._items.append(
            NativeMessage(
                role=role,
                parts=tuple(content.parts),
                native=message.id,
                at=node.at,
                source=_source(message, role),
                model=message.model if is_answer else None,
                provider=text(response.get("model_provider")) if is_answer else None,
                tokens=message.tokens if is_answer and not is_shared else None,
                finish_reason=text(response.get("finish_reason")) or text(response.get("stop_reason")),
                metadata=present(
                    name=text(message.value.get("name")),
                    role="tool" if message.role == "tool" else None,
                    response_id=text(response.get("id")),
                    blocks=[each for each in content.elsewhere if mapping(each).get("type") != "tool_use"],
                ),
            )
        )
        self._ask(message, node)

    def _ask(self, message: Message, node: Node) -> None:
        for id, name, given in message.calls:
            asked = Asked(id, name, given, at=node.at)
            self._items.append(asked)
            self._open[id or name] = asked

    def _answer(self, node: Node) -> bool:
        """A tool's message as the outcome of the call that it names."""
        message = node.message
        asked = self._open.pop(message.answers or "", None)
        if asked is None:
            return False
        result = words_or_blocks(plain(message.value.get("content")))
        if message.value.get("status") == "error":
            asked.fail(result if isinstance(result, str) else str(result))
        else:
            asked.answer(result)
        asked.done = node.at
        asked.detail = present(artifact=plain(message.value.get("artifact")), message=message.id)
        return True


def _source(message: Message, role: MessageRole) -> MessageSource | None:
    """A message that another agent wrote in a person's place says so by its name."""
    if role is MessageRole.USER:
        return MessageSource.HUMAN if text(message.value.get("name")) is None else MessageSource.AGENT
    return MessageSource.EVENT if role is MessageRole.SYSTEM else None
