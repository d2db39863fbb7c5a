"""What people pass in and get back: messages and their parts, tool calls, turns, sessions, moves.

Input may be these records, plain dicts of the same shape, or plain text where a message is meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from weft.kernel.clock import offset
from weft.kernel.enums import (
    FileKind,
    LintSeverity,
    MessageRole,
    MessageSource,
    ToolCallStatus,
)
from weft.kernel.errors import InvalidInput
from weft.kernel.events import Receipt, Usage

T = TypeVar("T")


class StoredContent(Struct, frozen=True, gc=False):
    """A content that was streamed into the ledger beforehand; stands wherever a text is taken."""

    ref: str
    size: int


Text = str | StoredContent


class TextPart(Struct, frozen=True, gc=False, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A text, as part of a message."""

    text: Text


class ImagePart(Struct, frozen=True, gc=False, tag_field="type", tag="image_url", forbid_unknown_fields=True):
    """An image of a message."""

    url: Text
    detail: str | UnsetType = UNSET


class ToolUsePart(Struct, frozen=True, tag_field="type", tag="tool_use", forbid_unknown_fields=True):
    """A request to use a tool, as part of a message."""

    id: str
    name: str
    input: Any


class ToolResultPart(Struct, frozen=True, tag_field="type", tag="tool_result", forbid_unknown_fields=True):
    """A tool's result, as part of a message."""

    tool_call_id: str
    output: Any
    is_error: bool | UnsetType = UNSET


class ReasoningPart(Struct, frozen=True, gc=False, tag_field="type", tag="reasoning", forbid_unknown_fields=True):
    """A model's reasoning, as part of a message."""

    text: Text


Part = TextPart | ImagePart | ToolUsePart | ToolResultPart | ReasoningPart


class FileNote(Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """A file that a message read, wrote, referred to or carried."""

    kind: FileKind
    path: str
    line_start: int | None = None
    line_end: int | None = None


class LintNote(Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """A linter's note of a message."""

    path: str | None = None
    message: str | None = None
    source: str | None = None
    start_line: int | None = None
    start_col: int | None = None
    end_line: int | None = None
    end_col: int | None = None
    severity: LintSeverity | None = None


class Codeblock(Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """A code block of an assistant's message."""

    content: str
    language: str | None = None
    path: str | None = None
    line_start: int | None = None
    line_end: int | None = None


class NewMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to record. `content` is plain text or an ordered list of parts, kept exactly."""

    role: MessageRole
    content: Text | tuple[Part, ...]
    source: MessageSource | None = None
    parent: str | None = None
    model: str | None = None
    thinking_config: Any = None
    context: Any = None
    metadata: Any = None
    files: tuple[FileNote, ...] = ()
    lints: tuple[LintNote, ...] = ()
    codeblocks: tuple[Codeblock, ...] = ()


class NewError(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An error to record with a turn or a tool call."""

    message: str
    code: str = "error"
    details: Any = UNSET


class NewToolCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call with its outcome. Without result, error or status it ended well and had no output."""

    name: str
    id: str | None = None
    arguments: Any = msgspec.field(default_factory=dict)
    result: Any = UNSET
    error: str | NewError | None = None
    status: ToolCallStatus | None = None
    server: str | None = None
    number: int | None = None
    spawned_session: str | None = None
    duration_ms: int | None = None


PROMPT_SEQUENCE = -2
"""The sequence of a system prompt that no turn has recorded yet; its message bears the id of the agent."""


class AppliedSubstitution(Struct, frozen=True, gc=False, kw_only=True):
    """What is shown was recorded later, in the place of another event, which stays as it was."""

    original: str
    """The id of the event that was recorded there."""
    replacement: str
    """The id of the event that is shown in its place; the same where the original is shown again."""
    by: str
    at: int
    reason: str | None = None


class Message(Struct, frozen=True, gc=False):
    """One message, exactly as it was recorded, or as it was substituted since."""

    id: str
    role: str
    content: tuple[Part, ...]
    sequence: int
    created_at: int
    source: str | None = None
    parent_id: str | None = None
    model: str | None = None
    thinking_config: Any = None
    context: Any = None
    metadata: Any = None
    native_id: str | None = None
    """The id that the tool gave it that it was imported from."""
    substituted: AppliedSubstitution | UnsetType = UNSET
    """Left out where it is shown as it was recorded."""
    provider: str | None = None
    """The vendor of the model that gave it, as far as its turn tells."""
    finish_reason: str | None = None

    @property
    def turn_id(self) -> str:
        """A message's id lies in the room that its turn's id leaves."""
        return offset(self.id, -1 - self.sequence)

    @property
    def text(self) -> str:
        """The text parts, joined by line breaks."""
        if len(self.content) == 1 and isinstance(only := self.content[0], TextPart):
            return str(only.text)
        return "\n".join(str(part.text) for part in self.content if isinstance(part, TextPart))

    @property
    def thinking(self) -> str | None:
        texts = [str(part.text) for part in self.content if isinstance(part, ReasoningPart)]
        return "\n".join(texts) if texts else None


# --- What a provider sealed with an answer, and wants back: signatures of thinking, encrypted thinking, ids of items.

SEALED = "sealed"
"""Where it lies in the metadata of a message."""
ANTHROPIC, OPENAI, GOOGLE = "anthropic", "openai", "google"
"""Vendors: whoever opens what was sealed."""


class SealedItem(Struct, frozen=True):
    """What a provider sealed with so many parts of an answer, from the part `at` on; with none of them, it stands alone
    before that part."""

    at: int
    parts: int
    fields: dict[str, Any]


class _SealedItems(Struct, frozen=True):
    vendor: str
    items: tuple[SealedItem, ...]


def sealed_metadata(vendor: str, items: Sequence[SealedItem]) -> dict[str, Any]:
    """What is recorded with an answer of what was sealed with it."""
    return {SEALED: {"vendor": vendor, "items": msgspec.to_builtins(list(items))}} if items else {}


def sealed_items(message: Message | NewMessage, vendor: str) -> tuple[SealedItem, ...]:
    """What this vendor sealed with an answer, in the order of its parts. Nothing of one that was substituted: a seal
    holds for the words that it came with. Nothing where it does not fit the parts: a stranger may have written it."""
    metadata, content = message.metadata, message.content
    is_changed = isinstance(message, Message) and message.substituted is not UNSET
    if is_changed or message.role != MessageRole.ASSISTANT or not isinstance(metadata, dict):
        return ()
    parts = content if isinstance(content, tuple) else (TextPart(content),)
    if SEALED not in metadata:
        is_claude = vendor == ANTHROPIC and (message.model or "").startswith("claude")
        return _imported_signatures(metadata, parts) if is_claude else ()
    try:
        sealed = msgspec.convert(metadata[SEALED], _SealedItems)
    except msgspec.ValidationError:
        return ()
    end = 0
    for item in sealed.items:
        if not end <= item.at <= item.at + item.parts <= len(parts) or item.parts < 0:
            return ()
        end = item.at + item.parts
    return sealed.items if sealed.vendor == vendor else ()


def _imported_signatures(metadata: dict[str, Any], parts: Sequence[Part]) -> tuple[SealedItem, ...]:
    """Of an answer of Anthropic's that was imported: a signature for each thought, also where no thought is shown.
    Where some are shown and others are not, nobody knows which signature is whose."""
    signatures, blocks = metadata.get("signatures") or [], metadata.get("blocks") or []
    if not isinstance(signatures, list) or not isinstance(blocks, list):
        return ()
    redacted = [block for block in blocks if isinstance(block, dict) and block.get("type") == "redacted_thinking"]
    thoughts = [number for number, part in enumerate(parts) if isinstance(part, ReasoningPart)]
    if redacted and not signatures and not thoughts:
        return tuple(SealedItem(0, 0, {"redacted": block.get("data")}) for block in redacted)
    if redacted or (thoughts and len(thoughts) != len(signatures)):
        return ()
    places = [(number, 1) for number in thoughts] or [(0, 0)] * len(signatures)
    return tuple(
        SealedItem(at, count, {"signature": signature})
        for (at, count), signature in zip(places, signatures, strict=True)
    )


class SentResult(Struct, frozen=True):
    """What models are sent in the place of a result, or of the message of an error, and the rules that say so."""

    value: Any
    rules: str


class ToolCall(Struct, frozen=True, kw_only=True):
    """A tool call as it was recorded, with its outcome."""

    id: str
    call_id: str
    turn_id: str
    name: str
    arguments: Any
    status: str
    sequence: int
    started_at: int
    correlation_id: str
    result: Any = None
    error: str | None = None
    error_code: str | None = None
    outcome: str | None = None
    completed_at: int | None = None
    message_id: str | None = None
    number: int | None = None
    server: str | None = None
    spawned_session: str | None = None
    metadata: Any = None
    substituted: AppliedSubstitution | UnsetType = UNSET
    """Of its result; left out where that is shown as it was recorded."""


def repeated_id(native: str, earlier: int) -> str:
    """A call id with how many calls of its turn carried it before; providers repeat them. One that has a `~` itself is
    always numbered, so that no two calls of a turn are spelled alike."""
    return f"{native}~{earlier + 1}" if earlier or "~" in native else native


READ_FROM = "_read_from"
"""Beside the fields of a turn: where what it holds is read. No part of what it equals."""


class TurnContents(Protocol):
    """Where what a turn holds is read, and whether it has children."""

    def has_children(self, turn: str) -> bool: ...

    def query_messages(self, turn: str) -> tuple[Message, ...]: ...

    def response_message(self, turn: str) -> Message | None: ...

    def tool_calls(self, turn: str) -> tuple[ToolCall, ...]: ...


class Turn(Struct, frozen=True, kw_only=True, dict=True):
    """One exchange, addressable for ever."""

    id: str
    parent_id: str | None
    depth: int
    digest: str
    turn_type: str
    status: str
    started_at: int
    role: str
    persona_id: str
    completed_at: int | None = None
    session_id: str | None = None
    model: str | None = None
    provider: str | None = None
    """The vendor: `anthropic`, `openai`, `google`, `local`, … Null where nothing tells it."""
    provider_program: str | None = None
    """The provider that was asked, where a broker asked: a program."""
    toolset_name: str | None = None
    tools_available: tuple[str, ...] | None = None
    permissions_granted: Any = None
    permissions_used: Any = None
    usage: Usage = msgspec.field(default_factory=Usage)
    response_message_id: str | None = None
    message_count: int = 0
    tool_call_count: int = 0
    reason: str | None = None
    source_event_id: str | None = None
    workspace_path: str | None = None
    compaction_id: str | None = None
    thinking_config: Any = None
    effective_config: Any = None
    interruption_reason: str | None = None
    error: str | None = None
    error_code: str | None = None
    origin: str | None = None
    native_id: str | None = None
    git_branch: str | None = None
    version: str | None = None
    metadata: Any = None
    is_current: bool = True
    """False: another version of this imported turn stands in its place."""
    time_known: bool = True
    """False: its origin gave no time, and that of its arrival is shown."""
    substitutions: int | UnsetType = UNSET
    """How many of its messages and results are shown with other words than were recorded; left out where none is."""

    @property
    def token_count(self) -> int | None:
        """The tokens of this turn alone; None where nobody counted them."""
        total = self.usage.total_tokens
        return None if total is UNSET else total

    @property
    def timestamp(self) -> int:
        """When it began, in Unix ms."""
        return self.started_at

    @property
    def has_children(self) -> bool:
        """Whether another turn goes on from it. This and what follows is read from the ledger whenever it is asked
        for; in an event loop, ask `await ledger.messages(turn.id)` and its like."""
        return self._contents().has_children(self.id)

    @property
    def query_messages(self) -> tuple[Message, ...]:
        """What it was asked: messages of users and systems, and of tools before it answered."""
        return self._contents().query_messages(self.id)

    @property
    def response_message(self) -> Message | None:
        """The last message of the assistant; None where there is none."""
        return self._contents().response_message(self.id)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls that it made, in order."""
        return self._contents().tool_calls(self.id)

    def _contents(self) -> TurnContents:
        contents: TurnContents | None = self.__dict__.get(READ_FROM)
        if contents is None:
            raise InvalidInput(f"turn {self.id} was not read from a ledger", f'ask ledger.messages("{self.id}")')
        return contents


class RecordedTurn(Struct, frozen=True, gc=False, kw_only=True):
    """What recording answers, once it is durable."""

    id: str
    digest: str
    depth: int
    parent_id: str | None
    session: str | None
    receipt: Receipt
    response_message_id: str | None = None


UNDATED = 0
"""The time of a session that was imported, while no source tells any: it comes after all that have one."""


class Session(Struct, frozen=True, gc=False, kw_only=True):
    """A stable label on a moving head."""

    id: str
    label: str
    head: str | None
    persona_id: str
    status: str
    lifecycle: str
    created_at: int
    updated_at: int
    time_known: bool = True
    """False: it was imported, and no source tells a time; both times are the beginning of 1970 then."""
    origin: str = "weft"
    head_event: int | None = None
    chosen_compaction: str | None = None
    is_subagent: bool = False
    parent_session: str | None = None
    parent_turn_id: str | None = None
    spawn_tool_call_id: str | None = None
    task_description: str | None = None
    task_status: str | None = None
    """Of a subagent: pending, running, completed or failed, read off its head."""
    routing_key: str | None = None
    origin_session_id: str | None = None
    title: str | None = None
    workspace_path: str | None = None
    git_branch: str | None = None
    version: str | None = None
    agent: str | None = None
    metadata: Any = None


class Branch(Struct, frozen=True, gc=False, kw_only=True):
    """Another replica's branch of a session, and where it stands."""

    session_id: str
    label: str
    """What the session is called here."""
    name: str
    """What the branch is called: the end of its replica's id and the label."""
    replica: str | None
    head: str | None
    head_event: int | None
    changed_at: int
    tip: str
    """The last event of the branch."""


class SessionAlias(Struct, frozen=True, gc=False, kw_only=True):
    """Another name that leads to a session."""

    alias: str
    session: str
    session_id: str
    reason: str
    """`manual`, `identity_promotion` or `identity_merge`."""


class RevisionTarget(Struct, frozen=True, gc=False, kw_only=True):
    """Where a name leads: a turn, or an event inside one, which is the `number`th of its events, counted from 1."""

    turn_id: str
    event_id: str | None = None
    number: int | None = None
    session: str | None = None


class HeadMove(Struct, frozen=True, gc=False, kw_only=True):
    """One line of a session's reflog; number 0 is where it stands now."""

    number: int
    turn_id: str | None
    changed_at: int
    why: str
    reason: str | None = None
    at_event: int | None = None


class SessionMove(Struct, frozen=True, gc=False, kw_only=True):
    """A movement of a session's head, seen from the turn that it went to."""

    session: str
    changed_at: int
    why: str


class Compaction(Struct, frozen=True, kw_only=True):
    """A compaction turn: its summary, what it stands for and what it keeps."""

    turn_id: str
    summary: str
    summarized_through: str
    first_kept: str | None
    turns_summarized: int | None
    compaction_type: str
    model: str
    provider: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    summary_tokens: int | None = None
    summarization_input_tokens: int | None = None
    summarization_output_tokens: int | None = None
    duration_ms: int | None = None
    trigger: str | None = None
    metadata: Any = None


class Dumpable(Protocol):
    """An object of a vendor's library that gives its fields as plain values."""

    def model_dump(self, *, mode: Any = ...) -> dict[str, Any]: ...


MessageInput = str | StoredContent | NewMessage | Message | Mapping[str, Any] | Dumpable
"""One message as callers may give it: text, what `put_content` returned, a message, a dict of its fields; or a message
or an answer of OpenAI's or Anthropic's API, as a dict or as an object of their libraries."""
MessagesInput = MessageInput | Sequence["MessagesInput"] | None
ToolCallInput = NewToolCall | Mapping[str, Any] | Dumpable
UsageInput = Usage | Mapping[str, Any] | Dumpable | None
ErrorInput = str | NewError | Mapping[str, Any]


DEFAULT_AGENT = "local"
IMPORTED_AGENT = "imported"
OWN_SERVER = "runtime"
"""The server of tools that run in no other one."""


def other_server(server: str | None, tool: str) -> str | None:
    """The server of a tool whose name does not tell it already; None for one of whoever ran it."""
    return None if not server or server == OWN_SERVER or tool.startswith(f"{server}/") else server


COMPACTION_MEASURES = (
    "tokens_before",
    "tokens_after",
    "summary_tokens",
    "summarization_input_tokens",
    "summarization_output_tokens",
    "duration_ms",
)
