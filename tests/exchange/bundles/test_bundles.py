"""What a bundle holds, and what becomes of it in another ledger."""

from pathlib import Path

import pytest

import weft
from tests.exchange.bundles.histories import imported_thread, rich_thread
from tests.exchange.bundles.reading import lines_of, verified
from tests.ledger.histories import change, exported, grow, import_into, large_bytes, problems, queries, texts
from tests.ledger.imported import native_turn, rich_import, take
from weft.exchange.bundles import create_bundle, import_bundle
from weft.kernel.errors import Damaged, InvalidInput, NotFound, StoreError
from weft.ledger.api.base import open_thread_facts
from weft.ledger.api.ledger import Ledger
from weft.ledger.imports import import_secret
from weft.ledger.read import thread_events
from weft.store.fact_log import FactReader, LogRow


def thread_of(ledger: Ledger, name: str) -> list[tuple[str, list[str], list[object]]]:
    """Everything that is shown of a thread."""
    return [
        (
            turn.digest,
            texts(ledger.messages(turn.id)),
            [(call.name, call.result) for call in ledger.tool_calls(turn.id)],
        )
        for turn in ledger.thread(name).turns
    ]


def test_a_thread_reads_the_same_in_another_ledger(ledger: Ledger, other: Ledger, target: Path) -> None:
    rich_thread(ledger)
    made = create_bundle(ledger, ["alt"], target)
    assert verified(target) == made.report
    _, brought = import_bundle(other, target)
    assert (brought.events, brought.contents) == (made.report.events, made.report.contents)
    theirs = thread_of(other, "alt")
    assert theirs[0] == thread_of(ledger, "alt")[0]
    assert theirs[2:] == thread_of(ledger, "alt")[2:]
    assert other.thread("alt").digest == ledger.thread("alt").digest
    assert queries(other, "alt") == queries(ledger, "alt")
    assert problems(other) == []
    assert other.upkeep.rebuild() == 0


def test_a_bundle_holds_its_thread_and_nothing_beside(disk: Ledger, target: Path) -> None:
    rich_thread(disk)
    report = create_bundle(disk, ["alt"], target).report
    said = b"\n".join(lines_of(target)).decode()
    assert [(each.digest, each.turns) for each in report.threads] == [(disk.thread("alt").digest, 7)]
    for text in ("the first answer", "what came late", "a summary of it all", "this stays", "asked for", "ann"):
        assert text in said
    for text in ("nobody's business", "beyond the fork point", "to be erased", "other"):
        assert text not in said
    assert report.absent["erased"] >= 2
    assert report.excerpts == 1 + report.absent["erased"]


def test_a_bundle_has_the_substitutions_of_its_thread(ledger: Ledger, other: Ledger, target: Path) -> None:
    said = ledger.messages(ledger.record_turn(session="main", query="q", response="Lyon").id)[-1].id
    aside = ledger.messages(ledger.record_turn(session="aside", query="q", response="elsewhere").id)[-1].id
    ledger.substitute(said, "Paris")
    ledger.substitute(aside, "private replacement")
    create_bundle(ledger, ["main"], target)
    assert b"private replacement" not in b"\n".join(lines_of(target))
    verified(target)
    import_bundle(other, target)
    assert other.message(said).text == "Paris"
    assert other.originals().message(said).text == "Lyon"
    assert problems(other) == []


def test_a_bundle_leaves_out_substitutions_behind_a_fork_point(disk: Ledger, other: Ledger, target: Path) -> None:
    turn = disk.record_turn(session="main", query="early", response="late words")
    first, answer = disk.messages(turn.id)
    disk.substitute(first.id, "earlier")
    disk.substitute(answer.id, "later words")
    disk.fork(disk.events(turn.id)[1].id, label="alt")
    create_bundle(disk, ["alt"], target)
    assert b"later words" not in b"\n".join(lines_of(target))
    import_bundle(other, target)
    assert texts(other.messages(turn.id)) == ["earlier"]
    assert problems(other) == []


def test_a_turn_that_is_forked_inside_goes_out_up_to_the_fork_point(disk: Ledger, other: Ledger, target: Path) -> None:
    rich_thread(disk)
    create_bundle(disk, ["alt"], target)
    import_bundle(other, target)
    (cut,) = [turn for turn in disk.thread("alt").turns if "look at the file" in texts(disk.messages(turn.id))]
    assert texts(other.messages(cut.id)) == ["look at the file", "let me see"]
    assert [call.outcome for call in other.tool_calls(cut.id)] == [None]


def test_what_was_cut_comes_with_a_thread_that_has_it(disk: Ledger, other: Ledger, tmp_path: Path) -> None:
    rich_thread(disk)
    create_bundle(disk, ["alt"], tmp_path / "alt.weft")
    both = create_bundle(disk, ["alt", "main"], tmp_path / "both.weft").report
    assert len(both.threads) == 2
    import_bundle(other, tmp_path / "alt.weft")
    import_bundle(other, tmp_path / "both.weft")
    assert thread_of(other, disk.resolve("main")) == thread_of(disk, "main")
    assert problems(other) == []


def test_an_event_inside_a_turn_can_be_a_head(disk: Ledger, other: Ledger, target: Path) -> None:
    rich_thread(disk)
    event = disk.events("main")[2].id
    report = create_bundle(disk, [event], target).report
    assert verified(target).threads[0].digest == event == report.heads[0].event
    import_bundle(other, target)
    assert texts(other.messages(event)) == ["look at the file"]


def test_a_session_that_only_shares_turns_with_the_one_asked_for_stays_out(
    ledger: Ledger, other: Ledger, target: Path
) -> None:
    shared = native_turn("t1", started=1_000, ended=1_100, end=9)
    take(ledger, "a-first", shared, file="1", title="The first title")
    take(ledger, "b-second", shared, native_turn("t2", parent=0, started=2_000, offset=9, end=20), file="2")
    ledger.fork("b-second", label="a fork")
    first, second = (ledger.session(label) for label in ("a-first", "b-second"))
    assert [turn.session_id for turn in ledger.thread("b-second").turns] == [first.id, second.id]
    for number, asked in enumerate(["b-second", str(second.head)]):
        create_bundle(ledger, [asked], (path := target.with_name(f"{number}.weft")))
        words = b"\n".join(lines_of(path)).decode()
        assert "b-second" in words
        assert not [name for name in (first.id, "a-first", "The first title") if name in words]
        import_bundle(other, path)
    assert [(turn.session_id, turn.started_at, turn.usage) for turn in other.thread("b-second").turns] == [
        (second.id, turn.started_at, turn.usage) for turn in ledger.thread("b-second").turns
    ]
    assert problems(other) == []
    for number, asked_for in enumerate([["a-first", "b-second"], ["a fork"]], 2):  # who forks, asks for what was forked
        create_bundle(ledger, asked_for, (path := target.with_name(f"{number}.weft")))
        assert b"a-first" in b"\n".join(lines_of(path))


def test_an_imported_thread_goes_out_with_its_links_and_without_its_sources(
    ledger: Ledger, other: Ledger, target: Path
) -> None:
    label = imported_thread(ledger)
    report = create_bundle(ledger, [label], target).report
    assert report == verified(target)
    assert (report.links, report.absent["outside"] > 0) == (1, True)
    import_bundle(other, target)
    assert thread_of(other, label) == thread_of(ledger, label)
    said = b"\n".join(lines_of(target)).decode()
    assert "a.jsonl" not in said
    assert "what no turn is made of" not in said
    assert problems(other) == []


def test_an_older_version_of_an_imported_turn_can_go_out(disk: Ledger, other: Ledger, target: Path) -> None:
    rich_import(disk)
    old = [turn.id for turn in map(disk.turn, _turns(disk)) if not turn.is_current]
    assert old
    create_bundle(disk, old, target)
    verified(target)
    import_bundle(other, target)
    for turn in old:
        assert thread_of(other, turn) == thread_of(disk, turn)


def _turns(ledger: Ledger) -> list[str]:
    streams = {change.event.stream for change in ledger.changes()}
    return sorted(stream[4:] for stream in streams if stream.startswith("run:"))


def test_an_imported_turn_may_be_left_in_the_middle(disk: Ledger, other: Ledger, target: Path) -> None:
    label = imported_thread(disk)
    middle = disk.events(label)[2].id
    disk.fork(middle, label="mine")
    grow(disk, "mine", "on from here")
    create_bundle(disk, ["mine"], target)
    verified(target)
    import_bundle(other, target)
    assert queries(other, "mine") == queries(disk, "mine")
    assert problems(other) == []


@pytest.mark.parametrize("kind", ["recorded", "imported"])
def test_a_thread_is_found_without_a_look_at_every_row(
    disk: Ledger, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    rich_thread(disk)
    label = "alt" if kind == "recorded" else imported_thread(disk)
    with open_thread_facts(disk, [label]) as facts:
        found = [*facts.events()]
        monkeypatch.setattr(thread_events, "rows_at", lambda log, *_: log.rows())
        assert found == [*facts.events()]


def test_what_is_read_for_a_thread_does_not_grow_with_the_ledger(disk: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even with the session that made it."""
    grow(disk, "main", "one", "two", "three")
    start = disk.resolve("main")
    read: list[int] = []
    log = FactReader.log

    def counted(facts: FactReader, after: int = 0, limit: int = 512) -> list[LogRow]:
        rows = log(facts, after, limit)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(FactReader, "log", counted)
    counts = []
    for more in (40, 160):
        grow(disk, "beside", *(f"{more} {k}" for k in range(more)))
        disk.fork(start, label=f"aside {more}")
        grow(disk, "main", *(f"later {more} {k}" for k in range(more)))
        disk.upkeep.catch_up()
        read.clear()
        with open_thread_facts(disk, [start]) as facts:
            assert len([*facts.events()]) > 3
        counts.append(sum(read))
    assert counts[0] == counts[1]


def test_the_import_secret_never_goes_out(disk: Ledger, target: Path) -> None:
    label = imported_thread(disk)
    create_bundle(disk, [label], target)
    secret = import_secret(disk._store)
    said = b"\n".join(lines_of(target))
    assert secret not in said
    assert secret.hex().encode() not in said


def test_times_and_usage_of_an_imported_thread_are_shown_as_before(disk: Ledger, other: Ledger, target: Path) -> None:
    label = imported_thread(disk)
    create_bundle(disk, [label], target)
    import_bundle(other, target)
    for turn in disk.thread(label).turns:
        theirs = other.turn(turn.id)
        assert (theirs.usage, theirs.model, theirs.time_known) == (turn.usage, turn.model, turn.time_known)
        assert theirs.started_at == turn.started_at or not turn.time_known


def test_the_same_request_gives_the_same_bytes(ledger: Ledger, tmp_path: Path) -> None:
    rich_thread(ledger)
    first = create_bundle(ledger, ["alt", "main"], tmp_path / "1.weft")
    second = create_bundle(ledger, ["main", "alt", "main"], tmp_path / "2.weft")
    assert Path(first.path).read_bytes() == Path(second.path).read_bytes()


def test_a_copy_of_the_ledger_gives_the_same_bytes(disk: Ledger, tmp_path: Path) -> None:
    rich_thread(disk)
    weft.copy(disk, tmp_path / "copy.db")
    create_bundle(disk, ["alt"], tmp_path / "1.weft")
    with weft.open(tmp_path / "copy.db", read_only=True) as copy:
        create_bundle(copy, ["alt"], tmp_path / "2.weft")
    assert (tmp_path / "1.weft").read_bytes() == (tmp_path / "2.weft").read_bytes()


def test_packed_contents_go_out_as_any_others(disk: Ledger, tmp_path: Path) -> None:
    rich_thread(disk)
    create_bundle(disk, ["alt"], tmp_path / "1.weft")
    disk.upkeep.pack()
    create_bundle(disk, ["alt"], tmp_path / "2.weft")
    assert (tmp_path / "1.weft").read_bytes() == (tmp_path / "2.weft").read_bytes()


def test_large_and_binary_contents_go_out_piece_by_piece(disk: Ledger, other: Ledger, target: Path) -> None:
    large = disk.put_content(large_bytes(2_500_000))
    odd = disk.put_content(b"\xff\x00 not text")
    empty = disk.put_content(b"")
    for each in (large, odd, empty):
        disk.record_turn(session="main", query=each, response="seen")
    create_bundle(disk, ["main"], target)
    verified(target)
    import_bundle(other, target)
    for each in (large, odd, empty):
        assert b"".join(other.read_content(each.ref)) == b"".join(disk.read_content(each.ref))


def test_an_import_brings_nothing_twice(disk: Ledger, other: Ledger, target: Path) -> None:
    rich_thread(disk)
    create_bundle(disk, ["alt"], target)
    _, first = import_bundle(other, target)
    _, again = import_bundle(other, target)
    assert (again.events, again.contents) == (0, 0)
    assert again.known == first.events + first.contents
    _, own = import_bundle(disk, target)
    assert (own.events, own.contents) == (0, 0)


def test_the_rest_of_a_ledger_may_come_after_a_bundle_of_it(disk: Ledger, other: Ledger, target: Path) -> None:
    rich_thread(disk)
    create_bundle(disk, ["alt"], target)
    import_bundle(other, target)
    import_into(other, exported(disk))
    assert {turn.digest for turn in other.log()} == {turn.digest for turn in disk.log()}
    assert problems(other) == []


def test_one_can_go_on_from_a_thread_that_came(disk: Ledger, other: Ledger, target: Path) -> None:
    rich_thread(disk)
    report = create_bundle(disk, ["alt"], target).report
    grow(other, "alt", "a session of the same name")
    import_bundle(other, target)
    other.fork(report.threads[0].digest, label="mine")
    grow(other, "mine", "on it goes")
    assert queries(other, "mine")[-2:] == ["after the compaction", "on it goes"]


def test_a_session_is_told_of_as_far_as_it_speaks_of_the_thread(disk: Ledger, other: Ledger, target: Path) -> None:
    grow(disk, "main", "one", "two")
    report = create_bundle(disk, ["main~1"], target).report
    import_bundle(other, target)
    assert [(session.label, session.head) for session in other.sessions()] == [("main", report.threads[0].turn_id)]
    assert disk.resolve("main").encode() not in b"\n".join(lines_of(target))


def test_a_running_turn_goes_out_as_far_as_it_has_come(disk: Ledger, target: Path) -> None:
    grow(disk, "main", "one")
    with disk.begin_turn(session="main") as writer:
        writer.message("two", role="user")
        report = create_bundle(disk, [writer.id], target).report
        assert verified(target).threads[0].turns == report.threads[0].turns == 2


def test_nothing_is_written_over_or_left_behind(disk: Ledger, target: Path) -> None:
    grow(disk, "main", "one")
    with pytest.raises(NotFound):
        create_bundle(disk, ["nobody"], target)
    with pytest.raises(InvalidInput):
        create_bundle(disk, [], target)
    assert not list(target.parent.glob("thread*"))
    target.write_text("mine")
    with pytest.raises(StoreError):
        create_bundle(disk, ["main"], target)
    assert target.read_text() == "mine"


@pytest.mark.parametrize(
    "damage", ["'success', 'failure'", "'\"v\":1', '\"v\": 1'", "'history_append', 'history_appended'"]
)
def test_a_damaged_thread_does_not_go_out(disk: Ledger, target: Path, damage: str) -> None:
    grow(disk, "main", "one", "two")
    assert change(disk.path, f"UPDATE log SET events = CAST(replace(CAST(events AS TEXT), {damage}) AS BLOB)")
    with pytest.raises(Damaged):
        create_bundle(disk, ["main"], target)
    assert not list(target.parent.glob("thread*"))


def test_a_damaged_content_does_not_go_out(disk: Ledger, target: Path) -> None:
    grow(disk, "main", "one", "two")
    assert change(disk.path, "UPDATE content SET bytes = CAST('two!' AS BLOB) WHERE bytes = CAST('two' AS BLOB)")
    with pytest.raises(Damaged):
        create_bundle(disk, ["main"], target)
    assert not list(target.parent.glob("thread*"))


def test_an_erasure_names_the_bundles_that_were_made(disk: Ledger, target: Path) -> None:
    (turn,) = grow(disk, "main", "one")
    create_bundle(disk, ["main"], target)
    assert [(copy.path, copy.kind) for copy in disk.erasure.plan(turn).copies] == [(str(target), "bundle")]
