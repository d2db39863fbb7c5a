"""Smart routing on a labelled set from the corpus: how often the right thread is found, a wrong one, or none.

A route below the threshold is a refusal: the message goes to the fallback. The sweep shows what another threshold would
do with the same scores.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import NotMeasured, attempt, say
from benchmarks.plan import Sizes
from benchmarks.route_corpus import LEFT_OUT, MADE_UP_KIND, LabelledSet, Query, labelled_sets
from benchmarks.searching import Latency, latency
from benchmarks.texts import CORPUS, KeptVectors

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.programs.similarity import Similarity
    from weft.runtime.invoke.message_routes import RouteChoice

THRESHOLDS = (0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
ALTERNATIVES = 3


@dataclass(frozen=True, slots=True)
class Answered:
    """One query, with what was chosen without a threshold."""

    query: Query
    chosen: str | None
    """The session whose thread it is."""
    first_three: tuple[str | None, ...]
    confidence: float
    is_at_head: bool
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.query.session is not None and self.chosen == self.query.session


@dataclass(frozen=True, slots=True)
class Verdict:
    """All queries at one threshold."""

    threshold: float
    right: int
    wrong: int
    refused: int
    made_up_routed: int
    left_out_routed: int


@dataclass(frozen=True, slots=True)
class Routed:
    """One way to route, over all queries."""

    turns: int
    """In the ledgers together."""
    labelled: int
    made_up: int
    left_out: int
    recall_at_1: float
    recall_at_3: float
    at_head: float
    """Of the right threads, the share that is entered at the head, where the corpus went on."""
    cpu: Latency
    default: Verdict
    sweep: tuple[Verdict, ...]


def measure_routing(sizes: Sizes, directory: Path) -> dict[str, Routed | NotMeasured]:
    say("route held-out messages of the corpus")
    if not CORPUS.is_dir():
        return {"words": NotMeasured("no corpus lies beside the checkout")}
    place = directory / "routing"
    place.mkdir()
    sets = labelled_sets(CORPUS, place / "corpus.db", sizes.route_corpus, sizes.route_sets)
    near = sets[: sizes.route_vector_sets]
    return {
        "words": attempt(lambda: routed(sets, place / "words", None)),
        "words, first set": attempt(lambda: routed(near, place / "first", None)),
        "words and vectors, first set": attempt(lambda: routed(near, place / "vectors", directory.parent)),
    }


def routed(sets: list[LabelledSet], place: Path, kept: Path | None) -> Routed:
    """With vectors where `kept` says where they stay for the next run."""
    place.mkdir()
    answers = [
        answer for number, labelled in enumerate(sets) for answer in _answers(labelled, place / f"{number}.db", kept)
    ]
    return summary(answers, sum(len(labelled.recorded) for labelled in sets))


def summary(answers: list[Answered], turns: int) -> Routed:
    from weft.runtime.invoke.message_routes import DEFAULT_THRESHOLD

    asked = [answer for answer in answers if answer.query.session is not None]
    right = [answer for answer in asked if answer.is_right]
    return Routed(
        turns=turns,
        labelled=len(asked),
        made_up=sum(answer.query.kind == MADE_UP_KIND for answer in answers),
        left_out=sum(answer.query.kind == LEFT_OUT for answer in answers),
        recall_at_1=len(right) / len(asked),
        recall_at_3=sum(answer.query.session in answer.first_three for answer in asked) / len(asked),
        at_head=sum(answer.is_at_head for answer in right) / max(len(right), 1),
        cpu=latency([answer.seconds for answer in answers]),
        default=verdict(answers, DEFAULT_THRESHOLD),
        sweep=tuple(verdict(answers, threshold) for threshold in THRESHOLDS),
    )


def verdict(answers: list[Answered], threshold: float) -> Verdict:
    asked = [answer for answer in answers if answer.query.session is not None]
    routed_ones = [answer for answer in answers if answer.chosen is not None and answer.confidence >= threshold]
    right = sum(answer.is_right for answer in routed_ones)
    wrong = sum(not answer.is_right for answer in routed_ones if answer.query.session is not None)
    kinds = [answer.query.kind for answer in routed_ones]
    refused = len(asked) - right - wrong
    return Verdict(threshold, right, wrong, refused, kinds.count(MADE_UP_KIND), kinds.count(LEFT_OUT))


def _answers(labelled: LabelledSet, file: Path, kept: Path | None) -> list[Answered]:
    import weft
    from weft.kernel.clock import FixedClock

    clock = FixedClock(0)
    with weft.open(file, clock=clock) as ledger:
        for label, turn in labelled.recorded:
            clock.set(turn.at)
            calls = [
                {"name": tool or "tool", "arguments": arguments, "result": result}
                for tool, arguments, result in turn.calls
            ]
            ledger.record_turn(session=label, query=turn.query or "-", response=turn.response or "-", tool_calls=calls)
        ledger.upkeep.catch_up()
        similarity = None if kept is None else _embedded(ledger, kept)
        return [_answer(ledger, similarity, query, clock.now_ms()) for query in labelled.queries]


def _embedded(ledger: "Ledger", kept: Path) -> "Similarity":
    from weft.programs.similarity import MiniLM, Similarity

    model = MiniLM()
    similarity = Similarity(ledger, KeptVectors(model, kept / f"embeddings-{model.name}"))
    similarity.embed_missing("turn")
    return similarity


def _answer(ledger: "Ledger", similarity: "Similarity | None", query: Query, now_ms: int) -> Answered:
    from weft.runtime.invoke.message_routes import choose_route

    cosines: Mapping[str, float] = {} if similarity is None else similarity.nearest_turns(query.text)
    before = time.process_time()
    related = ledger.related_turns(query.text, also=tuple(cosines))
    choice = choose_route(related, cosines, now_ms=now_ms, threshold=0, limit=ALTERNATIVES)
    seconds = time.process_time() - before
    return Answered(
        query=query,
        chosen=choice.thread_session,
        first_three=_first_three(choice),
        confidence=choice.confidence,
        is_at_head=choice.session is not None,
        seconds=seconds,
    )


def _first_three(choice: "RouteChoice") -> tuple[str | None, ...]:
    others: list[Any] = [option.thread_session for option in choice.alternatives]
    return (choice.thread_session, *others)[:3]
