"""Random histories of rooms, held against a plain model: who works for whom, who reads what, who is reached."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.ledger.histories import problems
from tests.ledger.rooms import answer
from tests.sizes import PROVING
from weft.kernel.clock import FixedClock
from weft.kernel.errors import NotAllowed, NotApplicable, NotFound
from weft.kernel.message_text import write_mention
from weft.ledger.api import Ledger, Runs
from weft.programs import Programs

PEOPLE = ("ann", "ben", "cat")
AGENTS = ("open-a", "open-b", "shut-a", "shut-b")
ROOMS = ("one", "two")


class World:
    """A ledger, and beside it what a reader of the rules expects."""

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self.ledger, self.random = ledger, Random(seed)
        programs = Programs(ledger)
        self.ids = {name: programs.create("human", name, {}).id for name in PEOPLE}
        self.users: dict[str, set[str]] = {}
        self.private: set[str] = set()
        for place, name in enumerate(AGENTS):
            owner = PEOPLE[place % len(PEOPLE)]
            config = {"visibility": "private"} if name.startswith("shut") else {}
            self.ids[name] = Programs(ledger.acting_as(owner)).create("agent", name, config).id
            self.users[name] = {self.ids[owner], self.ids[name]}
            if config:
                self.private.add(name)
        self.owners = {name: PEOPLE[place % len(PEOPLE)] for place, name in enumerate(AGENTS)}
        self.names = {id: name for name, id in self.ids.items()}
        self.members: dict[str, dict[str, list[list[int | None]]]] = {room: {} for room in ROOMS}
        self.checked = 0

    def works_for(self, agent: str, principals: set[str]) -> bool:
        return agent not in self.private or principals <= self.users[agent] | {"local"}

    def mention(self, name: str) -> str:
        return write_mention("user" if name in PEOPLE else "agent", self.ids[name], name)

    def words(self) -> str:
        names = self.random.choices([*PEOPLE, *AGENTS], k=self.random.randint(0, 4))
        return " ".join(["say", *(self.mention(name) for name in names)])

    # --- what happens --------------------------------------------------------------------------------------------

    def step(self) -> None:
        deed = self.random.choice(
            [self.post] * 5 + [self.reply] * 5 + [self.invite, self.leave, self.add, self.remove, self.share, self.hide]
        )
        with suppress(NotAllowed, NotApplicable, NotFound):
            deed()
        self.check()

    def begin(self) -> None:
        for room, person in zip(ROOMS, PEOPLE, strict=False):
            self.ledger.acting_as(person).rooms.create(room, history="joined")
            self.members[room][person] = [[0, None]]

    def somebody(self, room: str) -> str:
        present = [name for name, spans in self.members[room].items() if spans[-1][1] is None and name in PEOPLE]
        return self.random.choice(present or list(PEOPLE))

    def post(self) -> None:
        room = self.random.choice(ROOMS)
        self.ledger.acting_as(self.random.choice(PEOPLE)).rooms.post(room, self.words())

    def reply(self) -> None:
        runs = Runs(self.ledger)
        waiting = runs.waiting()
        if waiting:
            label = runs.standing(self.random.choice(waiting).session).label
            answer(self.ledger, label.rpartition(":")[2], self.words(), session=label)

    def invite(self) -> None:
        room, person = self.random.choice(ROOMS), self.random.choice(PEOPLE)
        self.ledger.acting_as(self.somebody(room)).rooms.invite(room, person)

    def leave(self) -> None:
        room, person = self.random.choice(ROOMS), self.random.choice(PEOPLE)
        self.ledger.acting_as(person).rooms.leave(room)

    def add(self) -> None:
        room = self.random.choice(ROOMS)
        self.ledger.acting_as(self.somebody(room)).rooms.add(room, self.random.choice(AGENTS))

    def remove(self) -> None:
        room = self.random.choice(ROOMS)
        self.ledger.acting_as(self.somebody(room)).rooms.remove(room, self.random.choice([*PEOPLE, *AGENTS]))

    def share(self) -> None:
        agent, person = self.random.choice(AGENTS), self.random.choice(PEOPLE)
        programs = Programs(self.ledger.acting_as(self.owners[agent]))
        if self.ids[person] in self.users[agent] and person != self.owners[agent]:
            programs.unshare_agent(agent, person)
            self.users[agent].discard(self.ids[person])
        else:
            programs.share_agent(agent, person)
            self.users[agent].add(self.ids[person])

    def hide(self) -> None:
        agent = self.random.choice(AGENTS)
        is_private = agent in self.private
        config = {} if is_private else {"visibility": "private"}
        Programs(self.ledger.acting_as(self.owners[agent])).configure(agent, config)
        (self.private.discard if is_private else self.private.add)(agent)

    # --- what holds ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Whatever entered an inbox by this step did so for an agent that works for everybody in whose name it was."""
        for message in self.ledger.inbox.list(states=("queued", "taken"), limit=1000, after=self.checked):
            agent = message.session.rpartition(":")[2]
            if agent != "triage":
                assert self.works_for(agent, {message.sender, *message.on_behalf_of}), (agent, message)
            self.checked = message.n


def expected_reading(ledger: Ledger, room: str, person: str) -> list[int]:
    """By the memberships as the owner of the ledger sees them, and the system's words for coming and going."""
    positions: list[int] = []
    is_there = False
    for message in ledger.rooms.messages(room, limit=1000):
        mine = f"](user:{person})" in message.text and message.kind == "system"
        if mine and message.notice == "joined":
            is_there = True
        if is_there:
            positions.append(message.position)
        if mine and message.notice in ("left", "removed"):
            is_there = False
            positions.pop()  # it is said after they have gone
    return positions


@pytest.mark.slow("takes forty random steps in each of eight ledgers")
@pytest.mark.parametrize("steps", [40])
@settings(max_examples=500 if PROVING else 8)
@given(seed=st.integers(0, 2**32))
def test_no_agent_is_reached_from_outside_its_visibility_and_nobody_reads_what_is_not_theirs(
    steps: int, seed: int
) -> None:
    with weft.open(":memory:", clock=FixedClock(1_794_700_800_000)) as ledger:
        world = World(ledger, seed)
        world.begin()
        for _ in range(steps):
            world.step()
        for room, founder in zip(ROOMS, PEOPLE, strict=False):
            answered: dict[tuple[str | None, str | None], int] = {}
            for message in ledger.rooms.messages(room, limit=1000):
                if message.meta.get("answers") and message.kind == "participant":
                    key = (message.meta["answers"], message.author_id)
                    answered[key] = answered.get(key, 0) + 1
            assert all(count == 1 for count in answered.values())
            for person in PEOPLE:
                if person == founder:
                    continue
                read: list[int] = []
                with suppress(NotFound):
                    messages = ledger.acting_as(person).rooms.messages(room, limit=1000)
                    read = [message.position for message in messages]
                assert read == expected_reading(ledger, room, world.ids[person])
        assert problems(ledger) == []
