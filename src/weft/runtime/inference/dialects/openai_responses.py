"""OpenAI's Responses."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.errors import ReplyMalformed
from weft.ledger.model import Part, ReasoningPart, TextPart
from weft.runtime.egress.connections import Client
from weft.runtime.inference.dialects.model_facts import ModelFacts, thinking_effort
from weft.runtime.inference.dialects.openai_chat import failed_text, with_role
from weft.runtime.inference.dialects.openai_tools import openai_tool
from weft.runtime.inference.dialects.port import (
    AnswerContent,
    ImageData,
    ModelAnswer,
    ModelQuestion,
    OnPiece,
    ShownResult,
    TokenCounts,
    UserContent,
    WireConversation,
    WireMessages,
    call_arguments,
    count_of,
    json_text,
    offered_names,
    read_call,
)
from weft.runtime.inference.dialects.posts import post_streamed, post_whole, read_to_end
from weft.runtime.inference.failures import ServerRefusal
from weft.runtime.inference.replies import Finish, TokenKind
from weft.runtime.inference.tool_names import WireNames

_FINISH = {
    "completed": Finish.STOP,
    "max_output_tokens": Finish.LENGTH,
    "content_filter": Finish.CONTENT_FILTER,
}
_FAILED = ("failed", "cancelled")
_PARAMETERS = {
    "max_tokens": "max_output_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
}
_ENDS = ("response.completed", "response.incomplete", "response.failed")


class ResponsesConversation(WireConversation):
    """Items of an input: messages, calls and their outputs. Each is made once, and never changed."""

    def __init__(self, *, images: bool = True) -> None:
        super().__init__(images=images)
        self._items: list[dict[str, Any]] = []

    def add_system(self, content: list[UserContent]) -> None:
        self._items.append({"role": "system", "content": content[0]})

    def add_user(self, content: list[UserContent]) -> None:
        only = content[0] if len(content) == 1 else None
        shown = only if isinstance(only, str) else [_input_part(piece) for piece in content]
        self._items.append({"role": "user", "content": shown})

    def add_result(self, result: ShownResult) -> None:
        text = failed_text(result.text) if result.has_failed else result.text
        output: Any = [_input_part(text), *map(_input_part, result.images)] if result.images else text
        self._items.append({"type": "function_call_output", "call_id": _call_id(result.call), "output": output})

    def add_answer(self, content: list[AnswerContent]) -> None:
        for piece in content:
            if isinstance(piece, str):
                self._items.append({"role": "assistant", "content": piece})
            else:
                call = {"name": self.called_tool(piece), "arguments": json_text(call_arguments(piece))}
                self._items.append({**call, "call_id": _call_id(piece.id), "type": "function_call"})

    def written(self) -> WireMessages:
        return WireMessages(list(self._items), has_far_images=self._has_far_images)


def _call_id(recorded: str) -> str:
    """Some tools record the id of a call together with that of its item."""
    return recorded.partition("|")[0]


def _input_part(content: str | ImageData) -> dict[str, Any]:
    if isinstance(content, str):
        return {"text": content, "type": "input_text"}
    return {"image_url": content.url, "type": "input_image", "detail": "auto"}


class ResponsesSpeaker:
    """Asks one model for responses."""

    def __init__(self, client: Client, url: str, facts: ModelFacts) -> None:
        self._client, self._url, self._facts = client, f"{url}/responses", facts

    async def ask(self, question: ModelQuestion, on_piece: OnPiece | None) -> ModelAnswer:
        body, names = responses_body(question, self._facts), offered_names(question.tools)
        if on_piece is None:
            response = msgspec.json.decode(await post_whole(self._client, self._url, body, {}), type=_Response)
            return read_response(response, names)
        reading = ResponseStream(on_piece)
        async with post_streamed(self._client, self._url, {**body, "stream": True}, {}) as events:
            async for event in events:
                if event.data.startswith(b"[DONE]"):
                    await read_to_end(events)
                    break
                reading.read(event.data)
        return reading.answer(names)


def responses_body(question: ModelQuestion, facts: ModelFacts) -> dict[str, Any]:
    """What a server is asked."""
    given = question.parameters.given()
    body: dict[str, Any] = {"model": question.model, "input": with_role(question.conversation.messages, facts)}
    body |= {wire: given[ours] for ours, wire in _PARAMETERS.items() if ours in given}
    effort = thinking_effort(given["thinking"], facts) if "thinking" in given else None
    reasoning = {"effort": effort} if effort is not None else {}
    if facts.keeps_all_thinking:
        reasoning["context"] = "all_turns"
    if reasoning:
        body["reasoning"] = reasoning
    if facts.gives_sealed_thinking:
        body["include"] = ["reasoning.encrypted_content"]
    if question.tools:
        tools = [{**openai_tool(tool), "type": "function"} for tool in question.tools]
        body |= {"tools": tools, "tool_choice": "auto"}
    return body


class _ResponseText(Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _ResponseItem(Struct):
    """An item of an output. Kinds that were not asked for are passed over."""

    type: str = ""
    content: Any = None
    summary: Any = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None

    def texts(self) -> list[_ResponseText]:
        """What a message says, or what is told of a thought."""
        pieces = self.content if self.type == "message" else self.summary
        return msgspec.convert(pieces or [], list[_ResponseText])


class _IncompleteReason(Struct):
    reason: str | None = None


class _Response(Struct):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    error: Any = None
    incomplete_details: _IncompleteReason | None = None
    output: list[_ResponseItem] | None = None
    usage: Any = None


class _ResponseEvent(Struct):
    type: str = ""
    response: _Response | None = None
    item: _ResponseItem | None = None
    output_index: int = 0
    delta: Any = None
    part: _ResponseText | None = None
    error: Any = None
    code: Any = None
    message: Any = None


def read_response(response: _Response, names: WireNames) -> ModelAnswer:
    """A whole answer."""
    if response.error:
        raise ServerRefusal.within(response.error)
    if response.output is None:
        raise ReplyMalformed("the answer holds no output")
    texts = [text for item in response.output if item.type == "message" for text in item.texts()]
    refusal = next((text.refusal for text in texts if text.refusal), None)
    parts = [part for item in response.output for part in _parts(item, names)]
    reason = response.incomplete_details.reason if response.incomplete_details is not None else response.status
    finish = _FINISH.get(reason or "")
    return ModelAnswer(
        parts=(TextPart(refusal),) if refusal else tuple(parts),
        finish=Finish.CONTENT_FILTER if refusal else finish,
        has_failed=reason in _FAILED,
        model=response.model or "",
        answer_id=response.id,
        tokens=read_usage(response.usage),
    )


def _parts(item: _ResponseItem, names: WireNames) -> list[Part]:
    match item.type:
        case "message":
            return [TextPart(text.text) for text in item.texts() if text.type == "output_text" and text.text]
        case "reasoning":
            return [ReasoningPart(summary.text) for summary in item.texts() if summary.text]
        case "function_call":
            return [read_call(item.call_id, item.name or "", item.arguments, names)]
        case _:
            return []


def read_usage(usage: Any) -> TokenCounts | None:
    """What a server counted, where it told it."""
    if not isinstance(usage, dict) or not {"input_tokens", "output_tokens"} <= set(usage):
        return None
    return TokenCounts(
        input=count_of(usage, "input_tokens"),
        output=count_of(usage, "output_tokens"),
        cache_read=count_of(usage, "input_tokens_details", "cached_tokens"),
        cache_write=count_of(usage, "input_tokens_details", "cache_write_tokens"),
        reasoning=count_of(usage, "output_tokens_details", "reasoning_tokens"),
    )


class ResponseStream:
    """Reads an answer from its events. Its pieces are passed on; what counts is the whole response at its end, and
    where a server leaves that without items, the whole items before it."""

    def __init__(self, on_piece: OnPiece) -> None:
        self._on_piece = on_piece
        self._items: dict[int, _ResponseItem] = {}
        self._response: _Response | None = None

    def read(self, data: bytes) -> None:
        event = msgspec.json.decode(data, type=_ResponseEvent)
        match event.type:
            case "response.output_text.delta" if isinstance(event.delta, str) and event.delta:
                self._on_piece(TokenKind.TEXT, event.delta)
            case "response.reasoning_summary_text.delta" if isinstance(event.delta, str) and event.delta:
                self._on_piece(TokenKind.THINKING, event.delta)
            case "response.reasoning_summary_part.added" if event.part is not None and event.part.text:
                self._on_piece(TokenKind.THINKING, event.part.text)
            case "response.output_item.done" if event.item is not None:
                self._items[event.output_index] = event.item
            case kind if kind in _ENDS and event.response is not None:
                self._response = event.response
            case "error":
                raise ServerRefusal.within(event.error or {"code": event.code, "message": event.message})
            case _:  # beginnings, ends, signs of life, kinds to come
                pass

    def answer(self, names: WireNames) -> ModelAnswer:
        """All of it, once the stream has ended."""
        response = self._response
        if response is None:
            return ModelAnswer(parts=(), finish=None)
        if not response.output:
            response.output = [item for _, item in sorted(self._items.items())]
        return read_response(response, names)
