"""Sessions of Kiro as turns, in each of its stores, and the traps of its formats."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest
from hypothesis import given

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.corpus import CORPUS, aged, needs_corpus, opened, take
from tests.exchange.fixtures.kiro.sessions import (
    AT,
    SESSION,
    asked,
    beside,
    block,
    conversation,
    dialogue,
    entry,
    event,
    events,
    gave,
    line,
    log,
    read,
    read_one,
    response,
    tool_use,
    use,
    write_database,
    write_editor,
    write_events,
    write_lines,
    write_log,
)
from tests.exchange.mutating import changed, mutations
from tests.exchange.reading import called, said, texts
from weft.exchange.importers.kiro import Kiro
from weft.exchange.importers.port import Tokens
from weft.exchange.importers.testing import as_source
from weft.kernel.enums import FileKind, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, ReasoningPart, TextPart


class TestKiroLogs(OwnImporterContract):
    importer = Kiro()
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        return [write_log(folder, log()), write_events(folder, events())]


class TestKiroDocuments(OwnImporterContract):
    importer = Kiro()
    open = staticmethod(weft.open)
    rewrites_document = True

    def samples(self, folder: Path) -> list[Path]:
        saved = folder / "saved.json"
        saved.write_text(json.dumps(conversation(*dialogue(), id="saved")))
        said = (
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
        )
        return [write_database(folder, conversation(*dialogue())), saved, write_editor(folder, *said)]


# The first engine: conversations of its database.


def test_a_conversation_is_prompts_and_all_up_to_the_next(tmp_path: Path) -> None:
    found = read_one(write_database(tmp_path, conversation(*dialogue())))
    first, second = found.turns
    assert (found.session.id, found.session.workspace, found.session.created) == (SESSION, "/shop", AT)
    assert [texts(each) for each in said(first)] == [["What is this?"], ["Looking."], ["It sets x."]]
    assert (said(first)[1].native, said(first)[1].model) == ("m1", "large")
    assert (first.started, first.workspace, second.parent) == (AT, "/shop", 0)
    (call,) = called(first)
    assert (call.name, call.result, call.status) == ("fs_read", "x = 1", ToolCallStatus.OK)
    assert call.files == (FileNote(kind=FileKind.READ, path="/shop/a.py", line_start=3, line_end=9),)


def test_older_entries_are_pairs(tmp_path: Path) -> None:
    pairs = [[each["user"], each["assistant"]] for each in dialogue()]
    one = read_one(write_database(tmp_path, conversation(*dialogue())))
    (two,), report = read(write_database(tmp_path, older=conversation(*pairs)))
    assert [turn.records for turn in one.turns] == [turn.records for turn in two.turns]
    assert (two.session.workspace, report.mapped) == ("/old", {"conversation": 1, "exchange": 3})


def test_cancelled_tools_may_come_with_the_next_prompt(tmp_path: Path) -> None:
    refused = gave(("t1", {"Text": "cancelled by the user"}), kind="CancelledToolUses", status="Error", prompt="Wait.")
    history = [
        entry(asked("Go."), tool_use("m1", "", use("t1", "fs_write", path="a"))),
        entry(refused, response("m2", "Ok.")),
    ]
    first, second = read_one(write_database(tmp_path, conversation(*history))).turns
    assert (called(first)[0].status, called(first)[0].files, first.interrupted) == (ToolCallStatus.CANCELED, (), True)
    assert [texts(each) for each in said(second)] == [["Wait."], ["Ok."]]


def test_results_are_texts_or_values(tmp_path: Path) -> None:
    history = [
        entry(asked("Go."), tool_use("m1", "", use("a", "x"), use("b", "y"))),
        entry(gave(("a", {"Json": {"rows": 4}}), ("b", {"Text": "no"}), status="Error"), response("m2", "Done.")),
    ]
    first, second = called(read_one(write_database(tmp_path, conversation(*history))).turns[0])
    assert (first.result, second.result, second.error) == ({"rows": 4}, "no", "no")


def test_a_conversation_that_was_summed_up_is_shorter_and_further_on(tmp_path: Path) -> None:
    with opened(tmp_path / "ledger.db") as ledger:
        take(ledger, aged(write_database(tmp_path / "k", conversation(*dialogue()))))
        rest = conversation(entry(asked("On."), response("m9", "Sure."), 90), latest_summary=["So far.", None])
        take(ledger, aged(write_database(tmp_path / "k", rest, updated=AT + 99), 1))
        assert [message.text for message in ledger.thread(SESSION).messages][-2:] == ["On.", "Sure."]
        assert list(ledger.verify()) == []


def test_tokens_of_the_person_are_never_read(tmp_path: Path) -> None:
    found, _ = read(write_database(tmp_path, conversation(*dialogue())))
    assert all(b"canary" not in (each.raw or b"") for each in found)


def test_a_database_in_use_is_copied_with_its_log(tmp_path: Path) -> None:
    path = write_database(tmp_path, conversation(*dialogue()))
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0")
    other = conversation(*dialogue(), id="22222222-bbbb-4bbb-8bbb-000000000002")
    connection.execute("INSERT INTO conversations_v2 VALUES ('/shop', 'two', ?, 1, 1)", (json.dumps(other),))
    connection.execute("BEGIN EXCLUSIVE")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    try:
        assert len(read(path)[0]) == 2
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def test_images_are_numbers_and_contexts_stand_beside(tmp_path: Path) -> None:
    image = {"format": "png", "source": {"Bytes": [137, 80]}}
    user = asked("See.", images=[image], additional_context="rules")
    prompt = said(read_one(write_database(tmp_path, conversation(entry(user, response("m", "!"))))).turns[0])[0]
    assert prompt.parts == (TextPart("See."), ImagePart("data:image/png;base64,iVA="))
    assert prompt.context == {"additional": "rules"}


# The second engine: logs.


def test_a_log_is_prompts_answers_and_results(tmp_path: Path) -> None:
    found = read_one(write_log(tmp_path, log(), beside()))
    session = found.session
    assert (session.id, session.title, session.workspace, session.agent) == (SESSION, "Listing", "/shop", "dev")
    first, second = found.turns
    assert (first.key, first.started, second.key) == ("p1", AT, "p2")
    assert said(first)[1].parts == (ReasoningPart("Hm."),)
    assert called(first)[0].result == {"stdout": "a"}
    assert [turn.closed for turn in found.turns] == [True, False]


def test_costs_of_a_turn_are_told_with_its_last_answer(tmp_path: Path) -> None:
    first, second = read_one(write_log(tmp_path, log(), beside())).turns
    last = said(first)[-1]
    assert last.tokens == Tokens(input=900, output=40, cached=7)
    assert last.metadata == {"metering": [{"value": 0.25, "unit": "credit"}]}
    assert said(second)[-1].tokens is None
    with opened(tmp_path / "ledger.db") as ledger:
        take(ledger, aged(write_log(tmp_path, log(), beside())))
        (row,) = [row for row in ledger.usage.report(by="model", origin="kiro").rows if row.input]
        assert (row.key, row.input, row.output, row.cached) == ("large", 900, 40, 7)


def test_noughts_are_no_counts(tmp_path: Path) -> None:
    told = beside()
    told["session_state"]["conversation_metadata"]["user_turn_metadatas"] = [
        {"result": {"Ok": {"id": "a2"}}, "input_token_count": 0, "output_token_count": 0}
    ]
    assert said(read_one(write_log(tmp_path, log(), told)).turns[0])[-1].tokens is None


def test_a_log_alone_is_a_session_too(tmp_path: Path) -> None:
    found = read_one(write_log(tmp_path, log()))
    assert (found.session.id, found.session.title, len(found.turns)) == (SESSION, None, 2)


def test_a_summary_is_a_compaction_and_a_cleared_context_a_new_root(tmp_path: Path) -> None:
    lines = [*log(), {"kind": "Compaction", "data": {"summary": "So far."}}, line("Prompt", "p3", block("text", "On.")),
             {"kind": "Clear", "data": {}}, line("Prompt", "p4", block("text", "New."))]  # fmt: skip
    found = read_one(write_log(tmp_path, lines)).turns
    assert [turn.parent for turn in found] == [None, 0, 1, 2, None]
    assert found[2].compaction is not None
    assert found[2].compaction.summary == "So far."


def test_what_is_told_beside_a_log_is_a_part_of_it(tmp_path: Path) -> None:
    path = write_log(tmp_path, log(), beside())
    assert Kiro().is_part(as_source(path.with_suffix(".json")))
    other = write_events(tmp_path, events())
    assert Kiro().is_part(as_source(other.with_name("session.json")))
    listing = write_editor(tmp_path, {"role": "user", "content": "x"}).with_name("sessions.json")
    listing.write_text("[]")
    assert Kiro().is_part(as_source(listing))


# The third engine: events.


def test_events_are_turns_with_their_ends(tmp_path: Path) -> None:
    found = read_one(write_events(tmp_path, events()))
    assert (found.session.id, found.session.title, found.session.workspace) == (f"sess_{SESSION}", "Listing", "/shop")
    first, _ = found.turns
    assert [texts(each) for each in said(first)] == [["List."], ["Looking."], ["One file."]]
    (call,) = called(first)
    assert (call.name, call.result, call.status, call.detail) == ("execute_bash", "a.py", "ok", {"duration_ms": 5})
    assert first.metadata == {"metering": [{"unit": "credit", "usage": 0.5}], "elapsed_ms": 9}
    assert [turn.closed for turn in found.turns] == [True, True]
    assert said(first)[1].model is None


def test_elided_thoughts_are_no_answers(tmp_path: Path) -> None:
    lines = [event("u", "user", content="?"), event("r", "assistant", content="Real.", operationType="Reasoning"),
             event("e", "assistant", content="…", operationType="Say")]  # fmt: skip
    (turn,) = read_one(write_events(tmp_path, lines)).turns
    assert [each.parts for each in said(turn)] == [(TextPart("?"),), (ReasoningPart("Real."),)]


def test_the_first_event_is_a_prompt_if_an_answer_follows_it(tmp_path: Path) -> None:
    start, reply = (
        event("s", "session_start", content="Do it."),
        event("a", "assistant", content="Done.", operationType="Say"),
    )
    (turn,) = read_one(write_events(tmp_path, [start, event("x", "turn_start"), reply])).turns
    assert (turn.key, said(turn)[0].source) == ("s", MessageSource.HUMAN)
    (turn,) = read_one(write_events(tmp_path, [start, event("u", "user", content="Hi."), reply])).turns
    assert (turn.key, [each.source for each in said(turn)]) == ("u", ["event", "human", None])


def test_a_call_that_is_told_again_is_one_call(tmp_path: Path) -> None:
    lines = events()
    lines.insert(6, event("c9", "tool_call", toolCallId="t1", toolName="execute_bash", args={"command": "ls -l"}))
    (call,) = called(read_one(write_events(tmp_path, lines)).turns[0])
    assert (call.arguments, call.result) == ({"command": "ls -l"}, "a.py")


def test_a_subagents_execution_names_its_session(tmp_path: Path) -> None:
    path = write_events(tmp_path, events())
    child = write_lines(path.parent / "sub-executions" / "e7.jsonl", [event("u", "user", content="Explore.")])
    found = read_one(child)
    assert (found.session.id, found.session.parent) == (f"sess_{SESSION}/e7", f"sess_{SESSION}")
    assert said(found.turns[0])[0].source is MessageSource.AGENT


def test_how_a_turn_ended_is_told(tmp_path: Path) -> None:
    asked = event("u", "user", content="?")
    (stopped,) = read_one(write_events(tmp_path, [asked, event("x", "turn_end", stopReason="cancelled")])).turns
    assert (stopped.interrupted, stopped.error) == (True, None)
    (failed,) = read_one(
        write_events(tmp_path, [asked, event("x", "turn_end", stopReason="error", error="boom")])
    ).turns
    assert failed.error == "boom"


# The editor before 1.0.


def test_an_editors_session_knows_its_folder_by_the_name(tmp_path: Path) -> None:
    path = write_editor(tmp_path, {"role": "user", "content": "Hi."}, {"role": "assistant", "content": "On it."})
    found = read_one(path)
    assert (found.session.id, found.session.title, found.session.workspace) == (SESSION, "Old", "/shop")
    assert [texts(each) for each in said(found.turns[0])] == [["Hi."], ["On it."]]
    assert said(found.turns[0])[1].model == "large"


# Damage.


def test_unknown_kinds_are_kept_and_counted(tmp_path: Path) -> None:
    _, report = read(write_log(tmp_path, [*log(), {"kind": "Hologram", "data": {}}]))
    assert report.unknown == {"Hologram": 1}
    _, report = read(
        write_events(tmp_path, [*events(), event("z", "aura", x=1), event("m", "session_metadata", key="k")])
    )
    assert (report.unknown, report.kept) == ({"aura": 1}, {"aura": 1, "session_metadata": 1})


@pytest.mark.parametrize("value", [7, None, "words", [], {}, [1, 2], {"user": 3}])
def test_odd_entries_harm_no_others(tmp_path: Path, value: Any) -> None:
    (found,), report = read(write_database(tmp_path, conversation(*dialogue(), value)))
    assert len(found.turns) == 2
    assert report.damaged == 1


def test_a_row_that_is_no_json_harms_no_others(tmp_path: Path) -> None:
    path = write_database(tmp_path, conversation(*dialogue()))
    connection = apsw.Connection(str(path))
    connection.execute("INSERT INTO conversations_v2 VALUES ('/x', 'x', '{broken', 1, 1)")
    connection.close()
    found, report = read(path)
    assert (len(found), report.damaged, len(report.problems)) == (1, 1, 1)


@pytest.mark.parametrize("value", [[], {}, 7, None])
def test_kinds_that_are_no_words_are_not_fatal(tmp_path: Path, value: Any) -> None:
    read(write_log(tmp_path, [{**log()[0], "kind": value}, *log()]))
    read(write_events(tmp_path, [{**event("u", "user", content="?"), "payload": {"type": value}}, *events()]))


CONVERSATION, LOG, EVENTS = conversation(*dialogue()), log(), events()


@given(mutations(CONVERSATION, 1))
def test_mutated_conversations_are_never_fatal(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    with TemporaryDirectory() as folder:
        read(write_database(Path(folder), changed(CONVERSATION, changes)))


@given(mutations(LOG, 0))
def test_mutated_logs_are_never_fatal(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    with TemporaryDirectory() as folder:
        read(write_log(Path(folder), changed(LOG, changes), beside()))


@given(mutations(EVENTS, 0))
def test_mutated_events_are_never_fatal(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    with TemporaryDirectory() as folder:
        read(write_events(Path(folder), changed(EVENTS, changes)))


@given(mutations(beside(), 0))
def test_what_lies_beside_may_be_odd(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    with TemporaryDirectory() as folder:
        read(write_log(Path(folder), LOG, changed(beside(), changes)))


@needs_corpus
def test_files_of_other_tools_are_left_to_their_importers() -> None:
    for path in sorted(path for path in CORPUS.rglob("*") if path.is_file()):
        assert not Kiro().recognises(as_source(path)), path
        assert not Kiro().is_part(as_source(path)), path


def test_places_cover_every_store(tmp_path: Path) -> None:
    found = {str(place.path.relative_to(tmp_path)) for place in Kiro().places(tmp_path, {})}
    assert {".kiro/sessions", ".local/share/kiro-cli/data.sqlite3", ".local/share/amazon-q/data.sqlite3"} <= found
    assert ".config/Kiro/User/globalStorage/kiro.kiroagent/workspace-sessions" in found
    assert str(Kiro().places(tmp_path, {"KIRO_HOME": "/k"})[0].path) == "/k/sessions"


def test_digests_are_what_they_were(tmp_path: Path) -> None:
    """There is no corpus of this origin, so sessions made by hand are pinned: other digests need another mapping."""
    with opened(tmp_path / "ledger.db") as ledger:
        paths = [write_database(tmp_path / "s", conversation(*dialogue())), write_log(tmp_path / "s", log()),
                 write_events(tmp_path / "s", events())]  # fmt: skip
        take(ledger, *map(aged, paths))
        digests = sorted(turn.digest for turn in ledger.log())
        assert list(ledger.verify()) == []
    assert (Kiro().mapping, len(digests)) == (1, 6)
    assert sha256("\n".join(digests).encode()).hexdigest() == PINNED


PINNED = "b8a8aaa3ad42f91205b34a3294a4076d5e263d831dd52eb20ab76c6b69a46024"
