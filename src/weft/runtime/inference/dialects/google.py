"""Google's Gemini, by the library pydantic-ai, which this module alone loads.

Its message objects are the form of the conversation; its errors become a `ServerRefusal` here.
"""

from __future__ import annotations

import base64
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, cast

from google.genai import types
from pydantic import ValidationError
from pydantic_ai import exceptions as e
from pydantic_ai import messages as m
from pydantic_ai._warnings import UsageExtractionFailedWarning
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.settings import ModelSettings as LayerSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from weft.kernel.errors import (
    ContextTooLong,
    CredentialRefused,
    InvalidInput,
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
    AnswerMeter,
    ImageData,
    ModelAnswer,
    ModelQuestion,
    OnPiece,
    ReadAnswer,
    SealedContent,
    ShownResult,
    TokenCounts,
    UserContent,
    WireConversation,
    WireMessages,
    WireNames,
    call_arguments,
    offered_names,
    opened,
    read_call,
    read_count,
    wire_name,
)
from weft.runtime.inference.dialects.server_answers import ServerRefusal, kind_of_status, post_whole
from weft.runtime.inference.model_requests import ModelParameters, ModelRoute, ToolSpec, is_budget
from weft.runtime.replies import FinishReason, TokenKind

API_VERSION = "v1beta"
NO_KEY = "kept-elsewhere"
"""The library wants a key: the guard of the connection puts the real one in."""
SIGNER = "google"
"""What the library calls the provider that signed a part."""
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

    def __init__(self, *, images: bool = True, vendor: str = "") -> None:
        super().__init__(images=images, vendor=vendor)
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
        parts = [part for piece in content for part in self._answer_parts(piece)]
        if parts:
            self._translated.append(m.ModelResponse(parts=parts))

    def _answer_parts(self, piece: AnswerContent) -> list[m.ModelResponsePart]:
        """A signature stands at the very part that it came with, which may have no text."""
        if isinstance(piece, SealedContent):
            parts = [part for plain in opened(piece) for part in self._answer_parts(plain)]
            if piece.parts and isinstance(piece.parts[0], ReasoningPart):
                parts = [m.ThinkingPart(str(piece.parts[0].text))]
            signature = piece.field("thought_signature")
            if signature is None:
                return parts
            signed = parts[0] if parts else m.TextPart("")
            signed.provider_name, signed.provider_details = SIGNER, {"thought_signature": signature}
            return [signed]
        if isinstance(piece, str):
            return [m.TextPart(piece)]
        return [m.ToolCallPart(tool_name=self.called_tool(piece), args=call_arguments(piece), tool_call_id=piece.id)]

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


class GoogleClient:
    """Asks one model of Google's."""

    def __init__(self, client: Client, route: ModelRoute) -> None:
        # a usage that cannot be read is told in the reply, not on the terminal
        warnings.filterwarnings("ignore", category=UsageExtractionFailedWarning)
        # a library's opinion of a model's age is no failure, nor a line in the middle of an answer
        warnings.filterwarnings("ignore", message="The model '.*' is deprecated", category=DeprecationWarning)
        provider = GoogleProvider(api_key=NO_KEY, http_client=client, base_url=route.url)
        self._model = GoogleModel(route.model, provider=provider)
        self._client = client
        self._count_url = f"{route.url}/{API_VERSION}/models/{route.model}:countTokens"

    async def ask(self, question: ModelQuestion, on_piece: OnPiece | None, meter: AnswerMeter) -> ModelAnswer:
        settings, tools = cast(LayerSettings, to_settings(question.parameters)), self._request_parameters(question)
        try:
            response = await self._response(question.conversation.messages, settings, tools, on_piece, meter)
        except e.ModelConnectionError:
            raise  # why there was no connection stands behind it
        except e.ModelAPIError as error:
            raise _refusal(error) from error.__cause__
        except (ValidationError, e.UnexpectedModelBehavior) as error:
            raise ReplyMalformed(f"the answer is none of Google's: {type(error).__name__}") from error
        details = response.provider_details or {}
        end = details.get("finish_reason") or details.get("block_reason")
        is_whole = end is not None and response.state == "complete"
        reason = response.finish_reason or "error" if is_whole else None
        read = read_answer(response.parts, offered_names(question.tools))
        return ModelAnswer(
            parts=tuple(read.parts),
            sealed=tuple(read.sealed),
            finish=None if reason in (None, "error") else FinishReason(reason),
            has_failed=reason == "error",
            end=str(end or ""),
            model=response.model_name or "",
            answer_id=response.provider_response_id,
            tokens=_counts(response.usage),
        )

    def _request_parameters(self, question: ModelQuestion) -> ModelRequestParameters:
        schema = question.parameters.given().get("response_schema")
        if schema and question.tools and not self._model.profile.get("google_supports_tool_combination", False):
            raise InvalidInput(
                f"{question.model} takes no schema of its answer beside tools",
                "give it no tools, leave responseSchema out, or name a newer model",
            )
        return to_tools(question.tools, schema)

    async def count(self, question: ModelQuestion) -> int:
        """The library leaves the system prompt and the tools uncounted; the server counts a whole request."""
        settings, tools = self._model.prepare_request(
            cast(LayerSettings, to_settings(question.parameters)), self._request_parameters(question)
        )
        contents, config = await self._model._build_content_and_config(
            question.conversation.messages, cast(Any, settings or {}), tools
        )
        body = {"generateContentRequest": count_body(question.model, contents, config)}
        return read_count(await post_whole(self._client, self._count_url, body, {}), "totalTokens")

    async def _response(
        self,
        messages: list[m.ModelMessage],
        settings: LayerSettings,
        tools: ModelRequestParameters,
        on_piece: OnPiece | None,
        meter: AnswerMeter,
    ) -> m.ModelResponse:
        more: dict[str, Any] = {"model_settings": settings, "model_request_parameters": tools}
        if on_piece is None:
            response = await model_request(self._model, messages, **more)
            meter.count(_counts(response.usage))
            return response
        async with model_request_stream(self._model, messages, **more) as stream:
            async for event in stream:
                meter.count(_counts(stream.usage))
                for kind, text in _text_pieces(event):
                    on_piece(kind, text)
            return stream.get()


def count_body(model: str, contents: Any, config: Any) -> dict[str, Any]:
    """A request as its server takes it, without what only says how to answer."""
    request_config = types.GenerateContentConfig.model_validate(config)
    fields = {"system_instruction", "tools", "tool_config"}
    request_fields: dict[str, Any] = request_config.model_dump(
        mode="json", by_alias=True, exclude_none=True, include=fields
    )
    if schema := request_config.response_json_schema:
        request_fields["generationConfig"] = {
            "responseMimeType": request_config.response_mime_type,
            "responseJsonSchema": schema,
        }
    shown = [
        types.Content.model_validate(content).model_dump(mode="json", by_alias=True, exclude_none=True)
        for content in contents
    ]
    return {"model": f"models/{model}", "contents": shown, **request_fields}


def _text_pieces(event: Any) -> Iterator[tuple[TokenKind, str]]:
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


def to_settings(parameters: ModelParameters) -> dict[str, Any]:
    """Parameters under the names that the library gives them."""
    own_parameters = parameters.given()
    own_parameters.pop("response_schema", None)
    if is_budget(thinking := own_parameters.get("thinking")):
        del own_parameters["thinking"]
        own_parameters["google_thinking_config"] = {"thinking_budget": thinking, "include_thoughts": True}
    if "stop" in own_parameters:
        own_parameters["stop_sequences"] = list(own_parameters.pop("stop"))
    return own_parameters


def to_tools(tools: Iterable[ToolSpec], schema: dict[str, Any] | None = None) -> ModelRequestParameters:
    """What a model may call, and the schema of its answer."""
    definitions = [
        ToolDefinition(name=wire_name(tool.name), description=tool.description, parameters_json_schema=tool.schema)
        for tool in tools
    ]
    if not schema:
        return ModelRequestParameters(function_tools=definitions, allow_text_output=True)
    answer = OutputObjectDefinition(json_schema=schema)
    return ModelRequestParameters(function_tools=definitions, output_mode="native", output_object=answer)


def read_parts(parts: Iterable[m.ModelResponsePart], names: WireNames) -> tuple[Part, ...]:
    """What a model answered."""
    return tuple(read_answer(parts, names).parts)


def read_answer(parts: Iterable[m.ModelResponsePart], names: WireNames) -> ReadAnswer:
    """What a model answered, and the signatures of its parts."""
    answer = ReadAnswer()
    for part in parts:
        signature = (part.provider_details or {}).get("thought_signature")
        read = _read_part(part, names)
        answer.add(*(() if read is None else (read,)), thought_signature=signature)
    return answer


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
