"""Trajectories of the interchange format: steps, subagents, continuations."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given

import weft
from tests.exchange import independent_usage
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.fixtures.atif.trajectories import (
    AT_MS,
    METRICS,
    RUN,
    Json,
    call,
    observed,
    step,
    trajectory,
    worker,
    write,
)
from tests.exchange.fuzzing import as_json, either, torn, written
from tests.exchange.reading import called, read, said, spoken, words
from weft.exchange.importers.atif import Atif
from weft.exchange.importers.port import NativeTurn, Tokens
from weft.exchange.importers.testing import as_source
from weft.kernel.enums import AgentRole, FileKind, LinkReason, MessageRole, ToolCallStatus
from weft.ledger.model import FileNote

ATIF = Atif()


def turns_of(folder: Path, document: Json) -> list[NativeTurn]:
    return read(ATIF, write(folder, document))[0][0].turns


class TestContract(OwnImporterContract):
    importer = ATIF
    open = staticmethod(weft.open)
    rewrites_document = True

    def samples(self, folder: Path) -> list[Path]:
        lines = folder / "many.jsonl"
        others = [trajectory(session_id=f"{RUN[:-1]}{number}") for number in (2, 3)]
        lines.write_text("".join(json.dumps(each) + "\n" for each in others))
        return [write(folder, trajectory()), lines]


def test_a_user_step_begins_a_turn_and_a_summary_is_one(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, trajectory())
    assert [turn.parent for turn in turns] == [None, 0, 1, 2]
    assert spoken(turns[0]) == [
        ("system", ["You are a helper."]),
        ("user", ["Look."]),
        ("assistant", [["Hm."], "I look."]),
        ("system", ["A terminal."]),
    ]
    assert turns[1].compaction is not None
    assert turns[1].compaction.summary == "Summarised."
    assert spoken(turns[2]) == [("assistant", ["Done."])]
    assert spoken(turns[3]) == [("user", ["Thanks."]), ("assistant", [])]
    assert turns[0].started == AT_MS
    assert turns[0].tools == ("bash",)


def test_results_belong_to_the_calls_they_name(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, trajectory())
    first, second = called(turns[0])
    assert (first.id, first.arguments, first.result) == ("c1", {"command": "ls"}, "a.py")
    assert (second.id, second.result, second.status) == ("c2", "Nothing.", ToolCallStatus.OK)
    (only,) = called(turns[3])
    assert only.result == "ok"  # there is no other that it could be of


def test_what_was_cached_lies_inside_the_prompt(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, trajectory())
    answers = [message for turn in turns for message in said(turn) if message.role is MessageRole.ASSISTANT]
    assert [message.tokens for message in answers] == [
        Tokens(input=40, output=10, cached=60),
        Tokens(input=40, output=10, cached=60, reasoning=3),
        None,
    ]
    assert [message.model for message in answers] == ["large", "small", None]
    assert answers[0].metadata["cost"] == 0.5


def test_totals_count_where_no_step_tells_its_own(tmp_path: Path) -> None:
    document = trajectory(steps=[step(1, "user", "Go."), step(2, "agent", "Done.")])
    (turn,) = turns_of(tmp_path, document)
    assert said(turn)[1].tokens == Tokens(input=200, output=20)
    assert said(turn)[1].metadata["tokens_of"] == "the whole run"


def test_a_subagent_inside_is_a_session_of_its_own(tmp_path: Path) -> None:
    (main, sub), _ = read(ATIF, write(tmp_path, trajectory()))
    assert main.session.id == RUN
    assert (sub.session.id, sub.session.parent, sub.session.spawn_call) == (f"{RUN}/worker-1", RUN, "c2")
    assert called(main.turns[0])[1].spawned == sub.session.id
    assert sub.turns[0].role is AgentRole.WORKER
    assert (main.session.workspace, main.session.git_branch) == ("/shop", "main")
    with weft.open(tmp_path / "ledger.db") as ledger:
        TestContract().import_files(ledger, write(tmp_path, trajectory()))
        found = {session.agent or "": session for session in ledger.sessions()}
        assert found["worker"].parent_session == found["harbor-agent"].label
        assert list(ledger.verify()) == []


def test_a_subagent_in_a_file_beside_is_found_by_its_path(tmp_path: Path) -> None:
    write(tmp_path, {**worker(), "trajectory_id": None, "session_id": "0f0e0d0c-sub-1111-8000-0001"}, "sub/worker.json")
    ref = {"trajectory_path": "sub/worker.json"}
    asked = step(2, "agent", "", tool_calls=[call("c1")],
                 observation=observed({"source_call_id": "c1", "subagent_trajectory_ref": [ref]}))  # fmt: skip
    (turn,) = turns_of(tmp_path, trajectory(steps=[step(1, "user", "Go."), asked]))
    assert called(turn)[0].spawned == "0f0e0d0c-sub-1111-8000-0001"
    escaping = {"trajectory_path": "../../../etc/passwd", "session_id": "other"}
    asked["observation"] = observed({"source_call_id": "c1", "subagent_trajectory_ref": [escaping]})
    (turn,) = turns_of(tmp_path, trajectory(steps=[step(1, "user", "Go."), asked]))
    assert called(turn)[0].spawned == "other"


def test_a_trajectory_that_goes_on_in_another_file_is_linked(tmp_path: Path) -> None:
    write(tmp_path, trajectory(continued_trajectory_ref="trajectory.cont-1.json"))
    copied = step(1, "agent", "Done.", is_copied_context=True, metrics=METRICS)
    document = trajectory(session_id=f"{RUN}-cont-1", steps=[copied, step(2, "user", "On."), step(3, "agent", "Yes.")])
    (later, *_), _ = read(ATIF, write(tmp_path, document, "trajectory.cont-1.json"))
    link = later.turns[0].link
    assert link is not None
    assert (link.session, link.why) == (RUN, LinkReason.CONTINUATION)


def test_copied_context_is_not_the_run(tmp_path: Path) -> None:
    copied = step(1, "agent", "Before.", is_copied_context=True, metrics=METRICS, tool_calls=[call("old")])
    (turn,) = turns_of(tmp_path, trajectory(steps=[copied, step(2, "user", "On."), step(3, "agent", "Yes.")]))
    first = said(turn)[0]
    assert (first.role, first.tokens, first.metadata["source"]) == (MessageRole.SYSTEM, None, "agent")
    assert called(turn) == []


def test_names_that_every_run_has_are_told_apart(tmp_path: Path) -> None:
    one = read(ATIF, write(tmp_path, trajectory(session_id="toy")))[0][0]
    other = trajectory(session_id="toy")
    other["steps"][1]["message"] = "Another task."
    two = read(ATIF, write(tmp_path, other))[0][0]
    assert one.session.id.startswith("toy@")
    assert one.session.id != two.session.id
    nameless = trajectory()
    del nameless["session_id"]
    assert read(ATIF, write(tmp_path, nameless))[0][0].session.id.startswith("trajectory@")


def test_images_are_files_beside_the_trajectory(tmp_path: Path) -> None:
    prompt = said(turns_of(tmp_path, trajectory())[0])[1]
    assert prompt.files == (FileNote(kind=FileKind.ATTACHED, path="shot.png"),)
    assert words(prompt) == ["Look."]


def test_a_run_without_totals_is_still_open(tmp_path: Path) -> None:
    document = trajectory()
    del document["final_metrics"]
    assert [turn.closed for turn in turns_of(tmp_path, document)] == [True, True, True, False]


def test_unknown_fields_sources_and_subagents_are_kept_and_counted(tmp_path: Path) -> None:
    document = trajectory(novelty=1)
    document["steps"] += [step(8, "oracle", "Beware."), 7]
    document["subagent_trajectories"].append({"agent": {}})
    _, report = read(ATIF, write(tmp_path, document))
    assert report.unknown == {"novelty": 1, "step.oracle": 1}
    assert (report.damaged, report.kept["subagent without id"]) == (1, 1)


def test_a_long_trajectory_is_recognised_by_its_beginning(tmp_path: Path) -> None:
    document = trajectory()
    document["steps"][0]["message"] = "x" * 70_000
    assert ATIF.recognises(as_source(write(tmp_path, document)))
    assert not ATIF.recognises(as_source(write(tmp_path, {"schema_version": "ATIF-v1.7"}, "no.json")))
    assert ATIF.places(tmp_path, {}) == []


def test_usage_equals_an_independent_count(tmp_path: Path) -> None:
    path = write(tmp_path, trajectory())
    expected = independent_usage.atif([path])
    with weft.open(tmp_path / "ledger.db") as ledger:
        TestContract().import_files(ledger, path)
        rows = ledger.usage.report(by="model", origin="atif").rows
    kinds = independent_usage.KINDS
    assert {row.key: {kind: getattr(row, kind) for kind in kinds} for row in rows} == expected


@given(either(trajectory()))
def test_mutated_trajectories_are_never_fatal_and_always_counted(document: Any) -> None:
    with written(as_json(document), "x.json") as path:
        ATIF.recognises(as_source(path))
        read(ATIF, path)


@given(torn(as_json(trajectory())))
def test_torn_trajectories_are_never_fatal_and_always_counted(data: bytes) -> None:
    with written(data, "x.json") as path:
        ATIF.recognises(as_source(path))
        read(ATIF, path)
