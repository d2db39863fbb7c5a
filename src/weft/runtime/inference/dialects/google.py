"""Google's Gemini, by the library pydantic-ai, which this module alone loads.

Its message objects are the form of the conversation; its errors become a `ServerRefusal` here.
"""

from __future__ import annotations

import base64
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai import exceptions as e
from pydantic_ai import messages as m
from pydantic_ai._warnings import UsageExtractionFailedWarning
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.settings import ModelSettings as LayerSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from weft.kernel.errors import (
    ContextTooLong,
    CredentialRefused,
    ModelUnknown,
    OutsideError,
    ProviderFailed,
    ProviderUnreachable,
    RateLimited,
    ReplyMalformed,
    RequestRefused,
)
from weft.ledger.model import ImagePart, Part, ReasoningPart, TextPart
from weft.runtime.egress.connections import Client
from weft.runtime.inference.dialects.dialect_port import (
    AnswerContent,
    ImageData,
    ModelAnswer,
    ModelQuestion,
    OnPiece,
    ShownResult,
    TokenCounts,
    UserContent,
    WireConversation,
    WireMessages,
    WireNames,
    call_arguments,
    offered_names,
    read_call,
    wire_name,
)
from weft.runtime.inference.dialects.server_answers import ServerRefusal, kind_of_status
from weft.runtime.inference.model_requests import Parameters, Route, ToolSpec
from weft.runtime.replies import Finish, TokenKind

NO_KEY = "kept-elsewhere"
"""The library wants a key: the guard of the connection puts the real one in."""
_BY_CATEGORY: tuple[tuple[type[Exception], type[OutsideError]], ...] = (
    (e.ModelContextWindowExceededError, ContextTooLong),
    (e.ModelAuthenticationError, CredentialRefused),
    (e.ModelNotFoundError, ModelUnknown),
    (e.ModelQuotaExceededError, RequestRefused),
    (e.ModelRateLimitError, RateLimited),
    (e.ModelRequestTimeout, ProviderUnreachable),
    (e.ModelRequestRejectedError, RequestRefused),
    (e.ModelUnavailableError, ProviderFailed),
    (e.ModelServerError, ProviderFailed),
)


class GoogleConversation(WireConversation):
    """Requests and responses in turn, as the library takes them."""

    def __init__(self, *, images: bool = True) -> None:
        super().__init__(images=images)
        self._translated: list[m.ModelMessage] = []

    def add_system(self, content: list[UserContent]) -> None:
        self._add(m.SystemPromptPart(str(content[0])))

    def add_user(self, content: list[UserContent]) -> None:
        only = content[0] if len(content) == 1 else None
        shown: Any = only if isinstance(only, str) else [_content(piece) for piece in content]
        self._add(m.UserPromptPart(shown))

    def add_result(self, result: ShownResult) -> None:
        shown = [result.output, *map(_content, result.images)] if result.images else result.output
        self._add(
            m.ToolReturnPart(
                tool_name=result.tool,
                content=shown,
                tool_call_id=result.call,
                outcome="failed" if result.has_failed else "success",
            )
        )

    def add_answer(self, content: list[AnswerContent]) -> None:
        self._translated.append(m.ModelResponse(parts=[self._answer_part(piece) for piece in content]))

    def _answer_part(self, piece: AnswerContent) -> m.ModelResponsePart:
        if isinstance(piece, str):
            return m.TextPart(piece)
        return m.ToolCallPart(tool_name=self.called_tool(piece), args=call_arguments(piece), tool_call_id=piece.id)

    def _add(self, part: m.ModelRequestPart) -> None:
        last = self._translated[-1] if self._translated else None
        if isinstance(last, m.ModelRequest):
            self._translated[-1] = m.ModelRequest(parts=[*last.parts, part])
        else:
            self._translated.append(m.ModelRequest(parts=[part]))

    def written(self) -> WireMessages:
        return WireMessages(list(self._translated), has_far_images=self._has_far_images)


def _content(content: str | ImageData) -> m.UserContent:
    if isinstance(content, str):
        return content
    if content.is_far:
        return m.ImageUrl(content.url)
    return m.BinaryContent(base64.b64decode(content.base64), media_type=content.media_type)


class GoogleSpeaker:
    """Asks one model of Google's."""

    def __init__(self, client: Client, route: Route) -> None:
        # a usage that cannot be read is told in the reply, not on the terminal
        warnings.filterwarnings("ignore", category=UsageExtractionFailedWarning)
        # a library's opinion of a model's age is no failure, nor a line in the middle of an answer
        warnings.filterwarnings("ignore", message="The model '.*' is deprecated", category=DeprecationWarning)
        provider = GoogleProvider(api_key=NO_KEY, http_client=client, base_url=route.url)
        self._model = GoogleModel(route.model, provider=provider)

    async def ask(self, question: ModelQuestion, on_piece: OnPiece | None) -> ModelAnswer:
        settings, tools = cast(LayerSettings, to_settings(question.parameters)), to_tools(question.tools)
        try:
            response = await self._response(question.conversation.messages, settings, tools, on_piece)
        except e.ModelConnectionError:
            raise  # why there was no connection stands behind it
        except e.ModelAPIError as error:
            raise _refusal(error) from error.__cause__
        except (ValidationError, e.UnexpectedModelBehavior) as error:
            raise ReplyMalformed(f"the answer is none of Google's: {type(error).__name__}") from error
        details = response.provider_details or {}
        is_whole = details.get("finish_reason") is not None and response.state == "complete"
        reason = response.finish_reason if is_whole else None
        return ModelAnswer(
            parts=read_parts(response.parts, offered_names(question.tools)),
            finish=None if reason in (None, "error") else Finish(reason),
            has_failed=reason == "error",
            model=response.model_name or "",
            answer_id=response.provider_response_id,
            tokens=_counts(response.usage),
        )

    async def _response(
        self,
        messages: list[m.ModelMessage],
        settings: LayerSettings,
        tools: ModelRequestParameters,
        on_piece: OnPiece | None,
    ) -> m.ModelResponse:
        more: dict[str, Any] = {"model_settings": settings, "model_request_parameters": tools}
        if on_piece is None:
            return await model_request(self._model, messages, **more)
        async with model_request_stream(self._model, messages, **more) as stream:
            async for event in stream:
                for kind, text in _pieces(event):
                    on_piece(kind, text)
            return stream.get()


def _pieces(event: Any) -> Iterator[tuple[TokenKind, str]]:
    match event:
        case m.PartStartEvent(part=m.TextPart(content=text)) if text:
            yield TokenKind.TEXT, text
        case m.PartDeltaEvent(delta=m.TextPartDelta(content_delta=text)) if text:
            yield TokenKind.TEXT, text
        case m.PartStartEvent(part=m.ThinkingPart(content=text)) if text:
            yield TokenKind.THINKING, text
        case m.PartDeltaEvent(delta=m.ThinkingPartDelta(content_delta=text)) if text:
            yield TokenKind.THINKING, text
        case _:
            return


def to_settings(parameters: Parameters) -> dict[str, Any]:
    """Parameters under the names that the library gives them."""
    given = parameters.given()
    if "stop" in given:
        given["stop_sequences"] = list(given.pop("stop"))
    return given


def to_tools(tools: Iterable[ToolSpec]) -> ModelRequestParameters:
    definitions = [
        ToolDefinition(name=wire_name(tool.name), description=tool.description, parameters_json_schema=tool.schema)
        for tool in tools
    ]
    return ModelRequestParameters(function_tools=definitions, allow_text_output=True)


def read_parts(parts: Iterable[m.ModelResponsePart], names: WireNames) -> tuple[Part, ...]:
    """What a model answered."""
    return tuple(read for part in parts if (read := _read_part(part, names)) is not None)


def _read_part(part: m.ModelResponsePart, names: WireNames) -> Part | None:
    match part:
        case m.TextPart() if part.content:
            return TextPart(part.content)
        case m.ThinkingPart() if part.content:
            return ReasoningPart(part.content)
        case m.ToolCallPart():
            return read_call(part.tool_call_id, part.tool_name, part.args, names)
        case m.FilePart():
            data = base64.b64encode(part.content.data).decode()
            return ImagePart(f"data:{part.content.media_type};base64,{data}")
        case _:
            return None


def _counts(usage: RequestUsage) -> TokenCounts | None:
    if usage.unmeasured_requests:
        return None
    return TokenCounts(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cache_read=usage.cache_read_tokens,
        cache_write=usage.cache_write_tokens,
        cache_write_1h=usage.cache_write_1h_tokens,
        reasoning=usage.output_reasoning_tokens,
    )


def _refusal(error: e.ModelAPIError) -> Exception:
    """The same refusal without the library."""
    status = getattr(error, "status_code", None)
    kind = next((ours for theirs, ours in _BY_CATEGORY if isinstance(error, theirs)), None)
    if status is None and kind is None and error.__cause__ is not None:
        return error  # what is behind it says more
    usual = ProviderFailed if status is None else kind_of_status(status)
    return ServerRefusal(status, error.body or str(error), error.retry_after, kind or usual)
