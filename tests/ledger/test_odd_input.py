"""Arguments that nobody should pass: every verb refuses them in words, and nothing is recorded."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import exported, grow, problems
from weft.kernel.enums import MessageRole
from weft.kernel.errors import AmbiguousName, InvalidInput, NotApplicable, NotFound, StoreError, WeftError
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import ImagePart, NewMessage, NewToolCall, StoredContent

SURROGATE = "\ud800"
DIGITS = "9" * 5000
ODD: list[Any] = [
    None, 5, -1, 2**70, 1.5, float("nan"), True, b"bytes", "", " ", SURROGATE, "a\0b", [], {"a": 1}, object(), (1, 2),
    f"main~{DIGITS}", f"main#{DIGITS}", f"main@{{{DIGITS}}}", f"main@{{{DIGITS} days ago}}", "main@{²}", "~", "@{1}",
    "main@{0001-01-01T00:00:00+23:59}", "main@{999999999999 years ago}", bytearray(b"x"),
]  # fmt: skip

READS = """
    session resolve turn thread messages message tool_calls compactions.get codeblocks
    tree.children tree.turns events reflog tree.sessions_containing
""".split()
WRITES: dict[str, Callable[[Ledger, Any], Any]] = {
    "session": lambda ledger, odd: ledger.record_turn(session=odd, query="q", wait=0),
    "parent": lambda ledger, odd: ledger.record_turn(query="q", parent=odd),
    "expected": lambda ledger, odd: ledger.begin_turn(session="main", expected=odd, wait=0).interrupt(),
    "wait": lambda ledger, odd: ledger.record_turn(session="main", query="q", wait=odd) if odd != 2**70 else None,
    "model": lambda ledger, odd: ledger.record_turn(session="main", query="q", model=odd),
    "persona": lambda ledger, odd: ledger.record_turn(query="q", persona=odd),
    "tool_calls": lambda ledger, odd: ledger.record_turn(query="q", tool_calls=odd),
    "tools_available": lambda ledger, odd: ledger.record_turn(query="q", tools_available=odd),
    "message role": lambda ledger, odd: ledger.record_turn(query={"role": odd, "content": "x"}),
    "compaction": lambda ledger, odd: ledger.compactions.record(summary="s", session=odd, wait=0),
    "late": lambda ledger, odd: ledger.record_late_result("main", odd, result=1),
    "content": lambda ledger, odd: ledger.put_content(odd),
    "stored content": lambda ledger, odd: ledger.record_turn(query=StoredContent(odd, 1)),
    "alias": lambda ledger, odd: ledger.labels.add_alias("al", odd),
    "rename": lambda ledger, odd: (ledger.labels.rename("main", odd), ledger.labels.rename(odd, "main")),
    "restore": lambda ledger, odd: ledger.heads.restore("main", odd),
    "move": lambda ledger, odd: ledger.move_head(odd, new=None),
    "fork": lambda ledger, odd: ledger.fork(odd, label="made"),
    "import": lambda ledger, odd: ledger.upkeep.import_facts(odd),
    "head at": lambda ledger, odd: ledger.heads.at("main", odd),
    "log": lambda ledger, odd: ledger.log(odd),
    "limit": lambda ledger, odd: ledger.reflog("main", limit=odd),
    "changes": lambda ledger, odd: list(ledger.changes(odd)),
    "read content": lambda ledger, odd: list(ledger.read_content(odd)),
    "erase": lambda ledger, odd: ledger.erasure.plan(odd),
    "erase some": lambda ledger, odd: ledger.erasure.erase([odd], reason="why"),
    "pack": lambda ledger, odd: ledger.upkeep.pack(odd, dry_run=True),
    "unpack": lambda ledger, odd: ledger.upkeep.unpack(odd),
    "cherry-pick": lambda ledger, odd: ledger.merges.cherry_pick(odd, onto="main"),
    "archive": lambda ledger, odd: ledger.labels.archivable(odd),
    "archive older": lambda ledger, odd: ledger.labels.archivable(older_than=odd),
    "kept sources": lambda ledger, odd: ledger.imports.kept_sources(odd),
    "import writer": lambda ledger, odd: ledger.imports.writer(odd, 1),
    "search": lambda ledger, odd: ledger.search(odd),
    "search sessions": lambda ledger, odd: ledger.search_sessions(odd),
    "search role": lambda ledger, odd: ledger.search("a", role=odd),
    "search since": lambda ledger, odd: ledger.search("a", since=odd),
    "search rank": lambda ledger, odd: ledger.search("a", rank=odd),
    "audit tally": lambda ledger, odd: list(ledger.audit.findings(tally=odd)),
    "secrets scanner": lambda ledger, odd: ledger.secrets.find(scanner=odd) if odd is not None else None,
    "imports of": lambda ledger, odd: ledger.imports.share_with(odd),
    "rebuild": lambda ledger, odd: ledger.upkeep.rebuild(progress=odd),
    "verify": lambda ledger, odd: list(ledger.verify(progress=odd)),
    "receipt": lambda ledger, odd: list(ledger.verify(receipt=odd, facts=False, views=False)),
}


def is_refused_in_words(call: Callable[[], Any]) -> None:
    """Answered, or refused by one of ours; any other exception fails the test."""
    with suppress(WeftError):
        call()


@pytest.mark.parametrize("verb", READS)
def test_reading_verbs_refuse_odd_names_in_words(ledger: Ledger, verb: str) -> None:
    grow(ledger, "main", "a")
    for odd in ODD:
        with pytest.raises(WeftError):
            attrgetter(verb)(ledger)(odd)


@pytest.mark.parametrize("verb", WRITES)
def test_no_verb_answers_an_odd_argument_with_an_accident(ledger: Ledger, verb: str) -> None:
    grow(ledger, "main", "a")
    for odd in ODD:
        is_refused_in_words(partial(WRITES[verb], ledger, odd))
    assert problems(ledger) == []


@pytest.mark.parametrize("seconds", [float("nan"), -1, "1", None])
def test_waiting_takes_a_number_of_seconds(ledger: Ledger, seconds: Any) -> None:
    with pytest.raises(InvalidInput, match="wait"):
        list(ledger.changes(wait=seconds))


def test_a_missing_path_is_an_error_of_the_machine(disk: Ledger, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "file"
    for verb in (disk.upkeep.import_facts, disk.upkeep.export_facts, disk.upkeep.backup):
        with pytest.raises(StoreError) as error:
            verb(nowhere)
        assert error.value.hint


def test_text_is_no_content_until_it_is_bytes(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="str"):
        ledger.put_content("text")
    with pytest.raises(InvalidInput, match="chunk"):
        ledger.put_content(["text"])
    assert ledger.upkeep.stats()["contents"] == 0


def test_sums_of_tokens_stop_at_the_largest_exact_number(ledger: Ledger) -> None:
    most = 2**53 - 1
    for _ in range(3):
        grow(ledger, "main", "q", usage={"input_tokens": most})
    with ledger.begin_turn(session="main") as writer:
        for _ in range(3):
            writer.response("r", usage={"input_tokens": most})
        writer.finish()
    assert ledger.turn("main").usage.input_tokens == most
    assert ledger.record_turn(session="main", query="on and on").depth == 5
    with pytest.raises(InvalidInput, match="add up"):
        ledger.record_turn(query="q", usage={"input_tokens": most, "output_tokens": 1})
    assert problems(ledger) == []


def test_a_whole_turn_id_means_that_turn_whatever_sessions_are_called(ledger: Ledger) -> None:
    first, second = grow(ledger, "main", "a", "b")
    ledger.fork(second, label=first)
    ledger.create_session("routed", routing_key=first)
    assert ledger.resolve(first) == ledger.resolve(first.lower()) == first


@pytest.mark.parametrize("path", [None, b"ledger.db", 5, "", "a\0b"])
def test_a_ledger_is_opened_by_a_path_in_words(path: Any) -> None:
    with pytest.raises(InvalidInput, match="path"):
        weft.open(path)


@pytest.mark.parametrize("name", "create read_only accept_rollback clock random_bytes lease_ttl zone".split())
def test_what_a_ledger_is_opened_with_is_refused_in_words(name: str) -> None:
    for odd in ("x", object(), [1]):
        with pytest.raises(InvalidInput, match=name):
            weft.open(":memory:", **{name: odd})  # type: ignore[arg-type]


def test_a_scanner_is_what_has_the_parts_of_one(ledger: Ledger) -> None:
    class Half:
        rules = "of mine"

    for odd in (Half(), Half, 0, "", object()):
        with pytest.raises(InvalidInput, match="scanner"):
            ledger.secrets.find(scanner=odd)  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", [0, "", [], {}])
def test_a_tally_is_no_other_thing_that_is_empty(ledger: Ledger, odd: Any) -> None:
    with pytest.raises(InvalidInput, match="tally"):
        ledger.audit.findings(tally=odd)


def test_older_copies_are_a_list_and_no_text(tmp_path: Path) -> None:
    for odd in ("older.db", 5, None, tmp_path):
        with pytest.raises(InvalidInput, match="others"):
            weft.salvage(tmp_path / "a.db", tmp_path / "b.db", others=odd)  # type: ignore[arg-type]


def test_a_name_that_is_not_utf8_is_refused_where_a_database_would_hold_it(disk: Ledger, tmp_path: Path) -> None:
    odd = tmp_path / "\udcff.db"
    verbs = (weft.open, disk.upkeep.backup, disk.upkeep.export_facts, disk.upkeep.note_export, partial(weft.copy, disk))
    for verb in (*verbs, partial(weft.restore, path=tmp_path / "new.db"), lambda path: list(weft.examine(path))):
        with pytest.raises(InvalidInput, match="UTF-8"):
            verb(odd)
    assert not odd.exists()


def test_a_ledger_in_memory_is_never_only_read(open_ledger: OpenLedger) -> None:
    with pytest.raises(InvalidInput, match="memory"):
        open_ledger(":memory:", read_only=True)


def test_a_call_id_given_twice_has_one_spelling_everywhere(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        keys = [writer.tool_call("t", id="c") for _ in range(2)]
        writer.tool_result(keys[0], 1)
        keys.append(writer.tool_call("t", id="c"))
        writer.interrupt()
    assert keys == ["c", "c~2", "c~3"]
    calls = ledger.tool_calls("main")
    assert [call.id for call in calls] == [f"{writer.id}:{key}" for key in keys]
    ledger.record_late_result("main", calls[2].id, result="third")
    ledger.record_late_result("main", "c~2", result="second")
    assert [(call.call_id, call.result) for call in ledger.tool_calls("main")] == [
        ("c", 1), ("c", "second"), ("c", "third"),
    ]  # fmt: skip
    with pytest.raises(NotFound):
        ledger.record_late_result("main", "c~4", result=1)
    assert problems(ledger) == []


ALIKE = ["a", "a", "a~2", "a~2", "a~2~1", "~", "a~"]


def test_calls_whose_ids_look_like_our_numbering_stay_apart(ledger: Ledger) -> None:
    made = ledger.record_turn(session="main", tool_calls=[{"id": id, "name": "t"} for id in ALIKE])
    calls = ledger.tool_calls(made.id)
    assert [call.call_id for call in calls] == ALIKE
    assert len({call.id for call in calls}) == len(ALIKE)
    with ledger._store.read() as txn:
        shown = txn.sql.fetch_rows("SELECT id FROM tool_calls ORDER BY sequence")
    assert [id for (id,) in shown] == [call.id for call in calls]


def test_a_writer_answers_such_calls_under_what_it_was_given(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        keys = [writer.tool_call("t", id=id) for id in ALIKE]
        assert len(set(keys)) == len(ALIKE)
        assert [call.id for call in ledger.tool_calls(writer.id)] == [f"{writer.id}:{key}" for key in keys]
        for i, key in reversed(list(enumerate(keys))):
            writer.tool_result(key if i % 2 else f"{writer.id}:{key}", i)
            with pytest.raises(NotFound):
                writer.tool_result(key, "twice")
        writer.finish()
    assert [call.result for call in ledger.tool_calls(writer.id)] == list(range(len(ALIKE)))


def test_a_writer_takes_a_providers_id_that_means_no_other_call(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.tool_call("t", id="x~1")
        writer.tool_call("t", id="x")
        writer.tool_result("x~1", 1)
        writer.tool_result("x", 2)
        writer.finish()
    assert [call.result for call in ledger.tool_calls(writer.id)] == [1, 2]


def test_a_late_result_for_one_of_two_such_calls_says_which(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        for id in ("a", "a", "a~2"):
            writer.tool_call("t", id=id)
        writer.interrupt()
    with pytest.raises(AmbiguousName) as refused:
        ledger.record_late_result("main", "a~2", "whose?")
    assert refused.value.candidates == (f"{writer.id}:a~2", f"{writer.id}:a~2~1")
    for i, id in enumerate(refused.value.candidates, 1):
        ledger.record_late_result("main", id, i)
    ledger.record_late_result("main", "a", 0)
    assert [call.result for call in ledger.tool_calls("main")] == [0, 1, 2]
    assert problems(ledger) == []


def test_a_compaction_that_keeps_the_first_turn_summarises_nothing(ledger: Ledger) -> None:
    first, _ = grow(ledger, "main", "a", "b")
    with pytest.raises(NotApplicable, match="nothing"):
        ledger.compactions.record(session="main", summary="s", first_kept=first)


def test_an_unknown_argument_is_refused_and_editors_see_the_known_ones(ledger: Ledger) -> None:
    verbs: list[Callable[..., Any]] = [
        ledger.record_turn,
        ledger.begin_turn,
        partial(ledger.create_session, "main"),
        partial(ledger.compactions.record, summary="s"),
    ]
    verbs += [getattr(ledger, name) for name in dir(ledger) if name.startswith(("find_", "search"))]
    for verb in verbs:
        known = inspect.signature(verb).parameters
        assert all(argument.kind is not argument.VAR_KEYWORD for argument in known.values())
        with pytest.raises(TypeError, match="modle"):
            verb(modle="m")
    with pytest.raises(InvalidInput, match="tools_available"):
        ledger.record_turn(query="q", tools_available="read")
    assert ledger.sessions() == []


def test_two_pins_that_differ_are_refused(ledger: Ledger) -> None:
    first, second = grow(ledger, "main", "a", "b")
    with pytest.raises(InvalidInput, match="expected"):
        ledger.record_turn(session="main", query="q", parent=second, expected=first)
    assert ledger.record_turn(session="main", query="q", parent=second, expected=second).parent_id == second


def test_a_spawned_session_is_called_what_people_can_type(ledger: Ledger) -> None:
    for label in ("a\0b", "a~1", " a", SURROGATE, ""):
        with pytest.raises(InvalidInput):
            ledger.record_turn(session="main", query="q", tool_calls=[{"name": "t", "spawned_session": label}])
    with ledger.begin_turn(session="main") as writer:
        call = writer.tool_call("t")
        with pytest.raises(InvalidInput):
            writer.tool_result(call, spawned_session="a~1")
    assert [session.label for session in ledger.sessions()] == ["main"]


def test_an_agent_has_a_name_of_some_length(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="agent's name"):
        ledger.create_session("s", persona="x" * 513)
    assert ledger.create_session("s", persona="x" * 512).persona_id == "x" * 512


HUGE = 10**5000
"""Python does not write it in digits."""


@pytest.mark.parametrize("part", [{"type": "text", "text": "hi"}, None, 5, "text", [10**5000]])
def test_what_is_no_part_of_a_message_is_refused(ledger: Ledger, part: Any) -> None:
    """What lies in a record that a caller made itself is looked at where it is written."""
    message = NewMessage(role=MessageRole.USER, content=(part,))
    before = exported(ledger)
    with pytest.raises(InvalidInput, match="a part of a message is"):
        ledger.record_turn(session="odd", query=message, response="r")
    with pytest.raises(InvalidInput, match="a part of a message is"):
        ledger.inbox.admit(message, session="odd")
    assert exported(ledger) == before


@pytest.mark.parametrize("field", ["files", "lints", "codeblocks"])
@pytest.mark.parametrize("notes", [5, "a", ({"path": "a"},), (None,)])
def test_notes_that_are_none_are_refused(ledger: Ledger, field: str, notes: Any) -> None:
    message = NewMessage(role=MessageRole.USER, content="q", **{field: notes})
    with pytest.raises(InvalidInput, match=f"{field} are not a list of"):
        ledger.record_turn(session="odd", query=message, response="r")


@pytest.mark.parametrize(
    "call",
    [
        NewToolCall(name="ls", error={"message": 5}),  # type: ignore[arg-type]
        NewToolCall(name="ls", error=[HUGE]),  # type: ignore[arg-type]
        NewToolCall(name="ls", id=["c1"]),  # type: ignore[arg-type]
        NewToolCall(name=HUGE),  # type: ignore[arg-type]
    ],
)
def test_a_call_with_a_field_of_another_type_is_refused(ledger: Ledger, call: NewToolCall) -> None:
    with pytest.raises(InvalidInput):
        ledger.record_turn(session="odd", query="q", tool_calls=[call], response="r")


def test_an_error_that_is_given_as_its_fields_is_one(ledger: Ledger) -> None:
    call = NewToolCall(name="ls", id="c1", error={"message": "it broke"})  # type: ignore[arg-type]
    turn = ledger.record_turn(session="odd", query="q", tool_calls=[call], response="r")
    (found,) = ledger.tool_calls(turn.id)
    assert found.error == "it broke"


@pytest.mark.parametrize("field", ["session", "model", "parent", "key", "usage", "provider", "finish_reason"])
def test_a_number_that_python_does_not_write_is_refused_in_words(ledger: Ledger, field: str) -> None:
    arguments: dict[str, Any] = {"session": "odd", "query": "q", "response": "r", field: HUGE}
    with pytest.raises(InvalidInput):
        ledger.record_turn(**arguments)


@pytest.mark.parametrize("option", ["role", "origin", "since"])
def test_so_it_is_by_search(ledger: Ledger, option: str) -> None:
    options: dict[str, Any] = {option: HUGE}
    with pytest.raises(InvalidInput):
        ledger.search("q", **options)


OTHER_VERBS: dict[str, Callable[[Any], object]] = {
    "changes": lambda ledger: list(ledger.changes(0, wait="soon")),
    "find_tool_calls": lambda ledger: ledger.find_tool_calls(spawned=HUGE),
    "inbox.list": lambda ledger: ledger.inbox.list(limit=HUGE),
    "inbox.list after": lambda ledger: ledger.inbox.list(after=HUGE),
    "move_head": lambda ledger: ledger.move_head("odd", new=None, expected=HUGE),
    "programs.request": lambda ledger: ledger.programs.request(HUGE),
}


@pytest.mark.parametrize("verb", OTHER_VERBS)
def test_so_it_is_by_other_verbs(ledger: Ledger, verb: str) -> None:
    ledger.record_turn(session="odd", query="q", response="r")
    with pytest.raises(InvalidInput):
        OTHER_VERBS[verb](ledger)


def test_a_step_that_no_session_takes_is_named(ledger: Any) -> None:
    ledger.record_turn(session="odd", query="q", response="r")
    with pytest.raises(NotApplicable, match="a session cannot <int>"):
        ledger.programs.step_session("odd", HUGE)


def test_waiting_for_changes_may_be_for_ever(ledger: Ledger) -> None:
    ledger.record_turn(session="odd", query="q", response="r")
    assert list(ledger.changes(0, wait=HUGE))


def test_the_detail_of_an_image_is_text(ledger: Ledger) -> None:
    message = NewMessage(role=MessageRole.USER, content=(ImagePart("u", {}),))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="detail is dict"):
        ledger.record_turn(session="odd", query=message, response="r")
