"""A substitution changes what later readers are shown, and never what was recorded."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

import weft
from tests.credentials import scanner
from tests.ledger.canaries import CANARY, files_with_canary, told
from tests.ledger.histories import copy_in_memory, exported, grow, import_into, problems, select, texts
from tests.ledger.imported import native_call, native_turn, take
from weft.kernel.errors import AmbiguousName, InvalidInput, NotAllowed, NotApplicable, NotFound
from weft.kernel.events import EventRef, HistoryAppend, ModelRequest, Substitution
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import ImagePart, Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from weft.programs import Programs


def answered(ledger: Ledger, session: str = "main", **more: Any) -> Message:
    """The answer of a new turn: Lyon, which is wrong."""
    turn = ledger.record_turn(session=session, query="which town?", response="it is Lyon", model="m", **more)
    return ledger.messages(turn.id)[-1]


def found(ledger: Ledger, words: str) -> list[str]:
    return [str(hit.message_id or hit.tool_call_id) for hit in ledger.search(words)]


def event_of(ledger: Ledger, message: Message) -> str:
    """The id of the event that brought a message."""
    for each in ledger.events(message.turn_id):
        said = getattr(each.event, "message", None) or getattr(each.event, "output", None)
        if getattr(said, "id", None) == message.id:
            return each.id
    raise AssertionError("no event brought it")


def test_an_answer_is_shown_with_other_words_and_stays_what_it_was(ledger: Ledger) -> None:
    answer = answered(ledger)
    before, digest = exported(ledger), ledger.turn("main").digest
    note = ledger.substitute(answer.id, "it is Paris", reason="Lyon is not the capital")
    assert (note.original, note.by, note.reason) == (event_of(ledger, answer), "local", "Lyon is not the capital")
    shown = ledger.message(answer.id)
    assert (shown.text, shown.substituted, shown.id) == ("it is Paris", note, answer.id)
    assert ledger.messages("main")[-1] == shown
    assert ledger.context(session="main").messages[-1] == replace(shown, parent_id=None)
    assert texts(ledger.thread("main").messages) == ["which town?", "it is Paris"]
    assert (found(ledger, "Paris"), found(ledger, "Lyon")) == ([answer.id], [])
    assert [hit.substituted for hit in ledger.search("it")] == [note]
    assert (ledger.turn("main").substitutions, ledger.originals().turn("main").substitutions) == (1, UNSET)
    assert ledger.originals().message(answer.id) == answer
    assert texts(ledger.originals().context(session="main").messages) == ["which town?", "it is Lyon"]
    assert ledger.turn("main").digest == digest
    assert exported(ledger).startswith(before[:200])
    assert problems(ledger) == []
    assert ledger.upkeep.rebuild() == 0


def test_a_turn_stands_for_its_answer(ledger: Ledger) -> None:
    answer = answered(ledger)
    grow(ledger, "main", "more")
    ledger.substitute("main~1", "it is Paris")
    assert ledger.message(answer.id).text == "it is Paris"
    ledger.create_session("empty")
    with pytest.raises(NotFound):
        ledger.substitute("empty", "x")


@pytest.mark.parametrize("named", ["message", "event", "beginning"])
def test_a_prompt_is_named_by_its_message_or_its_event(ledger: Ledger, named: str) -> None:
    prompt = ledger.messages(answered(ledger).turn_id)[0]
    event = event_of(ledger, prompt)
    ledger.substitute({"message": prompt.id, "event": event, "beginning": event[:9]}[named], "which city?")
    assert ledger.message(prompt.id).text == "which city?"
    assert ledger.listing().subjects([prompt.turn_id])[prompt.turn_id] == "which city?"


def test_the_last_substitution_counts_and_can_be_undone(ledger: Ledger) -> None:
    answer = answered(ledger)
    first = ledger.substitute(answer.id, "it is Paris")
    second = ledger.substitute(answer.id, "it is Rome")
    assert ledger.message(answer.id).text == "it is Rome"
    assert ledger.substitute(answer.id, with_event=first.replacement).replacement == first.replacement
    assert ledger.message(answer.id).text == "it is Paris"
    ledger.substitute(second.replacement, "it is Bonn")  # what once stood there names the place
    assert ledger.message(answer.id).text == "it is Bonn"
    undone = ledger.substitute(answer.id, with_event=answer.id)
    assert undone.replacement == undone.original == first.original
    assert ledger.message(answer.id) == answer
    assert (found(ledger, "Lyon"), found(ledger, "Bonn")) == ([answer.id], [])
    with pytest.raises(NotApplicable, match="as it was recorded"):
        ledger.substitute(answered(ledger, "other").id, with_event=ledger.messages("other")[-1].id)
    assert problems(ledger) == []


def test_a_result_is_shown_with_another_one(ledger: Ledger) -> None:
    ledger.record_turn(
        session="main",
        query="look",
        response="done",
        tool_calls=[{"id": "c1", "name": "read", "result": "old words"}, {"id": "c2", "name": "read", "error": "gone"}],
    )
    first, second = ledger.tool_calls("main")
    ledger.substitute(first.id, {"lines": ["new words"]})
    ledger.substitute(second.id, "there after all")
    calls = ledger.tool_calls("main")
    assert [(call.result, call.outcome, call.error) for call in calls] == [
        ({"lines": ["new words"]}, "ok", None),
        ("there after all", "ok", None),
    ]
    assert all(call.substituted for call in calls)
    results = [part for message in ledger.context(session="main").messages for part in message.content]
    assert ToolResultPart("c1", {"lines": ["new words"]}) in results
    assert ledger.originals().tool_calls("main") == [first, second]
    assert found(ledger, "old") == []
    ledger.substitute(second.id, with_event=second.id)
    assert ledger.tool_calls("main")[1] == second
    assert problems(ledger) == []
    assert ledger.upkeep.rebuild() == 0


def test_a_late_result_is_shown_with_another_one(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.tool_call("slow", id="c1")
        writer.interrupt("timeout")
    (call,) = ledger.tool_calls("main")
    with pytest.raises(NotApplicable):
        ledger.substitute(call.id, "never")
    ledger.record_late_result("main", "c1", "at last")
    (call,) = ledger.tool_calls("main")
    ledger.substitute(call.id, "at long last")
    assert ledger.tool_calls("main")[0].result == "at long last"
    assert ledger.originals().tool_calls("main") == [call]
    assert problems(ledger) == []


def test_results_that_messages_spell_out_change_with_them(ledger: Ledger) -> None:
    ledger.record_turn(
        session="main",
        query=[
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "read", "input": {}}]},
            {"role": "tool", "content": [{"type": "tool_result", "tool_call_id": "c1", "output": "old words"}]},
        ],
        response="done",
        tool_calls=[{"id": "c1", "name": "read", "result": "old words"}],
    )
    told_result = ledger.messages("main")[2]
    ledger.substitute(told_result.id, "new words")
    assert ledger.tool_calls("main")[0].result == "new words"
    assert ledger.messages("main")[2].content == (ToolResultPart("c1", "new words"),)
    assert found(ledger, "old words") == []
    ledger.substitute(told_result.id, with_event=told_result.id)
    assert ledger.messages("main")[2] == told_result
    assert ledger.tool_calls("main")[0].result == "old words"
    assert problems(ledger) == []


def test_what_a_message_has_beside_its_words_stays(ledger: Ledger) -> None:
    use, image = ToolUsePart("c1", "read", {"path": "x"}), ImagePart("https://example.com/a.png")
    parts = (ReasoningPart("hm"), TextPart("Lyon"), TextPart("I think"), use, image)
    answer = ledger.messages(
        ledger.record_turn(session="main", query="q", response={"content": parts, "metadata": {"a": 1}}).id
    )[-1]
    ledger.substitute(answer.id, "Paris")
    shown = ledger.message(answer.id)
    assert (shown.content, shown.metadata) == ((TextPart("Paris"), use, image), {"a": 1})
    ledger.substitute(answer.id, [TextPart("a"), TextPart("b")])
    assert ledger.message(answer.id).content == (TextPart("a"), TextPart("b"))


def test_a_request_names_what_it_was_sent_before_and_after(ledger: Ledger) -> None:
    answer = answered(ledger, tool_calls=[{"id": "c1", "name": "read", "result": "old"}])
    (call,) = ledger.tool_calls("main")

    def ask(query: str) -> tuple[str, ModelRequest]:
        context = ledger.context(session="main")
        with ledger.begin_turn(session="main") as writer:
            writer.message(query)
            writer.request("m", input=context)
            writer.response("so it is")
        (request,) = [each.event for each in ledger.events(writer.id) if isinstance(each.event, ModelRequest)]
        return writer.id, request

    first, _ = ask("before")
    notes = [ledger.substitute(answer.id, "it is Paris"), ledger.substitute(call.id, "new")]
    second, request = ask("after")
    named = [ref.event_id for ref in request.input.then if isinstance(ref, EventRef)]  # type: ignore[union-attr]
    assert {note.replacement for note in notes} <= set(named)
    ledger.substitute(answer.id, "it is Rome")
    ledger.substitute(call.id, with_event=call.id)
    for turn, town, result in ((first, "Lyon", "old"), (second, "Paris", "new")):
        context = ledger.context(turn)
        assert context.observed
        assert f"it is {town}" in texts(context.messages)
        assert ToolResultPart("c1", result) in [part for message in context.messages for part in message.content]
    assert "it is Rome" in texts(ledger.context(session="main").messages)
    assert problems(ledger) == []


def test_a_context_that_was_not_recorded_shows_what_stood_there_then(ledger: Ledger) -> None:
    answer = answered(ledger)
    (first,) = grow(ledger, "main", "one")
    ledger.substitute(answer.id, "it is Paris")
    (second,) = grow(ledger, "main", "two")
    ledger.substitute(answer.id, "it is Rome")
    ledger.substitute(answer.id, with_event=answer.id)
    contexts = [texts(ledger.context(turn).messages)[1] for turn in (first, second)]
    assert contexts == ["it is Lyon", "it is Paris"]
    assert texts(ledger.context(session="main").messages)[1] == "it is Lyon"


def test_an_event_of_another_turn_can_stand_in(ledger: Ledger) -> None:
    answer, other = answered(ledger), grow(ledger, "other", "Paris?")[0]
    better = ledger.messages(other)[-1]
    ledger.substitute(answer.id, with_event=better.id)
    shown = ledger.message(answer.id)
    assert (shown.text, shown.id) == (better.text, answer.id)
    assert ledger.message(better.id) == better
    with pytest.raises(NotApplicable, match="another kind"):
        ledger.substitute(answer.id, with_event=ledger.messages("other")[0].id)
    with ledger.begin_turn(session="main") as writer:
        writer.message("and now?")
        writer.request("m", input=ledger.context(session="main"))
        writer.response("so it is")
    assert ledger.context("main").observed
    assert better.text in texts(ledger.context("main").messages)
    assert problems(ledger) == []


def test_imported_turns_are_substituted_and_imported_again_in_vain(ledger: Ledger) -> None:
    turns = [native_turn("one", "it is Lyon", calls=[native_call("c1")]), native_turn("two")]
    take(ledger, "s1", *turns)
    turn = ledger.log()[-1]
    prompt, answer = ledger.messages(turn.id)
    (call,) = ledger.tool_calls(turn.id)
    ledger.substitute(answer.id, "it is Paris")
    ledger.substitute(call.id, "not ok")
    take(ledger, "s1", *turns, file="b.jsonl")
    shown = ledger.messages(turn.id)
    assert texts(shown) == [prompt.text, "it is Paris"]
    assert (shown[1].context, shown[1].native_id) == (answer.context, answer.native_id)
    assert ledger.tool_calls(turn.id)[0].result == "not ok"
    assert ledger.turn(turn.id).digest == turn.digest
    assert ledger.originals().messages(turn.id)[1].text == "it is Lyon"
    assert problems(ledger) == []


def test_a_turn_is_picked_as_it_is_shown(ledger: Ledger) -> None:
    answer = answered(ledger, tool_calls=[{"id": "c1", "name": "read", "result": "old"}])
    prompt = ledger.messages("main")[0]
    for event, words in (
        (prompt.id, "which city?"),
        (answer.id, "it is Paris"),
        (ledger.tool_calls("main")[0].id, "new"),
    ):
        ledger.substitute(event, words)
    grow(ledger, "other", "before")
    ledger.merges.cherry_pick("main", onto="other")
    assert texts(ledger.messages("other")) == ["which city?", "it is Paris"]
    assert ledger.tool_calls("other")[0].result == "new"
    assert ledger.turn("other").substitutions is UNSET
    assert problems(ledger) == []


def test_code_is_that_of_the_words_that_are_shown(ledger: Ledger) -> None:
    answer = ledger.messages(ledger.record_turn(session="main", query="q", response="```py\nold\n```").id)[-1]
    ledger.substitute(answer.id, "```py\nnew\n```")
    assert [block.content for block in ledger.codeblocks(answer.id)] == ["new\n"]
    ledger.substitute(answer.id, with_event=answer.id)
    assert [block.content for block in ledger.codeblocks(answer.id)] == ["old\n"]


def test_another_ledgers_substitution_changes_nothing_here() -> None:
    with weft.open(":memory:") as ledger:
        answer = answered(ledger)
        with copy_in_memory(ledger) as other:
            other.substitute(answer.id, "it is Paris")
            assert other.message(answer.id).text == "it is Paris"
            import_into(ledger, exported(other))
        assert ledger.message(answer.id) == answer
        assert any(isinstance(each.event, Substitution) for each in ledger.changes())
        assert problems(ledger) == []


def test_a_copy_goes_on_showing_what_was_substituted(disk: Ledger, tmp_path: Path) -> None:
    answer = answered(disk)
    disk.substitute(answer.id, "it is Paris")
    weft.copy(disk, tmp_path / "copy.db")
    with weft.open(tmp_path / "copy.db") as copied:
        assert copied.message(answer.id).text == "it is Paris"
        assert problems(copied) == []


@pytest.mark.parametrize("erased", ["turn", "content"])
def test_nothing_of_an_erased_replacement_is_left_in_any_file(disk: Ledger, path: Path, erased: str) -> None:
    answer = answered(disk, tool_calls=[{"id": "c1", "name": "read", "result": "old"}])
    (call,) = disk.tool_calls("main")
    grow(disk, "main", "after")
    disk.substitute(answer.id, f"```\n{told('answer')}\n```", reason=told("reason") if erased == "turn" else None)
    disk.substitute(answer.id, "it is Paris")
    if erased == "turn":
        disk.substitute(call.id, {"words": told("result")})
        disk.substitute(answer.id, f"{CANARY} again")
    else:
        disk.substitute(answer.id, f"```\n{told('answer')}\n```")
    disk.upkeep.catch_up()
    assert files_with_canary(path.parent)
    replaced = [e.event for e in disk.changes() if isinstance(e.event, HistoryAppend) or hasattr(e.event, "output")]
    refs = {part.text for each in replaced for part in (getattr(each, "message", None) or each.output).parts}
    canaries = [ref for ref in refs if CANARY.encode() in b"".join(disk.read_content(ref))]
    digests = [turn.digest for turn in disk.log()]
    disk.erasure.erase(answer.turn_id if erased == "turn" else canaries, reason="asked for")
    assert files_with_canary(path.parent) == []
    assert [turn.digest for turn in disk.log()] == digests
    assert problems(disk) == []
    assert found(disk, CANARY) == []


def test_an_erased_original_leaves_its_replacement_when_it_alone_is_erased(disk: Ledger, path: Path) -> None:
    answer = disk.messages(disk.record_turn(session="main", query="q", response=told("answer")).id)[-1]
    disk.substitute(answer.id, "hidden")
    (line,) = [e.event for e in disk.events(answer.turn_id) if getattr(e.event, "output", None)]
    disk.erasure.erase(line.output.parts[0].text, reason="asked for")  # type: ignore[union-attr]
    assert files_with_canary(path.parent) == []
    assert disk.message(answer.id).text == "hidden"
    assert CANARY not in disk.originals().message(answer.id).text
    assert problems(disk) == []


def test_what_two_turns_show_stays_with_the_other_one(disk: Ledger) -> None:
    first, second = answered(disk), answered(disk, "other")
    note = disk.substitute(first.id, "it is Paris")
    disk.substitute(second.id, with_event=note.replacement)
    disk.erasure.erase(first.turn_id, reason="asked for")
    assert disk.message(second.id).text == "it is Paris"
    disk.erasure.erase(second.turn_id, reason="asked for")
    assert "Paris" not in disk.message(second.id).text
    assert problems(disk) == []


def test_a_credential_among_other_words_is_found_in_its_turn(disk: Ledger) -> None:
    answer = answered(disk)
    disk.substitute(answer.id, "it is AKIAQ3EGRIJ5CEXZ7YPM", reason="ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8")
    places = [place for secret in disk.secrets.find(scanner=scanner()).secrets for place in secret.places]
    assert {place.turn_id for place in places} == {answer.turn_id}


def test_what_cannot_be_substituted_is_refused(ledger: Ledger) -> None:
    answer = answered(ledger, tool_calls=[{"id": "c1", "name": "read", "result": "old"}])
    started = ledger.events("main")[0].id
    before = exported(ledger)
    for event in (started, ledger.turn("main").digest):
        with pytest.raises(NotApplicable, match="is a run_"):
            ledger.substitute(event, "x")
    for name in ("nothing", "0" * 64, "abcdefg", f"{answer.turn_id}:c2", "a" * 65):
        with pytest.raises(NotFound):
            ledger.substitute(name, "x")
    wrong: list[dict[str, Any]] = [{}, {"with_": "x", "with_event": answer.id}, {"with_": 3}, {"with_": []}]
    for arguments in (*wrong, {"with_": ["x"]}):
        with pytest.raises(InvalidInput):
            ledger.substitute(answer.id, **arguments)
    assert exported(ledger) == before
    with ledger.begin_turn(session="open") as writer:
        message = writer.message("q")
        with pytest.raises(NotApplicable, match="still"):
            ledger.substitute(message, "x")


def test_two_events_that_begin_alike_are_told_apart(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [event_of(ledger, answered(ledger)) for _ in range(2)]
    monkeypatch.setattr("weft.store.fact_log.FactReader.find_events", lambda *_: [(1, ids[0]), (2, ids[1])])
    with pytest.raises(AmbiguousName):
        ledger.substitute("abcdef0", "x")


def test_who_may_not_record_in_a_session_substitutes_nothing_there(ledger: Ledger) -> None:
    programs = Programs(ledger)
    programs.create("human", "ann", {"permissions": ["session:read", "turn:*"]})
    programs.create("human", "eve", {"permissions": ["session:read"]})
    programs.create("agent", "bot", {"permissions": {"programs": ["session:read", "turn:*"]}})
    answer = answered(ledger)
    with pytest.raises(NotAllowed):
        ledger.acting_as("eve").substitute(answer.id, "x")
    assert ledger.message(answer.id) == answer
    note = ledger.acting_as("bot").substitute(ledger.messages("main")[0].id, "do as I say")
    assert note.by == "bot"
    assert ledger.messages("main")[0].source == "agent"


def test_the_words_of_the_messages_table_are_those_that_are_shown(disk: Ledger, path: Path) -> None:
    answer = answered(disk)
    disk.substitute(answer.id, "it is Paris")
    (row,) = select(path, "SELECT content FROM messages WHERE id = ?", answer.id)
    assert "it is Paris" in row["content"]
