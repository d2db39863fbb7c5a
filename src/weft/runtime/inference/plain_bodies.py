"""An OpenAI client that sends a conversation as it is.

The client's own `create` walks through every message to rename fields and to read files, neither of which is ever asked
of it here: what the model layer makes is sent as it stands. For a long conversation that walk took longer than all else
that was done for a request. What is sent is the same, byte by byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from openai import AsyncOpenAI
from openai.resources.chat import AsyncChat
from openai.resources.chat.completions import AsyncCompletions
from openai.resources.responses import AsyncResponses


def _past_the_walk(field: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments, with the list in the part of the body that is taken as it is."""
    body = arguments.get("extra_body") or {}
    if field in body:
        return dict(arguments)
    return {**arguments, field: [], "extra_body": {**body, field: arguments[field]}}


class _Completions(AsyncCompletions):  # type: ignore[misc]
    async def create(self, **arguments: Any) -> Any:
        return await super().create(**_past_the_walk("messages", arguments))


class _Chat(AsyncChat):  # type: ignore[misc]
    @cached_property
    def completions(self) -> AsyncCompletions:
        return _Completions(self._client)


class _Responses(AsyncResponses):  # type: ignore[misc]
    async def create(self, **arguments: Any) -> Any:
        is_list = isinstance(arguments.get("input"), list)
        return await super().create(**(_past_the_walk("input", arguments) if is_list else arguments))


class PlainOpenAI(AsyncOpenAI):  # type: ignore[misc]
    """Asks as `AsyncOpenAI` does."""

    @cached_property
    def chat(self) -> AsyncChat:
        return _Chat(self)

    @cached_property
    def responses(self) -> AsyncResponses:
        return _Responses(self)
