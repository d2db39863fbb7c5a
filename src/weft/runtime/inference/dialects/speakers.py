"""What speaks to a provider, by the dialect of its route, kept between requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from weft.kernel.errors import Unsupported
from weft.runtime.inference.dialects.model_facts import (
    ModelFacts,
    anthropic_facts,
    compatible_facts,
    google_facts,
    openai_facts,
    reasons,
)
from weft.runtime.inference.dialects.port import Speaker, WireConversation
from weft.runtime.inference.routes import Dialect, Route
from weft.runtime.inference.settings import Parameters, ProviderSettings

if TYPE_CHECKING:
    from weft.runtime.egress.connections import Client, Connections, KeptClient, Seen
    from weft.runtime.egress.credentials import Secret

MAX_IDLE_SPEAKERS = 64
MOST_ANSWER_BYTES = 128 * 1024 * 1024
"""A longer answer is cut off, and so is a compressed one, whose few bytes may become any number: whole answers are held
in memory. Each token of a stream comes with some hundred bytes around it."""


class Speakers:
    """Speakers, kept between requests. Each is used by one request at a time, with its keys alone."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._idle: dict[tuple[object, ...], list[tuple[Speaker, KeptClient]]] = {}
        self._idle_amount = 0

    @contextmanager
    def lent(
        self, route: Route, provider: ProviderSettings, keys: Mapping[str, Secret]
    ) -> Iterator[tuple[Speaker, Seen]]:
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
            model = speaker(route, client.client)
        try:
            yield model, client.lend(keys)
        finally:
            client.take_back()
        if self._idle_amount >= MAX_IDLE_SPEAKERS:
            self._idle, self._idle_amount = {}, 0
        self._idle.setdefault(place, []).append((model, client))
        self._idle_amount += 1


def speaker(route: Route, client: Client) -> Speaker:
    """What speaks this route's dialect over this client. Each dialect is loaded when it is first spoken."""
    match route.dialect:
        case Dialect.ANTHROPIC:
            from weft.runtime.inference.dialects.anthropic_messages import MessagesSpeaker

            return MessagesSpeaker(client, route.url, facts_of(route))
        case Dialect.GOOGLE:
            google: Speaker = _google_module().GoogleSpeaker(client, route)
            return google
        case Dialect.OPENAI_CHAT:
            from weft.runtime.inference.dialects.openai_chat import ChatSpeaker

            return ChatSpeaker(client, route.url, facts_of(route))
        case Dialect.OPENAI_RESPONSES:
            from weft.runtime.inference.dialects.openai_responses import ResponsesSpeaker

            return ResponsesSpeaker(client, route.url, facts_of(route))


def conversation_in(dialect: Dialect, *, images: bool) -> WireConversation:
    """An empty conversation in the form of a dialect."""
    match dialect:
        case Dialect.ANTHROPIC:
            from weft.runtime.inference.dialects.anthropic_messages import MessagesConversation

            return MessagesConversation(images=images)
        case Dialect.GOOGLE:
            conversation: WireConversation = _google_module().GoogleConversation(images=images)
            return conversation
        case Dialect.OPENAI_CHAT:
            from weft.runtime.inference.dialects.openai_chat import ChatConversation

            return ChatConversation(images=images)
        case Dialect.OPENAI_RESPONSES:
            from weft.runtime.inference.dialects.openai_responses import ResponsesConversation

            return ResponsesConversation(images=images)


def _google_module() -> Any:
    """The one dialect that is spoken by a library, which takes seconds to load."""
    try:
        from weft.runtime.inference.dialects import google
    except ImportError as error:
        raise Unsupported(
            f"asking Google's models needs the package {error.name}", "install it with `pip install 'weft[providers]'`"
        ) from None
    return google


def facts_of(route: Route) -> ModelFacts:
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
ALWAYS_SENT = frozenset({"min_p"})
"""Where it is not taken, the request is refused before it is sent."""


def embedded_parameters() -> frozenset[str]:
    """The parameters that an embedded model is sent: it cannot be told how to think."""
    return _TAKEN_PARAMETERS[Dialect.OPENAI_CHAT] | ALWAYS_SENT


def taken_parameters(route: Route, parameters: Parameters) -> frozenset[str]:
    """The names of the parameters that this model is sent; the others are left out."""
    facts = facts_of(route)
    taken = _TAKEN_PARAMETERS[route.dialect] | ALWAYS_SENT
    if facts.thinks or facts.always_thinks:
        taken |= {"thinking"}
    is_openai = route.dialect in (Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES)
    thinking = None if parameters.thinking is UNSET else parameters.thinking
    if not facts.samples or (is_openai and reasons(facts, thinking)):
        taken -= _SAMPLING
    return taken
