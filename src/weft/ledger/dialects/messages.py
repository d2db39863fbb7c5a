"""Messages as the APIs of models spell them: OpenAI's Chat and Responses, Anthropic's Messages, and ShareGPT's files.

`translated` takes one value: a message, an item of OpenAI's responses, or a whole answer of an API with its model, its
usage and why it ended. Tool calls become tool uses among the parts, what tools gave back becomes tool results in a
message of role `tool`. Whatever else is known to stand in a message goes into its metadata; what is not known is
refused by name, or kept in the metadata where the caller wants everything kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from weft.kernel.enums import MessageRole
from weft.kernel.errors import InvalidInput
from weft.kernel.fields import Usage
from weft.kernel.weft_error import quoted
from weft.ledger.dialects.blocks import EMPTY, ForeignContent, native_part, result_of
from weft.ledger.dialects.usage import ForeignUsage, foreign_usage
from weft.ledger.model import NewMessage, Part, TextPart, ToolResultPart

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
        return _plain(value)
    except RecursionError:
        raise InvalidInput("a message is nested too deeply", "record the inner part as text") from None


def _plain(value: Any) -> Any:
    if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
        return dump(mode="json")
    if isinstance(value, Mapping):
        return {name: _plain(field) for name, field in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


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
        rest = _filled(value, "choices", "usage", "model", "object")
        if beside := _filled(choice, "message", "finish_reason", "index"):
            rest["choice"] = beside
        return [self._answered(message, value, choice.get("finish_reason"), rest)]

    def response(self, value: Mapping[str, Any]) -> list[TranslatedMessage]:
        """An answer of OpenAI's Responses API: all its items are one message."""
        items = [_Translation(self._role, f"{self._where}.output[{number}]", self._keeps_unknown).item(item)
                 for number, item in enumerate(value["output"])]  # fmt: skip
        together = joined(message for item in items for message in item)
        messages = [message for message in together if isinstance(message, TranslatedMessage)] or [_empty_answer()]
        details = value.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, Mapping) else None
        rest = _filled(value, "output", "usage", "model", "object")
        return [*messages[:-1], self._answered(messages[-1], value, reason or value.get("status"), rest)]

    def _answered(
        self, message: TranslatedMessage, answer: Mapping[str, Any], reason: Any, rest: dict[str, Any]
    ) -> TranslatedMessage:
        usage, more = self._usage(answer.get("usage"))
        fields = {**({"response": rest} if rest else {}), **({"usage": more} if more else {})}
        return replace(
            message,
            usage=usage,
            metadata=self._with_fields(message.metadata or {}, fields) or None,
            model=answer["model"] if isinstance(answer.get("model"), str) else None,
            finish_reason=reason if isinstance(reason, str) else None,
            is_item=False,
        )

    def _usage(self, value: Any) -> tuple[Usage | UnsetType, dict[str, Any]]:
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
        part = ToolResultPart(_name(value, "call_id", self._where), result_of(value.get("output")))
        content.take(part, value, ("type", "call_id", "output"), self._where)

    def shared(self, value: Mapping[str, Any]) -> list[TranslatedMessage] | None:
        """A message of a file in ShareGPT's form."""
        speaker = value["from"].lower()
        if speaker not in _SPEAKERS:
            return None
        return self.message({**_filled(value, "from", "value"), "role": _SPEAKERS[speaker], "content": value["value"]})

    def message(self, value: Mapping[str, Any]) -> list[TranslatedMessage]:
        """A message of a chat, of either vendor."""
        role = self._role_of(value.get("role"))
        content = ForeignContent(self._where, self._keeps_unknown)
        self._thoughts(value, content)
        call_id = value.get("tool_call_id") or (_function_id(value) if value.get("role") == "function" else None)
        if role == MessageRole.TOOL and isinstance(call_id, str):
            content.parts.append(ToolResultPart(call_id, _given_result(value.get("content"))))
        else:
            content.add_all(value.get("content"))
        if isinstance(refusal := value.get("refusal"), str):
            content.add({"type": "refusal", "refusal": refusal}, self._where)
        for number, call in enumerate(_calls_of(value)):
            content.add_call(call, f"{self._where}.tool_calls[{number}]")
        return self._messages(value, role, content)

    def _role_of(self, name: Any) -> MessageRole:
        if name is None:
            return self._role
        if not isinstance(name, str) or name not in _ROLES:
            raise InvalidInput(
                f"{self._where}: the role {quoted(name)} is not understood", f"known: {', '.join(_ROLES)}"
            )
        return _ROLES[name]

    def _thoughts(self, value: Mapping[str, Any], content: ForeignContent) -> None:
        """Reasoning beside the content, as servers of open models send it."""
        words = [value.get(name) for name in ("reasoning_content", "reasoning")]
        thought = next((text for text in words if isinstance(text, str) and text), None)
        if thought is not None:
            content.add({"type": "reasoning", "text": thought}, self._where)

    def _messages(
        self, value: Mapping[str, Any], role: MessageRole, content: ForeignContent
    ) -> list[TranslatedMessage]:
        usage, more = self._usage(value.get("usage"))
        fields = {**content.metadata(), **self._beside(value), **({"usage": more} if more else {})}
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
            **self._native(value),
        )
        return _results_apart(message, content.parts) if role == MessageRole.USER else [message]

    def _native(self, value: Mapping[str, Any]) -> dict[str, Any]:
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

    def _beside(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a message that its metadata keeps beside what that has itself."""
        rest = _filled(value, *_READ_FIELDS, *_NATIVE_FIELDS)
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


def _name(value: Mapping[str, Any], name: str, where: str) -> str:
    if not isinstance(words := value.get(name), str) or not words:
        raise InvalidInput(f"{where}: its {name!r} is {quoted(words)}, not text")
    return words


def _given_result(content: Any) -> Any:
    return "" if content is None else result_of(content)


def _filled(value: Mapping[str, Any], *without: str) -> dict[str, Any]:
    return {name: field for name, field in value.items() if name not in without and field not in EMPTY}


def _empty_answer() -> TranslatedMessage:
    return TranslatedMessage(role=MessageRole.ASSISTANT, content=())


def joined(messages: Iterable[NewMessage]) -> list[NewMessage]:
    """Items of one answer that follow each other become one message of the assistant."""
    result: list[NewMessage] = []
    for message in messages:
        last = result[-1] if result else None
        if isinstance(last, TranslatedMessage) and isinstance(message, TranslatedMessage) and _is_one(last, message):
            result[-1] = _together(last, message)
        else:
            result.append(message)
    return result


def _is_one(last: TranslatedMessage, message: TranslatedMessage) -> bool:
    return last.is_item and message.is_item and last.role == message.role == MessageRole.ASSISTANT


def _together(first: TranslatedMessage, second: TranslatedMessage) -> TranslatedMessage:
    parts = _parts(first)
    notes = [{**note, "at": note["at"] + len(parts)} for note in _notes(second)]
    beside = [*_notes(first), *notes]
    return replace(first, content=(*parts, *_parts(second)), metadata={"beside": beside} if beside else None)


def _as_item(message: TranslatedMessage) -> TranslatedMessage:
    """An assistant's message among the items of an answer: what its metadata says of it all becomes a note."""
    if message.role != MessageRole.ASSISTANT:
        return message
    rest = {name: value for name, value in (message.metadata or {}).items() if name != "beside"}
    notes = [{"at": 0, "message": rest}, *_notes(message)] if rest else _notes(message)
    return replace(message, content=tuple(_parts(message)), metadata={"beside": notes} if notes else None, is_item=True)


def _notes(message: TranslatedMessage) -> list[dict[str, Any]]:
    notes: list[dict[str, Any]] = (message.metadata or {}).get("beside", [])
    return notes


def _parts(message: TranslatedMessage) -> tuple[Part, ...]:
    return message.content if isinstance(message.content, tuple) else (TextPart(message.content),)
