"""Whom a message is for that mentions nobody: chosen by the triage agent's model, else by words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import Struct

import weft
from tests.ledger.rooms import Cast, cast
from tests.runtime.invoking import Bench, as_tester, run
from tests.runtime.scripted import HANG, Script, chat_saying, failure
from weft.chat.triage import (
    NOBODY_FITS,
    CandidateReader,
    Candidates,
    ProfileIndex,
    TriageChoice,
    TriagePlanner,
    best_fitting,
    choose_by_answer,
    choose_by_scores,
    profile_of,
    triage_prompt,
)
from weft.kernel.message_text import mentioned
from weft.ledger.api import Ledger, ReachedAgent, RoomMessage
from weft.ledger.model import Turn
from weft.programs import Programs
from weft.programs.similarity import MINILM, Similarity
from weft.runtime.broker.broker import Broker
from weft.runtime.invoke.invocation import ConfiguredPlanner, sender_context


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


TRIAGE_MODEL = {"defaultModel": "fast"}


class TriageBench(Struct, frozen=True):
    """A room of alice and bob with helper and reviewer, and a broker that triages."""

    bench: Bench
    people: Cast
    broker: Broker
    room: str

    @property
    def ledger(self) -> Ledger:
        return self.people.ledger

    async def post(self, text: str, name: str = "alice") -> list[ReachedAgent]:
        """Post in somebody's name and have the triage agent answer; whom the message reached then."""
        posted = await self.bench.shop.across(lambda: self.people.ledger_of(name).rooms.post(self.room, text))
        (triage,) = posted.reached
        assert triage.name == "triage"
        await self.broker.wait_for_answer(triage.message, triage.session_id)
        return await self.bench.shop.across(lambda: self.ledger.rooms.pending(self.room, posted.message))

    async def names(self, text: str, name: str = "alice") -> list[str]:
        return [one.name for one in await self.post(text, name)]

    def said(self) -> list[RoomMessage]:
        """What the triage agent said."""
        return [one for one in self.ledger.rooms.messages(self.room, limit=100) if one.author_name == "triage"]

    def turn(self) -> Turn:
        return self.ledger.turn(self.said()[-1].meta["turn"])

    def listed(self, number: int = -1) -> str:
        """What the triage agent's model was told."""
        return str(self.bench.server.received[number].body["messages"][0]["content"])


TriageBody = Callable[[TriageBench], Awaitable[None]]


def triaged(
    path: Path,
    body: TriageBody,
    *scripts: Script,
    model: dict[str, Any] | None = TRIAGE_MODEL,
    seconds: float = 20.0,
    agents: tuple[str, ...] = ("helper", "reviewer", "secret"),
) -> None:
    async def main(bench: Bench) -> None:
        ledger = bench.programs.ledger
        planner = ConfiguredPlanner(
            bench.programs,
            bench.shop.ledger,
            bench.shop.inference,
            variable={"THERE_KEY": "key"}.get,
            acting=lambda message: sender_context(as_tester(), bench.programs, message),
        )

        def prepared() -> tuple[Cast, str]:
            people = cast(ledger)
            own = Programs(people.ledger_of("bob"))
            own.create("agent", "bookkeeper", {"description": "writes invoices and checks taxes"}, tagged=["billing"])
            own.create("agent", "spy", {"description": "taxes invoices zebras", "visibility": "private"})
            alice = people.ledger_of("alice")
            room = alice.rooms.create("plans", agents=list(agents), people=["bob"]).id
            if model is not None:
                bench.programs.configure("triage", model)
            return people, room

        people, room = await bench.shop.across(prepared)
        crossing = bench.shop.ledger.crossing
        triage = TriagePlanner(planner, ledger, crossing, bench.shop.inference, seconds=seconds)
        await body(TriageBench(bench, people, Broker(ledger, crossing, triage, is_streamed=True), room))

    run(path, main, *scripts or [failure(500)])


def saying(text: str) -> Script:
    return chat_saying({"content": text})


# --- without a model -------------------------------------------------------------------------------------------------


def test_without_a_model_names_tags_and_descriptions_decide_and_the_turn_says_how(path: Path) -> None:
    async def body(room: TriageBench) -> None:
        assert await room.names("please review this code") == ["reviewer"]
        said = room.said()[-1]
        assert said.text == room.people.mention("reviewer")
        turn = room.turn()
        assert (turn.model, turn.effective_config["triage"]["way"]) == ("words", "words")
        assert turn.effective_config["triage"]["agents"] == [room.people.ids["reviewer"]]
        scores = turn.effective_config["triage"]["scores"]
        assert (scores[0]["name"], scores[0]["words"]) == ("reviewer", ["code", "review"])
        answer = list(room.ledger.thread(turn.id).messages)[-1]
        assert answer.metadata["triage"]["way"] == "words"
        assert "Chosen by words: reviewer." in str(answer.content[0])
        # somebody absent comes in by a tag, in the author's name, and answers the message itself
        (reached,) = await room.post("there is a problem with my billing")
        assert reached.name == "bookkeeper"
        message = room.ledger.inbox.get(reached.message)
        assert (message.sender, str(message.content[-1].text)) == (  # type: ignore[union-attr]
            room.people.ids["alice"],
            "there is a problem with my billing",
        )
        assert await room.names("reviewer and bookkeeper, who of you checks invoices and reviews code?") == [
            "bookkeeper",
            "reviewer",
        ]
        assert room.bench.server.received == []

    triaged(path, body, model=None)


def test_where_nobody_fits_it_says_so_and_how_to_mention_somebody(path: Path) -> None:
    async def body(room: TriageBench) -> None:
        assert await room.post("qwertz asdf") == []
        assert room.said()[-1].text == NOBODY_FITS
        assert mentioned(NOBODY_FITS) == ()
        assert room.turn().effective_config["triage"]["agents"] == []
        # what is private and absent is never chosen, whoever asks
        assert await room.post("zebras", "bob") == []
        assert "spy" not in str(room.turn().effective_config)

    triaged(path, body, model=None)


def test_the_only_agent_of_a_room_is_asked_where_nobody_scores(path: Path) -> None:
    async def body(room: TriageBench) -> None:
        assert await room.names("qwertz asdf") == ["helper"]
        assert room.turn().effective_config["triage"]["way"] == "only agent"
        assert await room.names("check my taxes") == ["bookkeeper"]

    triaged(path, body, model=None, agents=("helper",))


def test_a_private_agent_is_chosen_for_those_alone_that_it_works_for(path: Path) -> None:
    async def body(room: TriageBench) -> None:
        assert await room.names("secret, what is the plan?") == ["secret"]
        assert await room.post("secret, what is the plan?", "bob") == []
        assert "secret" not in str(room.turn().effective_config["triage"])

    triaged(path, body, model=None)


def test_what_agents_become_is_taken_into_account(path: Path) -> None:
    async def body(room: TriageBench) -> None:
        own = Programs(room.people.ledger_of("alice"))
        assert await room.post("prune the roses") == []
        await room.bench.shop.across(lambda: own.create("agent", "gardener", {"description": "roses"}))
        assert await room.names("prune the roses") == ["gardener"]
        await room.bench.shop.across(lambda: own.add_tags("helper", "tulips"))
        assert await room.names("plant tulips") == ["helper"]
        await room.bench.shop.across(lambda: own.configure("reviewer", {"identity": {"soul": "You know orchids."}}))
        assert await room.names("water the orchids") == ["reviewer"]
        await room.bench.shop.across(lambda: own.delete("gardener"))
        assert await room.post("prune the roses") == []

    triaged(path, body, model=None)


# --- with a model ----------------------------------------------------------------------------------------------------


def test_a_model_chooses_and_its_words_are_not_repeated(path: Path) -> None:
    async def body(room: TriageBench) -> None:
        ids = room.people.ids
        room.bench.server.scripts = [saying(f"{ids['helper']}\n{ids['helper']}")]
        assert await room.names("please review this code") == ["helper"]
        assert room.said()[-1].text == room.people.mention("helper")
        answer = list(room.ledger.thread(room.turn().id).messages)[-1]
        assert (answer.model, answer.metadata["triage"]["way"]) == ("m-1", "model")
        # several, as JSON; one of them is absent and public
        books = Programs(room.ledger).get("bookkeeper").id
        room.bench.server.scripts = [saying(f'["{ids["reviewer"]}", "{books}"]')]
        assert await room.names("please review this code") == ["reviewer", "bookkeeper"]
        # the request is recorded as it was sent, and tells nothing that was said before
        sent = [(one["role"], one["content"]) for one in room.bench.server.received[-1].body["messages"]]
        assert [role for role, _ in sent] == ["system", "user"]
        assert '"name":"reviewer","present":true,"description":"reviews code","tags":[]' in sent[0][1]
        assert str(sent[1][1]).count("please review this code") == 1

    triaged(path, body)


def test_private_agents_of_others_are_not_told_to_the_model_and_no_private_agent_is_described(path: Path) -> None:
    async def body(room: TriageBench) -> None:
        room.bench.server.scripts = [saying("NONE")]
        assert await room.post("hello", "alice") == []
        assert "spy" not in room.listed()
        assert '"name":"secret","present":true}' in room.listed()
        assert "triage" not in room.listed()
        assert await room.post("hello", "bob") == []
        assert "secret" not in room.listed()
        assert "spy" not in room.listed()

    triaged(path, body)


@pytest.mark.parametrize(
    ("answer", "failure_of_model"),
    [
        (saying("I would ask the reviewer, who knows about it."), "its answer is no list of candidates"),
        (saying("01ARZ3NDEKTSV4RRFFQ69G5FAV"), "its answer is no list of candidates"),
        (saying("@[helper](agent:01ARZ3NDEKTSV4RRFFQ69G5FAV)"), "its answer is no list of candidates"),
        (saying(""), None),
        (failure(500), "provider_failed"),
        (failure(401), None),
        ([HANG], "it took longer than 0.3 s"),
    ],
)
def test_where_the_model_fails_or_says_anything_else_words_decide(
    path: Path, answer: Script, failure_of_model: str | None
) -> None:
    async def body(room: TriageBench) -> None:
        assert await room.names("please review this code") == ["reviewer"]
        answer = list(room.ledger.thread(room.turn().id).messages)[-1]
        triage = answer.metadata["triage"]
        assert (triage["way"], triage["agents"]) == ("words", [room.people.ids["reviewer"]])
        assert triage["failure"] == failure_of_model or failure_of_model is None
        assert room.said()[-1].text == room.people.mention("reviewer")
        assert [one.notice for one in room.ledger.rooms.messages(room.room) if one.notice == "error"] == []

    triaged(path, body, answer, seconds=0.3 if answer == [HANG] else 20.0)


def test_a_model_that_is_configured_wrongly_is_no_reason_to_fail(path: Path) -> None:
    async def body(room: TriageBench) -> None:
        wrong = {**TRIAGE_MODEL, "defaultModelConfig": {"situation": "unheard of"}}
        await room.bench.shop.across(lambda: room.bench.programs.configure("triage", wrong))
        assert await room.names("please review this code") == ["reviewer"]
        assert room.turn().effective_config["triage"]["failure"] == "invalid_input"
        assert room.bench.server.received == []

    triaged(path, body)


def candidates(*names: str, present: int = 2, text: str = "words") -> Candidates:
    ids = {name: f"{number:026d}" for number, name in enumerate(names)}
    profiles = {id: profile_of(id, name, "", ()) for name, id in ids.items()}
    here = frozenset(list(ids.values())[:present])
    scores = ProfileIndex(profiles.values()).scores(text, profiles.keys(), here, {})
    return Candidates(profiles=profiles, present=here, private=frozenset(), scores=tuple(scores), by_vectors=False)


def test_of_an_answer_only_ids_of_candidates_are_taken() -> None:
    known = candidates("a", "b", "c", "d", "e")
    ids, by_scores, unknown = list(known.profiles), choose_by_scores(known), "9" * 26
    assert by_scores.agents == ()

    def chosen(answer: str) -> tuple[str, ...] | None:
        choice = choose_by_answer(answer, known, by_scores)
        return tuple(name for _, name in choice.agents) if choice.failure is None else None

    assert chosen(f"{ids[1]}, {unknown}; {ids[0]}") == ("b", "a")
    assert chosen("\n".join(ids)) == ("a", "b", "c")
    assert chosen(f"- `{ids[4]}`\n- `{ids[4]}`.") == ("e",)
    assert chosen(" none. ") == ()
    assert chosen(unknown) is None
    assert chosen(f"Not {ids[0]} but {ids[1]}") is None
    assert chosen(f"{ids[0]} {ids[1].lower()}x") is None
    assert chosen("") is None
    assert choose_by_answer("NONE", candidates("a", "b", present=1), by_scores).agents == (("0" * 26, "a"),)


def test_the_prompt_lists_a_bounded_number_of_candidates_those_present_first() -> None:
    many = candidates(*(f"agent {number}" for number in range(90)), present=3, text="agent 77 please")
    lines = triage_prompt(many).split("\n\n", 1)[1].split("\n")
    assert len(lines) == 40
    assert [f'"present":{"true" if number < 3 else "false"}' in line for number, line in enumerate(lines)] == [
        True
    ] * 40
    assert any('"name":"agent 77"' in line for line in lines)


def test_vectors_count_where_agents_have_them() -> None:
    index = ProfileIndex([profile_of("1", "gardener", "plants", ()), profile_of("2", "cook", "recipes", ())])
    scores = index.scores("how do roses grow?", {"1", "2"}, {"1", "2"}, {"1": 0.6, "2": 0.1, "3": 0.9})
    assert [(one.name, one.cosine) for one in scores] == [("gardener", 0.6), ("cook", 0.1)]
    assert [one.name for one in best_fitting(scores)] == ["gardener"]
    assert best_fitting(index.scores("how do roses grow?", {"1", "2"}, {"1", "2"}, {})) == ()


class WordEmbedder:
    """Texts about plants point one way, all others another."""

    name, dimensions = MINILM, 2

    def embed(self, texts: Sequence[str]) -> Any:
        rows = [(1.0, 0.0) if "rose" in text or "plant" in text else (0.0, 1.0) for text in texts]
        return np.array(rows, np.float32)


def test_vectors_of_agents_that_were_embedded_are_compared(path: Path) -> None:
    with weft.open(path) as ledger:
        people, embedder = cast(ledger), WordEmbedder()
        gardener = Programs(ledger).create("agent", "gardener", {"description": "knows all plants"}).id
        room = people.ledger_of("alice").rooms.create("plans", agents=["helper", "reviewer"]).id
        label = next(one.session for one in ledger.rooms.participants(room) if one.name == "triage")
        session = ledger.session(str(label)).id
        reader = CandidateReader(ledger, embedder)

        def choice(text: str) -> TriageChoice:
            return choose_by_scores(reader.candidates(session, 0, [[people.ids["alice"]]], text))

        assert (choice("how do roses grow?").way, choice("how do roses grow?").agents) == ("words", ())
        similarity = Similarity(ledger, embedder)
        similarity.embed("gardener")
        similarity.embed("secret")
        found = choice("how do roses grow?")
        assert (found.way, found.agents) == ("words and vectors", ((gardener, "gardener"),))
        assert [one.name for one in found.scores] == ["gardener"]
        # several messages that are triaged together go to those who work for all of their authors
        alice, bob = [people.ids["alice"]], [people.ids["bob"]]
        people.ledger_of("alice").rooms.add(room, "secret")
        assert "secret" in [one.name for one in reader.candidates(session, 0, [alice], "").profiles.values()]
        assert "secret" not in [one.name for one in reader.candidates(session, 0, [alice, bob], "").profiles.values()]
