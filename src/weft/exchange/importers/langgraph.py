"""Threads of LangGraph, from the checkpoints that its savers keep, whoever's agents they are.

Checkpoints of a thread are read in order, each as a list of messages; a comparison with the one
before it tells what each adds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from weft.exchange.importers.foreign_files import MAGIC, UNREADABLE, open_database, peek
from weft.exchange.importers.foreign_values import (
    JsonObject,
    canonical,
    json_in_text,
    mapping,
    millis,
    present,
    sequence,
    text,
    whole_number,
)
from weft.exchange.importers.langgraph_checkpoints import (
    BROKEN,
    ChannelWrite,
    Checkpoint,
    Row,
    Rows,
    StoredChannel,
    TaggedObject,
    ThreadPlace,
    UnreadableValue,
    Verbatim,
    about,
    decode_value,
    list_elements,
    plain_value,
)
from weft.exchange.importers.native_turns import (
    MessageContent,
    PendingCall,
    PlannedBranch,
    Tree,
    TreePart,
    chat_tokens,
    content_of,
    finished_items,
    identity,
    response_tokens,
)
from weft.exchange.importers.port import (
    Item,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Tokens,
    Transcript,
)
from weft.kernel.enums import AgentRole, MessageRole, MessageSource
from weft.ledger.dialects import plain_result as words_or_blocks
from weft.ledger.dialects import uncached_input
from weft.ledger.model import ReasoningPart

# --- What each checkpoint adds to the one before it, by comparing their lists of messages.

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
        content = content_of(plain_value(self.value.get("content")))
        thought = text(mapping(self.value.get("additional_kwargs")).get("reasoning_content"))
        if thought is not None and not any(isinstance(part, ReasoningPart) for part in content.parts):
            content.parts.insert(0, ReasoningPart(thought))
        return content

    @property
    def calls(self) -> list[tuple[str, str, Any]]:
        """Id, name and arguments of every tool that was asked for, also those that could not be read."""
        fields = [mapping(plain_value(tool_call)) for tool_call in sequence(self.value.get("tool_calls"))]
        valid_calls = [(text(tool_call.get("id")) or "", *_name_and_arguments(tool_call)) for tool_call in fields]
        broken = [mapping(plain_value(tool_call)) for tool_call in sequence(self.value.get("invalid_tool_calls"))]
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
        return mapping(plain_value(self.value.get("response_metadata")))

    @property
    def model(self) -> str | None:
        return text(self.response.get("model_name")) or text(self.response.get("model"))

    @property
    def tokens(self) -> Tokens | None:
        """LangChain's own count, in which the input holds what was cached; else the provider's."""
        usage = mapping(plain_value(self.value.get("usage_metadata")))
        input_tokens, output = whole_number(usage.get("input_tokens")), whole_number(usage.get("output_tokens"))
        if input_tokens is None and output is None:
            fields = mapping(self.response.get("usage"))
            return chat_tokens(self.response.get("token_usage")) or response_tokens(fields)
        input_details, output_details = (
            mapping(usage.get("input_token_details")),
            mapping(usage.get("output_token_details")),
        )
        cached, one_hour = (
            whole_number(input_details.get("cache_read")),
            whole_number(input_details.get("ephemeral_1h_input_tokens")),
        )
        cache_written = _cache_writes(input_details)
        return Tokens(
            input=uncached_input(input_tokens, cached, cache_written),
            output=output,
            cached=cached,
            cache_write=cache_written,
            cache_write_1h=one_hour,
            reasoning=whole_number(output_details.get("reasoning")),
        )


def _cache_writes(details: JsonObject) -> int | None:
    """Where LangChain tells them by how long they are kept, it leaves their sum at zero."""
    cache_written = whole_number(details.get("cache_creation"))
    by_duration = [whole_number(details.get(f"ephemeral_{lifetime}_input_tokens")) for lifetime in ("5m", "1h")]
    counts = [count for count in by_duration if count is not None]
    return max(cache_written or 0, sum(counts)) if counts else cache_written


def _name_and_arguments(call: JsonObject) -> tuple[str, Any]:
    """LangChain's form, or OpenAI's in a message that is a plain dict."""
    function = mapping(call.get("function"))
    if function:
        return text(function.get("name")) or "", json_in_text(function.get("arguments"))
    return text(call.get("name")) or "", call.get("args")


def message(value: Any) -> Message | None:
    """None: this is no message."""
    name = ""
    if isinstance(value, TaggedObject):
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
    stored: StoredChannel
    at: int | None
    checkpoint: str
    """The one that brought it."""


class FoundMessage(Struct, frozen=True):
    """An element of a list that is a message."""

    stored: StoredChannel
    digest: bytes
    message: Message


class States:
    """Takes one list after another."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._messages: dict[bytes, Message | None] = {}

    def message_of(self, stored: StoredChannel) -> tuple[bytes, Message | None]:
        digest = sha256(stored.data).digest()[:16]
        if digest not in self._messages:
            try:
                self._messages[digest] = message(decode_value(stored.kind, stored.data))
            except BROKEN:
                self._messages[digest] = None
        return digest, self._messages[digest]

    def is_list_of_messages(self, listed: list[StoredChannel]) -> bool:
        return bool(listed) and self.message_of(listed[0])[1] is not None

    def advance(self, before: State, listed: list[StoredChannel], time: int | None, checkpoint: str) -> State:
        """The state after a checkpoint that holds this list."""
        found_messages = self._messages_of(listed)
        same_count = 0
        while (
            same_count < min(before.length, len(found_messages))
            and before.entries[same_count].digest == found_messages[same_count].digest
        ):
            same_count += 1
        if same_count == before.length:
            return self._append_messages(before, found_messages[same_count:], time, checkpoint)
        by_key = {entry.digest: entry for entry in before.listed()}
        ids = {entry.id for entry in before.listed()}
        kept_entries: list[Entry] = []
        for found_message in found_messages:
            if found_message.digest not in by_key:
                break
            kept_entries.append(by_key[found_message.digest])
        new_messages = found_messages[len(kept_entries) :]
        tip = self._tip(before, kept_entries, new_messages, ids)
        start = State(kept_entries, len(kept_entries), tip, removed=before.length - len(kept_entries))
        return self._append_messages(start, new_messages, time, checkpoint)

    def _messages_of(self, listed: list[StoredChannel]) -> list[FoundMessage]:
        messages = ((stored_value, *self.message_of(stored_value)) for stored_value in listed)
        return [
            FoundMessage(stored, digest, known_message)
            for stored, digest, known_message in messages
            if known_message is not None
        ]

    def stored(self, state: State) -> list[StoredChannel]:
        """A state's list again, as it lay in the database."""
        return [self.nodes[entry.node].stored for entry in state.listed()]

    def _tip(
        self, before: State, kept_entries: list[Entry], new_messages: list[FoundMessage], ids: set[str]
    ) -> str | None:
        last = before.entries[before.length - 1]
        if new_messages and new_messages[0].message.id in ids:  # the same message says something else now
            return kept_entries[-1].node if kept_entries else None
        if not kept_entries or kept_entries[-1].node == last.node:
            return before.tip
        return kept_entries[-1].node

    def _append_messages(
        self, before: State, added_messages: list[FoundMessage], time: int | None, checkpoint: str
    ) -> State:
        # The shared list only grows at its end; a state that ends in the midst of it goes on with a copy.
        entries = before.entries if before.length == len(before.entries) else before.listed()
        if before is EMPTY:
            entries = []
        tip = before.tip
        for found_message in added_messages:
            name = sha256(f"{tip}\n".encode() + found_message.digest).hexdigest()[:24]
            if name not in self.nodes:
                self.nodes[name] = Node(name, tip, found_message.message, found_message.stored, time, checkpoint)
            entries.append(Entry(found_message.message.id or name, found_message.digest, name))
            tip = name
        return State(entries, len(entries), tip, before.removed)


def replay_messages(
    listed: list[StoredChannel], written_messages: list[StoredChannel], states: States
) -> list[StoredChannel]:
    """A list after messages were written to it, as LangGraph's own reducer would have it: a message of a known id takes
    the place of that one, and one that says so removes it."""
    messages: dict[object, StoredChannel] = {}
    for place, stored in enumerate(listed):
        known_message = states.message_of(stored)[1]
        messages[known_message.id if known_message is not None and known_message.id is not None else place] = stored
    for number, stored in enumerate(written_messages):
        known_message = states.message_of(stored)[1]
        if known_message is None:
            continue
        if known_message.role == "remove":
            if known_message.id == ALL:
                messages.clear()
            messages.pop(known_message.id, None)
        else:
            messages[known_message.id if known_message.id is not None else ("new", number)] = stored
    return list(messages.values())


# --- One thread: its checkpoints read in order, each as a list of messages.

USUAL = ("messages", "__root__")
OUTCOME_CHANNELS = frozenset({"__error__", "__interrupt__"})


class Outcome(Struct):
    """How a run that no other checkpoint follows ended, as its tasks wrote it down."""

    error: str | None = None
    interrupt: Any = None


class Thread(Struct):
    """What a thread's rows say."""

    place: ThreadPlace
    root: str = ""
    """The id of its first checkpoint: no other database has it."""
    created: int | None = None
    states: States = field(default_factory=States)
    tips: dict[str, State] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By the message that such a run had come to."""
    last: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    raw: bytes = b""


class ThreadReader:
    """Reads one thread."""

    def __init__(self, rows: Rows, place: ThreadPlace, report: Report) -> None:
        self._rows, self._place, self._report = rows, place, report
        self._thread = Thread(place)
        self._verbatim = Verbatim()
        self._channel: str | None = None
        self._replayed = False

    def read(self) -> Thread:
        writes: dict[str, list[ChannelWrite]] = {}
        for write in self._rows.writes(self._place):
            writes.setdefault(write.checkpoint, []).append(write)
        parents = self._rows.parents(self._place)
        for id in _parents_first(parents):
            self._add_checkpoint(self._rows.checkpoint(self._place, id), writes)
        followed = set(parents.values())
        for id, written in writes.items():
            self._note_outcome(id, written, is_leaf=id not in followed)
        self._keep_writes(writes)
        self._keep_blobs()
        self._thread.raw = self._verbatim.finish()
        return self._thread

    def _add_checkpoint(self, row: Row, writes: dict[str, list[ChannelWrite]]) -> None:
        self._report.found += 1
        metadata = about(row)
        columns = {
            "checkpoint_id": row.id, "parent_checkpoint_id": row.parent, "type": row.kind,
            "metadata": row.metadata.decode("utf-8", "replace"),
        }  # fmt: skip
        try:
            checkpoint = self._rows.read(row)
        except UnreadableValue as error:
            self._report.kept[f"checkpoint.{row.kind}"] += 1
            self._report.problem(None, f"{self._place.thread}: {error}"[:300])
            self._keep_parent_state(row)
            self._verbatim.add_row("checkpoint", columns, row.data)
            return
        except BROKEN as error:
            self._report.damaged += 1
            self._report.problem(None, f"the checkpoint {row.id} is not readable: {error}"[:300])
            self._keep_parent_state(row)
            self._verbatim.add_row("checkpoint", columns, row.data)
            return
        time = millis(checkpoint.at) if isinstance(checkpoint.at, str) else None
        thread = self._thread
        thread.root = thread.root or row.id
        thread.created = thread.created or time
        thread.last = row.id
        thread.metadata = thread.metadata or metadata
        source = text(metadata.get("source")) or "none"
        self._report.mapped[f"checkpoint.{source}"] += 1
        listed = self._messages_at(row, checkpoint, writes)
        before = self._state_before(row)
        thread.tips[row.id] = before if listed is None else thread.states.advance(before, listed, time, row.id)
        own_messages = listed if listed is not None and not self._replayed and not self._rows.is_apart else None
        self._verbatim.add_row("checkpoint", columns, row.data, own_messages)

    def _state_before(self, row: Row) -> State:
        return EMPTY if row.parent is None else self._thread.tips.get(row.parent, EMPTY)

    def _keep_parent_state(self, row: Row) -> None:
        self._thread.tips[row.id] = self._state_before(row)

    def _messages_at(
        self, row: Row, checkpoint: Checkpoint, writes: dict[str, list[ChannelWrite]]
    ) -> list[StoredChannel] | None:
        """The messages at a checkpoint; None where nothing tells of any."""
        self._replayed = False
        listed = self._value(checkpoint)
        if listed is None and self._channel is not None and self._channel in checkpoint.versions and row.parent:
            written = [write for write in writes.get(row.parent, ()) if write.channel == self._channel]
            if written:
                listed = self._replay(self._thread.states.stored(self._state_before(row)), written)
                self._replayed = True
        if listed is None and self._channel is None:
            listed = self._first_writes(row, checkpoint, writes)
        return listed

    def _first_writes(
        self, row: Row, checkpoint: Checkpoint, writes: dict[str, list[ChannelWrite]]
    ) -> list[StoredChannel] | None:
        """A channel that keeps only what is added may tell of its first messages by writes alone."""
        for name in sorted(checkpoint.versions, key=lambda name: (name not in USUAL, name)):
            written = [write for write in writes.get(row.parent or "", ()) if write.channel == name]
            if name not in checkpoint.channels and written:
                listed = self._replay([], written)
                if self._thread.states.is_list_of_messages(listed):
                    self._channel, self._replayed = name, True
                    return listed
        return None

    def _value(self, checkpoint: Checkpoint) -> list[StoredChannel] | None:
        names = [self._channel] if self._channel is not None else self._candidates(checkpoint)
        for name in names:
            stored = checkpoint.channels.get(name) or self._rows.blob(self._place, name, checkpoint.versions.get(name))
            try:
                listed = None if stored is None else list_elements(stored)
            except BROKEN:
                continue
            if listed is not None and (self._channel == name or self._thread.states.is_list_of_messages(listed)):
                self._channel = name
                return listed
        return None

    def _candidates(self, checkpoint: Checkpoint) -> list[str]:
        names = {*checkpoint.channels, *(checkpoint.versions if self._rows.is_apart else ())}
        return sorted(names, key=lambda name: (USUAL.index(name) if name in USUAL else len(USUAL), name))

    def _replay(self, base_messages: list[StoredChannel], written: list[ChannelWrite]) -> list[StoredChannel]:
        """What was written since, added as LangGraph itself would."""
        base, added_messages = base_messages, list[StoredChannel]()
        for write in written:
            try:
                new_messages = self._messages_written(write)
            except BROKEN:
                continue
            if new_messages is None:
                base, added_messages = self._replacement(write), []
            else:
                added_messages += new_messages
        return replay_messages(base, added_messages, self._thread.states)

    def _messages_written(self, write: ChannelWrite) -> list[StoredChannel] | None:
        """One message or several; None where the whole list was replaced."""
        stored = StoredChannel(write.kind, write.data)
        listed = list_elements(stored)
        if listed is not None:
            return [stored] if self._thread.states.message_of(stored)[1] is not None else listed
        value = decode_value(write.kind, write.data)
        is_whole = isinstance(value, TaggedObject) and value.kind == "Overwrite"
        return None if is_whole or "__overwrite__" in mapping(value) else [stored]

    def _replacement(self, write: ChannelWrite) -> list[StoredChannel]:
        value = decode_value(write.kind, write.data)
        inner = (
            mapping(value.value).get("value")
            if isinstance(value, TaggedObject)
            else mapping(value).get("__overwrite__")
        )
        return [
            StoredChannel("msgpack", msgspec.msgpack.encode(plain_value(message_value)))
            for message_value in inner or ()
        ]

    def _note_outcome(self, id: str, written: list[ChannelWrite], is_leaf: bool) -> None:
        state = self._thread.tips.get(id)
        if not is_leaf or state is None or state.tip is None:
            return
        for write in written:
            if write.channel not in OUTCOME_CHANNELS:
                continue
            try:
                value = plain_value(decode_value(write.kind, write.data))
            except BROKEN:
                value = None
            outcome = self._thread.outcomes.setdefault(state.tip, Outcome())
            if write.channel == "__error__":
                outcome.error = text(value) or "error"
            else:
                outcome.interrupt = value

    def _keep_writes(self, writes: dict[str, list[ChannelWrite]]) -> None:
        for id, checkpoint_writes in writes.items():
            for write in checkpoint_writes:
                is_mapped = write.channel in OUTCOME_CHANNELS or write.channel == self._channel
                kind = "write.branch" if write.channel.startswith("branch:") else f"write.{write.channel}"
                self._report.found += 1
                (self._report.mapped if is_mapped else self._report.kept)[kind] += 1
                columns = {
                    "checkpoint_id": id, "task_id": write.task, "task_path": write.path, "idx": write.index,
                    "channel": write.channel, "type": write.kind,
                }  # fmt: skip
                self._verbatim.add_row("write", columns, write.data)

    def _keep_blobs(self) -> None:
        for blob in self._rows.blobs(self._place):
            holds_messages = blob.channel == self._channel
            self._report.found += 1
            (self._report.mapped if holds_messages else self._report.kept)[
                f"blob.{'messages' if holds_messages else 'other'}"
            ] += 1
            listed = None
            if holds_messages:
                try:
                    listed = list_elements(StoredChannel(blob.kind, blob.data))
                except BROKEN:
                    listed = None
            columns = {"channel": blob.channel, "version": blob.version, "type": blob.kind}
            self._verbatim.add_row("blob", columns, blob.data, listed)


def _parents_first(parents: dict[str, str | None]) -> list[str]:
    """Parents first; a chain that runs in a circle is cut."""
    ordered: dict[str, None] = {}
    for id in parents:
        chain: dict[str, None] = {}
        node: str | None = id
        while node is not None and node in parents and node not in ordered and node not in chain:
            chain[node] = None
            node = parents[node]
        ordered |= dict.fromkeys(reversed(chain))
    return list(ordered)


ROLES = {"user": MessageRole.USER, "assistant": MessageRole.ASSISTANT}


def turns_of(thread: Thread, session: str) -> list[NativeTurn]:
    nodes = thread.states.nodes
    tree = Tree()
    for id, node in nodes.items():
        tree.add(id, node.parent, _tree_part(node, nodes))
    keys: set[str] = set()
    turns = [_Turn(thread, session, plan, keys).native_turn(plan is tree.plans[-1]) for plan in tree.plans]
    for place, state in enumerate(thread.tips.values(), 1):  # the session stands where its last checkpoint does
        if state.tip is not None:
            turns[tree.turn_of(state.tip)].end = place
    return turns


def _tree_part(node: Node, nodes: dict[str, Node]) -> TreePart:
    """Messages of a person that came together are one prompt."""
    if node.message.role == "assistant":
        return TreePart.ANSWER
    above = None if node.parent is None else nodes[node.parent]
    goes_on = above is not None and above.message.role == "user" and above.checkpoint == node.checkpoint
    return TreePart.PROMPT if node.message.role == "user" and not goes_on else TreePart.OTHER


class _Turn:
    def __init__(self, thread: Thread, session: str, plan: PlannedBranch, keys: set[str]) -> None:
        self._thread, self._session, self._plan, self._keys = thread, session, plan, keys
        self._nodes = [thread.states.nodes[id] for id in plan.nodes]
        self._items: list[NativeMessage | PendingCall] = []
        self._open: dict[str, PendingCall] = {}

    def native_turn(self, is_last: bool) -> NativeTurn:
        for place, node in enumerate(self._nodes):
            self._add_message(node, is_shared=place < self._plan.shared)
        items: list[Item] = list(finished_items(self._items))
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
            own_node = self._nodes[min(self._plan.shared, len(self._nodes) - 1)]
            key = f"{key}#{own_node.message.id or own_node.id}"
        if key in self._keys:
            key = f"{key}~{self._nodes[-1].id}"
        self._keys.add(key)
        return key

    def _add_message(self, node: Node, is_shared: bool) -> None:
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
                    blocks=[block for block in content.other_blocks if mapping(block).get("type") != "tool_use"],
                ),
            )
        )
        self._add_calls(message, node)

    def _add_calls(self, message: Message, node: Node) -> None:
        for id, name, arguments in message.calls:
            call = PendingCall(id, name, arguments, at=node.at)
            self._items.append(call)
            self._open[id or name] = call

    def _answer(self, node: Node) -> bool:
        """A tool's message as the outcome of the call that it names."""
        message = node.message
        call = self._open.pop(message.answers or "", None)
        if call is None:
            return False
        result = words_or_blocks(plain_value(message.value.get("content")))
        if message.value.get("status") == "error":
            call.fail(result if isinstance(result, str) else str(result))
        else:
            call.answer(result)
        call.done = node.at
        call.detail = present(artifact=plain_value(message.value.get("artifact")), message=message.id)
        return True


def _source(message: Message, role: MessageRole) -> MessageSource | None:
    """A message that another agent wrote in a person's place says so by its name."""
    if role is MessageRole.USER:
        return MessageSource.HUMAN if text(message.value.get("name")) is None else MessageSource.AGENT
    return MessageSource.EVENT if role is MessageRole.SYSTEM else None


# --- LangGraph: a database of checkpoints, whoever's agents they are.

_RANDOM = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")
"""A thread's id that a program made, and that says nothing to a person."""
COLUMNS = "SELECT name FROM pragma_table_info('checkpoints')"
SIGNS = {"thread_id", "checkpoint_id", "checkpoint"}


class LangGraph:
    origin = "langgraph"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        """Only their programs know where: name the database."""
        return []

    def recognises(self, source: Source) -> bool:
        if not source.head.startswith(MAGIC):
            return False
        return {name for (name,) in peek(source.path, COLUMNS)} >= SIGNS

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        with open_database(source.path, report) as database:
            if database is None:
                return
            rows = Rows(database)
            try:
                places = rows.places() if rows.is_there else []
            except UNREADABLE as error:
                report.problem(None, f"the database is not readable: {error}"[:300])
                return
            roots: dict[str, str] = {}
            for place in places:
                try:
                    thread = ThreadReader(rows, place, report).read()
                except UNREADABLE as error:
                    report.problem(None, f"the thread {place.thread} is not readable: {error}"[:300])
                else:
                    yield _transcript(thread, place, roots)


def _transcript(thread: Thread, place: ThreadPlace, roots: dict[str, str]) -> Transcript:
    """Threads of different databases are often called the same, such as `1`; their first checkpoint is their own."""
    if not place.namespace:
        roots[place.thread] = thread.root
    id = f"{place.thread}@{roots.get(place.thread) or thread.root}"
    parent, agent = None, None
    if place.namespace:
        parent, agent = id, place.namespace.rpartition("|")[2].partition(":")[0]
        id = f"{id}|{place.namespace}"
    session = NativeSession(
        id=id,
        title=None if _RANDOM.fullmatch(place.thread) else place.thread,
        created=thread.created,
        parent=parent,
        agent=agent,
        metadata=present(
            thread=place.thread, namespace=place.namespace, assistant=text(thread.metadata.get("assistant_id"))
        ),
    )
    return Transcript(session=session, turns=turns_of(thread, id), raw=thread.raw)
