"""Rooms: what it costs to suggest whom `@` means, to find out for whom a message is, and to say something in a room
that has grown, each in CPU time."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import NotMeasured, attempt, say
from benchmarks.plan import Sizes
from benchmarks.searching import Latency, latency

if TYPE_CHECKING:
    from weft.ledger.api import Ledger

QUERIES = ("", "a", "re", "ma", "rin", "xq", "code", "two w", "zzzzz", "a e o")
WORDS = 3_000
MESSAGE_WORDS = 40


@dataclass(frozen=True, slots=True)
class RoomCosts:
    """CPU time of one operation, and how many names, agents or messages there were."""

    size: int
    cpu: Latency


def measure_rooms(sizes: Sizes, directory: Path) -> dict[str, RoomCosts | NotMeasured]:
    say("suggest names, triage messages, post to rooms")
    place = directory / "rooms"
    place.mkdir()
    costs: dict[str, RoomCosts | NotMeasured] = {
        "suggestion": attempt(lambda: suggestion_costs(place / "names.db", sizes)),
        "triage without a model": attempt(lambda: triage_costs(place / "agents.db", sizes)),
    }
    both = attempt(lambda: message_costs(place / "messages.db", sizes))
    names = ("message in an empty room", "message in a full room")
    return costs | dict(zip(names, both if isinstance(both, tuple) else (both, both), strict=True))


def suggestion_costs(path: Path, sizes: Sizes) -> RoomCosts:
    """In the name of a person, half of the names agents and half people."""
    import weft
    from weft.chat.room_stream import MentionSuggester
    from weft.programs import Programs

    speech = _Words(seed=1)
    with weft.open(path) as ledger:
        programs = Programs(ledger)
        programs.create("human", "the person", {})
        for number in range(sizes.room_names):
            programs.create("agent" if number % 2 else "human", f"{speech.some(2)} {number}", {})
        person = ledger.acting_as("the person")
        room = person.rooms.create("room").id
        suggester = MentionSuggester(person)
        suggester.suggest(room, "")
        cpu = [_cpu(partial(suggester.suggest, room, text)) for text in QUERIES * sizes.room_operations]
    return RoomCosts(sizes.room_names, latency(cpu))


def triage_costs(path: Path, sizes: Sizes) -> RoomCosts:
    """From a message to whom it is for, with what agents are compared by read before."""
    import weft
    from weft.chat.triage import CandidateReader, choose_by_scores
    from weft.programs import Programs

    speech = _Words(seed=2)
    with weft.open(path) as ledger:
        programs = Programs(ledger)
        for number in range(sizes.triage_agents):
            config = {"description": speech.some(20), "soul": speech.some(60)}
            programs.create("agent", f"{speech.some(1)} {number}", config, tagged=speech.some(3).split())
        room = ledger.rooms.create("room").id
        label = next(one.session for one in ledger.rooms.participants(room) if one.name == "triage")
        session, reader = ledger.session(str(label)).id, CandidateReader(ledger)

        def triage() -> None:
            choose_by_scores(reader.candidates(session, 0, [()], speech.some(MESSAGE_WORDS)))

        triage()
        cpu = [_cpu(triage) for _ in range(10 * sizes.room_operations)]
    return RoomCosts(sizes.triage_agents, latency(cpu))


def message_costs(path: Path, sizes: Sizes) -> tuple[RoomCosts, RoomCosts]:
    """A message that mentions an agent, and its answer without a model: in a new room with this agent alone, and in one
    of many agents and messages. They take turns."""
    import weft
    from weft.kernel.message_text import write_mention
    from weft.programs import Programs

    speech = _Words(seed=3)
    with weft.open(path) as ledger:
        programs = Programs(ledger)
        agents = [programs.create("agent", f"agent {number}", {}) for number in range(sizes.room_agents)]
        person = programs.create("human", "the person", {})
        mention, aside = write_mention("agent", agents[0].id, agents[0].name), write_mention("user", person.id, "them")
        empty = ledger.rooms.create("empty", agents=[agents[0].name], people=["the person"]).id
        full = ledger.rooms.create("full", agents=[agent.name for agent in agents], people=["the person"]).id
        for _ in range(sizes.room_messages):
            ledger.rooms.post(full, f"{aside} {speech.some(MESSAGE_WORDS)}")

        def exchange(room: str) -> None:
            posted = ledger.rooms.post(room, f"{mention} {speech.some(MESSAGE_WORDS)}")
            _answer(ledger, posted.reached[0].session_id, speech.some(MESSAGE_WORDS))

        cpu: dict[str, list[float]] = {empty: [], full: []}
        for room in (empty, full):
            exchange(room)  # what was missed comes with the first one
        for _ in range(10 * sizes.room_operations):
            for room, seconds in cpu.items():
                seconds.append(_cpu(partial(exchange, room)))
    return RoomCosts(0, latency(cpu[empty])), RoomCosts(sizes.room_messages, latency(cpu[full]))


def _answer(ledger: "Ledger", session: str, text: str) -> None:
    """What a broker records of a turn with one answer."""
    from weft.kernel.enums import MessageRole
    from weft.kernel.events import ModelRequest
    from weft.ledger.api import FinishedRun, ModelAnswered, ModelAsked, Runs
    from weft.ledger.model import NewMessage

    runs = Runs(ledger)
    standing = runs.standing(session)
    writer, _ = runs.begin(
        session, expected=(standing.head, standing.head_events), messages=[one.id for one in standing.queued]
    )
    request = writer.record([ModelAsked(model="m")]).events[-1]
    assert isinstance(request.event, ModelRequest)
    message = NewMessage(role=MessageRole.ASSISTANT, content=text)
    answer = ModelAnswered(message=message, correlation=request.event.correlation_id, request=request.id)
    writer.record([answer, FinishedRun()])


def _cpu(action: Callable[[], object]) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before


class _Words:
    """Made-up words, the same in every run."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._words = [self._word() for _ in range(WORDS)]

    def _word(self) -> str:
        syllables = self._chance.choices("ma re ti co de ru lan rin sol ve ka po".split(), k=self._chance.randint(2, 4))
        return "".join(syllables)

    def some(self, count: int) -> str:
        return " ".join(self._chance.choices(self._words, k=count))
