"""The parts of a message's content, as OpenAI's Chat and Responses and Anthropic's Messages spell them.

`ForeignContent` gathers the parts of one message. What no part of ours can hold is noted with its place: fields beside
the text (`cache_control`, `annotations`), and blocks that have no counterpart (audio, files, searches by the server).
A block of an unknown type is refused, or noted where the caller wants everything kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, field

from weft.kernel.contents import json_value
from weft.kernel.errors import InvalidInput
from weft.kernel.weft_error import quoted
from weft.ledger.model import ImagePart, Part, ReasoningPart, TextPart, ToolResultPart, ToolUsePart

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
            self._append(part)
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

    def _append(self, part: Part, signature: str | None = None) -> None:
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
        self._append(part, signature if isinstance(signature, str) else None)

    def _text(self, block: Mapping[str, Any], where: str) -> None:
        self.take(TextPart(_words(block, "text", where)), block, ("type", "text"), where)

    def _refusal(self, block: Mapping[str, Any], where: str) -> None:
        self.take(TextPart(_words(block, "refusal", where)), block, ("type", "refusal"), where, refusal=True)

    def _thought(self, block: Mapping[str, Any], where: str) -> None:
        words, spelled = thought_text(block), _reasoning_text(block)
        if words is None and spelled is None and not block.get("signature"):
            self.note_block(block)  # only an encrypted form of it was sent
            return
        fields = ("type", "thinking", "reasoning", "text", "reasoning_content", "signature", "summary", "content")
        notes = {} if spelled is None or words is None else {"summary": block.get("summary")}
        self.take(ReasoningPart(spelled or words or ""), block, fields, where, **notes)

    def _image(self, block: Mapping[str, Any], where: str) -> None:
        url = image_url(block)
        if url is None:
            is_stored = block.get("file_id") or _mapping(block.get("source")).get("file_id")
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
        part = ToolResultPart(_words(block, "tool_use_id", where), output, failed)
        self.take(part, block, ("type", "tool_use_id", "content", "is_error"), where)


_HANDLERS: dict[str, Callable[[ForeignContent, Mapping[str, Any], str], None]] = {
    **dict.fromkeys(TEXTS, ForeignContent._text),
    **dict.fromkeys(THOUGHTS, ForeignContent._thought),
    **dict.fromkeys(("image", "image_url", "input_image"), ForeignContent._image),
    "refusal": ForeignContent._refusal,
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


def _words(block: Mapping[str, Any], name: str, where: str) -> str:
    if not isinstance(words := block.get(name), str):
        raise InvalidInput(f"{where}: its {name!r} is {quoted(words)}, not text")
    return words


def tool_use(call: Any, where: str) -> ToolUsePart:
    """A tool call of any API: of OpenAI's two, or Anthropic's block."""
    fields = call if isinstance(call, Mapping) else {}
    kind = fields.get("type")
    if isinstance(function := fields.get("function"), Mapping):
        return ToolUsePart(
            _words(fields, "id", where), _words(function, "name", where), arguments_of(function.get("arguments"))
        )
    if isinstance(custom := fields.get("custom"), Mapping):
        return ToolUsePart(_words(fields, "id", where), _words(custom, "name", where), custom.get("input"))
    if kind in ("function_call", "custom_tool_call"):
        arguments = fields.get("input") if kind == "custom_tool_call" else arguments_of(fields.get("arguments"))
        return ToolUsePart(_words(fields, "call_id", where), _words(fields, "name", where), arguments)
    if kind == "tool_use":
        return ToolUsePart(
            _words(fields, "id", where), _words(fields, "name", where), arguments_of(fields.get("input"))
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
    if (url := _text(value) or _text(_mapping(value).get("url"))) is not None:
        return url
    if block.get("type") != "image":
        return None
    source = _mapping(block.get("source")) or block
    if (url := _text(source.get("url"))) is not None:
        return url
    data = _text(source.get("data")) or _text(source.get("base64"))
    mime = _text(source.get("media_type")) or _text(source.get("mime_type")) or "application/octet-stream"
    return None if data is None else f"data:{mime};base64,{data}"


def plain_result(content: Any) -> Any:
    """What a tool gave back: one text where there is nothing else, or what there is."""
    if isinstance(content, list) and len(content) == 1:
        only = content[0]
        if isinstance(only, dict) and _text(only.get("type")) in TEXTS and isinstance(only.get("text"), str):
            return only["text"]
    return content


def result_of(content: Any) -> Any:
    """As `plain_result`, but a block that says more than its text stays as it is."""
    text = plain_result(content)
    if text is content or not any(value not in EMPTY for name, value in content[0].items() if name not in _TEXT_FIELDS):
        return text
    return content


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
