"""OpenAI's Chat Completions, which many other servers speak as well, and OpenAI's Responses."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from html import escape
from typing import Any, TypeGuard

import msgspec
from msgspec import Struct

from weft.kernel.errors import ReplyMalformed, Unsupported
from weft.ledger.model import Part, ReasoningPart, TextPart, ToolUsePart
from weft.runtime.egress.connections import Client
from weft.runtime.inference.dialects.dialect_port import (
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
    thinking_effort,
    wire_name,
)
from weft.runtime.inference.dialects.server_answers import ServerRefusal, post_streamed, post_whole, read_to_end
from weft.runtime.inference.model_requests import PromptCache, ToolSpec
from weft.runtime.replies import FinishReason, TokenKind

# --- Tools as OpenAI takes them: with a schema that it can hold a model to strictly, where the schema allows that.

_LEFT_OUT = ("title", "$schema", "discriminator")
_UNSTRICT_KEYS = (
    "default", "oneOf", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties", "maxProperties",
    "unevaluatedItems", "contains", "minContains", "maxContains", "uniqueItems", "minLength", "maxLength",
)  # fmt: skip
"""What no strict schema may hold."""
_STRICT_FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid".split())
_TYPING_KEYS = ("type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const")
_DEFINITION = re.compile(r"#/(\$defs|definitions)/[^/]+")
_ESCAPED = re.compile(r"\\.", re.S)
_LOOKAROUNDS = ("(?=", "(?!", "(?<=", "(?<!")


def openai_tool(tool: ToolSpec) -> dict[str, Any]:
    """A schema that is none, which a server of tools may give, is sent as it stands: one tool must not fail every turn
    that offers it, and the provider says what it does not take."""
    schema, is_strict = _walked(tool.schema)
    return {
        "name": wire_name(tool.name),
        "description": tool.description or "",
        "parameters": schema,
        "strict": is_strict,
    }


ANSWER_NAME = "answer"


def answer_format(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an answer: held to strictly where it can be, else as it stands."""
    walked, is_strict = _walked(schema)
    return {"name": ANSWER_NAME, "schema": walked if is_strict else schema, "strict": is_strict}


def _walked(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """A schema as it is sent, and whether it is strict; one that is none as it stands."""
    try:
        walk = _SchemaWalk(schema)
    except (AttributeError, TypeError, RecursionError):  # lists where objects are due, levels without end
        return schema, False
    return walk.schema, walk.is_strict


class _SchemaWalk:
    """A copy of a schema as it is sent, and whether it is strict."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.is_strict = True
        self._root = schema.get("$ref")
        """Where the schema is one of its own definitions: that stands in its place, and is referred to as `#`."""
        whole = schema
        if isinstance(self._root, str) and _DEFINITION.fullmatch(self._root):
            _, group, name = self._root.split("/")
            definition = schema.get(group, {}).get(name.replace("~1", "/").replace("~0", "~"))
            if isinstance(definition, dict):
                whole = {key: value for key, value in schema.items() if key != "$ref"} | definition
        self.schema = self._node(whole)
        for name in ("$defs", "definitions"):
            if isinstance(definitions := schema.get(name), dict):
                self.schema[name] = {key: self._node(node) for key, node in definitions.items()}

    def _node(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        sent = {key: self._below(key, value) for key, value in node.items() if key not in _LEFT_OUT}
        if isinstance(reference := sent.get("$ref"), str):
            sent = self._referring(sent, reference)
        self.is_strict &= not any(key in sent for key in _UNSTRICT_KEYS)
        self.is_strict &= not sent.get("format") or sent["format"] in _STRICT_FORMATS
        pattern = sent.get("pattern")
        self.is_strict &= not (isinstance(pattern, str) and _looks_around(pattern))
        if sent.get("type") == "object":
            self._close(sent)
        if sent.get("type") == "array":
            items = sent.get("items")
            has_typed_items = isinstance(items, dict) and any(key in items for key in _TYPING_KEYS)
            self.is_strict &= has_typed_items
        return sent

    def _below(self, key: str, value: Any) -> Any:
        match key:
            case "properties" | "patternProperties" if isinstance(value, dict):
                return {name: self._node(node) for name, node in value.items()}
            case "items" | "additionalProperties" if isinstance(value, dict):
                return self._node(value)
            case "allOf" | "anyOf" | "oneOf" | "prefixItems" if isinstance(value, list):
                return [self._node(node) for node in value]
            case _:
                return value

    def _referring(self, sent: dict[str, Any], reference: str) -> dict[str, Any]:
        """A strict reference leads to a definition, and stands alone."""
        if reference == self._root:
            reference = "#"
        elif reference.startswith("#/") and not _DEFINITION.fullmatch(reference):
            self.is_strict = False
        others = {key: value for key, value in sent.items() if key != "$ref"}
        return {**others, "anyOf": [{"$ref": reference}]} if others else {"$ref": reference}

    def _close(self, sent: dict[str, Any]) -> None:
        properties = sent.setdefault("properties", {})
        if sent.get("additionalProperties") not in (None, False):
            self.is_strict = False
        else:
            sent["additionalProperties"] = False
        required = sent.get("required")
        self.is_strict &= isinstance(required, list) and all(name in required for name in properties)


def _looks_around(pattern: str) -> bool:
    bare = _ESCAPED.sub("", pattern)
    return any(token in bare for token in _LOOKAROUNDS)


# --- OpenAI's Chat Completions, which many other servers speak as well.

_CHAT_FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALL,
    "function_call": FinishReason.TOOL_CALL,
    "content_filter": FinishReason.CONTENT_FILTER,
}
_CHAT_PARAMETERS = {
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
THOUGHT_FIELD = "reasoning_content"
"""Servers that tell a thought by this name want it back where tools were called."""


class ChatConversation(WireConversation):
    """Messages of chat completions. Each is made once, and never changed."""

    def __init__(self, *, images: bool = True, vendor: str = "") -> None:
        super().__init__(images=images, vendor=vendor)
        self._messages: list[dict[str, Any]] = []
        self._result_images: list[dict[str, Any]] = []
        """Of results that were added last: they are shown behind all of these, since a result is a text alone."""

    def add_system(self, content: list[UserContent]) -> None:
        self._add({"role": "system", "content": content[0]})

    def add_user(self, content: list[UserContent]) -> None:
        only = content[0] if len(content) == 1 else None
        self._add(
            {"role": "user", "content": only if isinstance(only, str) else [_content_part(piece) for piece in content]}
        )

    def add_result(self, result: ShownResult) -> None:
        text, images = _result_text(result)
        self._messages.append({"role": "tool", "tool_call_id": result.call, "content": text})
        self._result_images = [*self._result_images, *images]

    def add_answer(self, content: list[AnswerContent]) -> None:
        sealed = [piece for piece in content if isinstance(piece, SealedContent)]
        content = [plain for piece in content for plain in opened(piece)]
        if not content:
            return
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
            _add_seals(message, sealed)
        self._add(message)

    def _add(self, message: dict[str, Any]) -> None:
        self._messages += self._image_message()
        self._result_images = []
        self._messages.append(message)

    def _image_message(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self._result_images}] if self._result_images else []

    def written(self) -> WireMessages:
        return WireMessages([*self._messages, *self._image_message()], has_far_images=self._has_far_images)


def _add_seals(message: dict[str, Any], sealed: list[SealedContent]) -> None:
    """What servers want back with an answer that calls tools: what was thought, and Gemini's signature of a call."""
    for piece in sealed:
        thought = "".join(str(part.text) for part in piece.parts if isinstance(part, ReasoningPart))
        if thought and piece.field("field") == THOUGHT_FIELD:
            message[THOUGHT_FIELD] = message.get(THOUGHT_FIELD, "") + thought
        signature, ids = piece.field("thought_signature"), [part.id for part in piece.parts if _is_call(part)]
        for call in message["tool_calls"]:
            if signature is not None and call["id"] in ids:
                call["extra_content"] = {"google": {"thought_signature": signature}}


def _is_call(part: Part) -> TypeGuard[ToolUsePart]:
    return isinstance(part, ToolUsePart)


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


class ChatClient:
    """Asks one model for chat completions."""

    def __init__(self, client: Client, url: str, facts: ModelFacts) -> None:
        self._client, self._url, self._facts = client, f"{url}/chat/completions", facts

    async def ask(self, question: ModelQuestion, on_piece: OnPiece | None, meter: AnswerMeter) -> ModelAnswer:
        body = chat_body(question, self._facts, is_streamed=on_piece is not None)
        names = offered_names(question.tools)
        if on_piece is None:
            return read_completion(await post_whole(self._client, self._url, body, {}), self._facts, names, meter)
        reading = CompletionStream(self._facts, on_piece, meter)
        async with post_streamed(self._client, self._url, body, {}) as events:
            async for event in events:
                if event.data.startswith(b"[DONE]"):
                    await read_to_end(events)
                    break
                reading.read(event.data)
        return reading.answer(names)

    async def count(self, question: ModelQuestion) -> int:
        raise Unsupported("Chat Completions have no endpoint that counts")


def chat_body(question: ModelQuestion, facts: ModelFacts, *, is_streamed: bool) -> dict[str, Any]:
    """What a server is asked."""
    parameters = question.parameters.given()
    body: dict[str, Any] = {"model": question.model, "messages": with_role(question.conversation.messages, facts)}
    body |= {wire: parameters[ours] for ours, wire in _CHAT_PARAMETERS.items() if ours in parameters}
    if "thinking" in parameters and (effort := thinking_effort(parameters["thinking"], facts)) is not None:
        body["reasoning_effort"] = effort
    if question.forbids_storing:
        body["store"] = False
    if schema := parameters.get("response_schema"):
        body["response_format"] = {"type": "json_schema", "json_schema": answer_format(schema)}
    if question.tools:
        body |= {"tools": [_tool(tool) for tool in question.tools], "tool_choice": "auto"}
    if is_streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body | cache_field(question)


def cache_field(question: ModelQuestion) -> dict[str, str]:
    """What has requests that begin alike answered where the beginning is cached."""
    is_sent = question.cache is PromptCache.KEY and question.cache_key is not None
    return {"prompt_cache_key": str(question.cache_key)} if is_sent else {}


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
    extra_content: Any = None

    @property
    def signature(self) -> str | None:
        """Gemini's, of a thought before the call."""
        google = self.extra_content.get("google") if isinstance(self.extra_content, dict) else None
        return google.get("thought_signature") if isinstance(google, dict) else None


class _ChatMessage(Struct):
    """A message, or a piece of one."""

    content: Any = None
    refusal: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: list[_ChatCall] | None = None

    @property
    def thought_seal(self) -> dict[str, str]:
        """Where the thought is to be sent back."""
        is_named_so = isinstance(self.reasoning_content, str) and self.reasoning_content == self.thought
        return {"field": THOUGHT_FIELD} if is_named_so else {}

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


def read_completion(data: bytes, facts: ModelFacts, names: WireNames, meter: AnswerMeter) -> ModelAnswer:
    """A whole answer."""
    completion = msgspec.json.decode(data, type=_ChatCompletion)
    if completion.error:
        raise ServerRefusal.within(completion.error)
    tokens = read_chat_usage(completion.usage)
    meter.count(tokens)
    choice = completion.choices[0] if completion.choices else None
    if choice is None or choice.message is None:
        raise ReplyMalformed("the answer holds no message")
    message = choice.message
    answer = ReadAnswer()
    if message.thought:
        answer.add(ReasoningPart(message.thought), **(message.thought_seal if message.tool_calls else {}))
    answer.add(*_split_thinking(message.text, *facts.thinking_tags))
    for call in message.tool_calls or ():
        function = call.function or _ChatFunction()
        read = read_call(call.id, function.name or "", function.arguments, names)
        answer.add(read, thought_signature=call.signature)
    return ModelAnswer(
        parts=(TextPart(message.refusal),) if message.refusal else tuple(answer.parts),
        sealed=() if message.refusal else tuple(answer.sealed),
        finish=FinishReason.CONTENT_FILTER if message.refusal else _CHAT_FINISH.get(choice.finish_reason or ""),
        model=completion.model or "",
        answer_id=_answer_id(completion.id),
        tokens=tokens,
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


def read_chat_usage(usage: Any) -> TokenCounts | None:
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
    seal: dict[str, str] = {}


def _is_another(call: _ChatCall, function: _ChatFunction, begun: _OpenPart) -> bool:
    """Whether a piece begins another call than the one before it: some servers give all calls the same index."""
    return bool(function.name and call.id and begun.call_id) and call.id != begun.call_id


class CompletionStream:
    """Reads an answer from its pieces. A piece goes on with the last part where that is of its kind."""

    def __init__(self, facts: ModelFacts, on_piece: OnPiece, meter: AnswerMeter) -> None:
        self._tags, self._on_piece, self._meter = facts.thinking_tags, on_piece, meter
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
        if piece.usage:  # some servers end with an empty one
            self._usage = piece.usage
            self._meter.count(read_chat_usage(piece.usage))
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
            self._parts[-1].seal = delta.thought_seal
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
        if call.signature:
            part.seal = {"thought_signature": call.signature}
        part.names.append(function.name or "")
        part.texts.append(function.arguments or "")

    def answer(self, names: WireNames) -> ModelAnswer:
        """All of it, once the stream has ended."""
        finish = _CHAT_FINISH.get(self._finish or "")
        read = ReadAnswer()
        for part in self._parts:
            closed = tuple(self._closed_part(part, names, finish))
            read.add(*closed, **(part.seal if closed and self._calls else {}))
        if refusal := "".join(self._refusals):
            read = ReadAnswer()
            read.add(TextPart(refusal))
            finish = finish and FinishReason.CONTENT_FILTER
        return ModelAnswer(
            parts=tuple(read.parts),
            sealed=tuple(read.sealed),
            finish=finish,
            model=self._model,
            answer_id=_answer_id(self._id),
            tokens=read_chat_usage(self._usage),
        )

    def _closed_part(self, part: _OpenPart, names: WireNames, finish: FinishReason | None) -> Iterable[Part]:
        text = "".join(part.texts)
        if part.kind is TokenKind.TEXT and text:
            yield TextPart(text)
        elif part.kind is TokenKind.THINKING and text:
            yield ReasoningPart(text)
        elif part.kind is None and finish is not None:  # of a cut answer, a call may be half written
            yield read_call(part.call_id, "".join(part.names), text, names)


# --- OpenAI's Responses.

_RESPONSES_FINISH = {
    "completed": FinishReason.STOP,
    "max_output_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}
_FAILED = ("failed", "cancelled")
_RESPONSES_PARAMETERS = {
    "max_tokens": "max_output_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
}
_COUNTED_FIELDS = ("model", "input", "tools", "tool_choice", "reasoning", "text")
_ENDS = ("response.completed", "response.incomplete", "response.failed")


class ResponsesConversation(WireConversation):
    """Items of an input: messages, calls and their outputs, and what was thought, encrypted. Each is made once, and
    never changed. What was thought is sent with the item that followed it, both with their ids, or not at all; that
    may be a call which an imported session tells as an answer of its own."""

    def __init__(self, *, images: bool = True, vendor: str = "") -> None:
        super().__init__(images=images, vendor=vendor)
        self._items: list[dict[str, Any]] = []

    def add_system(self, content: list[UserContent]) -> None:
        self._end_answer()
        self._items.append({"role": "system", "content": content[0]})

    def add_user(self, content: list[UserContent]) -> None:
        only = content[0] if len(content) == 1 else None
        shown = only if isinstance(only, str) else [_input_part(piece) for piece in content]
        self._end_answer()
        self._items.append({"role": "user", "content": shown})

    def add_result(self, result: ShownResult) -> None:
        text = failed_text(result.text) if result.has_failed else result.text
        output: Any = [_input_part(text), *map(_input_part, result.images)] if result.images else text
        self._end_answer()
        self._items.append({"type": "function_call_output", "call_id": _call_id(result.call), "output": output})

    def add_answer(self, content: list[AnswerContent]) -> None:
        self._items += [item for piece in content for item in self._answer_items(piece)]

    def _end_answer(self) -> None:
        while self._items and self._items[-1].get("type") == "reasoning":
            self._items.pop()

    def _answer_items(self, piece: AnswerContent) -> list[dict[str, Any]]:
        if isinstance(piece, SealedContent):
            return self._sealed_items(piece)
        if isinstance(piece, str):
            return [{"role": "assistant", "content": piece}]
        call = {"name": self.called_tool(piece), "arguments": json_text(call_arguments(piece))}
        return [{**call, "call_id": _call_id(piece.id), "type": "function_call"}]

    def _sealed_items(self, piece: SealedContent) -> list[dict[str, Any]]:
        named = {} if (id := piece.field("id")) is None else {"id": id}
        plain = opened(piece)
        if (encrypted := piece.field("encrypted")) is not None and not plain:
            texts = [str(part.text) for part in piece.parts if isinstance(part, ReasoningPart)]
            summary = [{"type": "summary_text", "text": text} for text in texts]
            return [{"type": "reasoning", **named, "summary": summary, "encrypted_content": encrypted}]
        if plain and all(isinstance(text, str) for text in plain):
            content: list[Any] = [{"type": "output_text", "text": text, "annotations": []} for text in plain]
            phase = {} if (phase := piece.field("phase")) is None else {"phase": phase}
            message = {"type": "message", "role": "assistant", "status": "completed", "content": content}
            return [{**message, **named, **phase}]
        return [{**item, **named} for part in plain for item in self._answer_items(part)]

    def written(self) -> WireMessages:
        return WireMessages(list(self._items), has_far_images=self._has_far_images)


def _call_id(recorded: str) -> str:
    """Some tools record the id of a call together with that of its item."""
    return recorded.partition("|")[0]


def _input_part(content: str | ImageData) -> dict[str, Any]:
    if isinstance(content, str):
        return {"text": content, "type": "input_text"}
    return {"image_url": content.url, "type": "input_image", "detail": "auto"}


class ResponsesClient:
    """Asks one model for responses."""

    def __init__(self, client: Client, url: str, facts: ModelFacts) -> None:
        self._client, self._url, self._facts = client, f"{url}/responses", facts

    async def ask(self, question: ModelQuestion, on_piece: OnPiece | None, meter: AnswerMeter) -> ModelAnswer:
        body, names = responses_body(question, self._facts), offered_names(question.tools)
        if on_piece is None:
            response = msgspec.json.decode(await post_whole(self._client, self._url, body, {}), type=_Response)
            return read_response(response, names, meter)
        reading = ResponseStream(on_piece, meter)
        async with post_streamed(self._client, self._url, {**body, "stream": True}, {}) as events:
            async for event in events:
                if event.data.startswith(b"[DONE]"):
                    await read_to_end(events)
                    break
                reading.read(event.data)
        return reading.answer(names)

    async def count(self, question: ModelQuestion) -> int:
        body = responses_count_body(question, self._facts)
        return read_count(await post_whole(self._client, f"{self._url}/input_tokens", body, {}), "input_tokens")


def responses_count_body(question: ModelQuestion, facts: ModelFacts) -> dict[str, Any]:
    """What a server is given to count. It refuses what only says how to answer, and what is stored."""
    body = responses_body(question, facts)
    return {name: value for name, value in body.items() if name in _COUNTED_FIELDS}


def responses_body(question: ModelQuestion, facts: ModelFacts) -> dict[str, Any]:
    """What a server is asked."""
    parameters = question.parameters.given()
    messages = with_role(question.conversation.messages, facts)
    body: dict[str, Any] = {"model": question.model, "input": messages, "store": False}
    body |= {wire: parameters[ours] for ours, wire in _RESPONSES_PARAMETERS.items() if ours in parameters}
    effort = thinking_effort(parameters["thinking"], facts) if "thinking" in parameters else None
    reasoning = {"effort": effort} if effort is not None else {}
    if facts.keeps_all_thinking:
        reasoning["context"] = "all_turns"
    if reasoning:
        body["reasoning"] = reasoning
    if facts.gives_sealed_thinking or (effort not in (None, "none") and not facts.never_thinks):
        body["include"] = ["reasoning.encrypted_content"]
    if schema := parameters.get("response_schema"):
        body["text"] = {"format": {"type": "json_schema", **answer_format(schema)}}
    if question.tools:
        tools = [{**openai_tool(tool), "type": "function"} for tool in question.tools]
        body |= {"tools": tools, "tool_choice": "auto"}
    return body | cache_field(question)


class _ResponseText(Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _ResponseItem(Struct):
    """An item of an output. Kinds that were not asked for are passed over."""

    type: str = ""
    content: Any = None
    summary: Any = None
    id: Any = None
    encrypted_content: Any = None
    phase: Any = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None

    def texts(self) -> list[_ResponseText]:
        """What a message says, or what is told of a thought: its summary, or where there is none, the thought itself,
        as open models tell it."""
        pieces = self.content if self.type == "message" else self.summary or self.content
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


def read_response(response: _Response, names: WireNames, meter: AnswerMeter) -> ModelAnswer:
    """A whole answer."""
    tokens = read_responses_usage(response.usage)
    meter.count(tokens)
    if response.error:
        raise ServerRefusal.within(response.error)
    if response.output is None:
        raise ReplyMalformed("the answer holds no output")
    texts = [text for item in response.output if item.type == "message" for text in item.texts()]
    refusal = next((text.refusal for text in texts if text.refusal), None)
    answer = _read_items(response.output, names)
    reason = response.incomplete_details.reason if response.incomplete_details is not None else response.status
    finish = _RESPONSES_FINISH.get(reason or "")
    return ModelAnswer(
        parts=(TextPart(refusal),) if refusal else tuple(answer.parts),
        sealed=() if refusal else tuple(answer.sealed),
        finish=FinishReason.CONTENT_FILTER if refusal else finish,
        has_failed=reason in _FAILED,
        model=response.model or "",
        answer_id=response.id,
        tokens=tokens,
    )


def _read_items(items: list[_ResponseItem], names: WireNames) -> ReadAnswer:
    """Ids are kept where something was thought: what follows a thought is sent back under its id."""
    answer = ReadAnswer()
    has_thought = any(item.type == "reasoning" and item.encrypted_content for item in items)
    for item in items:
        id = item.id if has_thought else None
        match item.type:
            case "message":
                texts = [TextPart(text.text) for text in item.texts() if text.type == "output_text" and text.text]
                answer.add(*texts, **({"id": id, "phase": item.phase} if texts else {}))
            case "reasoning":
                thoughts = [ReasoningPart(summary.text) for summary in item.texts() if summary.text]
                sealed = {"id": id, "encrypted": item.encrypted_content} if item.encrypted_content else {}
                answer.add(*thoughts, **sealed)
            case "function_call":
                answer.add(read_call(item.call_id, item.name or "", item.arguments, names), id=id)
            case _:
                pass
    return answer


def read_responses_usage(usage: Any) -> TokenCounts | None:
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

    def __init__(self, on_piece: OnPiece, meter: AnswerMeter) -> None:
        self._on_piece, self._meter = on_piece, meter
        self._items: dict[int, _ResponseItem] = {}
        self._response: _Response | None = None

    def read(self, data: bytes) -> None:
        event = msgspec.json.decode(data, type=_ResponseEvent)
        match event.type:
            case "response.output_text.delta" if isinstance(event.delta, str) and event.delta:
                self._on_piece(TokenKind.TEXT, event.delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" if (
                isinstance(event.delta, str) and event.delta
            ):
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
        return read_response(response, names, self._meter)
