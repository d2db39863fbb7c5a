"""A thread as the message list of OpenAI's chat API: `{"messages": [...]}`.

Assistants' messages carry their tool calls, and a message of role `tool` answers each one right behind them. The API
has no place for thinking.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from weft.exchange.exporters.port import ExportOptions, ExportReport, Story
from weft.exchange.exporters.turn_contents import (
    ApiMessage,
    ExportCallIds,
    dialogues,
    image_note,
    is_web_address,
    json_line,
    raster_in,
    result_text,
)
from weft.kernel.contents import showable
from weft.ledger.model import ImagePart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart


class OpenAi:
    form = "openai"
    suffix = ".json"
    one_thread = True
    wants_requests = False

    def write(self, story: Story, wishes: ExportOptions, report: ExportReport) -> Iterator[bytes]:
        lead = b'{"messages":[\n'
        for message in _OpenAiMessages(wishes, report).walk(story):
            yield lead + json_line(message)
            lead = b",\n"
        yield b'{"messages":[]}\n' if lead[:1] == b"{" else b"\n]}\n"


class _OpenAiMessages:
    def __init__(self, wishes: ExportOptions, report: ExportReport) -> None:
        self._wishes, self._report, self._ids = wishes, report, ExportCallIds()
        self._system: str | None = None

    def walk(self, story: Story) -> Iterator[dict[str, Any]]:
        for full_turn, messages in dialogues(story.turns, self._ids):
            self._report.count(full_turn)
            if full_turn.summary is not None:
                self._report.left_out["summary"] += 1
            for spoken in messages:
                yield from self._messages(spoken)

    def _messages(self, spoken: ApiMessage) -> Iterator[dict[str, Any]]:
        match spoken.role:
            case "system":
                text = self._text(spoken)
                if text != self._system:  # turns repeat the prompt that is in effect
                    self._system = text
                    yield {"role": "system", "content": text}
            case "user":
                yield {"role": "user", "content": self._content(spoken)}
            case "assistant":
                yield from self._assistant(spoken)
            case _:
                yield from self._results(spoken)

    def _assistant(self, spoken: ApiMessage) -> Iterator[dict[str, Any]]:
        calls = [part for part in spoken.parts if isinstance(part, ToolUsePart)]
        if not self._wishes.tools:
            self._report.left_out["tool call"] += len(calls)
            calls = []
        text = self._text(spoken)
        if not calls:
            if text or spoken.message is not None:
                yield {"role": "assistant", "content": text}
            return
        yield {"role": "assistant", "content": text or None, "tool_calls": [_call(part) for part in calls]}

    def _results(self, spoken: ApiMessage) -> Iterator[dict[str, Any]]:
        for part in spoken.parts:
            if self._wishes.tools and isinstance(part, ToolResultPart):
                text = showable(result_text(part.output))
                yield {"role": "tool", "tool_call_id": part.tool_call_id, "content": text}

    def _text(self, spoken: ApiMessage) -> str:
        """All that is text; the API takes nothing else from an assistant or a system."""
        texts = []
        for part in spoken.parts:
            if isinstance(part, TextPart):
                texts.append(str(part.text))
            elif isinstance(part, ImagePart):
                texts.append(image_note(str(part.url)))
            elif isinstance(part, ReasoningPart):
                self._report.left_out["thinking"] += 1
        return showable("\n".join(texts))

    def _content(self, spoken: ApiMessage) -> str | list[dict[str, Any]]:
        texts = [part for part in spoken.parts if isinstance(part, TextPart)]
        if len(texts) < 2 and all(isinstance(part, TextPart | ReasoningPart) for part in spoken.parts):
            return self._text(spoken)
        blocks: list[dict[str, Any]] = []
        for part in spoken.parts:
            if isinstance(part, ImagePart):
                blocks.append(_image(part))
            elif isinstance(part, TextPart):
                blocks.append({"type": "text", "text": showable(str(part.text))})
            elif isinstance(part, ReasoningPart):
                self._report.left_out["thinking"] += 1
        return blocks


def _call(part: ToolUsePart) -> dict[str, Any]:
    arguments = showable(json.dumps(part.input, ensure_ascii=False))
    return {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": arguments}}


def _image(part: ImagePart) -> dict[str, Any]:
    url = str(part.url)
    raster = raster_in(url)
    if raster is None and not is_web_address(url):
        return {"type": "text", "text": showable(image_note(url))}
    image = {"url": url if raster is None else f"data:{raster.media_type};base64,{raster.base64}"}
    if part.detail in ("low", "high", "auto"):
        image["detail"] = str(part.detail)
    return {"type": "image_url", "image_url": image}
