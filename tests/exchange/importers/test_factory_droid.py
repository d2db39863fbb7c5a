"""Sessions of Factory's droid as turns, and the traps of its format."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.corpus import CORPUS, aged, needs_corpus, opened, take
from tests.exchange.fixtures.factory_droid.sessions import (
    SESSION,
    dialogue,
    ended,
    message,
    read,
    read_lines,
    result,
    start,
    text,
    turns,
    use,
    write,
)
from tests.exchange.mutating import changed, mutations
from tests.exchange.reading import called, said, texts
from weft.exchange.importers.factory_droid import FactoryDroid
from weft.exchange.importers.testing import as_source
from weft.kernel.enums import AgentRole, FileKind, LinkReason, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, ReasoningPart, TextPart


class TestFactoryDroid(OwnImporterContract):
    importer = FactoryDroid()
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        return [write(folder, dialogue(), {"model": "large"})]


def test_a_prompt_and_all_up_to_the_next_one_are_a_turn(tmp_path: Path) -> None:
    first, second = read_lines(tmp_path, *dialogue()).turns
    assert (first.key, first.names, second.key, second.parent) == ("m1", ("c1", "m1", "m2", "m3", "m4"), "m5", 0)
    assert [texts(each) for each in said(first)][1:] == [["What is this?"], ["Hm.", "Looking."], ["It sets x."]]
    assert (first.workspace, first.closed, first.started is not None) == ("/shop", True, True)
    answer = said(first)[2]
    assert (answer.model, answer.provider, answer.native) == ("large", "acme", "m2")
    assert answer.parts == (ReasoningPart("Hm."), TextPart("Looking."))
    assert answer.metadata == {"effort": "high"}


def test_a_call_has_the_outcome_that_names_it(tmp_path: Path) -> None:
    (call,) = called(read_lines(tmp_path, *dialogue()).turns[0])
    assert (call.id, call.name, call.result, call.status) == ("t1", "Read", "x = 1", ToolCallStatus.OK)
    assert call.files == (FileNote(kind=FileKind.READ, path="/shop/a.py", line_start=5, line_end=14),)


def test_parallel_calls_and_blocks_of_text_in_their_outcomes(tmp_path: Path) -> None:
    asked = message(
        "m2",
        "assistant",
        [use("a", "Create", file_path="n.py"), use("b", "Execute", command="x"), use("c", "LS", directory_path="/d")],
    )
    told = message("m3", "user", [result("b", [text("no"), text("way")], is_error=True), result("a", "ok")])
    (turn,) = turns(tmp_path, message("m1", "user", "Go."), asked, told)
    create, execute, listed = called(turn)
    assert (create.status, create.files[0].kind) == (ToolCallStatus.OK, FileKind.WRITTEN)
    assert (execute.status, execute.error, execute.files) == (ToolCallStatus.ERROR, "no\nway", ())
    assert listed.status is None


def test_a_refused_command_is_cancelled(tmp_path: Path) -> None:
    told = message("m3", "user", [result("b", "Tool execution cancelled by user", is_error=True)])
    (turn,) = turns(tmp_path, message("m1", "user", "Go."), message("m2", "assistant", [use("b", "Execute")]), told)
    assert called(turn)[0].status is ToolCallStatus.CANCELED


def test_user_roles_are_not_all_prompts(tmp_path: Path) -> None:
    """Context, notices, hooks and outcomes of tools all have the role of a user."""
    found = turns(
        tmp_path,
        message("c1", "user", [text("rules")], visibility="llm_only"),
        message("m1", "user", "human"),
        message("m2", "assistant", [use("t", "Execute", command="x")]),
        message("c2", "user", [text("careful")], visibility="llm_only"),
        message("m3", "user", [result("t", "done")]),
        message("n1", "user", "for your eyes", visibility="user_only"),
        message("h1", "user", [], hookEventName="Stop", hookStatus="completed"),
        message("m4", "assistant", "So."),
        message("m5", "user", "nightly", userMessageSource="automation"),
    )
    first, second = found
    assert [(each.native, each.source) for each in said(first)] == [
        ("c1", MessageSource.EVENT), ("m1", MessageSource.HUMAN), ("m2", None), ("c2", MessageSource.EVENT),
        ("n1", MessageSource.EVENT), ("h1", MessageSource.EVENT), ("m4", None),
    ]  # fmt: skip
    assert said(first)[5].metadata == {"hook": {"hookEventName": "Stop", "hookStatus": "completed"}}
    assert said(second)[0].source is MessageSource.TRIGGER


def test_reminders_inside_a_prompt_stand_beside_it(tmp_path: Path) -> None:
    content = [text("<system-reminder>\nUse tabs.\n</system-reminder>"), text("Fix it.")]
    (turn,) = turns(tmp_path, message("m1", "user", content))
    assert said(turn)[0].parts == (TextPart("Fix it."),)
    assert said(turn)[0].context == {"reminders": ["<system-reminder>\nUse tabs.\n</system-reminder>"]}


def test_a_prompt_that_grew_from_an_earlier_message_is_a_branch(tmp_path: Path) -> None:
    found = read_lines(
        tmp_path, *dialogue(), message("m7", "user", "Or?", 20, "m4"), message("m8", "assistant", "Or.", 21, "m7")
    ).turns
    assert [turn.parent for turn in found] == [None, 0, 0]


def test_a_summary_is_a_compaction_after_its_turn(tmp_path: Path) -> None:
    state = {"type": "compaction_state", "id": "k1", "summaryText": "So far.", "summaryTokens": 12, "removedCount": 5,
             "anchorMessage": {"id": "m4", "index": 3}}  # fmt: skip
    lines = dialogue()
    lines.insert(9, state)
    found = read_lines(tmp_path, *lines, message("m7", "user", "On.", 20, "m6"))
    assert [turn.key for turn in found.turns] == ["m1", "m5", "k1", "m7"]
    compaction = found.turns[2].compaction
    assert compaction is not None
    assert (compaction.summary, compaction.through, compaction.tokens_after) == ("So far.", 0, 12)
    assert found.turns[3].parent == 2


def test_an_older_summary_is_a_title_and_a_body(tmp_path: Path) -> None:
    found = turns(
        tmp_path, message("m1", "user", "?"), {"type": "compaction_state", "summary": {"title": "T", "body": "B"}}
    )
    assert found[1].compaction is not None
    assert found[1].compaction.summary == "B"


def test_the_end_of_a_turn_is_told(tmp_path: Path) -> None:
    asked = message("m1", "user", "?")
    assert [turn.closed for turn in turns(tmp_path, asked)] == [False]
    (done,) = turns(tmp_path, asked, ended("m1", resultKind="structured", result={"done": True}))
    assert (done.closed, done.error, done.metadata) == (True, None, {"kind": "structured", "result": {"done": True}})
    (failed,) = turns(tmp_path, asked, ended("m1", "error"))
    assert failed.error == "error"
    (stopped,) = turns(tmp_path, asked, ended("m1", "interrupted"))
    assert (stopped.interrupted, stopped.error) == (True, None)


def test_a_subagent_names_the_call_that_started_it(tmp_path: Path) -> None:
    begun = start(callingSessionId="parent", callingToolUseId="t9", title="Explore")
    found = read_lines(tmp_path, begun, message("m1", "user", "Do."), message("m2", "assistant", "Done."))
    assert (found.session.parent, found.session.spawn_call, found.session.task) == ("parent", "t9", "Explore")
    assert (found.turns[0].role, said(found.turns[0])[0].source) == (AgentRole.WORKER, MessageSource.AGENT)


def test_a_fork_is_linked_unless_it_holds_what_it_grew_from(tmp_path: Path) -> None:
    begun = start(parent="other", forkedAtMessageId="p9")
    link = read_lines(tmp_path, begun, message("m1", "user", "Or?")).turns[0].link
    assert link is not None
    assert (link.to, link.session, link.why) == ("p9", "other", LinkReason.FORK)
    copied = read_lines(tmp_path, begun, message("p9", "user", "?"), message("m1", "user", "Or?"))
    assert [turn.link for turn in copied.turns] == [None, None]


def test_settings_beside_a_session_tell_its_model_and_its_cost_as_a_whole(tmp_path: Path) -> None:
    """Droid counts tokens for a session, never for a response: they are told with it and no message claims them."""
    usage = {"inputTokens": 4, "outputTokens": 2, "cacheReadTokens": 9}
    settings = {"model": "tiny", "providerLock": "acme", "tokenUsage": usage, "autonomyMode": "auto-low",
                "interactionMode": "spec", "archivedAt": "2026-05-28T20:00:00Z"}  # fmt: skip
    found = read_lines(
        tmp_path, start(), message("m1", "user", "?"), message("m2", "assistant", "!"), settings=settings
    )
    assert found.session.metadata["settings"]["tokenUsage"] == usage
    assert found.session.archived
    (turn,) = found.turns
    assert (said(turn)[1].model, said(turn)[1].provider, said(turn)[1].tokens) == ("tiny", "acme", None)
    assert (turn.toolset, turn.permissions) == ("spec", {"autonomy": "auto-low"})


def test_settings_are_a_part_of_their_session(tmp_path: Path) -> None:
    path = write(tmp_path, dialogue(), {"model": "m"})
    beside = path.with_name(f"{SESSION}.settings.json")
    assert FactoryDroid().is_part(as_source(beside))
    path.unlink()
    assert not FactoryDroid().is_part(as_source(beside))


def test_images_and_documents_are_attached(tmp_path: Path) -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "AQID", "media_type": "image/png"}}
    paper = {
        "type": "document",
        "source": {"media_type": "application/pdf", "data": "xx", "name": "p.pdf", "path": "/d/p.pdf"},
    }
    (turn,) = turns(tmp_path, message("m1", "user", [text("See"), image, paper]))
    prompt = said(turn)[0]
    assert prompt.parts == (TextPart("See"), ImagePart("data:image/png;base64,AQID"))
    assert prompt.metadata == {"documents": [{"name": "p.pdf", "type": "application/pdf", "path": "/d/p.pdf"}]}
    assert prompt.files == (FileNote(kind=FileKind.ATTACHED, path="/d/p.pdf"),)


def test_signatures_that_change_make_no_other_turn(tmp_path: Path) -> None:
    def thought(signature: str) -> tuple[bytes, ...]:
        block = {"type": "thinking", "thinking": "t", "signature": signature}
        return turns(tmp_path, message("m1", "user", "?"), message("m2", "assistant", [block]))[0].records

    assert thought("a") == thought("b")


def test_unknown_records_roles_and_blocks_are_kept_and_counted(tmp_path: Path) -> None:
    lines = [
        *dialogue(),
        {"type": "hologram"},
        message("z", "oracle", "?"),
        message("m9", "assistant", [{"type": "aura", "x": 1}]),
    ]
    (found,), report = read(write(tmp_path, lines))
    assert report.unknown == {"hologram": 1, "message.oracle": 1}
    assert said(found.turns[1])[-1].metadata == {"blocks": [{"type": "aura", "x": 1}]}


def test_glued_cut_and_foreign_lines_harm_no_others(tmp_path: Path) -> None:
    path = write(tmp_path, dialogue())
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0] + lines[1], "[1]", *lines[2:]])[:-9])
    (found,), report = read(path)
    assert (report.damaged, report.open_tail, len(found.turns)) == (1, True, 2)
    assert [turn.closed for turn in found.turns] == [True, False]


LINES = dialogue()


@given(mutations(LINES, 0))
def test_mutated_lines_are_never_fatal_and_always_counted(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    with TemporaryDirectory() as folder:
        read(write(Path(folder), changed(LINES, changes)))


@given(st.integers(0, 1500), st.binary(max_size=5))
def test_files_with_bytes_put_in_are_never_fatal(at: int, junk: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = write(Path(folder), LINES)
        data = path.read_bytes()
        path.write_bytes(data[:at] + junk + data[at:])
        read(path)


@pytest.mark.parametrize(
    "line", ['{"type":"session_start"}', '{"type":"session_start","session_id":"x"}', '{"type":"message"}']
)
def test_other_tools_begin_sessions_too(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(line + "\n")
    assert not FactoryDroid().recognises(as_source(path))


@needs_corpus
def test_files_of_other_tools_are_left_to_their_importers() -> None:
    for path in sorted(path for path in CORPUS.rglob("*") if path.is_file()):
        assert not FactoryDroid().recognises(as_source(path)), path
        assert not FactoryDroid().is_part(as_source(path)), path


def test_places_are_where_droid_keeps_them(tmp_path: Path) -> None:
    assert [str(each.path.relative_to(tmp_path)) for each in FactoryDroid().places(tmp_path, {})] == [
        ".factory/sessions",
        ".factory/projects",
    ]
    assert str(FactoryDroid().places(tmp_path, {"FACTORY_DIR": "/f"})[0].path) == "/f/sessions"


def test_digests_are_what_they_were(tmp_path: Path) -> None:
    """There is no corpus of this origin, so a session made by hand is pinned: another digest needs another mapping."""
    with opened(tmp_path / "ledger.db") as ledger:
        take(ledger, aged(write(tmp_path / "s", dialogue())))
        digests = sorted(turn.digest for turn in ledger.log())
        assert list(ledger.verify()) == []
    assert FactoryDroid().mapping == 1
    assert sha256("\n".join(digests).encode()).hexdigest() == PINNED


PINNED = "f206e7c35ac227f4be216f46739e189dce742da0aecaff31ee91ea2cd79cbafb"
