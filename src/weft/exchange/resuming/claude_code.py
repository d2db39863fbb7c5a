"""A thread as a session file of Claude Code.

One line per content block, as Claude Code writes them: lines of one response share its message id, a result hangs from
the line of its call, and what follows hangs from the last result. Lines that Claude Code wrote itself stay as they
were, under the new session's id, which is how it copies a session.
"""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest
from typing import Any

from msgspec import UNSET

from weft.exchange.importers.records.values import mapping, sequence, text
from weft.exchange.resuming.dialogue import Records, ThreadTurn, as_text, losses, note_on
from weft.exchange.resuming.formats import Format
from weft.exchange.resuming.names import CallIds, hex_for, tool_name, uuid_for
from weft.kernel.clock import iso_from_ms
from weft.ledger.model import ImagePart, Message, Part, TextPart, ToolResultPart, ToolUsePart, Turn

_TREE = frozenset({"user", "assistant", "system", "attachment"})
_INTERRUPTED = "[Request interrupted by user]"
_UNANSWERED = "[No result was recorded for this call]"
_TRIGGERS = {"manual": "manual"}
_SYNTHETIC = "<synthetic>"


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

    def begin(self, title: str | None) -> Records:
        return [self._format.make("title", aiTitle=title, sessionId=self._session)] if title else []

    def write(self, thread_turn: ThreadTurn) -> Records:
        self._turn, self._number = thread_turn.turn, 0
        self._callers, self._renamed = {}, {}
        if thread_turn.verbatim is not None and all(map(self._is_line, thread_turn.verbatim)):
            made = self._verbatim(thread_turn.verbatim)
            self.verbatim += 1
        else:
            self.lost.update(name for name in losses(thread_turn) if name in self._format.lost)
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
        made: Records = []
        for record in records:
            uuid, parent = text(record.get("uuid")), self._above(text(record.get("parentUuid")))
            if record["type"] == "progress":
                if uuid:
                    self._dropped[uuid] = parent
                continue
            assert uuid is not None
            if uuid in self._uuids:
                continue
            line = {key: value for key, value in record.items() if key != "agentId"}
            line |= {"sessionId": self._session, "parentUuid": parent, "isSidechain": False}
            if "cwd" in line and line["cwd"] == self._turn.workspace_path:
                line["cwd"] = self._workspace
            if record.get("subtype") == "compact_boundary":
                line["parentUuid"] = None
                line["logicalParentUuid"] = self._above(text(record.get("logicalParentUuid"))) or self._last
            self._take(line)
            self._note_calls(line)
            made.append(line)
        return made + self._answers()

    def _above(self, parent: str | None) -> str | None:
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

    def _take(self, line: dict[str, Any]) -> None:
        self._last = line["uuid"]
        self._uuids.add(line["uuid"])

    def _line(self, kind: str, at: int, parent: str | None = None, **fields: Any) -> dict[str, Any]:
        self._number += 1
        line = self._format.make(
            kind,
            uuid=uuid_for(self._turn.id, self._number),
            parentUuid=None if kind == "boundary" else parent or self._last,
            sessionId=self._session,
            timestamp=iso_from_ms(at),
            cwd=self._workspace,
            gitBranch=self._turn.git_branch or "",
            **fields,
        )
        self._take(line)
        return line

    def _translated(self, thread_turn: ThreadTurn) -> Records:
        made: Records = []
        response = ""
        for message, following in zip_longest(thread_turn.messages, thread_turn.messages[1:]):
            if message.role == "assistant":
                is_new = not (response and _is_use(message))
                response = f"msg_{hex_for(self._turn.id, message.id)}" if is_new else response
                made += self._answer(message, response, is_last=not (following and _is_use(following)))
                continue
            response = ""
            if message.role == "tool":
                made += self._results(message)
            elif message.role != "system":
                made += self._answers()
                made += self._prompt(message)
        made += self._answers()
        turn = thread_turn.turn
        ended = turn.completed_at or turn.started_at
        if turn.interruption_reason is not None:
            made.append(self._line("prompt", ended, message={"role": "user", "content": _blocks_of(_INTERRUPTED)}))
        made = made or [self._note(thread_turn)]
        took = max(0, ended - turn.started_at)
        return [*made, self._line("end", ended, durationMs=took, messageCount=len(made))]

    def _note(self, thread_turn: ThreadTurn) -> dict[str, Any]:
        message = {"role": "user", "content": note_on(thread_turn)}
        return self._line("prompt", thread_turn.turn.started_at, message=message, isMeta=True)

    def _prompt(self, message: Message) -> Records:
        results = [part for part in message.content if isinstance(part, ToolResultPart)]
        made = self._results(message) if results else []
        blocks = [block for part in message.content if (block := _block(part)) is not None]
        if not blocks:
            return made
        content: Any = blocks[0]["text"] if len(blocks) == 1 and blocks[0]["type"] == "text" else blocks
        return [*made, self._line("prompt", message.created_at, message={"role": "user", "content": content})]

    def _answer(self, message: Message, response: str, is_last: bool) -> Records:
        """One line per block; only the last line of a response tells why it ended."""
        blocks = [block for part in message.content if (block := self._answer_block(part)) is not None]
        model = message.model or self._turn.model or _SYNTHETIC
        made: Records = []
        for number, block in enumerate(blocks):
            ends = is_last and number == len(blocks) - 1
            reason = ("tool_use" if block["type"] == "tool_use" else "end_turn") if ends else None
            inner = self._format.make("message", id=response, model=model, content=[block], stop_reason=reason)
            line = self._line("answer", message.created_at, message=inner)
            if block["type"] == "tool_use":
                self._callers[block["id"]] = line["uuid"]
            made.append(line)
        return made

    def _answer_block(self, part: Part) -> dict[str, Any] | None:
        if isinstance(part, ToolUsePart):
            id = self._ids.take(part.id, self._turn.id)
            self._renamed.setdefault(part.id, []).append(id)
            given = part.input if isinstance(part.input, dict) else {"input": part.input}
            return {"type": "tool_use", "id": id, "name": tool_name(part.name), "input": given}
        return _block(part) if isinstance(part, TextPart) else None

    def _results(self, message: Message) -> Records:
        """A result of a call that is not here is told as a text of the tool's own."""
        made: Records = []
        for part in message.content:
            waiting = self._renamed.get(part.tool_call_id) if isinstance(part, ToolResultPart) else None
            if isinstance(part, ToolResultPart) and waiting:
                block = {"type": "tool_result", "tool_use_id": waiting.pop(0), "content": result_content(part.output)}
                if part.is_error is not UNSET and part.is_error:
                    block["is_error"] = True
                made.append(self._result(block, message.created_at))
            else:
                words = as_text(part.output) if isinstance(part, ToolResultPart) else str(getattr(part, "text", ""))
                if words and message.role == "tool":
                    content = {"role": "user", "content": words}
                    made.append(self._line("prompt", message.created_at, message=content, isMeta=True))
        return made

    def _result(self, block: dict[str, Any], at: int) -> dict[str, Any]:
        caller = self._callers.pop(block["tool_use_id"])
        message = {"role": "user", "content": [block]}
        return self._line("result", at, caller, message=message, sourceToolAssistantUUID=caller)

    def _answers(self) -> Records:
        """Every call has its result: a provider takes no other history."""
        at = self._turn.completed_at or self._turn.started_at
        blocks = [
            {"type": "tool_result", "tool_use_id": id, "content": _UNANSWERED, "is_error": True} for id in self._callers
        ]
        return [self._result(block, at) for block in blocks]

    def _compacted(self, thread_turn: ThreadTurn) -> Records:
        compaction, at = thread_turn.compaction, thread_turn.turn.started_at
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
        boundary = self._line("boundary", at, logicalParentUuid=before, compactMetadata=metadata)
        content = {"role": "user", "content": compaction.summary}
        return [boundary, self._line("summary", at, boundary["uuid"], message=content)]

    def _preserved(self, first_kept: str | None, summary: str) -> dict[str, Any]:
        """The lines that a compaction kept in view, from the first kept turn on."""
        turns = list(self._lines)
        if first_kept not in turns:
            return {}
        kept = [uuid for turn in turns[turns.index(first_kept) :] for uuid in self._lines[turn]]
        if not kept:
            return {}
        return {
            "preservedSegment": {"headUuid": kept[0], "anchorUuid": summary, "tailUuid": kept[-1]},
            "preservedMessages": {"anchorUuid": summary, "uuids": kept, "allUuids": kept},
        }


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
    blocks = [_result_block(mapping(each)) for each in sequence(output)]
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
