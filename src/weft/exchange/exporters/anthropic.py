"""A thread as Anthropic's messages API wants it: `{"messages": [...], "system": [...]}`.

Messages alternate and begin with the user's; results open the user's message after the calls. The system prompt comes
last in the file, because it is the one in effect at the thread's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.exchange.exporters.port import ExportOptions, ExportReport, Story, ThinkingChoice
from weft.exchange.exporters.turn_contents import (
    ApiMessage,
    ExportCallIds,
    ExportedImage,
    dialogues,
    image_note,
    is_failed,
    is_web_address,
    json_line,
    raster_in,
    result_contents,
)
from weft.kernel.contents import showable
from weft.ledger.model import (
    ANTHROPIC,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    sealed_items,
)

FORMATS = ("png", "jpeg", "gif", "webp")
BEGINNING = "(The assistant began.)"
"""What stands for the user's message that the API wants before an assistant's first."""
Block = dict[str, Any]


class Anthropic:
    form = "anthropic"
    suffix = ".json"
    one_thread = True
    wants_requests = False

    def write(self, story: Story, wishes: ExportOptions, report: ExportReport) -> Iterator[bytes]:
        lead, dialogue_messages = b'{"messages":[\n', _AnthropicMessages(wishes, report)
        for message in dialogue_messages.walk(story):
            yield lead + json_line(message)
            lead = b",\n"
        yield b'{"messages":[]' if lead[:1] == b"{" else b"\n]"
        if dialogue_messages.system:
            yield b',\n"system":' + json_line(dialogue_messages.system)
        yield b"}\n"


class _AnthropicMessages:
    def __init__(self, wishes: ExportOptions, report: ExportReport) -> None:
        self._wishes, self._report, self._ids = wishes, report, ExportCallIds()
        self._role, self._blocks, self._begun = "", list[Block](), False
        self.system: list[Block] = []

    def walk(self, story: Story) -> Iterator[dict[str, Any]]:
        for full_turn, messages in dialogues(story.turns, self._ids):
            self._report.count(full_turn)
            if full_turn.summary is not None:
                self._report.left_out["summary"] += 1
            yield from self._turn(messages)
        yield from self._flush()

    def _turn(self, messages: Iterator[ApiMessage]) -> Iterator[dict[str, Any]]:
        prompt: list[Block] = []
        leading = True
        for spoken in messages:
            leading = leading and spoken.role == "system"
            if leading:
                prompt += self._texts(spoken)
                continue
            role = "assistant" if spoken.role == "assistant" else "user"
            blocks = list(self._blocks_of(spoken))
            if blocks and role != self._role:
                yield from self._flush()
                self._role = role
            self._blocks += blocks
        if prompt and prompt != self.system:
            self._report.left_out["earlier system prompt"] += bool(self.system)
            self.system = prompt

    def _flush(self) -> Iterator[dict[str, Any]]:
        """The message that is ready, now that the other side speaks."""
        if not self._blocks:
            return
        if not self._begun and self._role == "assistant":
            yield {"role": "user", "content": [{"type": "text", "text": BEGINNING}]}
        self._begun = True
        yield {"role": self._role, "content": self._blocks}
        self._blocks = []

    def _texts(self, spoken: ApiMessage) -> Iterator[Block]:
        """A system's message: text and nothing else."""
        for part in spoken.parts:
            if isinstance(part, TextPart):
                yield from _text(str(part.text))
            elif isinstance(part, ImagePart):
                yield from _text(image_note(str(part.url)))
            else:
                self._report.left_out["thinking"] += 1

    def _blocks_of(self, spoken: ApiMessage) -> Iterator[Block]:
        if spoken.role == "system":
            for block in self._texts(spoken):
                yield {"type": "text", "text": f"<system>\n{block['text']}\n</system>"}
            return
        signatures = _signatures(spoken.message)
        for part in spoken.parts:
            if isinstance(part, ReasoningPart):
                yield from self._thinking(part, spoken.role, next(signatures, None))
            elif isinstance(part, ToolUsePart | ToolResultPart):
                yield from self._tool(part)
            else:
                yield from _text_or_image(part, spoken.role)

    def _thinking(self, part: ReasoningPart, role: str, signature: str | None) -> Iterator[Block]:
        wish = self._wishes.thinking or ThinkingChoice.SIGNED
        if role != "assistant" or wish is ThinkingChoice.NONE or (signature is None and wish is ThinkingChoice.SIGNED):
            unsigned = role == "assistant" and wish is ThinkingChoice.SIGNED
            self._report.left_out["unsigned thinking" if unsigned else "thinking"] += 1
            return
        block = {"type": "thinking", "thinking": showable(str(part.text))}
        yield block if signature is None else {**block, "signature": signature}

    def _tool(self, part: ToolUsePart | ToolResultPart) -> Iterator[Block]:
        if not self._wishes.tools:
            self._report.left_out["tool call"] += isinstance(part, ToolUsePart)
        elif isinstance(part, ToolUsePart):
            yield {"type": "tool_use", "id": part.id, "name": part.name, "input": _clean(part.input)}
        else:
            block: Block = {"type": "tool_result", "tool_use_id": part.tool_call_id, "content": _output(part.output)}
            yield {**block, "is_error": True} if is_failed(part) else block


def _signatures(message: Message | None) -> Iterator[str | None]:
    """The provider's signatures of a message's thinking, part by part; none of those that are imported where not each
    part has one."""
    if message is None:
        return
    if sealed := {item.at: item.fields.get("signature") for item in sealed_items(message, ANTHROPIC) if item.parts}:
        thoughts_at = (at for at, part in enumerate(message.content) if isinstance(part, ReasoningPart))
        yield from (signature if isinstance(signature := sealed.get(at), str) else None for at in thoughts_at)
        return
    metadata = message.metadata if isinstance(message.metadata, dict) else {}
    found = metadata.get("signatures")
    thoughts = sum(isinstance(part, ReasoningPart) for part in message.content)
    if isinstance(found, list) and len(found) == thoughts and all(isinstance(each, str) for each in found):
        yield from found


def _text(text: str) -> Iterator[Block]:
    """The API takes no text without a letter in it."""
    if text.strip():
        yield {"type": "text", "text": showable(text)}


def _text_or_image(part: Part, role: str) -> Iterator[Block]:
    if isinstance(part, TextPart):
        yield from _text(str(part.text))
    elif isinstance(part, ImagePart):
        block = _image(str(part.url)) if role == "user" else None
        yield from _text(image_note(str(part.url))) if block is None else (block,)


def _image(url: str) -> Block | None:
    raster = raster_in(url)
    if raster is not None and raster.format in FORMATS:
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": raster.media_type, "data": raster.base64},
        }
    return {"type": "image", "source": {"type": "url", "url": url}} if is_web_address(url) else None


def _output(value: Any) -> str | list[Block]:
    contents = list(result_contents(value))
    if not any(isinstance(content, ExportedImage) for content in contents):
        return showable("\n".join(str(content) for content in contents))
    blocks: list[Block] = []
    for content in contents:
        block = _image(content.url) if isinstance(content, ExportedImage) else None
        text = content if isinstance(content, str) else image_note(content.url)
        blocks += _text(text) if block is None else (block,)
    return blocks


def _clean(value: Any) -> Any:
    """The same JSON with replacement characters where a text cannot be written in UTF-8."""
    if isinstance(value, str):
        return showable(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {showable(name): _clean(item) for name, item in value.items()}
    return value
