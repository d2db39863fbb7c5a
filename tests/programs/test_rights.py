"""Nothing about programs is changed without the right to: every verb asks the ledger's authority."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.ledger.histories import copy_in_memory, exported, import_into
from tests.programs.similarity.test_similarity import Words
from tests.programs.test_canary import EXPECTED, VALID
from tests.sizes import share
from weft.kernel.authority import LOCAL, Authority, Principal, PrincipalKind, Rights, rights
from weft.kernel.errors import NotAllowed
from weft.programs import Programs
from weft.programs.program_changes import wanted_in
from weft.programs.program_writer import VERB_RIGHTS
from weft.programs.similarity import Similarity

PERSON = Authority((Principal(PrincipalKind.HUMAN, "bln"),))
TASK = "task-research-quantum"
SIMILARITY = ("embed", "forget")
LEASES = ("hold_agent", "renew_agent", "release_agent")
PENDING = ("take_over", "refuse", "reconsider")
WITHOUT_EVENTS = (*LEASES, *PENDING, "forget")


def prepared(programs: Programs, verb: str) -> Callable[[Rights], Any]:
    """What the verb needs is there; the verb itself, for whoever has these rights."""
    positional: tuple[Any, ...] = ()
    arguments: dict[str, Any] = dict(VALID.get(verb, {}))
    if verb in ("approve", "reject"):
        arguments = {"request": programs.notify("bln", "may it?", asks=True).id}
    elif verb == "apply":
        arguments = {"wanted": wanted_in({"id": "new", "programType": "human", "config": {"name": "N"}}, "here")}
    elif verb in ("add_tags", "remove_tags"):
        programs.add_tags("bln", "old")
        positional = ("bln", "old" if verb == "remove_tags" else "new")
    elif verb in PENDING:
        with copy_in_memory(programs.ledger) as other:
            Programs(other).create("code", "theirs", {"source": "x"})
            import_into(programs.ledger, exported(other))
        positional = ("theirs",)
        if verb == "reconsider":
            programs.take_over("theirs")
    elif verb in SIMILARITY:
        positional = ("main~0",)
    elif verb == "unshare_agent":
        programs.share_agent("researcher", "bln")
    elif verb == "hold_agent":
        arguments = {"agent": "researcher"}
    elif verb in ("renew_agent", "release_agent"):
        arguments = {"hold": programs.hold_agent("researcher")}
    elif verb == "complete_task":
        programs.create("task", "own", {"title": "Own", "spec": {"inputs": []}})
        programs.start_task("own")
        arguments = {"task": "own", "answer": "done"}
    elif verb == "fail_task":
        programs.start_task(TASK)
    elif verb in ("validate", "activate"):
        programs.create("information", "note", {"infoType": "fact", "content": 1}, draft=True)
        arguments = {"name": "note"}
        if verb == "activate":
            programs.validate("note")
    elif verb == "publish":
        programs.create("code", "draft", {"source": "x"}, draft=True)
        arguments = {"name": "draft"}
    elif verb == "revert":
        programs.change("cf-gateway", {"providerType": "x"})
    elif verb == "step_trigger":
        programs.create("trigger", "nightly", {"on": {"task": TASK}})
    elif verb in ("step_agent", "fail_agent", "save_checkpoint", "give_up", "stop_work"):
        if verb == "give_up":
            programs.start_task(TASK)
        programs.assign("researcher", TASK)

    def act(limited: Rights) -> Any:
        own = programs.acting_as((PERSON if verb in ("approve", "reject") else LOCAL).child(limited))
        owner = Similarity(own.ledger, Words()) if verb in SIMILARITY else own
        return getattr(owner, verb)(*positional, **arguments)

    return act


@pytest.fixture
def settled(world: Programs) -> Programs:
    world.ledger.record_turn(session="main", query="q")
    return world


def test_every_verb_needs_a_right() -> None:
    assert VERB_RIGHTS.keys() == {*EXPECTED, *LEASES, *SIMILARITY, *PENDING}


@pytest.mark.parametrize("verb", share(list(VERB_RIGHTS), test=14))
def test_a_verb_is_carried_out_with_the_right_and_refused_without(settled: Programs, verb: str) -> None:
    act, right = prepared(settled, verb), VERB_RIGHTS[verb]
    before = exported(settled.ledger)
    with pytest.raises(NotAllowed, match=f"program:[a-z]+:{right}"):
        act(rights(["*"], [f"program:*:{right}"]))
    with pytest.raises(NotAllowed):
        act(rights([]))
    assert exported(settled.ledger) == before
    act(rights(["program:*", "session:create", "machine:*"]))
    assert exported(settled.ledger) != before or verb in WITHOUT_EVENTS


def test_a_right_is_for_one_kind_of_program(settled: Programs) -> None:
    limited = settled.acting_as(LOCAL.child(rights(["program:code:configure"])))
    assert limited.create("code", "new", {"source": "x"}).state == "published"
    before = exported(settled.ledger)
    with pytest.raises(NotAllowed, match="program:agent:configure"):
        limited.create("agent", "other", {})
    with pytest.raises(NotAllowed, match="program:session:configure"):
        limited.create_session("other")
    with pytest.raises(NotAllowed, match="program:node:configure"):
        limited.create("code", "tagged", {"source": "x"}, tagged=["t"])
    assert exported(settled.ledger) == before


@pytest.mark.parametrize("permission", ["approve", "assign", "configure"])
def test_a_person_may_what_their_permissions_name(programs: Programs, permission: str) -> None:
    programs.create("human", "ann", {"permissions": [permission]})
    ann, request = programs.acting_as("ann"), programs.notify("ann", "may it?", asks=True).id
    deeds: dict[str, Callable[[], Any]] = {
        "approve": lambda: ann.approve(request),
        "assign": lambda: ann.assign("researcher", TASK),
        "configure": lambda: ann.create("code", "new", {"source": "x"}),
    }
    for needed, deed in deeds.items():
        if needed == permission:
            deed()
        else:
            with pytest.raises(NotAllowed):
                deed()
