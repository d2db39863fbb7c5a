"""LangChain's messages, in every form that states hold them: objects, dicts with a role, pairs of role and text."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.exchange.importers.chat import Said, apart, arguments, chat_tokens, response_tokens, said
from weft.exchange.importers.langgraph.values import Tagged, plain
from weft.exchange.importers.transcript import Tokens
from weft.exchange.importers.values import mapping, sequence, text, whole
from weft.ledger.model import ReasoningPart

Json = dict[str, Any]
KINDS = {
    "human": "user", "user": "user", "HumanMessageChunk": "user",
    "ai": "assistant", "assistant": "assistant", "AIMessageChunk": "assistant",
    "tool": "tool", "function": "tool", "ToolMessageChunk": "tool", "FunctionMessageChunk": "tool",
    "system": "system", "developer": "system", "SystemMessageChunk": "system",
    "remove": "remove",
}  # fmt: skip
CLASSES = {
    "HumanMessage": "user", "AIMessage": "assistant", "ToolMessage": "tool", "FunctionMessage": "tool",
    "SystemMessage": "system", "RemoveMessage": "remove",
}  # fmt: skip


class Message(Struct):
    """One message of a state."""

    role: str
    id: str | None
    value: Json

    @property
    def content(self) -> Said:
        found = said(plain(self.value.get("content")))
        thought = text(mapping(self.value.get("additional_kwargs")).get("reasoning_content"))
        if thought is not None and not any(isinstance(part, ReasoningPart) for part in found.parts):
            found.parts.insert(0, ReasoningPart(thought))
        return found

    @property
    def calls(self) -> list[tuple[str, str, Any]]:
        """Id, name and arguments of every tool that was asked for, also those that could not be read."""
        found = [mapping(plain(each)) for each in sequence(self.value.get("tool_calls"))]
        told = [(text(each.get("id")) or "", *_called(each)) for each in found]
        broken = [mapping(plain(each)) for each in sequence(self.value.get("invalid_tool_calls"))]
        return told + [(text(each.get("id")) or "", text(each.get("name")) or "", each.get("args")) for each in broken]

    @property
    def answers(self) -> str | None:
        """The call that this message is the result of."""
        return text(self.value.get("tool_call_id")) or (text(self.value.get("name")) if self.role == "tool" else None)

    @property
    def response(self) -> Json:
        return mapping(plain(self.value.get("response_metadata")))

    @property
    def model(self) -> str | None:
        return text(self.response.get("model_name")) or text(self.response.get("model"))

    @property
    def tokens(self) -> Tokens | None:
        """LangChain's own count, in which the input holds what was cached; else the provider's."""
        usage = mapping(plain(self.value.get("usage_metadata")))
        given, output = whole(usage.get("input_tokens")), whole(usage.get("output_tokens"))
        if given is None and output is None:
            told = mapping(self.response.get("usage"))
            return chat_tokens(self.response.get("token_usage")) or response_tokens(told)
        inside, within = mapping(usage.get("input_token_details")), mapping(usage.get("output_token_details"))
        cached, written = whole(inside.get("cache_read")), whole(inside.get("cache_creation"))
        return Tokens(
            input=apart(given, cached, written),
            output=output,
            cached=cached,
            cache_write=written,
            reasoning=whole(within.get("reasoning")),
        )


def _called(call: Json) -> tuple[str, Any]:
    """LangChain's form, or OpenAI's in a message that is a plain dict."""
    function = mapping(call.get("function"))
    if function:
        return text(function.get("name")) or "", arguments(function.get("arguments"))
    return text(call.get("name")) or "", call.get("args")


def message(value: Any) -> Message | None:
    """None: this is no message."""
    name = ""
    if isinstance(value, Tagged):
        name, value = value.kind, value.value
    if isinstance(value, list | tuple):
        is_pair = len(value) == 2 and isinstance(value[0], str) and value[0] in KINDS and not name
        return Message(KINDS[value[0]], None, {"content": value[1]}) if is_pair else None
    if not isinstance(value, dict):
        return None
    if isinstance(data := value.get("data"), dict) and "content" in data and "content" not in value:
        value = {"type": value.get("type"), **data}
    told = text(value.get("type")) or text(value.get("role")) or ""
    role = CLASSES.get(name) or KINDS.get(told) or (KINDS.get(text(value.get("role")) or ""))
    if role is None and told == "chat":
        role = KINDS.get(text(value.get("role")) or "", "assistant")
    if role is None or ("content" not in value and role != "remove"):
        return None
    return Message(role, text(value.get("id")), value)
