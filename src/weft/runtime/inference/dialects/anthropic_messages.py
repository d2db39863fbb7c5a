"""Anthropic's Messages."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from weft.ledger.model import Part, ReasoningPart, TextPart
from weft.runtime.egress.connections import Client
from weft.runtime.inference.dialects.dialect_port import (
    AnswerContent,
    ImageData,
    ModelAnswer,
    ModelFacts,
    ModelQuestion,
    OnPiece,
    ShownResult,
    TokenCounts,
    UserContent,
    WireConversation,
    WireMessages,
    WireNames,
    call_arguments,
    count_of,
    json_text,
    offered_names,
    read_call,
    wire_name,
)
from weft.runtime.inference.dialects.server_answers import ServerRefusal, post_streamed, post_whole
from weft.runtime.inference.model_requests import Thinking, ToolSpec
from weft.runtime.replies import Finish, TokenKind

_HEADERS = {"anthropic-version": "2026-10-21"}
_FINISH = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "compaction": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_use": Finish.TOOL_CALL,
    "refusal": Finish.CONTENT_FILTER,
}
_PARAMETERS = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "stop": "stop_sequences"}
_BUDGETS: dict[Thinking, int] = {True: 10_000, "minimal": 1024, "low": 2048, "medium": 10_000, "high": 16_384}
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}
USUAL_OUTPUT_TOKENS, SMALL_OUTPUT_TOKENS = 16_384, 4096
"""The protocol wants a limit where nobody gives one."""
TOKENS_AFTER_THINKING = 4096
LONGEST_WHOLE_TOKENS = 21_333
"""An answer that may be longer takes minutes: it is streamed, whoever listens, so that the connection is not idle."""
_COUNTS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class MessagesConversation(WireConversation):
    """Messages of users and of the model in turn; prompts of the system stand apart. What is next to each other from
    the same side of a request is one message."""

    def __init__(self, *, images: bool = True) -> None:
        super().__init__(images=images)
        self._messages: list[dict[str, Any]] = []
        self._system: list[str] = []

    def add_system(self, content: list[UserContent]) -> None:
        self._system += [piece for piece in content if isinstance(piece, str)]

    def add_user(self, content: list[UserContent]) -> None:
        self._add_blocks([_block(piece) for piece in content])

    def add_result(self, result: ShownResult) -> None:
        content = [_block(json_text(result.output)), *map(_block, result.images)]
        block = {"tool_use_id": result.call, "type": "tool_result", "content": content}
        self._add_blocks([{**block, "is_error": result.has_failed}])

    def add_answer(self, content: list[AnswerContent]) -> None:
        blocks = [
            _block(piece)
            if isinstance(piece, str)
            else {"id": piece.id, "type": "tool_use", "name": self.called_tool(piece), "input": call_arguments(piece)}
            for piece in content
        ]
        self._messages.append({"role": "assistant", "content": blocks})

    def _add_blocks(self, blocks: list[dict[str, Any]]) -> None:
        if self._messages and self._messages[-1]["role"] == "user":
            self._messages[-1] = {"role": "user", "content": [*self._messages[-1]["content"], *blocks]}
        else:
            self._messages.append({"role": "user", "content": blocks})

    def written(self) -> WireMessages:
        return WireMessages(list(self._messages), tuple(self._system), self._has_far_images)


def _block(content: str | ImageData) -> dict[str, Any]:
    if isinstance(content, str):
        return {"text": content, "type": "text"}
    if content.is_far:
        return {"source": {"type": "url", "url": content.url}, "type": "image"}
    return {"source": {"data": content.base64, "media_type": content.media_type, "type": "base64"}, "type": "image"}


class MessagesSpeaker:
    """Asks one model for messages."""

    def __init__(self, client: Client, url: str, facts: ModelFacts) -> None:
        self._client, self._url, self._facts = client, f"{url}/v1/messages", facts

    async def ask(self, question: ModelQuestion, on_piece: OnPiece | None) -> ModelAnswer:
        body, names = messages_body(question, self._facts), offered_names(question.tools)
        if on_piece is None and body["max_tokens"] <= LONGEST_WHOLE_TOKENS:
            return read_message(await post_whole(self._client, self._url, body, _HEADERS), names)
        reading = MessageStream(on_piece)
        async with post_streamed(self._client, self._url, {**body, "stream": True}, _HEADERS) as events:
            async for event in events:
                reading.read(event.data)
        return reading.answer(names)


def messages_body(question: ModelQuestion, facts: ModelFacts) -> dict[str, Any]:
    """What a server is asked."""
    given = question.parameters.given()
    body: dict[str, Any] = {"model": question.model, "messages": question.conversation.messages}
    if question.conversation.system:
        body["system"] = "\n\n".join(question.conversation.system)
    body |= {wire: given[ours] for ours, wire in _PARAMETERS.items() if ours in given}
    if (thinking := given.get("thinking")) is not None:
        body |= _thinking(thinking, facts)
    body["max_tokens"] = given.get("max_tokens") or _output_tokens(body.get("thinking", {}), facts)
    if question.tools:
        body |= {"tools": [_tool(tool) for tool in question.tools], "tool_choice": {"type": "auto"}}
    return body


def _thinking(thinking: Thinking, facts: ModelFacts) -> dict[str, Any]:
    """How a model is told to think. Where it cannot stop, it is asked to think as little as it can."""
    if thinking is False:
        if facts.always_thinks:
            return {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}} if facts.takes_effort else {}
        if facts.stops_between_tools:
            return {"thinking": {"type": "between_tools"}}
        return {"thinking": {"type": "disabled"}} if facts.thinks_by_default else {}
    if facts.has_budget:
        told: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": _BUDGETS[thinking]}}
    else:
        told = {"thinking": {"type": "adaptive"}}
    if isinstance(thinking, str) and facts.takes_effort:
        told["output_config"] = {"effort": _EFFORTS[thinking]}
    return told


def _output_tokens(thinking: dict[str, Any], facts: ModelFacts) -> int:
    """As much as the model writes, and more than it may think."""
    usual = (facts.output_tokens or USUAL_OUTPUT_TOKENS) if facts.fits_output_to_context else SMALL_OUTPUT_TOKENS
    return max(usual, int(thinking.get("budget_tokens", 0)) + TOKENS_AFTER_THINKING)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": wire_name(tool.name), "description": tool.description or "", "input_schema": tool.schema}


class _AnthropicBlock(Struct):
    """A piece of a message, or what is added to one. Kinds that were not asked for are passed over."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _AnthropicMessage(Struct):
    id: str | None = None
    model: str | None = None
    content: list[_AnthropicBlock] | None = None
    stop_reason: str | None = None
    usage: Any = None


class _AnthropicEvent(Struct):
    type: str = ""
    message: _AnthropicMessage | None = None
    index: int = 0
    content_block: _AnthropicBlock | None = None
    delta: _AnthropicBlock | None = None
    usage: Any = None
    error: Any = None


def read_message(data: bytes, names: WireNames) -> ModelAnswer:
    """A whole answer."""
    message = msgspec.json.decode(data, type=_AnthropicMessage)
    parts = [part for block in message.content or () if (part := _part(block, names)) is not None]
    return ModelAnswer(
        parts=tuple(parts),
        finish=_FINISH.get(message.stop_reason or ""),
        model=message.model or "",
        answer_id=message.id,
        tokens=read_usage(message.usage, {}),
    )


def _part(block: _AnthropicBlock, names: WireNames) -> Part | None:
    if block.type == "text" and block.text:
        return TextPart(block.text)
    if block.type == "thinking" and block.thinking:
        return ReasoningPart(block.thinking)
    return read_call(block.id, block.name or "", block.input, names) if block.type == "tool_use" else None


def read_usage(first: Any, last: Any) -> TokenCounts | None:
    """What a server counted, at the beginning of an answer and at its end: each count that is told again replaces the
    one before. Compactions that the server made on its way are counted apart, and paid for as the rest is."""
    first, last = ((usage if isinstance(usage, dict) else {}) for usage in (first, last))
    merged = {name: count_of(last if isinstance(last.get(name), int) else first, name) for name in _COUNTS}
    if not any(name in usage for usage in (first, last) for name in ("input_tokens", "output_tokens")):
        return None
    hour = min(count_of(first, "cache_creation", "ephemeral_1h_input_tokens"), merged["cache_creation_input_tokens"])
    for compaction in _compactions(last) or _compactions(first):
        merged = {name: count + count_of(compaction, name) for name, count in merged.items()}
        hour += count_of(compaction, "cache_creation", "ephemeral_1h_input_tokens")
    written, read = merged["cache_creation_input_tokens"], merged["cache_read_input_tokens"]
    thought = [count_of(usage, "output_tokens_details", "thinking_tokens") for usage in (last, first)]
    return TokenCounts(
        input=merged["input_tokens"] + written + read,
        output=merged["output_tokens"],
        cache_read=read,
        cache_write=written,
        cache_write_1h=hour,
        reasoning=thought[0] or thought[1],
    )


def _compactions(usage: dict[str, Any]) -> list[Any]:
    iterations = usage.get("iterations")
    rounds = iterations if isinstance(iterations, list) else []
    return [one for one in rounds if isinstance(one, dict) and one.get("type") == "compaction"]


class MessageStream:
    """Reads an answer from its events."""

    def __init__(self, on_piece: OnPiece | None) -> None:
        self._on_piece = on_piece
        self._blocks: dict[int, tuple[_AnthropicBlock, list[str]]] = {}
        """Each as it began, and what was added to it."""
        self._finish: str | None = None
        self._message = _AnthropicMessage()
        self._last_usage: Any = {}

    def read(self, data: bytes) -> None:
        event = msgspec.json.decode(data, type=_AnthropicEvent)
        match event.type:
            case "message_start" if event.message is not None:
                self._message = event.message
            case "content_block_start" if (block := event.content_block) is not None:
                self._blocks[event.index] = (block, [])
                self._tell(block.type, block.text, block.thinking)
            case "content_block_delta" if event.delta is not None and event.index in self._blocks:
                delta = event.delta
                added = self._blocks[event.index][1]
                added += [piece for piece in (delta.text, delta.thinking, delta.partial_json) if piece]
                self._tell(delta.type, delta.text, delta.thinking)
            case "message_delta":
                self._finish = event.delta.stop_reason if event.delta is not None else self._finish
                self._last_usage = event.usage
            case "error":
                raise ServerRefusal.within(event.error)
            case _:  # the end of a block or of the message, signs of life, kinds to come
                pass

    def _tell(self, kind: str, text: str | None, thinking: str | None) -> None:
        if self._on_piece is None:
            return
        if text and kind.startswith("text"):
            self._on_piece(TokenKind.TEXT, text)
        if thinking and kind.startswith("thinking"):
            self._on_piece(TokenKind.THINKING, thinking)

    def answer(self, names: WireNames) -> ModelAnswer:
        """All of it, once the stream has ended."""
        finish = _FINISH.get(self._finish or "")
        blocks = [_whole(block, "".join(added)) for _, (block, added) in sorted(self._blocks.items())]
        # of a cut answer, a call may be half written
        parts = [_part(block, names) for block in blocks if finish is not None or block.type != "tool_use"]
        return ModelAnswer(
            parts=tuple(part for part in parts if part is not None),
            finish=finish,
            model=self._message.model or "",
            answer_id=self._message.id,
            tokens=read_usage(self._message.usage, self._last_usage),
        )


def _whole(block: _AnthropicBlock, added: str) -> _AnthropicBlock:
    match block.type:
        case "text":
            return _AnthropicBlock(type="text", text=(block.text or "") + added)
        case "thinking":
            return _AnthropicBlock(type="thinking", thinking=(block.thinking or "") + added)
        case _:
            return _AnthropicBlock(type=block.type, id=block.id, name=block.name, input=added or block.input)
