"""ChatGPT: a data export, with all conversations in one document, each a tree of nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.exchange.importers.chatgpt.content import TAKERS
from weft.exchange.importers.chatgpt.turns import Making, kind_of, moment, part_of
from weft.exchange.importers.exports import Conversation, conversations
from weft.exchange.importers.jsonl import BOM
from weft.exchange.importers.loading import loaded
from weft.exchange.importers.port import Place, Report, Source
from weft.exchange.importers.transcript import NativeSession, NativeTurn, Transcript
from weft.exchange.importers.trees import Part, Plan, Tree, ends_of, in_order, keys_of
from weft.exchange.importers.values import canonical, mapping, present, sequence, text

SIGN = re.compile(rb'[,\[]\s*(\{\s*"(?:title|id|conversation_id|create_time|mapping)"\s*:)')
SIGNS = (b'"current_node"', b'"author"', b'"children"', b'"content_type"')
BEGINNING = re.compile(rb"\s*(?:\[\s*)?\{")
NOTED = ("gizmo_id", "gizmo_type", "conversation_template_id", "default_model_slug", "conversation_origin", "voice",
         "memory_scope", "is_starred", "plugin_ids", "async_status", "workspace_id", "update_time")  # fmt: skip


class ChatGpt:
    origin = "chatgpt"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        """An export lies where it was saved; it has no place of its own."""
        return []

    def recognises(self, source: Source) -> bool:
        head = source.head.removeprefix(BOM)
        if not BEGINNING.match(head) or b'"mapping"' not in head:
            return False
        if len(source.head) < source.size:
            return sum(sign in head for sign in SIGNS) >= 2
        try:
            value = loaded(head)
        except ValueError:
            return sum(sign in head for sign in SIGNS) >= 2
        listed = value if isinstance(value, list) else sequence(mapping(value).get("conversations")) or [value]
        return any(is_conversation(mapping(each)) for each in listed)

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        for each in conversations(source, report, SIGN, is_conversation, "conversations"):
            if is_conversation(each.value):
                yield _transcript(each, source.path.stem, report)
            else:
                report.found += 1
                report.kept["other"] += 1
                report.unknown["other"] += 1


def is_conversation(value: dict[str, Any]) -> bool:
    nodes = value.get("mapping")
    return isinstance(nodes, dict) and all("message" in node for node in nodes.values() if isinstance(node, dict))


def _transcript(conversation: Conversation, fallback: str, report: Report) -> Transcript:
    value = conversation.value
    id = text(value.get("conversation_id")) or text(value.get("id")) or fallback
    nodes = Nodes(id, mapping(value.get("mapping")), report)
    session = NativeSession(
        id=id,
        title=text(value.get("title")),
        created=moment(value.get("create_time")),
        archived=value.get("is_archived") is True,
        told_at=moment(value.get("update_time")),
        metadata=present(**{name: value[name] for name in NOTED if value.get(name)}),
    )
    report.found += 1
    report.mapped["conversation"] += 1
    turns = nodes.made(text(value.get("current_node")), len(conversation.data))
    return Transcript(session=session, turns=turns, raw=conversation.data)


class Nodes:
    """The nodes of a conversation."""

    def __init__(self, conversation: str, nodes: dict[str, Any], report: Report) -> None:
        self._conversation, self._report = conversation, report
        self._nodes = {id: node for id, node in nodes.items() if isinstance(node, dict)}
        self._unnamed: dict[str, list[str]] = {}
        """Children that their parents do not name."""
        for id, node in self._nodes.items():
            parent = text(node.get("parent"))
            if parent in self._nodes and id not in sequence(self._nodes[parent].get("children")):
                self._unnamed.setdefault(parent, []).append(id)
        spoiled = len(nodes) - len(self._nodes)
        report.found += len(nodes)
        report.damaged += spoiled
        if spoiled:
            report.problem(None, f"{spoiled} nodes of the conversation {conversation[:80]} are no objects")

    def made(self, current: str | None, size: int) -> list[NativeTurn]:
        order = in_order({id: text(node.get("parent")) for id, node in self._nodes.items()}, self._children)
        tree = Tree(whole_answers=True)
        for id in order:
            message = self._message(id)
            part = Part.NOTHING if message is None else part_of(message)
            tree.add(id, text(self._nodes[id].get("parent")), part)
        self._count(order)
        last = self._last(order, current)
        keys, ends = keys_of(tree.plans, self._name), ends_of(tree, order, last, size)
        return [self._turn(*planned) for planned in zip(tree.plans, keys, ends, strict=True)]

    def _children(self, id: str) -> list[str]:
        """In the order they were made."""
        named = [child for child in sequence(self._nodes[id].get("children")) if isinstance(child, str)]
        own = [child for child in named if text(mapping(self._nodes.get(child)).get("parent")) == id]
        return [*own, *self._unnamed.get(id, [])]

    def _message(self, id: str) -> dict[str, Any] | None:
        message = self._nodes[id].get("message")
        return message if isinstance(message, dict) else None

    def _name(self, id: str) -> str:
        """By its message's id, with the conversation's where it could be anybody's."""
        told = text(mapping(self._nodes[id].get("message")).get("id")) or id
        return told if len(told) >= 32 else f"{self._conversation}/{told}"

    def _count(self, order: list[str]) -> None:
        for id in order:
            message = self._message(id)
            if message is None:
                self._report.kept["node"] += 1
                continue
            kind, content = kind_of(message), text(mapping(message.get("content")).get("content_type")) or ""
            if part_of(message) is Part.NOTHING:
                self._report.kept[f"{kind}.empty"] += 1
            elif content in TAKERS or mapping(message.get("content")).keys() & {"text", "parts"}:
                self._report.mapped[kind] += 1
            else:
                self._report.kept[kind] += 1
                self._report.unknown[kind] += 1

    def _last(self, order: list[str], current: str | None) -> str | None:
        """The node that the conversation stands on; where that is not told, the one that was made last."""
        if current in self._nodes:
            return current
        times = [moment(mapping(self._nodes[id].get("message")).get("create_time")) or 0 for id in order]
        return order[max(range(len(order)), key=lambda number: (times[number], number))] if order else None

    def _turn(self, plan: Plan, key: str, end: int) -> NativeTurn:
        making = Making(self._conversation)
        for id in plan.nodes:
            message = self._message(id)
            if message is not None:
                making.take(message, self._name(id))
        return NativeTurn(
            key=key,
            records=tuple(making.records) or (canonical([key]),),
            names=tuple(map(self._name, plan.nodes)),
            items=making.finished(),
            parent=plan.parent,
            error=making.error,
            interrupted=making.is_interrupted,
            started=min(making.times, default=None),
            ended=max(making.times, default=None),
            offset=0,
            end=end,
        )
