"""Conversations of ChatGPT, as its data export holds them: one document, each conversation a tree
of nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.foreign_files import BOM, Conversation, conversations
from weft.exchange.importers.foreign_values import (
    canonical,
    json_value,
    mapping,
    object_in_text,
    present,
    seconds_millis,
    sequence,
    text,
)
from weft.exchange.importers.native_turns import (
    PendingCall,
    PlannedBranch,
    Tree,
    TreePart,
    TurnBuilder,
    ends_of,
    finished_items,
    in_order,
    keys_of,
)
from weft.exchange.importers.port import (
    NativeCall,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Transcript,
)
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

# --- What a message says: each type of content as parts, and as what makes its identity.


class NodeContent(Struct):
    parts: list[Part] = field(default_factory=list)
    elsewhere: list[Any] = field(default_factory=list)
    """What no part can hold."""
    is_known: bool = True

    @property
    def words(self) -> str:
        return "\n".join(str(part.text) for part in self.parts if isinstance(part, TextPart))


def content_of(content: dict[str, Any]) -> NodeContent:
    """A type of content that is not known is taken by its text or parts, if it has any."""
    kind = text(content.get("content_type")) or ""
    adder = ADDERS.get(kind)
    node_content = NodeContent(is_known=adder is not None)
    if adder is not None:
        adder(node_content, content)
    elif text(content.get("text")) is not None:
        _add_text(node_content, content)
    elif isinstance(content.get("parts"), list):
        _add_parts(node_content, content)
    else:
        node_content.elsewhere.append(content)
    return node_content


def _add(content: NodeContent, words: Any) -> None:
    if isinstance(words, str) and words:
        content.parts.append(TextPart(words))


def _add_parts(node_content: NodeContent, content: dict[str, Any]) -> None:
    for part in sequence(content.get("parts")):
        if isinstance(part, str):
            _add(node_content, part)
        else:
            _add_asset(node_content, mapping(part))


def _add_asset(content: NodeContent, part: dict[str, Any]) -> None:
    """An image by where it lies in the export; what was said aloud by its words."""
    kind, pointer = text(part.get("content_type")) or "", text(part.get("asset_pointer"))
    if kind == "image_asset_pointer" and pointer is not None:
        content.parts.append(ImagePart(pointer))
        content.elsewhere.append({name: part[name] for name in SHOWN if part.get(name) is not None})
    elif text(part.get("text")) is not None:
        _add(content, part["text"])
    elif part:
        content.elsewhere.append(part)


SHOWN = ("asset_pointer", "size_bytes", "width", "height", "metadata")


def _add_text(node_content: NodeContent, content: dict[str, Any]) -> None:
    _add(node_content, content.get("text"))


def _add_thoughts(node_content: NodeContent, content: dict[str, Any]) -> None:
    for thought in sequence(content.get("thoughts")):
        fields = mapping(thought)
        words = [text(fields.get("summary")), text(fields.get("content"))]
        if any(words):
            node_content.parts.append(ReasoningPart("\n".join(word for word in words if word)))
    for part in sequence(content.get("parts")):
        if isinstance(part, str) and part:
            node_content.parts.append(ReasoningPart(part))


def _add_recap(node_content: NodeContent, content: dict[str, Any]) -> None:
    words = text(content.get("content")) or text(next(iter(sequence(content.get("parts"))), None))
    if words is not None:
        node_content.parts.append(ReasoningPart(words))


def _add_display(node_content: NodeContent, content: dict[str, Any]) -> None:
    """What a page or a search showed."""
    _add(node_content, text(content.get("result")) or text(content.get("summary")))
    details = present(summary=content.get("summary"), assets=content.get("assets"), tether=content.get("tether_id"))
    if details:
        node_content.elsewhere.append(details)


def _add_quote(node_content: NodeContent, content: dict[str, Any]) -> None:
    heading = [text(content.get(name)) for name in ("title", "url")]
    _add(node_content, "\n".join([*(word for word in heading if word), text(content.get("text")) or ""]).strip())


def _add_context(node_content: NodeContent, content: dict[str, Any]) -> None:
    """What a person has told the assistant about themselves, and what it has noted itself."""
    for name in ("user_profile", "user_instructions", "model_set_context"):
        _add(node_content, content.get(name))


def _add_error(node_content: NodeContent, content: dict[str, Any]) -> None:
    _add(node_content, ": ".join(word for word in (text(content.get("name")), text(content.get("text"))) if word))


ADDERS: dict[str, Callable[[NodeContent, dict[str, Any]], None]] = {
    "text": _add_parts,
    "multimodal_text": _add_parts,
    "code": _add_text,
    "execution_output": _add_text,
    "citable_code_output": _add_text,
    "thoughts": _add_thoughts,
    "reasoning_recap": _add_recap,
    "tether_browsing_display": _add_display,
    "tether_browsing_code": _add_display,
    "tether_quote": _add_quote,
    "sonic_webpage": _add_quote,
    "user_editable_context": _add_context,
    "model_editable_context": _add_context,
    "system_error": _add_error,
}
CONTEXTS = frozenset({"user_editable_context", "model_editable_context"})


# --- The nodes of one turn of a conversation, mapped to what the ledger takes.

NOTED_FIELDS = (
    "voice_mode_message",
    "thinking_effort",
    "finished_duration_sec",
    "request_id",
    "citations",
    "content_references",
    "search_result_groups",
    "aggregate_result",
    "dalle",
    "image_gen_title",
    "is_user_system_message",
)
"""What a message's metadata tells beside what it says."""


def role_of(message: dict[str, Any]) -> str:
    return text(mapping(message.get("author")).get("role")) or "none"


def is_hidden(message: dict[str, Any]) -> bool:
    metadata = mapping(message.get("metadata"))
    return message.get("weight") == 0 or metadata.get("is_visually_hidden_from_conversation") is True


def kind_of(message: dict[str, Any]) -> str:
    return f"{role_of(message)}.{text(mapping(message.get('content')).get('content_type')) or 'none'}"


def tool_of(message: dict[str, Any]) -> str | None:
    """Whom an assistant's message is for, where it is for a tool."""
    recipient = text(message.get("recipient"))
    return recipient if role_of(message) == "assistant" and recipient not in (None, "all") else None


def tree_part_of(message: dict[str, Any]) -> TreePart:
    role, content = role_of(message), mapping(message.get("content"))
    if role in ("assistant", "tool"):
        return TreePart.ANSWER
    node_content = content_of(content)
    if (
        not node_content.parts
        and not node_content.elsewhere
        and not sequence(mapping(message.get("metadata")).get("attachments"))
    ):
        return TreePart.NOTHING
    is_typed = role == "user" and not is_hidden(message) and text(content.get("content_type")) not in CONTEXTS
    return TreePart.PROMPT if is_typed else TreePart.OTHER


class Call(PendingCall, kw_only=True):
    """A call whose outcome follows in other nodes."""

    results: list[Any] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)

    def finished(self) -> NativeCall:
        if self.error is not None:
            self.status = ToolCallStatus.ERROR
        elif self.results:
            self.status = ToolCallStatus.OK
        if self.results:
            self.result = self.results[0] if len(self.results) == 1 else self.results
        self.detail = self.notes or None
        return super().finished()


class ChatGptBuilder(TurnBuilder, kw_only=True):
    """A turn of ChatGPT, message by message."""

    open: Call | None = None

    def add_message(self, message: dict[str, Any], native: str) -> None:
        if (time := seconds_millis(message.get("create_time"))) is not None:
            self.times.append(time)
        node_content, role, tool = content_of(mapping(message.get("content"))), role_of(message), tool_of(message)
        content = mapping(message.get("content"))
        self.add_identity(role, native, text(message.get("recipient")), content)
        if tool is not None:
            self._add_call(message, native, tool, node_content)
        elif role == "tool" and self.open is not None:
            self._add_result(message, node_content)
        else:
            self._add_native_message(message, native, node_content)

    def _add_call(self, message: dict[str, Any], native: str, tool: str, content: NodeContent) -> None:
        """The message that asks is one of its own, without the words that are the call's."""
        self._add_native_message(message, native, NodeContent(elsewhere=content.elsewhere))
        self.open = Call(
            id=native, name=tool, arguments=object_in_text(content.words), at=seconds_millis(message.get("create_time"))
        )
        self.items.append(self.open)

    def _add_result(self, message: dict[str, Any], content: NodeContent) -> None:
        call = self.open
        if call is None:
            return
        call.done = seconds_millis(message.get("create_time"))
        images = [{"image": str(part.url)} for part in content.parts if isinstance(part, ImagePart)]
        if mapping(message.get("content")).get("content_type") == "system_error":
            call.error = content.words or "error"
        elif content.words or images:
            call.results += [*([content.words] if content.words else []), *images]
        call.notes += content.elsewhere

    def _add_native_message(self, message: dict[str, Any], native: str, content: NodeContent) -> None:
        role, metadata = role_of(message), mapping(message.get("metadata"))
        if role == "assistant":
            self._note_end(message, content)
        if role in ("assistant", "user"):
            self.open = None
        created = message.get("create_time")
        self.items.append(
            NativeMessage(
                role=ROLES.get(role, MessageRole.SYSTEM),
                parts=tuple(content.parts),
                native=native,
                at=seconds_millis(created),
                source=_source(message, role),
                model=text(metadata.get("model_slug")) if role == "assistant" else None,
                provider="openai" if role == "assistant" else None,
                finish_reason=text(mapping(metadata.get("finish_details")).get("type")),
                metadata=present(
                    **{name: metadata[name] for name in NOTED_FIELDS if metadata.get(name)},
                    hidden=is_hidden(message) or None,
                    channel=message.get("channel"),
                    author=mapping(message.get("author")).get("name"),
                    type=_type(message),
                    content=content.elsewhere,
                    attachments=metadata.get("attachments"),
                ),
                files=_attached(metadata),
            )
        )

    def _note_end(self, message: dict[str, Any], content: NodeContent) -> None:
        end_kind = text(mapping(mapping(message.get("metadata")).get("finish_details")).get("type"))
        is_error = mapping(message.get("content")).get("content_type") == "system_error"
        self.error = (content.words or "error") if is_error else None
        self.is_interrupted = end_kind == "interrupted"


ROLES = {
    "user": MessageRole.USER,
    "assistant": MessageRole.ASSISTANT,
    "tool": MessageRole.TOOL,
    "system": MessageRole.SYSTEM,
}


def _source(message: dict[str, Any], role: str) -> MessageSource | None:
    if role == "assistant":
        return None
    is_typed = role == "user" and tree_part_of(message) is TreePart.PROMPT
    return MessageSource.HUMAN if is_typed else MessageSource.EVENT


def _type(message: dict[str, Any]) -> str | None:
    kind = text(mapping(message.get("content")).get("content_type"))
    return None if kind in ("text", "multimodal_text") else kind


def _attached(metadata: dict[str, Any]) -> tuple[FileNote, ...]:
    names = (text(mapping(attachment).get("name")) for attachment in sequence(metadata.get("attachments")))
    return tuple(FileNote(kind=FileKind.ATTACHED, path=name) for name in dict.fromkeys(names) if name)


# --- ChatGPT: a data export, with all conversations in one document, each a tree of nodes.

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
        return any(is_conversation(mapping(candidate)) for candidate in listed)

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
    turns = nodes.native_turns(text(value.get("current_node")), len(conversation.data))
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

    def native_turns(self, current: str | None, size: int) -> list[NativeTurn]:
        order = in_order({id: text(node.get("parent")) for id, node in self._nodes.items()}, self._children)
        tree = Tree(whole_answers=True)
        for id in order:
            message = self._message(id)
            tree_part = TreePart.NOTHING if message is None else tree_part_of(message)
            tree.add(id, text(self._nodes[id].get("parent")), tree_part)
        self._count(order)
        last = self._last(order, current)
        keys, ends = keys_of(tree.plans, self._name), ends_of(tree, order, last, size)
        return [self._turn(*planned) for planned in zip(tree.plans, keys, ends, strict=True)]

    def _children(self, id: str) -> list[str]:
        """In the order they were made."""
        named_children = [child for child in sequence(self._nodes[id].get("children")) if isinstance(child, str)]
        own_children = [child for child in named_children if text(mapping(self._nodes.get(child)).get("parent")) == id]
        return [*own_children, *self._unnamed.get(id, [])]

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
            if tree_part_of(message) is TreePart.NOTHING:
                self._report.kept[f"{kind}.empty"] += 1
            elif content in ADDERS or mapping(message.get("content")).keys() & {"text", "parts"}:
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
                builder.add_message(message, self._name(id))
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
