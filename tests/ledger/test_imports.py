"""Imported history: the same in every copy, in every order, whoever imported it."""

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
import zstandard

import weft
from tests.ledger.conftest import NOON
from tests.ledger.histories import exported, import_into, problems, select
from tests.ledger.imported import native_call, native_turn, rich_import, take
from tests.sizes import PROVING, share
from weft import Ledger
from weft.kernel import contents
from weft.kernel.enums import AgentRole, FileKind, LinkReason
from weft.kernel.errors import FactDamaged, InvalidFact, NotApplicable
from weft.kernel.events import import_stream
from weft.ledger.imports import ImportCounts, RawFile
from weft.ledger.imports.imported_turns import (
    NativeCall,
    NativeCompaction,
    NativeLink,
    NativeMessage,
    NativeSession,
    Tokens,
)
from weft.ledger.imports.sources import MAGIC, unpack
from weft.ledger.model import FileNote, LintNote
from weft.ledger.upkeep.facts_file import event_line
from weft.store.sql import RowsRefused
from weft.store.sqlite.store import SqliteBase

CALLS = 20_000 if PROVING else 4_000


def digests(ledger: Ledger) -> dict[str, str]:
    """Every turn that is current, with the digest of its thread."""
    rows = ledger.log(limit=10_000)
    return {turn.id: turn.digest for turn in rows}


def head(ledger: Ledger, session: str) -> str:
    found = ledger.session(session).head
    assert found is not None
    return str(found)


@pytest.fixture
def friends(tmp_path: Path) -> list[Ledger]:
    """Three ledgers that share their import secret."""
    ledgers: list[Ledger] = [weft.open(tmp_path / f"{name}.db") for name in "abc"]
    for other in ledgers[1:]:
        other.imports.share_with(ledgers[0])
    return ledgers


def test_an_imported_turn_reads_like_any_other(ledger: Ledger) -> None:
    calls = [native_call("c1", at=1_500, done=1_600, files=(FileNote(kind=FileKind.WRITTEN, path="x.py"),))]
    turn = native_turn("t1", calls=calls, started=1_000, ended=2_000, workspace="/w", git_branch="b", version="9")
    counts = take(ledger, "s", turn, title="Words", workspace="/w")
    assert (counts.sessions, counts.turns, counts.known) == (1, 1, 0)
    session = ledger.session("s")
    assert (session.origin, session.origin_session_id, session.title) == ("toy", "s", "Words")
    (found,) = ledger.thread("s").turns
    assert (found.started_at, found.completed_at, found.workspace_path) == (1_000, 2_000, "/w")
    assert (found.usage.input_tokens, found.usage.output_tokens, found.usage.total_tokens) == (10, 5, 15)
    assert (found.model, found.origin, found.status) == ("model-1", "toy", "completed")
    query, answer = ledger.thread("s").messages
    assert answer.context == {"rules": ["be kind", {"file": "x"}], "branch": "main"}
    assert (query.text, answer.text, answer.model, answer.native_id) == ("ask t1", "yes", "model-1", "t1-answer")
    (call,) = ledger.tool_calls(found.id)
    assert (call.name, call.result, call.started_at, call.completed_at) == ("run", "ok", 1_500, 1_600)
    assert problems(ledger) == []


def test_an_imported_chain_has_no_time_and_no_replica(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("t1", started=1_000))
    events = ledger.events(head(ledger, "s"))
    assert all(b'"ts"' not in event.line and b'"replica"' not in event.line for event in events)


def test_importing_again_changes_nothing(disk: Ledger) -> None:
    turns = [native_turn("t1", end=1), native_turn("t2", parent=0, offset=1, end=2)]
    take(disk, "s", *turns, title="x")
    before = exported(disk)
    counts = take(disk, "s", *turns, title="x")
    assert (counts.turns, counts.known, counts.sessions) == (0, 2, 0)
    assert exported(disk) == before


def test_a_source_that_has_grown_brings_only_what_is_new(ledger: Ledger) -> None:
    first, second = native_turn("t1", end=1), native_turn("t2", parent=0, offset=1, end=2)
    take(ledger, "s", first)
    counts = take(ledger, "s", first, second, reread=True)
    assert (counts.turns, counts.known, counts.superseded) == (1, 1, 0)
    assert [turn.depth for turn in ledger.thread("s").turns] == [1, 2]


def test_a_rewritten_source_supersedes_and_deletes_nothing(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("t1", "before", end=1))
    old = head(ledger, "s")
    counts = take(ledger, "s", native_turn("t1", "after", end=1), reread=True)
    assert counts.superseded == 1
    assert head(ledger, "s") != old
    assert [message.text for message in ledger.thread("s").messages] == ["ask t1", "after"]
    assert [message.text for message in ledger.thread(old).messages] == ["ask t1", "before"]
    assert [turn.id for turn in ledger.log()] == [head(ledger, "s")]
    assert problems(ledger) == []


def told(ledger: Ledger, session: str = "s") -> list[str]:
    return [message.text for message in ledger.thread(session).messages]


def test_a_source_that_is_written_back_shows_what_it_showed_before(disk: Ledger) -> None:
    """As often as it is: nothing is lost, and nothing doubled."""
    one, two = native_turn("t1", end=1), native_turn("t2", parent=0, offset=1, end=2)
    forms = {
        "a": [one, two],
        "b": [native_turn("t1", "other", end=1), two],
        "c": [one, native_turn("t2", "another", parent=0, offset=1, end=2)],
    }
    shown: dict[str, tuple[list[str], list[str]]] = {}
    for number, form in enumerate("abacbacab"):
        take(disk, "s", *forms[form], reread=number > 0)
        turns = [turn.id for turn in disk.thread("s").turns]
        assert shown.setdefault(form, (turns, told(disk))) == (turns, told(disk))
        assert sorted(turn.id for turn in disk.log()) == sorted(turns)
        assert problems(disk) == []
    assert len({tuple(turns) for turns, _ in shown.values()}) == 3
    before = exported(disk)
    assert take(disk, "s", *forms["b"], reread=True).superseded == 0
    assert exported(disk) == before


def test_turns_that_another_took_in_come_back(disk: Ledger) -> None:
    apart = [native_turn("t1", end=1), native_turn("t2", parent=0, offset=1, end=2)]
    together = [native_turn("t1", "both", names=("t1", "t2"), end=2)]
    shown: dict[int, list[str]] = {}
    for number, form in enumerate([apart, together, apart, together, apart]):
        take(disk, "s", *form, reread=number > 0)
        current = sorted(turn.id for turn in disk.log())
        assert shown.setdefault(len(form), current) == current
        assert len(current) == len(form)
        assert problems(disk) == []


def test_a_version_that_is_new_replaces_one_that_had_come_back(disk: Ledger) -> None:
    for number, text in enumerate(["a", "b", "a", "c", "b", "d"]):
        take(disk, "s", native_turn("t1", text, end=1), reread=number > 0)
        assert told(disk) == ["ask t1", text]


@pytest.mark.parametrize(("one", "two"), [("a", "b"), ("b", "a")])
def test_which_version_came_back_last_does_not_depend_on_the_order_of_facts(
    disk: Ledger, tmp_path: Path, one: str, two: str
) -> None:
    for number, text in enumerate([one, two, one]):
        take(disk, "s", native_turn("t1", text, end=1), reread=number > 0)
    with weft.open(tmp_path / "other.db") as other:
        other.imports.share_with(disk)
        take(other, "s", native_turn("t1", one, end=1))
        take(other, "s", native_turn("t1", two, end=1), reread=True)
        import_into(other, exported(disk))
        assert told(other) == told(disk) == ["ask t1", one]
        import_into(disk, exported(other))
        assert digests(disk) == digests(other)
        assert problems(other) == problems(disk) == []


def copied_pair() -> tuple[tuple[str, list[Any]], tuple[str, list[Any]]]:
    """A session, and its continuation under another id, which begins with a copy: other places, a last count lost."""
    one = native_turn("t1", started=1_000, ended=1_100, version="1", end=10)
    two = native_turn("t2", parent=0, started=2_000, ended=2_100, version="1", offset=10, end=20)
    cut = native_turn("t2", parent=0, started=2_000, version="2", tokens=Tokens(input=10, output=0), offset=9, end=18)
    copy = native_turn("t1", started=1_000, ended=1_100, version="2", workspace="/other", end=9)
    three = native_turn("t3", parent=1, started=3_000, ended=3_100, offset=18, end=30)
    return ("a", [one, two]), ("b", [copy, cut, three])


def test_copies_collapse_and_count_once(ledger: Ledger) -> None:
    for session, turns in copied_pair():
        take(ledger, session, *turns, file=session)
    assert len(ledger.log()) == 3
    assert head(ledger, "a") in ledger.thread("b").ancestry
    assert ledger.thread("b").total_tokens == 45
    second = list(ledger.thread("b").turns)[1]
    assert second.usage.output_tokens == 5


def test_every_order_on_every_ledger_gives_the_same_after_merging(friends: list[Ledger], tmp_path: Path) -> None:
    first, second = copied_pair()
    longer = ("a", [*first[1], native_turn("t4", parent=1, started=4_000, offset=20, end=40)])
    rewritten = ("c", [native_turn("t1", "other words", started=1_000, end=12)])
    files = [first, second, longer, rewritten]
    for ledger, order in zip(friends, [files, files[::-1], [files[2], files[0], files[3], files[1]]], strict=True):
        for session, turns in order:
            take(ledger, session, *turns, file=f"{session}-{len(turns)}")
    for number, ledger in enumerate(friends):
        ledger.upkeep.export_facts(tmp_path / f"{number}.jsonl")
    for ledger in friends:
        for number in range(3):
            ledger.upkeep.import_facts(tmp_path / f"{number}.jsonl")
    assert digests(friends[0]) == digests(friends[1]) == digests(friends[2])
    for session in "abc":
        assert len({head(ledger, session) for ledger in friends}) == 1
        assert len({ledger.thread(session).total_tokens for ledger in friends}) == 1
    for ledger in friends:
        assert problems(ledger) == []


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_current_version_does_not_depend_on_the_order(ledger: Ledger, order: tuple[int, ...]) -> None:
    """The longest ancestry, then the most said, then the smallest id."""
    alone = [native_turn("t2", end=5)]
    rooted = [native_turn("t1", end=1), native_turn("t2", parent=0, offset=1, end=5)]
    talkative = [native_turn("t1", end=1), native_turn("t2", parent=0, calls=[native_call("c")], offset=1, end=5)]
    for which in order:
        take(ledger, f"s{which}", *(alone, rooted, talkative)[which], file=str(which))
    shown = {turn.id for turn in ledger.log()}
    assert head(ledger, "s2") in shown
    assert {head(ledger, f"s{which}") for which in range(3)} == {head(ledger, "s2")}
    assert len(shown) == 2


def test_strangers_imports_stay_two_trees(tmp_path: Path) -> None:
    one, two = weft.open(tmp_path / "one.db"), weft.open(tmp_path / "two.db")
    for ledger in (one, two):
        take(ledger, "s", native_turn("t1"))
    assert digests(one).keys().isdisjoint(digests(two))


def test_a_secret_is_shared_before_the_first_import(friends: list[Ledger], tmp_path: Path) -> None:
    stranger = weft.open(tmp_path / "stranger.db")
    take(stranger, "s", native_turn("t1"))
    with pytest.raises(NotApplicable):
        stranger.imports.share_with(friends[0])


def test_a_subagent_and_its_call_find_each_other_in_either_order(ledger: Ledger) -> None:
    spawning = native_turn("t1", calls=[native_call("c1", spawned="p/child")], end=9)
    take(ledger, "p/child", native_turn("k1", end=1), file="k", task="look")
    take(ledger, "p", spawning, file="p")
    take(ledger, "q", native_turn("u1", calls=[native_call("c2", spawned="q/child")], end=9), file="q")
    take(ledger, "q/child", native_turn("k2", end=1), file="k2", parent="q")
    for parent, call in (("p", "c1"), ("q", "c2")):
        child = ledger.session(f"{parent}/child")
        assert (child.parent_session, child.spawn_tool_call_id) == (parent, f"{head(ledger, parent)}:{call}")
        assert child.parent_turn_id == head(ledger, parent)
        assert ledger.tool_calls(head(ledger, parent))[0].spawned_session == f"{parent}/child"
    assert ledger.session("p/child").task_description == "look"
    assert problems(ledger) == []


@pytest.mark.parametrize("child_first", [True, False])
def test_a_parent_in_another_file_is_linked_once_both_are_there(ledger: Ledger, child_first: bool) -> None:
    parent = ("p", [native_turn("t1", names=("record-7",), end=1)])
    child = ("c", [native_turn("k1", link=NativeLink(to="record-7", why=LinkReason.CONTINUATION), end=1)])
    links = [
        take(ledger, session, *turns, file=session).links
        for session, turns in ((child, parent) if child_first else (parent, child))
    ]
    assert links == [0, 1]
    assert [turn.depth for turn in ledger.thread("c").turns] == [1, 1]
    assert next(message.text for message in ledger.thread("c").messages) == "ask t1"
    assert problems(ledger) == []


def test_a_compaction_keeps_its_range(ledger: Ledger) -> None:
    turns = [native_turn("t1", end=1), native_turn("t2", parent=0, end=2)]
    summary = NativeCompaction(summary="short", first_kept=1, trigger="manual", tokens_before=7, tokens_after=3)
    take(ledger, "s", *turns, native_turn("t3", parent=1, compaction=summary, end=3))
    found = ledger.compactions.get(head(ledger, "s"))
    assert (found.summary, found.trigger, found.tokens_before, found.tokens_after) == ("short", "manual", 7, 3)
    assert found.first_kept == found.summarized_through
    texts = [message.text for message in ledger.context(session="s").messages]
    assert texts[0] == "short"
    assert "ask t2" in texts
    assert "ask t1" not in texts


def test_a_call_without_an_outcome_and_an_interrupted_turn(ledger: Ledger) -> None:
    waiting = NativeCall(id="c", name="run", arguments={})
    take(ledger, "s", native_turn("t1", calls=[waiting], interrupted=True))
    (turn,) = ledger.thread("s").turns
    assert (turn.status, turn.interruption_reason) == ("completed", "canceled")
    assert ledger.tool_calls(turn.id)[0].outcome == "interrupted"


def test_a_failed_turn_stays_and_says_why(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("t1", error="overloaded"))
    (turn,) = ledger.thread("s").turns
    assert (turn.status, turn.error) == ("failed", "overloaded")


def test_a_newer_mapping_is_used_only_when_it_is_asked_for(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("t1", end=1))
    first = head(ledger, "s")
    assert take(ledger, "s", native_turn("t1", end=1), mapping=2).known == 1
    counts = take(ledger, "s", native_turn("t1", end=1), mapping=2, remap=True)
    assert (counts.turns, counts.superseded) == (1, 1)
    assert head(ledger, "s") != first
    assert problems(ledger) == []


def test_a_session_that_was_moved_here_no_longer_follows_its_source(ledger: Ledger) -> None:
    turns = [native_turn("t1", end=1), native_turn("t2", parent=0, end=2)]
    take(ledger, "s", *turns)
    ledger.move_head("s", new=ledger.resolve("s~1"))
    take(ledger, "s", *turns, native_turn("t3", parent=1, end=3), reread=True)
    assert head(ledger, "s") == next(iter(ledger.thread("s").turns)).id
    assert len(ledger.log()) == 3


def test_going_on_from_an_imported_turn(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("t1", end=1))
    ledger.fork(head(ledger, "s"), label="mine")
    ledger.record_turn(session="mine", query="and then?", response="this")
    assert [message.text for message in ledger.thread("mine").messages][-1] == "this"
    assert problems(ledger) == []


def test_tokens_that_become_known_later_reach_every_descendant(ledger: Ledger) -> None:
    low = native_turn("t1", tokens=Tokens(input=1, output=1), end=1)
    take(ledger, "s", low, native_turn("t2", parent=0, end=2))
    ledger.fork(head(ledger, "s"), label="mine")
    ledger.record_turn(session="mine", query="q", response="r", usage={"input_tokens": 1, "output_tokens": 1})
    take(ledger, "copy", native_turn("t1", tokens=Tokens(input=1, output=100), end=1), file="copy")
    assert ledger.thread("s").total_tokens == 1 + 100 + 15
    assert ledger.thread("mine").total_tokens == 1 + 100 + 15 + 2
    assert problems(ledger) == []


def test_views_are_rebuilt_from_facts(disk: Ledger) -> None:
    rich_import(disk)
    assert problems(disk) == []
    assert disk.upkeep.rebuild() == 0


def test_facts_of_imports_travel(disk: Ledger, tmp_path: Path) -> None:
    rich_import(disk)
    disk.upkeep.export_facts(tmp_path / "facts")
    with weft.open(tmp_path / "other.db") as other:
        other.upkeep.import_facts(tmp_path / "facts")
        assert digests(other) == digests(disk)
        assert problems(other) == []
        assert [session.title for session in other.sessions()] == [session.title for session in disk.sessions()]


CANARY = "canary in a coal mine"


STRINGS = {
    NativeSession: "title workspace git_branch version task agent parent spawn_call metadata".split(),
    NativeMessage: "native literal_time model provider finish_reason context metadata".split(),
    NativeCall: "id name arguments result error spawned detail".split(),
    NativeCompaction: "summary model trigger metadata".split(),
    FileNote: ["path"],
    LintNote: "path message source".split(),
}


@pytest.mark.parametrize(
    ("record", "field"),
    share([(record, field) for record, fields in STRINGS.items() for field in fields], test=8),
)
def test_nothing_that_a_source_says_stands_in_an_event(disk: Ledger, record: type, field: str) -> None:
    turn = native_turn("t1", calls=[native_call("c1")])
    told: dict[str, Any] = {}
    prompt, answer, call = turn.items
    if record is NativeSession:
        told = {field: CANARY}
    elif record is NativeMessage:
        turn.items = (prompt, msgspec.structs.replace(answer, **{field: CANARY}), call)
    elif record is NativeCall:
        turn.items = (prompt, answer, msgspec.structs.replace(call, **{field: CANARY}))
    elif record is NativeCompaction:
        turn.compaction = msgspec.convert({"summary": "s", field: CANARY}, NativeCompaction)
    else:
        note = record(**({"kind": "read"} if record is FileNote else {}), **{field: CANARY})
        turn.items = (
            prompt,
            msgspec.structs.replace(answer, **{"files" if record is FileNote else "lints": (note,)}),
            call,
        )
    take(disk, "s", turn, **told)
    assert_no_canary(disk)


@pytest.mark.parametrize(
    "field", "key error literal_time workspace git_branch version permissions toolset config metadata".split()
)
def test_nothing_that_a_source_says_of_a_turn_stands_in_an_event(disk: Ledger, field: str) -> None:
    turn = native_turn("t1")
    setattr(turn, field, CANARY)
    turn.tools = (CANARY,)
    take(disk, CANARY, turn, file=CANARY)
    assert_no_canary(disk)


def assert_no_canary(ledger: Ledger) -> None:
    lines = [row["event_json"] for row in select(Path(ledger.path), "SELECT event_json FROM events")]
    assert lines
    assert not [line for line in lines if CANARY in line]


def test_a_forged_name_is_refused(disk: Ledger, tmp_path: Path) -> None:
    """An imported turn is named by its source: a fact that names another is no fact."""
    take(disk, "s", native_turn("t1"))
    line = disk.events(head(disk, "s"))[0].line.replace(b'"mapping":"toy/1"', b'"mapping":"toy/2"')
    with weft.open(tmp_path / "other.db") as other, pytest.raises(InvalidFact, match="not the name"):
        import_into(other, event_line(line))


def test_sightings_are_a_set(disk: Ledger) -> None:
    take(disk, "s", native_turn("t1"))
    streams = {row["stream"] for row in select(Path(disk.path), "SELECT stream FROM events WHERE kind = 'sighting'")}
    assert streams == {import_stream(head(disk, "s")), import_stream(disk.session("s").id)}


def test_a_turn_that_took_in_an_earlier_one_stands_in_its_place(ledger: Ledger) -> None:
    """A command alone, and later the prompt that it belongs to: the source shows one turn where it showed another."""
    take(ledger, "s", native_turn("command", names=("command",), end=1))
    take(ledger, "s", native_turn("prompt", names=("command", "prompt"), end=2), reread=True)
    assert [turn.native_id for turn in ledger.log()] == ["prompt"]
    assert [turn.native_id for turn in ledger.thread("s").turns] == ["prompt"]
    assert problems(ledger) == []


@pytest.mark.parametrize("child_first", [True, False])
def test_a_session_that_is_only_named_is_linked_where_it_stood_then(ledger: Ledger, child_first: bool) -> None:
    turns = [native_turn("t1", started=1_000, end=1), native_turn("t2", parent=0, started=2_000, end=2)]
    later = native_turn("t3", parent=1, started=9_000, end=3)
    child = native_turn("k1", started=5_000, link=NativeLink(to="p", session="p", why=LinkReason.FORK), end=1)
    files = {"p": [*turns, later], "c": [child]}
    for session in ("c", "p") if child_first else ("p", "c"):
        take(ledger, session, *files[session], file=session)
    assert [turn.native_id for turn in ledger.thread("c").turns] == ["t1", "t2", "k1"]
    assert problems(ledger) == []


def test_a_session_that_is_only_named_is_linked_where_it_stands_to_what_has_no_time(ledger: Ledger) -> None:
    later = [native_turn("t1", started=NOON + 1_000, end=1), native_turn("t2", parent=0, started=NOON + 2_000, end=2)]
    child = native_turn("k1", link=NativeLink(to="p", session="p", why=LinkReason.FORK), end=1)
    take(ledger, "p", *later, file="p")
    take(ledger, "c", child, file="c")
    assert [turn.native_id for turn in ledger.thread("c").turns] == ["t1", "t2", "k1"]


def refuse_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the next commit do not fit, as when another thread's clash: all its work is done again."""
    run, refusals = SqliteBase._run_each, [RowsRefused()]

    def refusing(self: Any, *args: Any, **options: Any) -> Any:
        tip = run(self, *args, **options)
        if refusals:
            raise refusals.pop() from apsw.ConstraintError("a neighbour's row")
        return tip

    monkeypatch.setattr(SqliteBase, "_run_each", refusing)


def test_a_batch_that_is_written_twice_lands_once(
    friends: list[Ledger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raw").write_bytes(b"x" * 200)
    turns = [native_turn(f"t{i}", parent=i - 1 if i else None, end=i + 1) for i in range(130)]
    found: list[Any] = []
    for ledger in friends[:2]:
        importer, counts = ledger.imports.writer("toy", 1), ImportCounts()
        if found:
            refuse_once(monkeypatch)
        importer.take(NativeSession(id="s"), turns, "f", counts, raw=RawFile(tmp_path / "raw", 0, 200))
        kept = [(part.start, part.end) for part in ledger.imports.kept_sources("f")]
        found.append((digests(ledger), head(ledger, "s"), counts, kept, len(list(ledger.changes()))))
        assert problems(ledger) == []
    assert found[0] == found[1]


def test_two_that_import_the_same_at_once_write_it_once(disk: Ledger) -> None:
    with weft.open(disk.path) as other:
        import_writers = [ledger.imports.writer("toy", 1) for ledger in (disk, other)]
        for importer in import_writers:
            importer.take(NativeSession(id="s", title="x"), [native_turn("t1", end=1)], "f", ImportCounts())
            importer.keep(NativeSession(id="s"), "f", b"verbatim")
    events = [recorded.id for recorded in disk.changes()]
    assert len(events) == len(set(events))
    assert len(disk.imports.kept_sources("f")) == 1
    assert problems(disk) == []


def test_a_session_that_several_calls_of_a_batch_started(ledger: Ledger) -> None:
    take(ledger, "child", native_turn("k1", end=1), file="k", parent="p")
    calls = [[native_call(f"c{i}", spawned="child")] for i in range(6)]
    turns = [native_turn(f"t{i}", parent=i - 1 if i else None, calls=calls[i], end=i + 1) for i in range(6)]
    take(ledger, "p", *turns, file="p")
    assert ledger.session("child").parent_session == "p"
    assert problems(ledger) == []


def test_turns_whose_native_ids_are_not_here_are_not_each_others_versions(disk: Ledger, tmp_path: Path) -> None:
    take(disk, "s", native_turn("t1", end=1), native_turn("t2", parent=0, end=2))
    take(disk, "q", native_turn("u1", end=1), file="q")
    events = b"".join(line for line in exported(disk).splitlines(keepends=True) if b"event_id" in line)
    with weft.open(tmp_path / "other.db") as other:
        import_into(other, events)
        assert other.upkeep.stats()["superseded_turns"] == 0
        assert other.usage.report("origin").total == disk.usage.report("origin").total


def merged(friends: list[Ledger], *imports: Callable[[Ledger], object]) -> list[Ledger]:
    """One ledger reads in this order, another the other way round; then each gets the other's facts."""
    for ledger, order in zip(friends, (imports, imports[::-1]), strict=False):
        for each in order:
            each(ledger)
    facts = [exported(ledger) for ledger in friends[:2]]
    for ledger, other in zip(friends, facts[::-1], strict=False):
        import_into(ledger, other)
        assert problems(ledger) == []
    return friends[:2]


SEEN = (
    ("turn", "id, current, started_at, completed_at, model, provider, role, total_tokens, tokens_before"),
    ("session", "id, head, status, created_at, updated_at, parent_session, reach"),
    ("message", "id, at, model, provider, context, input_tokens"),
)


def assert_same_views(friends: list[Ledger]) -> None:
    for table, columns in SEEN:
        one, two = (select(ledger.path, f"SELECT {columns} FROM {table} ORDER BY id") for ledger in friends)
        assert one == two
    titles = [{session.id: session.title for session in ledger.sessions()} for ledger in friends]
    assert titles[0] == titles[1]


def test_turns_that_took_in_each_other_do_not_both_vanish(friends: list[Ledger]) -> None:
    command = native_turn("command", names=("command",), started=1_000, end=1)
    prompt = native_turn("prompt", names=("command", "prompt"), started=1_000, end=2)
    both = merged(
        friends, lambda to: take(to, "s", command, reread=True), lambda to: take(to, "s", prompt, reread=True)
    )
    assert_same_views(both)
    for ledger in both:
        (turn,) = ledger.log()
        assert head(ledger, "s") == turn.id
        assert ledger.usage.report("origin").total.total == 15


def plain_turn(started: int | None, at: int | None = None, **more: Any) -> Any:
    turn = native_turn("t1", started=started, end=5, **more)
    prompt, answer = turn.items
    bare: dict[str, Any] = {"model": None, "context": None, "files": (), "lints": (), "tokens": None}
    turn.items = (prompt, msgspec.structs.replace(answer, at=at, **bare))
    return turn


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (native_turn("t1", started=1_000, end=5), native_turn("t1", started=1_000, ended=2_000, end=5)),
        (plain_turn(1_000, 1_500), plain_turn(1_000)),
        (native_turn("t1", started=1_000, role=AgentRole.MANAGER, end=5), plain_turn(900)),
        (native_turn("t1", started=1_000, ended=9_000, end=5), plain_turn(900, ended=950)),
        (native_turn("t1", started=1_000, end=5), native_turn("t2", started=1_000, end=5)),
    ],
    ids=["an end untold", "a message's time untold", "words untold", "an earlier copy", "the same place"],
)
@pytest.mark.parametrize("session", ["s", "copy"])
def test_what_is_seen_does_not_depend_on_the_order(friends: list[Ledger], one: Any, two: Any, session: str) -> None:
    assert_same_views(
        merged(friends, lambda to: take(to, "s", one, file="a"), lambda to: take(to, session, two, file="b"))
    )


def test_what_is_told_of_a_session_does_not_depend_on_the_order(friends: list[Ledger]) -> None:
    turns = [native_turn("t1", started=1_000, end=1), native_turn("t2", parent=0, started=3_000, end=5)]
    both = merged(
        friends,
        lambda to: take(to, "s", turns[0], title="A", archived=True, created=500, parent="x"),
        lambda to: take(to, "s", *turns, title="B", created=700, parent="y"),
    )
    assert_same_views(both)
    assert both[0].session("s").title == "B"


def sighting(ledger: Ledger, session: str, turn: str | None = None, **fields: Any) -> bytes:
    about = {"session": ledger.session(session).id, **({"turn": turn} if turn else {}), **fields}
    stream = f"import:{turn or about['session']}"
    event = {"v": 1, "actor": "imported", "kind": "sighting", "stream": stream, "prev": None, "origin": "toy", **about}
    return event_line(contents.dumps(event)) + b"\n"


def test_a_sighting_says_nothing_of_what_was_recorded_here(ledger: Ledger) -> None:
    turn = ledger.record_turn(session="main", query="q", response="r", usage={"input_tokens": 1, "output_tokens": 1})
    claimed = [{"k": 1, "usage": {"input_tokens": 10**9}}]
    import_into(ledger, sighting(ledger, "main", turn.id, started=5, messages=claimed))
    import_into(ledger, sighting(ledger, "main", archived=True, end=3))
    assert (ledger.session("main").status, ledger.thread("main").total_tokens) == ("active", 2)
    assert problems(ledger) == []


@pytest.mark.parametrize("k", [-9, -1, 1, 10**15])
def test_a_call_that_is_not_there_started_nothing(ledger: Ledger, k: int) -> None:
    take(ledger, "child", native_turn("k1", end=1), file="k")
    take(ledger, "s", native_turn("t1", calls=[native_call("c1")], end=1))
    seen = [{"k": k, "spawned": ledger.session("child").id}]
    import_into(ledger, sighting(ledger, "s", head(ledger, "s"), calls=seen, messages=[{"k": k, "at": 1}], end=-5))
    assert ledger.session("child").parent_session is None
    assert problems(ledger) == []


def test_a_session_that_was_moved_back_stands_where_it_says(disk: Ledger, tmp_path: Path) -> None:
    """Facts of one batch: moved elsewhere, rows written, seen again, moved back."""
    turns = [native_turn("t1", end=1), native_turn("t2", end=2)]
    take(disk, "s", *turns)
    last = head(disk, "s")
    disk.create_session("y")
    disk.move_head("s", new=next(turn.id for turn in disk.log() if turn.id != last))
    disk.create_session("z")
    take(disk, "s", *turns, file="elsewhere")
    disk.move_head("s", new=last)
    with weft.open(tmp_path / "other.db") as other:
        import_into(other, exported(disk))
        query = "SELECT s.head, s.head_segment = t.segment AS fits FROM session s JOIN turn t ON t.id = s.head"
        assert select(other.path, query) == [{"head": last, "fits": 1}]
        assert problems(other) == []


def test_values_nested_too_deeply_are_kept_as_text(ledger: Ledger) -> None:
    value: Any = "end"
    for i in range(2_000):
        value = [value] if i % 2 else {"in": value}
    call = NativeCall(id="c", name="run", arguments=value, result=value)
    take(ledger, "s", native_turn("t0", end=1))
    turn = native_turn("t1", end=1)
    turn.items = (*turn.items, call)
    take(ledger, "deep", turn)
    assert "end" in str(ledger.tool_calls(head(ledger, "deep"))[0].result)
    assert problems(ledger) == []


def test_a_compaction_that_names_a_later_turn_names_none(ledger: Ledger) -> None:
    summary = NativeCompaction(summary="short", through=7, first_kept=-3)
    take(ledger, "s", native_turn("t1", end=1), native_turn("t2", parent=0, compaction=summary, end=2))
    assert ledger.compactions.get(head(ledger, "s")).first_kept is None
    assert problems(ledger) == []


def test_a_turn_of_very_many_calls(ledger: Ledger) -> None:
    calls = [native_call(f"c{i % (CALLS // 4)}") for i in range(CALLS)]
    take(ledger, "s", native_turn("t1", calls=calls, end=1))
    assert len(ledger.tool_calls(head(ledger, "s"))) == CALLS


@pytest.mark.parametrize("damage", ["count", "size", "frame"])
def test_a_kept_stretch_that_lies_is_refused(damage: str) -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(9 << 20) if damage == "size" else b"x")
    count = (2**32 - 1 if damage == "count" else 0).to_bytes(4, "big")
    with pytest.raises(FactDamaged):
        unpack(MAGIC + count + (b"nonsense" if damage == "frame" else frame), lambda ref: b"")


@pytest.mark.parametrize("when", [2**53 - 1, 1 - 2**53, 10**15, 253_402_300_799_999])
def test_a_time_that_no_calendar_has_is_no_time(ledger: Ledger, when: int) -> None:
    calls = [native_call("c1", at=when, done=when)]
    take(ledger, "s", native_turn("t1", calls=calls, started=when, ended=when, end=1), created=when)
    import_into(ledger, sighting(ledger, "s", head(ledger, "s"), started=when, messages=[{"k": 0, "at": when}]))
    (turn,) = ledger.log()
    times = [turn.started_at, turn.completed_at, ledger.session("s").created_at, ledger.messages(turn.id)[0].created_at]
    times.append(ledger.tool_calls(turn.id)[0].started_at)
    assert when not in times
    assert problems(ledger) == []


def test_what_comes_after_an_imported_compaction_sees_its_summary(ledger: Ledger) -> None:
    summary = NativeCompaction(summary="short")
    turns = [native_turn("t1", end=1), native_turn("t2", parent=0, compaction=summary, end=2)]
    take(ledger, "s", *turns, native_turn("t3", parent=1, end=3))
    found = ledger.context(session="s")
    assert found.compaction == ledger.resolve("s~1")
    assert [message.text for message in found.messages] == ["short", "ask t3", "yes"]


def test_a_finished_version_stands_before_one_that_was_cut_off(ledger: Ledger) -> None:
    """Both say the same: that one of them was interrupted is not more."""
    take(ledger, "a", native_turn("t1", interrupted=True, end=1), file="a")
    take(ledger, "b", native_turn("t1", "yes!", end=1), file="b")
    assert [turn.interruption_reason for turn in ledger.log()] == [None]
    assert head(ledger, "a") == head(ledger, "b")


def test_a_call_without_a_time_began_with_the_message_that_asked_for_it(ledger: Ledger) -> None:
    turn = native_turn("t1", calls=[native_call("c1", done=9_100)], started=1_000, ended=9_900)
    prompt, answer, call = turn.items
    turn.items = (prompt, msgspec.structs.replace(answer, at=9_000), call)
    take(ledger, "s", turn)
    (found,) = ledger.tool_calls(head(ledger, "s"))
    assert (found.started_at, found.completed_at) == (9_000, 9_100)
