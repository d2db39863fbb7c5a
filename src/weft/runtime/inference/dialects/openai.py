"""OpenAI's Chat Completions, which many other servers speak as well, and OpenAI's Responses."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from html import escape
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.errors import ReplyMalformed
from weft.ledger.model import Part, ReasoningPart, TextPart, ToolUsePart
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
    thinking_effort,
    wire_name,
)
from weft.runtime.inference.dialects.server_answers import ServerRefusal, post_streamed, post_whole, read_to_end
from weft.runtime.inference.model_requests import ToolSpec
from weft.runtime.replies import Finish, TokenKind

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
    try:
        walk = _SchemaWalk(tool.schema)
        schema, is_strict = walk.schema, walk.is_strict
    except (AttributeError, TypeError, RecursionError):  # lists where objects are due, levels without end
        schema, is_strict = tool.schema, False
    return {
        "name": wire_name(tool.name),
        "description": tool.description or "",
        "parameters": schema,
        "strict": is_strict,
    }


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
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALL,
    "function_call": Finish.TOOL_CALL,
    "content_filter": Finish.CONTENT_FILTER,
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
    body |= {wire: given[ours] for ours, wire in _CHAT_PARAMETERS.items() if ours in given}
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
        finish=Finish.CONTENT_FILTER if message.refusal else _CHAT_FINISH.get(choice.finish_reason or ""),
        model=completion.model or "",
        answer_id=_answer_id(completion.id),
        tokens=read_chat_usage(completion.usage),
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
        finish = _CHAT_FINISH.get(self._finish or "")
        parts = [part for open_part in self._parts for part in self._closed(open_part, names, finish)]
        if refusal := "".join(self._refusals):
            parts, finish = [TextPart(refusal)], finish and Finish.CONTENT_FILTER
        return ModelAnswer(
            parts=tuple(parts),
            finish=finish,
            model=self._model,
            answer_id=_answer_id(self._id),
            tokens=read_chat_usage(self._usage),
        )

    def _closed(self, part: _OpenPart, names: WireNames, finish: Finish | None) -> Iterable[Part]:
        text = "".join(part.texts)
        if part.kind is TokenKind.TEXT and text:
            yield TextPart(text)
        elif part.kind is TokenKind.THINKING and text:
            yield ReasoningPart(text)
        elif part.kind is None and finish is not None:  # of a cut answer, a call may be half written
            yield read_call(part.call_id, "".join(part.names), text, names)


# --- OpenAI's Responses.

_RESPONSES_FINISH = {
    "completed": Finish.STOP,
    "max_output_tokens": Finish.LENGTH,
    "content_filter": Finish.CONTENT_FILTER,
}
_FAILED = ("failed", "cancelled")
_RESPONSES_PARAMETERS = {
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
    body |= {wire: given[ours] for ours, wire in _RESPONSES_PARAMETERS.items() if ours in given}
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
    finish = _RESPONSES_FINISH.get(reason or "")
    return ModelAnswer(
        parts=(TextPart(refusal),) if refusal else tuple(parts),
        finish=Finish.CONTENT_FILTER if refusal else finish,
        has_failed=reason in _FAILED,
        model=response.model or "",
        answer_id=response.id,
        tokens=read_responses_usage(response.usage),
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
