"""The contract of an exporter, as tests that every exporter passes.

An exporter's author subclasses `ExporterContract`, gives it `exporter` and `open` (from `weft`, static), and runs it
with pytest. Where a form does not show words as they are, `words` says how to read them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from weft.exchange.exporters.export import Exported, export
from weft.exchange.exporters.port import Exporter, ExportOptions, ExportReport, Story, ThreadTip
from weft.kernel.contents import ERASED
from weft.ledger.api import FullTurn, Ledger, TurnRange
from weft.ledger.model import ImagePart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart

ODD = ("", "\0", "\ud800 alone", "\x1b[31mred\x1b[0m", "line\r\nline\u2028", "</script><!--", "```\n# no end", "﷽" * 99)
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5"
    "ErkJggg=="
)
AHEAD = 64
"""So many turns an exporter may look at before it gives a piece."""


def record_history(ledger: Ledger) -> None:
    """A small history with everything in it that a form may stumble over."""
    content = [ReasoningPart("pondering"), TextPart("spoken"), ImagePart(PIXEL), ImagePart("https://example.org/a.png")]
    calls: list[dict[str, Any]] = [
        {"id": "c1", "name": "Bash", "arguments": {"command": "listing"}, "result": "listed"},
        {"id": "c1", "name": "mcp:a/b", "arguments": [1, 2**70], "error": "broken", "status": "error"},
        {"id": "c2", "name": "Edit", "arguments": {"path": "a.py", "old_string": "x", "new_string": "y"}},
    ]
    ledger.record_turn(
        session="main", system="be brief", query="asked first", response={"content": content}, tool_calls=calls
    )
    stray = [ToolUsePart("u1", "Read", {"path": "b"}), ToolResultPart("u9", {"deep": [None]}, True)]
    ledger.record_turn(session="main", query={"content": stray}, response={"content": [*stray]})
    for text in ODD:
        ledger.record_turn(session="main", query=text, response=text)
    with ledger.begin_turn(session="main") as turn:
        turn.message("asked in the middle")
        turn.tool_call("Bash", id="open", arguments={})
        turn.interrupt("canceled")
    ledger.compactions.record(session="main", summary="summed up")
    ledger.fork(turn.id, label="beside")
    ledger.record_turn(session="beside", query="asked beside", response="answered beside")
    ledger.record_turn(session="main", query="asked last", response="answered last", model="m-1")


class ExporterContract:
    """What holds for every exporter, whatever its form."""

    exporter: Exporter
    open: Callable[..., Any]

    def words(self, data: bytes) -> str:
        """The export as somebody reads it."""
        return data.decode()

    @contextmanager
    def ledger(self, folder: Path) -> Iterator[Ledger]:
        with self.open(folder / "ledger.db") as ledger:
            record_history(ledger)
            yield ledger

    def export(self, ledger: Ledger, *what: str, **wishes: Any) -> tuple[bytes, Exported]:
        out = io.BytesIO()
        done = export(ledger, what, self.exporter, out, **wishes)
        return out.getvalue(), done

    def test_it_has_a_form_and_a_suffix(self) -> None:
        assert self.exporter.form.replace("-", "").isalnum()
        assert self.exporter.suffix.startswith(".")
        assert isinstance(self.exporter.one_thread, bool)
        assert isinstance(self.exporter.wants_requests, bool)

    def test_what_people_and_models_said_is_in_it(self, tmp_path: Path) -> None:
        with self.ledger(tmp_path) as ledger:
            data, _ = self.export(ledger, "main")
        text = self.words(data)
        for words in ("asked first", "spoken", "asked in the middle", "asked last", "answered last"):
            assert words in text, words
        assert "asked beside" not in text or not self.exporter.one_thread

    def test_every_turn_message_and_call_is_counted_once(self, tmp_path: Path) -> None:
        with self.ledger(tmp_path) as ledger:
            data, done = self.export(ledger, "main")
            turns = list(ledger.thread("main").turns)
            assert done.bytes == len(data)
            assert done.turns == len(turns)
            assert done.messages == sum(turn.message_count for turn in turns)
            assert done.tool_calls == sum(turn.tool_call_count for turn in turns)

    def test_the_same_history_gives_the_same_bytes(self, tmp_path: Path) -> None:
        with self.ledger(tmp_path) as ledger:
            assert self.export(ledger, "main") == self.export(ledger, "main")

    def test_contexts_trees_and_several_threads_are_written(self, tmp_path: Path) -> None:
        with self.ledger(tmp_path) as ledger:
            assert "summed up" in self.words(self.export(ledger, "main", context=True)[0])
            if not self.exporter.one_thread:
                two_threads = self.words(self.export(ledger, "main", "beside")[0])
                tree = self.words(self.export(ledger, "main", trees=True)[0])
                assert two_threads.count("asked beside") >= 1
                assert tree.count("answered beside") == two_threads.count("answered beside")

    def test_thinking_and_tools_are_left_out_if_nobody_wants_them(self, tmp_path: Path) -> None:
        with self.ledger(tmp_path) as ledger:
            data, done = self.export(ledger, "main", thinking="none", tools=False)
        text = self.words(data)
        assert "pondering" not in text
        assert "listing" not in text
        assert done.left_out["thinking"]
        assert done.left_out["tool call"]

    def test_what_was_erased_is_shown_as_erased(self, tmp_path: Path) -> None:
        with self.ledger(tmp_path) as ledger:
            hits = ledger.search("asked last")
            ledger.erasure.erase(hits[0].turn_id, reason="test")
            data, _ = self.export(ledger, "main")
        text = self.words(data)
        assert "asked last" not in text
        assert ERASED in text

    def test_it_gives_as_it_goes(self) -> None:
        """A thread that never ends: what it looks at ahead of what it gives stays small."""
        taken_count = 0

        def turns_of(_: TurnRange) -> Iterator[FullTurn]:
            nonlocal taken_count
            for full_turn in _endless():
                taken_count += 1
                yield full_turn

        thread_range = TurnRange(number=0, segment=1, low=1, high=10**9, events=None, first="a", last="z")
        story = Story(
            title="t", tips=(ThreadTip(name="t", turn_id="z"),), thread_ranges=(thread_range,), turns_of=turns_of
        )
        given_count = 0
        for _ in self.exporter.write(story, ExportOptions(), ExportReport()):
            assert taken_count - given_count <= AHEAD
            given_count = taken_count
            if taken_count > 10 * AHEAD:
                return
        raise AssertionError("it ended before the thread did")


def _endless() -> Iterator[FullTurn]:
    from weft.kernel.clock import offset
    from weft.ledger.model import Message, Turn

    id = "01M7FFHBE3EZQDVP6QY1Y84400"
    turn = Turn(
        id=id, parent_id=None, depth=1, digest="0" * 64, turn_type="normal", status="completed", started_at=0,
        role="manager", persona_id="local",
    )  # fmt: skip
    roles = ("user", "assistant")
    items = tuple(Message(offset(id, 1 + i), role, (TextPart(role),), i, 0) for i, role in enumerate(roles))
    full_turn = FullTurn(turn=turn, items=items, positions=(0, 1))
    while True:
        turn = replace(turn, id=offset(turn.id, 10), depth=turn.depth + 1)
        yield replace(full_turn, turn=turn)
