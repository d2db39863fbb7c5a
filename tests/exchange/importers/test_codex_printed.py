"""What Codex prints while it runs (`codex exec --json`), saved to a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.corpus import take
from tests.exchange.fixtures.codex import prints
from tests.exchange.fixtures.codex.rollouts import OTHER, SESSION, calls, messages, shown, source_of
from weft.exchange.importers.codex import Codex
from weft.exchange.importers.codex.importer import transcripts
from weft.exchange.importers.port import Report, Tokens
from weft.kernel.enums import FileKind, MessageSource, ToolCallStatus


class TestPrinted(OwnImporterContract):
    importer = Codex()
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        return [
            prints.write(folder, [*prints.run(), *prints.short("Again.", OTHER)]),
            prints.write(folder, prints.short("Later."), "later.jsonl"),
        ]


def test_a_printed_run_is_a_session_of_its_thread(tmp_path: Path) -> None:
    ((session, (turn,)),), report = prints.read(prints.write(tmp_path, prints.run()))
    assert session.id.startswith(f"{SESSION}/print-")
    assert session.metadata == {"session_id": SESSION}
    assert shown(turn) == [
        "assistant: thinking: **Looking**",
        "call command_execution item_1",
        "assistant: One file.",
        "call file_change item_3",
        "assistant: ",
        "call find item_4",
        "assistant: ",
        "call web_search item_5",
        "assistant: Done.",
    ]
    assert (turn.closed, turn.interrupted, turn.error) == (True, False, None)
    assert report.unknown == {"item.completed/future_thing": 1}
    assert [note["event"] for note in turn.metadata["notes"]] == ["todo_list", "error"]


def test_calls_have_their_outcomes(tmp_path: Path) -> None:
    ((_, (turn,)),), _ = prints.read(prints.write(tmp_path, prints.run()))
    command, change, found, search = calls(turn)
    assert (command.arguments, command.result) == ({"command": "bash -lc ls"}, "a.py\n")
    assert (command.status, command.detail["exit_code"]) == (ToolCallStatus.OK, 0)
    assert [(note.kind, note.path, note.line_start) for note in change.files] == [
        (FileKind.WRITTEN, "/shop/a.py", 1),
        (FileKind.WRITTEN, "/shop/b.py", None),
    ]
    assert (found.status, found.error) == (ToolCallStatus.ERROR, "no such page")
    assert (found.arguments, found.detail["namespace"]) == ({"q": "x"}, "docs")
    assert (search.status, search.arguments) == (ToolCallStatus.OK, {"query": "weft"})


def test_a_call_that_never_ended_has_no_outcome_and_its_turn_is_interrupted(tmp_path: Path) -> None:
    path = prints.write(tmp_path, prints.run()[:4])
    ((_, (turn,)),), _ = prints.read(path)
    assert (calls(turn)[0].status, turn.interrupted) == (None, True)
    ((_, (turn,)),), _ = prints.read(path, quiet=False)
    assert not turn.closed


def test_a_run_that_failed_says_why(tmp_path: Path) -> None:
    lines = [*prints.run()[:3], {"type": "turn.failed", "error": {"message": "out of credits"}}]
    ((_, (turn,)),), _ = prints.read(prints.write(tmp_path, lines))
    assert (turn.error, turn.closed) == ("out of credits", True)


def test_a_run_of_the_experimental_form(tmp_path: Path) -> None:
    ((session, (turn,)),), _ = prints.read(prints.write(tmp_path, prints.experimental()))
    assert session.id.startswith(f"{SESSION}/print-")
    assert shown(turn) == ["assistant: thinking: hm", "call command_execution item_1", "assistant: It fails."]
    assert (calls(turn)[0].status, turn.interrupted) == (ToolCallStatus.ERROR, False)


def test_a_run_of_the_first_form_tells_its_prompt_and_settings(tmp_path: Path) -> None:
    ((session, (turn,)),), report = prints.read(prints.write(tmp_path, prints.events()))
    assert (turn.workspace, turn.permissions) == ("/shop", {"approval_policy": "never", "sandbox_policy": "read-only"})
    assert session.id.startswith(f"{SESSION}/print-")
    asked, first, second, last = messages(turn)
    assert (asked.source, shown(turn)[0]) == (MessageSource.HUMAN, "user: add a")
    assert (first.model, first.provider) == ("gpt-5", "openai")
    assert [each.tokens for each in (first, second, last)] == [
        Tokens(input=6, output=3, cached=4),
        None,
        Tokens(input=6, output=3, cached=4),
    ]
    command, patch = calls(turn)
    assert (command.name, command.result, command.arguments["command"]) == ("exec_command", "a.py", ["ls"])
    assert [(note.kind, note.path) for note in patch.files] == [(FileKind.WRITTEN, "/shop/a.py")]
    assert (turn.interrupted, report.unknown) == (False, {})


def test_runs_of_one_file_are_sessions_of_their_own(tmp_path: Path) -> None:
    found, _ = prints.read(prints.write(tmp_path, [*prints.short("One."), *prints.short("Two.", OTHER)]))
    assert [session.id.partition("/")[0] for session, _ in found] == [SESSION, OTHER]
    assert [shown(turn) for _, turns in found for turn in turns] == [["assistant: One."], ["assistant: Two."]]


def test_runs_that_say_the_same_in_two_threads_are_two(tmp_path: Path) -> None:
    prints.write(tmp_path, prints.short("Hello."), "one.jsonl")
    prints.write(tmp_path, prints.short("Hello.", OTHER), "two.jsonl")
    with weft.open(tmp_path / "ledger.db") as ledger:
        take(ledger, tmp_path)
        assert len(list(ledger.sessions())) == 2
        assert ledger.usage.report("origin").total.total == 240


def test_runs_of_one_thread_that_begin_alike_are_both_shown(tmp_path: Path) -> None:
    prints.write(tmp_path, prints.short("Hello."), "one.jsonl")
    prints.write(tmp_path, [*prints.short("Hello.")[:3], prints.message("And more.", "item_1")], "two.jsonl")
    with weft.open(tmp_path / "ledger.db") as ledger:
        take(ledger, tmp_path)
        assert len(ledger.search("hello")) == 2


def test_a_run_that_was_quiet_for_long_and_goes_on_is_one_turn(tmp_path: Path) -> None:
    with weft.open(tmp_path / "ledger.db") as ledger:
        for lines in (prints.run()[:4], prints.run()):
            prints.write(tmp_path, lines)
            take(ledger, tmp_path)
        (turn,) = ledger.log()
        assert (turn.tool_call_count, turn.interruption_reason) == (4, None)
        assert len(list(ledger.sessions())) == 1


def test_the_running_total_of_a_thread_counts_once_in_however_many_runs_it_is_told(tmp_path: Path) -> None:
    prints.write(tmp_path, prints.short("One.", given=100, cached=60, out=20), "one.jsonl")
    prints.write(tmp_path, prints.short("Two.", given=300, cached=200, out=50), "two.jsonl")
    with weft.open(tmp_path / "ledger.db") as ledger:
        take(ledger, tmp_path)
        total = ledger.usage.report("origin").total
        assert (total.input, total.cached, total.output) == (100, 200, 50)


@pytest.mark.parametrize("form", [prints.run, prints.experimental, prints.events])
@pytest.mark.parametrize("strange", [None, [1], {"a": 1}, "x", 7])
def test_values_that_are_not_what_they_should_be_harm_nothing(
    tmp_path: Path, form: Callable[[], list[prints.Line]], strange: Any
) -> None:
    path = tmp_path / "run.jsonl"
    for number, line in enumerate(form()):
        inside = next((key for key in ("item", "msg") if key in line), None)
        places = [(None, name) for name in line] + [(inside, name) for name in line.get(inside or "", ())]
        for where, name in places:
            lines = form()
            (lines[number] if where is None else lines[number][where])[name] = strange
            prints.write(tmp_path, lines)
            report = Report(source=str(path))
            assert [list(each.turns) for each in transcripts(source_of(path), report)]
            assert report.found == sum(report.mapped.values()) + sum(report.kept.values()) + report.damaged


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"error","message":"x"}\n',
        b'{"type":"turn.started"}\n',
        b'{"id":"0","msg":{"type":"unheard_of"}}\n',
        b'{"type":"item.completed","item":{"type":"card"}}\n',
        b'{"prompt":"hi"}\n',
    ],
)
def test_other_lines_are_not_taken_for_printed_runs(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(data)
    assert not Codex().recognises(source_of(path))
