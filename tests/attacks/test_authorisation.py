"""Somebody in another's name, or without the right: what they may not do is refused, and of what they may not read they
learn nothing but that a label is taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct, structs, to_builtins

import weft
from tests.ledger.histories import grow
from tests.ledger.imported import native_turn, take
from tests.ledger.test_canary import public
from tests.sizes import PROVING, share
from tests.surfaces.shell import Shell
from weft.kernel.authority import LOCAL, Authority, Principal, PrincipalKind, pattern_matcher, rights
from weft.kernel.clock import FixedClock
from weft.kernel.enums import RunExit
from weft.kernel.errors import ContentMissing, InvalidInput, LabelTaken, NotAllowed, NotFound, WeftError
from weft.ledger.api import FinishedRun, Ledger, Runs, RunWriter
from weft.ledger.model import NewError, StoredContent
from weft.ledger.read.turns import Thread
from weft.programs import Programs
from weft.programs.program_writer import VERB_RIGHTS
from weft.surfaces.cli.main import OWNER_COMMANDS, run

NOON = 1_794_700_800_000
NEUTRAL = set(
    "close acting_as originals upkeep.catch_up upkeep.search_lag policies.list policies.get policies.active".split()
)
"""Tells and changes nothing of what was recorded."""
FILTERED = set(
    """
    session resolve point turn thread messages message tool_calls codeblocks context diff log events sessions listing
    reflog heads.at labels.archivable labels.aliases search search_sessions related_turns find_turns find_messages
    find_tool_calls find_sessions
    tree.children tree.common_ancestor tree.turns tree.sessions_containing tree.moves_to compactions.get
    merges.provenance merges.branches erasure.plan inbox.get inbox.list approvals.get
    approvals.list approvals.decisions follow vouchers strangers imports.provisional
    compactions.of_thread rooms.get rooms.list rooms.participants rooms.messages rooms.invitations rooms.pending
    rooms.agent rooms.person rooms.posted_as rooms.search resources.get resources.list resources.snapshot
    resources.snapshots resources.snapshots_of_turn resources.snapshots_before_turn
    """.split()
)
"""Reads what the authority may read, and nothing else; `answers` below asks each of them."""
FILTERED_PROGRAMS = set(
    "get all history diff check_task checks load_checkpoint query request requests tags tagged trigger_firings "
    "missed_times".split()
)


@contextmanager
def opened() -> Iterator[Ledger]:
    with weft.open(":memory:", clock=FixedClock(NOON)) as ledger:
        yield ledger


# --- every verb is of one kind --------------------------------------------------------------------------------------


def kind_of_verb(name: str, verb: Callable[..., Any]) -> list[str]:
    return [
        kind
        for kind, holds in {
            "whole": getattr(verb, "is_whole", False),
            "change": hasattr(verb, "right") and not getattr(verb, "is_whole", False),
            "filtered": name in FILTERED,
            "neutral": name in NEUTRAL,
        }.items()
        if holds
    ]


def test_every_verb_of_the_ledger_asks_about_the_whole_or_about_what_it_names() -> None:
    verbs = public(Ledger)
    assert {name: kinds for name, verb in verbs.items() if len(kinds := kind_of_verb(name, verb)) != 1} == {}
    assert verbs.keys() >= FILTERED | NEUTRAL


def test_every_verb_of_programs_asks() -> None:
    leases = {"hold_agent", "renew_agent", "release_agent"}
    whole = {name for name, verb in public(Programs).items() if getattr(verb, "is_whole", False)}
    verbs = public(Programs).keys() - {"acting_as"} - whole
    assert verbs == (VERB_RIGHTS.keys() & verbs) | leases | FILTERED_PROGRAMS
    assert not VERB_RIGHTS.keys() & FILTERED_PROGRAMS


@pytest.fixture(scope="module")
def empty_and_filled() -> Iterator[tuple[Ledger, Ledger]]:
    """Two ledgers, for all tests that change nothing in them."""
    with opened() as empty, opened() as filled:
        for ledger in (empty, filled):
            Programs(ledger).create("human", "eve", {"permissions": ["session:read", "session:*", "turn:*"]})
        grow(filled, "main", "a")
        yield empty, filled


@pytest.mark.parametrize("name", sorted(name for name, verb in public(Ledger).items() if getattr(verb, "is_whole", 0)))
def test_what_tells_of_the_whole_ledger_is_refused_whatever_is_in_it(
    name: str, empty_and_filled: tuple[Ledger, Ledger]
) -> None:
    for ledger in empty_and_filled:
        verb: Any = ledger.acting_as("eve")
        for part in name.split("."):
            verb = getattr(verb, part)
        before = ledger.newest()
        with pytest.raises(NotAllowed):
            verb()
        assert ledger.newest() == before


# --- what one may not do --------------------------------------------------------------------------------------------

NAMES = ("local", "eve", "ann", "scout")
RIGHTS = ("session:read", "turn:record", "session:move", "session:rename", "session:archive", "session:delete",
          "content:erase", "turn:merge", "compaction:record", "compaction:choose")  # fmt: skip
READ = "session:read"


class Attempt(Struct, frozen=True):
    """A verb on a session: the rights that it needs, and what it answers where the session cannot be seen."""

    do: Callable[[Ledger, str], Any]
    needs: tuple[str, ...]
    unseen: type[WeftError] = NotFound


PREPARED_SESSIONS = ("interrupt", "cancel", "send again", "retry")
PREPARED: dict[str, str] = {}
"""By the label of a session, the message or turn there that an attempt is made on."""
ATTEMPTS: Mapping[str, Attempt] = {
    "session": Attempt(lambda ledger, name: ledger.session(name), (READ,)),
    "turn": Attempt(lambda ledger, name: ledger.turn(name), (READ,)),
    "thread": Attempt(lambda ledger, name: list(ledger.thread(name).turns), (READ,)),
    "context": Attempt(lambda ledger, name: ledger.context(session=name), (READ,)),
    "log": Attempt(lambda ledger, name: ledger.log(session=name), (READ,)),
    "search": Attempt(lambda ledger, name: ledger.search("said", session=name), (READ,)),
    "fork": Attempt(lambda ledger, name: ledger.fork(name, label=f"of {name}"), (READ,)),
    "record": Attempt(lambda ledger, name: grow(ledger, name, "more"), ("turn:record",), LabelTaken),
    "begin": Attempt(lambda ledger, name: ledger.begin_turn(session=name).fail("x"), ("turn:record",), LabelTaken),
    "admit": Attempt(lambda ledger, name: ledger.inbox.admit("x", session=name), ("turn:record",), LabelTaken),
    "inbox": Attempt(lambda ledger, name: ledger.inbox.list(session=name), (READ,)),
    "follow": Attempt(lambda ledger, name: list(ledger.follow(name, after="0", wait=0)), (READ,)),
    "interrupt": Attempt(lambda ledger, name: ledger.inbox.interrupt(name), (READ, "turn:record")),
    "cancel": Attempt(lambda ledger, name: ledger.inbox.cancel(PREPARED[name]), ("turn:record",)),
    "send again": Attempt(lambda ledger, name: ledger.inbox.send_again(PREPARED[name]), (READ, "turn:record")),
    "retry": Attempt(lambda ledger, name: ledger.inbox.retry(PREPARED[name]), (READ,)),
    "create": Attempt(lambda ledger, name: ledger.create_session(name), (), LabelTaken),
    "move": Attempt(lambda ledger, name: ledger.move_head(name, new=None), ("session:move",)),
    "reset": Attempt(lambda ledger, name: ledger.heads.reset(name), ("session:move",)),
    "rename": Attempt(lambda ledger, name: ledger.labels.rename(name, f"new {name}"), ("session:rename",)),
    "alias": Attempt(lambda ledger, name: ledger.labels.add_alias(f"also {name}", name), ("session:rename",)),
    "promote": Attempt(lambda ledger, name: ledger.labels.promote(name, f"key of {name}"), ("session:rename",)),
    "unify": Attempt(
        lambda ledger, name: ledger.merges.unify(name, into="x session"),
        (READ, "session:rename", "session:archive", "turn:merge"),
    ),
    "archive": Attempt(lambda ledger, name: ledger.labels.archive(name), (READ, "session:archive")),
    "delete": Attempt(lambda ledger, name: ledger.labels.delete(name), (READ, "session:delete")),
    "erase": Attempt(lambda ledger, name: ledger.erasure.erase(name, reason="r"), (READ, "content:erase")),
    "summarize": Attempt(
        lambda ledger, name: ledger.merges.summarize(name, into=name, text="t"), (READ, "turn:merge")
    ),
    "compact": Attempt(
        lambda ledger, name: ledger.compactions.record(summary="s", session=name), ("compaction:record",)
    ),
    "choose": Attempt(lambda ledger, name: ledger.compactions.choose(name, None), ("compaction:choose",)),
}  # fmt: skip


class Made(Struct, frozen=True):
    """How a session came to be, and what somebody was given over it."""

    creators: tuple[str, ...]
    persona: str
    grants: frozenset[tuple[str, str]]
    """Names and rights."""


made = st.builds(
    Made,
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True).map(tuple),
    st.sampled_from(("local", "ann", "scout")),
    st.frozensets(st.tuples(st.sampled_from(NAMES[1:]), st.sampled_from(RIGHTS)), max_size=6),
)
chains = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(tuple)


def authority(names: tuple[str, ...]) -> Authority:
    first, *others = (LOCAL if name == "local" else Authority((principal(name),)) for name in names)
    for other in others:
        first = first.delegate(other.principal)
    return first


def principal(name: str) -> Principal:
    return Principal(PrincipalKind.AGENT if name == "scout" else PrincipalKind.HUMAN, name)


def may(session: Made, chain: tuple[str, ...], right: str) -> bool:
    return all(
        name == "local" or name in (session.persona, *session.creators) or (name, right) in session.grants
        for name in chain
    )


def expected(session: Made, chain: tuple[str, ...], attempt: Attempt) -> type[WeftError] | None:
    if attempt.needs and all(may(session, chain, right) for right in attempt.needs):
        return None
    is_seen = may(session, chain, READ)
    if not attempt.needs or not is_seen:
        return attempt.unseen
    return NotAllowed


def tried() -> dict[str, Attempt]:
    """The attempts of this run: each is made on a session of its own."""
    return dict(share(list(ATTEMPTS.items()), test=10))


def populated(ledger: Ledger, session: Made) -> None:
    """One session for each attempt, all of them alike."""
    programs = Programs(ledger)
    for name in NAMES[1:]:
        granted = [f"{right}(x *)" for owner, right in sorted(session.grants) if owner == name]
        given = {"programs": granted} if name == "scout" else granted
        programs.create("agent" if name == "scout" else "human", name, {"permissions": given})
    creator = ledger.acting_as(authority(session.creators))
    for name in {**tried(), **dict.fromkeys((*PREPARED_SESSIONS, "session"))}:  # `unify` needs another session
        creator.create_session(f"x {name}", persona=session.persona)
        grow(ledger, f"x {name}", "said")
    prepare_inboxes(ledger)


def prepare_inboxes(ledger: Ledger) -> None:
    """What only the owner asked for: a turn that runs, a message that waits, one that is dead, a turn that failed."""
    begun_turn(ledger, "x interrupt")
    PREPARED["x cancel"] = ledger.inbox.admit("x", session="x cancel").message
    for name in ("x send again", "x retry"):
        turn = begun_turn(ledger, name)
        turn.record([FinishedRun(exit=RunExit.ERROR, error=NewError(code="down", message="the server is away"))])
        PREPARED[name] = turn.id
    (dead,) = ledger.inbox.list(session="x send again", states=["dead"])
    PREPARED["x send again"] = dead.id


def begun_turn(ledger: Ledger, session: str) -> RunWriter:
    """A turn for a message of the owner, as a broker begins it."""
    message = ledger.inbox.admit("x", session=session)
    at = ledger.session(session)
    run, _ = Runs(ledger).begin(at.id, expected=(at.head, None), messages=[message.message])
    return run


@pytest.mark.slow("makes sixteen ledgers, and tries every verb in each")
@settings(max_examples=1000 if PROVING else 8)
@given(made, chains)
def test_what_one_may_not_do_is_refused_as_an_oracle_says(session: Made, chain: tuple[str, ...]) -> None:
    with opened() as ledger:
        populated(ledger, session)
        acting = ledger.acting_as(authority(chain))
        for name, attempt in tried().items():
            error = expected(session, chain, attempt)
            before = ledger.newest()
            if error is None:
                attempt.do(acting, f"x {name}")
            else:
                with pytest.raises(error) as refused:
                    attempt.do(acting, f"x {name}")
                assert type(refused.value) is error, (name, refused.value)
                assert ledger.newest() == before


def test_of_messages_and_turns_of_hidden_sessions_nobody_learns_more_than_that_they_are_not_there() -> None:
    with opened() as ledger:
        Programs(ledger).create("human", "eve", {})
        for name in PREPARED_SESSIONS:
            ledger.create_session(f"x {name}")
        prepare_inboxes(ledger)
        eve, before, unknown = ledger.acting_as("eve"), ledger.newest(), f"00{PREPARED['x retry'][2:]}"
        for ask, id in (
            (eve.inbox.get, PREPARED["x cancel"]),
            (eve.inbox.cancel, PREPARED["x cancel"]),
            (eve.inbox.send_again, PREPARED["x send again"]),
            (eve.inbox.retry, PREPARED["x retry"]),
            (eve.inbox.interrupt, ledger.session("x interrupt").id),
            (lambda session: list(eve.follow(session, wait=0)), ledger.session("x interrupt").id),
        ):
            refused, missing = (answer(partial(ask, name)) for name in (id, unknown))
            assert refused == missing
            assert "NotFound" in refused
        assert ledger.newest() == before


@settings(max_examples=1000 if PROVING else 2)
@given(made, chains, st.sampled_from(RIGHTS))
def test_a_layer_takes_rights_away_and_gives_none(session: Made, chain: tuple[str, ...], right: str) -> None:
    with opened() as ledger:
        populated(ledger, session)
        acting = ledger.acting_as(authority(chain).child(rights(["*"], [f"{right}(x *)"])))
        for name, attempt in tried().items():
            if right in attempt.needs or expected(session, chain, attempt) is not None:
                with pytest.raises((NotAllowed, NotFound, LabelTaken)):
                    attempt.do(acting, f"x {name}")


# --- what one may not read ------------------------------------------------------------------------------------------

IDS = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b|\b[0-9a-f]{64}\b")
HIDDEN = ("secret-plans-2026", "payroll", "of eve's")


def steps() -> st.SearchStrategy[list[tuple[str, int]]]:
    return st.lists(st.tuples(st.sampled_from(("grow", "fork", "sessionless", "alias", "branch")), st.integers(0, 3)),
                    max_size=5)  # fmt: skip


def visible_history(ledger: Ledger, plan: list[tuple[str, int]]) -> None:
    """What is there for everybody: a session that eve may read, and what she did herself."""
    programs = Programs(ledger)
    programs.create("human", "eve", {"permissions": ["session:read(shared)"]})
    programs.create("human", "ann", {})
    programs.create("agent", "scout", {})
    grow(ledger, "shared", "plain words", "more words")
    eve = ledger.acting_as("eve")
    grow(eve, "mine", "hers", "hers again", persona="scout")
    eve.fork("shared", label="copy")
    for i, (step, at) in enumerate(plan):
        if step == "grow":
            grow(eve, ("mine", "copy")[at % 2], f"words {i}")
        elif step == "fork":
            eve.fork(f"mine~{at % 2}", label=f"fork-of-mine-{i}")
        elif step == "sessionless":
            grow(eve, None, f"alone {i}")
        elif step == "alias":
            eve.labels.add_alias(f"other-{i}", "mine")
        else:
            eve.merges.cherry_pick("shared", onto="mine")


def hidden_history(ledger: Ledger, plan: list[tuple[str, int]]) -> list[str]:
    """What eve may not read: sessions and turns of others, some of them on her own threads. Returns all its names."""
    programs, ann = Programs(ledger), ledger.acting_as("ann")
    programs.create("agent", "mole", {"visibility": "private", "soul": "plain words"})
    ids = grow(ledger, HIDDEN[0], "plain words that are hidden", "hidden", persona="mole")
    ids += grow(ann, HIDDEN[1], "plain words of ann")
    ledger.labels.add_alias("plans", HIDDEN[0])
    ledger.fork("mine", label=HIDDEN[2])
    ids += grow(ledger, HIDDEN[2], "on a turn of hers")
    ids += grow(ledger, None, "alone and hidden")
    ledger.merges.cherry_pick("mine", onto=HIDDEN[0])
    ledger.create_session("mine-sub", parent_session="mine", routing_key="dm:eve")
    programs.add_tags(ids[0], "tag")
    for i, (_, at) in enumerate(plan):
        ids += grow(ledger, HIDDEN[at % 3], f"hidden words {i}")
    sessions = [ledger.session(label).id for label in (*HIDDEN, "mine-sub")]
    digests = [ledger.turn(turn).digest for turn in ids]
    return [*HIDDEN, *ids, *sessions, *digests, *(id[-8:] for id in ids), "plans", "secret", "secret-plans", "dm:eve",
            "mine-sub", "mine-s", f"{HIDDEN[0]}~1", f"{HIDDEN[0]}@{{0}}", f"{HIDDEN[0]}#1"]  # fmt: skip


def answer(ask: Callable[[], Any]) -> Any:
    """What somebody is told, without ids, which differ between two ledgers, and without positions in the log."""
    try:
        told = ask()
    except WeftError as error:
        told = (type(error).__name__, str(error), str(error.hint))
    if isinstance(told, Thread):
        told = [*told.turns, *told.messages]
    if isinstance(told, Iterator):
        told = list(told)
    return IDS.sub("ID", re.sub(r"'n': \d+|'until': \d+", "N", repr(_plain(told))))


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [*map(_plain, value), bool(getattr(value, "next", None))]
    if isinstance(value, Struct):
        fields = structs.asdict(value)
        return {name: _plain(field) for name, field in fields.items() if name not in ("line", "event")}
    return value if not isinstance(value, dict) else to_builtins(value)


def named_answers(ledger: Ledger, programs: Programs, name: str) -> Iterator[Callable[[], Any]]:
    """Every verb that reads something by its name."""
    yield from (
        lambda: ledger.session(name), lambda: ledger.resolve(name), lambda: ledger.point(name),
        lambda: ledger.turn(name), lambda: ledger.thread(name), lambda: ledger.messages(name),
        lambda: ledger.message(name), lambda: ledger.tool_calls(name), lambda: ledger.codeblocks(name),
        lambda: ledger.vouchers(name), lambda: ledger.vouchers(session=name), lambda: ledger.strangers(name),
        lambda: ledger.context(name), lambda: ledger.context(session=name), lambda: ledger.diff(name, "mine"),
        lambda: ledger.log(session=name), lambda: ledger.log(thread=name), lambda: ledger.events(name),
        lambda: ledger.reflog(name), lambda: ledger.heads.at(name, NOON), lambda: ledger.labels.archivable(name),
        lambda: ledger.labels.archivable(name, tree=True), lambda: ledger.labels.aliases(name),
        lambda: ledger.search("words", session=name),
        lambda: ledger.find_turns(parent=name), lambda: ledger.find_messages(session=name),
        lambda: ledger.find_tool_calls(message=name), lambda: ledger.find_tool_calls(spawned=name),
        lambda: ledger.find_sessions(parent=name), lambda: ledger.find_sessions(routing_key=name),
        lambda: ledger.tree.children(name), lambda: ledger.tree.common_ancestor(name, "mine"),
        lambda: ledger.tree.turns(name), lambda: ledger.tree.sessions_containing(name),
        lambda: ledger.tree.moves_to(name), lambda: ledger.compactions.get(name),
        lambda: ledger.compactions.of_thread(name),
        lambda: ledger.imports.provisional(name),
        lambda: ledger.merges.provenance(name), lambda: ledger.merges.branches(name),
        lambda: ledger.listing().subjects([name]), lambda: ledger.listing().on_behalf_of([name]),
        lambda: programs.get(name), lambda: programs.history(name), lambda: programs.tags(name),
    )  # fmt: skip


def changing_answers(ledger: Ledger, programs: Programs, name: str) -> Iterator[Callable[[], Any]]:
    """Every verb that changes something by its name, but for those that say that a label is taken."""
    yield from (
        lambda: ledger.fork(name, label=f"fork of {name}"), lambda: ledger.move_head(name, new=None),
        lambda: ledger.move_head("mine", new=name), lambda: ledger.heads.reset(name),
        lambda: ledger.heads.restore(name),
        lambda: ledger.labels.rename(name, "n"), lambda: ledger.labels.add_alias("a", name),
        lambda: ledger.labels.archive(name), lambda: ledger.labels.unarchive(name), lambda: ledger.labels.delete(name),
        lambda: ledger.erasure.plan(name), lambda: ledger.erasure.erase(name, reason="r"),
        lambda: ledger.erasure.erase(name, reason="r", tree=True),
        lambda: ledger.merges.cherry_pick(name, onto="mine"), lambda: ledger.merges.cherry_pick("mine", onto=name),
        lambda: ledger.merges.summarize(name, into="mine", text="t"), lambda: ledger.merges.settle(name, ours=True),
        lambda: ledger.compactions.record(summary="s", session=name), lambda: ledger.compactions.choose(name, None),
        lambda: ledger.compactions.choose("mine", name), lambda: ledger.record_late_result(name, "c"),
        lambda: ledger.record_turn(parent=name, query="q"), lambda: ledger.create_session("n", parent_session=name),
        lambda: ledger.create_session("n", parent_turn_id=name), lambda: programs.add_tags(name, "t"),
        lambda: programs.change(name, {"x": 1}), lambda: programs.delete(name),
        lambda: programs.step_session(name, "pause"),
    )  # fmt: skip


def listing_answers(ledger: Ledger, programs: Programs) -> Iterator[Callable[[], Any]]:
    """Every verb that lists, with the pages that it has."""
    from weft.ledger.read.session_list import SessionFilter

    yield from (
        ledger.sessions, lambda: ledger.sessions(every=True, limit=1), ledger.log, lambda: ledger.log(limit=2),
        ledger.imports.provisional,
        lambda: ledger.listing().sessions(SessionFilter(every=True, subagents=True)),
        lambda: ledger.listing().sources(),
        lambda: ledger.search("words"), lambda: ledger.search("plain words", limit=1), lambda: ledger.search("hidden"),
        lambda: ledger.search_sessions("hidden"), lambda: ledger.search_sessions("words"),
        lambda: ledger.related_turns("plain words"), lambda: ledger.related_turns("the hidden plain words were said"),
        lambda: ledger.search(role="user"), ledger.find_turns, lambda: ledger.find_turns(persona="mole"),
        lambda: ledger.find_turns(persona="scout"), lambda: ledger.find_messages(role="user"),
        lambda: ledger.find_tool_calls(tool="shell"), lambda: ledger.find_sessions(persona="local"),
        lambda: ledger.find_sessions(persona="mole"), ledger.labels.aliases,
        lambda: ledger.labels.archivable(older_than=NOON + 1),
        ledger.merges.branches, programs.all, lambda: programs.all(deleted=True), programs.query, programs.requests,
        lambda: programs.tagged("tag"), lambda: programs.get("mole"),
    )  # fmt: skip


@pytest.mark.slow("asks every verb for many names in two ledgers")
@settings(max_examples=200 if PROVING else 2)
@given(steps(), steps())
def test_nothing_is_learnt_of_what_may_not_be_read(plan: list[tuple[str, int]], hidden: list[tuple[str, int]]) -> None:
    with opened() as whole, opened() as without:
        visible_history(whole, plan)
        visible_history(without, plan)
        names = hidden_history(whole, hidden)
        sides = [(side.acting_as("eve"), Programs(side.acting_as("eve"))) for side in (whole, without)]
        own = ("mine", "copy", "shared", "mine~1", "copy~1", "scout")
        for asked in (*own, *share(names, test=4)):
            for told, other in zip(*(named_answers(*side, asked) for side in sides), strict=True):
                assert answer(told) == answer(other), asked
        for told, other in zip(*(listing_answers(*side) for side in sides), strict=True):
            assert answer(told) == answer(other)
        for asked in share(names, test=4):
            for told, other in zip(*(changing_answers(*side, asked) for side in sides), strict=True):
                assert answer(told) == answer(other), asked


def test_pages_of_a_search_go_on_over_what_cannot_be_read() -> None:
    with opened() as ledger:
        visible_history(ledger, [])
        for i in range(40):
            grow(ledger, "between", f"plain words {i}")
            grow(ledger.acting_as("eve"), "mine", f"plain words {i}")
        eve, hits, after = ledger.acting_as("eve"), list[str](), None
        while True:
            page = eve.search("plain", limit=7, after=after)
            hits += [hit.turn_id for hit in page]
            after = page.next
            if after is None:
                break
        turns = {turn.id for turn in eve.log()}
        assert set(hits) <= turns
        assert len(set(hits)) == 41


# --- ways around it -------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with opened() as ledger:
        Programs(ledger).create("human", "eve", {})
        Programs(ledger).create(
            "agent", "scout", {"permissions": {"programs": ["configure", "configure(*)", "assign"]}}
        )
        yield ledger


def test_a_label_that_is_taken_says_no_more(ledger: Ledger) -> None:
    grow(ledger, "secret plans", "a")
    ledger.labels.add_alias("plans", "secret plans")
    eve = ledger.acting_as("eve")
    grow(eve, "mine", "a")
    for attempt in (
        lambda: eve.create_session("plans"),
        lambda: grow(eve, "plans", "b"),
        lambda: eve.fork("mine", label="plans"),
        lambda: eve.labels.rename("mine", "plans"),
        lambda: eve.labels.add_alias("plans", "mine"),
    ):
        with pytest.raises(LabelTaken) as refused:
            attempt()
        assert str(refused.value) == "the name 'plans' is already a session"


def test_a_content_is_not_guessed_by_its_reference(ledger: Ledger) -> None:
    stored = ledger.put_content(b"a password")
    eve = ledger.acting_as("eve")
    with pytest.raises(ContentMissing):
        eve.record_turn(session="mine", query=StoredContent(stored.ref, stored.size))
    with pytest.raises(NotAllowed):
        eve.read_content(stored.ref)
    own = eve.put_content(b"a password")
    assert eve.messages(eve.record_turn(session="mine", query=own).id)[0].text == "a password"


def test_a_cursor_of_another_leads_nowhere(ledger: Ledger) -> None:
    grow(ledger, "secret", "a", "b", "c")
    eve = ledger.acting_as("eve")
    grow(eve, "mine", "mine")
    secret = ledger.resolve("secret")
    after = ledger.events(secret, limit=1).next
    for name in (secret, "mine"):
        with pytest.raises((NotFound, InvalidInput)):
            eve.events(name, after=after)
    page = ledger.log(limit=1)
    assert {turn.id for turn in eve.log(after=page.next)} <= {turn.id for turn in eve.log()}


def test_a_plan_of_another_is_not_carried_out(ledger: Ledger) -> None:
    grow(ledger, "secret", "a")
    plan, eve = ledger.erasure.plan("secret"), ledger.acting_as("eve")
    with pytest.raises(NotAllowed):
        eve.erasure.erase(plan, reason="r")
    grow(eve, "mine", "mine")
    forged = structs.replace(eve.erasure.plan("mine"), contents=plan.contents)
    with pytest.raises(NotAllowed):
        eve.erasure.erase(forged, reason="r")
    assert ledger.erasure.done() == []
    assert eve.erasure.erase(eve.erasure.plan("mine"), reason="r").contents


def test_a_turn_that_another_session_contains_is_not_erased_under_it(ledger: Ledger) -> None:
    eve = ledger.acting_as("eve")
    (turn,) = grow(eve, "mine", "mine")
    ledger.fork("mine", label="kept")
    with pytest.raises(NotAllowed):
        eve.erasure.erase(turn, reason="r")
    assert eve.erasure.plan("mine").held[0].sessions == ()
    with pytest.raises(NotAllowed):
        eve.erasure.plan("mine", everywhere=True)


def test_who_is_not_there_reads_nothing(ledger: Ledger) -> None:
    grow(ledger, "main", "a")
    nobody = ledger.acting_as("nobody")
    asks: list[Callable[[], Any]] = [nobody.sessions, lambda: nobody.search("a"), lambda: nobody.session("main")]
    for ask in asks:
        with pytest.raises(NotFound, match="agent or person"):
            ask()


MACHINE_PARTS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "a provider's server": ("provider", "p", {"providerType": "openai", "baseUrl": "https://collect.example"}),
    "a provider's key": ("provider", "p", {"providerType": "openai", "apiKey": "${GITHUB_TOKEN}"}),
    "a person's channel": ("human", "h", {"preferences": {"notificationChannel": "webhook", "webhook": "https://x.example"}}),
    "a task's folder": ("task", "t", {"title": "T", "workspace": "/home/bln"}),
    "a task's command": (
        "task", "t", {"title": "T", "spec": {"successCriteria": [{"type": "command", "command": ["id"]}]}},
    ),
    "an agent's keys": ("agent", "other", {"permissions": {"credentials": ["*"]}}),
    "a variable": ("code", "c", {"source": "x", "metadata": {"environment": "${HOME}"}}),
}  # fmt: skip


@pytest.mark.parametrize("part", MACHINE_PARTS)
def test_an_agent_chooses_no_keys_folders_or_destinations(ledger: Ledger, part: str) -> None:
    kind, name, config = MACHINE_PARTS[part]
    programs = Programs(ledger)
    plain = {key: value for key, value in config.items() if key in ("title", "source")}
    for who in (authority(("scout",)), authority(("local", "scout"))):
        agent = programs.acting_as(who)
        with pytest.raises(NotAllowed, match="keys, folders, commands or destinations"):
            agent.create(kind, name, config)
    if kind != "provider":
        programs.create(kind, name, plain)
        with pytest.raises(NotAllowed, match="keys, folders, commands or destinations"):
            programs.acting_as("scout").configure(name, config)
        with pytest.raises(NotAllowed, match="keys, folders, commands or destinations"):
            programs.acting_as("scout").change(name, config)
        assert programs.configure(name, config).version == 2
        assert programs.acting_as("scout").change(name, {"metadata": {"note": "seen"}}).version == 3


def test_a_grant_is_a_pattern_of_whole_labels() -> None:
    assert pattern_matcher("dm:*")("dm:ann")
    with opened() as ledger:
        Programs(ledger).create("human", "eve", {"permissions": ["session:read(dm:*)"]})
        grow(ledger, "dm:ann", "a")
        grow(ledger, "dm", "b")
        assert [session.label for session in ledger.acting_as("eve").sessions()] == ["dm:ann"]


# --- on the command line --------------------------------------------------------------------------------------------


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("WEFT_LEDGER", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    return Shell(folder, monkeypatch, capsys)


def test_the_command_line_refuses_as_the_library_does(shell: Shell) -> None:
    assert shell("init").code == 0
    assert shell("human", "create", "eve", "--permission", "session:read(shared)").code == 0
    path = next((shell.folder / ".weft").glob("*.db"))
    with weft.open(path) as ledger:
        for label in ("secret plans", "shared"):
            grow(ledger, label, label)
        grow(ledger.acting_as("eve"), "mine", "a")
        secret = ledger.resolve("secret plans")
    for what in ("secret plans", "shared", "nothing", "secret", secret, secret[-8:]):
        with weft.open(path) as ledger, pytest.raises((NotFound, NotAllowed)) as refused:
            ledger.acting_as("eve").erasure.erase(what, reason="r")
        told = shell("erase", what, "--reason", "r", "--yes", "--as", "eve", "--json")
        assert told.error["message"] == str(refused.value)
        assert told.code != 0
    assert shell("erase", "mine", "--reason", "r", "--yes", "--as", "eve").code == 0
    with weft.open(path) as ledger:
        assert [tombstone.actor for tombstone in ledger.erasure.done()].count("eve") == len(ledger.erasure.done()) > 0


COMMANDS: Mapping[str, Callable[[str], tuple[str, ...]]] = {
    "session": lambda name: ("reflog", name),
    "turn": lambda name: ("show", name),
    "thread": lambda name: ("read", name),
    "context": lambda name: ("context", "--session", name),
    "log": lambda name: ("log", "--session", name),
    "search": lambda name: ("search", "said", "--session", name),
    "fork": lambda name: ("fork", name, f"of {name}"),
    "record": lambda name: ("record", "--session", name, "--query", "more"),
    "create": lambda name: ("session", "create", name),
    "move": lambda name: ("move", name, "--reset"),
    "rename": lambda name: ("rename", name, f"new {name}"),
    "alias": lambda name: ("alias", f"also {name}", name),
    "archive": lambda name: ("archive", name),
    "delete": lambda name: ("delete", name),
    "erase": lambda name: ("erase", name, "--reason", "r", "--yes"),
    "summarize": lambda name: ("summarize", name, "--into", name, "--text", "t"),
    "compact": lambda name: ("compact", name, "--summary", "s"),
    "choose": lambda name: ("compact", name, "--undo"),
}
"""The same verbs as commands."""
LOOKING = {"compact", "choose", "move", "rename", "alias"}
"""Commands that read the session before they change it."""


@settings(max_examples=40 if PROVING else 2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made, st.sampled_from(NAMES))
def test_every_command_refuses_as_the_oracle_says(shell: Shell, session: Made, name: str) -> None:
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "ledger.db")
        with weft.open(path) as ledger:
            populated(ledger, session)
        for verb in (verb for verb in tried() if verb in COMMANDS):
            attempt, command = ATTEMPTS[verb], COMMANDS[verb]
            if verb in LOOKING:
                attempt = structs.replace(attempt, needs=(READ, *attempt.needs))
            error = expected(session, (name,), attempt)
            told = shell("--ledger", path, "--as", name, *command(f"x {verb}"), "--json")
            if error is None:
                assert told.code == 0, (verb, told.err)
            else:
                assert (verb, told.error["code"]) == (verb, error.code)


@pytest.mark.parametrize("command", sorted(OWNER_COMMANDS))
def test_commands_on_files_of_the_owner_are_in_nobody_elses_name(shell: Shell, command: str) -> None:
    told = shell("--as", "eve", command, "--json")
    assert (told.code, told.error["code"]) == (4, "not_allowed")


def test_a_second_name_does_not_undo_the_first(shell: Shell) -> None:
    assert shell("init").code == 0
    assert shell("human", "create", "eve").code == 0
    for words in (("secrets",), ("human", "create", "carl"), ("erase", "main", "--reason", "r", "--dry-run")):
        assert shell("--as", "eve", *words, "--as", "local").code == 2
    assert shell("--as", "eve", "human", "create", "carl", "--as", "eve").code == 4


def test_a_completion_knows_what_the_name_on_the_line_may_read(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("init").code == 0
    assert shell("human", "create", "eve").code == 0
    shell("record", "--session", "private", "--query", "x")
    shell("--as", "eve", "record", "--session", "plain", "--query", "x")
    monkeypatch.setenv("_WEFT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "weft --as eve show p")
    monkeypatch.setenv("COMP_CWORD", "4")
    with pytest.raises(SystemExit):
        run([])
    assert capsys.readouterr().out == "plain,plain\n"


def test_short_labels_betray_no_alias_of_what_cannot_be_read() -> None:
    label = "aaaaaaaa-2222-3333-4444-000000000001"
    with opened() as ledger:
        take(ledger, label, native_turn("t"))
        grow(ledger, "hidden", "x")
        Programs(ledger).create("human", "eve", {"permissions": [f"session:read({label})"]})
        before = ledger.acting_as("eve").listing().short_labels()
        ledger.labels.add_alias("aaaaaaaa-2222-3333-zz", "hidden")
        assert ledger.acting_as("eve").listing().short_labels() == before == {label: "aaaaaaaa"}
