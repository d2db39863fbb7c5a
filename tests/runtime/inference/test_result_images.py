"""Images that tools gave, in the form that each protocol has for them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.runtime.inference.asking import ask, provider
from tests.runtime.inference.strict_providers import RULES
from tests.runtime.scripted import CHAT, GOOGLE, MESSAGE, RESPONSES, answer
from weft.kernel.enums import MessageRole
from weft.ledger.model import NewMessage, ToolResultPart, ToolUsePart
from weft.runtime.inference.model_requests import Dialect, ModelSettings, OpenAIApi, ProviderKind

DATA = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\xff\xfe" * 9).decode()
PNG = f"data:image/png;base64,{DATA}"
KINDS: dict[Dialect, tuple[ProviderKind, OpenAIApi | None, Any]] = {
    Dialect.ANTHROPIC: (ProviderKind.ANTHROPIC, None, MESSAGE),
    Dialect.OPENAI_CHAT: (ProviderKind.OPENAI, OpenAIApi.CHAT, CHAT),
    Dialect.OPENAI_RESPONSES: (ProviderKind.OPENAI, OpenAIApi.RESPONSES, RESPONSES),
    Dialect.GOOGLE: (ProviderKind.GOOGLE, None, GOOGLE),
}
TALK = (
    NewMessage(role=MessageRole.USER, content="Paint twice, and look"),
    NewMessage(
        role=MessageRole.ASSISTANT,
        content=tuple(ToolUsePart(id, name, {}) for id, name in (("a", "paint"), ("b", "paint"), ("c", "look"))),
    ),
    NewMessage(
        role=MessageRole.TOOL,
        content=(
            ToolResultPart("a", {"path": "dot.png", "images": [PNG]}),
            ToolResultPart("b", {"error": "the brush broke", "images": [PNG]}, is_error=True),
            ToolResultPart("c", "a wall"),
        ),
    ),
    NewMessage(role=MessageRole.USER, content="Well?"),
)


def asked(dialect: Dialect, name: str = "m-1", images: bool | None = None) -> Any:
    kind, api, whole = KINDS[dialect]
    made = ask(
        answer(200, whole),
        make=lambda url: ModelSettings(id="m", name=name, provider=provider(url, kind, api=api), images=images),
        messages=TALK,
    )
    assert made.error is None
    (received,) = made.server.received
    assert list(RULES[dialect](received.body, ())) == []
    return received.body


def places(value: Any, at: str = "") -> list[str]:
    """Where in a body the image stands."""
    if isinstance(value, str):
        return [at] if DATA[:20] in value.replace("-", "+").replace("_", "/") else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in places(item, f"{at}.{key}" if at else str(key))]


PLACES = {
    Dialect.ANTHROPIC: ["messages.2.content.0.content.1.source.data", "messages.2.content.3.source.data"],
    Dialect.OPENAI_CHAT: [f"messages.5.content.{number}.image_url.url" for number in (1, 4)],
    Dialect.OPENAI_RESPONSES: [f"input.{number}.output.1.image_url" for number in (4, 5)],
    Dialect.GOOGLE: [f"contents.3.parts.{number}.inlineData.data" for number in (1, 4)],
}


@pytest.mark.parametrize("dialect", Dialect)
def test_images_of_results_are_sent_as_the_protocol_has_them(dialect: Dialect) -> None:
    body = asked(dialect, "gemini-2.5-flash" if dialect is Dialect.GOOGLE else "m-1")
    assert places(body) == PLACES[dialect]
    assert all(text in json.dumps(body) for text in ("dot.png", "the brush broke", "a wall", "Well?"))


def test_newer_models_of_google_are_sent_images_within_the_results() -> None:
    body = asked(Dialect.GOOGLE, "gemini-3-pro-preview")
    assert places(body) == [f"contents.2.parts.{number}.functionResponse.parts.0.inline_data.data" for number in (0, 1)]


@pytest.mark.parametrize("dialect", Dialect)
def test_a_model_that_takes_no_images_is_told_that_there_was_one(dialect: Dialect) -> None:
    body = asked(dialect, images=False)
    assert places(body) == []
    assert json.dumps(body).count("[an image (image/png), which you cannot see]") == 2
