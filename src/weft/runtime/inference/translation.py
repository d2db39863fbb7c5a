"""Between the ledger's messages and those of the model layer, both ways.

What a model thought in earlier turns is not sent again: providers take their own thinking back only with a signature,
and as plain text it would become something that was said.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson
from msgspec import UNSET
from msgspec.structs import replace
from pydantic_ai import messages as m
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from weft.kernel.contents import bytes_text, json_bytes
from weft.kernel.errors import InvalidInput, ReplyMalformed
from weft.kernel.fields import Usage
from weft.kernel.weft_error import quoted
from weft.ledger.model import (
    ImagePart,
    Message,
    NewMessage,
    Part,
    ReasoningPart,
    StoredContent,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)
from weft.runtime.inference.settings import Parameters, ToolSpec
from weft.runtime.inference.shown_results import for_model, split_images, with_images
from weft.runtime.inference.tool_names import WireNames, wire_name

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=-]+)*?(;base64)?,(.*)", re.S)


class Translation:
    """A conversation as the model layer takes it: requests and responses in turn. Without `images` each image becomes a
    line of text."""

    def __init__(self, *, images: bool = True) -> None:
        self._images = images
        self._translated: list[m.ModelMessage] = []
        self._tool_names: dict[str, str] = {}

    def extend(self, messages: Iterable[Message | NewMessage]) -> None:
        """Add messages. What was given out before stays as it was."""
        translated, names = self._translated, self._tool_names
        for message in messages:
            parts = _parts(message)
            if message.role == "assistant":
                response_parts = list(_response_parts(parts, names))
                if response_parts:
                    translated.append(m.ModelResponse(parts=response_parts))
            else:
                shown = parts if self._images else [_in_words(part) for part in parts]
                asked = list(_asked(str(message.role), shown, names))
                if asked and translated and isinstance(translated[-1], m.ModelRequest):
                    translated[-1] = m.ModelRequest(parts=[*translated[-1].parts, *asked])
                elif asked:
                    translated.append(m.ModelRequest(parts=asked))

    def ending_in_request(self) -> list[m.ModelMessage]:
        """The conversation until now, which must end with something to answer."""
        if not self._translated or not isinstance(self._translated[-1], m.ModelRequest):
            raise InvalidInput(
                "there is nothing for the model to answer", "the last message must be a user's or a tool's"
            )
        return list(self._translated)


def _parts(message: Message | NewMessage) -> Sequence[Part]:
    content = message.content
    return content if isinstance(content, tuple) else (TextPart(content),)


def _text(text: Any) -> str:
    if isinstance(text, StoredContent):
        raise InvalidInput("a message refers to a stored content", "read it and give its text")
    return str(text)


def _response_parts(parts: Sequence[Part], names: dict[str, str]) -> Iterator[m.ModelResponsePart]:
    for part in parts:
        if isinstance(part, TextPart) and part.text:
            yield m.TextPart(_text(part.text))
        elif isinstance(part, ToolUsePart):
            names[part.id] = wire_name(part.name)
            is_object = isinstance(part.input, dict)
            arguments = part.input if is_object else bytes_text(json_bytes(part.input, "arguments"))
            yield m.ToolCallPart(tool_name=names[part.id], args=arguments, tool_call_id=part.id)


def _asked(role: str, parts: Sequence[Part], names: dict[str, str]) -> Iterator[m.ModelRequestPart]:
    content: list[m.UserContent] = []
    for part in parts:
        match part:
            case TextPart() if part.text:
                content.append(_text(part.text))
            case ImagePart():
                content.append(_image(_text(part.url)))
            case ToolResultPart():
                yield m.ToolReturnPart(
                    tool_name=names.get(part.tool_call_id, "unknown"),
                    content=_shown(part),
                    tool_call_id=part.tool_call_id,
                    outcome="failed" if part.is_error is True else "success",
                )
            case _:
                continue
    if role == "system":
        texts = [text for text in content if isinstance(text, str)]
        yield from [m.SystemPromptPart("\n\n".join(texts))] if texts else []
    elif len(content) == 1 and isinstance(content[0], str):
        yield m.UserPromptPart(content[0])
    elif content:
        yield m.UserPromptPart(content)


def _shown(part: ToolResultPart) -> Any:
    """A result shortened, with its images after it."""
    output, images = split_images(part.output)
    shown = for_model(output, part.tool_call_id)
    files = [m.BinaryContent(image.data, media_type=image.media_type) for image in images]
    return [shown, *files] if files else shown


def _in_words(part: Part) -> Part:
    """An image as text that says there was one, also in a result; any other part as it is."""
    if isinstance(part, ToolResultPart):
        output, images = split_images(part.output)
        words = [f"[an image ({image.media_type}), which you cannot see]" for image in images]
        return replace(part, output=with_images(output, words)) if words else part
    if not isinstance(part, ImagePart):
        return part
    kind = _text(part.url).partition(";")[0].removeprefix("data:")
    return TextPart(f"[an image ({kind[:80]}), which you cannot see]")


def _image(url: str) -> m.UserContent:
    """An image is sent as its bytes; one that lies elsewhere is fetched by the provider, never from here."""
    if url.startswith(("https://", "http://")):
        return m.ImageUrl(url)
    found = _DATA_URL.fullmatch(url)
    if found is None or not (found[1] or "").startswith("image/") or not found[2]:
        raise InvalidInput(f"image {url[:40]!r} is no image", "give a data: URL in base64, or one that begins https://")
    try:
        data = base64.b64decode(found[3], validate=True)
    except binascii.Error as error:
        raise InvalidInput(f"image: {error}", "give its bytes in base64") from None
    return m.BinaryContent(data, media_type=found[1])


def has_far_images(messages: list[m.ModelMessage]) -> bool:
    """Whether an image lies at a URL."""
    prompts = [part for message in messages for part in message.parts if isinstance(part, m.UserPromptPart)]
    return any(isinstance(item, m.ImageUrl) for prompt in prompts for item in prompt.content)


def to_settings(parameters: Parameters) -> dict[str, Any]:
    """Parameters under the names that the model layer gives them."""
    given = parameters.given()
    if "stop" in given:
        given["stop_sequences"] = list(given.pop("stop"))
    if "min_p" in given:  # no field of the protocol, but of the servers that speak it as others do
        given["extra_body"] = {"min_p": given.pop("min_p")}
    return given


def to_tools(tools: Sequence[ToolSpec]) -> ModelRequestParameters:
    made = [
        ToolDefinition(name=wire_name(tool.name), description=tool.description, parameters_json_schema=tool.schema)
        for tool in tools
    ]
    return ModelRequestParameters(function_tools=made, allow_text_output=True)


def from_model(parts: Iterable[m.ModelResponsePart], tools: Sequence[ToolSpec] = ()) -> tuple[Part, ...]:
    """What a model answered to a request that offered these tools."""
    names = WireNames(tool.name for tool in tools)
    return tuple(made for part in parts if (made := _from_part(part, names)) is not None)


def _from_part(part: m.ModelResponsePart, names: WireNames) -> Part | None:
    match part:
        case m.TextPart() if part.content:
            return TextPart(part.content)
        case m.ThinkingPart() if part.content:
            return ReasoningPart(part.content)
        case m.ToolCallPart():
            if not part.tool_name:
                raise ReplyMalformed("a call names no tool")
            return ToolUsePart(part.tool_call_id, names.name(part.tool_name), _arguments(part))
        case m.FilePart():
            data = base64.b64encode(part.content.data).decode()
            return ImagePart(f"data:{part.content.media_type};base64,{data}")
        case _:
            return None


def _arguments(part: m.ToolCallPart) -> Any:
    """The arguments of a call. A model that writes no JSON there has made no call."""
    if not isinstance(part.args, str):
        return {} if part.args is None else part.args
    try:
        return orjson.loads(part.args) if part.args.strip() else {}
    except orjson.JSONDecodeError:
        raise ReplyMalformed(f"the arguments of a call of {quoted(part.tool_name)} are no JSON") from None


def usage_of(usage: RequestUsage) -> tuple[Usage | None, str]:
    """Tokens in disjoint parts, or why there are none: a count that does not add up is not believed."""
    if usage.unmeasured_requests or not (usage.input_tokens or usage.output_tokens):
        return None, "the provider reported no usage"
    fresh = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
    counts = (fresh, usage.cache_read_tokens, usage.cache_write_tokens, usage.output_tokens, _reasoning(usage))
    if min(counts) < 0 or max(counts) >= 2**53:
        return None, "the provider reported a usage that does not add up"
    if not 0 <= usage.cache_write_1h_tokens <= usage.cache_write_tokens:
        return None, "the provider reported more cache writes for an hour than cache writes"
    if _reasoning(usage) > usage.output_tokens:
        return None, "the provider reported more reasoning than output"
    return Usage(
        input_tokens=fresh,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cache_write_1h_tokens=usage.cache_write_1h_tokens or UNSET,
        reasoning_tokens=_reasoning(usage),
        total_tokens=usage.input_tokens + usage.output_tokens,
    ), ""


def _reasoning(usage: RequestUsage) -> int:
    found = usage.output_reasoning_tokens or usage.details.get("reasoning_tokens", 0)
    return found if isinstance(found, int) else 0
