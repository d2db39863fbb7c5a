"""In whose name a ledger is changed: what events say of it, and that nothing is changed without the right."""

import re
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

import weft
from tests.ledger.histories import exported, grow, import_into, lines, problems
from tests.ledger.test_canary import EXPECTED, NAMELIKE, SPACED, public
from weft.exchange.sync.commands import add_remote, forget_peer, mark_as_copy, pull, push, remove_remote, share_imports
from weft.exchange.sync.synced_ledgers import Remote
from weft.kernel.authority import LOCAL, Authority, Principal, PrincipalKind, rights
from weft.kernel.errors import KeyTaken, NotAllowed, NotApplicable, NotFound, WeftError
from weft.kernel.events import Event, kind_of
from weft.ledger.api import Runs
from weft.ledger.api.ledger import Ledger
from weft.programs import Programs
from weft.programs.program_writer import VERB_RIGHTS

NOTHING = rights([])
BLN, SCOUT = Principal(PrincipalKind.HUMAN, "bln"), Principal(PrincipalKind.AGENT, "scout")

WITHOUT_EVENTS = set(
    "upkeep.pack upkeep.unpack upkeep.rebuild upkeep.import_facts secrets.ignore imports.writer imports.share_with "
    "erasure.finish".split()
)
"""Verbs that change a ledger and write no event of its own."""


@pytest.fixture
def people(ledger: Ledger) -> dict[str, str]:
    """A person and an agent, by name: their ids."""
    programs = Programs(ledger)
    return {
        "bln": programs.create("human", "bln", {}).id,
        "scout": programs.create("agent", "scout", {}).id,
    }


def permit(ledger: Ledger, *patterns: str) -> None:
    """What the person may do beyond what is their own."""
    Programs(ledger).change("bln", {"permissions": list(patterns)})


def added(ledger: Ledger, work: Callable[[], Any]) -> list[Event]:
    """The events that this work writes."""
    before = ledger.newest()
    work()
    return [recorded.event for recorded in ledger.changes(before) if isinstance(recorded.event, Event)]


def attributions(events: list[Event]) -> dict[str, tuple[str, Any]]:
    return {kind_of(event): (event.actor, event.on_behalf_of) for event in events}


def test_the_owner_acting_alone_is_named_in_no_event(ledger: Ledger, people: dict[str, str]) -> None:
    events = added(ledger, lambda: ledger.record_turn(session="main", query="q", response="r", persona="scout"))
    assert {(event.actor, event.on_behalf_of) for event in events} == {(people["scout"], UNSET)}
    limited = ledger.acting_as(LOCAL.child(rights(["turn:*"])))
    assert {event.on_behalf_of for event in added(ledger, lambda: limited.record_turn(session="main", query="q"))} == {
        UNSET
    }
    assert not any(b"on_behalf_of" in line for line in lines(ledger))


def test_a_turn_is_the_agents_and_says_for_whom(ledger: Ledger, people: dict[str, str]) -> None:
    ledger.create_session("main", persona="scout")
    permit(ledger, "turn:record(main)")
    mine = ledger.acting_as("bln")
    for work in (
        lambda: mine.record_turn(session="main", query="q", response="r"),
        lambda: mine.record_turn(query="without a session", persona="scout"),
    ):
        events = [event for event in added(ledger, work) if event.stream.startswith("run:")]
        assert {(event.actor, event.on_behalf_of) for event in events} == {(people["scout"], (people["bln"],))}
    assert ledger.turn("main").persona_id == "scout"
    assert problems(ledger) == []


def test_a_turn_by_steps_is_attributed_at_every_step(ledger: Ledger, people: dict[str, str]) -> None:
    def work() -> None:
        with ledger.acting_as("bln").begin_turn(session="main", persona="scout") as turn:
            turn.message("q")
            turn.request("m")
            turn.response("r")
            turn.finish()

    runs = [event for event in added(ledger, work) if event.stream.startswith("run:")]
    assert len(runs) >= 4
    assert {(event.actor, event.on_behalf_of) for event in runs} == {(people["scout"], (people["bln"],))}


def test_an_agent_that_records_its_own_turn_acts_for_nobody_else(ledger: Ledger, people: dict[str, str]) -> None:
    events = added(ledger, lambda: ledger.acting_as("scout").record_turn(session="s", query="q", persona="scout"))
    assert {(event.actor, event.on_behalf_of) for event in events} == {(people["scout"], UNSET)}


def test_an_answer_in_a_turn_that_an_agent_records_has_no_source(ledger: Ledger, people: dict[str, str]) -> None:
    scout = ledger.acting_as("scout")
    at_once = scout.record_turn(session="s", query="q", response="r", persona="scout").id
    with scout.begin_turn(session="s", persona="scout") as turn:
        turn.message("q")
        turn.response("r")
        turn.finish()
    for id in (at_once, turn.id):
        assert [(each.role, each.source) for each in ledger.messages(id)] == [("user", "agent"), ("assistant", None)]
        assert Runs(ledger).is_untrusted(id)
    alone = scout.record_turn(session="t", response="r", persona="scout").id
    assert [each.source for each in ledger.messages(alone)] == ["agent"]  # nothing else says who wrote it
    assert Runs(ledger).is_untrusted(alone)
    assert problems(ledger) == []


def test_commands_are_the_principals_and_name_the_chain(ledger: Ledger, people: dict[str, str]) -> None:
    first, second = grow(ledger, "main", "a", "b", persona="scout")
    permit(ledger, "session:*", "content:erase")
    chain = ledger.acting_as(LOCAL.delegate(BLN).delegate(SCOUT))
    acted = (people["scout"], (people["bln"], "local"))

    def commands() -> None:
        chain.move_head("main", new=first, reason="r")
        chain.labels.rename("main", "trunk")
        chain.labels.add_alias("old", "trunk")
        chain.fork(first, label="branch")
        chain.labels.archive("trunk")
        chain.labels.unarchive("trunk")
        chain.erasure.erase(second, reason="leaked")
        chain.labels.delete("branch")

    events = added(ledger, commands)
    assert {"session_moved", "session_renamed", "alias_added", "session_created", "session_archived",
            "content_erased"} <= attributions(events).keys()  # fmt: skip
    assert set(attributions(events).values()) == {acted}
    assert {tombstone.actor for tombstone in ledger.erasure.done()} == {"scout"}
    assert problems(ledger) == []


def test_a_session_acts_by_its_id(ledger: Ledger, people: dict[str, str]) -> None:
    session = ledger.create_session("worker").id
    worker = Authority((BLN, Principal(PrincipalKind.SESSION, "worker")))
    (event,) = added(ledger, lambda: ledger.acting_as(worker).create_session("child"))
    assert (event.actor, event.on_behalf_of) == (session, (people["bln"],))


def test_programs_are_changed_in_the_same_name(ledger: Ledger, people: dict[str, str]) -> None:
    programs = Programs(ledger)
    programs.change("bln", {"permissions": ["configure", "configure(bln)"]})
    both = Authority((BLN, SCOUT))
    with pytest.raises(NotAllowed, match="scout for bln may not create the code 'tool'"):
        programs.acting_as(both).create("code", "tool", {"source": "x"})
    programs.change("scout", {"permissions": {"programs": ["configure", "configure(bln)"]}})
    events = added(ledger, lambda: programs.acting_as(both).create("code", "tool", {"source": "x"}))
    assert set(attributions(events).values()) == {(people["scout"], (people["bln"],))}
    assert programs.get("tool").created_by == "scout"
    with pytest.raises(NotAllowed, match="its own permissions"):
        programs.acting_as(both).change("bln", {"permissions": []})


def test_what_closes_an_abandoned_turn_speaks_for_nobody(open_ledger: Callable[..., Ledger], tmp_path: Path) -> None:
    with open_ledger() as ledger:
        Programs(ledger).create("human", "bln", {})
        turn = ledger.acting_as("bln").begin_turn(session="main")
    with open_ledger() as ledger:
        events = [recorded.event for recorded in ledger.events(turn.id)]
        ends = [event for event in events if isinstance(event, Event) and kind_of(event) == "run_finished"]
        assert [event.on_behalf_of for event in ends] == [UNSET]
        assert problems(ledger) == []


@pytest.mark.parametrize("who", [NAMELIKE, SPACED, "main", "imported", "gone", Authority((BLN, SCOUT)),
                                 Authority((Principal(PrincipalKind.SYSTEM, NAMELIKE),)),
                                 Authority((Principal(PrincipalKind.SESSION, NAMELIKE),)),
                                 Authority((Principal(PrincipalKind.AGENT, "bln"),))])  # fmt: skip
def test_who_is_not_there_changes_nothing_and_stands_in_no_event(ledger: Ledger, who: Any) -> None:
    programs = Programs(ledger)
    programs.create("human", "bln", {})
    programs.create("agent", "gone", {})
    programs.delete("gone")
    grow(ledger, "main", "a")
    stranger, before = ledger.acting_as(who), exported(ledger)
    for work in (
        lambda: stranger.record_turn(session="main", query="q"),
        lambda: stranger.labels.rename("main", "other"),
        lambda: stranger.erasure.erase("main", reason="r"),
        lambda: programs.acting_as(who).create("code", "c", {"source": "x"}),
    ):
        with pytest.raises((NotFound, NotApplicable)):
            work()
    assert exported(ledger) == before
    assert not any(b"canary" in line for line in lines(ledger))


def test_names_of_those_who_act_are_in_no_event(ledger: Ledger) -> None:
    programs = Programs(ledger)
    programs.create("human", NAMELIKE, {})
    programs.create("agent", SPACED, {})
    ledger.create_session(f"{NAMELIKE} s")
    chain = Authority(
        (
            Principal(PrincipalKind.HUMAN, NAMELIKE),
            Principal(PrincipalKind.AGENT, SPACED),
            Principal(PrincipalKind.SESSION, f"{NAMELIKE} s"),
        )
    )
    ledger.acting_as(chain).record_turn(session="main", query="q")
    ledger.acting_as(chain).labels.rename("main", "other")
    assert sum(b"on_behalf_of" in line for line in lines(ledger)) >= 3
    assert not any(b"canary" in line for line in lines(ledger))


# --- one ledger, several names ------------------------------------------------------------------------------------


def test_a_ledger_in_another_name_is_the_same_open_ledger(ledger: Ledger, people: dict[str, str]) -> None:
    permit(ledger, "turn:record(main)")
    mine = ledger.acting_as("bln")
    ids = [turn for each in (ledger, mine, ledger, mine) for turn in grow(each, "main", "q")]
    assert [turn.id for turn in ledger.thread("main").turns] == ids
    with mine:
        pass
    mine.close()
    assert grow(ledger, "main", "still open")
    assert (mine.path, mine.replica) == (ledger.path, ledger.replica)
    assert (str(mine.authority.principal), ledger.authority) == ("program:bln", LOCAL)


def test_groups_of_verbs_act_in_the_name_of_their_ledger(ledger: Ledger, people: dict[str, str]) -> None:
    grow(ledger, "main", "a")
    permit(ledger, "session:rename(trunk)", "session:read(trunk)")
    assert ledger.labels.rename("main", "trunk").label == "trunk"
    events = added(ledger, lambda: ledger.acting_as("bln").labels.rename("trunk", "main"))
    events += added(ledger, lambda: ledger.labels.rename("main", "trunk"))
    assert [event.actor for event in events] == [people["bln"], "local"]


def test_a_retry_key_is_for_one_name(ledger: Ledger, people: dict[str, str]) -> None:
    mine = ledger.acting_as("bln")
    first = mine.record_turn(session="main", query="q", key="k")
    assert mine.record_turn(session="main", query="q", key="k").id == first.id
    for other in (ledger, ledger.acting_as("scout")):
        with pytest.raises(KeyTaken):
            other.record_turn(session="main", query="q", key="k")


def test_who_was_deleted_meanwhile_writes_no_more(ledger: Ledger, people: dict[str, str]) -> None:
    mine = ledger.acting_as("bln")
    grow(mine, "main", "a")
    Programs(ledger).delete("bln")
    with pytest.raises(NotFound):
        grow(mine, "main", "b")
    assert len(list(ledger.thread("main").turns)) == 1


# --- rights -------------------------------------------------------------------------------------------------------


def rights_of_verbs() -> dict[str, str]:
    return {name: verb.right for name, verb in sorted(public(Ledger).items()) if hasattr(verb, "right")}


def test_every_verb_that_changes_a_ledger_needs_a_right() -> None:
    """Verbs that record are listed in test_canary.py, where a new one fails until somebody says what it does."""
    recording = {verb for verb in EXPECTED if verb[0].islower()}
    assert rights_of_verbs().keys() == recording | WITHOUT_EVENTS


@pytest.mark.parametrize("verb", rights_of_verbs())
def test_a_verb_is_refused_without_its_right_before_it_begins(disk: Ledger, verb: str) -> None:
    right = rights_of_verbs()[verb]
    grow(disk, "main", "a")
    before, store = exported(disk), disk.upkeep.stats()
    for limited in (NOTHING, rights(["*"], [right]), rights(["*"], [f"{right.partition(':')[0]}:*"])):
        with pytest.raises(NotAllowed) as refused:
            attrgetter(verb)(disk.acting_as(LOCAL.child(limited)))()
        assert refused.value.right == right
    assert (exported(disk), disk.upkeep.stats()) == (before, store)


def test_a_turn_in_a_new_session_needs_the_right_to_make_it(ledger: Ledger) -> None:
    limited = ledger.acting_as(LOCAL.child(rights(["turn:record"])))
    with pytest.raises(NotAllowed, match="session:create"):
        limited.record_turn(session="new", query="q")
    ledger.create_session("new")
    with pytest.raises(NotAllowed, match="program:agent:configure"):
        limited.record_turn(session="new", query="q", persona="somebody new")
    assert limited.record_turn(session="new", query="q").depth == 1


SYNC_VERBS: dict[str, Callable[[Ledger, str], Any]] = {
    "pull": lambda ledger, other: pull(ledger, other, weft.open),
    "share_imports": lambda ledger, other: share_imports(ledger, other, weft.open),
    "add_remote": lambda ledger, other: add_remote(ledger, Remote(name="there", address=other)),
    "remove_remote": lambda ledger, other: remove_remote(ledger, "there"),
    "forget_peer": lambda ledger, other: forget_peer(ledger, ledger.replica),
    "mark_as_copy": lambda ledger, other: mark_as_copy(ledger),
}


@pytest.mark.parametrize("verb", SYNC_VERBS)
def test_syncing_into_a_ledger_needs_a_right(disk: Ledger, tmp_path: Path, verb: str) -> None:
    other = tmp_path / "other.weft"
    with weft.open(other) as there:
        grow(there, "theirs", "a")
    before = exported(disk)
    with pytest.raises(NotAllowed):
        SYNC_VERBS[verb](disk.acting_as(LOCAL.child(NOTHING)), str(other))
    assert exported(disk) == before


# --- it travels ---------------------------------------------------------------------------------------------------


@pytest.fixture
def told(disk: Ledger) -> Ledger:
    """A ledger with turns and commands on somebody's behalf."""
    programs = Programs(disk)
    programs.create("human", "bln", {})
    programs.create("agent", "scout", {})
    chain = disk.acting_as(LOCAL.delegate(BLN).delegate(SCOUT))
    first, _ = grow(chain, "main", "a", "b", persona="scout")
    chain.move_head("main", new=first)
    return disk


def spoken_for(ledger: Ledger) -> Iterator[tuple[str, str, Any]]:
    for recorded in ledger.changes():
        event = recorded.event
        if isinstance(event, Event) and event.on_behalf_of is not UNSET:
            yield recorded.id, event.actor, event.on_behalf_of


def test_a_facts_file_keeps_on_whose_behalf(told: Ledger, tmp_path: Path) -> None:
    with weft.open(tmp_path / "other.weft") as other:
        import_into(other, exported(told))
        assert list(spoken_for(other)) == list(spoken_for(told)) != []
        assert problems(other) == []


@pytest.mark.parametrize("selected", [(), ("main",)])
def test_sync_keeps_on_whose_behalf(told: Ledger, tmp_path: Path, selected: tuple[str, ...]) -> None:
    path = str(tmp_path / "other.weft")
    with weft.open(path):
        pass
    push(told, path, weft.open, sessions=selected)
    with weft.open(path) as other:
        arrived = {recorded.id for recorded in other.changes()}
        assert set(spoken_for(other)) == {line for line in spoken_for(told) if line[0] in arrived} != set()
        assert selected or list(spoken_for(other)) == list(spoken_for(told))
        assert problems(other) == []


def test_an_event_on_behalf_of_nobody_or_of_plain_words_is_refused(told: Ledger, tmp_path: Path) -> None:
    facts = exported(told)
    assert b'"on_behalf_of":[' in facts
    for wrong in (b'"on_behalf_of":[]', b'"on_behalf_of":["plain words"]'):
        start = facts.index(b'"on_behalf_of":[')
        end = facts.index(b"]", start) + 1
        with weft.open(tmp_path / f"{len(wrong)}.weft") as other, pytest.raises(WeftError):
            import_into(other, facts[:start] + wrong + facts[end:])


def test_the_page_lists_every_right_with_its_verbs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reading.md").read_text()
    table = page.partition("## Who acts")[2]
    rows = [row.split(" | ") for row in table.splitlines() if row.startswith("| `")]
    documented = {verb: row[0].strip("|` ") for row in rows for verb in re.findall(r"`([a-z_.]+)`", row[1])}
    verbs = rights_of_verbs() | {verb: f"program:KIND:{right}" for verb, right in VERB_RIGHTS.items()}
    ambiguous = rights_of_verbs().keys() & VERB_RIGHTS.keys()
    assert {verb: right for verb, right in documented.items() if verb not in ambiguous} == {
        verb: right for verb, right in verbs.items() if verb not in ambiguous
    }
    assert ambiguous == {"create_session"}
