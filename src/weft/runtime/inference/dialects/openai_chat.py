"""OpenAI's Chat Completions, which many other servers speak as well."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.errors import ReplyMalformed
from weft.ledger.model import Part, ReasoningPart, TextPart, ToolUsePart
from weft.runtime.egress.connections import Client
from weft.runtime.inference.dialects.model_facts import ModelFacts, thinking_effort
from weft.runtime.inference.dialects.openai_tools import openai_tool
from weft.runtime.inference.dialects.port import (
    AnswerContent,
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
from weft.runtime.inference.settings import ToolSpec
from weft.runtime.inference.tool_names import WireNames

_FINISH = {
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALL,
    "function_call": Finish.TOOL_CALL,
    "content_filter": Finish.CONTENT_FILTER,
}
_PARAMETERS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "stop": "stop",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "max_tokens": "max_completion_tokens",
    "min_p": "min_p",
}
"""Ours, and what they are called on the wire. `min_p` is of the servers that speak it as OpenAI does."""
_FILE_ID_DIGITS = 6


class ChatConversation(WireConversation):
    """Messages of chat completions. Each is made once, and never changed."""

    def __init__(self, *, images: bool = True) -> None:
        super().__init__(images=images)
        self._messages: list[dict[str, Any]] = []
        self._result_images: list[dict[str, Any]] = []
        """Of results that were added last: they are shown behind all of these, since a result is a text alone."""

    def add_system(self, content: list[UserContent]) -> None:
        self._add({"role": "system", "content": content[0]})

    def add_user(self, content: list[UserContent]) -> None:
        only = content[0] if len(content) == 1 else None
        self._add(
            {"role": "user", "content": only if isinstance(only, str) else [_content_part(one) for one in content]}
        )

    def add_result(self, result: ShownResult) -> None:
        text, images = _result_text(result)
        self._messages.append({"role": "tool", "tool_call_id": result.call, "content": text})
        self._result_images = [*self._result_images, *images]

    def add_answer(self, content: list[AnswerContent]) -> None:
        texts = [piece for piece in content if isinstance(piece, str)]
        message: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(texts) if texts else None}
        if calls := [piece for piece in content if isinstance(piece, ToolUsePart)]:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": self.called_tool(call), "arguments": json_text(call_arguments(call))},
                }
                for call in calls
            ]
        self._add(message)

    def _add(self, message: dict[str, Any]) -> None:
        self._messages += self._image_message()
        self._result_images = []
        self._messages.append(message)

    def _image_message(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self._result_images}] if self._result_images else []

    def written(self) -> WireMessages:
        return WireMessages([*self._messages, *self._image_message()], has_far_images=self._has_far_images)


def _content_part(content: UserContent) -> dict[str, Any]:
    if isinstance(content, str):
        return {"text": content, "type": "text"}
    return {"image_url": {"url": content.url}, "type": "image_url"}


def failed_text(text: str) -> str:
    """What went wrong, where the protocol has no other way to say that something did."""
    return json_text({"error": text})


def _result_text(result: ShownResult) -> tuple[str, list[dict[str, Any]]]:
    """A result as text, and the images that it names."""
    if not result.images:
        return failed_text(result.text) if result.has_failed else result.text, []
    names, parts = [], []
    for image in result.images:
        file = hashlib.sha1(base64.b64decode(image.base64), usedforsecurity=False).hexdigest()[:_FILE_ID_DIGITS]
        names.append(f"See file {file}.")
        opening = (
            f'<tool_result tool_name="{escape(result.tool)}" tool_call_id="{escape(result.call)}" file_id="{file}">'
        )
        parts += [_content_part(opening), _content_part(image), _content_part("</tool_result>")]
    shown = {"error": result.text} if result.has_failed else result.text
    return json_text([shown, *names]), parts


class ChatSpeaker:
    """Asks one model for chat completions."""

    def __init__(self, client: Client, url: str, facts: ModelFacts) -> None:
        self._client, self._url, self._facts = client, f"{url}/chat/completions", facts

    async def ask(self, question: ModelQuestion, on_piece: OnPiece | None) -> ModelAnswer:
        body = chat_body(question, self._facts, is_streamed=on_piece is not None)
        names = offered_names(question.tools)
        if on_piece is None:
            return read_completion(await post_whole(self._client, self._url, body, {}), self._facts, names)
        reading = CompletionStream(self._facts, on_piece)
        async with post_streamed(self._client, self._url, body, {}) as events:
            async for event in events:
                if event.data.startswith(b"[DONE]"):
                    await read_to_end(events)
                    break
                reading.read(event.data)
        return reading.answer(names)


def chat_body(question: ModelQuestion, facts: ModelFacts, *, is_streamed: bool) -> dict[str, Any]:
    """What a server is asked."""
    given = question.parameters.given()
    body: dict[str, Any] = {"model": question.model, "messages": with_role(question.conversation.messages, facts)}
    body |= {wire: given[ours] for ours, wire in _PARAMETERS.items() if ours in given}
    if "thinking" in given and (effort := thinking_effort(given["thinking"], facts)) is not None:
        body["reasoning_effort"] = effort
    if question.tools:
        body |= {"tools": [_tool(tool) for tool in question.tools], "tool_choice": "auto"}
    if is_streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def with_role(messages: list[dict[str, Any]], facts: ModelFacts) -> list[dict[str, Any]]:
    """The messages as a model takes them that knows no prompt of the system."""
    if facts.system_role == "system":
        return messages
    return [
        {**message, "role": facts.system_role} if message.get("role") == "system" else message for message in messages
    ]


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = openai_tool(tool)
    if not function["strict"]:
        del function["strict"]
    return {"type": "function", "function": function}


class _ChatFunction(Struct):
    name: str | None = None
    arguments: str | None = None


class _ChatCall(Struct):
    index: int | None = None
    id: str | None = None
    function: _ChatFunction | None = None


class _ChatMessage(Struct):
    """A message, or a piece of one."""

    content: Any = None
    refusal: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: list[_ChatCall] | None = None

    @property
    def thought(self) -> str:
        """Servers tell it by one of two names."""
        return next((text for text in (self.reasoning, self.reasoning_content) if isinstance(text, str) and text), "")

    @property
    def text(self) -> str:
        """Some servers write a text as a list of its parts."""
        if not isinstance(self.content, list):
            return self.content if isinstance(self.content, str) else ""
        texts = [part.get("text") if isinstance(part, dict) else part for part in self.content]
        return "".join(text for text in texts if isinstance(text, str))


class _ChatChoice(Struct):
    message: _ChatMessage | None = None
    delta: _ChatMessage | None = None
    finish_reason: str | None = None


class _ChatCompletion(Struct):
    """A completion, or a piece of one. Some servers count them in place of an id."""

    id: str | int | None = None
    model: str | None = None
    choices: list[_ChatChoice] | None = None
    usage: Any = None
    error: Any = None


def read_completion(data: bytes, facts: ModelFacts, names: WireNames) -> ModelAnswer:
    """A whole answer."""
    completion = msgspec.json.decode(data, type=_ChatCompletion)
    if completion.error:
        raise ServerRefusal.within(completion.error)
    choice = completion.choices[0] if completion.choices else None
    if choice is None or choice.message is None:
        raise ReplyMalformed("the answer holds no message")
    message = choice.message
    parts: list[Part] = []
    if message.thought:
        parts.append(ReasoningPart(message.thought))
    parts += _split_thinking(message.text, *facts.thinking_tags)
    for call in message.tool_calls or ():
        function = call.function or _ChatFunction()
        parts.append(read_call(call.id, function.name or "", function.arguments, names))
    return ModelAnswer(
        parts=(TextPart(message.refusal),) if message.refusal else tuple(parts),
        finish=Finish.CONTENT_FILTER if message.refusal else _FINISH.get(choice.finish_reason or ""),
        model=completion.model or "",
        answer_id=_answer_id(completion.id),
        tokens=read_usage(completion.usage),
    )


def _answer_id(id: str | int | None) -> str | None:
    return str(id) if id else None


def _split_thinking(text: str, opening: str, closing: str) -> Iterable[Part]:
    """A text, and what the model thought between tags in it. A tag without its end is left out."""
    at = 0
    while (start := text.find(opening, at)) >= 0:
        if start > at:
            yield TextPart(text[at:start])
        at = start + len(opening)
        end = text.find(closing, at)
        if end < 0:
            break
        if end > at:
            yield ReasoningPart(text[at:end])
        at = end + len(closing)
    if at < len(text):
        yield TextPart(text[at:])


def read_usage(usage: Any) -> TokenCounts | None:
    """What a server counted, where it told it."""
    prompt, completion = count_of(usage, "prompt_tokens"), count_of(usage, "completion_tokens")
    if not isinstance(usage, dict) or not {"prompt_tokens", "completion_tokens"} <= set(usage):
        return None
    reasoning = count_of(usage, "completion_tokens_details", "reasoning_tokens") or count_of(usage, "reasoning_tokens")
    if reasoning and count_of(usage, "total_tokens") == prompt + completion + reasoning:
        completion += reasoning  # some servers count it beside the completion
    return TokenCounts(
        input=prompt,
        output=completion,
        cache_read=count_of(usage, "prompt_tokens_details", "cached_tokens")
        or count_of(usage, "cached_tokens")
        or count_of(usage, "prompt_cache_hit_tokens"),
        cache_write=count_of(usage, "prompt_tokens_details", "cache_write_tokens"),
        reasoning=reasoning,
    )


class _OpenPart(Struct):
    """A part of a streamed answer. `is_tagged`: it stands between tags for thinking."""

    kind: TokenKind | None
    texts: list[str]
    call_id: str | None = None
    names: list[str] = []
    is_tagged: bool = False


def _is_another(call: _ChatCall, function: _ChatFunction, begun: _OpenPart) -> bool:
    """Whether a piece begins another call than the one before it: some servers give all calls the same index."""
    return bool(function.name and call.id and begun.call_id) and call.id != begun.call_id


class CompletionStream:
    """Reads an answer from its pieces. A piece goes on with the last part where that is of its kind."""

    def __init__(self, facts: ModelFacts, on_piece: OnPiece) -> None:
        self._tags, self._on_piece = facts.thinking_tags, on_piece
        self._parts: list[_OpenPart] = []
        self._calls: dict[int, _OpenPart] = {}
        self._tagged: _OpenPart | None = None
        self._refusals: list[str] = []
        self._finish: str | None = None
        self._model = ""
        self._id: str | int | None = None
        self._usage: Any = None

    def read(self, data: bytes) -> None:
        piece = msgspec.json.decode(data, type=_ChatCompletion)
        if piece.error:
            raise ServerRefusal.within(piece.error)
        self._model, self._id = piece.model or self._model, piece.id or self._id
        self._usage = piece.usage or self._usage  # some servers end with an empty one
        choice = piece.choices[0] if piece.choices else None
        if choice is None:
            return
        self._finish = choice.finish_reason or self._finish
        if (delta := choice.delta) is None:
            return
        if delta.refusal:
            self._refusals.append(delta.refusal)
        if delta.thought:
            self._grow(TokenKind.THINKING, delta.thought)
        if text := delta.text:
            self._read_text(text)
        for call in delta.tool_calls or ():
            self._read_call(call)

    def _read_text(self, text: str) -> None:
        opening, closing = self._tags
        if self._tagged is not None:
            if text == closing:
                self._tagged = None
            else:
                self._tagged.texts.append(text)
                self._on_piece(TokenKind.THINKING, text)
        elif text == opening:
            self._tagged = _OpenPart(TokenKind.THINKING, [], is_tagged=True)
            self._parts.append(self._tagged)
        else:
            self._grow(TokenKind.TEXT, text)

    def _grow(self, kind: TokenKind, text: str) -> None:
        last = self._parts[-1] if self._parts else None
        if last is None or last.kind is not kind or last.is_tagged:
            last = _OpenPart(kind, [])
            self._parts.append(last)
        last.texts.append(text)
        self._on_piece(kind, text)

    def _read_call(self, call: _ChatCall) -> None:
        function = call.function or _ChatFunction()
        place = call.index
        if place is None:  # a name begins a call, then
            place = len(self._calls) - (0 if function.name else 1)
        part = self._calls.get(place)
        if part is None or _is_another(call, function, part):
            part = self._calls[place] = _OpenPart(None, [])
            self._parts.append(part)
        part.call_id = call.id or part.call_id
        part.names.append(function.name or "")
        part.texts.append(function.arguments or "")

    def answer(self, names: WireNames) -> ModelAnswer:
        """All of it, once the stream has ended."""
        finish = _FINISH.get(self._finish or "")
        parts = [part for open_part in self._parts for part in self._closed(open_part, names, finish)]
        if refusal := "".join(self._refusals):
            parts, finish = [TextPart(refusal)], finish and Finish.CONTENT_FILTER
        return ModelAnswer(
            parts=tuple(parts),
            finish=finish,
            model=self._model,
            answer_id=_answer_id(self._id),
            tokens=read_usage(self._usage),
        )

    def _closed(self, part: _OpenPart, names: WireNames, finish: Finish | None) -> Iterable[Part]:
        text = "".join(part.texts)
        if part.kind is TokenKind.TEXT and text:
            yield TextPart(text)
        elif part.kind is TokenKind.THINKING and text:
            yield ReasoningPart(text)
        elif part.kind is None and finish is not None:  # of a cut answer, a call may be half written
            yield read_call(part.call_id, "".join(part.names), text, names)
