"""Copilot CLI: how events become turns, with subagents, costs and traps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.exchange.corpus import take
from tests.exchange.fixtures.copilot_cli.events import (
    AT_MS,
    COPILOT,
    SESSION,
    Line,
    assistant,
    begun,
    chain,
    dialogue,
    ended,
    event,
    everything,
    id_of,
    request,
    shutdown,
    start,
    turn_end,
    user,
    write,
)
from tests.exchange.reading import called, read, read_one, said, shape, texts_of
from weft.exchange.importers.port import NativeTurn, Tokens
from weft.exchange.importing.run import ImportRun
from weft.kernel.clock import FixedClock
from weft.kernel.enums import AgentRole, FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart


def turns_of(folder: Path, *events: Line) -> list[NativeTurn]:
    return read_one(COPILOT, write(folder, *chain(start(), *events))).turns


def test_a_dialogue_is_a_turn_per_prompt(tmp_path: Path) -> None:
    found = read_one(COPILOT, write(tmp_path, *dialogue()))
    session, turn = found.session, found.turns[0]
    assert (session.id, session.workspace, session.git_branch, session.version) == (SESSION, "/shop", "main", "1.0.64")
    assert shape(found.turns) == [(id_of("u1"), None), (id_of("u2"), 0)]
    assert texts_of(turn) == ["You are a tool.", "List the files.", "Hm.", "There is one."]
    assert said(turn)[1].context == {"sent": "<now>\nList the files."}
    assert said(turn)[1].source is MessageSource.HUMAN
    (call,) = called(turn)
    assert (call.id, call.name, call.result, call.status, call.at, call.done) == (
        "c1", "bash", "a.txt", ToolCallStatus.OK, AT_MS, AT_MS,
    )  # fmt: skip


def test_short_events_are_taken_from_a_file_that_is_called_as_copilots(tmp_path: Path) -> None:
    events = [
        {"type": "user.message", "data": {"content": "Which files?"}},
        {"type": "assistant.message", "data": {"content": "One."}},
    ]
    lines = "".join(f"{json.dumps(event)}\n" for event in events)
    for name in ("events.jsonl", "other.jsonl"):
        (tmp_path / name).write_text(lines)
    with weft.open(":memory:") as ledger:
        summary = take(ledger, tmp_path / "events.jsonl")
        assert (summary.problems, summary.unrecognised) == ([], [])
        (session,) = ledger.sessions()
        (turn,) = ledger.thread(session.label).turns
        assert [message.text for message in ledger.messages(turn.id)] == ["Which files?", "One."]
        assert not turn.time_known
        other = str(tmp_path / "other.jsonl")
        summary = take(ledger, tmp_path / "other.jsonl")
        assert (summary.unrecognised, summary.readable) == ([other], {other: "copilot-cli"})


def test_what_is_said_while_the_agent_works_belongs_to_the_turn_under_way(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path,
        user("u1", "Go.", "i1"), assistant("a1", "", request("c1")), user("u2", "Faster!", "i1", delivery="steering"),
        user("u3", "", "i1", source="system", transformedContent="<system_reminder>"), assistant("a2", "Done."),
    )  # fmt: skip
    assert shape(turns) == [(id_of("u1"), None)]
    assert [each.source for each in said(turns[0]) if each.role is MessageRole.USER] == [
        MessageSource.HUMAN, MessageSource.HUMAN, MessageSource.EVENT,
    ]  # fmt: skip


def test_a_prompt_that_nobody_typed_is_told_as_one(tmp_path: Path) -> None:
    """On autopilot the tool goes on by itself."""
    turns = turns_of(
        tmp_path, user("u1", "Go.", "i1"), assistant("a1", "1"), user("u2", "", "i2", transformedContent="Go on.")
    )
    assert [said(turn)[0].source for turn in turns] == [MessageSource.HUMAN, MessageSource.EVENT]
    assert texts_of(turns[1]) == ["Go on."]


def test_a_notification_between_turns_begins_one(tmp_path: Path) -> None:
    note = event("system.notification", "n1", {"content": "A shell has ended.", "kind": {"type": "shell_completed"}})
    turns = turns_of(
        tmp_path, user("u1", "Go.", "i1"), assistant("a1", "1"), turn_end("t1"), note, assistant("a2", "2")
    )
    assert shape(turns) == [(id_of("u1"), None), (id_of("n1"), 0)]
    assert texts_of(turns[1]) == ["A shell has ended.", "2"]


def test_an_event_that_follows_an_older_turn_is_a_branch(tmp_path: Path) -> None:
    first = [user("u1", "One", "i1"), assistant("a1", "1"), user("u2", "Two", "i2"), assistant("a2", "2")]
    turns = turns_of(tmp_path, *first, {**user("u3", "Three", "i3"), "parentId": id_of("a1")})
    assert shape(turns) == [(id_of("u1"), None), (id_of("u2"), 0), (id_of("u3"), 0)]


def test_a_rewind_is_a_branch(tmp_path: Path) -> None:
    first = [user("u1", "One", "i1"), assistant("a1", "1"), user("u2", "Two", "i2"), assistant("a2", "2")]
    back = event("session.snapshot_rewind", "r1", {"upToEventId": id_of("u2"), "eventsRemoved": 2})
    turns = turns_of(tmp_path, *first, back, user("u3", "Three", "i3"))
    assert shape(turns) == [(id_of("u1"), None), (id_of("u2"), 0), (id_of("u3"), 0)]


class TestSubagents:
    def test_their_events_are_a_session_of_their_own(self, tmp_path: Path) -> None:
        (main, agent), _ = read(COPILOT, write(tmp_path, *everything()))
        assert (agent.session.id, agent.session.parent, agent.session.spawn_call) == (f"{SESSION}/c9", SESSION, "c9")
        assert (agent.session.agent, agent.session.task) == ("explore", "Looks around.")
        (turn,) = agent.turns
        assert turn.role is AgentRole.WORKER
        assert texts_of(turn) == ["Look.", "Nothing."]
        assert said(turn)[0].source is MessageSource.AGENT
        assert [call.spawned for turn in main.turns for call in called(turn)] == [None, f"{SESSION}/c9"]
        assert not any("Nothing." in texts_of(turn) for turn in main.turns)

    def test_they_are_known_by_their_agents_id_too(self, tmp_path: Path) -> None:
        told = event("subagent.started", "z1", {"toolCallId": "c1", "agentName": "explore"}, agentId="ag")
        path = write(
            tmp_path,
            *chain(start(), user("u1", "Go.", "i1"), assistant("a1", "", request("c1", "task")), told,
                   {**assistant("a2", "Inside."), "agentId": "ag"}, assistant("a3", "Outside.")),
        )  # fmt: skip
        (main, agent), _ = read(COPILOT, path)
        assert (texts_of(main.turns[0]), texts_of(agent.turns[0])) == (["Go.", "Outside."], ["Inside."])


class TestCosts:
    def tokens(self, folder: Path, *events: Line) -> list[tuple[str | None, Tokens]]:
        found, _ = read(COPILOT, write(folder, *chain(start(), user("u1", "Go.", "i1"), *events)))
        messages = [each for one in found for turn in one.turns for each in said(turn)]
        return [(each.model, each.tokens) for each in messages if each.tokens is not None]

    def test_a_session_tells_at_its_end_what_responses_did_not(self, tmp_path: Path) -> None:
        end = shutdown(
            "d1", inputTokens=100, outputTokens=35, cacheReadTokens=40, cacheWriteTokens=5, reasoningTokens=7
        )
        assert self.tokens(tmp_path, assistant("a1", "1"), assistant("a2", "2"), end) == [
            ("large", Tokens(output=10)),
            ("large", Tokens(output=10)),
            ("large", Tokens(input=55, output=15, cached=40, cache_write=5, reasoning=7)),
        ]

    def test_a_resumed_session_goes_on_counting(self, tmp_path: Path) -> None:
        found = self.tokens(
            tmp_path,
            assistant("a1", "1"), shutdown("d1", inputTokens=100, outputTokens=10),
            assistant("a2", "2"), shutdown("d2", inputTokens=250, outputTokens=20),
        )  # fmt: skip
        assert [tokens.input for _, tokens in found if tokens.input is not None] == [100, 150]
        assert sum(tokens.output or 0 for _, tokens in found) == 20

    def test_or_has_begun_anew(self, tmp_path: Path) -> None:
        found = self.tokens(
            tmp_path, shutdown("d1", inputTokens=100), assistant("a2", "2"), shutdown("d2", inputTokens=30)
        )
        assert [tokens.input for _, tokens in found if tokens.input is not None] == [100, 30]

    def test_the_output_of_a_subagent_counts_once(self, tmp_path: Path) -> None:
        inner = assistant("a2", "Inside.", parentToolCallId="c1")
        found = self.tokens(
            tmp_path, assistant("a1", "", request("c1", "task")), inner, shutdown("d1", outputTokens=20)
        )
        assert [tokens.output for _, tokens in found] == [10, 10]

    def test_a_response_in_several_pieces_tells_its_output_once(self, tmp_path: Path) -> None:
        pieces = [
            assistant("a1", "", apiCallId="x", outputTokens=None),
            assistant("a2", "1", request("c1"), apiCallId="x"),
        ]
        assert self.tokens(tmp_path, *pieces) == [("large", Tokens(output=10))]

    def test_the_model_in_effect_is_that_of_responses_that_name_none(self, tmp_path: Path) -> None:
        change = event("session.model_change", "z1", {"newModel": "small"})
        found = read_one(
            COPILOT, write(tmp_path, *chain(start(), change, user("u1", "Go."), assistant("a1", "1", model=None)))
        )
        assert said(found.turns[0])[1].model == "small"
        assert found.turns[0].config == {"model": "small"}

    def test_all_of_a_response_is_taken_where_it_is_told(self, tmp_path: Path) -> None:
        told = event(
            "assistant.usage", "z1", {"model": "large", "inputTokens": 50, "outputTokens": 10, "cacheReadTokens": 20}
        )
        end = shutdown("d1", inputTokens=50, outputTokens=10, cacheReadTokens=20)
        assert self.tokens(tmp_path, assistant("a1", "1"), told, end) == [
            ("large", Tokens(input=30, output=10, cached=20))
        ]

    def test_the_ledger_counts_all_of_it(self, tmp_path: Path) -> None:
        path = write(
            tmp_path, *chain(*dialogue(), shutdown("d1", inputTokens=100, outputTokens=35, cacheReadTokens=40))
        )
        with weft.open(tmp_path / "ledger.db") as ledger:
            ImportRun(ledger, [COPILOT], FixedClock(10**13)).run([path])
            (row,) = ledger.usage.report(by="model").rows
        assert (row.key, row.input, row.output, row.cached) == ("large", 60, 35, 40)


class TestCalls:
    def one(self, folder: Path, name: str, arguments: Any, **outcome: Any) -> Any:
        asked = assistant("a1", "", request("c1", name, arguments))
        (turn,) = turns_of(
            folder, user("u1", "Do."), asked, begun("b1", "c1", name, arguments), ended("e1", "c1", **outcome)
        )
        (found,) = called(turn)
        return found

    @pytest.mark.parametrize(
        ("code", "status"),
        [("failure", ToolCallStatus.ERROR), ("timeout", ToolCallStatus.TIMEOUT), ("denied", ToolCallStatus.CANCELED)],
    )
    def test_failures(self, tmp_path: Path, code: str, status: ToolCallStatus) -> None:
        found = self.one(
            tmp_path, "view", {"path": "a"}, success=False, result=None, error={"message": "No.", "code": code}
        )
        assert (found.error, found.status, found.files) == ("No.", status, ())

    def test_arguments_written_as_json_are_what_they_say(self, tmp_path: Path) -> None:
        assert self.one(tmp_path, "bash", '{"command": "ls"}').arguments == {"command": "ls"}

    @pytest.mark.parametrize(
        ("name", "arguments", "notes"),
        [
            ("view", {"path": "a", "view_range": [3, 9]},
             [FileNote(kind=FileKind.READ, path="a", line_start=3, line_end=9)]),
            ("view", {"path": "a", "view_range": [3, -1]}, [FileNote(kind=FileKind.READ, path="a", line_start=3)]),
            ("create", {"path": "a"}, [FileNote(kind=FileKind.WRITTEN, path="a")]),
            ("str_replace_editor", {"command": "create", "path": "a"}, [FileNote(kind=FileKind.WRITTEN, path="a")]),
            ("rg", {"pattern": "x", "paths": "src"}, [FileNote(kind=FileKind.REFERENCED, path="src")]),
            ("apply_patch", "*** Begin Patch\n*** Add File: a\n+x\n*** Update File: b\n",
             [FileNote(kind=FileKind.WRITTEN, path="a"), FileNote(kind=FileKind.WRITTEN, path="b")]),
        ],
    )  # fmt: skip
    def test_files(self, tmp_path: Path, name: str, arguments: Any, notes: list[FileNote]) -> None:
        assert list(self.one(tmp_path, name, arguments).files) == notes

    def test_a_shown_change_tells_the_lines(self, tmp_path: Path) -> None:
        shown = {"content": "updated", "detailedContent": "diff\n@@ -1,2 +4,3 @@\n+x"}
        found = self.one(tmp_path, "edit", {"path": "a"}, result=shown)
        assert found.files == (FileNote(kind=FileKind.WRITTEN, path="a", line_start=4, line_end=6),)
        assert found.detail["shown"].startswith("diff")

    def test_one_that_was_begun_by_a_person_stands_in_the_turn(self, tmp_path: Path) -> None:
        (turn,) = turns_of(tmp_path, user("u1", "Do."), begun("b1", "c1"), ended("e1", "c1"))
        assert [call.id for call in called(turn)] == ["c1"]

    def test_one_without_an_end_has_no_outcome(self, tmp_path: Path) -> None:
        (turn,) = turns_of(tmp_path, user("u1", "Do."), assistant("a1", "", request("c1")), begun("b1", "c1"))
        assert [call.status for call in called(turn)] == [None]
        assert not turn.closed


def test_a_compaction_is_a_turn_and_the_answer_goes_on_behind_it(tmp_path: Path) -> None:
    told = {"success": True, "summaryContent": "All of it.", "preCompactionTokens": 900, "postCompactionTokens": 90,
            "compactionTokensUsed": {"model": "small", "inputTokens": 5, "outputTokens": 2, "duration": 7}}  # fmt: skip
    turns = turns_of(
        tmp_path, user("u1", "Go.", "i1"), assistant("a1", "", request("c1")),
        event("session.compaction_complete", "k1", told), assistant("a2", "Done."), user("u2", "More.", "i2"),
    )  # fmt: skip
    assert shape(turns) == [
        (id_of("u1"), None), (f"{id_of('u1')}#{id_of('k1')}", 0), (f"{id_of('u1')}#{id_of('a2')}", 1), (id_of("u2"), 2),
    ]  # fmt: skip
    compaction = turns[1].compaction
    assert compaction is not None
    assert (compaction.summary, compaction.model, compaction.tokens_before, compaction.duration_ms) == (
        "All of it.",
        "small",
        900,
        7,
    )
    assert said(turns[1])[0].tokens == Tokens(input=5, output=2)


def test_a_compaction_that_failed_is_none(tmp_path: Path) -> None:
    (turn,) = turns_of(
        tmp_path,
        user("u1", "Go."),
        event("session.compaction_complete", "k1", {"success": False, "error": "No."}),
        assistant("a1", "1"),
    )
    assert turn.metadata == {"failed_compactions": [{"error": "No."}]}


def test_an_abort_interrupts_and_an_error_fails_a_turn(tmp_path: Path) -> None:
    stopped = turns_of(tmp_path, user("u1", "Go."), event("abort", "z1", {"reason": "user_initiated"}))
    assert [(turn.interrupted, turn.error, turn.closed) for turn in stopped] == [(True, None, True)]
    failed = turns_of(tmp_path, user("u1", "Go."), event("session.error", "z1", {"message": "Quota."}))
    assert [(turn.interrupted, turn.error) for turn in failed] == [(False, "Quota.")]


def test_thinking_that_is_told_twice_is_kept_once(tmp_path: Path) -> None:
    thought = event("assistant.reasoning", "z1", {"reasoningId": "r", "content": "Hm."})
    (turn,) = turns_of(tmp_path, user("u1", "Go."), thought, assistant("a1", "1", reasoningText="Hm."))
    assert texts_of(turn) == ["Go.", "Hm.", "1"]


def test_attachments_are_noted(tmp_path: Path) -> None:
    carried = [
        {"type": "file", "path": "/shop/a.py"},
        {"type": "selection", "filePath": "/shop/b.py", "selection": {"start": {"line": 2}, "end": {"line": 4}}},
        {"type": "blob", "mimeType": "image/png", "data": "AAAA"},
    ]
    (turn,) = turns_of(tmp_path, user("u1", "See.", attachments=carried))
    (prompt,) = said(turn)
    assert prompt.parts[1:] == (ImagePart("data:image/png;base64,AAAA"),)
    assert [(note.path, note.line_start, note.line_end) for note in prompt.files] == [
        ("/shop/a.py", None, None),
        ("/shop/b.py", 3, 5),
    ]


def test_permissions_and_places_are_told_with_their_turns(tmp_path: Path) -> None:
    moved = event("session.context_changed", "z1", {"cwd": "/shop/b", "branch": "fix"})
    asked = event(
        "permission.requested", "z2", {"requestId": "r", "permissionRequest": {"kind": "shell", "toolCallId": "c"}}
    )
    given = event("permission.completed", "z3", {"requestId": "r", "result": {"kind": "approved"}})
    turns = turns_of(tmp_path, user("u1", "One", "i1"), asked, given, moved, user("u2", "Two", "i2"))
    assert turns[0].permissions == {"asked": [{"call": "c", "kind": "shell", "result": "approved"}]}
    assert [(turn.workspace, turn.git_branch) for turn in turns] == [("/shop", "main"), ("/shop/b", "fix")]


def test_what_a_session_is_called_lies_beside_it(tmp_path: Path) -> None:
    path = write(tmp_path, *dialogue())
    path.with_name("workspace.yaml").write_text("id: x\ncwd: /shop\nsummary: 'Sell: books'\n")
    assert read_one(COPILOT, path).session.title == "Sell: books"


def test_a_turn_is_closed_when_its_last_response_asks_for_nothing(tmp_path: Path) -> None:
    asks = [user("u1", "Go."), assistant("a1", "", request("c1")), turn_end("t1")]
    assert [turn.closed for turn in turns_of(tmp_path, *asks)] == [False]
    assert [turn.closed for turn in turns_of(tmp_path, *asks, assistant("a2", "Done."), turn_end("t2"))] == [True]


def test_every_kind_of_event_is_mapped_kept_or_unknown(tmp_path: Path) -> None:
    _, report = read(COPILOT, write(tmp_path, *everything()))
    assert report.unknown == {"session.hologram": 1}
    assert report.kept == {"session.hologram": 1, "hook.start": 1, "assistant.turn_start": 1}


def test_a_file_without_a_beginning_is_named_after_its_folder(tmp_path: Path) -> None:
    assert read_one(COPILOT, write(tmp_path, *dialogue()[1:])).session.id == SESSION
    assert read_one(COPILOT, write(tmp_path, *dialogue()[1:], name="flat.jsonl")).session.id == "flat"


def test_the_usual_place_can_be_moved(tmp_path: Path) -> None:
    assert [place.path for place in COPILOT.places(tmp_path, {})] == [tmp_path / ".copilot/session-state"]
    assert [place.path for place in COPILOT.places(tmp_path, {"COPILOT_HOME": "/c"})] == [Path("/c/session-state")]
