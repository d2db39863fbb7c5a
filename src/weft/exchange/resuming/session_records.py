"""The records of session files that another tool can resume, as Claude Code and Codex write them.

Their structures are data, in `formats/`. Ids of records follow from the turn that they stand for,
so that a thread which is written twice has the same ids. What a format has no place for is told.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec
import orjson
from msgspec import UNSET, Struct, field

from weft.exchange.importers.foreign_values import mapping, sequence, text
from weft.kernel.clock import iso_from_ms
from weft.kernel.errors import InvalidInput, quoted
from weft.ledger.api import Ledger
from weft.ledger.model import (
    ANTHROPIC,
    Compaction,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolResultPart,
    ToolUsePart,
    Turn,
    sealed_items,
)

# --- The structure of other tools' session files, as data: which records there are, what each must hold, what it holds
# by default, and what the format has no place for.

FORMATS: Final = {"claude-code": "claude-code-2.1.json", "codex": "codex-0.144.json"}
"""The structure that is written for each tool."""


class Shape(Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of record: it has all of `fixed` and `given`, perhaps some of `optional`; `of` is what it adds to."""

    of: str | None = None
    fixed: dict[str, Any] = msgspec.field(default_factory=dict)
    given: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


class Format(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The structure of a tool's session files, as data."""

    tool: str
    structure: str
    """The tool's versions whose structure this is."""
    version: str
    """The version that written records name."""
    verified: tuple[str, ...]
    """Versions of the tool that a person has resumed such a file with; the others are checked by their structure."""
    command: str
    records: dict[str, Shape]
    lost: dict[str, str]
    """What the format cannot carry, by a short name."""

    def make_record(self, kind: str, **fields: Any) -> dict[str, Any]:
        """A record of a kind, with exactly what belongs to it."""
        shape = self.shape(kind)
        unknown = fields.keys() - {*shape.given, *shape.optional, *shape.fixed}
        missing = set(shape.given) - fields.keys() - shape.fixed.keys()
        assert not unknown | missing, f"{self.tool} {kind}: unknown {unknown}, missing {missing}"
        return {**json.loads(json.dumps(shape.fixed)), **fields}

    def shape(self, kind: str) -> Shape:
        own_shape = self.records[kind]
        if own_shape.of is None:
            return own_shape
        base = self.shape(own_shape.of)
        return Shape(
            None,
            {**base.fixed, **own_shape.fixed},
            (*base.given, *own_shape.given),
            (*base.optional, *own_shape.optional),
        )

    def needs(self, kind: str) -> frozenset[str]:
        """What every record of this kind has."""
        shape = self.shape(kind)
        return frozenset((*shape.given, *shape.fixed))


@lru_cache
def load_format(tool: str) -> Format:
    if tool not in FORMATS:
        raise InvalidInput(f"no session is written for {quoted(tool)}", f"it is one of {', '.join(FORMATS)}")
    return msgspec.json.decode((Path(__file__).with_name("formats") / FORMATS[tool]).read_bytes(), type=Format)


# --- Ids of written records.

_is_call_id = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_no_name = re.compile(r"[^A-Za-z0-9_-]")
_TIME_BITS = 48


def _digest(*parts: object) -> bytes:
    return sha256("\n".join(["weft.resume.1", *map(str, parts)]).encode("utf-8", "surrogatepass")).digest()


def random_uuid(seed: bytes) -> str:
    return str(UUID(bytes=seed[:16], version=4))


def timed_uuid(ms: int, seed: bytes) -> str:
    """Version 7: it sorts by its time."""
    number = (max(ms, 0) & ((1 << _TIME_BITS) - 1)) << 80 | int.from_bytes(seed[:10], "big")
    return str(UUID(int=number & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62))


def uuid_for(*parts: object) -> str:
    return random_uuid(_digest(*parts))


def timed_uuid_for(ms: int, *parts: object) -> str:
    return timed_uuid(ms, _digest(*parts))


def hex_for(*parts: object) -> str:
    return _digest(*parts).hex()[:24]


class CallIds:
    """Call ids that providers take, each used once in a file."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._used_ids = prefix, set[str]()

    def claim_id(self, native: str, turn: str) -> str:
        """The call's own id, if it can stay."""
        call_id, attempt = native, 0
        while not _is_call_id(call_id) or call_id in self._used_ids:
            call_id, attempt = f"{self._prefix}{hex_for(turn, native, attempt)}", attempt + 1
        self._used_ids.add(call_id)
        return call_id

    def note(self, native: str) -> None:
        self._used_ids.add(native)


def tool_name(name: str) -> str:
    return _no_name.sub("_", name)[:64] or "tool"


# --- What a thread says, turn by turn, as a writer needs it; and what of it a format has no place for.

Records = list[dict[str, Any]]


class ThreadTurn(Struct, kw_only=True):
    """One turn of the thread that is written."""

    turn: Turn
    messages: list[Message] = field(default_factory=list)
    """With every tool call as an assistant's use and a tool's result."""
    calls: list[ToolCall] = field(default_factory=list)
    compaction: Compaction | None = None
    verbatim: Records | None = None
    """Its own records, where the tool itself wrote them and they were kept, and nothing was substituted since."""


class Writer(Protocol):
    """Puts turns into one tool's records, one after another."""

    lost: Counter[str]
    verbatim: int
    """How many turns are written as the tool itself wrote them."""

    def begin_session(self, title: str | None) -> Records:
        """What stands before the first turn."""

    def write(self, thread_turn: ThreadTurn) -> Records:
        """One turn. What it cannot carry is counted in `lost`."""


def load_thread_turn(ledger: Ledger, turn: Turn, cut: str | None, verbatim: Records | None) -> ThreadTurn:
    """A turn with all that was said in it, up to the event that a fork left it at."""
    name = cut or turn.id
    compaction = ledger.compactions.get(turn.id) if turn.turn_type == "compaction" else None
    return ThreadTurn(
        turn=turn,
        messages=ledger.thread(name).transcript,
        calls=ledger.tool_calls(name),
        compaction=compaction,
        verbatim=verbatim if cut is None and turn.substitutions is UNSET else None,
    )


def losses(thread_turn: ThreadTurn, sealed_for: str = "") -> Iterator[str]:
    """What no record of another tool's own making says: by the short names of the formats. What a vendor signed is
    written where the format is `sealed_for` it."""
    turn = thread_turn.turn
    if turn.error is not None:
        yield "errors"
    if any(count is not UNSET and count for count in (turn.usage.total_tokens, turn.usage.output_tokens)):
        yield "usage"
    for message in thread_turn.messages:
        if message.context:
            yield "injected"
        if message.role == "system":
            yield "system"
        signed = {item.at for item in sealed_items(message, sealed_for)} if sealed_for else set()
        for at, part in enumerate(message.content):
            if isinstance(part, ReasoningPart) and at not in signed:
                yield "thinking"
            elif isinstance(part, ImagePart) and message.role == "assistant":
                yield "made images"
    for call in thread_turn.calls:
        if call.metadata:
            yield "call details"
        if call.spawned_session is not None:
            yield "subagents"


def note_on(thread_turn: ThreadTurn) -> str:
    """What stands in a turn's place that says nothing a format can carry: without a record of its own, a turn could
    not be gone on from."""
    if thread_turn.compaction is not None:
        return "[The conversation was compacted here; no summary of it was kept]"
    failed = thread_turn.turn.error
    return "[Nothing that was said in this turn is here]" if failed is None else f"[This turn failed: {failed}]"


def as_text(value: Any) -> str:
    """A result as text, where a format takes nothing else."""
    if isinstance(value, str):
        return value
    return "" if value is None else encoded(value).decode()


def encoded(value: Any) -> bytes:
    """JSON, also of what strict encoders refuse: lone surrogates and large numbers."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()


# --- A thread as a session file of Claude Code.

_TREE = frozenset({"user", "assistant", "system", "attachment"})
_INTERRUPTED = "[Request interrupted by user]"
_UNANSWERED = "[No result was recorded for this call]"
_TRIGGERS = {"manual": "manual"}
_SYNTHETIC = "<synthetic>"
_LEFT_OUT = frozenset({"agentId", "permissionMode"})
_GRANTING_ATTACHMENTS = frozenset({"command_permissions"})
"""The session may be a stranger's, and grants the tool nothing that goes on with it."""


class ClaudeCodeWriter:
    def __init__(self, format: Format, session: str, workspace: str) -> None:
        self._format, self._session, self._workspace = format, session, workspace
        self.lost: Counter[str] = Counter()
        self.verbatim = 0
        self._last: str | None = None
        self._uuids: set[str] = set()
        self._dropped: dict[str, str | None] = {}
        """Lines that were left out, and what hung above them."""
        self._ids = CallIds("toolu_")
        self._callers: dict[str, str] = {}
        """The line of each call that waits for its result."""
        self._renamed: dict[str, list[str]] = {}
        self._lines: dict[str, list[str]] = {}
        """The lines of each turn, for compactions that keep some."""
        self._turn: Turn
        self._number = 0

    def begin_session(self, title: str | None) -> Records:
        return [self._format.make_record("title", aiTitle=title, sessionId=self._session)] if title else []

    def write(self, thread_turn: ThreadTurn) -> Records:
        self._turn, self._number = thread_turn.turn, 0
        self._callers, self._renamed = {}, {}
        if thread_turn.verbatim is not None and all(map(self._is_line, thread_turn.verbatim)):
            made = self._verbatim(thread_turn.verbatim)
            self.verbatim += 1
        else:
            self.lost.update(name for name in losses(thread_turn, ANTHROPIC) if name in self._format.lost)
            made = self._compacted(thread_turn) if thread_turn.compaction is not None else self._translated(thread_turn)
        self._lines[thread_turn.turn.id] = [record["uuid"] for record in made]
        return made

    def _is_line(self, record: dict[str, Any]) -> bool:
        """Has it all that a line of this structure has? Tools that borrowed the format, and old versions, leave out
        some of it."""
        kind = record.get("type")
        if kind == "progress":
            return True
        if kind not in _TREE or not self._format.needs("line") <= record.keys() or not text(record["uuid"]):
            return False
        message = record.get("message")
        if kind == "assistant":
            return isinstance(message, dict) and {"id", "model", "content", "role"} <= message.keys()
        return kind != "user" or (isinstance(message, dict) and {"role", "content"} <= message.keys())

    def _verbatim(self, records: Records) -> Records:
        lines: Records = []
        for record in records:
            uuid, parent = text(record.get("uuid")), self._written_parent(text(record.get("parentUuid")))
            if record["type"] == "progress" or _is_grant(record):
                if uuid:
                    self._dropped[uuid] = parent
                continue
            assert uuid is not None
            if uuid in self._uuids:
                continue
            line = {key: value for key, value in record.items() if key not in _LEFT_OUT}
            line |= {"sessionId": self._session, "parentUuid": parent, "isSidechain": False}
            if "cwd" in line and line["cwd"] == self._turn.workspace_path:
                line["cwd"] = self._workspace
            if record.get("subtype") == "compact_boundary":
                line["parentUuid"] = None
                line["logicalParentUuid"] = self._written_parent(text(record.get("logicalParentUuid"))) or self._last
            self._remember_line(line)
            self._note_calls(line)
            lines.append(line)
        return lines + self._close_calls()

    def _written_parent(self, parent: str | None) -> str | None:
        """The line that one hangs from: its own parent if that is written, else what was written last."""
        while parent in self._dropped:
            parent = self._dropped[parent]
        return parent if parent in self._uuids else self._last

    def _note_calls(self, line: dict[str, Any]) -> None:
        for block in map(mapping, sequence(mapping(line.get("message")).get("content"))):
            if block.get("type") == "tool_use" and (id := text(block.get("id"))):
                self._ids.note(id)
                self._callers[id] = line["uuid"]
            elif block.get("type") == "tool_result" and (id := text(block.get("tool_use_id"))):
                self._callers.pop(id, None)

    def _remember_line(self, line: dict[str, Any]) -> None:
        self._last = line["uuid"]
        self._uuids.add(line["uuid"])

    def _line(self, kind: str, time: int, parent: str | None = None, **fields: Any) -> dict[str, Any]:
        self._number += 1
        line = self._format.make_record(
            kind,
            uuid=uuid_for(self._turn.id, self._number),
            parentUuid=None if kind == "boundary" else parent or self._last,
            sessionId=self._session,
            timestamp=iso_from_ms(time),
            cwd=self._workspace,
            gitBranch=self._turn.git_branch or "",
            **fields,
        )
        self._remember_line(line)
        return line

    def _translated(self, thread_turn: ThreadTurn) -> Records:
        lines: Records = []
        response = ""
        for message, following in zip_longest(thread_turn.messages, thread_turn.messages[1:]):
            if message.role == "assistant":
                is_new = not (response and _is_use(message))
                response = f"msg_{hex_for(self._turn.id, message.id)}" if is_new else response
                lines += self._answer(message, response, is_last=not (following and _is_use(following)))
                continue
            response = ""
            if message.role == "tool":
                lines += self._results(message)
            elif message.role != "system":
                lines += self._close_calls()
                lines += self._prompt(message)
        lines += self._close_calls()
        turn = thread_turn.turn
        ended = turn.completed_at or turn.started_at
        if turn.interruption_reason is not None:
            lines.append(self._line("prompt", ended, message={"role": "user", "content": _blocks_of(_INTERRUPTED)}))
        lines = lines or [self._note(thread_turn)]
        took = max(0, ended - turn.started_at)
        return [*lines, self._line("end", ended, durationMs=took, messageCount=len(lines))]

    def _note(self, thread_turn: ThreadTurn) -> dict[str, Any]:
        message = {"role": "user", "content": note_on(thread_turn)}
        return self._line("prompt", thread_turn.turn.started_at, message=message, isMeta=True)

    def _prompt(self, message: Message) -> Records:
        results = [part for part in message.content if isinstance(part, ToolResultPart)]
        lines = self._results(message) if results else []
        blocks = [block for part in message.content if (block := _block(part)) is not None]
        if not blocks:
            return lines
        content: Any = blocks[0]["text"] if len(blocks) == 1 and blocks[0]["type"] == "text" else blocks
        return [*lines, self._line("prompt", message.created_at, message={"role": "user", "content": content})]

    def _answer(self, message: Message, response: str, is_last: bool) -> Records:
        """One line per block; only the last line of a response tells why it ended."""
        thoughts, blocks = _signed_thoughts(message), []
        for at, part in enumerate(message.content):
            blocks += thoughts.get(at, [])
            blocks += [block] if (block := self._answer_block(part)) is not None else []
        model = message.model or self._turn.model or _SYNTHETIC
        lines: Records = []
        for number, block in enumerate(blocks):
            ends = is_last and number == len(blocks) - 1
            reason = ("tool_use" if block["type"] == "tool_use" else "end_turn") if ends else None
            inner = self._format.make_record("message", id=response, model=model, content=[block], stop_reason=reason)
            line = self._line("answer", message.created_at, message=inner)
            if block["type"] == "tool_use":
                self._callers[block["id"]] = line["uuid"]
            lines.append(line)
        return lines

    def _answer_block(self, part: Part) -> dict[str, Any] | None:
        if isinstance(part, ToolUsePart):
            id = self._ids.claim_id(part.id, self._turn.id)
            self._renamed.setdefault(part.id, []).append(id)
            input_fields = part.input if isinstance(part.input, dict) else {"input": part.input}
            return {"type": "tool_use", "id": id, "name": tool_name(part.name), "input": input_fields}
        return _block(part) if isinstance(part, TextPart) else None

    def _results(self, message: Message) -> Records:
        """A result of a call that is not here is told as a text of the tool's own."""
        lines: Records = []
        for part in message.content:
            waiting = self._renamed.get(part.tool_call_id) if isinstance(part, ToolResultPart) else None
            if isinstance(part, ToolResultPart) and waiting:
                block = {"type": "tool_result", "tool_use_id": waiting.pop(0), "content": result_content(part.output)}
                if part.is_error is not UNSET and part.is_error:
                    block["is_error"] = True
                lines.append(self._result(block, message.created_at))
            else:
                words = as_text(part.output) if isinstance(part, ToolResultPart) else str(getattr(part, "text", ""))
                if words and message.role == "tool":
                    content = {"role": "user", "content": words}
                    lines.append(self._line("prompt", message.created_at, message=content, isMeta=True))
        return lines

    def _result(self, block: dict[str, Any], time: int) -> dict[str, Any]:
        caller = self._callers.pop(block["tool_use_id"])
        message = {"role": "user", "content": [block]}
        return self._line("result", time, caller, message=message, sourceToolAssistantUUID=caller)

    def _close_calls(self) -> Records:
        """Every call has its result: a provider takes no other history."""
        time = self._turn.completed_at or self._turn.started_at
        blocks = [
            {"type": "tool_result", "tool_use_id": id, "content": _UNANSWERED, "is_error": True} for id in self._callers
        ]
        return [self._result(block, time) for block in blocks]

    def _compacted(self, thread_turn: ThreadTurn) -> Records:
        compaction, time = thread_turn.compaction, thread_turn.turn.started_at
        assert compaction is not None
        if not compaction.summary:
            self.lost["empty summaries"] += 1
            return self._translated(thread_turn)
        before, self._number = self._last, 1
        summary = uuid_for(thread_turn.turn.id, self._number + 1)
        metadata = {
            "trigger": _TRIGGERS.get(compaction.trigger or "", "auto"),
            "preTokens": compaction.tokens_before or 0,
            **self._preserved(compaction.first_kept, summary),
        }
        self._number = 0
        boundary = self._line("boundary", time, logicalParentUuid=before, compactMetadata=metadata)
        content = {"role": "user", "content": compaction.summary}
        return [boundary, self._line("summary", time, boundary["uuid"], message=content)]

    def _preserved(self, first_kept: str | None, summary: str) -> dict[str, Any]:
        """The lines that a compaction kept in view, from the first kept turn on."""
        turns = list(self._lines)
        if first_kept not in turns:
            return {}
        kept_lines = [uuid for turn in turns[turns.index(first_kept) :] for uuid in self._lines[turn]]
        if not kept_lines:
            return {}
        return {
            "preservedSegment": {"headUuid": kept_lines[0], "anchorUuid": summary, "tailUuid": kept_lines[-1]},
            "preservedMessages": {"anchorUuid": summary, "uuids": kept_lines, "allUuids": kept_lines},
        }


def _is_grant(record: dict[str, Any]) -> bool:
    """Whether a line lists tools that run without a question."""
    return mapping(record.get("attachment")).get("type") in _GRANTING_ATTACHMENTS


def _signed_thoughts(message: Message) -> dict[int, list[dict[str, Any]]]:
    """Blocks of thinking by the number of the part that they stand at: those that Anthropic takes again."""
    thoughts: dict[int, list[dict[str, Any]]] = {}
    for item in sealed_items(message, ANTHROPIC):
        signature, data = item.fields.get("signature"), item.fields.get("redacted")
        texts = [str(part.text) for part in message.content[item.at : item.at + item.parts] if hasattr(part, "text")]
        if isinstance(signature, str):
            block = {"type": "thinking", "thinking": "".join(texts), "signature": signature}
            thoughts.setdefault(item.at, []).append(block)
        elif isinstance(data, str):
            thoughts.setdefault(item.at, []).append({"type": "redacted_thinking", "data": data})
    return thoughts


def _is_use(message: Message) -> bool:
    """Does it only stand for calls, which belong to the answer before it?"""
    return message.id.endswith("#use")


def _blocks_of(words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": words}]


def _block(part: Part) -> dict[str, Any] | None:
    """A provider takes no empty text."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": str(part.text)} if str(part.text).strip() else None
    return {"type": "image", "source": _image(str(part.url))} if isinstance(part, ImagePart) else None


def _image(url: str) -> dict[str, Any]:
    head, comma, data = url.partition(";base64,")
    if comma and head.startswith("data:"):
        return {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
    return {"type": "url", "url": url}


def result_content(output: Any) -> Any:
    """What the model was given back: text, or blocks of text and images."""
    blocks = [_result_block(mapping(value)) for value in sequence(output)]
    if blocks and all(block is not None for block in blocks):
        return blocks
    return as_text(output)


def _result_block(block: dict[str, Any]) -> dict[str, Any] | None:
    kind, words, url = block.get("type"), block.get("text"), block.get("image_url")
    if kind in ("text", "input_text", "output_text") and isinstance(words, str):
        return {"type": "text", "text": words}
    if kind == "image" and isinstance(block.get("source"), dict):
        return {"type": "image", "source": block["source"]}
    if kind == "input_image" and isinstance(url, str):
        return {"type": "image", "source": _image(url)}
    return None


# --- A thread as a rollout file of Codex.

_CODEX_UNANSWERED = "aborted"
_OUTPUTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "function_call_output",
}
_NOT_OURS = frozenset({"session_meta"})
_GRANTS = (
    "approval_policy",
    "sandbox_policy",
    "permission_profile",
    "active_permission_profile",
    "file_system_sandbox_policy",
    "network_sandbox_policy",
    "network",
    "approvals_reviewer",
)
"""Of what a turn begins with, what says how much it may do unasked."""
_UNNAMED = "unknown"


class CodexWriter:
    def __init__(self, format: Format, session: str, workspace: str, now: int, provider: str | None) -> None:
        """`provider`: the one that Codex is configured for; else it is that of the format."""
        self._provider = {} if provider is None else {"model_provider": provider}
        self._format, self._session, self._workspace, self._now = format, session, workspace, now
        self.lost: Counter[str] = Counter()
        self.verbatim = 0
        self._ids = CallIds("call_")
        self._open: dict[str, str] = {}
        """Calls that wait for their output, and what kind of output that is."""
        self._renamed: dict[str, list[str]] = {}
        self._items: dict[str, Records] = {}
        """What each turn put before the model, for compactions that keep some."""
        self._turn: Turn
        self._id = ""
        self._final: str | None = None

    def begin_session(self, title: str | None) -> Records:
        started = iso_from_ms(self._now)
        meta = self._format.make_record(
            "session_meta", id=self._session, session_id=self._session, timestamp=started, cwd=self._workspace
        )
        meta |= self._provider
        lines = [self._format.make_record("line", timestamp=started, type="session_meta", payload=meta)]
        if title:
            lines.append(self._event(self._now, "thread_name_updated", thread_id=self._session, thread_name=title))
        return lines

    def write(self, thread_turn: ThreadTurn) -> Records:
        self._turn, self._open, self._renamed = thread_turn.turn, {}, {}
        self._id = timed_uuid_for(thread_turn.turn.started_at, thread_turn.turn.id)
        if thread_turn.verbatim is not None and all(map(self._is_line, thread_turn.verbatim)):
            lines = self._verbatim(thread_turn.verbatim)
            self.verbatim += 1
        else:
            self.lost.update(name for name in losses(thread_turn) if name in self._format.lost)
            lines = (
                self._compacted(thread_turn) if thread_turn.compaction is not None else self._translated(thread_turn)
            )
        self._items[thread_turn.turn.id] = [record["payload"] for record in lines if record["type"] == "response_item"]
        return lines

    def _is_line(self, record: dict[str, Any]) -> bool:
        return self._format.needs("line") <= record.keys() and isinstance(record["payload"], dict)

    def _verbatim(self, records: Records) -> Records:
        lines = [
            {key: value for key, value in record.items() if key != "ordinal"}
            for record in records
            if record["type"] not in _NOT_OURS
        ]
        for record in lines:
            if record["type"] == "turn_context":
                record["payload"] = self._without_grants(record["payload"])
            payload = record["payload"]
            kind, id = text(payload.get("type")) or "", text(payload.get("call_id"))
            if id and kind in _OUTPUTS:
                self._ids.note(id)
                self._open[id] = _OUTPUTS[kind]
            elif id and kind.endswith("_output"):
                self._open.pop(id, None)
        return lines + self._close_calls()

    def _without_grants(self, context: dict[str, Any]) -> dict[str, Any]:
        """What a turn began with, and nothing that lets the next one do more than it may by default: the session may be
        a stranger's."""
        kept = {key: value for key, value in context.items() if key not in _GRANTS}
        fixed = self._format.shape("turn_context").fixed
        return {**kept, **{key: fixed[key] for key in _GRANTS if key in fixed}}

    def _line(self, time: int, type: str, payload: dict[str, Any]) -> dict[str, Any]:
        return self._format.make_record("line", timestamp=iso_from_ms(time), type=type, payload=payload)

    def _event(self, time: int, kind: str, **fields: Any) -> dict[str, Any]:
        return self._line(time, "event_msg", self._format.make_record(kind, **fields))

    def _item(self, time: int, kind: str, **fields: Any) -> dict[str, Any]:
        return self._line(time, "response_item", self._format.make_record(kind, **fields))

    def _translated(self, thread_turn: ThreadTurn) -> Records:
        turn, time = thread_turn.turn, thread_turn.turn.started_at
        lines = [self._event(time, "task_started", turn_id=self._id, started_at=time // 1000)]
        context = self._format.make_record(
            "turn_context", turn_id=self._id, cwd=self._workspace, model=turn.model or _UNNAMED
        )
        lines.append(self._line(time, "turn_context", context))
        answers = [message.id for message in thread_turn.messages if message.role == "assistant" and message.text]
        self._final = answers[-1] if answers else None
        spoken = [record for message in thread_turn.messages for record in self._message(message)]
        if all(record["payload"].get("role") == "developer" for record in spoken):
            content = [{"type": "input_text", "text": note_on(thread_turn)}]
            spoken.append(self._item(time, "message", role="user", content=content))
        return [*lines, *spoken, *self._close_calls(), self._end_event(thread_turn)]

    def _end_event(self, thread_turn: ThreadTurn) -> dict[str, Any]:
        turn = thread_turn.turn
        ended = turn.completed_at or turn.started_at
        took = max(0, ended - turn.started_at)
        if turn.interruption_reason is not None:
            return self._event(ended, "turn_aborted", turn_id=self._id, completed_at=ended // 1000, duration_ms=took)
        answers = [message.text for message in thread_turn.messages if message.role == "assistant" and message.text]
        return self._event(
            ended,
            "task_complete",
            turn_id=self._id,
            last_agent_message=answers[-1] if answers else None,
            completed_at=ended // 1000,
            duration_ms=took,
        )

    def _message(self, message: Message) -> Records:
        if message.role == "assistant":
            return [record for part in message.content for record in self._answer(message, part)]
        if message.role == "tool":
            return [record for part in message.content for record in self._result(message, part)]
        lines = [record for part in message.content if isinstance(part, ToolResultPart)
                for record in self._result(message, part)]  # fmt: skip
        blocks = [block for part in message.content if (block := _input(part)) is not None]
        if not blocks:
            return lines
        if message.role == "system":
            return [*lines, self._item(message.created_at, "message", role="developer", content=blocks)]
        lines += self._close_calls()
        images = [block["image_url"] for block in blocks if block["type"] == "input_image"]
        lines.append(self._item(message.created_at, "message", role="user", content=blocks))
        return [*lines, self._event(message.created_at, "user_message", message=message.text, images=images)]

    def _answer(self, message: Message, part: Part) -> Records:
        time = message.created_at
        if isinstance(part, TextPart) and str(part.text).strip():
            words = str(part.text)
            content = [{"type": "output_text", "text": words}]
            return [
                self._event(time, "agent_message", message=words, phase=self._phase(message)),
                self._item(time, "message", role="assistant", content=content),
            ]
        if isinstance(part, ReasoningPart) and str(part.text).strip():
            return [self._event(time, "agent_reasoning", text=str(part.text))]
        if isinstance(part, ToolUsePart):
            id = self._ids.claim_id(part.id, self._turn.id)
            self._renamed.setdefault(part.id, []).append(id)
            self._open[id] = "function_call_output"
            input_fields = part.input if isinstance(part.input, dict) else {"input": part.input}
            arguments, name = as_text(input_fields), tool_name(part.name)
            return [self._item(time, "function_call", name=name, arguments=arguments, call_id=id)]
        return []

    def _phase(self, message: Message) -> str:
        return "final_answer" if message.id == self._final else "commentary"

    def _result(self, message: Message, part: Part) -> Records:
        """A result of a call that is not here is told as a text, in the user's role."""
        time = message.created_at
        if isinstance(part, ToolResultPart) and (waiting := self._renamed.get(part.tool_call_id)):
            return [self._output(waiting.pop(0), _output(part.output), time)]
        words = as_text(part.output) if isinstance(part, ToolResultPart) else str(getattr(part, "text", ""))
        if not words or message.role != "tool":
            return []
        return [self._item(time, "message", role="user", content=[{"type": "input_text", "text": words}])]

    def _output(self, call: str, output: Any, time: int) -> dict[str, Any]:
        return self._item(time, self._open.pop(call), call_id=call, output=output)

    def _close_calls(self) -> Records:
        """Every call has its output: a provider takes no other history."""
        time = self._turn.completed_at or self._turn.started_at
        return [self._output(call, _CODEX_UNANSWERED, time) for call in list(self._open)]

    def _compacted(self, thread_turn: ThreadTurn) -> Records:
        compaction, time = thread_turn.compaction, thread_turn.turn.started_at
        assert compaction is not None
        if not compaction.summary:
            self.lost["empty summaries"] += 1
            return self._translated(thread_turn)
        turns = list(self._items)
        kept_turns = turns[turns.index(compaction.first_kept) :] if compaction.first_kept in turns else []
        content = [{"type": "input_text", "text": compaction.summary}]
        history = [
            self._format.make_record("message", role="user", content=content),
            *(item for turn in kept_turns for item in self._items[turn]),
        ]
        payload = self._format.make_record("compacted", message=compaction.summary, replacement_history=history)
        return [self._line(time, "compacted", payload), self._event(time, "context_compacted")]


def _input(part: Part) -> dict[str, Any] | None:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": str(part.text)} if str(part.text).strip() else None
    return {"type": "input_image", "image_url": str(part.url)} if isinstance(part, ImagePart) else None


def _output(output: Any) -> Any:
    """What the model was given back: text, or blocks of text and images."""
    blocks = [_output_block(mapping(value)) for value in sequence(output)]
    if blocks and all(block is not None for block in blocks):
        return blocks
    return as_text(output)


def _output_block(block: dict[str, Any]) -> dict[str, Any] | None:
    kind, words = block.get("type"), block.get("text")
    if kind in ("text", "input_text", "output_text") and isinstance(words, str):
        return {"type": "input_text", "text": words}
    source = mapping(block.get("source"))
    if kind == "input_image" and isinstance(block.get("image_url"), str):
        return {"type": "input_image", "image_url": block["image_url"]}
    if kind == "image" and isinstance(data := source.get("data"), str):
        return {"type": "input_image", "image_url": f"data:{source.get('media_type')};base64,{data}"}
    return None
