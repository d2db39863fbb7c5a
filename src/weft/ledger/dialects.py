"""Messages, tool calls and token counts as the APIs of models spell them (OpenAI's Chat and
Responses, Anthropic's Messages, ShareGPT's files), translated into the ledger's own; and a
conversation in messages as turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from weft.kernel.contents import json_value
from weft.kernel.enums import MessageRole, ToolCallStatus
from weft.kernel.errors import InvalidInput, quoted
from weft.kernel.events import Usage
from weft.ledger.model import (
    ImagePart,
    NewMessage,
    NewToolCall,
    Part,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)

# --- Token counts as the APIs of models report them, in disjoint parts.

Counts = dict[str, int | None]
"""By the names of an importer's tokens: input, output, cached, cache_write and its part cache_write_1h, reasoning."""

_CHAT = ("prompt_tokens", "completion_tokens")
_ANTHROPIC = frozenset(
    "cache_creation_input_tokens cache_read_input_tokens cache_creation server_tool_use service_tier".split()
)
_RESPONSES = frozenset({"input_tokens_details", "output_tokens_details"})
_FIELDS = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached": "cached_input_tokens",
    "cache_write": "cache_write_tokens",
    "cache_write_1h": "cache_write_1h_tokens",
    "reasoning": "reasoning_tokens",
}
_PARTS = ("reasoning_tokens", "cache_write_1h_tokens")
"""Counts that lie inside another one."""
_COUNTED = frozenset(
    "prompt_tokens completion_tokens input_tokens output_tokens cache_creation_input_tokens"
    " cache_read_input_tokens".split()
)
_COUNTED_DETAILS = frozenset(
    "cached_tokens cache_creation_tokens cache_write_tokens reasoning_tokens thinking_tokens".split()
)
_DETAILS = frozenset(
    "prompt_tokens_details completion_tokens_details input_tokens_details output_tokens_details".split()
)


class ForeignUsage(Struct, frozen=True):
    """The usage that an API reported, and those of its fields that no count of ours holds."""

    usage: Usage
    rest: dict[str, Any]


def foreign_usage(value: Mapping[str, Any]) -> ForeignUsage | None:
    """A usage in the words of an API; None where it has none of their names."""
    if not (all(name in value for name in _CHAT) or (_ANTHROPIC | _RESPONSES) & value.keys()):
        return None
    counts = chat_counts(value)
    if counts is None or any(count is not None and not 0 <= count < 2**53 for count in counts.values()):
        return None
    if (one_hour := counts["cache_write_1h"]) is not None:
        counts["cache_write_1h"] = one_hour_part(one_hour, counts["cache_write"])
    tokens = {_FIELDS[name]: count for name, count in counts.items() if count is not None}
    if "output_tokens" in tokens and _is_beside(value, reasoning := tokens.get("reasoning_tokens", 0)):
        tokens["output_tokens"] += reasoning
    total = sum(count for name, count in tokens.items() if name not in _PARTS)
    return ForeignUsage(Usage(**tokens), _uncounted_fields(value, total))


def _is_beside(value: Mapping[str, Any], reasoning: int) -> bool:
    """Some servers count reasoning beside the completion: their total tells."""
    parts = [value.get(name) for name in _CHAT]
    if not reasoning or not all(isinstance(part, int) for part in parts):
        return False
    return value.get("total_tokens") == sum(part for part in parts if isinstance(part, int)) + reasoning


def _uncounted_fields(value: Mapping[str, Any], total: int) -> dict[str, Any]:
    """The fields that say more than the counts: costs, audio, tiers, a total that is another one."""
    rest: dict[str, Any] = {}
    for name, counts in value.items():
        if name in _DETAILS and isinstance(counts, Mapping):
            counts = {key: count for key, count in counts.items() if key not in _COUNTED_DETAILS and count}
        if counts and name not in _COUNTED and (name, counts) != ("total_tokens", total):
            rest[name] = counts
    return rest


def chat_counts(usage: Any) -> Counts | None:
    """Chat completions' count, as LiteLLM gives it for every provider: what was cached or written to the cache lies
    inside the prompt, reasoning inside the completion. Another API's count where it is none."""
    counts = _mapping_or_empty(usage)
    prompt, output = _whole_number(counts.get("prompt_tokens")), _whole_number(counts.get("completion_tokens"))
    if prompt is None and output is None:
        return response_counts(counts)
    prompt_details = _mapping_or_empty(counts.get("prompt_tokens_details"))
    output_details = _mapping_or_empty(counts.get("completion_tokens_details"))
    cached = _first_count(prompt_details.get("cached_tokens"), counts.get("cache_read_input_tokens"))
    written = _first_count(
        counts.get("cache_creation_input_tokens"),
        prompt_details.get("cache_creation_tokens"),
        prompt_details.get("cache_write_tokens"),
    )
    return {
        "input": uncached_input(prompt, cached, written),
        "output": output,
        "cached": cached,
        "cache_write": written,
        "cache_write_1h": one_hour_writes(counts),
        "reasoning": _whole_number(output_details.get("reasoning_tokens")),
    }


def response_counts(usage: Mapping[str, Any]) -> Counts | None:
    """The count of OpenAI's responses (the cache lies inside the input) or of Anthropic's messages (beside it)."""
    prompt, output = _whole_number(usage.get("input_tokens")), _whole_number(usage.get("output_tokens"))
    if prompt is None and output is None:
        return None
    inside, output_details = (
        _mapping_or_empty(usage.get("input_tokens_details")),
        _mapping_or_empty(usage.get("output_tokens_details")),
    )
    cached, written = _whole_number(inside.get("cached_tokens")), _whole_number(inside.get("cache_write_tokens"))
    return {
        "input": uncached_input(prompt, cached, written),
        "output": output,
        "cached": _first_count(cached, usage.get("cache_read_input_tokens")),
        "cache_write": _first_count(written, usage.get("cache_creation_input_tokens")),
        "cache_write_1h": one_hour_writes(usage),
        "reasoning": _first_count(output_details.get("reasoning_tokens"), output_details.get("thinking_tokens")),
    }


def one_hour_writes(usage: Mapping[str, Any]) -> int | None:
    """Anthropic's count of what was written to the cache for an hour; LiteLLM gives it inside the prompt's details."""
    details = _mapping_or_empty(usage.get("prompt_tokens_details")).get("cache_creation_token_details")
    durations = _mapping_or_empty(usage.get("cache_creation")) or _mapping_or_empty(details)
    return _whole_number(durations.get("ephemeral_1h_input_tokens"))


def one_hour_part(one_hour: int, written: int | None) -> int:
    """At most what was written to the cache at all, whatever an API or an origin reports."""
    return min(one_hour, written or 0)


def uncached_input(total: int | None, cached: int | None, written: int | None) -> int | None:
    """The input without what came from the cache or went there; as it is where it cannot have held them."""
    if total is None:
        return None
    inside = (cached or 0) + (written or 0)
    return total - inside if inside <= total else total


def _first_count(*values: Any) -> int | None:
    return next((number for value in values if (number := _whole_number(value)) is not None), None)


def _whole_number(value: Any) -> int | None:
    """A whole number, also one that is written as a fraction (`3.0`)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _mapping_or_empty(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# --- The parts of a message's content, as OpenAI's Chat and Responses and Anthropic's Messages spell them.

TEXTS = frozenset({"text", "input_text", "output_text"})
THOUGHTS = frozenset({"thinking", "reasoning", "reasoning_content"})
NOTED_BLOCKS = frozenset(
    "redacted_thinking file input_file input_audio audio document search_result container_upload server_tool_use"
    " mcp_tool_use mcp_tool_result web_search_tool_result web_fetch_tool_result code_execution_tool_result"
    " bash_code_execution_tool_result text_editor_code_execution_tool_result tool_search_tool_result"
    " tool_reference advisor_tool_result mcp_tool_listing tool_addition tool_removal video_url input_video compaction"
    " fallback".split()
)
"""Types that the APIs document and that no part of ours can hold."""
BESIDE = frozenset(
    "cache_control citations annotations logprobs id status caller index encrypted_content extra_content"
    " namespace async".split()
)
"""Fields that may stand beside what a part holds."""
_TEXT_FIELDS = ("type", "text")
EMPTY: tuple[Any, ...] = (None, [], {}, "")


class ForeignContent(Struct):
    """The content of one message while its blocks are translated."""

    where: str
    keeps_unknown: bool = False
    parts: list[Part] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    """What no part holds: `at` is the number of the part that it belongs to, or before which it stood."""
    signatures: list[str | None] = field(default_factory=list)
    """The provider's signature of each thought."""

    def add_all(self, content: Any) -> None:
        """The content of a message: nothing, a text, or a list of blocks."""
        if isinstance(content, str):
            self.parts.append(TextPart(content))
        elif isinstance(content, list | tuple):
            for number, block in enumerate(content):
                self.add(block, f"{self.where}.content[{number}]")
        elif content is not None:
            raise InvalidInput(
                f"{self.where}: its content is {type(content).__name__}", "content is text, a list of parts or null"
            )

    def add(self, block: Any, where: str) -> None:
        if isinstance(block, str):
            self.parts.append(TextPart(block))
            return
        if (part := native_part(block)) is not None:
            self._append_part(part)
            return
        kind = block.get("type") if isinstance(block, Mapping) else None
        add = _HANDLERS.get(kind) if isinstance(kind, str) else None
        if add is not None:
            add(self, block, where)
        elif isinstance(block, Mapping) and (self.keeps_unknown or (isinstance(kind, str) and kind in NOTED_BLOCKS)):
            self.note_block(block)
        else:
            what = type(block).__name__ if kind is None else f"of type {quoted(kind)}"
            raise InvalidInput(
                f"{where}: a part {what} is not understood", f"known: {', '.join(sorted({*_HANDLERS, *NOTED_BLOCKS}))}"
            )

    def add_call(self, call: Any, where: str) -> None:
        """A tool call that stands beside the content."""
        id = "call_id" if isinstance(call, Mapping) and "call_id" in call else "id"
        fields = ("type", id, "name", "function", "custom", "arguments", "input")
        self.take(tool_use(call, where), call, fields, where)

    def note_block(self, block: Mapping[str, Any]) -> None:
        self.notes.append({"at": len(self.parts), "block": dict(block)})

    def metadata(self) -> dict[str, Any]:
        """What is to be kept beside the parts: signatures, where each thought has one, and notes."""
        notes = list(self.notes)
        metadata: dict[str, Any] = {}
        if self.signatures and None not in self.signatures:
            metadata["signatures"] = self.signatures
        else:
            thoughts = [number for number, part in enumerate(self.parts) if isinstance(part, ReasoningPart)]
            signed = zip(thoughts, self.signatures, strict=True)
            notes += [{"at": number, "signature": words} for number, words in signed if words is not None]
        return {**metadata, "beside": notes} if notes else metadata

    def _append_part(self, part: Part, signature: str | None = None) -> None:
        self.parts.append(part)
        if isinstance(part, ReasoningPart):
            self.signatures.append(signature)

    def take(self, part: Part, block: Mapping[str, Any], fields: tuple[str, ...], where: str, **notes: Any) -> None:
        """Append a part, and note the fields of its block that it does not hold."""
        rest = {name: value for name, value in block.items() if name not in fields and value not in EMPTY}
        unknown = [name for name in rest if name not in BESIDE]
        if unknown and not self.keeps_unknown:
            raise InvalidInput(
                f"{where}: the field {quoted(unknown[0])} of a part of type {quoted(block.get('type'))}"
                " is not understood",
                "leave it out, or put it into the metadata of the message",
            )
        if rest or notes:
            self.notes.append({"at": len(self.parts), **rest, **notes})
        signature = block.get("signature") or None
        self._append_part(part, signature if isinstance(signature, str) else None)

    def _take_text(self, block: Mapping[str, Any], where: str) -> None:
        self.take(TextPart(_words_of_block(block, "text", where)), block, ("type", "text"), where)

    def _take_refusal(self, block: Mapping[str, Any], where: str) -> None:
        self.take(TextPart(_words_of_block(block, "refusal", where)), block, ("type", "refusal"), where, refusal=True)

    def _take_thought(self, block: Mapping[str, Any], where: str) -> None:
        words, spelled = thought_text(block), _reasoning_text(block)
        if words is None and spelled is None and not block.get("signature"):
            self.note_block(block)  # only an encrypted form of it was sent
            return
        fields = ("type", "thinking", "reasoning", "text", "reasoning_content", "signature", "summary", "content")
        notes = {} if spelled is None or words is None else {"summary": block.get("summary")}
        self.take(ReasoningPart(spelled or words or ""), block, fields, where, **notes)

    def _take_image(self, block: Mapping[str, Any], where: str) -> None:
        url = image_url(block)
        if url is None:
            is_stored = block.get("file_id") or _dict_or_empty(block.get("source")).get("file_id")
            if not (is_stored or self.keeps_unknown):
                raise InvalidInput(f"{where}: an image without an address is not understood")
            self.note_block(block)  # the provider has it under an id
            return
        image = block.get("image_url")
        detail = image.get("detail") if isinstance(image, Mapping) else block.get("detail")
        fields = ("type", "image_url", "source", "detail", "url", "base64", "data", "mime_type", "media_type")
        self.take(ImagePart(url, detail if isinstance(detail, str) else UNSET), block, fields, where)

    def _tool_use(self, block: Mapping[str, Any], where: str) -> None:
        self.take(tool_use(block, where), block, ("type", "id", "name", "input"), where)

    def _tool_result(self, block: Mapping[str, Any], where: str) -> None:
        output = "" if block.get("content") is None else result_of(block["content"])
        failed = True if block.get("is_error") is True else UNSET
        part = ToolResultPart(_words_of_block(block, "tool_use_id", where), output, failed)
        self.take(part, block, ("type", "tool_use_id", "content", "is_error"), where)


_HANDLERS: dict[str, Callable[[ForeignContent, Mapping[str, Any], str], None]] = {
    **dict.fromkeys(TEXTS, ForeignContent._take_text),
    **dict.fromkeys(THOUGHTS, ForeignContent._take_thought),
    **dict.fromkeys(("image", "image_url", "input_image"), ForeignContent._take_image),
    "refusal": ForeignContent._take_refusal,
    "tool_use": ForeignContent._tool_use,
    "tool_result": ForeignContent._tool_result,
}


def native_part(block: Any) -> Part | None:
    """A part in the ledger's own form."""
    if isinstance(block, Part):
        return block
    try:
        part: Part = msgspec.convert(block, Part)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return None
    return part


def _words_of_block(block: Mapping[str, Any], name: str, where: str) -> str:
    if not isinstance(words := block.get(name), str):
        raise InvalidInput(f"{where}: its {name!r} is {quoted(words)}, not text")
    return words


def tool_use(call: Any, where: str) -> ToolUsePart:
    """A tool call of any API: of OpenAI's two, or Anthropic's block."""
    fields = call if isinstance(call, Mapping) else {}
    kind = fields.get("type")
    if isinstance(function := fields.get("function"), Mapping):
        return ToolUsePart(
            _words_of_block(fields, "id", where),
            _words_of_block(function, "name", where),
            arguments_of(function.get("arguments")),
        )
    if isinstance(custom := fields.get("custom"), Mapping):
        return ToolUsePart(
            _words_of_block(fields, "id", where), _words_of_block(custom, "name", where), custom.get("input")
        )
    if kind in ("function_call", "custom_tool_call"):
        arguments = fields.get("input") if kind == "custom_tool_call" else arguments_of(fields.get("arguments"))
        return ToolUsePart(_words_of_block(fields, "call_id", where), _words_of_block(fields, "name", where), arguments)
    if kind == "tool_use":
        return ToolUsePart(
            _words_of_block(fields, "id", where),
            _words_of_block(fields, "name", where),
            arguments_of(fields.get("input")),
        )
    raise InvalidInput(
        f"{where}: a tool call of type {quoted(kind)} is not understood",
        "a tool call has a name; what tools gave back is given as messages of the response",
    )


def arguments_of(value: Any) -> Any:
    """The arguments of a call. A text that spells an object is that object; any other text stays one."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if not isinstance(value, str) or value.lstrip()[:1] != "{":
        return value
    try:
        arguments = json_value(value.encode())
    except (ValueError, RecursionError):
        return value
    return arguments if isinstance(arguments, dict) else value


def thought_text(block: Mapping[str, Any]) -> str | None:
    """In Anthropic's words, in LangChain's, or as OpenAI's list of summaries."""
    texts = (block.get(name) for name in ("thinking", "reasoning", "text", "reasoning_content"))
    thought = next((words for words in texts if isinstance(words, str) and words), None)
    if thought is not None:
        return thought
    summaries = block.get("summary")
    words = [part.get("text") for part in summaries if isinstance(part, dict)] if isinstance(summaries, list) else []
    return "\n\n".join(text for text in words if isinstance(text, str) and text) or None


def _reasoning_text(block: Mapping[str, Any]) -> str | None:
    """The reasoning itself, of which open models send more than a summary."""
    content = block.get("content")
    words = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "\n\n".join(text for text in words if isinstance(text, str) and text) or None


def image_url(block: Mapping[str, Any]) -> str | None:
    """OpenAI's `image_url`, Anthropic's `source`, LangChain's `base64` or `url`."""
    value = block.get("image_url")
    if (url := _text_or_none(value) or _text_or_none(_dict_or_empty(value).get("url"))) is not None:
        return url
    if block.get("type") != "image":
        return None
    source = _dict_or_empty(block.get("source")) or block
    if (url := _text_or_none(source.get("url"))) is not None:
        return url
    data = _text_or_none(source.get("data")) or _text_or_none(source.get("base64"))
    mime = (
        _text_or_none(source.get("media_type")) or _text_or_none(source.get("mime_type")) or "application/octet-stream"
    )
    return None if data is None else f"data:{mime};base64,{data}"


def plain_result(content: Any) -> Any:
    """What a tool gave back: one text where there is nothing else, or what there is."""
    if isinstance(content, list) and len(content) == 1:
        only = content[0]
        if isinstance(only, dict) and _text_or_none(only.get("type")) in TEXTS and isinstance(only.get("text"), str):
            return only["text"]
    return content


def result_of(content: Any) -> Any:
    """As `plain_result`, but a block that says more than its text stays as it is."""
    text = plain_result(content)
    if text is content or not any(value not in EMPTY for name, value in content[0].items() if name not in _TEXT_FIELDS):
        return text
    return content


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _dict_or_empty(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


# --- Messages as the APIs of models spell them: OpenAI's Chat and Responses, Anthropic's Messages, and ShareGPT's
# files.

_ROLES = {
    "developer": MessageRole.SYSTEM,
    "function": MessageRole.TOOL,
    **{role.value: role for role in MessageRole},
}
_SPEAKERS = {
    "human": MessageRole.USER,
    "user": MessageRole.USER,
    "gpt": MessageRole.ASSISTANT,
    "chatgpt": MessageRole.ASSISTANT,
    "bing": MessageRole.ASSISTANT,
    "bard": MessageRole.ASSISTANT,
    "assistant": MessageRole.ASSISTANT,
    "model": MessageRole.ASSISTANT,
    "system": MessageRole.SYSTEM,
    "tool": MessageRole.TOOL,
    "observation": MessageRole.TOOL,
    "function_response": MessageRole.TOOL,
    "function_call": MessageRole.ASSISTANT,
}
"""Who speaks in ShareGPT's files."""
_NATIVE_FIELDS = frozenset(NewMessage.__struct_fields__) - {"role", "content", "metadata"}
_READ_FIELDS = frozenset(
    "role content type tool_calls function_call tool_call_id refusal reasoning_content reasoning usage stop_reason"
    " finish_reason model metadata".split()
)
"""Fields of a message that parts, or the turn around it, are made of."""
_KEPT_FIELDS = frozenset(
    "id name status phase annotations audio stop_sequence stop_details container context_management cache_control"
    " weight reasoning_details provider_specific_fields images citations created_at timestamp diagnostics".split()
)
"""Fields of a message that its metadata keeps."""
_NOTED_ITEMS = frozenset(
    "web_search_call file_search_call computer_call computer_call_output code_interpreter_call image_generation_call"
    " local_shell_call local_shell_call_output shell_call shell_call_output apply_patch_call apply_patch_call_output"
    " mcp_call mcp_list_tools mcp_approval_request mcp_approval_response item_reference compaction"
    " compaction_trigger tool_search_call tool_search_output program program_output additional_tools"
    " configuration_update".split()
)
"""Items of OpenAI's responses that no part of ours can hold."""
_ITEMS = _NOTED_ITEMS | {
    "function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output", "reasoning",
}  # fmt: skip


class TranslatedMessage(NewMessage, frozen=True, kw_only=True):
    """A message that an API spelled, with what that API told about the answer that it is."""

    usage: Usage | UnsetType = UNSET
    finish_reason: str | None = None
    is_item: bool = False
    """One of several items that make up a message in OpenAI's responses."""


def plain(value: Any) -> Any:
    """The same value with the objects of the vendors' libraries as plain dicts."""
    try:
        return _plain_value(value)
    except RecursionError:
        raise InvalidInput("a message is nested too deeply", "record the inner part as text") from None


def _plain_value(value: Any) -> Any:
    if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
        return dump(mode="json")
    if isinstance(value, Mapping):
        return {name: _plain_value(field) for name, field in value.items()}
    return [_plain_value(item) for item in value] if isinstance(value, list | tuple) else value


def translated(
    value: Mapping[str, Any], role: MessageRole, where: str, *, keeps_unknown: bool = False
) -> list[TranslatedMessage] | None:
    """The messages that this value spells; None where it has the shape of no API. `role` is that of a message which
    names none."""
    translation = _Translation(role, where, keeps_unknown)
    if isinstance(value.get("choices"), list):
        return translation.completion(value)
    if isinstance(value.get("output"), list) and value.get("object", "response") == "response":
        return translation.response(value)
    if isinstance(value.get("from"), str) and "value" in value:
        return translation.shared(value)
    if _is_item(value):
        return translation.item(value)
    is_message = is_api_message(value) if keeps_unknown else _is_foreign(value)
    return translation.message(value) if is_message else None


def is_api_message(value: Any) -> bool:
    """Has this the shape of a message, or of an item that stands among messages? The ledger's own form counts too."""
    if not isinstance(value, Mapping):
        return False
    if isinstance(speaker := value.get("from"), str) and "value" in value:
        return speaker.lower() in _SPEAKERS
    if value.get("role") is None:
        return _is_item(value)
    has_content = isinstance(value.get("content", UNSET), str | list | None)
    has_content_or_calls = has_content or any(
        isinstance(value.get(name), list | Mapping) for name in ("tool_calls", "function_call")
    )
    return isinstance(value["role"], str) and value["role"] in _ROLES and has_content_or_calls


def _is_item(value: Mapping[str, Any]) -> bool:
    """Is it an item of OpenAI's responses? Their messages, unlike Anthropic's, name no model."""
    kind = value.get("type")
    if kind == "message":
        return isinstance(value.get("role"), str) and not {"model", "stop_reason"} & value.keys()
    return isinstance(kind, str) and kind in _ITEMS and value.get("role") is None and native_part(value) is None


def _is_foreign(value: Mapping[str, Any]) -> bool:
    """Does a message say something in another way than the ledger's own?"""
    role = value.get("role")
    if not {"role", "content"} & value.keys() or not (role is None or (isinstance(role, str) and role in _ROLES)):
        return False
    if (_READ_FIELDS - {"role", "content", "model", "metadata"} | _KEPT_FIELDS) & value.keys():
        return True
    content = value.get("content", UNSET)
    if isinstance(content, list | tuple):
        return any(native_part(block) is None for block in content)
    return content is None or role in ("developer", "function")


class _Translation:
    """One value on its way: the role where it names none, what to call it in errors, and whether to keep everything."""

    def __init__(self, role: MessageRole, where: str, keeps_unknown: bool) -> None:
        self._role, self._where, self._keeps_unknown = role, where, keeps_unknown

    def completion(self, value: Mapping[str, Any]) -> list[TranslatedMessage]:
        """An answer of OpenAI's Chat API."""
        choices = value["choices"]
        if len(choices) != 1 or not isinstance(choices[0], Mapping) or not isinstance(choices[0].get("message"), dict):
            raise InvalidInput(
                f"{self._where}: an answer with {len(choices)} choices, of which one message is to be recorded",
                "give that message: response.choices[0].message",
            )
        choice = choices[0]
        (message,) = self.message({"role": "assistant", **choice["message"]})
        rest = _filled_fields(value, "choices", "usage", "model", "object")
        if beside := _filled_fields(choice, "message", "finish_reason", "index"):
            rest["choice"] = beside
        return [self._with_answer(message, value, choice.get("finish_reason"), rest)]

    def response(self, value: Mapping[str, Any]) -> list[TranslatedMessage]:
        """An answer of OpenAI's Responses API: all its items are one message."""
        items = [_Translation(self._role, f"{self._where}.output[{number}]", self._keeps_unknown).item(item)
                 for number, item in enumerate(value["output"])]  # fmt: skip
        together = joined(message for item in items for message in item)
        messages = [message for message in together if isinstance(message, TranslatedMessage)] or [_empty_answer()]
        details = value.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, Mapping) else None
        rest = _filled_fields(value, "output", "usage", "model", "object")
        return [*messages[:-1], self._with_answer(messages[-1], value, reason or value.get("status"), rest)]

    def _with_answer(
        self, message: TranslatedMessage, answer: Mapping[str, Any], reason: Any, rest: dict[str, Any]
    ) -> TranslatedMessage:
        usage, more = self._usage_of(answer.get("usage"))
        fields = {**({"response": rest} if rest else {}), **({"usage": more} if more else {})}
        return replace(
            message,
            usage=usage,
            metadata=self._with_fields(message.metadata or {}, fields) or None,
            model=answer["model"] if isinstance(answer.get("model"), str) else None,
            finish_reason=reason if isinstance(reason, str) else None,
            is_item=False,
        )

    def _usage_of(self, value: Any) -> tuple[Usage | UnsetType, dict[str, Any]]:
        if not isinstance(value, Mapping):
            return UNSET, {}
        usage = api_usage(value)
        if usage is None and not self._keeps_unknown:
            raise InvalidInput(f"{self._where}: its usage {quoted(dict(value), 200)} is not understood", "leave it out")
        return (UNSET, dict(value)) if usage is None else (usage.usage, usage.rest)

    def item(self, value: Any) -> list[TranslatedMessage]:
        """An item of OpenAI's Responses API."""
        kind = value.get("type") if isinstance(value, Mapping) else None
        if kind == "message" or (kind is None and isinstance(value, Mapping) and "role" in value):
            return [_as_item(message) for message in self.message(value)]
        if kind in ("function_call", "custom_tool_call"):
            return [self._item_message(value, lambda item, content: content.add_call(item, self._where))]
        if kind in ("function_call_output", "custom_tool_call_output"):
            return [self._item_message(value, self._output_item, MessageRole.TOOL)]
        if kind == "reasoning":
            return [self._item_message(value, lambda item, content: content.add(item, self._where))]
        if isinstance(value, Mapping) and (self._keeps_unknown or (isinstance(kind, str) and kind in _NOTED_ITEMS)):
            return [self._item_message(value, lambda item, content: content.note_block(item))]
        raise InvalidInput(f"{self._where}: an item of type {quoted(kind)} is not understood")

    def _item_message(
        self,
        value: Mapping[str, Any],
        add: Callable[[Mapping[str, Any], ForeignContent], None],
        role: MessageRole = MessageRole.ASSISTANT,
    ) -> TranslatedMessage:
        content = ForeignContent(self._where, self._keeps_unknown)
        add(value, content)
        return TranslatedMessage(
            role=role, content=tuple(content.parts), metadata=content.metadata() or None, is_item=True
        )

    def _output_item(self, value: Mapping[str, Any], content: ForeignContent) -> None:
        part = ToolResultPart(_required_name(value, "call_id", self._where), result_of(value.get("output")))
        content.take(part, value, ("type", "call_id", "output"), self._where)

    def shared(self, value: Mapping[str, Any]) -> list[TranslatedMessage] | None:
        """A message of a file in ShareGPT's form."""
        speaker = value["from"].lower()
        if speaker not in _SPEAKERS:
            return None
        return self.message(
            {**_filled_fields(value, "from", "value"), "role": _SPEAKERS[speaker], "content": value["value"]}
        )

    def message(self, value: Mapping[str, Any]) -> list[TranslatedMessage]:
        """A message of a chat, of either vendor."""
        role = self._role_of(value.get("role"))
        content = ForeignContent(self._where, self._keeps_unknown)
        self._take_thoughts(value, content)
        call_id = value.get("tool_call_id") or (_function_id(value) if value.get("role") == "function" else None)
        if role == MessageRole.TOOL and isinstance(call_id, str):
            content.parts.append(ToolResultPart(call_id, _given_result(value.get("content"))))
        else:
            content.add_all(value.get("content"))
        if isinstance(refusal := value.get("refusal"), str):
            content.add({"type": "refusal", "refusal": refusal}, self._where)
        for number, call in enumerate(_calls_of(value)):
            content.add_call(call, f"{self._where}.tool_calls[{number}]")
        return self._translated_messages(value, role, content)

    def _role_of(self, name: Any) -> MessageRole:
        if name is None:
            return self._role
        if not isinstance(name, str) or name not in _ROLES:
            raise InvalidInput(
                f"{self._where}: the role {quoted(name)} is not understood", f"known: {', '.join(_ROLES)}"
            )
        return _ROLES[name]

    def _take_thoughts(self, value: Mapping[str, Any], content: ForeignContent) -> None:
        """Reasoning beside the content, as servers of open models send it."""
        words = [value.get(name) for name in ("reasoning_content", "reasoning")]
        thought = next((text for text in words if isinstance(text, str) and text), None)
        if thought is not None:
            content.add({"type": "reasoning", "text": thought}, self._where)

    def _translated_messages(
        self, value: Mapping[str, Any], role: MessageRole, content: ForeignContent
    ) -> list[TranslatedMessage]:
        usage, more = self._usage_of(value.get("usage"))
        fields = {**content.metadata(), **self._fields_beside(value), **({"usage": more} if more else {})}
        if value.get("role") == "developer":
            fields["role"] = "developer"
        metadata = self._with_fields(_own_metadata(value), fields)
        reason = value.get("stop_reason") or value.get("finish_reason")
        message = TranslatedMessage(
            role=role,
            content=_plain_content(content.parts),
            metadata=metadata or None,
            model=value["model"] if isinstance(value.get("model"), str) else None,
            usage=usage,
            finish_reason=reason if isinstance(reason, str) else None,
            **self._native_fields(value),
        )
        return _results_apart(message, content.parts) if role == MessageRole.USER else [message]

    def _native_fields(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of the ledger's own form: who started it, files and the like."""
        names = _NATIVE_FIELDS & value.keys() - {"model"}
        if not names:
            return {}
        fields = {name: value[name] for name in names}
        try:
            message = msgspec.convert({"role": self._role.value, "content": "", **fields}, NewMessage)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise InvalidInput(f"{self._where}: {error}") from error
        return {name: getattr(message, name) for name in names}

    def _fields_beside(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a message that its metadata keeps beside what that has itself."""
        rest = _filled_fields(value, *_READ_FIELDS, *_NATIVE_FIELDS)
        unknown = [name for name in rest if name not in _KEPT_FIELDS]
        if unknown and not self._keeps_unknown:
            raise InvalidInput(
                f"{self._where}: the field {quoted(unknown[0])} of a message is not understood",
                "put it into the message's metadata",
            )
        return rest

    def _with_fields(self, metadata: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        """A message's own metadata and the fields that are kept there. Where both have a name, with another value, the
        message is refused, or its own metadata lies whole beside the fields where everything is kept."""
        taken = [name for name, value in metadata.items() if fields.get(name, value) != value]
        if not taken:
            return {**metadata, **fields}
        if self._keeps_unknown:
            return {**fields, "metadata": metadata}
        raise metadata_collision(self._where, taken[0])


def metadata_collision(where: str, name: str) -> InvalidInput:
    """A message's own metadata has a field of this name, and something else of the message is kept under it."""
    return InvalidInput(
        f"{where}: its metadata has a field {quoted(name)} of its own, where the message's {quoted(name)} is kept",
        "give the field of the metadata another name",
    )


def _own_metadata(value: Mapping[str, Any]) -> dict[str, Any]:
    metadata = value.get("metadata")
    return metadata if isinstance(metadata, dict) else {} if metadata is None else {"metadata": metadata}


def api_usage(value: Mapping[str, Any]) -> ForeignUsage | None:
    """A usage of any API; the ledger's own names count too where they stand alone."""
    if (usage := foreign_usage(value)) is not None:
        return usage
    tokens = {name: count for name, count in value.items() if count is not None}
    is_own = tokens.keys() <= set(Usage.__struct_fields__) and all(type(count) is int for count in tokens.values())
    return ForeignUsage(Usage(**tokens), {}) if is_own else None


def _results_apart(message: TranslatedMessage, parts: list[Part]) -> list[TranslatedMessage]:
    """Anthropic sends what tools gave back at the head of the user's message: it becomes a message of the tools."""
    count = next((k for k, part in enumerate(parts) if not isinstance(part, ToolResultPart)), len(parts))
    if count == 0:
        return [message]
    if count == len(parts):
        return [replace(message, role=MessageRole.TOOL)]
    results = TranslatedMessage(role=MessageRole.TOOL, content=tuple(parts[:count]))
    metadata = message.metadata
    if isinstance(metadata, dict) and "beside" in metadata:
        metadata = {**metadata, "beside": [{**note, "at": note["at"] - count} for note in metadata["beside"]]}
    return [results, replace(message, content=_plain_content(parts[count:]), metadata=metadata)]


def _plain_content(parts: list[Part]) -> Any:
    """One text stands alone, as it does in a message of the ledger's own form."""
    return parts[0].text if len(parts) == 1 and isinstance(parts[0], TextPart) else tuple(parts)


def _calls_of(value: Mapping[str, Any]) -> Iterable[Any]:
    calls = value.get("tool_calls")
    if isinstance(calls, list | tuple):
        yield from calls
    elif calls is not None:
        raise InvalidInput(f"tool_calls of a message is {type(calls).__name__}", "it is a list of tool calls")
    if isinstance(call := value.get("function_call"), Mapping):
        yield {"id": f"function:{call.get('name')}", "function": call}


def _function_id(value: Mapping[str, Any]) -> str:
    """Calls of functions had no id before they were tools: a result names the function."""
    return f"function:{value.get('name')}"


def _required_name(value: Mapping[str, Any], name: str, where: str) -> str:
    if not isinstance(words := value.get(name), str) or not words:
        raise InvalidInput(f"{where}: its {name!r} is {quoted(words)}, not text")
    return words


def _given_result(content: Any) -> Any:
    return "" if content is None else result_of(content)


def _filled_fields(value: Mapping[str, Any], *without: str) -> dict[str, Any]:
    return {name: field for name, field in value.items() if name not in without and field not in EMPTY}


def _empty_answer() -> TranslatedMessage:
    return TranslatedMessage(role=MessageRole.ASSISTANT, content=())


def joined(messages: Iterable[NewMessage]) -> list[NewMessage]:
    """Items of one answer that follow each other become one message of the assistant."""
    result: list[NewMessage] = []
    for message in messages:
        last = result[-1] if result else None
        if isinstance(last, TranslatedMessage) and isinstance(message, TranslatedMessage) and _is_one(last, message):
            result[-1] = _join_messages(last, message)
        else:
            result.append(message)
    return result


def _is_one(last: TranslatedMessage, message: TranslatedMessage) -> bool:
    return last.is_item and message.is_item and last.role == message.role == MessageRole.ASSISTANT


def _join_messages(first: TranslatedMessage, second: TranslatedMessage) -> TranslatedMessage:
    parts = _message_parts(first)
    notes = [{**note, "at": note["at"] + len(parts)} for note in _beside_notes(second)]
    beside = [*_beside_notes(first), *notes]
    return replace(first, content=(*parts, *_message_parts(second)), metadata={"beside": beside} if beside else None)


def _as_item(message: TranslatedMessage) -> TranslatedMessage:
    """An assistant's message among the items of an answer: what its metadata says of it all becomes a note."""
    if message.role != MessageRole.ASSISTANT:
        return message
    rest = {name: value for name, value in (message.metadata or {}).items() if name != "beside"}
    notes = [{"at": 0, "message": rest}, *_beside_notes(message)] if rest else _beside_notes(message)
    return replace(
        message, content=tuple(_message_parts(message)), metadata={"beside": notes} if notes else None, is_item=True
    )


def _beside_notes(message: TranslatedMessage) -> list[dict[str, Any]]:
    notes: list[dict[str, Any]] = (message.metadata or {}).get("beside", [])
    return notes


def _message_parts(message: TranslatedMessage) -> tuple[Part, ...]:
    return message.content if isinstance(message.content, tuple) else (TextPart(message.content),)


# --- A conversation in messages as turns: where each begins, and which tool calls its answer made.


class MessageTurn(Struct):
    """The messages of one turn: the prompt with what precedes it, and the answer with all its steps."""

    query: list[NewMessage] = field(default_factory=list)
    response: list[NewMessage] = field(default_factory=list)


def split_turns(messages: Iterable[NewMessage]) -> list[MessageTurn]:
    """A turn begins with a system's or a user's message after an answer; results of tools belong to the answer."""
    turns: list[MessageTurn] = []
    for message in messages:
        is_answer = message.role in (MessageRole.ASSISTANT, MessageRole.TOOL)
        if not turns or (turns[-1].response and not is_answer):
            turns.append(MessageTurn())
        (turns[-1].response if is_answer else turns[-1].query).append(message)
    return turns


def with_uses(response: Sequence[NewMessage], uses: Sequence[ToolUsePart]) -> list[NewMessage]:
    """The answer with these tool uses in it: those that it lacks go to the end of its last message."""
    messages = list(response)
    if not uses:
        return messages
    spelled = {part.id for message in messages for part in _parts_of(message) if isinstance(part, ToolUsePart)}
    missing = [use for use in uses if use.id not in spelled]
    if missing and (not messages or messages[-1].role != MessageRole.ASSISTANT):
        messages.append(NewMessage(role=MessageRole.ASSISTANT, content=()))
    if missing:
        messages[-1] = replace(messages[-1], content=(*_parts_of(messages[-1]), *missing))
    return messages


def with_usage_rest(response: Sequence[NewMessage], rest: dict[str, Any]) -> list[NewMessage]:
    """The answer, with what its usage says besides the counts in the metadata of its last message."""
    messages = list(response)
    if not rest:
        return messages
    if not messages or not isinstance(messages[-1].metadata, dict | None):
        raise InvalidInput(
            f"usage: {', '.join(rest)} can be kept only beside an answer", "leave it out, or give the response"
        )
    metadata = messages[-1].metadata or {}
    if metadata.get("usage", rest) != rest:
        raise metadata_collision("response", "usage")
    messages[-1] = replace(messages[-1], metadata={**metadata, "usage": rest})
    return messages


def with_outcomes(
    response: Sequence[NewMessage], calls: Sequence[NewToolCall]
) -> tuple[list[NewMessage], list[NewToolCall]]:
    """The answer, with tool calls where an API's results answer tool uses of it: these results leave the messages. Uses
    without a result, and results without a use, stay as they are."""
    if not any(isinstance(message, TranslatedMessage) for message in response):
        return list(response), list(calls)
    answer = _Answer({call.id for call in calls if call.id is not None})
    messages = [rest for message in response if (rest := answer.without_outcomes(message)) is not None]
    return messages, [*calls, *(_new_tool_call(use, result) for use, result in answer.uses if result is not None)]


class _Answer:
    """The tool uses of an answer, each with its result once that is met."""

    def __init__(self, known: set[str]) -> None:
        self._known = known
        self._waiting: dict[str, deque[int]] = {}
        self.uses: list[tuple[ToolUsePart, ToolResultPart | None]] = []

    def without_outcomes(self, message: NewMessage) -> NewMessage | None:
        """The message without the results that answer a use; None if nothing is left."""
        parts = _parts_of(message)
        if message.role == MessageRole.ASSISTANT:
            for part in parts:
                if isinstance(part, ToolUsePart) and part.id not in self._known:
                    self._waiting.setdefault(part.id, deque()).append(len(self.uses))
                    self.uses.append((part, None))
        if not isinstance(message, TranslatedMessage):
            return message
        rest = tuple(part for part in parts if not (isinstance(part, ToolResultPart) and self._answers_call(part)))
        if len(rest) == len(parts):
            return message
        names = [{"name": use.name} for use, result in self.uses if result in parts]
        is_metadata_known = message.metadata is None or message.metadata in names
        return None if is_metadata_known and not rest else replace(message, content=rest)

    def _answers_call(self, result: ToolResultPart) -> bool:
        waiting = self._waiting.get(result.tool_call_id)
        if not waiting:
            return False
        number = waiting.popleft()
        self.uses[number] = (self.uses[number][0], result)
        return True


def _new_tool_call(use: ToolUsePart, result: ToolResultPart) -> NewToolCall:
    status = ToolCallStatus.ERROR if result.is_error is True else None
    return NewToolCall(name=use.name, id=use.id, arguments=use.input, result=result.output, status=status)


def _parts_of(message: NewMessage) -> tuple[Part, ...]:
    content: Any = message.content
    return content if isinstance(content, tuple) else (TextPart(content),)
