"""What a model is asked with, as plain values: providers, models, parameters, situations, requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, Literal, overload

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from weft.kernel.errors import InvalidInput
from weft.ledger.model import ImagePart, Message, NewMessage, Part, ToolResultPart
from weft.runtime.egress.connection_rules import Rules
from weft.runtime.egress.credentials import origin_of
from weft.runtime.inference.shown_results import count_result_images

Thinking = bool | Literal["minimal", "low", "medium", "high"]


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
    rules: Rules = field(default_factory=Rules)

    @property
    def is_embedded(self) -> bool:
        return self.kind is ProviderKind.LOCAL

    def moved(self, base_url: str | None) -> ProviderSettings:
        """The same provider at another URL. Where that is another origin, its keys stay behind."""
        same = base_url == self.base_url or (
            base_url is not None and self.base_url is not None and origin_of(base_url) == origin_of(self.base_url)
        )
        kept = {} if same else {"credential": None, "gateway_credential": None}
        return msgspec.structs.replace(self, base_url=base_url, **kept)


class Parameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
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

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}

    def over(self, below: Parameters) -> Parameters:
        """These, and the other ones where these say nothing."""
        return Parameters(**{**below.given(), **self.given()})


NO_PARAMETERS = Parameters()
EMBEDDED_SAMPLING = Parameters(temperature=0.3, min_p=0.15, top_p=1.0)
"""What an embedded model is asked with where nobody says otherwise: a small one needs a narrow choice of words, and no
penalty for repeating one."""


class ModelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model at a provider. `fallbacks` are asked, in order, when the provider fails."""

    id: str
    name: str
    provider: ProviderSettings
    parameters: Parameters = NO_PARAMETERS
    situations: dict[str, Parameters] = field(default_factory=dict)
    fallbacks: tuple[ModelSettings, ...] = ()
    images: bool | None = None
    """Whether it takes images; None where nobody said."""
    context_window: int | None = None
    """How many tokens a request and its answer may be; None where nobody said."""

    @property
    def takes_images(self) -> bool:
        """A model of which nothing is said takes them, but for the embedded one."""
        return self.provider.kind is not ProviderKind.LOCAL if self.images is None else self.images

    def in_situation(self, situation: str | None, own: Parameters = NO_PARAMETERS) -> Parameters:
        """The model's parameters, over them the situation's, over those the request's own; below them all what an
        embedded model is asked with."""
        below = self.parameters.over(EMBEDDED_SAMPLING) if self.provider.is_embedded else self.parameters
        if situation is None:
            return own.over(below)
        if situation not in self.situations:
            known = ", ".join(sorted(self.situations)) or "none"
            raise InvalidInput(f"model {self.id!r} knows no situation {situation!r}", f"it knows: {known}")
        return own.over(self.situations[situation]).over(below)


class ToolSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the model may call; `schema` is the JSON Schema of its arguments."""

    name: str
    description: str = ""
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


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
    parameters: Parameters = NO_PARAMETERS
    tools: tuple[ToolSpec, ...] = ()


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
