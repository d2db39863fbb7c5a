"""Answers that real providers gave, read as pydantic-ai reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import yaml
from msgspec import Struct, structs

from tests.runtime.inference.asking import HI
from tests.runtime.inference.oracle import Answer, Asking, Respond, responding
from tests.runtime.inference.recordings import RECORDINGS
from weft.kernel.errors import ReplyMalformed
from weft.ledger.model import ReasoningPart, ToolUsePart
from weft.runtime.inference.model_requests import Dialect, ModelParameters

pytestmark = pytest.mark.load("pydantic-ai")

WIRE = RECORDINGS
FOLDERS = ("openai-chat", "openai-responses", "anthropic", "anthropic-system")
DIALECTS = {
    "/chat/completions": Dialect.OPENAI_CHAT,
    "/responses": Dialect.OPENAI_RESPONSES,
    "/v1/messages": Dialect.ANTHROPIC,
}
SHORT = ModelParameters(max_tokens=1000)
"""An answer that may be long would be streamed, and was not where it was recorded."""


class Recorded(Struct, frozen=True):
    """One request that was answered."""

    asking: Asking
    status: int
    body: bytes
    content_type: str

    @property
    def is_streamed(self) -> bool:
        return "event-stream" in self.content_type

    @property
    def respond(self) -> Respond:
        return responding(self.status, self.body, self.content_type)


def recorded_answers(folder: str) -> Iterator[Recorded]:
    for path in sorted((WIRE / folder).glob("*.yaml")):
        for interaction in yaml.load(path.read_bytes(), yaml.CSafeLoader)["interactions"]:
            request, response = interaction["request"], interaction["response"]
            place = request["uri"].split("?")[0]
            dialect = next((dialect for end, dialect in DIALECTS.items() if place.endswith(end)), None)
            if dialect is not None:
                name = (request.get("parsed_body") or {}).get("model", "m")
                asking = Asking(dialect=dialect, model=name, compatible=False, messages=HI, parameters=SHORT)
                yield Recorded(asking, response["status"]["code"], _body(response), _content_type(response))


def _body(response: dict[str, Any]) -> bytes:
    if "parsed_body" in response:
        return json.dumps(response["parsed_body"]).encode()
    text = response["body"]["string"]
    return text if isinstance(text, bytes) else str(text).encode()


def _content_type(response: dict[str, Any]) -> str:
    return next(str(values[0]) for name, values in response["headers"].items() if name.lower() == "content-type")


def without_ids(answer: Answer) -> Answer:
    parts = [structs.replace(part, id="") if isinstance(part, ToolUsePart) else part for part in answer.parts]
    return structs.replace(answer, parts=tuple(parts))


def without_thoughts(answer: Answer) -> Answer:
    thoughts = "".join(f"<{part.text}>" for part in answer.parts if isinstance(part, ReasoningPart))
    assert thoughts
    parts = tuple(part for part in answer.parts if not isinstance(part, ReasoningPart))
    return structs.replace(answer, parts=parts, pieces=re.sub("<.*?>", "", answer.pieces, flags=re.S))


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_providers_answered_is_read_as_the_oracle_reads_it(folder: str) -> None:
    amount = 0
    for recorded in recorded_answers(folder):
        ours = recorded.asking.by_weft(recorded.respond, streamed=recorded.is_streamed)
        theirs = recorded.asking.by_oracle(recorded.respond, streamed=recorded.is_streamed)
        if recorded.status == 200:
            assert (ours.kind, ours.finish is not None or ours.has_failed) == (None, theirs.finish is not None)
        if any(isinstance(part, ToolUsePart) and part.id.startswith("pyd_ai_") for part in theirs.parts):
            ours, theirs = without_ids(ours), without_ids(theirs)  # the server gave none, so each reader made some
        if b'"reasoning_text"' in recorded.body:
            ours = without_thoughts(ours)  # an open model's own thoughts, which the oracle leaves out
        assert ours == theirs
        amount += 1
    assert amount > 10


@pytest.mark.parametrize("folder", FOLDERS[:3])
def test_a_recorded_stream_may_come_in_any_pieces_and_counts_only_whole(folder: str) -> None:
    streams = [recorded for recorded in recorded_answers(folder) if recorded.is_streamed]
    assert streams
    for recorded in streams:
        whole = recorded.asking.by_weft(recorded.respond, streamed=True)
        for size in (1, 7, 1000):
            assert recorded.asking.by_weft(in_pieces(recorded, size), streamed=True) == whole
        for share in range(1, 12):
            body = recorded.body[: len(recorded.body) * share // 12]
            cut = recorded.asking.by_weft(responding(200, body, recorded.content_type), streamed=True)
            assert cut.kind in (None, ReplyMalformed)
            assert cut.finish is None or cut.parts == whole.parts


def in_pieces(recorded: Recorded, size: int) -> Respond:
    class Pieces(httpx2.AsyncByteStream):
        async def __aiter__(self) -> Any:
            for start in range(0, len(recorded.body), size):
                yield recorded.body[start : start + size]

    headers = {"content-type": recorded.content_type}
    return lambda _: httpx2.Response(200, stream=Pieces(), headers=headers)
