"""What each checkpoint adds to the one before it, by comparing their lists of messages.

Messages only ever grow into a tree. A list that goes on is appended to; where a message was changed, or the last ones
were taken away, a branch leaves; where earlier ones were removed, what was said stays said.

LangChain's messages, in every form that states hold them: objects, dicts with a role, pairs of role and text.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from msgspec import Struct

from weft.exchange.importers.chat import chat_tokens, content_of, response_tokens
from weft.exchange.importers.langgraph.saved_values import BROKEN, Stored, Tagged, decoded, plain
from weft.exchange.importers.port import Tokens
from weft.exchange.importers.records.builder import MessageContent
from weft.exchange.importers.records.values import JsonObject, json_in_text, mapping, sequence, text, whole
from weft.ledger.dialects import uncached_input
from weft.ledger.model import ReasoningPart

KINDS = {
    "human": "user", "user": "user", "HumanMessageChunk": "user",
    "ai": "assistant", "assistant": "assistant", "AIMessageChunk": "assistant",
    "tool": "tool", "function": "tool", "ToolMessageChunk": "tool", "FunctionMessageChunk": "tool",
    "system": "system", "developer": "system", "SystemMessageChunk": "system",
    "remove": "remove",
}  # fmt: skip
CLASSES = {
    "HumanMessage": "user", "AIMessage": "assistant", "ToolMessage": "tool", "FunctionMessage": "tool",
    "SystemMessage": "system", "RemoveMessage": "remove",
}  # fmt: skip


class Message(Struct):
    """One message of a state."""

    role: str
    id: str | None
    value: JsonObject

    @property
    def content(self) -> MessageContent:
        found = content_of(plain(self.value.get("content")))
        thought = text(mapping(self.value.get("additional_kwargs")).get("reasoning_content"))
        if thought is not None and not any(isinstance(part, ReasoningPart) for part in found.parts):
            found.parts.insert(0, ReasoningPart(thought))
        return found

    @property
    def calls(self) -> list[tuple[str, str, Any]]:
        """Id, name and arguments of every tool that was asked for, also those that could not be read."""
        fields = [mapping(plain(tool_call)) for tool_call in sequence(self.value.get("tool_calls"))]
        valid_calls = [(text(tool_call.get("id")) or "", *_called(tool_call)) for tool_call in fields]
        broken = [mapping(plain(tool_call)) for tool_call in sequence(self.value.get("invalid_tool_calls"))]
        return valid_calls + [
            (text(tool_call.get("id")) or "", text(tool_call.get("name")) or "", tool_call.get("args"))
            for tool_call in broken
        ]

    @property
    def answers(self) -> str | None:
        """The call that this message is the result of."""
        return text(self.value.get("tool_call_id")) or (text(self.value.get("name")) if self.role == "tool" else None)

    @property
    def response(self) -> JsonObject:
        return mapping(plain(self.value.get("response_metadata")))

    @property
    def model(self) -> str | None:
        return text(self.response.get("model_name")) or text(self.response.get("model"))

    @property
    def tokens(self) -> Tokens | None:
        """LangChain's own count, in which the input holds what was cached; else the provider's."""
        usage = mapping(plain(self.value.get("usage_metadata")))
        given, output = whole(usage.get("input_tokens")), whole(usage.get("output_tokens"))
        if given is None and output is None:
            fields = mapping(self.response.get("usage"))
            return chat_tokens(self.response.get("token_usage")) or response_tokens(fields)
        inside, within = mapping(usage.get("input_token_details")), mapping(usage.get("output_token_details"))
        cached, one_hour = whole(inside.get("cache_read")), whole(inside.get("ephemeral_1h_input_tokens"))
        written = _cache_writes(inside)
        return Tokens(
            input=uncached_input(given, cached, written),
            output=output,
            cached=cached,
            cache_write=written,
            cache_write_1h=one_hour,
            reasoning=whole(within.get("reasoning")),
        )


def _cache_writes(details: JsonObject) -> int | None:
    """Where LangChain tells them by how long they are kept, it leaves their sum at zero."""
    written = whole(details.get("cache_creation"))
    by_duration = [whole(details.get(f"ephemeral_{kept}_input_tokens")) for kept in ("5m", "1h")]
    counts = [count for count in by_duration if count is not None]
    return max(written or 0, sum(counts)) if counts else written


def _called(call: JsonObject) -> tuple[str, Any]:
    """LangChain's form, or OpenAI's in a message that is a plain dict."""
    function = mapping(call.get("function"))
    if function:
        return text(function.get("name")) or "", json_in_text(function.get("arguments"))
    return text(call.get("name")) or "", call.get("args")


def message(value: Any) -> Message | None:
    """None: this is no message."""
    name = ""
    if isinstance(value, Tagged):
        name, value = value.kind, value.value
    if isinstance(value, list | tuple):
        is_pair = len(value) == 2 and isinstance(value[0], str) and value[0] in KINDS and not name
        return Message(KINDS[value[0]], None, {"content": value[1]}) if is_pair else None
    if not isinstance(value, dict):
        return None
    if isinstance(data := value.get("data"), dict) and "content" in data and "content" not in value:
        value = {"type": value.get("type"), **data}
    words = text(value.get("type")) or text(value.get("role")) or ""
    role = CLASSES.get(name) or KINDS.get(words) or (KINDS.get(text(value.get("role")) or ""))
    if role is None and words == "chat":
        role = KINDS.get(text(value.get("role")) or "", "assistant")
    if role is None or ("content" not in value and role != "remove"):
        return None
    return Message(role, text(value.get("id")), value)


ALL = "__remove_all__"


class Entry(Struct, frozen=True, gc=False):
    """A message in a list: what it is known by, and its place in the tree."""

    id: str
    digest: bytes
    node: str


class State(Struct):
    """A list of messages. States share one list as long as each only adds to the one before."""

    entries: list[Entry]
    length: int
    tip: str | None
    """Where the next message goes on."""
    removed: int = 0

    def listed(self) -> list[Entry]:
        return self.entries[: self.length]


EMPTY = State([], 0, None)


class Node(Struct):
    """A message in the tree."""

    id: str
    parent: str | None
    message: Message
    stored: Stored
    at: int | None
    checkpoint: str
    """The one that brought it."""


class _Found(Struct, frozen=True):
    """An element of a list that is a message."""

    stored: Stored
    digest: bytes
    message: Message


class States:
    """Takes one list after another."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._known: dict[bytes, Message | None] = {}

    def known(self, stored: Stored) -> tuple[bytes, Message | None]:
        digest = sha256(stored.data).digest()[:16]
        if digest not in self._known:
            try:
                self._known[digest] = message(decoded(stored.kind, stored.data))
            except BROKEN:
                self._known[digest] = None
        return digest, self._known[digest]

    def is_list_of_messages(self, listed: list[Stored]) -> bool:
        return bool(listed) and self.known(listed[0])[1] is not None

    def advance(self, before: State, listed: list[Stored], at: int | None, checkpoint: str) -> State:
        """The state after a checkpoint that holds this list."""
        found = self._found(listed)
        same = 0
        while same < min(before.length, len(found)) and before.entries[same].digest == found[same].digest:
            same += 1
        if same == before.length:
            return self._append(before, found[same:], at, checkpoint)
        by_key = {entry.digest: entry for entry in before.listed()}
        ids = {entry.id for entry in before.listed()}
        kept: list[Entry] = []
        for each in found:
            if each.digest not in by_key:
                break
            kept.append(by_key[each.digest])
        rest = found[len(kept) :]
        tip = self._tip(before, kept, rest, ids)
        start = State(kept, len(kept), tip, removed=before.length - len(kept))
        return self._append(start, rest, at, checkpoint)

    def _found(self, listed: list[Stored]) -> list[_Found]:
        known = ((each, *self.known(each)) for each in listed)
        return [
            _Found(stored, digest, known_message)
            for stored, digest, known_message in known
            if known_message is not None
        ]

    def stored(self, state: State) -> list[Stored]:
        """A state's list again, as it lay in the database."""
        return [self.nodes[entry.node].stored for entry in state.listed()]

    def _tip(self, before: State, kept: list[Entry], rest: list[_Found], ids: set[str]) -> str | None:
        last = before.entries[before.length - 1]
        if rest and rest[0].message.id in ids:  # the same message says something else now
            return kept[-1].node if kept else None
        if not kept or kept[-1].node == last.node:
            return before.tip
        return kept[-1].node

    def _append(self, before: State, more: list[_Found], at: int | None, checkpoint: str) -> State:
        entries = before.entries if before.length == len(before.entries) else before.listed()
        if before is EMPTY:
            entries = []
        tip = before.tip
        for each in more:
            name = sha256(f"{tip}\n".encode() + each.digest).hexdigest()[:24]
            if name not in self.nodes:
                self.nodes[name] = Node(name, tip, each.message, each.stored, at, checkpoint)
            entries.append(Entry(each.message.id or name, each.digest, name))
            tip = name
        return State(entries, len(entries), tip, before.removed)


def replayed(listed: list[Stored], written: list[Stored], states: States) -> list[Stored]:
    """A list after messages were written to it, as LangGraph's own reducer would have it: a message of a known id takes
    the place of that one, and one that says so removes it."""
    found: dict[object, Stored] = {}
    for place, each in enumerate(listed):
        known_message = states.known(each)[1]
        found[known_message.id if known_message is not None and known_message.id is not None else place] = each
    for number, each in enumerate(written):
        known_message = states.known(each)[1]
        if known_message is None:
            continue
        if known_message.role == "remove":
            if known_message.id == ALL:
                found.clear()
            found.pop(known_message.id, None)
        else:
            found[known_message.id if known_message.id is not None else ("new", number)] = each
    return list(found.values())
