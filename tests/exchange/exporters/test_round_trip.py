"""What is exported for the APIs of models can be recorded again, and its contents have the digests that they had."""

import io
import json
from collections import Counter
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.ledger.histories import PROPERTY_SCALE
from weft import Ledger
from weft.exchange.exporters.export import export
from weft.kernel.contents import json_bytes, text_bytes
from weft.ledger.model import ImagePart, Message, ReasoningPart, TextPart, ToolCall
from weft.surfaces.cli.sessions.recording import turns_in

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12).filter(str.strip)
values = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.just(1.5) | texts | st.lists(texts, max_size=2)
arguments = st.dictionaries(texts, values | st.dictionaries(texts, values, max_size=2), max_size=3)
calls = st.tuples(st.sampled_from(["Bash", "read_file"]), arguments, texts, st.booleans())
prompts = st.lists(st.one_of(texts.map(TextPart), st.just(ImagePart(PIXEL))), min_size=1, max_size=3)
steps = st.tuples(texts | st.none(), st.lists(calls, min_size=1, max_size=2))
turns = st.tuples(prompts, st.lists(steps, max_size=2), texts)
conversations = st.lists(turns, min_size=1, max_size=3)


def record(ledger: Ledger, conversation: Any) -> None:
    """In the ledger's own form, step by step."""
    number = 0
    for prompt, work, answer in conversation:
        with ledger.begin_turn(session="main") as writer:
            writer.message({"content": prompt})
            for words, requested in work:
                writer.response(words)
                for name, given_arguments, result, fails in requested:
                    number += 1
                    call = writer.tool_call(name, given_arguments, id=f"call_{number}")
                    writer.tool_result(call, result, status="error" if fails else None)
            writer.response(answer)
            writer.finish()


def digests(ledger: Ledger) -> Counter[tuple[str, ...]]:
    """Every content of the thread with what it is: texts, images, arguments and results."""
    contents: Counter[tuple[str, ...]] = Counter()
    for turn in ledger.thread("main").turns:
        for message in ledger.messages(turn.id):
            contents.update(_of_message(message))
        for call in ledger.tool_calls(turn.id):
            contents.update(_of_call(call))
    return contents


def _of_message(message: Message) -> list[tuple[str, ...]]:
    parts = [part for part in message.content if isinstance(part, TextPart | ImagePart | ReasoningPart)]
    words = [str(part.url if isinstance(part, ImagePart) else part.text) for part in parts]
    return [(message.role, sha256(text_bytes(text)).hexdigest()) for text in words]


def _of_call(call: ToolCall) -> list[tuple[str, ...]]:
    arguments, result = json_bytes(call.arguments, "arguments"), json_bytes(call.result, "result")
    return [
        (call.name, call.call_id, sha256(arguments).hexdigest()),
        ("result", call.call_id, sha256(result).hexdigest()),
    ]


def exported(ledger: Ledger, form: str) -> dict[str, Any]:
    out = io.BytesIO()
    export(ledger, "main", form, out)
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


@pytest.mark.parametrize("form", ["openai", "anthropic"])
@settings(max_examples=8 * PROPERTY_SCALE, deadline=None)
@given(conversation=conversations)
def test_an_export_is_recorded_back_to_the_same_digests_of_contents(form: str, conversation: Any) -> None:
    with weft.open(":memory:") as ledger, weft.open(":memory:") as copy:
        record(ledger, conversation)
        document = exported(ledger, form)
        for turn in turns_in({"session": "main", **document}):
            copy.record_turn(**turn)
        assert digests(copy) == digests(ledger)
        assert exported(copy, form) == document
        assert sum(1 for _ in copy.thread("main").turns) == len(conversation)


def test_thinking_that_is_signed_comes_back_with_its_signature() -> None:
    message = {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"}, {"type": "text", "text": "so"},
    ]}  # fmt: skip
    with weft.open(":memory:") as ledger, weft.open(":memory:") as copy:
        ledger.record_turn(session="main", system="be kind", query="q", response=message)
        document = exported(ledger, "anthropic")
        for turn in turns_in({"session": "main", **document}):
            copy.record_turn(**turn)
        assert digests(copy) == digests(ledger)
        assert exported(copy, "anthropic") == document
        assert document["messages"][1] == message


@pytest.mark.parametrize("form", ["openai", "anthropic"])
def test_a_result_in_the_turn_after_its_call_is_exported_as_its_answer(form: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    with weft.open(":memory:") as ledger, weft.open(":memory:") as whole:
        asked = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "call_1", "content": "notes.txt"}
        ledger.record_turn(session="main", query="ls", response=asked)
        ledger.record_turn(session="main", query=result, response="One file.")
        whole.record_turn(session="main", query="ls", response=[asked, result, "One file."])
        assert exported(ledger, form) == exported(whole, form)
        assert "interrupted" not in json.dumps(exported(ledger, form))
