"""What is missing travels, in both directions, between any two engines; the rest stays where it is."""

import io
import shlex
import sys
import threading
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.exchange.sync.conftest import Make
from tests.exchange.sync.wire import (
    FOREVER,
    contents,
    digests,
    events,
    heads,
    husks,
    over_wire,
    pull,
    push,
    tips,
)
from tests.ledger.histories import exported, grow, grow_at_once, import_into, large_bytes, problems, queries
from tests.ledger.imported import native_turn, rich_import, take
from tests.sizes import share
from weft.exchange import sync
from weft.exchange.sync.commands import ServePermissions
from weft.exchange.sync.fact_transfer import SyncFrameKind
from weft.kernel.errors import (
    ConnectionCut,
    InvalidInput,
    LabelTaken,
    LedgerMissing,
    NotApplicable,
    NotFound,
    ReadOnlyLedger,
    ReplicaDiverged,
)
from weft.ledger.api import store_of
from weft.ledger.api.ledger import Ledger

ENGINES = ["sqlite", "postgres"]


def opens(address: str) -> Ledger:
    return weft.open(address, create=False)


def stdio(ledger: Ledger, *options: str) -> str:
    words = [sys.executable, "-m", "weft.surfaces.cli", "sync-stdio", "--ledger", ledger.path, *options]
    return f"cmd:{shlex.join(words)}"


def assert_same(one: Ledger, other: Ledger) -> None:
    assert events(one) == events(other)
    assert contents(one) == contents(other)
    assert digests(one) == digests(other)
    assert tips(one) == tips(other)
    assert problems(one) == problems(other) == []


def rich(ledger: Ledger) -> None:
    """A little of everything that can be recorded."""
    grow(ledger, "main", "one", "two", persona="ann")
    ledger.fork("main~1", label="alt")
    grow(ledger, "alt", "three")
    ledger.record_turn(session="alt", tool_calls=[{"id": "c1", "name": "t", "status": "interrupted"}])
    ledger.record_late_result("alt", "c1", "at last")
    ledger.compactions.record(session="alt", summary="short")
    ledger.labels.add_alias("nick", "main")
    ledger.labels.rename("alt", "other")
    ledger.labels.archive("other")
    ledger.labels.delete(ledger.create_session("short-lived").id)
    large = ledger.put_content(large_bytes(1_500_000))
    ledger.record_turn(session="main", query=large, response="noted")
    gone = grow(ledger, "main", "forget this")[0]
    ledger.erasure.erase(gone, reason="asked to")
    rich_import(ledger)


@pytest.mark.parametrize(("start", "to"), share(list(product(ENGINES, ENGINES)), test=1))
def test_two_engines_hold_the_same_after_pulling_and_pushing(make: Make, start: str, to: str) -> None:
    one, other = make("one", start), make("other", to)
    rich(one)
    grow(other, "elsewhere", "hello")
    pull(other, one)
    push(other, one)
    assert_same(one, other)
    assert pull(other, one)[0].events == push(other, one)[0].events == 0
    assert list(one.thread("main").messages) == list(other.thread("main").messages)
    assert other.session("nick").label == "main"
    assert [session.status for session in other.sessions(every=True) if session.label == "other"] == ["archived"]


def test_a_second_pull_costs_what_is_new(here: Ledger, there: Ledger) -> None:
    grow(there, "main", *(f"question {i}" for i in range(300)))
    first = pull(here, there)[1].bytes
    again = pull(here, there)[1].bytes
    grow(there, "main", "one more")
    sent, wire = pull(here, there)
    assert (sent.events, sent.known) == (6, 0)
    assert again < 1000 < wire.bytes < 5000 < first


def test_what_came_from_there_is_not_offered_back(here: Ledger, there: Ledger) -> None:
    grow(there, "main", *(f"question {i}" for i in range(200)))
    pull(here, there)
    grow(here, "mine", "hello")
    sent, wire = push(here, there)
    assert (sent.events, sent.known) == (7, 0)
    assert wire.bytes < 5000
    pulled, wire = pull(here, there)
    assert (pulled.events, pulled.known) == (0, 0)
    assert wire.bytes < 1000


@pytest.mark.parametrize("moved", [True, False])
def test_an_imported_session_that_was_only_named_elsewhere_still_stands_where_its_source_says(
    here: Ledger, there: Ledger, moved: bool
) -> None:
    take(here, "s", native_turn("t1", end=10), native_turn("t2", parent=0, offset=10, end=20))
    imported = here.session("s").head
    pull(there, here)
    there.labels.rename("s", "theirs")
    if moved:
        here.record_turn(session="s", query="native")
    else:
        here.labels.rename("s", "ours")
    pull(here, there)
    (branch,) = here.merges.branches()
    assert branch.head == imported
    assert problems(here) == []
    assert here.merges.settle(branch.session_id, theirs=True).head == imported


def test_what_came_by_another_way_is_offered_and_not_sent(make: Make) -> None:
    one, two, three = make("one"), make("two"), make("three")
    grow(one, "main", *(f"question {i}" for i in range(50)))
    pull(two, one)
    pull(three, two)
    sent, _ = pull(three, one)
    assert (sent.events, sent.contents, sent.known) == (0, 0, 301)


def test_a_clone_is_another_ledger_with_everything(here: Ledger, make: Make) -> None:
    rich(here)
    made = make("made")
    done = sync.clone(made, here.path, opens)
    assert done.replica == here.replica != made.replica
    assert_same(here, made)
    assert [remote.name for remote in sync.remotes(made)] == ["origin"]
    grow(here, "main", "later")
    assert sync.clone(made, here.path, opens).events == 6
    with pytest.raises(NotApplicable, match="is a clone of"):
        sync.clone(made, f"{here.path}.other", opens)
    with pytest.raises(NotApplicable, match="is not empty"):
        sync.clone(here, made.path, opens)


def test_a_clone_to_which_nothing_came_is_tried_again_with_another_address(here: Ledger, make: Make) -> None:
    grow(here, "main", "hello")
    copy = make("disk")
    with pytest.raises(LedgerMissing):
        sync.clone(copy, "mistyped.db", opens)
    sync.clone(copy, here.path, opens, secret=False)
    assert [(known.address, known.shares_imports) for known in sync.remotes(copy)] == [(here.path, False)]
    assert queries(copy, "main") == ["hello"]
    with pytest.raises(NotApplicable, match="is a clone of"):
        sync.clone(copy, "mistyped.db", opens)


@pytest.mark.slow("starts three programs")
def test_a_ledger_is_synced_with_one_that_a_program_serves(here: Ledger, there: Ledger) -> None:
    rich(there)
    grow(here, "mine", "hello")
    pulled = sync.pull(here, stdio(there), opens)
    pushed = sync.push(here, stdio(there), opens)
    assert (pulled.events, pushed.events) == (len(events(there)) - 7, 7)
    assert pulled.received_bytes < pulled.event_bytes + pulled.content_bytes + 100_000
    assert_same(here, there)
    assert sync.pull(here, stdio(there), opens).events == 0


def test_a_program_that_serves_nothing_is_told(here: Ledger) -> None:
    for address, what in (("cmd:no-such-program", ConnectionCut), ("cmd:true", ConnectionCut), ("cmd:", InvalidInput)):
        with pytest.raises(what):
            sync.pull(here, address, opens)


def test_a_dry_run_says_how_much_would_travel_and_moves_nothing(here: Ledger, there: Ledger) -> None:
    rich(there)
    grow(here, "mine", "hello")
    would = sync.pull(here, there.path, opens, dry=True)
    assert len(events(here)) == 7
    done = sync.pull(here, there.path, opens)
    assert (would.events, would.event_bytes) == (done.events, done.event_bytes)
    assert done.content_bytes <= would.content_bytes <= done.content_bytes * 1.1
    assert sync.push(here, there.path, opens, dry=True).events == 7
    assert len(events(there)) == len(events(here)) - 7


def test_progress_is_told_up_to_the_end(here: Ledger, there: Ledger) -> None:
    grow_at_once(there, "main", *(f"question {i}" for i in range(400)))
    steps: list[tuple[int, int]] = []
    sync.pull(here, there.path, opens, report=lambda done, of: steps.append((done, of)))
    assert steps == sorted(steps)
    assert steps[-1] == (2401, 2401)
    assert len(steps) > 2


# --- erasing ------------------------------------------------------------------------------------------------------


def test_an_erasure_travels_and_waits_for_somebodys_word(here: Ledger, there: Ledger) -> None:
    turn = grow(there, "main", "a secret")[0]
    pull(here, there)
    there.erasure.erase(turn, reason="asked to")
    pull(here, there)
    assert queries(here, "main") == ["a secret"]
    waiting = here.erasure.pending()
    assert waiting
    here.erasure.erase([found.ref for found in waiting], reason="so be it")
    push(here, there)
    assert contents(here) == contents(there)
    assert problems(here) == problems(there) == []


def test_what_was_erased_comes_back_by_no_way(make: Make) -> None:
    one, two, three = make("one"), make("two"), make("three")
    turn = grow(one, "main", "a secret")[0]
    pull(three, one)
    one.erasure.erase(turn, reason="asked to")
    pull(two, one)
    pull(two, three)
    pull(one, three)
    push(three, two)
    assert husks(one) == husks(two)
    assert b"a secret" in exported(three)
    assert b"a secret" not in exported(one) + exported(two)
    fresh = make("fresh")
    pull(three, one)
    pull(fresh, three)  # it has the bytes, and knows by now that others erased them
    assert b"a secret" not in exported(fresh)
    assert problems(fresh) == []


def test_a_content_that_never_came_is_asked_for_until_somebody_has_it(make: Make) -> None:
    one, two, three = make("one"), make("two"), make("three")
    grow(one, "main", "hello")
    lines = exported(one).splitlines(keepends=True)
    two.upkeep.import_facts(io.BytesIO(b"".join(line for line in lines if b'"event_id"' in line)))
    pull(three, two)
    assert contents(three) == set()
    pull(three, one)
    assert contents(three) == contents(one)
    assert queries(three, "main") == ["hello"]
    assert problems(three) == []


# --- imports ------------------------------------------------------------------------------------------------------


def test_ledgers_that_share_the_secret_import_one_tree(here: Ledger, there: Ledger) -> None:
    assert over_wire(here, there, lambda asking: asking.sharing())[0] == "taken"
    assert over_wire(here, there, lambda asking: asking.sharing())[0] == "same"
    rich_import(here)
    rich_import(there)
    before = len(digests(here))
    pull(here, there)
    push(here, there)
    assert len(digests(here)) == len(digests(there)) == before
    assert_same(here, there)


def test_strangers_imports_stay_two_trees(here: Ledger, there: Ledger) -> None:
    rich_import(here)
    rich_import(there)
    before = len(digests(here))
    pull(here, there)
    assert len(digests(here)) == 2 * before
    with pytest.raises(NotApplicable, match="secrets of their own"):
        over_wire(here, there, lambda asking: asking.sharing())
    assert problems(here) == []


def test_whoever_has_imported_gives_the_secret_to_whoever_has_not(here: Ledger, there: Ledger) -> None:
    rich_import(here)
    assert over_wire(here, there, lambda asking: asking.sharing())[0] == "given"
    rich_import(there)
    pull(here, there)
    assert digests(here) == digests(there)


def test_a_clone_takes_the_secret_unless_told_otherwise(here: Ledger, make: Make) -> None:
    rich_import(here)
    with_it, without = make("with"), make("without")
    sync.clone(with_it, here.path, opens)
    sync.clone(without, here.path, opens, secret=False)
    for ledger in (with_it, without):
        rich_import(ledger)
    assert digests(with_it) == digests(here)
    assert len(digests(without)) == 2 * len(digests(here))


def test_the_secret_is_in_no_frame_of_a_pull_and_a_server_may_keep_it(here: Ledger, there: Ledger) -> None:
    rich_import(there)
    _, wire = pull(here, there)
    with store_of(there).read() as txn:
        (secret,) = txn.sql.fetch_row("SELECT value FROM local WHERE key = 'import_secret'") or ("",)
    assert not any(secret.encode() in frame.body for frame in wire.heard)
    with pytest.raises(NotApplicable, match="does not share"):
        over_wire(here, there, lambda asking: asking.sharing(), FOREVER, ServePermissions(shares_secret=False))


def test_verbatim_sources_travel(here: Ledger, there: Ledger) -> None:
    rich_import(there)
    pull(here, there)
    session = next(session for session in there.sessions(every=True) if there.imports.kept_sources(session.label))
    assert here.imports.kept_sources(session.label) == there.imports.kept_sources(session.label)


# --- some sessions only -------------------------------------------------------------------------------------------


def test_a_limited_push_sends_threads_with_their_ancestry_and_nothing_else(here: Ledger, there: Ledger) -> None:
    grow(here, "main", "shared past", "private future", persona="ann")
    here.fork("main~1", label="public")
    grow(here, "public", "public future")
    grow(here, "other", "not your business", persona="bob")
    push(here, there, sessions=["public"])
    assert queries(there, "public") == ["shared past", "public future"]
    told = exported(there)
    for secret in (b"private future", b"not your business", b"bob", b'"text":"main"', b'"text":"other"'):
        assert secret not in told
    assert [session.label for session in there.sessions(every=True)] == ["public"]
    assert there.session("public").persona_id == "ann"
    assert problems(there) == []


def test_a_limited_push_is_run_again_and_completed_by_a_whole_one(here: Ledger, there: Ledger) -> None:
    rich(here)
    push(here, there, sessions=["main"])
    assert push(here, there, sessions=["main"])[0].events == 0
    push(here, there)
    assert events(here) == events(there)
    assert contents(here) == contents(there)
    assert problems(there) == []


def test_a_limited_push_brings_tombstones_of_its_sessions_and_withholds_sources(here: Ledger, there: Ledger) -> None:
    turn = grow(here, "main", "forget this", "keep this")[0]
    push(here, there, sessions=["main"])
    here.erasure.erase(turn, reason="asked to")
    grow(here, "aside", "unrelated")
    here.record_turn(session="aside", tool_calls=[{"id": "c1", "name": "t", "status": "interrupted"}])
    here.record_late_result("aside", "c1", "a private result")
    here.record_turn(session="main", tool_calls=[{"id": "c2", "name": "t", "status": "interrupted"}])
    here.record_late_result("main", "c2", "a public result")
    push(here, there, sessions=["main"])
    assert there.erasure.pending()
    assert b"a private result" not in exported(there)
    assert b"a public result" in exported(there)
    assert problems(there) == []
    push(here, there)
    assert events(here) == events(there)
    assert problems(there) == []


def answer_of(ledger: Ledger, **turn: Any) -> str:
    """The id of the answer of a new turn."""
    return ledger.messages(ledger.record_turn(**turn).id)[-1].id


@pytest.mark.parametrize("engine", ENGINES)
def test_a_limited_push_brings_the_substitutions_of_its_sessions(make: Make, engine: str) -> None:
    here, there = make("one", engine), make("two", engine)
    call = {"id": "c1", "name": "t", "result": "old"}
    said = answer_of(here, session="main", query="q", response="Lyon", tool_calls=[call])
    aside = answer_of(here, session="aside", query="q", response="other words")
    here.substitute(aside, "private replacement")
    here.substitute(said, "Paris", reason="it is the capital")
    here.substitute(here.tool_calls("main")[0].id, "new")
    here.substitute(said, "Paris, France")
    push(here, there, sessions=["main"])
    assert there.message(said).text == "Paris, France"
    assert there.message(said).substituted == here.message(said).substituted
    assert there.tool_calls("main")[0].result == "new"
    assert there.originals().message(said).text == "Lyon"
    assert b"private replacement" not in exported(there)
    assert problems(there) == []
    assert there.upkeep.rebuild() == 0
    push(here, there)
    assert events(here) == events(there)
    assert problems(there) == []


def test_a_ledger_substitutes_its_own_words_alone_in_another_one_until_that_takes_it_over(
    here: Ledger, there: Ledger
) -> None:
    mine = answer_of(here, session="main", query="q", response="mine")
    push(here, there)
    theirs = answer_of(there, session="theirs", query="q", response="theirs")
    there.substitute(theirs, "said better")
    note = there.substitute(mine, "put in my mouth")
    pull(here, there)
    assert here.message(theirs).text == "said better", "a ledger speaks for what it wrote"
    assert here.message(mine).text == "mine", "and for nothing else"
    here.substitute(mine, with_event=note.replacement)
    assert here.message(mine).text == "put in my mouth"
    here.substitute(mine, with_event=mine)
    assert here.message(mine).text == "mine"
    assert problems(here) == []
    assert here.upkeep.rebuild() == 0


def test_a_limited_push_sends_turns_that_other_sessions_have_too_as_its_own_source_tells_them(
    here: Ledger, there: Ledger
) -> None:
    shared = native_turn("t1", started=1_000, ended=2_000, end=10)
    take(here, "one", shared, native_turn("t2", "private", parent=0, offset=10, end=20), title="Not your business")
    take(here, "two", shared, native_turn("t3", parent=0, offset=10, end=20), file="b.jsonl", title="Public")
    push(here, there, sessions=["two"])
    assert [(session.label, session.title) for session in there.sessions(every=True)] == [("two", "Public")]
    assert queries(there, "two") == queries(here, "two") == ["ask t1", "ask t3"]
    assert next(iter(there.thread("two").turns)).started_at == 1_000
    for secret in (b"private", b"Not your business", b"a.jsonl"):
        assert secret not in exported(there)
    here.fork("one", label="mine")
    push(here, there, sessions=["mine"])
    assert queries(there, "mine") == ["ask t1", "ask t2"]
    assert problems(there) == []
    push(here, there)
    assert events(here) == events(there)
    assert problems(there) == []


def test_a_limited_push_sends_a_turn_that_was_left_in_the_middle_up_to_there(here: Ledger, there: Ledger) -> None:
    call = {"id": "c1", "name": "t", "arguments": "private arguments", "status": "interrupted"}
    turn = here.record_turn(session="main", query="shared", response="private answer", tool_calls=[call])
    here.record_late_result(turn.id, "c1", "private result")
    asked = next(event for event in here.changes() if b'"kind":"history_append"' in event.line)
    here.fork(sha256(asked.line).hexdigest(), label="public")
    push(here, there, sessions=["public"])
    grow(here, "public", "goes on")
    push(here, there, sessions=["public"])
    assert queries(there, "public") == queries(here, "public") == ["shared", "goes on"]
    assert b"private" not in exported(there)
    assert problems(there) == []
    push(here, there, sessions=["main"])
    assert there.thread("main").digest == turn.digest
    push(here, there)
    assert events(here) == events(there)
    assert contents(here) == contents(there)
    assert problems(there) == []


def test_a_limited_push_sends_what_a_thread_goes_on_from_across_a_link(here: Ledger, there: Ledger) -> None:
    rich_import(here)
    push(here, there, sessions=["main/child"])
    assert queries(there, "main/child") == queries(here, "main/child")
    assert len(queries(there, "main/child")) == 3
    assert [session.label for session in there.sessions(every=True)] == ["main/child"]
    assert problems(there) == []


def test_contents_that_a_receiver_of_a_limited_push_asks_for_are_not_told(here: Ledger, there: Ledger) -> None:
    grow(here, "main", "public")
    grow(here, "aside", "private")
    lines = exported(here).splitlines(keepends=True)
    there.upkeep.import_facts(io.BytesIO(b"".join(line for line in lines if b'"event_id"' in line)))
    push(here, there, sessions=["main"])
    assert b"private" not in exported(there)


def test_a_session_that_is_not_here_is_not_pushed(here: Ledger, there: Ledger) -> None:
    with pytest.raises(NotFound):
        sync.push(here, there.path, opens, sessions=["nobody"])


# --- names --------------------------------------------------------------------------------------------------------


def renamed(ledger: Ledger) -> Ledger:
    """The same ledger after `weft replica --new`."""
    was, path = ledger.replica, ledger.path
    sync.mark_as_copy(ledger)
    ledger.close()
    opened = weft.open(path)
    assert opened.replica != was
    return opened


def copied(ledger: Ledger, path: Path) -> Ledger:
    """A copy by other means: the file alone, with the name of its origin."""
    ledger.close()
    path.write_bytes(Path(ledger.path).read_bytes())
    return weft.open(path)


def test_two_ledgers_of_one_name_are_noticed_and_told_apart(here: Ledger, tmp_path: Path) -> None:
    grow(here, "main", "together")
    copy = copied(here, tmp_path / "copy.db")
    here = weft.open(here.path)
    for ledger, words in ((here, "here"), (copy, "there")):
        turn = grow(ledger, "main", words, f"{words} again")[0]
        ledger.erasure.erase(turn, reason="both begin a stream of the ledger's own")
    with pytest.raises(ReplicaDiverged, match="both ledgers go by"):
        pull(here, copy)
    copy = renamed(copy)
    with pytest.raises(ReplicaDiverged, match="this ledger, and it did not"):
        pull(here, copy)
    here = renamed(here)
    pull(here, copy)
    push(here, copy)
    assert events(here) == events(copy)
    assert heads(here) == heads(copy)
    assert problems(here) == problems(copy) == []
    for ledger in (here, copy):
        ledger.close()


@pytest.mark.parametrize("how", ["pull", "push"])
def test_a_third_ledger_notices_two_of_one_name(here: Ledger, there: Ledger, tmp_path: Path, how: str) -> None:
    grow(here, "main", "together")
    copy = copied(here, tmp_path / "copy.db")
    here = weft.open(here.path)
    grow(here, "main", "here")
    grow(copy, "main", "there", "there again")
    go: Callable[[Ledger], object] = (lambda one: pull(there, one)) if how == "pull" else (lambda one: push(one, there))
    go(here)
    before = events(there)
    with pytest.raises(ReplicaDiverged, match="said something else once"):
        go(copy)
    assert events(there) == before
    copy = renamed(copy)
    go(copy)
    assert events(there) > before
    for ledger in (here, copy):
        ledger.close()


def test_a_ledger_that_was_rolled_back_behind_our_back_is_noticed(here: Ledger, there: Ledger, tmp_path: Path) -> None:
    grow(there, "main", "one")
    old = copied(there, tmp_path / "old.db")
    there = weft.open(there.path)
    grow(there, "main", "two")
    pull(here, there)
    with pytest.raises(ReplicaDiverged, match="said something else once"):
        pull(here, old)
    sync.forget_peer(here, old.replica)
    with pytest.raises(NotFound, match="other replica"):
        sync.forget_peer(here, old.replica)
    assert pull(here, old)[0].events == 0
    for ledger in (old, there):
        ledger.close()


def test_a_backup_that_goes_on_is_a_ledger_of_its_own(here: Ledger, tmp_path: Path) -> None:
    grow(here, "main", "together")
    here.upkeep.backup(tmp_path / "backup.db")
    with weft.open(tmp_path / "backup.db") as backup:
        grow(here, "main", "here")
        grow(backup, "main", "there")
        pull(here, backup)
        push(here, backup)
        assert_same(here, backup)
        assert len(here.merges.branches("main")) == 1


# --- remotes ------------------------------------------------------------------------------------------------------


def test_remotes_are_kept_without_passwords(here: Ledger) -> None:
    secret = "postgresql://ann:hunter2@host/db?ledger=x&password=hunter3"
    added = sync.add_remote(here, sync.Remote(name="team", address=secret))
    assert added.address == "postgresql://ann@host/db?ledger=x"
    assert sync.remotes(here) == [added]
    with pytest.raises(LabelTaken):
        sync.add_remote(here, sync.Remote(name="team", address="elsewhere.db"))
    with pytest.raises(InvalidInput):
        sync.add_remote(here, sync.Remote(name="a b", address="elsewhere.db"))
    for wrong in (
        "ssh://-oProxyCommand=x/path",
        "ssh://host",
        "ssh://host:port/path",
        "cmd:'open",
        "http://host/x",
        "",
    ):
        with pytest.raises(InvalidInput):
            sync.add_remote(here, sync.Remote(name="wrong", address=wrong))
    sync.remove_remote(here, "team")
    with pytest.raises(NotFound):
        sync.remote(here, "team")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("postgresql:///work?ledger=x", "postgresql:///work?ledger=x"),
        ("postgres://ann@h1,h2:5433/db?sslmode=require", "postgresql://ann@h1,h2:5433/db?sslmode=require"),
        ("postgresql://ann@host/db?sslpassword=hunter2&pass%77ord=hunter2", "postgresql://ann@host/db"),
        ("postgresql://ann:hunter%2F2@[::1]/db", "postgresql://ann@[::1]/db"),
        ("ssh://ann:hunter2@host:22/srv/ledger.db", "ssh://ann@host:22/srv/ledger.db"),
        ("cmd:serve http://host/?a=1&password=x", "cmd:serve http://host/?a=1&password=x"),
        ("/srv/a b.db", "/srv/a b.db"),
    ],
)
def test_an_address_is_kept_as_it_leads_there_and_without_secrets(here: Ledger, given: str, kept: str) -> None:
    assert sync.add_remote(here, sync.Remote(name="team", address=given)).address == kept


@pytest.mark.parametrize("sign", "#/?@")
def test_an_address_whose_password_ends_too_early_is_kept_and_told_nowhere(here: Ledger, sign: str) -> None:
    address = f"postgresql://ann:hun{sign}ter2@host/db"
    with pytest.raises(InvalidInput) as refused:
        sync.add_remote(here, sync.Remote(name="team", address=address))
    assert "hun" not in f"{refused.value} {refused.value.hint}"
    assert sync.remotes(here) == []


def test_a_ledger_that_is_only_read_can_be_pulled_from_and_not_pushed_to(here: Ledger, there: Ledger) -> None:
    grow(there, "main", "hello")
    with weft.open(there.path, read_only=True) as reading:
        assert pull(here, reading)[0].events == 7
        grow(here, "main", "back")
        with pytest.raises(ReadOnlyLedger):
            push(here, reading)
    with pytest.raises(ReadOnlyLedger):
        over_wire(here, there, lambda asking: asking.pushing(), FOREVER, ServePermissions(takes=False))


# --- at once ------------------------------------------------------------------------------------------------------


def together(*work: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def run(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as error:  # handed to the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.slow("two pulls beside two writers, and both ledgers verified")
@pytest.mark.parametrize("engine", share(ENGINES, test=1))
def test_pulls_and_writers_at_once_lose_nothing(make: Make, engine: str) -> None:
    one, other = make("one", engine), make("other")
    grow_at_once(other, "theirs", *(f"question {i}" for i in range(150)))
    together(
        lambda: sync.pull(one, other.path, opens),
        lambda: sync.pull(one, other.path, opens),
        lambda: grow(one, "mine", *(f"mine {i}" for i in range(40))),
        lambda: grow(other, "theirs", *(f"more {i}" for i in range(40))),
    )
    sync.pull(one, other.path, opens)
    assert len(queries(one, "mine")) == 40
    assert len(queries(one, "theirs")) == 190
    assert events(other) < events(one)
    assert problems(one) == problems(other) == []


def test_facts_that_came_in_a_file_are_known(here: Ledger, there: Ledger) -> None:
    grow(there, "main", "hello")
    import_into(here, exported(there))
    sent, wire = pull(here, there)
    assert (sent.events, sent.contents, sent.known) == (0, 0, 7)
    assert SyncFrameKind.EVENTS not in {frame.kind for frame in wire.heard}


@pytest.mark.slow("counts every allocation while 32 MB are pulled")
def test_memory_holds_a_piece_of_a_batch_however_large_its_contents_are(here: Ledger, there: Ledger) -> None:
    for _ in range(8):
        there.record_turn(session="main", query=there.put_content(large_bytes(4 << 20)), response="noted")
    tracemalloc.start()
    try:
        sync.pull(here, there.path, opens)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert contents(here) == contents(there)
    assert peak < 16 << 20
