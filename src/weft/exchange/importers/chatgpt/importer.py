"""ChatGPT: a data export, with all conversations in one document, each a tree of nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.exchange.importers.chatgpt.content import TAKERS
from weft.exchange.importers.chatgpt.turns import ChatGptBuilder, kind_of, part_of
from weft.exchange.importers.documents import Conversation, conversations
from weft.exchange.importers.port import NativeSession, NativeTurn, Place, Report, Source, Transcript
from weft.exchange.importers.records.builder import finished_items
from weft.exchange.importers.records.jsonl import BOM
from weft.exchange.importers.records.values import (
    canonical,
    json_value,
    mapping,
    present,
    seconds_millis,
    sequence,
    text,
)
from weft.exchange.importers.trees import Part, PlannedBranch, Tree, ends_of, in_order, keys_of

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
            value = json_value(head)
        except ValueError:
            return sum(sign in head for sign in SIGNS) >= 2
        listed = value if isinstance(value, list) else sequence(mapping(value).get("conversations")) or [value]
        return any(is_conversation(mapping(each)) for each in listed)

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        for conversation in conversations(source, report, SIGN, is_conversation, "conversations"):
            if is_conversation(conversation.value):
                yield _transcript(conversation, source.path.stem, report)
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
        created=seconds_millis(value.get("create_time")),
        archived=value.get("is_archived") is True,
        told_at=seconds_millis(value.get("update_time")),
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
        words = text(mapping(self._nodes[id].get("message")).get("id")) or id
        return words if len(words) >= 32 else f"{self._conversation}/{words}"

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
        times = [seconds_millis(mapping(self._nodes[id].get("message")).get("create_time")) or 0 for id in order]
        return order[max(range(len(order)), key=lambda number: (times[number], number))] if order else None

    def _turn(self, plan: PlannedBranch, key: str, end: int) -> NativeTurn:
        builder = ChatGptBuilder()
        for id in plan.nodes:
            message = self._message(id)
            if message is not None:
                builder.take(message, self._name(id))
        return NativeTurn(
            key=key,
            records=tuple(builder.records) or (canonical([key]),),
            names=tuple(map(self._name, plan.nodes)),
            items=finished_items(builder.items),
            parent=plan.parent,
            error=builder.error,
            interrupted=builder.is_interrupted,
            started=min(builder.times, default=None),
            ended=max(builder.times, default=None),
            offset=0,
            end=end,
        )
