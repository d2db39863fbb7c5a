"""What speaks to a provider, by the dialect of its route, kept between requests.

Conversations are kept as their dialect sends them: the next request translates its new messages
alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct

from weft.kernel.errors import Unsupported
from weft.ledger.model import Message, NewMessage, ToolUsePart
from weft.runtime.inference.dialects.dialect_port import (
    LEAST_BUDGET,
    AnswerContent,
    ModelClient,
    ModelFacts,
    ShownResult,
    UserContent,
    WireConversation,
    WireMessages,
    anthropic_facts,
    call_arguments,
    compatible_facts,
    google_facts,
    openai_facts,
    opened,
    reasons,
)
from weft.runtime.inference.model_requests import (
    ConversationBeginning,
    Dialect,
    ModelParameters,
    ModelRoute,
    ModelSettings,
    ProviderSettings,
    Thinking,
    count_images,
    is_budget,
    route_of,
)

if TYPE_CHECKING:
    from weft.runtime.egress.connections import Client, Connections, KeptClient, SeenAnswer
    from weft.runtime.egress.credentials import Secret


# --- What speaks to a provider, by the dialect of its route, kept between requests.

MAX_IDLE_CLIENTS = 64
MOST_ANSWER_BYTES = 128 * 1024 * 1024
"""A longer answer is cut off, and so is a compressed one, whose few bytes may become any number: whole answers are held
in memory. Each token of a stream comes with some hundred bytes around it."""


class ModelClientPool:
    """Clients, kept between requests. Each is used by one request at a time, with its keys alone."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._idle: dict[tuple[object, ...], list[tuple[ModelClient, KeptClient]]] = {}
        self._idle_amount = 0

    @contextmanager
    def lent(
        self, route: ModelRoute, provider: ProviderSettings, keys: Mapping[str, Secret]
    ) -> Iterator[tuple[ModelClient, SeenAnswer]]:
        """What speaks this route's dialect, and what it will have seen. It is kept for the next request where this one
        raises nothing."""
        rules = provider.rules
        place = (route.dialect, route.url, route.model, route.compatible, provider.id, rules)
        idle = self._idle.get(place)
        if idle:
            self._idle_amount -= 1
            model, client = idle.pop()
        else:
            client = self._connections.kept_client(route.url, rules, most_bytes=MOST_ANSWER_BYTES)
            model = model_client(route, client.client)
        try:
            yield model, client.lend(keys)
        finally:
            client.take_back()
        if self._idle_amount >= MAX_IDLE_CLIENTS:
            self._idle, self._idle_amount = {}, 0
        self._idle.setdefault(place, []).append((model, client))
        self._idle_amount += 1


def model_client(route: ModelRoute, client: Client) -> ModelClient:
    """What speaks this route's dialect over this client. Each dialect is loaded when it is first spoken."""
    match route.dialect:
        case Dialect.ANTHROPIC:
            from weft.runtime.inference.dialects.anthropic_messages import MessagesClient

            return MessagesClient(client, route.url, facts_of(route))
        case Dialect.GOOGLE:
            google: ModelClient = _google_module().GoogleClient(client, route)
            return google
        case Dialect.OPENAI_CHAT:
            from weft.runtime.inference.dialects.openai import ChatClient

            return ChatClient(client, route.url, facts_of(route))
        case Dialect.OPENAI_RESPONSES:
            from weft.runtime.inference.dialects.openai import ResponsesClient

            return ResponsesClient(client, route.url, facts_of(route))


def conversation_in(dialect: Dialect, *, images: bool, vendor: str = "") -> WireConversation:
    """An empty conversation in the form of a dialect, for a vendor."""
    match dialect:
        case Dialect.ANTHROPIC:
            from weft.runtime.inference.dialects.anthropic_messages import MessagesConversation

            return MessagesConversation(images=images, vendor=vendor)
        case Dialect.GOOGLE:
            conversation: WireConversation = _google_module().GoogleConversation(images=images, vendor=vendor)
            return conversation
        case Dialect.OPENAI_CHAT:
            from weft.runtime.inference.dialects.openai import ChatConversation

            return ChatConversation(images=images, vendor=vendor)
        case Dialect.OPENAI_RESPONSES:
            from weft.runtime.inference.dialects.openai import ResponsesConversation

            return ResponsesConversation(images=images, vendor=vendor)


def written_for(dialect: Dialect, messages: Sequence[Message | NewMessage]) -> Any:
    """Messages as a request of a dialect holds them, for whoever asks a provider by themselves. Nothing of it is what
    one vendor sealed."""
    google = GoogleContents() if dialect is Dialect.GOOGLE else None
    conversation = conversation_in(dialect, images=True) if google is None else google
    conversation.extend(messages)
    written = conversation.written()
    if google is not None:
        system = {"systemInstruction": {"parts": [{"text": text} for text in written.system]}} if written.system else {}
        return {**system, "contents": written.messages}
    if dialect is Dialect.ANTHROPIC:
        prompt = {"system": "\n\n".join(written.system)} if written.system else {}
        return {**prompt, "messages": written.messages}
    return written.messages


class GoogleContents(WireConversation):
    """Contents of Google's own protocol: what a user and the model said, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self._system: list[str] = []
        self._contents: list[dict[str, Any]] = []

    def add_system(self, content: list[UserContent]) -> None:
        self._system += [text for text in content if isinstance(text, str)]

    def add_user(self, content: list[UserContent]) -> None:
        self._add("user", [_google_part(piece) for piece in content])

    def add_result(self, result: ShownResult) -> None:
        field = "error" if result.has_failed else "output"
        response = {"name": result.tool, "response": {field: result.output}}
        self._add("user", [{"functionResponse": response}, *map(_google_part, result.images)])

    def add_answer(self, content: list[AnswerContent]) -> None:
        plain = [part for piece in content for part in opened(piece)]
        self._add("model", [self._answer_part(piece) for piece in plain])

    def _answer_part(self, piece: AnswerContent) -> dict[str, Any]:
        if isinstance(piece, ToolUsePart):
            return {"functionCall": {"name": self.called_tool(piece), "args": call_arguments(piece)}}
        return {"text": piece}

    def _add(self, role: str, parts: list[dict[str, Any]]) -> None:
        if self._contents and self._contents[-1]["role"] == role:
            parts = [*self._contents.pop()["parts"], *parts]
        if parts:
            self._contents.append({"role": role, "parts": parts})

    def written(self) -> WireMessages:
        return WireMessages(list(self._contents), tuple(self._system), has_far_images=self._has_far_images)


def _google_part(content: UserContent) -> dict[str, Any]:
    if isinstance(content, str):
        return {"text": content}
    if content.is_far:
        return {"fileData": {"fileUri": content.url}}
    return {"inlineData": {"mimeType": content.media_type, "data": content.base64}}


def _google_module() -> Any:
    """The one dialect that is spoken by a library, which takes seconds to load."""
    try:
        from weft.runtime.inference.dialects import google
    except ImportError as error:
        raise Unsupported(
            f"asking Google's models needs the package {error.name}", "install it with `pip install 'weft[providers]'`"
        ) from None
    return google


def facts_of(route: ModelRoute) -> ModelFacts:
    """What is known of the model of a route."""
    match route.dialect:
        case Dialect.ANTHROPIC:
            return anthropic_facts(route.model)
        case Dialect.GOOGLE:
            return google_facts(route.model)
        case Dialect.OPENAI_CHAT | Dialect.OPENAI_RESPONSES:
            return compatible_facts(route.model) if route.compatible else openai_facts(route.model)


_SAMPLING = frozenset({"temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty"})
_TAKEN_PARAMETERS = {
    Dialect.ANTHROPIC: frozenset({"max_tokens", "temperature", "top_p", "top_k", "stop"}),
    Dialect.GOOGLE: _SAMPLING | {"max_tokens", "seed", "stop"},
    Dialect.OPENAI_CHAT: _SAMPLING - {"top_k"} | {"max_tokens", "seed", "stop"},
    Dialect.OPENAI_RESPONSES: frozenset({"max_tokens", "temperature", "top_p"}),
}
"""What a protocol has a field for."""
ALWAYS_SENT = frozenset({"min_p", "response_schema"})
"""Where it is not taken, the request is refused before it is sent."""


def embedded_parameters() -> frozenset[str]:
    """The parameters that an embedded model is sent: it cannot be told how to think."""
    return _TAKEN_PARAMETERS[Dialect.OPENAI_CHAT] | ALWAYS_SENT


def taken_parameters(route: ModelRoute, parameters: ModelParameters) -> frozenset[str]:
    """The names of the parameters that this model is sent; the others are left out."""
    facts = facts_of(route)
    taken = _TAKEN_PARAMETERS[route.dialect] | ALWAYS_SENT
    thinking = None if parameters.thinking is UNSET else parameters.thinking
    if thinking is not None and not facts.never_thinks and thinking_fault(route, thinking) is None:
        taken |= {"thinking"}
    is_openai = route.dialect in (Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES)
    if route.dialect is Dialect.ANTHROPIC and "thinking" in taken and thinking:
        taken -= _SAMPLING
    if not facts.samples or (is_openai and reasons(facts, thinking)):
        taken -= _SAMPLING
    return taken


def thinking_fault(route: ModelRoute, thinking: Thinking) -> tuple[str, str] | None:
    """Why a model cannot be told to think so, and what to do; None where it can."""
    facts = facts_of(route)
    if facts.never_thinks:
        return (f"{route.model} does not think", "leave thinking out") if thinking else None
    if not is_budget(thinking):
        return None
    if route.dialect in (Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES) or (
        route.dialect is Dialect.ANTHROPIC and not facts.has_budget
    ):
        return f"{route.model} takes no budget of tokens", "give a level: minimal, low, medium or high"
    if route.dialect is Dialect.ANTHROPIC and thinking < LEAST_BUDGET:
        return f"{route.model} thinks with {LEAST_BUDGET} tokens or more", f"give at least {LEAST_BUDGET}"
    return None


def response_schema_fault(model: ModelSettings) -> tuple[str, str] | None:
    """Why a model cannot be given the schema of its answer, and what to do; None where it can."""
    if model.provider.is_embedded:
        return "the embedded model takes no schema of its answer", "leave responseSchema out"
    route = route_of(model)
    if route.dialect is Dialect.ANTHROPIC and not facts_of(route).takes_response_schema:
        return f"{route.model} takes no schema of its answer", "leave responseSchema out, or name a newer model"
    return None


# --- Conversations as dialects send them, kept between requests: the next request of a conversation extends the last
# one, so that only its new messages are translated.

KEPT_MESSAGES = 200_000
"""Of all kept conversations together; those used longest ago go first."""


ConversationKey = tuple[int, Dialect, bool, str]
"""The identity of the whole, the dialect, whether images are taken, the vendor."""


class KeptTranslation(Struct):
    """The first messages of a conversation, translated."""

    messages: Sequence[Message | NewMessage]
    translation: WireConversation

    def is_beginning_of(self, asked: Sequence[Message | NewMessage]) -> bool:
        if len(self.messages) > len(asked):
            return False
        if isinstance(asked, ConversationBeginning):  # a conversation only grows
            return _lasting_object(self.messages) is asked.conversation
        return all(map(is_, self.messages, asked))


class KeptConversations:
    """The translations of the conversations that were asked about last."""

    def __init__(self, most_messages: int = KEPT_MESSAGES) -> None:
        self._most_messages = most_messages
        self._kept: OrderedDict[ConversationKey, KeptTranslation] = OrderedDict()
        """By the identity of the whole, which is kept with them and so stays its own."""
        self._amount = 0

    def translate(
        self, messages: Sequence[Message | NewMessage], dialect: Dialect, *, images: bool, vendor: str = ""
    ) -> WireMessages:
        """A conversation for a model that takes images or does not. Raises InvalidInput where nothing is to be
        answered."""
        asked = messages if isinstance(messages, ConversationBeginning) else tuple(messages)
        key = (id(_lasting_object(asked)), dialect, images, vendor)
        earlier = self._take(key, asked) or KeptTranslation((), conversation_in(dialect, images=images, vendor=vendor))
        news = asked[len(earlier.messages) :]
        earlier.translation.extend(news)
        earlier.messages = asked
        if asked and not count_images(news):
            self._keep(key, earlier)
        return earlier.translation.wire_messages()

    def _take(self, key: ConversationKey, asked: Sequence[Message | NewMessage]) -> KeptTranslation | None:
        earlier = self._kept.pop(key, None)
        if earlier is None:
            return None
        self._amount -= len(earlier.messages)
        return earlier if earlier.is_beginning_of(asked) else None

    def _keep(self, key: ConversationKey, translated: KeptTranslation) -> None:
        self._kept[key] = translated
        self._amount += len(translated.messages)
        while self._amount > self._most_messages:
            _, oldest = self._kept.popitem(last=False)
            self._amount -= len(oldest.messages)


def _lasting_object(messages: Sequence[Message | NewMessage]) -> object:
    """What stays the same object while a conversation grows: itself, or its first message."""
    if isinstance(messages, ConversationBeginning):
        return messages.conversation
    return messages[0] if messages else None
