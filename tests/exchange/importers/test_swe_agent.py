"""Runs of SWE-agent and mini-swe-agent: turns, calls, tokens, and the traps of the format."""

from pathlib import Path
from typing import Any

from hypothesis import given
from msgspec import UNSET

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.fixtures.swe_agent.runs import (
    PATCH,
    Json,
    acted,
    answered,
    mini,
    mini_with_tools,
    newer_run,
    run,
    step,
    told,
    write,
)
from tests.exchange.fuzzing import as_json, either, torn, written
from tests.exchange.reading import called, read, read_one, said, spoken, words
from weft.exchange.importers.port import NativeTurn, Tokens
from weft.exchange.importers.swe_agent import SweAgent
from weft.exchange.importers.testing import as_source
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, TextPart

SWE = SweAgent()


def turn_of(folder: Path, document: Json, name: str = "shop-7.traj") -> NativeTurn:
    (turn,) = read_one(SWE, write(folder, document, name)).turns
    return turn


class TestContract(OwnImporterContract):
    importer = SWE
    open = staticmethod(weft.open)
    rewrites_document = True

    def samples(self, folder: Path) -> list[Path]:
        return [
            write(folder, mini_with_tools(), "added.traj.json"),
            write(folder, run()),
            write(folder, newer_run(), "newer/shop-7.traj"),
            write(folder, mini(), "mini/shop-7.traj.json"),
        ]


def test_a_run_is_one_turn_however_many_steps_it_has(tmp_path: Path) -> None:
    turn = turn_of(tmp_path, run())
    assert [role for role, _ in spoken(turn)] == ["system", "system", "user", "assistant", "assistant", "assistant"]
    assert [call.arguments for call in called(turn)] == [
        {"command": "open cart.py 3"},
        {"command": "edit 4:5\nx = 1\nend_of_edit"},
        {"command": "submit"},
    ]
    assert (turn.closed, turn.error, turn.workspace, turn.started) == (True, None, "/shop", None)


def test_demonstrations_in_the_history_are_not_the_run(tmp_path: Path) -> None:
    """They are context: no prompt, and their actions no calls."""
    shown = acted("As you see.", "ls", is_demo=True)
    document = run()
    document["history"][2:2] = [shown, told("user", "cart.py", is_demo=True)]
    turn = turn_of(tmp_path, document)
    demos = [message for message in said(turn) if message.metadata and message.metadata.get("is_demo")]
    assert [message.role for message in demos] == [MessageRole.SYSTEM] * 3
    assert [message.metadata["role"] for message in demos] == ["user", "assistant", "user"]
    assert len(called(turn)) == 3
    (prompt,) = [message for message in said(turn) if message.role is MessageRole.USER]
    assert words(prompt) == ["The cart is broken."]


def test_usage_is_told_for_the_whole_run_only(tmp_path: Path) -> None:
    turn = turn_of(tmp_path, run())
    counted = [message for message in said(turn) if message.tokens is not None]
    assert [message.tokens for message in counted] == [Tokens(input=700, output=40)]
    assert counted[0].metadata == {"tokens_of": "the whole run"}
    nothing = run(info={"exit_status": "submitted", "model_stats": {"tokens_sent": 0, "tokens_received": 0}})
    assert all(message.tokens is None for message in said(turn_of(tmp_path, nothing)))


def test_there_are_no_times(tmp_path: Path) -> None:
    turn = turn_of(tmp_path, run())
    assert {message.at for message in said(turn)} == {None}


def test_a_result_is_what_the_model_was_given_and_the_last_one_is_in_its_step(tmp_path: Path) -> None:
    results = [call.result for call in called(turn_of(tmp_path, run()))]
    assert results == [
        "[File: /shop/cart.py]\n(Current directory: /shop)",
        "File updated.\n(Current directory: /shop)",
        PATCH,
    ]


def test_files_that_commands_opened_and_changed(tmp_path: Path) -> None:
    turn = turn_of(tmp_path, run())
    assert [call.files for call in called(turn)] == [
        (FileNote(kind=FileKind.READ, path="cart.py", line_start=3),),
        (FileNote(kind=FileKind.WRITTEN, path="/shop/cart.py", line_start=4, line_end=5),),
        (),
    ]
    assert said(turn)[-1].files == (FileNote(kind=FileKind.WRITTEN, path="shop/cart.py"),)


def test_the_newer_form_has_calls_thinking_model_and_settings(tmp_path: Path) -> None:
    turn = turn_of(tmp_path, newer_run())
    first, second = called(turn)
    assert (first.id, first.name, first.result) == ("call_1", "str_replace_editor", "1 x")
    assert first.files == (FileNote(kind=FileKind.READ, path="/shop/cart.py", line_start=3, line_end=9),)
    assert first.detail == {"state": {"working_dir": "/shop"}, "execution_time": 0.2}
    assert (second.name, second.result) == ("submit", PATCH)
    assert words(said(turn)[2]) == [["Hm."], "I look."]
    assert {message.model for message in said(turn)} == {None, "gpt-4o"}
    assert turn.config == {"model": {"name": "gpt-4o", "temperature": 0.0}}
    assert (turn.version, turn.metadata["problem"]) == ("1.1.0", "shop-7")
    assert turn.metadata["repository"] == {"type": "github", "base_commit": "abc"}


def test_an_attempt_that_had_to_be_repeated_is_a_step_without_a_message(tmp_path: Path) -> None:
    document = run()
    failed = acted("Mend.", "edit 4:5 oops")
    document["trajectory"].insert(1, step(failed, "Your edit has a syntax error."))
    calls = called(turn_of(tmp_path, document))
    assert [call.arguments["command"].split("\n")[0] for call in calls] == [
        "open cart.py 3",
        "edit 4:5 oops",
        "edit 4:5",
        "submit",
    ]
    assert calls[1].result == "Your edit has a syntax error."


def test_an_attempt_without_an_action_is_answered_in_words(tmp_path: Path) -> None:
    document = run()
    silent = {"content": "I think.", "action": ""}
    document["trajectory"].insert(1, step(silent, "Give one command."))
    turn = turn_of(tmp_path, document)
    assert ("user", ["Give one command."]) in spoken(turn)
    assert len(called(turn)) == 3


def test_a_step_with_other_words_than_its_message_is_still_its_step(tmp_path: Path) -> None:
    document = run()
    document["trajectory"][1]["response"] = "Edited by hand."
    assert len(said(turn_of(tmp_path, document))) == 6


def test_the_same_response_twice_is_two_steps(tmp_path: Path) -> None:
    again = acted("Look.", "open cart.py 3")
    document = run()
    document["trajectory"].insert(1, step(again, "[File: /shop/cart.py]"))
    document["history"][5:5] = [again, told("user", "[File: /shop/cart.py] again")]
    calls = called(turn_of(tmp_path, document))
    assert [call.result for call in calls][:2] == [
        "[File: /shop/cart.py]\n(Current directory: /shop)",
        "[File: /shop/cart.py] again",
    ]


def test_a_timeout_is_a_timeout(tmp_path: Path) -> None:
    document = run()
    document["history"][4]["content"] = "\nEXECUTION TIMED OUT\n(Current directory: /shop)"
    assert called(turn_of(tmp_path, document))[0].status is ToolCallStatus.TIMEOUT


def test_a_run_without_an_exit_status_is_open_and_one_that_did_not_submit_failed(tmp_path: Path) -> None:
    assert not turn_of(tmp_path, run(info={})).closed
    assert turn_of(tmp_path, run(info={"exit_status": "exit_cost"})).error == "exit_cost"
    assert turn_of(tmp_path, run(info={"exit_status": "submitted (exit_cost)"})).error is None


def test_several_attempts_are_turns_beside_each_other_and_the_chosen_one_is_last(tmp_path: Path) -> None:
    first, second = run(), newer_run()
    document = {
        "attempts": [first, second],
        "trajectory": first["trajectory"],
        "history": first["history"],
        "info": {"best_attempt_idx": 0, **first["info"]},
    }
    found, report = read(SWE, write(tmp_path, document))
    assert [turn.parent for turn in found[0].turns] == [None, None]
    assert [len(called(turn)) for turn in found[0].turns] == [2, 3]
    assert report.kept["trajectory.repeated"] == 3


def test_runs_of_one_task_in_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    other = run()
    other["history"][3]["content"] = other["trajectory"][0]["response"] = "Another way."
    paths = [write(tmp_path, run(), "a/trajs/shop-7.traj"), write(tmp_path, other, "b/trajs/shop-7.traj")]
    first, second = (read_one(SWE, path) for path in paths)
    assert first.session.id != second.session.id
    assert first.turns[0].key != second.turns[0].key


def test_a_run_that_grows_keeps_its_name(tmp_path: Path) -> None:
    whole = run()
    begun = run(trajectory=whole["trajectory"][:1], history=whole["history"][:5], info={})
    first = read_one(SWE, write(tmp_path, begun))
    second = read_one(SWE, write(tmp_path, whole))
    assert (first.session.id, first.turns[0].key) == (second.session.id, second.turns[0].key)
    assert not first.turns[0].closed


def test_mini_tells_every_response_with_its_cost(tmp_path: Path) -> None:
    turn = turn_of(tmp_path, mini(), "shop-7.traj.json")
    answers = [message for message in said(turn) if message.role is MessageRole.ASSISTANT]
    assert [message.native for message in answers] == ["gen-1", "gen-2", "gen-3"]
    assert {message.tokens for message in answers} == {Tokens(input=40, output=10, cached=60, reasoning=4)}
    assert words(answers[0])[0] == ["Hm."]
    assert (turn.started, turn.ended) == (1700000001000, 1700000003000)


def test_mini_commands_are_fences_and_their_outcomes_the_users_words(tmp_path: Path) -> None:
    turn = turn_of(tmp_path, mini(), "shop-7.traj.json")
    first, last = called(turn)
    assert (first.name, first.arguments) == ("bash", {"command": "cat cart.py"})
    assert (first.detail, first.status) == ({"returncode": 1}, ToolCallStatus.OK)
    assert last.result == PATCH
    prompts = [message for message in said(turn) if message.role is MessageRole.USER]
    assert [(words(message), message.source) for message in prompts] == [
        (["The cart is broken."], None),
        (["Please give exactly one command."], MessageSource.EVENT),
    ]


def test_mini_settings_are_told_without_keys(tmp_path: Path) -> None:
    turn = turn_of(tmp_path, mini(), "shop-7.traj.json")
    assert turn.config == {"model": {"model_name": "large", "model_kwargs": {"temperature": 0}}}
    assert (turn.workspace, turn.version) == ("/shop", "1.15.0")


def test_two_fences_are_no_command(tmp_path: Path) -> None:
    document = mini(answered("```bash\na\n```\n```bash\nb\n```", 9), {"role": "user", "content": "One, please."})
    assert len(called(turn_of(tmp_path, document, "x.traj.json"))) == 2


def test_mini_version_two_has_calls_and_a_task_that_a_person_added(tmp_path: Path) -> None:
    first, second = read_one(SWE, write(tmp_path, mini_with_tools(), "x.traj.json")).turns
    assert [(call.id, call.result, call.detail["returncode"]) for call in called(first)] == [
        ("c1", "cart.py", 0),
        ("c2", "nothing", 1),
    ]
    assert (called(first)[0].at, called(first)[0].done) == (1700000001500, 1700000003000)
    assert (second.parent, second.error) == (0, "LimitsExceeded")
    assert said(second)[0].source is MessageSource.HUMAN
    assert words(said(second)[1]) == [["Hm."], "On it."]
    assert said(second)[1].tokens == Tokens(input=5, output=3, cached=4)
    assert [(call.id, call.arguments, call.result) for call in called(second)] == [("c3", {"command": "pwd"}, "/shop")]


def test_unknown_sections_and_roles_are_kept_and_counted(tmp_path: Path) -> None:
    document = mini({"role": "oracle", "content": "Beware."}, novelty=1)
    _, report = read(SWE, write(tmp_path, document, "x.traj.json"))
    assert report.unknown == {"novelty": 1, "message.oracle": 1}
    document = run(novelty=1)
    document["history"].append(told("oracle", "Beware."))
    document["trajectory"].append(7)
    _, report = read(SWE, write(tmp_path, document))
    assert (report.unknown, report.damaged) == ({"novelty": 1, "history.oracle": 1}, 1)


def test_a_call_that_nothing_answers_has_no_outcome(tmp_path: Path) -> None:
    document = mini()
    del document["messages"][-1]
    assert called(turn_of(tmp_path, document, "x.traj.json"))[-1].result is UNSET


def test_a_large_run_is_recognised_by_its_beginning_and_its_end(tmp_path: Path) -> None:
    large = mini()
    large["info"] = {"config": {"agent": {"system_template": "x" * 70_000}}}
    assert SWE.recognises(as_source(write(tmp_path, large, "a.json")))
    long = run()
    long["trajectory"][0]["observation"] = "x" * 70_000
    assert SWE.recognises(as_source(write(tmp_path, long, "b.json")))


def test_a_run_cut_in_the_middle_gives_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "cut.traj"
    path.write_bytes(as_json(run())[:-600])
    (found,), report = read(SWE, path)
    assert report.damaged == 1
    assert len(called(found.turns[0])) >= 2


def test_letters_that_no_encoding_has_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "odd.traj"
    path.write_bytes(as_json(run()).replace(b"The cart is broken.", b"The \xff cart."))
    (found,), _ = read(SWE, path)
    assert said(found.turns[0])[2].parts == (TextPart("The \udcff cart."),)


@given(either(run(), newer_run(), mini(), mini_with_tools()))
def test_mutated_runs_are_never_fatal_and_always_counted(document: Any) -> None:
    with written(as_json(document), "x.traj") as path:
        read(SWE, path)
        SWE.recognises(as_source(path))


@given(torn(as_json(run())) | torn(as_json(mini_with_tools())))
def test_torn_runs_are_never_fatal_and_always_counted(data: bytes) -> None:
    with written(data, "x.traj") as path:
        read(SWE, path)
        SWE.recognises(as_source(path))
