"""What a model is asked with, as plain values, and where the question goes.

Providers, models, parameters, situations and requests; the route to a server; what is shown of a
tool's result; the estimated tokens; how much time and money a request may take; what follows after
a failure.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, Literal, TypeGuard, overload
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from weft.kernel.errors import Action, BudgetSpent, InvalidInput, ProviderFailed, WeftError
from weft.kernel.events import Usage
from weft.ledger.api import EMBEDDED_PROVIDER, FREE, PriceTable, TokenPrice, sent_text, shipped_prices
from weft.ledger.model import (
    ANTHROPIC,
    GOOGLE,
    OPENAI,
    SEALED,
    ImagePart,
    Message,
    NewMessage,
    Part,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    sealed_items,
)
from weft.runtime.egress.credentials import ConnectionRules, Secret, origin_of
from weft.runtime.replies import Reply

# --- What a model is shown of the result of a tool: shortened where it is long, and its images as images.

SHOWN_CHARACTERS = 50_000
"""Of one result, as the model sees it."""
FIRST_SHARE = 0.8
"""Of what is shown of a long text, so much is its beginning; the rest is its end."""
SHORTEST_DATA_CHARACTERS = 1000
"""A `data:` URL of fewer is left as it is."""
LEAST_CHARACTERS = 500
"""That are shown of each long text in a structured result; with less room for each, it is shown as one text."""
IMAGES = "images"
RESULT = "result"
_IMAGE_URL = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/=]+)")


class ResultImage(Struct, frozen=True):
    """An image that a tool gave."""

    media_type: str
    data: bytes


def with_images(result: Any, urls: Sequence[str]) -> Any:
    """A result with the `data:` URLs of its images, as it is recorded."""
    if not urls:
        return result
    fields = result if isinstance(result, dict) and IMAGES not in result else {RESULT: result}
    return {**fields, IMAGES: list(urls)}


def count_result_images(output: Any) -> int:
    """How many images a recorded result has: none where one of its list is no image."""
    urls = output.get(IMAGES) if isinstance(output, dict) else None
    if not isinstance(urls, list) or not all(isinstance(url, str) and _IMAGE_URL.fullmatch(url) for url in urls):
        return 0
    return len(urls)


def split_images(output: Any) -> tuple[Any, tuple[ResultImage, ...]]:
    """A recorded result without its images, and these. A list that holds something else is a part of the result."""
    if not count_result_images(output):
        return output, ()
    matches = [_IMAGE_URL.fullmatch(url) for url in output[IMAGES]]
    try:
        images = tuple(ResultImage(match[1], base64.b64decode(match[2], validate=True)) for match in matches if match)
    except binascii.Error:
        return output, ()
    rest = {name: value for name, value in output.items() if name != IMAGES}
    return rest.get(RESULT) if set(rest) == {RESULT} else rest, images


def for_model(result: Any, call: str, limit: int = SHOWN_CHARACTERS) -> Any:
    """A recordable result as the model sees it: as it is where it is short, else with marks. Its form stays where a few
    texts in it are long; else it is shown as one text of JSON. `call` is the id that the model knows the call by."""
    if isinstance(result, str):
        return _shortened_text(result, limit, call, "")
    whole = result_text(result)
    if len(whole) <= limit:
        return result
    places = dict(_texts_in(result, ""))
    others = len(whole) - sum(len(msgspec.json.encode(text).decode()) for text in places.values())
    share = _characters_each(list(places.values()), limit - others)
    if share < LEAST_CHARACTERS:
        return _shortened_text(whole, limit, call, "")
    return _replaced(result, "", {at: _shortened_text(text, share, call, at) for at, text in places.items()})


def result_text(result: Any) -> str:
    """What `read_result` reads: a text itself, anything else as JSON."""
    return result if isinstance(result, str) else msgspec.json.format(msgspec.json.encode(result), indent=1).decode()


def _texts_in(value: Any, at: str) -> list[tuple[str, str]]:
    """Each text in a result, by its place as RFC 6901 writes it."""
    if isinstance(value, str):
        return [(at, value)]
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _texts_in(item, f"{at}/{_escaped_key(key)}")]
    if isinstance(value, list):
        return [pair for index, item in enumerate(value) for pair in _texts_in(item, f"{at}/{index}")]
    return []


def _replaced(value: Any, at: str, texts: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return texts[at]
    if isinstance(value, dict):
        return {key: _replaced(item, f"{at}/{_escaped_key(key)}", texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, f"{at}/{index}", texts) for index, item in enumerate(value)]
    return value


def _escaped_key(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _characters_each(texts: Sequence[str], room: int) -> int:
    """How many characters each text may have so that together they fit: short ones leave more to long ones."""
    sizes = sorted(len(text) for text in texts)
    for index, size in enumerate(sizes):
        rest = len(sizes) - index
        if size * rest > room:
            return room // rest
        room -= size
    return room


def _shortened_text(text: str, limit: int, call: str, at: str) -> str:
    if text.startswith("data:") and len(text) > max(limit, SHORTEST_DATA_CHARACTERS):
        kind = text[5:100].partition(",")[0].partition(";")[0]
        return f"[{kind or 'data'} of {len(text)} characters, left out]"
    if len(text) <= limit:
        return text
    first = int(limit * FIRST_SHARE)
    last = limit - first
    place = {"call": call, **({"at": at} if at else {}), "offset": first + 1}
    left_out = len(text) - limit
    mark = f"[{left_out} of {len(text)} characters left out; read_result {json.dumps(place)} reads on]"
    return f"{text[:first]}\n{mark}\n{text[-last:]}"


# --- How many tokens a text is, by its length: an estimate that is rather too high.

BYTES_A_TOKEN = 3
"""Fewer than in most texts. Bytes of UTF-8: a Chinese sign is three of them and about one token."""
MESSAGE_TOKENS = 4
IMAGE_TOKENS = 1_600
"""About the most that a provider counts for an image, whatever its size in bytes."""


def estimated_tokens(messages: Iterable[Message | NewMessage]) -> int:
    """By the length of what is sent of each part, and an image counts as one. Thinking is sent again where its provider
    sealed it: whoever else is asked, it counts."""
    return sum(
        MESSAGE_TOKENS + sum(map(part_tokens, _parts(message))) + _sealed_tokens(message) for message in messages
    )


def _sealed_tokens(message: Message | NewMessage) -> int:
    """Of each thought what is longer: its text, or what is encrypted of it, which is base64."""
    sealed = message.metadata.get(SEALED) if isinstance(message.metadata, dict) else None
    items = sealed_items(message, str(sealed.get("vendor"))) if isinstance(sealed, dict) else ()
    parts, tokens = _parts(message), 0
    for item in items:
        thoughts = [part for part in parts[item.at : item.at + item.parts] if isinstance(part, ReasoningPart)]
        shown = sum(text_tokens(str(part.text)) for part in thoughts)
        encrypted = max((len(text) for text in item.fields.values() if isinstance(text, str)), default=0)
        tokens += max(shown, encrypted * 3 // 4 // BYTES_A_TOKEN)
    return tokens


def part_tokens(part: Part) -> int:
    match part:
        case TextPart():
            return value_tokens(part.text)
        case ToolUsePart():
            return value_tokens(part.id) + value_tokens(part.name) + value_tokens(part.input)
        case ToolResultPart():
            return value_tokens(part.tool_call_id) + _result_tokens(part)
        case ImagePart():
            return IMAGE_TOKENS
        case ReasoningPart():
            return 0


def _result_tokens(part: ToolResultPart) -> int:
    """Of what the model is shown of a result."""
    output, images = split_images(part.output)
    return value_tokens(for_model(output, part.tool_call_id)) + IMAGE_TOKENS * len(images)


def text_tokens(text: str) -> int:
    return -(-len(text.encode(errors="surrogatepass")) // BYTES_A_TOKEN)


def value_tokens(value: Any) -> int:
    return text_tokens(sent_text(value))


def _parts(message: Message | NewMessage) -> Sequence[Part]:
    content = message.content
    return content if isinstance(content, tuple) else (TextPart(content),)


# --- What a model is asked with, as plain values: providers, models, parameters, situations, requests.

Thinking = bool | Literal["minimal", "low", "medium", "high"] | int
"""Whether a model thinks, how hard, or with how many tokens."""


def is_budget(thinking: Thinking | UnsetType | None) -> TypeGuard[int]:
    """Whether it is a count of tokens."""
    return isinstance(thinking, int) and not isinstance(thinking, bool)


class ProviderKind(StrEnum):
    """The kinds of provider."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    GOOGLE = "google"
    OPENAI_COMPATIBLE = "openai-compatible"
    CLOUDFLARE = "cloudflare-ai-gateway"
    LOCAL = "local"


class OpenAIApi(StrEnum):
    """Which of OpenAI's two APIs is used."""

    CHAT = "chat"
    RESPONSES = "responses"


class PromptCache(StrEnum):
    """What a provider is told of the caching of prompts."""

    FIVE_MINUTES = "5m"
    ONE_HOUR = "1h"
    """The time that Anthropic keeps a prompt for."""
    KEY = "key"
    """OpenAI's `prompt_cache_key`."""
    OFF = "off"


class ProviderSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who answers. `credential` names the key of the provider, `gateway_credential` that of the gateway before it."""

    id: str
    kind: ProviderKind
    base_url: str | None = None
    api: OpenAIApi | None = None
    credential: str | None = None
    gateway_credential: str | None = None
    account_id: str | None = None
    gateway_id: str | None = None
    rules: ConnectionRules = field(default_factory=ConnectionRules)

    @property
    def is_embedded(self) -> bool:
        return self.kind is ProviderKind.LOCAL

    def moved(self, base_url: str | None) -> ProviderSettings:
        """The same provider at another URL. Where that is another origin, its keys stay behind."""
        same = base_url == self.base_url or (
            base_url is not None and self.base_url is not None and origin_of(base_url) == origin_of(self.base_url)
        )
        dropped_keys = {} if same else {"credential": None, "gateway_credential": None}
        return msgspec.structs.replace(self, base_url=base_url, **dropped_keys)


class ModelParameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a model is asked. What is left out is left to the provider."""

    temperature: float | UnsetType = UNSET
    max_tokens: int | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET
    min_p: float | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    stop: tuple[str, ...] | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET
    thinking: Thinking | UnsetType = UNSET
    response_schema: dict[str, Any] | UnsetType | None = UNSET
    """The JSON Schema of the answer, which is JSON then; None: the answer is a text, whatever is configured below."""

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}

    def over(self, below: ModelParameters) -> ModelParameters:
        """These, and the other ones where these say nothing."""
        return ModelParameters(**{**below.given(), **self.given()})


NO_PARAMETERS = ModelParameters()
EMBEDDED_SAMPLING = ModelParameters(temperature=0.3, min_p=0.15, top_p=1.0)
"""What an embedded model is asked with where nobody says otherwise: a small one needs a narrow choice of words, and no
penalty for repeating one."""


class ModelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model at a provider. `fallbacks` are asked, in order, when the provider fails."""

    id: str
    name: str
    provider: ProviderSettings
    parameters: ModelParameters = NO_PARAMETERS
    situations: dict[str, ModelParameters] = field(default_factory=dict)
    fallbacks: tuple[ModelSettings, ...] = ()
    images: bool | None = None
    """Whether it takes images; None where nobody said."""
    context_window: int | None = None
    """How many tokens a request and its answer may be; None where nobody said."""
    api: OpenAIApi | None = None
    """Which of OpenAI's APIs it is asked by; None where that is left to its provider, or to its name."""
    prompt_cache: PromptCache | None = None
    """None: what is usual where it is asked."""

    @property
    def vendor(self) -> str | None:
        """Whose model it is; None where a server only speaks as a vendor's does. Behind a gateway its name says it."""
        kind = self.provider.kind
        if kind is ProviderKind.OPENAI_COMPATIBLE:
            return None
        if kind is not ProviderKind.CLOUDFLARE:
            return kind.value
        path = next((path for pattern, path, _ in _BEHIND_GATEWAY if pattern.fullmatch(self.name)), None)
        if path == "compat":
            return self.name.partition("/")[0]
        return None if path is None else _VENDOR_AT_GATEWAY[path]

    @property
    def takes_images(self) -> bool:
        """A model of which nothing is said takes them, but for the embedded one."""
        return self.provider.kind is not ProviderKind.LOCAL if self.images is None else self.images

    def in_situation(self, situation: str | None, own: ModelParameters = NO_PARAMETERS) -> ModelParameters:
        """The model's parameters, over them the situation's, over those the request's own; below them all what an
        embedded model is asked with."""
        below = self.parameters.over(EMBEDDED_SAMPLING) if self.provider.is_embedded else self.parameters
        if situation is None:
            return own.over(below)
        if situation not in self.situations:
            situation_names = ", ".join(sorted(self.situations)) or "none"
            raise InvalidInput(f"model {self.id!r} knows no situation {situation!r}", f"it knows: {situation_names}")
        return own.over(self.situations[situation]).over(below)


class ToolSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the model may call; `schema` is the JSON Schema of its arguments."""

    name: str
    description: str = ""
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


class FunctionReference(Struct, frozen=True, forbid_unknown_fields=True):
    """What stands with a message of a function that was given with it: only a program that has it runs it."""

    name: str
    digest: str
    """The hash of its name and its schema."""


class ModelConversation(Sequence[Message | NewMessage]):
    """Messages in order, the system prompt first. They grow at their end only: whoever has read so many of them goes on
    from there, and compares or copies nothing."""

    def __init__(self, messages: Iterable[Message | NewMessage] = ()) -> None:
        self._messages: list[Message | NewMessage] = []
        self._images = 0
        self.extend(messages)

    def append(self, message: Message | NewMessage) -> None:
        self._messages.append(message)
        self._images += count_images((message,))

    def extend(self, messages: Iterable[Message | NewMessage]) -> None:
        for message in messages:
            self.append(message)

    def so_far(self) -> ConversationBeginning:
        """The messages until now: a value that stays as it is, whatever is added."""
        return ConversationBeginning(self, self._messages, self._images)

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message | NewMessage]:
        return iter(self._messages)

    @overload
    def __getitem__(self, at: int) -> Message | NewMessage: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Message | NewMessage]: ...

    def __getitem__(self, at: int | slice) -> Message | NewMessage | Sequence[Message | NewMessage]:
        return self._messages[at]


class ConversationBeginning(Sequence[Message | NewMessage]):
    """The first messages of a conversation. None of them is copied."""

    def __init__(self, conversation: ModelConversation, messages: list[Message | NewMessage], images: int) -> None:
        self.conversation = conversation
        self.images = images
        """How many of their parts are images."""
        self._messages, self._length = messages, len(messages)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Message | NewMessage]:
        return islice(self._messages, self._length)

    @overload
    def __getitem__(self, at: int) -> Message | NewMessage: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Message | NewMessage]: ...

    def __getitem__(self, at: int | slice) -> Message | NewMessage | Sequence[Message | NewMessage]:
        places = range(self._length)[at]
        return self._messages[places] if isinstance(places, int) else [self._messages[place] for place in places]


class InferenceRequest(Struct, frozen=True, kw_only=True):
    """One question to one model. `messages` are in order, the system prompt first."""

    model: ModelSettings
    messages: Sequence[Message | NewMessage]
    situation: str | None = None
    parameters: ModelParameters = NO_PARAMETERS
    tools: tuple[ToolSpec, ...] = ()
    cache_key: str | None = None
    """The same for all requests that begin alike: those of a session, and of its forks."""


class TokenCount(Struct, frozen=True, kw_only=True):
    """How many tokens a request is."""

    tokens: int
    counted_by: str | None = None
    """The provider that counted them; None: they are estimated."""
    why: str = ""
    """Why they are an estimate."""


def request_tokens(request: InferenceRequest) -> int:
    """The estimate of a request: its messages, and what its tools are described with."""
    return estimated_tokens(request.messages) + tools_tokens(request.tools)


def tools_tokens(tools: Iterable[ToolSpec]) -> int:
    return sum(value_tokens([tool.name, tool.description, tool.schema]) for tool in tools)


def count_images(messages: Iterable[Message | NewMessage]) -> int:
    if isinstance(messages, ConversationBeginning):
        return messages.images
    contents = (message.content for message in messages if isinstance(message.content, tuple))
    return sum(_part_images(part) for content in contents for part in content)


def _part_images(part: Part) -> int:
    return count_result_images(part.output) if isinstance(part, ToolResultPart) else isinstance(part, ImagePart)


class RetryPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often one model is tried, and how long is waited in between, in seconds."""

    attempts: int = 4
    first_wait: float = 0.5
    factor: float = 2.0
    longest_wait: float = 30.0
    longest_retry_after: float = 120.0
    """A provider that wants to be left alone for longer is not waited for."""


# --- Where a question goes: which protocol is spoken, to which URL, under which name, with which keys in which
# headers.

CLOUDFLARE = "https://gateway.ai.cloudflare.com"


class Dialect(StrEnum):
    """The protocols that providers speak."""

    ANTHROPIC = "anthropic"
    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    GOOGLE = "google"


class KeySlot(Struct, frozen=True):
    """A header, what stands before the key in it, and the credential that the key comes from."""

    header: str
    before: str
    credential: str


class ModelRoute(Struct, frozen=True, kw_only=True):
    """Where a request goes: protocol, URL, model name, headers with keys."""

    dialect: Dialect
    url: str
    model: str
    keys: tuple[KeySlot, ...]
    own_keys: dict[str, Secret] = field(default_factory=dict)
    """Headers of a server that was started here, whose key nobody else knows."""
    compatible: bool = False
    """Not the provider's own server, but one that speaks as it does."""

    @property
    def vendor(self) -> str:
        """Who opens what was sealed with an answer. Anthropic opens it wherever its models run; of any other server
        only that one is known to."""
        if self.dialect is Dialect.ANTHROPIC and "claude" in self.model:
            return ANTHROPIC
        home = (name for name, url in _VENDOR_HOMES.items() if origin_of(self.url) == origin_of(url))
        return next(home, self.url)

    @property
    def takes_min_p(self) -> bool:
        return self.compatible and self.dialect in (Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES)


HOMES = {
    ProviderKind.ANTHROPIC: "https://api.anthropic.com",
    ProviderKind.OPENAI: "https://api.openai.com/v1",
    ProviderKind.GOOGLE: "https://generativelanguage.googleapis.com",
}
_VENDOR_HOMES = {
    ANTHROPIC: HOMES[ProviderKind.ANTHROPIC],
    OPENAI: HOMES[ProviderKind.OPENAI],
    GOOGLE: HOMES[ProviderKind.GOOGLE],
}
_KEY_OF = {
    Dialect.ANTHROPIC: ("x-api-key", ""),
    Dialect.OPENAI_CHAT: ("authorization", "Bearer "),
    Dialect.OPENAI_RESPONSES: ("authorization", "Bearer "),
    Dialect.GOOGLE: ("x-goog-api-key", ""),
}
_BEHIND_GATEWAY = (
    (re.compile(r"(?:anthropic/)?(claude-.+)"), "anthropic", Dialect.ANTHROPIC),
    (re.compile(r"(?:openai/)?((?:gpt-|chatgpt-|codex-|o\d).*)"), "openai", Dialect.OPENAI_CHAT),
    (re.compile(r"(?:google/|google-ai-studio/)?(gemini-.+)"), "google-ai-studio", Dialect.GOOGLE),
    (re.compile(r"(?:workers-ai/)?(@cf/.+)"), "workers-ai/v1", Dialect.OPENAI_CHAT),
    (re.compile(r"([a-z0-9-]+/.+)"), "compat", Dialect.OPENAI_CHAT),
)
"""What a model's name begins with, where the gateway wants it, and what is spoken there."""
_VENDOR_AT_GATEWAY = {
    "anthropic": "anthropic", "openai": "openai", "google-ai-studio": "google", "workers-ai/v1": "cloudflare",
}  # fmt: skip


def _speaks_chat_alone(model: str) -> bool:
    """Whether it is a model of OpenAI's that its Responses do not have."""
    is_special = "-audio-" in model or "-search-" in model
    return model.startswith("gpt-audio") or (model.startswith(("gpt-4", "gpt-5")) and is_special)


def route_of(model: ModelSettings) -> ModelRoute:
    provider = model.provider
    match provider.kind:
        case ProviderKind.CLOUDFLARE:
            return _through_cloudflare(model)
        case ProviderKind.ANTHROPIC:
            return _straight(model, Dialect.ANTHROPIC)
        case ProviderKind.GOOGLE:
            return _straight(model, Dialect.GOOGLE)
        case ProviderKind.OPENAI:
            default = OpenAIApi.CHAT if _speaks_chat_alone(model.name) else OpenAIApi.RESPONSES
            return _straight(model, _openai(model, default))
        case ProviderKind.OPENAI_COMPATIBLE:
            return _straight(model, _openai(model, OpenAIApi.CHAT), compatible=True)
        case ProviderKind.LOCAL:
            raise InvalidInput("the embedded model has no route of its own", "start it first")


def prompt_cache_of(model: ModelSettings, dialect: Dialect) -> PromptCache:
    """What is told of caching. Servers that only speak as OpenAI's does may refuse a field that they do not know."""
    usual = PromptCache.OFF
    if dialect is Dialect.ANTHROPIC:
        usual = PromptCache.FIVE_MINUTES
    elif dialect in (Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES) and model.vendor == OPENAI:
        usual = PromptCache.KEY
    return model.prompt_cache or usual


def asks_by_cache_key(model: ModelSettings) -> bool:
    """Whether it, or one of its fallbacks, is sent the key of a session."""
    return any(
        candidate.prompt_cache is PromptCache.KEY or (candidate.prompt_cache is None and candidate.vendor == OPENAI)
        for candidate in (model, *model.fallbacks)
    )


def prompt_cache_fault(model: ModelSettings) -> tuple[str, str] | None:
    """Why a model's provider cannot be told so of caching, and what to do; None where it can."""
    if model.prompt_cache is None:
        return None
    taken: tuple[PromptCache, ...] = ()
    dialect = None if model.provider.is_embedded else route_of(model).dialect
    if dialect is Dialect.ANTHROPIC:
        taken = PromptCache.FIVE_MINUTES, PromptCache.ONE_HOUR, PromptCache.OFF
    elif dialect in (Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES):
        taken = PromptCache.KEY, PromptCache.OFF
    if model.prompt_cache in taken:
        return None
    name = "the embedded model" if dialect is None else str(dialect)
    advice = f"one of {', '.join(taken)}" if taken else "leave promptCache out: what begins alike is cached unasked"
    return f"{name} cannot be told {str(model.prompt_cache)!r}", advice


def _openai(model: ModelSettings, default: OpenAIApi) -> Dialect:
    is_chat = (model.api or model.provider.api or default) is OpenAIApi.CHAT
    return Dialect.OPENAI_CHAT if is_chat else Dialect.OPENAI_RESPONSES


def _straight(model: ModelSettings, dialect: Dialect, compatible: bool = False) -> ModelRoute:
    provider = model.provider
    url = provider.base_url or HOMES.get(provider.kind)
    if url is None:
        raise InvalidInput(f"provider {provider.id!r} has no URL", Action.SET_BASE_URL.of(provider=provider.id))
    return ModelRoute(
        dialect=dialect,
        url=url.rstrip("/"),
        model=model.name,
        keys=_slots(dialect, provider.credential),
        compatible=compatible or provider.base_url is not None,
    )


def _slots(dialect: Dialect, credential: str | None) -> tuple[KeySlot, ...]:
    return () if credential is None else (KeySlot(*_KEY_OF[dialect], credential),)


def _through_cloudflare(model: ModelSettings) -> ModelRoute:
    provider = model.provider
    if not provider.account_id or not provider.gateway_id:
        raise InvalidInput(
            f"gateway {provider.id!r} lacks its account or its name",
            "set CLOUDFLARE_ACCOUNT_ID and CLOUDFLARE_GATEWAY_ID, or give it accountId and gatewayId",
        )
    base = (provider.base_url or CLOUDFLARE).rstrip("/")
    root = f"{base}/v1/{quote(provider.account_id, safe='')}/{quote(provider.gateway_id, safe='')}"
    for pattern, path, dialect in _BEHIND_GATEWAY:
        if match := pattern.fullmatch(model.name):
            return ModelRoute(
                dialect=dialect,
                url=f"{root}/{path}",
                model=match[1],
                keys=(*_gateway_slot(provider), *_slots(dialect, provider.credential)),
                compatible=True,
            )
    raise InvalidInput(
        f"nothing in {model.name!r} says whose model it is", "behind a gateway write it as provider/model"
    )


def _gateway_slot(provider: ProviderSettings) -> tuple[KeySlot, ...]:
    if provider.gateway_credential is None:
        return ()
    return (KeySlot("cf-aig-authorization", "Bearer ", provider.gateway_credential),)


# --- How much a request may take: time over all its tries, and money over all requests that share the budget.

MILLION = 1_000_000
_FEWEST = 16


class RequestBudget:
    """`seconds` hold for one request; `money`, in micro-dollars, for all requests that are given this object.
    `read_spent` tells what everybody has spent of the money who shares it, in other turns or processes: it is read
    before each request, so that each of them goes beyond the money by one request at most."""

    def __init__(
        self,
        *,
        seconds: float | None = None,
        money: int | None = None,
        read_spent: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        if (seconds is not None and seconds <= 0) or (money is not None and money < 0):
            raise InvalidInput("a budget of nothing", "give it some seconds, or some micro-dollars")
        self.seconds, self.money = seconds, money
        self._read_spent = read_spent
        self.spent = 0
        self.unknown = 0

    async def refresh(self) -> None:
        """Learn what others have spent meanwhile."""
        if self._read_spent is not None:
            self.spent = max(self.spent, await self._read_spent())

    def within(self, parameters: ModelParameters, price: TokenPrice | None, prompt: int, model: str) -> ModelParameters:
        """The parameters, asking for no more output than there is money for after a prompt of so many tokens."""
        if self.money is None:
            return parameters
        if self.unknown:
            raise BudgetSpent("the last answer did not say what it used, so nobody knows what is left")
        input_price, output_price = token_prices(price, model)
        left = (self.money - self.spent) * MILLION - prompt * input_price
        affordable = left // output_price if output_price else None
        if left <= 0 or (affordable is not None and affordable < _FEWEST):
            raise BudgetSpent(f"{self.spent} of {self.money} micro-dollars are spent, and the rest pays for no reply")
        if affordable is None or (parameters.max_tokens is not UNSET and parameters.max_tokens <= affordable):
            return parameters
        return ModelParameters(max_tokens=affordable).over(parameters)

    def pay(self, cost: int | None) -> None:
        if cost is None:
            self.unknown += 1
        else:
            self.spent += cost


def token_prices(price: TokenPrice | None, model: str) -> tuple[int, int]:
    """What a million tokens of a prompt and of an answer cost. Raises BudgetSpent where the model has no price."""
    if price is None or price.input is None or price.output is None:
        raise BudgetSpent(f"model {model!r} has no price, so a budget of money cannot be kept", "give it a price")
    return price.input, price.output


def model_price(
    model: ModelSettings, at_ms: int, prompt: int = 0, *, name: str | None = None, prices: PriceTable | None = None
) -> TokenPrice | None:
    """Of a request of so many tokens to a model, which may answer under another name; the embedded model costs nothing.
    The shipped table is loaded when it is needed."""
    if model.provider.kind is ProviderKind.LOCAL:
        return FREE
    return (prices or shipped_prices()).price(name or model.name, at_ms, prompt)


def ensure_priced(model: ModelSettings, at_ms: int) -> None:
    """Refuse a budget of money for a model without a price, or with such a fallback. Raises BudgetSpent."""
    for candidate in (model, *model.fallbacks):
        token_prices(model_price(candidate, at_ms), candidate.id)


def cost_of(usage: Usage | None, price: TokenPrice | None) -> int | None:
    """Micro-dollars, rounded up; None where a used kind of token has no price."""
    if usage is None or price is None:
        return None
    counts = (
        (usage.input_tokens, price.input),
        (usage.output_tokens, price.output),
        (usage.cached_input_tokens, price.cached),
        ((usage.cache_write_tokens or 0) - (usage.cache_write_1h_tokens or 0), price.cache_write),
        (usage.cache_write_1h_tokens, price.of("cache_write_1h")),
    )
    total = 0
    for count, token_price in counts:
        if count is UNSET or not count:
            continue
        if token_price is None:
            return None
        total += count * token_price
    return -(-total // MILLION)


def recorded_cost(reply: Reply, at_ms: int) -> int | None:
    """Of a reply that was read back from the ledger, with the prices that are shipped, in micro-dollars."""
    if reply.usage is None:
        return None
    is_free = reply.vendor == EMBEDDED_PROVIDER
    price = FREE if is_free else shipped_prices().price(reply.model, at_ms, prompt_tokens(reply.usage))
    return cost_of(reply.usage, price)


def prompt_tokens(usage: Usage | None) -> int:
    """How many tokens a request carried; beyond some length a model may cost more."""
    parts = () if usage is None else (usage.input_tokens, usage.cached_input_tokens, usage.cache_write_tokens)
    return sum(part for part in parts if part is not UNSET)


# --- What to do after a failure, as a pure function: wait and ask again, ask the next model, or give up.


class AskAgain(Struct, frozen=True):
    """The same model, after so many seconds."""

    wait: float


class NextModel(Struct, frozen=True):
    """The next fallback, at once."""


class GiveUp(Struct, frozen=True):
    """The failure stands."""


def next_step(
    error: WeftError,
    tries: int,
    policy: RetryPolicy,
    *,
    fraction: float,
    seconds_left: float | None,
    has_fallback: bool,
) -> AskAgain | NextModel | GiveUp:
    """`tries` were made of this model; `fraction` is chance, from 0 to 1. What only you can mend is not tried again."""
    if not isinstance(error, ProviderFailed):
        return GiveUp()
    wait = _wait(error.retry_after, tries, policy, fraction)
    hopeless = error.lasting or tries >= policy.attempts or wait is None
    too_late = seconds_left is not None and (wait or 0.0) >= seconds_left
    if hopeless or too_late or wait is None:
        return NextModel() if has_fallback else GiveUp()
    return AskAgain(wait)


def _wait(retry_after: float | None, tries: int, policy: RetryPolicy, fraction: float) -> float | None:
    """As long as the provider asks for, else longer each time, by some chance, so that not all come back at once."""
    if retry_after is not None:
        return max(0.0, retry_after) if retry_after <= policy.longest_retry_after else None
    longest = min(policy.longest_wait, policy.first_wait * policy.factor ** (tries - 1))
    return longest * (0.5 + fraction / 2)
