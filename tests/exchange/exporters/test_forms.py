"""What each form makes of a thread, to the letter where programs read it."""

import io
import json
from typing import Any

import pytest
from msgspec.structs import replace

import weft
from tests.exchange.exporters.rules import check_anthropic
from tests.exchange.exporters.stories import NOON, call, story, told, written
from weft import ImagePart, Ledger, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from weft.exchange.exporters.anthropic import BEGINNING, Anthropic
from weft.exchange.exporters.export import export
from weft.exchange.exporters.html import Html
from weft.exchange.exporters.jsonl import JsonLines
from weft.exchange.exporters.markdown import Markdown, block_quote, code, escaped, fenced
from weft.exchange.exporters.openai import OpenAi
from weft.exchange.exporters.port import ExportOptions, ExportReport, ThreadTip
from weft.exchange.exporters.testing import PIXEL
from weft.exchange.exporters.turn_contents import ExportCallIds, image_address, raster_in
from weft.kernel.clock import FixedClock
from weft.ledger.model import ANTHROPIC, Message, SealedItem, sealed_metadata


def lines(ledger: Ledger, *what: str, **wishes: Any) -> list[dict[str, Any]]:
    out = io.BytesIO()
    export(ledger, what, "jsonl", out, **wishes)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def openai(*turns: Any, **wishes: Any) -> list[Any]:
    found: list[Any] = json.loads(written(OpenAi(), *turns, **wishes))["messages"]
    return found


def anthropic(*turns: Any, **wishes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(written(Anthropic(), *turns, **wishes))
    check_anthropic(found, signed=wishes.get("thinking") != "all")
    return found


def test_an_entry_has_exactly_what_is_known() -> None:
    with weft.open(":memory:", clock=FixedClock(NOON)) as ledger:
        with ledger.begin_turn(session="main") as turn:
            turn.message("go")
            request = turn.request("sonnet", provider="anthropic")
            counts = {"input_tokens": 3, "output_tokens": 4, "cached_input_tokens": 5, "cache_write_tokens": 6}
            counts["cache_write_1h_tokens"] = 2
            turn.response("gone", latency_ms=70, usage={**counts, "reasoning_tokens": 1})
            turn.finish()
        session, (said, answer) = ledger.session("main"), ledger.messages("main")
        known = {"sessionId": session.id, "timestamp": "2026-11-15T00:00:00.000Z"}
        usage = {"inputTokens": 3, "outputTokens": 4, "cacheReadTokens": 5, "cacheWriteTokens": 6}
        usage["cacheWrite1hTokens"] = 2
        assert request
        assert lines(ledger, "main") == [
            {"uuid": said.id, **known, "message": {"role": "user", "content": "go"}},
            {
                "uuid": answer.id, "parentUuid": said.id, **known,
                "message": {"role": "assistant", "content": "gone", "model": "sonnet", "usage": usage},
                "requestId": ledger.events("main")[2].id, "provider": "anthropic", "latencyMs": 70,
            },
        ]  # fmt: skip


def test_what_is_not_known_is_absent() -> None:
    with weft.open(":memory:") as ledger:
        ledger.record_turn(query="a", response="b", usage={"output_tokens": 3})
        (turn,) = ledger.log()
        _, answer = lines(ledger, turn.id)
    assert answer["message"] == {"role": "assistant", "content": "b"}
    assert set(answer) == {"uuid", "parentUuid", "timestamp", "message", "requestId"}
    undated = written(JsonLines(), told(1, ("user", "a"), time_known=False))
    assert "timestamp" not in json.loads(undated)


def test_usage_of_a_turn_is_that_of_its_only_answer() -> None:
    usage = {"input_tokens": 1, "output_tokens": 2}
    with weft.open(":memory:") as ledger:
        ledger.record_turn(session="one", query="a", response="b", usage=usage)
        with ledger.begin_turn(session="two") as turn:
            turn.message("a", role="assistant")
            turn.message("b", role="assistant")
            turn.finish(usage=usage)
        assert lines(ledger, "one")[1]["message"]["usage"] == {"inputTokens": 1, "outputTokens": 2}
        assert all("usage" not in entry["message"] for entry in lines(ledger, "two"))


def test_a_log_counts_what_it_has_no_place_for() -> None:
    parts = [ReasoningPart("hm"), TextPart("x"), ImagePart(PIXEL), TextPart("y"), ToolUsePart("c", "t", {})]
    report = ExportReport()
    turn = told(1, ("system", "s"), ("user", "q"), call(1), ("assistant", parts))
    [_, answer] = JsonLines().write(story(turn), ExportOptions(), report)
    assert json.loads(answer)["message"]["content"] == "x\ny"
    assert {k: n for k, n in report.left_out.items() if n} == {
        "system message": 1, "tool call": 1, "thinking": 1, "image": 1, "part of a tool call": 1,
    }  # fmt: skip


def test_calls_of_a_turn_join_the_message_that_made_them() -> None:
    turn = told(
        1,
        ("user", "go"),
        ("assistant", "doing"),
        call(1, arguments={"command": "ls"}, result="a\nb"),
        call(2, arguments="raw", outcome="error", error="broke"),
        call(3, outcome=None),
        ("assistant", "done"),
    )
    assert openai(turn) == [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "doing",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "Bash", "arguments": '{"command": "ls"}'}},
                {"id": "c2", "type": "function", "function": {"name": "Bash", "arguments": '{"input": "raw"}'}},
                {"id": "c3", "type": "function", "function": {"name": "Bash", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a\nb"},
        {"role": "tool", "tool_call_id": "c2", "content": "broke"},
        {"role": "tool", "tool_call_id": "c3", "content": "interrupted"},
        {"role": "assistant", "content": "done"},
    ]
    messages = anthropic(turn)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert messages[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "c1", "content": "a\nb"},
        {"type": "tool_result", "tool_use_id": "c2", "content": "broke", "is_error": True},
        {"type": "tool_result", "tool_use_id": "c3", "content": "interrupted", "is_error": True},
    ]


def test_calls_that_messages_spell_out_come_once() -> None:
    use, result = ToolUsePart("c1", "Bash", {"a": 1}), ToolResultPart("c1", "told in a message")
    turn = told(1, ("assistant", [use]), call(1, result="told by the call"), ("tool", [result]), ("user", "on"))
    calling, answer, user = openai(turn)
    assert [made["id"] for made in calling["tool_calls"]] == ["c1"]
    assert answer["content"] == "told in a message"
    assert user == {"role": "user", "content": "on"}


def test_a_result_that_comes_before_its_call_is_moved_behind_it() -> None:
    use, result = ToolUsePart("c1", "Bash", {}), ToolResultPart("c1", "early")
    said = openai(told(1, ("tool", [result]), ("assistant", [use])))
    assert [message["role"] for message in said] == ["assistant", "tool"]
    assert said[1]["content"] == "early"


def test_what_has_no_place_becomes_text() -> None:
    turn = told(1, ("user", [ToolUsePart("u", "Read", {"a": 1})]), ("tool", [ToolResultPart("gone", {"b": 2})]))
    texts = [message["content"] for message in openai(turn)]
    assert texts == ['[tool call u: Read]\n{\n  "a": 1\n}', '[result of tool call gone]\n{\n  "b": 2\n}']


def test_ids_of_calls_are_unique_in_a_thread() -> None:
    turns = [told(i, ("user", "go"), call(1), call(1), ("assistant", "ok")) for i in range(1, 4)]
    ids = [made["id"] for message in openai(*turns) for made in message.get("tool_calls", ())]
    assert len(ids) == len(set(ids)) == 6
    assert ids[0] == "c1"
    given = ExportCallIds()
    made = [given.claim_id(id) for id in ("a", "a", "weft_1", "é", "", "x" * 41, "b")]
    assert made == ["a", "weft_1", "weft_2", "weft_3", "weft_4", "weft_5", "b"]


def test_names_of_tools_have_letters_that_apis_take() -> None:
    turn = told(1, ("user", "go"), call(1, "mcp:git hub/search.code"), call(2, "é" * 80))
    names = [made["function"]["name"] for made in openai(turn)[1]["tool_calls"]]
    assert names == ["mcp_git_hub_search_code", "_" * 64]


@pytest.mark.parametrize("levels", [100, 400, 900])
def test_arguments_in_a_text_of_any_depth_are_written(levels: int) -> None:
    text = '{"a": ' * levels + "1" + "}" * levels
    turn = told(1, ("user", "go"), call(1, arguments=text, result=text))
    block = anthropic(turn)["messages"][1]["content"][0]
    assert block["input"] == (json.loads(text) if levels < 300 else {"input": text})
    assert len(openai(turn)) == 3
    for exporter in (Html(), Markdown(), JsonLines()):
        assert written(exporter, turn)


def test_anthropics_messages_begin_with_the_users() -> None:
    messages = anthropic(told(1, ("assistant", "hello"), ("assistant", "there"), ("user", " \n"), ("user", "hi")))
    assert messages["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": BEGINNING}]},
        {"role": "assistant", "content": [{"type": "text", "text": "hello"}, {"type": "text", "text": "there"}]},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]


def test_the_system_prompt_in_effect_is_the_last_one() -> None:
    turns = [
        told(1, ("system", "old"), ("user", "a"), ("system", "in between")),
        told(2, ("system", "new"), ("user", "b")),
    ]
    found = anthropic(*turns)
    assert found["system"] == [{"type": "text", "text": "new"}]
    assert [block["text"] for block in found["messages"][0]["content"]] == [
        "a",
        "<system>\nin between\n</system>",
        "b",
    ]
    assert [message["content"] for message in openai(*turns) if message["role"] == "system"] == [
        "old",
        "in between",
        "new",
    ]


def test_thinking_needs_its_signature() -> None:
    turn = told(1, ("user", "q"), ("assistant", [ReasoningPart("hm"), TextPart("a")]))
    message = turn.items[1]
    assert isinstance(message, Message)
    signed = replace(turn, items=(turn.items[0], replace(message, metadata={"signatures": ["s1"]})))
    thinking = {"type": "thinking", "thinking": "hm"}
    assert anthropic(signed)["messages"][1]["content"][0] == {**thinking, "signature": "s1"}
    sealed = sealed_metadata(ANTHROPIC, [SealedItem(0, 1, {"signature": "s2"})])
    answered = replace(turn, items=(turn.items[0], replace(message, metadata=sealed)))
    assert anthropic(answered)["messages"][1]["content"][0] == {**thinking, "signature": "s2"}
    assert anthropic(turn)["messages"][1]["content"] == [{"type": "text", "text": "a"}]
    assert anthropic(turn, thinking="all")["messages"][1]["content"][0] == thinking
    assert len(anthropic(signed, thinking="none")["messages"][1]["content"]) == 1


def test_images_go_to_the_apis_in_their_own_shapes() -> None:
    parts = [ImagePart(PIXEL, "low"), ImagePart("https://e.org/a.png"), ImagePart("file:///x"), TextPart("t")]
    turn = told(1, ("user", parts), ("assistant", [ImagePart(PIXEL), TextPart("seen")]))
    pixels = PIXEL.partition(",")[2]
    source = {"type": "base64", "media_type": "image/png", "data": pixels}
    assert anthropic(turn)["messages"][0]["content"] == [
        {"type": "image", "source": source},
        {"type": "image", "source": {"type": "url", "url": "https://e.org/a.png"}},
        {"type": "text", "text": "[image: file:///x]"},
        {"type": "text", "text": "t"},
    ]
    assert openai(turn)[0]["content"][:2] == [
        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://e.org/a.png"}},
    ]
    assert openai(turn)[1]["content"].endswith("\nseen")


def test_an_image_in_a_result_is_shown() -> None:
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL.partition(",")[2]}}
    result = [{"type": "text", "text": "here"}, block]
    turn = told(1, ("user", "look"), call(1, result=result))
    [answer] = anthropic(turn)["messages"][2]["content"]
    assert [inner["type"] for inner in answer["content"]] == ["text", "image"]
    assert f'src="{PIXEL}"' in written(Html(), turn)
    assert "an image, image/png" in written(Markdown(), turn)


@pytest.mark.parametrize(
    "url",
    [
        "data:image/svg+xml;base64,PHN2Zz4=",
        "data:image/png;base64,PHN2Zz4=",
        "data:image/png;base64,***",
        "data:image/png,abc",
        "data:image/webp;base64,UklGRgAAAABXRUJY",
        "data:text/html;base64,iVBORw0KGgo=",
        "https://example.org/a.png",
        "",
    ],
)
def test_only_pixels_that_are_what_they_say_are_embedded(url: str) -> None:
    assert raster_in(url) is None
    assert "<img" not in written(Html(), told(1, ("user", [ImagePart(url)])))


def test_images_are_found_in_every_providers_shape() -> None:
    assert image_address({"type": "image", "data": "AA", "mimeType": "image/png"}) == "data:image/png;base64,AA"
    assert image_address({"type": "image_url", "image_url": {"url": "u"}}) == "u"
    assert image_address({"type": "input_image", "image_url": "u"}) == "u"
    assert image_address({"type": "image", "source": {"type": "url", "url": "u"}}) == "u"
    assert image_address({"type": "text", "url": "u"}) is None
    assert image_address({"type": "image"}) is None


def test_fences_are_longer_than_any_inside() -> None:
    assert fenced("a\n`````\nb") == "``````\na\n`````\nb\n``````"
    assert fenced("x", "diff") == "```diff\nx\n```"
    assert code("a ` b") == "``a ` b``"
    assert code("`") == "`` ` ``"
    assert escaped("a *b*\n<c> [d](e) `f`") == r"a \*b\* \<c> \[d\](e) \`f\`"


def test_a_quote_keeps_what_would_reach_out() -> None:
    assert block_quote("# A\n\n```\nopen") == "> # A\n>\n> ```\n> open"
    assert block_quote("a <b>bold</b> `<i>`") == r"> a \<b>bold\</b> `<i>`"
    assert block_quote("[a]: http://x") == "> ```\n> [a]: http://x\n> ```"
    assert block_quote("\\`<b>`") == "> ```\n> \\`<b>`\n> ```"


def test_a_page_tells_edits_as_diffs() -> None:
    edit = call(1, "Edit", arguments={"file_path": "/a.py", "old_string": "x\ny", "new_string": "x\nz"})
    page = written(Html(), told(1, ("user", "go"), edit))
    assert '<span class="remove">-y\n</span><span class="add">+z\n</span>' in page
    assert "```diff\n x\n-y\n+z\n```" in written(Markdown(), told(1, ("user", "go"), edit))


def test_a_page_tells_what_is_not_known_or_not_well() -> None:
    turns = (
        told(1, ("user", "a"), time_known=False),
        told(2, ("user", "b"), error="it <broke>", error_code="x"),
        told(3, ("user", "c"), interruption_reason="crash"),
        replace(told(4, ("user", "d"), is_current=False), shown=2),
        replace(told(5, call(1, outcome=None)), turn=replace(told(5).turn, status="streaming")),
    )
    for page in (written(Html(), *turns), written(Markdown(), *turns)):
        for words in ("time unknown", "x: it ", "interrupted (crash)", "superseded", "only its first 2 events"):
            assert words in page
        assert "not finished" in page
        assert "no result yet" in page


def test_titles_labels_and_names_of_sessions_are_escaped() -> None:
    evil = '"><script>alert(1)</script>'
    made = replace(
        story(told(1, ("user", "a"))), title=evil, tips=(ThreadTip(name=evil, turn_id=evil, session=evil, title=evil),)
    )
    page = b"".join(Html().write(made, ExportOptions(), ExportReport())).decode()
    assert page.count("<script>") == 1
    assert "alert(1)&lt;/script&gt;" in page
    markdown = b"".join(Markdown().write(made, ExportOptions(), ExportReport())).decode()
    assert markdown.startswith('# ">\\<script>alert(1)\\</script>\n')
