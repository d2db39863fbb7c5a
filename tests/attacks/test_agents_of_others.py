"""Somebody with the right to configure, at the programs of others: nothing changes without a right that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import weft
from weft.kernel.clock import FixedClock
from weft.kernel.errors import NotAllowed
from weft.ledger.api import Ledger
from weft.programs import Programs
from weft.programs.program_changes import wanted_in

NOON = 1_794_700_800_000


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with weft.open(":memory:", clock=FixedClock(NOON)) as ledger:
        yield ledger


CHANGES: dict[str, Callable[[Programs, str], Any]] = {
    "change": lambda programs, name: programs.change(name, {"identity": {"soul": "mine now"}}),
    "configure": lambda programs, name: programs.configure(name, {"systemPrompt": "mine now"}),
    "revert": lambda programs, name: programs.revert(name, 1),
    "show": lambda programs, name: programs.change(name, {"visibility": "public"}),
    "hide": lambda programs, name: programs.change(name, {"visibility": "private"}),
    "tag": lambda programs, name: programs.add_tags(name, "t"),
    "apply": lambda programs, name: programs.apply(
        wanted_in({"id": name, "programType": "agent", "config": {"systemPrompt": "mine now"}}, "here")
    ),
    "prune": lambda programs, _: programs.apply(
        wanted_in({"id": "other", "programType": "agent", "config": {}}, "here"), prune=True
    ),
    "session": lambda programs, name: programs.create_session("of it", owner=name),
    "give": lambda programs, name: programs.create_session("its", config={"owner": f"@({name})"}),
    "delete": lambda programs, name: programs.delete(name),
}


def with_agents(ledger: Ledger) -> Programs:
    programs = Programs(ledger)
    for name in ("ann", "bob"):
        programs.create("human", name, {"permissions": ["configure", "assign"]})
    config = {"systemPrompt": "a"}
    programs.acting_as("bob").apply(wanted_in({"id": "bobs", "programType": "agent", "config": config}, "here"))
    programs.apply(wanted_in({"id": "owners", "programType": "agent", "config": config}, "here"))
    for name in ("bobs", "owners"):
        programs.change(name, {"identity": {"soul": "b"}})
    return programs


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("agent", ["bobs", "owners"])
def test_a_right_to_configure_without_a_name_changes_no_agent_of_anothers(ledger: Ledger, how: str, agent: str) -> None:
    programs = with_agents(ledger)
    before = (programs.get(agent), programs.history(agent))
    with pytest.raises(NotAllowed):
        pytest.fail(f"ann did: {CHANGES[how](programs.acting_as('ann'), agent)}")
    assert (programs.get(agent), programs.history(agent)) == before


@pytest.mark.parametrize("name", ["bob", "local", "eve"])
def test_the_creator_the_owner_and_whoever_has_a_right_that_names_it_change_an_agent(ledger: Ledger, name: str) -> None:
    programs = with_agents(ledger)
    programs.create("human", "eve", {"permissions": ["configure", "configure(bob*)"]})
    acting = programs.acting_as(name)
    for how, change in CHANGES.items():
        if how not in ("prune", "delete", "hide"):
            change(acting, "bobs")
    assert programs.get("bobs").config["identity"]["soul"] == "mine now"
    acting.delete("its")
    acting.delete("of it")
    assert acting.delete("bobs").deleted


def test_what_an_agent_was_made_by_is_told_by_the_log_and_not_by_a_field(ledger: Ledger) -> None:
    programs = with_agents(ledger)
    programs.change("bobs", {"createdBy": "ann"})
    with pytest.raises(NotAllowed):
        programs.acting_as("ann").delete("bobs")


@pytest.mark.parametrize("pattern", ["configure(own*)", "configure(?)", "configure(BOBS)", "configure(bobs*er)"])
def test_a_right_that_names_others_does_not_reach_an_agent(ledger: Ledger, pattern: str) -> None:
    programs = with_agents(ledger)
    programs.create("human", "eve", {"permissions": [pattern, "configure"]})
    for how, change in CHANGES.items():
        if how != "prune":
            with pytest.raises(NotAllowed):
                pytest.fail(f"eve did {how}: {change(programs.acting_as('eve'), 'bobs')}")


def test_programs_of_other_kinds_are_changed_by_those_who_made_them(ledger: Ledger) -> None:
    programs = with_agents(ledger)
    ann, bob = programs.acting_as("ann"), programs.acting_as("bob")
    ann.create("code", "hers", {"source": "1"})
    ann.create("task", "job", {"title": "T"})
    ann.create("information", "note", {"infoType": "fact", "content": 1}, draft=True)
    ann.create("trigger", "nightly", {"on": {"task": "job"}, "message": "m"})
    attempts: tuple[Callable[[Programs], Any], ...] = (
        lambda one: one.change("hers", {"source": "2"}),
        lambda one: one.deprecate("hers"),
        lambda one: one.validate("note"),
        lambda one: one.step_trigger("nightly", "pause"),
        lambda one: one.change("job", {"title": "U"}),
        lambda one: one.delete("job"),
    )
    for attempt in attempts:
        with pytest.raises(NotAllowed):
            attempt(bob)
    programs.delete("nightly")
    ann.create("trigger", "nightly", {"on": {"task": "job"}, "message": "m"})
    for attempt in attempts:
        attempt(ann)
