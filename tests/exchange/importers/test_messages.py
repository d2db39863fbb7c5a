"""Files of messages in the forms of chat APIs: what no tool's own importer takes."""

from pathlib import Path
from typing import Any

import pytest

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.corpus import aged, take
from tests.exchange.fixtures.messages.conversations import ANTHROPIC, CHAT, SHARED, written
from weft.exchange.importers.messages import Messages
from weft.exchange.importers.port import HEAD_BYTES, Report, load_importers
from weft.exchange.importers.testing import as_source
from weft.ledger.model import ImagePart, ReasoningPart, TextPart


class TestTheContract(OwnImporterContract):
    importer = Messages()
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        return [
            written(folder, "lines.jsonl", CHAT),
            written(folder, "chat.json", {"messages": CHAT}),
            written(folder, "list.json", CHAT),
            written(folder, "anthropic.json", ANTHROPIC),
            written(folder, "shared.json", SHARED),
            written(folder, "shared.jsonl", SHARED),
            written(folder, "responses.json", [
                {"role": "user", "content": [{"type": "input_text", "text": "ls"}]},
                {"type": "reasoning", "id": "r", "summary": []},
                {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
            ]),
        ]  # fmt: skip


def imported(path: Path) -> weft.Ledger:
    ledger = weft.open(":memory:")
    summary = take(ledger, path)
    assert (summary.problems, summary.unrecognised) == ([], [])
    assert list(summary.origins) == ["messages"]
    return ledger


@pytest.mark.parametrize(
    ("name", "value"),
    [("a.json", {"messages": CHAT}), ("b.json", CHAT), ("c.jsonl", CHAT), ("d.jsonl", [{"messages": CHAT}]),
     ("e.json", [{"messages": CHAT}, {"messages": CHAT}]), ("f.json", {"data": [{"messages": CHAT}]}),
     ("g.json", [{"messages": []}, {"messages": CHAT}]), ("h.json", {"data": [{"messages": []}, {"messages": CHAT}]})],
)  # fmt: skip
def test_every_shape_of_a_file_gives_the_same_turns(tmp_path: Path, name: str, value: Any) -> None:
    with imported(written(tmp_path, name, value)) as ledger:
        (session,) = ledger.sessions()
        first, second = ledger.thread(session.label).turns
        assert [message.text for message in ledger.messages(first.id)] == ["Be brief.", "Which files?", "", "One file."]
        (call,) = ledger.tool_calls(first.id)
        assert (call.name, call.arguments, call.result, call.outcome) == ("ls", {"path": "."}, "notes.txt", "ok")
        assert [message.text for message in ledger.messages(second.id)] == ["Thanks.", "You are welcome."]
        assert first.time_known is False
        assert list(ledger.verify()) == []


@pytest.mark.parametrize("is_list", [True, False])
def test_a_first_message_longer_than_what_is_looked_at_is_no_hindrance(tmp_path: Path, is_list: bool) -> None:
    long = {"messages": [{"role": "user", "content": "x" * (HEAD_BYTES + 9)}, {"role": "assistant", "content": "y"}]}
    with imported(written(tmp_path, "a.json", [long, {"messages": CHAT}] if is_list else long)) as ledger:
        assert len(ledger.sessions()) == 1 + is_list


def test_messages_of_anthropics_keep_thinking_usage_and_failures(tmp_path: Path) -> None:
    with imported(written(tmp_path, "a.json", ANTHROPIC)) as ledger:
        (session,) = ledger.sessions()
        first, second = ledger.thread(session.label).turns
        (call,) = ledger.tool_calls(first.id)
        assert (call.result, call.outcome) == ("dark", "error")
        assert (first.usage.total_tokens, first.usage.cached_input_tokens, first.model) == (48, 40, "claude-z")
        assert ledger.messages(first.id)[2].content == (ReasoningPart("hm"),)
        assert ledger.messages(first.id)[2].metadata == {"signatures": ["c2ln"]}
        assert [message.text for message in ledger.messages(second.id)] == ["And now?", "Light."]


def test_conversations_of_one_file_stay_apart_whatever_their_ids_are(tmp_path: Path) -> None:
    """Two answers to one prompt are no versions of each other, and one id twice is no link."""
    with imported(written(tmp_path, "a.json", SHARED)) as ledger:
        turns = [ledger.turn(session.label) for session in ledger.sessions()]
        texts = sorted(" ".join(message.text for message in ledger.messages(turn.id)) for turn in turns)
        assert texts == ["Hi Hello.", "Hi Yes?", "S Hi"]
        assert all(turn.is_current for turn in turns)


def test_a_conversation_that_grew_is_the_same_session(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", {"messages": CHAT[:5]})
    with imported(path) as ledger:
        aged(written(tmp_path, "a.json", {"messages": CHAT}), age=1)
        counts = take(ledger, path).of("messages").counts
        assert (counts.turns, counts.superseded, len(ledger.sessions())) == (1, 0, 1)
        assert ledger.turn(ledger.sessions()[0].label).depth == 2


def test_what_is_not_known_is_kept_and_harms_nothing_else(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://e.org/a.png"}}
    odd = [
        {"role": "user", "content": ["Look", image, {"type": "hologram", "x": 1}], "colour": "red"},
        {"role": "narrator", "content": "Night fell."},
        {"role": "assistant", "content": "So.", "tool_calls": [{"odd": 1}]},
        {"role": "assistant", "content": "Seen."},
    ]
    path = written(tmp_path, "a.jsonl", odd)
    report = Report(str(path))
    (transcript,) = Messages().read(as_source(path), report)
    (turn,) = transcript.turns
    assert turn.items[0].parts == (TextPart("Look"), ImagePart("https://e.org/a.png"))  # type: ignore[union-attr]
    assert turn.items[0].metadata == {  # type: ignore[union-attr]
        "beside": [{"at": 2, "block": {"type": "hologram", "x": 1}}], "colour": "red",
    }  # fmt: skip
    assert (report.found, sum(report.mapped.values()), sum(report.unknown.values())) == (4, 2, 2)
    assert len(report.problems) == 1


@pytest.mark.parametrize(
    "value",
    [{"messages": []}, {"messages": ["a"]}, [{"role": "boss"}], {"messages": [{"role": 5}]}, [{"a": 1}], [[]], "x",
     {"conversations": [{"from": 1, "value": 2}]}],
)  # fmt: skip
def test_other_documents_are_not_taken(tmp_path: Path, value: Any) -> None:
    path = written(tmp_path, "a.json", value)
    assert take(None, path).unrecognised == [str(path)]


def test_a_tools_own_importer_goes_first(tmp_path: Path) -> None:
    mini = {"trajectory_format": "mini-swe-agent-1", "messages": CHAT[:2], "info": {}}
    path = written(tmp_path, "a.json", mini)
    assert Messages().recognises(as_source(path))
    assert list(take(None, path).origins) == ["swe-agent"]
    names = [importer.origin for importer in load_importers()]
    assert "messages" in names


def test_a_large_list_is_read_piece_by_piece_within_the_budget(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", [{"messages": [{"role": "user", "content": "x" * 40_000}]}] * 3)
    assert take(None, path).of("messages").counts.sessions == 3
