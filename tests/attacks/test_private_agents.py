"""A private agent works for whoever created it and those it was shared with, by every path; others find none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

import weft
from tests.ledger.histories import copy_in_memory, exported, grow, import_into
from tests.runtime.invoking import VARIABLES, Bench, run
from tests.runtime.scripted import chat_saying
from tests.sandbox import UNPROTECTED
from tests.sizes import PROVING
from weft.aio.crossing import Pool
from weft.aio.ledger import AsyncLedger
from weft.kernel.authority import LOCAL, Authority, Principal, PrincipalKind
from weft.kernel.clock import FixedClock
from weft.kernel.errors import InvalidConfig, LabelTaken, NotAllowed, NotFound, WeftError
from weft.ledger.api import Ledger, Runs
from weft.programs import Programs
from weft.programs.program_changes import wanted_in
from weft.runtime.broker.broker import answer_admitted
from weft.runtime.broker.turn_plans import SenderContext
from weft.runtime.egress.credentials import Keyring
from weft.runtime.egress.execution_context import context_for
from weft.runtime.invoke.handlers import invoke
from weft.runtime.invoke.invocation import Invocation, InvocationContext
from weft.runtime.sandbox.command_runner import CommandRunner

NOON = 1_794_700_800_000
NAMES = ("local", "ann", "bob", "eve", "helper")
EVERYTHING = [
    "configure",
    "configure(open)",
    "configure(job)",
    "assign",
    "session:read",
    "turn:record",
    "session:create",
    "session:move",
]
"""All permissions but the one to read private programs: none of them makes an agent work for somebody."""
SPY = "spy"


def principal(name: str) -> Principal:
    if name == "local":
        return LOCAL.principal
    return Principal(PrincipalKind.AGENT if name in ("helper", SPY) else PrincipalKind.HUMAN, name)


def chain_of(names: tuple[str, ...]) -> Authority:
    return Authority(tuple(map(principal, names)))


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with opened() as ledger:
        yield ledger


def opened() -> Ledger:
    ledger = weft.open(":memory:", clock=FixedClock(NOON))
    programs = Programs(ledger)
    for name in ("ann", "bob", "eve"):
        programs.create("human", name, {"permissions": EVERYTHING})
    programs.create("agent", "helper", {"permissions": {"programs": EVERYTHING}})
    programs.create("task", "job", {"title": "Job", "spec": {"inputs": []}})
    return ledger


def as_(ledger: Ledger, *names: str) -> Programs:
    return Programs(ledger.acting_as(chain_of(names)))


def with_spy(ledger: Ledger, *creators: str, shared: tuple[str, ...] = ()) -> None:
    """A private agent, with a session in which it answered."""
    maker = as_(ledger, *creators)
    maker.create("agent", SPY, {"systemPrompt": "The soul of the spy.", "visibility": "private", "createdBy": "eve"})
    for name in shared:
        maker.share_agent(SPY, name)
    ledger.create_session(f"{SPY}:main", persona=SPY)
    grow(ledger, f"{SPY}:main", "The weather in Lisbon")


Attempt = Callable[[Ledger, str], Any]
"""One way to name an agent, in whoever's name the ledger is open."""


def _delegated(ledger: Ledger, name: str) -> Any:
    acting = ledger.acting_as(ledger.authority.delegate(Principal(PrincipalKind.AGENT, name)))
    return acting.record_turn(session=f"by {name}", query="x")


PATHS: dict[str, Attempt] = {
    "get": lambda ledger, name: Programs(ledger).get(name).name,
    "history": lambda ledger, name: len(Programs(ledger).history(name)),
    "diff": lambda ledger, name: Programs(ledger).diff(name),
    "tags": lambda ledger, name: Programs(ledger).tags(name),
    "send to the agent": lambda ledger, name: ledger.inbox.admit("x", persona=name).session,
    "send with it as persona": lambda ledger, name: ledger.inbox.admit("x", session="new", persona=name).session,
    "send to its session": lambda ledger, name: ledger.inbox.admit("x", session=f"{SPY}:main").session,
    "record": lambda ledger, name: ledger.record_turn(session="mine", query="x", persona=name).session,
    "create a session": lambda ledger, name: ledger.create_session("for it", persona=name).label,
    "create a session of it": lambda ledger, name: Programs(ledger).create_session("of it", owner=name).name,
    "own a session": lambda ledger, name: Programs(ledger).create_session("s", config={"owner": f"@({name})"}).name,
    "give it a session": lambda ledger, name: Programs(ledger).change("open", {"owner": f"@({name})"}).name,
    "fork under it": lambda ledger, name: ledger.fork("open", label="forked", persona=name).label,
    "act as it": _delegated,
    "hold": lambda ledger, name: Programs(ledger).hold_agent(name).key,
    "step": lambda ledger, name: Programs(ledger).step_agent(name, "pause").name,
    "fail": lambda ledger, name: Programs(ledger).fail_agent(name, "x").name,
    "load a checkpoint": lambda ledger, name: Programs(ledger).load_checkpoint(name),
    "assign": lambda ledger, name: Programs(ledger).assign(name, "job").name,
    "assign a task": lambda ledger, name: Programs(ledger).assign_task("job", name).name,
    "name it in a task": lambda ledger, name: Programs(ledger).change("job", {"assignee": f"@({name})"}).name,
    "propose a policy": lambda ledger, name: ledger.policies.propose("p", "x = 1", agent=name).name,
    "configure": lambda ledger, name: Programs(ledger).change(name, {"identity": {"soul": "mine now"}}).name,
    "revert": lambda ledger, name: Programs(ledger).revert(name, 1).name,
    "tag": lambda ledger, name: Programs(ledger).add_tags(name, "t"),
    "share": lambda ledger, name: Programs(ledger).share_agent(name, "eve").name,
    "unshare": lambda ledger, name: Programs(ledger).unshare_agent(name, "bob").name,
    "delete": lambda ledger, name: Programs(ledger).delete(name).name,
}  # fmt: skip
"""Those that need the agent; `delete` is the last, for it takes the agent away."""
MAKING = ("send to the agent", "send with it as persona", "send to its session", "record", "create a session")
"""Naming an agent that does not exist makes one here; of a private one it is said that there is none."""


def answer(path: Attempt, ledger: Ledger, name: str) -> str:
    try:
        return repr(path(ledger, name))
    except WeftError as error:
        return f"{type(error).__name__}: {error} ({getattr(error, 'hint', '')})".replace(name, "NAME")


def prepared(ledger: Ledger) -> None:
    """A thread that everybody with `session:read` can read."""
    grow(ledger, "open", "hello")


@pytest.mark.parametrize("chain", [("eve",), ("ann", "eve"), ("eve", "helper"), ("local", "eve")])
def test_a_stranger_is_answered_by_every_path_as_if_the_agent_did_not_exist(
    ledger: Ledger, chain: tuple[str, ...]
) -> None:
    prepared(ledger)
    with_spy(ledger, "ann", shared=("bob",))
    stranger, before = ledger.acting_as(chain_of(chain)), ledger.newest()
    ids = {"name": SPY, "ulid": Programs(ledger).get(SPY).id}
    for how, path in PATHS.items():
        for name in ids.values():
            refused = answer(path, stranger, name)
            assert "NotFound" in refused or "InvalidConfig" in refused, (how, refused)
            assert "soul" not in refused
            assert ledger.newest() == before, how
        if how not in MAKING and how not in ("create a session of it", "fork under it"):
            assert answer(path, stranger, SPY) == answer(path, stranger, "nobody"), how
    assert SPY not in {program.name for program in Programs(stranger).all()}
    with pytest.raises(LabelTaken, match="taken"):
        Programs(stranger).create("agent", SPY, {})
    wanted = wanted_in({"id": SPY, "programType": "agent", "config": {"soul": "mine now"}}, "here")
    with pytest.raises(WeftError, match="taken"):
        Programs(stranger).apply(wanted)
    assert "spy" not in repr(stranger.related_turns("weather in Lisbon"))
    assert ledger.newest() == before


def test_a_guest_without_permissions_cannot_tell_a_private_agent_from_none(ledger: Ledger) -> None:
    """Where a name alone makes an agent or a session, it is refused; that names and labels are taken can be told."""
    prepared(ledger)
    with_spy(ledger, "ann")
    Programs(ledger).create("human", "guest", {})
    guest, before = ledger.acting_as("guest"), ledger.newest()
    for how, path in PATHS.items():
        refused = answer(path, guest, SPY)
        if how == "send to its session":
            assert "LabelTaken" in refused
        elif how in MAKING:
            assert "NotFound: no agent 'NAME'" in refused, (how, refused)
        else:
            assert refused == answer(path, guest, "nobody"), how
        assert ledger.newest() == before, how


def works(ledger: Ledger, chain: tuple[str, ...], *, name: str = SPY) -> bool:
    """Whether an agent takes a message of this chain."""
    try:
        ledger.acting_as(chain_of(chain)).inbox.admit("x", persona=name)
    except (NotFound, NotAllowed):
        return False
    return True


chains = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(tuple)


class Story(Struct, frozen=True):
    """Who created the agent, and with whom it was shared (True) or no longer shared (False), in turn."""

    creators: tuple[str, ...]
    shares: tuple[tuple[str, bool], ...]


stories = st.builds(
    Story, chains, st.lists(st.tuples(st.sampled_from(NAMES[1:]), st.booleans()), max_size=6).map(tuple)
)


@settings(max_examples=1000 if PROVING else 12)
@given(stories, st.lists(chains, min_size=3, max_size=6), st.booleans())
def test_an_agent_works_for_whom_an_oracle_says(story: Story, asking: list[tuple[str, ...]], is_private: bool) -> None:
    with opened() as ledger:
        with_spy(ledger, *story.creators)
        shared: set[str] = set()
        for name, is_shared in story.shares:
            if is_shared:
                Programs(ledger).share_agent(SPY, name)
                shared.add(name)
            elif name in shared:
                Programs(ledger).unshare_agent(SPY, name)
                shared.remove(name)
        if not is_private:
            Programs(ledger).change(SPY, {"visibility": "public"})
        for chain in asking:
            allowed = not is_private or set(chain) <= {"local", *story.creators, *shared}
            assert works(ledger, chain) is allowed, (story, chain)


def test_only_its_creator_says_for_whom_it_works_whatever_its_configuration_says(ledger: Ledger) -> None:
    with_spy(ledger, "ann", shared=("bob",))
    bob = as_(ledger, "bob")
    assert bob.get(SPY).created_by == "ann"
    for attempt in (
        partial(bob.share_agent, SPY, "eve"),
        partial(bob.unshare_agent, SPY, "bob"),
        partial(bob.change, SPY, {"visibility": "public"}),
        partial(bob.configure, SPY, {"systemPrompt": "x"}),
        partial(as_(ledger, SPY).share_agent, SPY, "eve"),
    ):
        with pytest.raises(NotAllowed):
            attempt()
    assert not works(ledger, ("eve",))  # though `createdBy` names her
    as_(ledger, "ann").change(SPY, {"visibility": "public"})
    assert works(ledger, ("eve",))


def test_a_session_of_an_agent_that_is_no_longer_shared_is_not_gone_on_with(ledger: Ledger) -> None:
    with_spy(ledger, "ann", shared=("bob",))
    bob = ledger.acting_as("bob")
    bob.create_session("bob's", persona=SPY)
    bob.record_turn(session="bob's", query="x")
    bob.inbox.admit("x", session="bob's")
    as_(ledger, "ann").unshare_agent(SPY, "bob")
    for attempt in (
        partial(bob.inbox.admit, "x", session="bob's"),
        partial(bob.record_turn, session="bob's", query="x"),
        partial(bob.fork, "bob's", label="again"),
        partial(bob.inbox.admit, "x", turn=ledger.session("bob's").head),
    ):
        with pytest.raises(NotFound, match="agent"):
            attempt()
    bob.fork("bob's", label="mine", persona="helper")  # the thread is bob's, the agent is not


def test_a_right_to_read_private_programs_is_none_to_use_them(ledger: Ledger) -> None:
    prepared(ledger)
    with_spy(ledger, "ann")
    Programs(ledger).create("human", "auditor", {"permissions": [*EVERYTHING, "program:read"]})
    auditor = ledger.acting_as("auditor")
    assert Programs(auditor).get(SPY).config["visibility"] == "private"
    for how, path in PATHS.items():
        if how not in ("get", "history", "diff", "tags", "load a checkpoint"):
            with pytest.raises((NotAllowed, NotFound, InvalidConfig)):
                pytest.fail(f"{how}: {path(auditor, SPY)}")


def test_everybody_makes_and_edits_their_own_agents_and_no_others(ledger: Ledger) -> None:
    programs = Programs(ledger)
    programs.create("human", "guest", {})
    programs.create("agent", "worker", {})
    programs.create("agent", "theirs", {})
    for name in ("guest", "worker"):
        maker = Programs(ledger.acting_as(name))
        own = maker.create("agent", f"of {name}", {"systemPrompt": "a"})
        assert own.created_by == name
        maker.change(own.id, {"visibility": "private"})
        maker.share_agent(own.id, "bob")
        maker.add_tags(own.id, "t")
        maker.revert(own.id, 1)
        maker.delete(own.id)
        for attempt in (
            partial(maker.create, "human", "x", {}),
            partial(maker.change, "theirs", {"systemPrompt": "a"}),
            partial(maker.share_agent, "theirs", "bob"),
            partial(maker.delete, "theirs"),
            partial(maker.create, "agent", "strong", {"permissions": {"programs": ["configure"]}}),
        ):
            with pytest.raises(NotAllowed):
                attempt()


def test_what_another_ledger_shares_shows_or_unshares_does_not_count(ledger: Ledger) -> None:
    with_spy(ledger, "ann", shared=("bob",))
    with copy_in_memory(ledger) as other:
        theirs = Programs(other)
        theirs.take_over(SPY)
        theirs.share_agent(SPY, "eve")
        theirs.share_agent(SPY, "bob")
        theirs.unshare_agent(SPY, "bob")
        theirs.change(SPY, {"visibility": "public"})
        import_into(ledger, exported(other))
    assert [works(ledger, (name,)) for name in ("ann", "bob", "eve")] == [True, True, False]
    assert SPY not in {program.name for program in as_(ledger, "eve").all()}


SECRET = "zebracipher"


def prompted(ledger: Ledger) -> str:
    """A turn of the private agent with a system prompt, in a session that everybody with `session:read` reads."""
    with_spy(ledger, "ann", shared=("bob",))
    messages = [{"role": "system", "content": f"You know the {SECRET}."}, {"role": "user", "content": "hello there"}]
    ledger.record_turn(session=f"{SPY}:main", query=messages, response="Good day.", persona=SPY)
    return str(ledger.session(f"{SPY}:main").head)


def test_system_prompts_of_a_private_agent_are_withheld_from_those_who_may_not_read_it(ledger: Ledger) -> None:
    turn = prompted(ledger)
    Programs(ledger).change(SPY, {"identity": {"soul": f"The {SECRET} is my soul."}})
    parts = [{"type": "text", "text": SECRET}, {"type": "text", "text": "in parts"}]
    quiet = ledger.record_turn(session=f"{SPY}:main", system={"role": "system", "content": parts}, persona=SPY).id
    eve, bob = ledger.acting_as("eve"), ledger.acting_as("bob")
    (prompt, *_), system = eve.messages(turn), next(one for one in bob.messages(turn) if one.role == "system")

    def told(reader: Ledger) -> list[str]:
        own = [
            reader.messages(turn),
            list(reader.thread(turn).messages),
            reader.context(turn),
            reader.context(session=f"{SPY}:main"),
            reader.message(system.id),
            list(reader.search(SECRET)),
            reader.find_messages(role="system"),
            reader.diff(turn, turn),
            reader.related_turns(f"the {SECRET} hello there"),
            reader.listing().subjects([turn, quiet]),
            reader.messages(quiet),
        ]
        return [repr(one) for one in own]

    for _ in range(2):  # before and after the words are indexed
        shown = [SECRET in one.replace(f"word='{SECRET}'", "") for one in told(eve)]
        assert shown == [False] * len(shown)
        assert list(bob.search(SECRET))
        ledger.upkeep.catch_up()
    assert prompt.text == "[withheld: the system prompt of an agent that is not yours to read]"
    assert "Good day." in told(eve)[0]
    assert SECRET in told(bob)[0]
    assert SECRET in told(bob)[3]
    assert "count=0" in told(eve)[-1] or SECRET not in told(eve)[-1].replace(f"word='{SECRET}'", "")


def test_a_fork_under_another_persona_is_sent_nothing_of_the_private_agents_prompt(ledger: Ledger) -> None:
    turn = prompted(ledger)
    ledger.acting_as("eve").fork(turn, label="eve's", persona="helper")
    session = ledger.session("eve's")
    for context in (Runs(ledger).history(session.id), Runs(ledger).after(turn, session.id)):
        assert SECRET not in repr(context)
        assert "Good day." in repr(context)
    assert SECRET not in repr(ledger.context(session="eve's"))
    own = ledger.session(f"{SPY}:main")
    assert SECRET in repr(Runs(ledger).history(own.id))
    Programs(ledger).change(SPY, {"visibility": "public"})
    assert SECRET in repr(Runs(ledger).history(session.id))


def as_person(bench: Bench, name: str) -> InvocationContext:
    """Whoever invokes programs with `weft --as NAME`."""
    ledger, crossing = bench.programs.ledger.acting_as(name), cast(Pool, bench.shop.ledger.crossing)
    context = context_for(principal(name), keyring=Keyring((), VARIABLES.get))
    shop = bench.shop
    return InvocationContext(
        AsyncLedger(ledger, crossing),
        Programs(ledger),
        crossing,
        shop.inference,
        variable=VARIABLES.get,
        runner=CommandRunner(UNPROTECTED),
        context=context,
    )


def test_a_stranger_has_no_turn_run_by_a_private_agent(tmp_path: Path) -> None:
    """Neither by invoking it, nor by a message that waited when it was unshared, nor by a task that was assigned."""

    async def body(bench: Bench) -> None:
        programs = bench.programs
        for name in ("ann", "bob", "eve"):
            programs.create("human", name, {"permissions": EVERYTHING})
        spy = {"systemPrompt": "s", "defaultModel": "fast", "visibility": "private"}
        programs.acting_as("ann").create("agent", SPY, spy)
        programs.create("task", "job", {"title": "Job", "spec": {"inputs": []}, "assignee": f"@({SPY})"})
        programs.share_agent(SPY, "bob")
        assert (await invoke(as_person(bench, "ann"), SPY, Invocation(message="hello"))).text == "for ann"
        assert (await invoke(as_person(bench, "bob"), SPY, Invocation(message="hello"))).text == "for bob"
        programs.create("human", "auditor", {"permissions": [*EVERYTHING, "program:read"]})
        before = programs.ledger.newest()
        with pytest.raises(NotAllowed, match="use the private agent 'spy'"):
            await invoke(as_person(bench, "auditor"), SPY, Invocation(message="hello"))
        assert programs.ledger.newest() == before
        waiting = programs.ledger.acting_as("bob").inbox.admit("x", session="bob's", persona=SPY)
        programs.unshare_agent(SPY, "bob")
        for name in ("bob", "eve"):
            acting = as_person(bench, name)
            for program in (SPY, "job", f"{SPY}:main"):
                with pytest.raises(NotFound):
                    await invoke(acting, program, Invocation(message="hello"))
        with pytest.raises(NotFound, match="no agent 'spy'"):
            await answer_admitted(bench.shop.ledger, waiting, SenderContext(planner=bench.shop.planner()))
        assert programs.ledger.inbox.get(waiting.message).state == "dead"
        assert len(bench.server.received) == 2

    run(tmp_path / "l.weft", body, chat_saying({"content": "for ann"}), chat_saying({"content": "for bob"}))
