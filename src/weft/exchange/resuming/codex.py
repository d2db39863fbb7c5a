"""A thread as a rollout file of Codex.

A turn goes from `task_started` to `task_complete` or `turn_aborted`. What the model gets back are `response_item`
records; `event_msg` records beside them are what a person is shown. Records that Codex wrote itself stay as they were;
only those that name the session are written anew.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from weft.exchange.importers.records.values import mapping, sequence, text
from weft.exchange.resuming.dialogue import Records, ThreadTurn, as_text, losses, note_on
from weft.exchange.resuming.formats import Format
from weft.exchange.resuming.names import CallIds, timed_uuid_for, tool_name
from weft.kernel.clock import iso_from_ms
from weft.ledger.model import ImagePart, Message, Part, ReasoningPart, TextPart, ToolResultPart, ToolUsePart, Turn

_UNANSWERED = "aborted"
_OUTPUTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "function_call_output",
}
_NOT_OURS = frozenset({"session_meta"})
_UNNAMED = "unknown"


class CodexWriter:
    def __init__(self, format: Format, session: str, workspace: str, now: int) -> None:
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

    def begin(self, title: str | None) -> Records:
        started = iso_from_ms(self._now)
        meta = self._format.make(
            "session_meta", id=self._session, session_id=self._session, timestamp=started, cwd=self._workspace
        )
        made = [self._format.make("line", timestamp=started, type="session_meta", payload=meta)]
        if title:
            made.append(self._event(self._now, "thread_name_updated", thread_id=self._session, thread_name=title))
        return made

    def write(self, thread_turn: ThreadTurn) -> Records:
        self._turn, self._open, self._renamed = thread_turn.turn, {}, {}
        self._id = timed_uuid_for(thread_turn.turn.started_at, thread_turn.turn.id)
        if thread_turn.verbatim is not None and all(map(self._is_line, thread_turn.verbatim)):
            made = self._verbatim(thread_turn.verbatim)
            self.verbatim += 1
        else:
            self.lost.update(name for name in losses(thread_turn) if name in self._format.lost)
            made = self._compacted(thread_turn) if thread_turn.compaction is not None else self._translated(thread_turn)
        self._items[thread_turn.turn.id] = [record["payload"] for record in made if record["type"] == "response_item"]
        return made

    def _is_line(self, record: dict[str, Any]) -> bool:
        return self._format.needs("line") <= record.keys() and isinstance(record["payload"], dict)

    def _verbatim(self, records: Records) -> Records:
        made = [
            {key: value for key, value in record.items() if key != "ordinal"}
            for record in records
            if record["type"] not in _NOT_OURS
        ]
        for record in made:
            payload = record["payload"]
            kind, id = text(payload.get("type")) or "", text(payload.get("call_id"))
            if id and kind in _OUTPUTS:
                self._ids.note(id)
                self._open[id] = _OUTPUTS[kind]
            elif id and kind.endswith("_output"):
                self._open.pop(id, None)
        return made + self._answers()

    def _line(self, at: int, type: str, payload: dict[str, Any]) -> dict[str, Any]:
        return self._format.make("line", timestamp=iso_from_ms(at), type=type, payload=payload)

    def _event(self, at: int, kind: str, **fields: Any) -> dict[str, Any]:
        return self._line(at, "event_msg", self._format.make(kind, **fields))

    def _item(self, at: int, kind: str, **fields: Any) -> dict[str, Any]:
        return self._line(at, "response_item", self._format.make(kind, **fields))

    def _translated(self, thread_turn: ThreadTurn) -> Records:
        turn, at = thread_turn.turn, thread_turn.turn.started_at
        made = [self._event(at, "task_started", turn_id=self._id, started_at=at // 1000)]
        context = self._format.make("turn_context", turn_id=self._id, cwd=self._workspace, model=turn.model or _UNNAMED)
        made.append(self._line(at, "turn_context", context))
        answers = [message.id for message in thread_turn.messages if message.role == "assistant" and message.text]
        self._final = answers[-1] if answers else None
        spoken = [record for message in thread_turn.messages for record in self._message(message)]
        if all(record["payload"].get("role") == "developer" for record in spoken):
            content = [{"type": "input_text", "text": note_on(thread_turn)}]
            spoken.append(self._item(at, "message", role="user", content=content))
        return [*made, *spoken, *self._answers(), self._end(thread_turn)]

    def _end(self, thread_turn: ThreadTurn) -> dict[str, Any]:
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
        made = [record for part in message.content if isinstance(part, ToolResultPart)
                for record in self._result(message, part)]  # fmt: skip
        blocks = [block for part in message.content if (block := _input(part)) is not None]
        if not blocks:
            return made
        if message.role == "system":
            return [*made, self._item(message.created_at, "message", role="developer", content=blocks)]
        made += self._answers()
        images = [block["image_url"] for block in blocks if block["type"] == "input_image"]
        made.append(self._item(message.created_at, "message", role="user", content=blocks))
        return [*made, self._event(message.created_at, "user_message", message=message.text, images=images)]

    def _answer(self, message: Message, part: Part) -> Records:
        at = message.created_at
        if isinstance(part, TextPart) and str(part.text).strip():
            words = str(part.text)
            content = [{"type": "output_text", "text": words}]
            return [
                self._event(at, "agent_message", message=words, phase=self._phase(message)),
                self._item(at, "message", role="assistant", content=content),
            ]
        if isinstance(part, ReasoningPart) and str(part.text).strip():
            return [self._event(at, "agent_reasoning", text=str(part.text))]
        if isinstance(part, ToolUsePart):
            id = self._ids.take(part.id, self._turn.id)
            self._renamed.setdefault(part.id, []).append(id)
            self._open[id] = "function_call_output"
            given = part.input if isinstance(part.input, dict) else {"input": part.input}
            arguments, name = as_text(given), tool_name(part.name)
            return [self._item(at, "function_call", name=name, arguments=arguments, call_id=id)]
        return []

    def _phase(self, message: Message) -> str:
        return "final_answer" if message.id == self._final else "commentary"

    def _result(self, message: Message, part: Part) -> Records:
        """A result of a call that is not here is told as a text, in the user's role."""
        at = message.created_at
        if isinstance(part, ToolResultPart) and (waiting := self._renamed.get(part.tool_call_id)):
            return [self._output(waiting.pop(0), _output(part.output), at)]
        words = as_text(part.output) if isinstance(part, ToolResultPart) else str(getattr(part, "text", ""))
        if not words or message.role != "tool":
            return []
        return [self._item(at, "message", role="user", content=[{"type": "input_text", "text": words}])]

    def _output(self, call: str, output: Any, at: int) -> dict[str, Any]:
        return self._item(at, self._open.pop(call), call_id=call, output=output)

    def _answers(self) -> Records:
        """Every call has its output: a provider takes no other history."""
        at = self._turn.completed_at or self._turn.started_at
        return [self._output(call, _UNANSWERED, at) for call in list(self._open)]

    def _compacted(self, thread_turn: ThreadTurn) -> Records:
        compaction, at = thread_turn.compaction, thread_turn.turn.started_at
        assert compaction is not None
        if not compaction.summary:
            self.lost["empty summaries"] += 1
            return self._translated(thread_turn)
        turns = list(self._items)
        kept = turns[turns.index(compaction.first_kept) :] if compaction.first_kept in turns else []
        content = [{"type": "input_text", "text": compaction.summary}]
        history = [
            self._format.make("message", role="user", content=content),
            *(item for turn in kept for item in self._items[turn]),
        ]
        payload = self._format.make("compacted", message=compaction.summary, replacement_history=history)
        return [self._line(at, "compacted", payload), self._event(at, "context_compacted")]


def _input(part: Part) -> dict[str, Any] | None:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": str(part.text)} if str(part.text).strip() else None
    return {"type": "input_image", "image_url": str(part.url)} if isinstance(part, ImagePart) else None


def _output(output: Any) -> Any:
    """What the model was given back: text, or blocks of text and images."""
    blocks = [_output_block(mapping(each)) for each in sequence(output)]
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
