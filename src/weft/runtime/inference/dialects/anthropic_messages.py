"""Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from weft.ledger.model import ReasoningPart, TextPart
from weft.runtime.egress.connections import Client
from weft.runtime.inference.dialects.dialect_port import (
    LEAST_BUDGET,
    AnswerContent,
    AnswerMeter,
    ImageData,
    ModelAnswer,
    ModelFacts,
    ModelQuestion,
    OnPiece,
    ReadAnswer,
    SealedContent,
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
    opened,
    read_call,
    read_count,
    wire_name,
)
from weft.runtime.inference.dialects.server_answers import ServerRefusal, post_streamed, post_whole
from weft.runtime.inference.model_requests import PromptCache, Thinking, ToolSpec, is_budget
from weft.runtime.replies import FinishReason, TokenKind

_HEADERS = {"anthropic-version": "2026-10-21"}
_FINISH = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "compaction": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "tool_use": FinishReason.TOOL_CALL,
    "refusal": FinishReason.CONTENT_FILTER,
    "pause_turn": FinishReason.PAUSE,
}
_THOUGHTS = ("thinking", "redacted_thinking")
_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
"""Calls of tools that the server runs itself."""
_PARAMETERS = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "stop": "stop_sequences"}
_COUNTED_FIELDS = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")
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
    the same side is one message, in which results stand first. What the model thought stands where it stood."""

    goes_on_from_pause = True

    def __init__(self, *, images: bool = True, vendor: str = "") -> None:
        super().__init__(images=images, vendor=vendor)
        self._messages: list[dict[str, Any]] = []
        self._system: list[str] = []

    def add_system(self, content: list[UserContent]) -> None:
        self._system += [piece for piece in content if isinstance(piece, str)]

    def add_user(self, content: list[UserContent]) -> None:
        blocks = [_block(piece) for piece in content]
        self._add_blocks(_without_blanks(blocks) or blocks)

    def add_result(self, result: ShownResult) -> None:
        text, images = _without_blanks([_block(json_text(result.output))]), list(map(_block, result.images))
        # a result that failed may hold nothing but texts: what it shows stands behind the results
        shown, behind = (text, images) if result.has_failed else ([*text, *images], [])
        block = {"tool_use_id": result.call, "type": "tool_result", "content": shown}
        self._add_blocks([{**block, "is_error": result.has_failed}, *behind])

    def add_answer(self, content: list[AnswerContent]) -> None:
        blocks = _without_blanks([block for piece in content for block in self._answer_blocks(piece)])
        if blocks:
            self._add_blocks(blocks, "assistant")

    def _answer_blocks(self, piece: AnswerContent) -> list[dict[str, Any]]:
        if isinstance(piece, SealedContent):
            sealed = _thought(piece) or _server_block(piece)
            if sealed is not None:
                return [sealed]
            return [block for plain in opened(piece) for block in self._answer_blocks(plain)]
        if isinstance(piece, str):
            return [_block(piece)]
        call = {"id": piece.id, "type": "tool_use", "name": self.called_tool(piece)}
        return [{**call, "input": call_arguments(piece)}]

    def _add_blocks(self, blocks: list[dict[str, Any]], role: str = "user") -> None:
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != role:
            if role == "user":
                self._end_answer()
                last = self._messages[-1] if self._messages else None
            if last is None or last["role"] != role:
                self._messages.append({"role": role, "content": blocks})
                return
        content = _without_blanks([*last["content"], *blocks]) or blocks
        if role == "user":
            content.sort(key=lambda block: block["type"] != "tool_result")
        self._messages[-1] = {"role": role, "content": content}

    def _end_answer(self) -> None:
        """An answer must not end with what was thought, and each call that the server runs itself has its result; one
        that is nothing else is none."""
        if self._messages:
            content = _without_thoughts_at_end(_paired(self._messages[-1]["content"]))
            self._messages[-1:] = [{"role": "assistant", "content": content}] if content else []

    def written(self) -> WireMessages:
        messages = list(self._messages)
        if messages and messages[-1]["role"] == "assistant":
            content = _open_answer(messages[-1]["content"])
            messages[-1:] = [{"role": "assistant", "content": content}] if content else []
        return WireMessages(messages, tuple(self._system), self._has_far_images)


def _without_thoughts_at_end(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    end = len(content)
    while end and content[end - 1]["type"] in _THOUGHTS:
        end -= 1
    return content[:end]


def _paired(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An answer without calls that the server did not run, and without results whose calls are not there."""
    called = {block.get("id") for block in content if block["type"] in _SERVER_CALLS}
    answered = {block.get("tool_use_id") for block in content if _is_of_server(block["type"])}
    pairs = called & answered
    return [
        block
        for block in content
        if not _is_of_server(block["type"]) or (block.get("id") or block.get("tool_use_id")) in pairs
    ]


def _open_answer(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An answer that the server goes on with: it takes none that ends with a thought, or with white space."""
    content = _without_thoughts_at_end(content)
    if content and content[-1]["type"] == "text":
        content = [*content[:-1], _block(content[-1]["text"].rstrip())]
    return content


def _without_blanks(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The server refuses texts of white space, which it writes itself."""
    return [block for block in blocks if block["type"] != "text" or block["text"].strip()]


def _thought(content: SealedContent) -> dict[str, Any] | None:
    """What the model thought, as it came; None where this is none of its thoughts."""
    if (data := content.field("redacted")) is not None and not content.parts:
        return {"type": "redacted_thinking", "data": data}
    signature = content.field("signature")
    if signature is None or not all(isinstance(part, ReasoningPart) for part in content.parts):
        return None
    thinking = "".join(str(part.text) for part in content.parts if isinstance(part, ReasoningPart))
    return {"type": "thinking", "thinking": thinking, "signature": signature}


def _server_block(content: SealedContent) -> dict[str, Any] | None:
    """A call of a tool of the server's own, or its result, as it came; None where this is neither."""
    block = content.fields.get("block")
    return block if isinstance(block, dict) and not content.parts and _is_of_server(block.get("type")) else None


def _is_of_server(kind: Any) -> bool:
    return isinstance(kind, str) and (kind in _SERVER_CALLS or kind.endswith("_tool_result"))


def _block(content: str | ImageData) -> dict[str, Any]:
    if isinstance(content, str):
        return {"text": content, "type": "text"}
    if content.is_far:
        return {"source": {"type": "url", "url": content.url}, "type": "image"}
    return {"source": {"data": content.base64, "media_type": content.media_type, "type": "base64"}, "type": "image"}


class MessagesClient:
    """Asks one model for messages."""

    def __init__(self, client: Client, url: str, facts: ModelFacts) -> None:
        self._client, self._url, self._facts = client, f"{url}/v1/messages", facts

    async def ask(self, question: ModelQuestion, on_piece: OnPiece | None, meter: AnswerMeter) -> ModelAnswer:
        body, names = messages_body(question, self._facts), offered_names(question.tools)
        if on_piece is None and body["max_tokens"] <= LONGEST_WHOLE_TOKENS:
            return read_message(await post_whole(self._client, self._url, body, _HEADERS), names, meter)
        reading = MessageStream(on_piece, meter)
        async with post_streamed(self._client, self._url, {**body, "stream": True}, _HEADERS) as events:
            async for event in events:
                reading.read(event.data)
        return reading.answer(names)

    async def count(self, question: ModelQuestion) -> int:
        body = count_body(question, self._facts)
        return read_count(await post_whole(self._client, f"{self._url}/count_tokens", body, _HEADERS), "input_tokens")


def count_body(question: ModelQuestion, facts: ModelFacts) -> dict[str, Any]:
    """What a server is given to count. It refuses what only says how to answer."""
    body = messages_body(question, facts)
    return {name: value for name, value in body.items() if name in _COUNTED_FIELDS}


def messages_body(question: ModelQuestion, facts: ModelFacts) -> dict[str, Any]:
    """What a server is asked."""
    parameters = question.parameters.given()
    body: dict[str, Any] = {"model": question.model, "messages": question.conversation.messages}
    if question.conversation.system:
        body["system"] = "\n\n".join(question.conversation.system)
    body |= {wire: parameters[ours] for ours, wire in _PARAMETERS.items() if ours in parameters}
    if (thinking := parameters.get("thinking")) is not None:
        body |= _thinking(thinking, facts)
    body["max_tokens"] = parameters.get("max_tokens") or _output_tokens(body.get("thinking", {}), facts)
    if "budget_tokens" in body.get("thinking", {}) and not _fit_budget(body):
        del body["thinking"]
    if body.get("thinking", {}).get("type") == "disabled" or ("thinking" not in body and not facts.thinks_by_default):
        body["messages"] = _without_open_thoughts(body["messages"])
    if schema := parameters.get("response_schema"):
        answer = {"type": "json_schema", "schema": sent_schema(schema)}
        body["output_config"] = {**body.get("output_config", {}), "format": answer}
    if question.tools:
        body |= {"tools": [_tool(tool) for tool in question.tools], "tool_choice": {"type": "auto"}}
    return body if question.cache is PromptCache.OFF else with_markers(body, question.cache)


_UNTAKEN_KEYS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern",
    "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties",
)  # fmt: skip
"""What the schema of an answer may not say. The model is told it in words, and the answer is held to it here."""
_SCHEMAS_BY_NAME = ("properties", "$defs", "definitions")


def sent_schema(node: Any) -> Any:
    """A schema as the server takes it: each object is closed, and limits stand in the descriptions."""
    if isinstance(node, list):
        return [sent_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    sent: dict[str, Any] = {}
    for key, value in node.items():
        if key in _SCHEMAS_BY_NAME and isinstance(value, dict):
            sent[key] = {name: sent_schema(inner) for name, inner in value.items()}
        elif key in ("enum", "const", "default", "examples"):
            sent[key] = value
        elif key not in _UNTAKEN_KEYS:
            sent[key] = sent_schema(value)
    if limits := {key: node[key] for key in _UNTAKEN_KEYS if key in node}:
        words = ", ".join(f"{key}: {value}" for key, value in limits.items())
        sent["description"] = "\n\n".join(filter(None, (str(node.get("description") or ""), f"{{{words}}}")))
    if sent.get("type") == "object":
        sent.setdefault("additionalProperties", False)
    return sent


def with_markers(body: dict[str, Any], cache: PromptCache) -> dict[str, Any]:
    """The same with at most four marks of what is cached: the tools, the system, and what was said until the last two
    messages of the user. The first of these two is where the request before this one ended, so its cache is found
    however much was said since. Nothing that is kept between requests is changed."""
    marker: dict[str, Any] = {"type": "ephemeral"}
    if cache is PromptCache.ONE_HOUR:
        marker["ttl"] = "1h"
    marked = dict(body)
    if "tools" in body:
        marked["tools"] = _end_marked(body["tools"], marker)
    if "system" in body:
        marked["system"] = _end_marked([_block(body["system"])], marker)
    messages = list(body["messages"])
    ends = [place for place, message in enumerate(messages) if message["role"] == "user"][-2:]
    for place in ends:
        messages[place] = {"role": "user", "content": _end_marked(messages[place]["content"], marker)}
    marked["messages"] = messages
    return marked


def _end_marked(blocks: list[dict[str, Any]], marker: dict[str, Any]) -> list[dict[str, Any]]:
    return [*blocks[:-1], {**blocks[-1], "cache_control": marker}]


def _thinking(thinking: Thinking, facts: ModelFacts) -> dict[str, Any]:
    """How a model is told to think. Where it cannot stop, it is asked to think as little as it can."""
    if thinking is False:
        if facts.always_thinks:
            return {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}} if facts.takes_effort else {}
        if facts.stops_between_tools:
            return {"thinking": {"type": "between_tools"}}
        return {"thinking": {"type": "disabled"}} if facts.thinks_by_default else {}
    if facts.has_budget:
        budget = thinking if is_budget(thinking) else _BUDGETS[thinking]
        fields: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": budget}}
    else:
        fields = {"thinking": {"type": "adaptive"}}
    if isinstance(thinking, str) and facts.takes_effort:
        fields["output_config"] = {"effort": _EFFORTS[thinking]}
    return fields


def _fit_budget(body: dict[str, Any]) -> bool:
    """Have the model think less than it may write. Whether it can be asked to think at all: not with so little room,
    nor in a loop of calls whose last answer was not thought about, such as one of another vendor's model."""
    if _is_loop_without_thought(body["messages"]):
        return False
    thinking = body["thinking"]
    body["thinking"] = {**thinking, "budget_tokens": min(thinking["budget_tokens"], body["max_tokens"] - 1)}
    return bool(body["thinking"]["budget_tokens"] >= LEAST_BUDGET)


def _open_answer_place(messages: list[dict[str, Any]]) -> int | None:
    """Where the answer stands that the model goes on from: that with the calls whose results come last, or one that
    was paused."""
    if messages and messages[-1]["role"] == "assistant":
        return len(messages) - 1
    has_results = any(block["type"] == "tool_result" for block in messages[-1]["content"]) if messages else False
    return len(messages) - 2 if has_results and len(messages) > 1 else None


def _is_loop_without_thought(messages: list[dict[str, Any]]) -> bool:
    """Whether the model goes on from an answer that the server would want to begin with a thought."""
    place = _open_answer_place(messages)
    return place is not None and messages[place]["content"][0]["type"] not in _THOUGHTS


def _without_open_thoughts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The server refuses the thoughts of the answer that the model goes on from, where it is not to think."""
    place = _open_answer_place(messages)
    if place is None:
        return messages
    answer = messages[place]
    content = [block for block in answer["content"] if block["type"] not in _THOUGHTS]
    if len(content) == len(answer["content"]):
        return messages
    return [*messages[:place], {**answer, "content": content}, *messages[place + 1 :]]


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
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    partial_json: str | None = None
    stop_reason: str | None = None
    whole: Any = None
    """Of a tool of the server's own: all of the block."""

    @classmethod
    def read(cls, raw: msgspec.Raw) -> _AnthropicBlock:
        block = msgspec.json.decode(raw, type=cls)
        block.whole = msgspec.json.decode(raw) if _is_of_server(block.type) else None
        return block


class _AnthropicMessage(Struct):
    id: str | None = None
    model: str | None = None
    content: list[msgspec.Raw] | None = None
    stop_reason: str | None = None
    usage: Any = None


class _AnthropicEvent(Struct):
    type: str = ""
    message: _AnthropicMessage | None = None
    index: int = 0
    content_block: msgspec.Raw = msgspec.Raw()
    delta: _AnthropicBlock | None = None
    usage: Any = None
    error: Any = None


def read_message(data: bytes, names: WireNames, meter: AnswerMeter) -> ModelAnswer:
    """A whole answer."""
    message = msgspec.json.decode(data, type=_AnthropicMessage)
    tokens = read_usage(message.usage, {})
    meter.count(tokens)
    finish = _FINISH.get(message.stop_reason or "")
    blocks = [_AnthropicBlock.read(raw) for raw in message.content or ()]
    answer = _read_blocks(blocks, names)
    return ModelAnswer(
        parts=tuple(answer.parts),
        sealed=tuple(answer.sealed),
        finish=finish,
        model=message.model or "",
        answer_id=message.id,
        tokens=tokens,
    )


def _read_blocks(blocks: Iterable[_AnthropicBlock], names: WireNames) -> ReadAnswer:
    """What tools of the server's own did is sealed: it goes on from that."""
    answer = ReadAnswer()
    for block in blocks:
        match block.type:
            case "text" if block.text:
                answer.add(TextPart(block.text))
            case "thinking" if block.thinking:
                answer.add(ReasoningPart(block.thinking), signature=block.signature)
            case "thinking":  # not shown, but to be sent back
                answer.add(signature=block.signature)
            case "redacted_thinking":
                answer.add(redacted=block.data)
            case "tool_use":
                answer.add(read_call(block.id, block.name or "", block.input, names))
            case kind if _is_of_server(kind):
                answer.add(block=block.whole)
            case _:
                pass
    return answer


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
    return [step for step in rounds if isinstance(step, dict) and step.get("type") == "compaction"]


class MessageStream:
    """Reads an answer from its events."""

    def __init__(self, on_piece: OnPiece | None, meter: AnswerMeter) -> None:
        self._on_piece, self._meter = on_piece, meter
        self._blocks: dict[int, tuple[_AnthropicBlock, list[str]]] = {}
        """Each as it began, and what was added to it."""
        self._signatures: dict[int, str] = {}
        self._finish: str | None = None
        self._message = _AnthropicMessage()
        self._last_usage: Any = {}

    def read(self, data: bytes) -> None:
        event = msgspec.json.decode(data, type=_AnthropicEvent)
        match event.type:
            case "message_start" if event.message is not None:
                self._message = event.message
                self._meter.count(read_usage(self._message.usage, {}))
            case "content_block_start" if bytes(event.content_block) not in (b"", b"null"):
                block = _AnthropicBlock.read(event.content_block)
                self._blocks[event.index] = (block, [])
                self._tell(block.type, block.text, block.thinking)
            case "content_block_delta" if event.delta is not None and event.index in self._blocks:
                delta = event.delta
                added = self._blocks[event.index][1]
                added += [piece for piece in (delta.text, delta.thinking, delta.partial_json) if piece]
                if delta.signature:
                    self._signatures[event.index] = self._signatures.get(event.index, "") + delta.signature
                self._tell(delta.type, delta.text, delta.thinking)
            case "message_delta":
                self._finish = event.delta.stop_reason if event.delta is not None else self._finish
                self._last_usage = event.usage
                self._meter.count(read_usage(self._message.usage, self._last_usage))
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
        # of a cut answer, a call may be half written
        blocks = [
            _extended_block(block, "".join(added), self._signatures.get(index))
            for index, (block, added) in sorted(self._blocks.items())
            if finish is not None or not (block.type == "tool_use" or _is_of_server(block.type))
        ]
        answer = _read_blocks(blocks, names)
        return ModelAnswer(
            parts=tuple(answer.parts),
            sealed=tuple(answer.sealed),
            finish=finish,
            model=self._message.model or "",
            answer_id=self._message.id,
            tokens=read_usage(self._message.usage, self._last_usage),
        )


def _extended_block(block: _AnthropicBlock, added: str, signature: str | None) -> _AnthropicBlock:
    match block.type:
        case "text":
            return _AnthropicBlock(type="text", text=(block.text or "") + added)
        case "thinking":
            thinking = (block.thinking or "") + added
            return _AnthropicBlock(type="thinking", thinking=thinking, signature=signature or block.signature)
        case "redacted_thinking":
            return block
        case kind if kind in _SERVER_CALLS:
            arguments = msgspec.json.decode(added) if added else block.input
            return _AnthropicBlock(type=kind, whole={**block.whole, "input": arguments})
        case kind if _is_of_server(kind):
            return block
        case _:
            return _AnthropicBlock(type=block.type, id=block.id, name=block.name, input=added or block.input)
