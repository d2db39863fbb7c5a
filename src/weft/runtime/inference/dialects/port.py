"""What every dialect takes and gives: a question over a conversation that it keeps in its own form, and an answer.

A dialect's `WireConversation` grows by the ledger's messages, each translated once; its `Speaker` puts a question over
it and reads the answer into the parts that are recorded. What a model thought in earlier turns is not sent again:
providers take their own thinking back only with a signature, and as plain text it would become something that was said.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import orjson
from msgspec import UNSET, Struct
from msgspec.structs import replace

from weft.kernel.clock import system_random
from weft.kernel.contents import bytes_text, json_bytes
from weft.kernel.errors import InvalidInput, ReplyMalformed, quoted
from weft.kernel.events import Usage
from weft.ledger.model import (
    ImagePart,
    Message,
    NewMessage,
    Part,
    StoredContent,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)
from weft.runtime.inference.replies import Finish, TokenKind
from weft.runtime.inference.settings import Parameters, ToolSpec
from weft.runtime.inference.shown_results import ResultImage, for_model, split_images, with_images
from weft.runtime.inference.tool_names import WireNames, wire_name

OnPiece = Callable[[TokenKind, str], None]
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=-]+)*?(;base64)?,(.*)", re.S)
LARGEST_COUNT = 2**53


class WireMessages(Struct, frozen=True):
    """A conversation as a dialect sends it. `system` holds the prompts that its protocol wants apart."""

    messages: list[Any]
    system: tuple[str, ...] = ()
    has_far_images: bool = False
    """Whether an image lies at a URL."""


class ModelQuestion(Struct, frozen=True, kw_only=True):
    """What a model is asked."""

    model: str
    conversation: WireMessages
    parameters: Parameters
    tools: Sequence[ToolSpec] = ()


class TokenCounts(Struct, frozen=True, kw_only=True):
    """What a provider counted. The input holds what was read from caches and written to them, the output what was
    thought."""

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    reasoning: int = 0


class ModelAnswer(Struct, frozen=True, kw_only=True):
    """What a model answered. Without `finish` the answer stopped and did not say why; `has_failed`: it says that the
    model ended with an error."""

    parts: tuple[Part, ...]
    finish: Finish | None
    has_failed: bool = False
    model: str = ""
    answer_id: str | None = None
    tokens: TokenCounts | None = None


class Speaker(Protocol):
    """Puts questions to one model at one URL, in one dialect. With `on_piece` the answer is streamed."""

    async def ask(self, question: ModelQuestion, on_piece: OnPiece | None) -> ModelAnswer: ...


class ImageData(Struct, frozen=True):
    """An image: its bytes in base64, or the URL where a provider finds it."""

    url: str
    media_type: str = ""
    base64: str = ""

    @property
    def is_far(self) -> bool:
        return not self.media_type


class ShownResult(Struct, frozen=True, kw_only=True):
    """The result of a call, as a model is shown it."""

    call: str
    tool: str
    output: Any
    images: tuple[ImageData, ...] = ()
    has_failed: bool = False

    @property
    def text(self) -> str:
        """The output as one text; nothing, for none."""
        return "" if self.output is None else json_text(self.output)


UserContent = str | ImageData
"""A piece of what somebody says: a text, or an image."""
AnswerContent = str | ToolUsePart
"""A piece of what a model answered: a text, or a call."""


class WireConversation:
    """A conversation that grows, in the form of one dialect. Without `images` each image becomes a line of text."""

    def __init__(self, *, images: bool = True) -> None:
        self._images = images
        self._tool_names: dict[str, str] = {}
        self._ends_in_request = False
        self._has_far_images = False

    def extend(self, messages: Iterable[Message | NewMessage]) -> None:
        """Add messages. What was given out before stays as it was."""
        for message in messages:
            content = message.content
            parts = content if isinstance(content, tuple) else (TextPart(content),)
            if message.role == "assistant":
                self._extend_answers(parts)
            else:
                shown = parts if self._images else [_in_words(part) for part in parts]
                self._extend_requests(str(message.role), shown)

    def wire_messages(self) -> WireMessages:
        """The conversation until now, which must end with something to answer."""
        if not self._ends_in_request:
            raise InvalidInput(
                "there is nothing for the model to answer", "the last message must be a user's or a tool's"
            )
        return self.written()

    def _extend_answers(self, parts: Sequence[Part]) -> None:
        content: list[AnswerContent] = []
        for part in parts:
            if isinstance(part, TextPart) and part.text:
                content.append(plain_text(part.text))
            elif isinstance(part, ToolUsePart):
                self._tool_names[part.id] = wire_name(part.name)
                content.append(part)
        if content:
            self.add_answer(content)
            self._ends_in_request = False

    def _extend_requests(self, role: str, parts: Sequence[Part]) -> None:
        content: list[UserContent] = []
        for part in parts:
            match part:
                case TextPart() if part.text:
                    content.append(plain_text(part.text))
                case ImagePart():
                    content.append(self._image(plain_text(part.url)))
                case ToolResultPart():
                    self.add_result(_shown_result(part, self._tool_names.get(part.tool_call_id, "unknown")))
                    self._ends_in_request = True
                case _:
                    continue
        if role == "system":
            content = ["\n\n".join(texts)] if (texts := [text for text in content if isinstance(text, str)]) else []
        if content:
            add = self.add_system if role == "system" else self.add_user
            add(content)
            self._ends_in_request = True

    def _image(self, url: str) -> ImageData:
        image = image_of(url)
        self._has_far_images |= image.is_far
        return image

    def called_tool(self, call: ToolUsePart) -> str:
        """The name that the tool of a call has on the wire."""
        return self._tool_names[call.id]

    def add_system(self, content: list[UserContent]) -> None:
        raise NotImplementedError

    def add_user(self, content: list[UserContent]) -> None:
        raise NotImplementedError

    def add_result(self, result: ShownResult) -> None:
        raise NotImplementedError

    def add_answer(self, content: list[AnswerContent]) -> None:
        raise NotImplementedError

    def written(self) -> WireMessages:
        raise NotImplementedError


def plain_text(text: Any) -> str:
    if isinstance(text, StoredContent):
        raise InvalidInput("a message refers to a stored content", "read it and give its text")
    return str(text)


def image_of(url: str) -> ImageData:
    """An image is sent as its bytes; one that lies elsewhere is fetched by the provider, never from here."""
    if url.startswith(("https://", "http://")):
        return ImageData(url)
    match = _DATA_URL.fullmatch(url)
    if match is None or not (match[1] or "").startswith("image/") or not match[2]:
        raise InvalidInput(f"image {url[:40]!r} is no image", "give a data: URL in base64, or one that begins https://")
    try:
        base64.b64decode(match[3], validate=True)
    except binascii.Error as error:
        raise InvalidInput(f"image: {error}", "give its bytes in base64") from None
    return image_data(match[1], match[3])


def image_data(media_type: str, encoded: str) -> ImageData:
    return ImageData(f"data:{media_type};base64,{encoded}", media_type, encoded)


def _in_words(part: Part) -> Part:
    """An image as text that says there was one, also in a result; any other part as it is."""
    if isinstance(part, ToolResultPart):
        output, images = split_images(part.output)
        words = [f"[an image ({image.media_type}), which you cannot see]" for image in images]
        return replace(part, output=with_images(output, words)) if words else part
    if not isinstance(part, ImagePart):
        return part
    kind = plain_text(part.url).partition(";")[0].removeprefix("data:")
    return TextPart(f"[an image ({kind[:80]}), which you cannot see]")


def _shown_result(part: ToolResultPart, tool: str) -> ShownResult:
    output, images = split_images(part.output)
    return ShownResult(
        call=part.tool_call_id,
        tool=tool,
        output=for_model(output, part.tool_call_id),
        images=tuple(map(_result_image, images)),
        has_failed=part.is_error is True,
    )


def _result_image(image: ResultImage) -> ImageData:
    return image_data(image.media_type, base64.b64encode(image.data).decode())


def json_text(value: Any) -> str:
    """A text as it is; any other value as JSON."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # integers of more than 64 bits, lone surrogates
        return bytes_text(json_bytes(value, "output"))


def call_arguments(call: ToolUsePart) -> dict[str, Any]:
    """What a tool was called with, as providers take it: an object. What a model wrote instead is shown in one."""
    if isinstance(call.input, dict):
        return call.input
    return {"INVALID_JSON": bytes_text(json_bytes(call.input, "arguments"))}


def read_call(call_id: str | None, name: str, arguments: Any, names: WireNames) -> ToolUsePart:
    """A call that a model makes. A model that names no tool, or writes no JSON as its arguments, has made none."""
    if not name:
        raise ReplyMalformed("a call names no tool")
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments) if arguments.strip() else {}
        except orjson.JSONDecodeError:
            raise ReplyMalformed(f"the arguments of a call of {quoted(name)} are no JSON") from None
    # servers that count calls in their order give them no ids, and a result needs one to belong to
    made_id = call_id or f"call_{system_random(12).hex()}"
    return ToolUsePart(made_id, names.name(name), {} if arguments is None else arguments)


def offered_names(tools: Sequence[ToolSpec]) -> WireNames:
    return WireNames(tool.name for tool in tools)


def count_of(counts: Any, *path: str) -> int:
    """A count at a place in what a provider tells of its usage; 0 where there is none."""
    for name in path:
        counts = counts.get(name) if isinstance(counts, dict) else None
    return counts if isinstance(counts, int) and not isinstance(counts, bool) else 0


def usage_of(counts: TokenCounts | None) -> tuple[Usage | None, str]:
    """Tokens in disjoint parts, or why there are none: a count that does not add up is not believed."""
    if counts is None or not (counts.input or counts.output):
        return None, "the provider reported no usage"
    fresh = counts.input - counts.cache_read - counts.cache_write
    amounts = (fresh, counts.cache_read, counts.cache_write, counts.output, counts.reasoning)
    if min(amounts) < 0 or max(amounts) >= LARGEST_COUNT:
        return None, "the provider reported a usage that does not add up"
    if not 0 <= counts.cache_write_1h <= counts.cache_write:
        return None, "the provider reported more cache writes for an hour than cache writes"
    if counts.reasoning > counts.output:
        return None, "the provider reported more reasoning than output"
    return Usage(
        input_tokens=fresh,
        output_tokens=counts.output,
        cached_input_tokens=counts.cache_read,
        cache_write_tokens=counts.cache_write,
        cache_write_1h_tokens=counts.cache_write_1h or UNSET,
        reasoning_tokens=counts.reasoning,
        total_tokens=counts.input + counts.output,
    ), ""
