"""Messages, tool calls and usage of OpenAI's and Anthropic's APIs, recorded as they come."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ledger.histories import problems
from tests.sizes import sized
from weft.kernel.contents import prepare
from weft.kernel.enums import MessageRole
from weft.kernel.errors import InvalidInput, WeftError
from weft.kernel.events import Usage
from weft.ledger.api.ledger import Ledger
from weft.ledger.dialects import translated
from weft.ledger.model import ImagePart, Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from weft.ledger.write.record_turn import NewTurn

CHAT_CALL = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}}
CHAT_USAGE = {
    "prompt_tokens": 100, "completion_tokens": 30, "total_tokens": 130,
    "prompt_tokens_details": {"cached_tokens": 60, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 12, "accepted_prediction_tokens": 3},
}  # fmt: skip
COMPLETION = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-x", "system_fingerprint": "fp",
    "choices": [
        {
            "index": 0, "finish_reason": "tool_calls", "logprobs": None,
            "message": {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None,
                        "tool_calls": [CHAT_CALL]},
        }
    ],
    "usage": CHAT_USAGE,
}  # fmt: skip
RESPONSE = {
    "id": "resp_1", "object": "response", "status": "completed", "model": "gpt-y", "error": None, "tools": [],
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}],
         "encrypted_content": "gAAA"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_2", "name": "ls", "arguments": "{}",
         "status": "completed"},
    ],
    "usage": {"input_tokens": 50, "input_tokens_details": {"cached_tokens": 20}, "output_tokens": 9,
              "output_tokens_details": {"reasoning_tokens": 4}, "total_tokens": 59},
}  # fmt: skip
ANTHROPIC = {
    "id": "msg_01", "type": "message", "role": "assistant", "model": "claude-z", "stop_reason": "tool_use",
    "stop_sequence": None,
    "content": [
        {"type": "thinking", "thinking": "let me see", "signature": "c2ln"},
        {"type": "text", "text": "I look.", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {"path": "."}},
    ],
    "usage": {"input_tokens": 5, "cache_creation_input_tokens": 40, "cache_read_input_tokens": 20, "output_tokens": 7,
              "service_tier": "standard"},
}  # fmt: skip


class OfALibrary:
    """Stands for an object of a vendor's library, of which all have this method."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        assert mode == "json"
        return self._fields


def recorded(ledger: Ledger, **turn: Any) -> list[Message]:
    return ledger.messages(ledger.record_turn(session="main", **turn).id)


def test_an_answer_of_openais_chat_tells_message_model_usage_and_why_it_ended(ledger: Ledger) -> None:
    _, answer = recorded(ledger, query="ls", response=COMPLETION)
    turn = ledger.turn("main")
    assert answer.content == (ToolUsePart("call_1", "ls", {"path": "."}),)
    assert (turn.model, turn.usage) == (
        "gpt-x",
        Usage(input_tokens=40, cached_input_tokens=60, output_tokens=30, reasoning_tokens=12, total_tokens=130),
    )
    assert answer.metadata == {
        "response": {"id": "chatcmpl-1", "created": 1, "system_fingerprint": "fp"},
        "usage": {"completion_tokens_details": {"accepted_prediction_tokens": 3}},
    }
    assert problems(ledger) == []


def test_an_answer_of_openais_responses_is_one_message(ledger: Ledger) -> None:
    for response in (RESPONSE, OfALibrary(RESPONSE), RESPONSE["output"]):
        _, answer = recorded(ledger, query="ls", response=response)
        assert answer.content == (ReasoningPart("hm"), TextPart("I look."), ToolUsePart("call_2", "ls", {}))
        assert answer.metadata["beside"] == [
            {"at": 0, "id": "rs_1", "encrypted_content": "gAAA"},
            {"at": 1, "message": {"id": "msg_1", "status": "completed"}},
            {"at": 2, "id": "fc_1", "status": "completed"},
        ]
    turn = ledger.turn("main~1")
    assert (turn.model, turn.usage) == (
        "gpt-y",
        Usage(input_tokens=30, cached_input_tokens=20, output_tokens=9, reasoning_tokens=4, total_tokens=59),
    )


def test_a_message_of_anthropics_tells_its_model_and_usage(ledger: Ledger) -> None:
    for response in (ANTHROPIC, OfALibrary(ANTHROPIC)):
        _, answer = recorded(ledger, query="ls", response=response)
        assert answer.content == (
            ReasoningPart("let me see"), TextPart("I look."), ToolUsePart("toolu_1", "ls", {"path": "."}),
        )  # fmt: skip
        assert (answer.model, answer.metadata) == (
            "claude-z", {"signatures": ["c2ln"], "id": "msg_01", "usage": {"service_tier": "standard"}},
        )  # fmt: skip
        assert ledger.turn("main").model == "claude-z"
        assert ledger.turn("main").usage == Usage(
            input_tokens=5, cached_input_tokens=20, cache_write_tokens=40, output_tokens=7, total_tokens=72
        )


def test_what_is_given_goes_before_what_an_answer_tells(ledger: Ledger) -> None:
    recorded(ledger, query="q", response=COMPLETION, model="mine", usage={"input_tokens": 1})
    assert (ledger.turn("main").model, ledger.turn("main").usage.total_tokens) == ("mine", 1)


CALL_BLOCK = {"type": "tool_use", "id": "call_1", "name": "ls", "input": {"path": "."}}
RESULTS: dict[str, list[Any]] = {
    "chat": [
        {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "name": "ls", "content": "notes.txt"},
        {"role": "assistant", "content": "One file."},
    ],
    "responses": [
        {"type": "function_call", "call_id": "call_1", "name": "ls", "arguments": '{"path": "."}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "notes.txt"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One file."}]},
    ],
    "anthropic": [
        {"role": "assistant", "content": [OfALibrary(CALL_BLOCK)]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1",
                                      "content": [{"type": "text", "text": "notes.txt"}]}]},
        {"role": "assistant", "content": [{"type": "text", "text": "One file."}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize("dialect", RESULTS)
def test_calls_and_their_results_become_tool_calls(ledger: Ledger, dialect: str) -> None:
    messages = recorded(ledger, query="ls", response=RESULTS[dialect])
    (call,) = ledger.tool_calls("main")
    assert (call.call_id, call.name, call.arguments, call.result, call.outcome) == (
        "call_1", "ls", {"path": "."}, "notes.txt", "ok",
    )  # fmt: skip
    assert [message.role for message in messages] == ["user", "assistant", "assistant"]
    assert call.message_id == messages[1].id
    assert messages[2].text == "One file."
    roles = [message.role for message in ledger.context(session="main").messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert problems(ledger) == []


def test_each_exchange_can_be_a_turn_of_its_own(ledger: Ledger) -> None:
    call, result, answer = RESULTS["chat"]
    recorded(ledger, query="ls", response=call)
    messages = recorded(ledger, query=result, response=answer)
    assert messages[0].content == (ToolResultPart("call_1", "notes.txt"),)
    assert [len(ledger.tool_calls(turn)) for turn in ("main~1", "main")] == [0, 0]
    contents = [message.content for message in ledger.context(session="main").messages]
    assert contents[1:3] == [(ToolUsePart("call_1", "ls", {"path": "."}),), messages[0].content]


def test_calls_of_an_api_may_be_given_beside_the_text(ledger: Ledger) -> None:
    calls = [OfALibrary(CHAT_CALL), {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "no JSON"}]
    _, answer = recorded(ledger, query="ls", response="I look.", tool_calls=calls)
    assert answer.content == (
        TextPart("I look."), ToolUsePart("call_1", "ls", {"path": "."}), ToolUsePart("c2", "f", "no JSON"),
    )  # fmt: skip


def test_a_failed_tool_is_told_apart(ledger: Ledger) -> None:
    call, _, answer = RESULTS["anthropic"]
    failed = {"type": "tool_result", "tool_use_id": "call_1", "content": "no such folder", "is_error": True}
    recorded(ledger, query="ls", response=[call, {"role": "user", "content": [failed]}, answer])
    (outcome,) = ledger.tool_calls("main")
    assert (outcome.outcome, outcome.result) == ("error", "no such folder")


def test_parts_of_every_kind_are_taken(ledger: Ledger) -> None:
    user = [
        {"type": "text", "text": "what", "cache_control": {"type": "ephemeral"}},
        {"type": "image_url", "image_url": {"url": "https://e.org/a.png", "detail": "low"}},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "BB=="}},
        {"type": "input_text", "text": "is it"},
        {"type": "document", "source": {"type": "url", "url": "https://e.org/b.pdf"}},
    ]
    (message,) = recorded(ledger, query={"role": "user", "name": "ann", "content": user})
    assert message.content == (
        TextPart("what"), ImagePart("https://e.org/a.png", "low"), ImagePart("data:image/png;base64,AA==", "auto"),
        ImagePart("data:image/gif;base64,BB=="), TextPart("is it"),
    )  # fmt: skip
    assert message.metadata == {
        "name": "ann",
        "beside": [{"at": 0, "cache_control": {"type": "ephemeral"}}, {"at": 5, "block": user[-1]}],
    }
    refusal = {"role": "assistant", "content": None, "refusal": "No."}
    (said,) = recorded(ledger, response=[{**refusal, "reasoning_content": "better not"}])
    assert (said.content, said.metadata) == (
        (ReasoningPart("better not"), TextPart("No.")), {"beside": [{"at": 1, "refusal": True}]},
    )  # fmt: skip


def test_systems_and_developers_are_one_role(ledger: Ledger) -> None:
    blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    messages = recorded(ledger, system=blocks, query=[{"role": "developer", "content": "Be kind."}, "hi"])
    assert [(message.role, message.text) for message in messages] == [
        ("system", "Be brief."), ("system", "Be kind."), ("user", "hi"),
    ]  # fmt: skip
    assert messages[1].metadata == {"role": "developer"}


def test_results_at_the_head_of_a_users_message_are_the_tools(ledger: Ledger) -> None:
    content = [{"type": "tool_result", "tool_use_id": "t", "content": "x"}, {"type": "text", "text": "go on"}]
    messages = recorded(ledger, query={"role": "user", "content": content})
    assert [(message.role, message.text) for message in messages] == [("tool", ""), ("user", "go on")]


def test_a_turn_step_by_step_takes_them_too(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.message({"role": "user", "content": [{"type": "input_text", "text": "ls"}]})
        writer.request("gpt-x")
        writer.response(OfALibrary(COMPLETION))
        writer.tool_call(OfALibrary(CHAT_CALL))
        writer.tool_result({"role": "tool", "tool_call_id": "call_1", "content": "notes.txt"})
        writer.request("claude-z")
        writer.response(ANTHROPIC)
        writer.tool_call(ANTHROPIC["content"][2])  # type: ignore[index]
        writer.tool_result({"type": "tool_result", "tool_use_id": "toolu_1", "content": "gone", "is_error": True})
        writer.response("Done.", usage=CHAT_USAGE)
        done = writer.finish()
    calls = ledger.tool_calls(done.id)
    assert [(call.name, call.result, call.outcome) for call in calls] == [
        ("ls", "notes.txt", "ok"), ("ls", "gone", "error"),
    ]  # fmt: skip
    assert ledger.turn(done.id).usage.total_tokens == 130 + 72 + 130
    assert ledger.messages(done.id)[-1].metadata == {
        "usage": {"completion_tokens_details": {"accepted_prediction_tokens": 3}}
    }
    assert problems(ledger) == []


@pytest.mark.parametrize(
    ("turn", "what"),
    [
        ({"query": {"role": "user", "content": [{"type": "hologram"}]}}, r"query.content\[0\]: .* 'hologram'"),
        ({"query": {"role": "user", "content": [{"type": "text", "text": "a", "tint": 1}]}}, "field 'tint' of a part"),
        ({"response": {"role": "assistant", "content": None, "colour": 1}}, "the field 'colour' of a message"),
        ({"response": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "odd"}]}]}, "tool call of type 'odd'"),
        ({"response": {"object": "response", "output": [{"type": "odd"}]}}, r"output\[0\]: an item of type 'odd'"),
        ({"response": {**COMPLETION, "choices": []}}, "0 choices"),
        ({"response": {**ANTHROPIC, "usage": {"tokens": 5}}}, "its usage .* is not understood"),
        ({"query": {"role": "user", "content": [{"type": "image_url", "url": 5}]}}, "an image without an address"),
        ({"query": "q", "usage": ANTHROPIC["usage"]}, "service_tier can be kept only beside an answer"),
        ({"query": {"role": "user", "content": 5, "name": "x"}}, "content is int"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_name(ledger: Ledger, turn: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        ledger.record_turn(session="main", **turn)
    assert ledger.sessions() == []


KEYS = """role content type text tool_calls function_call function custom id call_id name arguments input output object
choices message usage prompt_tokens completion_tokens total_tokens input_tokens cache_read_input_tokens summary thinking
completion_tokens_details reasoning_tokens refusal image_url source url tool_call_id tool_use_id from value model
metadata signature""".split()
WORDS = """user assistant tool system developer function text image_url image tool_use tool_result reasoning thinking
message function_call function_call_output response refusal human document {"a":1}""".split()
scalars = st.none() | st.booleans() | st.integers(0, 9) | st.just(1.5) | st.sampled_from(WORDS)
oddities = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from(KEYS), oddities, min_size=1, max_size=6)


@settings(max_examples=sized(test=20, prove=3750), deadline=None)
@given(odd=objects)
def test_no_odd_message_is_an_accident(odd: Any) -> None:
    """Recorded, or refused in words."""
    turns: list[dict[str, Any]] = [{"query": odd}, {"response": [odd]}, {"usage": odd}, {"tool_calls": [odd]}]
    for turn in turns:
        with suppress(WeftError):
            NewTurn(**turn).prepare(lambda data: prepare(data, bytes(16)))


def test_what_is_nested_too_deeply_is_refused(ledger: Ledger) -> None:
    deep: Any = "x"
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(InvalidInput, match="nested too deeply"):
        ledger.record_turn(query={"role": "user", "content": [{"type": "image", "source": deep}]})


OWN = {"role": "assistant", "content": "x", "metadata": {"usage": "mine", "k": 1}}
TIERED = {"prompt_tokens": 1, "completion_tokens": 2, "service_tier": "flex"}


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"response": [OWN], "usage": TIERED}, "usage"),
        ({"response": [{**OWN, "usage": TIERED}]}, "usage"),
        ({"response": {**COMPLETION, "choices": [{"message": OWN}]}}, "usage"),
        ({"response": [{**OWN, "id": "msg_1", "metadata": {"id": "mine"}}]}, "id"),
        ({"query": [{"role": "developer", "content": "x", "metadata": {"role": "mine"}}]}, "role"),
    ],
)
def test_a_field_of_a_messages_own_metadata_is_never_overwritten(
    ledger: Ledger, values: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidInput, match=f"its metadata has a field '{name}' of its own"):
        ledger.record_turn(session="main", **values)


def test_the_same_value_in_both_places_is_no_collision_and_imports_keep_both(ledger: Ledger) -> None:
    same = {**OWN, "metadata": {"usage": {"service_tier": "flex"}, "k": 1}}
    recorded(ledger, response=[same], usage=TIERED)
    assert ledger.messages("main")[-1].metadata == same["metadata"]
    kept = translated({**OWN, "usage": TIERED}, MessageRole.ASSISTANT, "message", keeps_unknown=True) or []
    assert [message.metadata for message in kept] == [{"usage": {"service_tier": "flex"}, "metadata": OWN["metadata"]}]


def test_one_hour_writes_above_all_writes_are_clamped_where_an_api_reports_them(ledger: Ledger) -> None:
    reported = {
        "input_tokens": 5, "output_tokens": 7, "cache_creation_input_tokens": 4,
        "cache_creation": {"ephemeral_1h_input_tokens": 9},
    }  # fmt: skip
    for values in ({"response": "a", "usage": reported}, {"response": {**ANTHROPIC, "usage": reported}}):
        recorded(ledger, **values)
        usage = ledger.turn("main").usage
        assert (usage.cache_write_tokens, usage.cache_write_1h_tokens) == (4, 4)
    with pytest.raises(InvalidInput, match="cache_write_1h_tokens is 9"):
        ledger.record_turn(session="main", usage={"cache_write_tokens": 4, "cache_write_1h_tokens": 9})
