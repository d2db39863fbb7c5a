"""Finding what means nearly the same, among as many real vectors as the bar says.

Texts of the corpus beside the checkout become messages of a ledger, and each gets its vector by the verb that everybody
uses. Then texts that are not in the ledger are looked for: how long the search takes, how long the whole call with
embedding the text, and how many of the ten nearest are those that a look at every vector finds.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import NotMeasured, attempt, say
from benchmarks.plan import Sizes
from benchmarks.searching import Latency, latency
from benchmarks.texts import CORPUS, KeptVectors, kept_pieces

if TYPE_CHECKING:
    from weft.ledger.api.ledger import Ledger
    from weft.programs.similarity import Similarity

NEAREST = 10
MESSAGES = 100
"""In a turn."""
SESSIONS = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """One way to search, over all texts that were looked for."""

    wall: Latency
    cpu: Latency
    found: tuple[tuple[str, ...], ...]
    """The nearest nodes to each text."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Searches among so many vectors."""

    vectors: int
    store_cpu_seconds: float
    """To read every text, store its vector and tell of it in an event; making the vector is not counted."""
    first_cpu_seconds: float
    """The first search of all: the vectors are loaded, the index is built and written."""
    again_cpu_seconds: float
    """The first search of a process that finds the index."""
    wall: dict[str, Latency]
    cpu: dict[str, Latency]
    recall: float
    """Of the ten nearest, the share that a look at every vector finds too."""


def measure_similarity(sizes: Sizes, directory: Path) -> dict[str, Compared | NotMeasured]:
    say(f"similarity among {sizes.similar_nodes:,} vectors")
    name = f"{sizes.similar_nodes:,} vectors"
    if not CORPUS.is_dir():
        return {name: NotMeasured("no corpus lies beside the checkout")}
    place = directory / "similarity"
    place.mkdir()
    return {name: attempt(lambda: compared(sizes, place, directory.parent))}


def compared(sizes: Sizes, place: Path, kept: Path) -> Compared:
    """`kept` is where texts and vectors stay for the next run."""
    import weft
    from weft.programs.similarity import MiniLM, Similarity

    model = MiniLM()
    texts = kept_pieces(kept, sizes.similar_nodes + sizes.similar_queries, sizes.similar_corpus)
    stored, asked = texts[: sizes.similar_nodes], texts[sizes.similar_nodes :]
    known = KeptVectors(model, kept / f"embeddings-{model.name}")
    known.ensure(texts)
    few = sizes.similar_nodes // 2
    with weft.open(place / "ledger.db") as ledger:
        say("store them")
        _record(ledger, stored)
        store = _cpu(lambda: Similarity(ledger, known).embed_missing("message"))
        say("ask")
        first = _cpu(lambda: Similarity(ledger, known, few=few).find_similar_to_text(asked[0]))
        search, whole = Similarity(ledger, known, few=few), Similarity(ledger, model, few=few)
        again = _cpu(lambda: search.find_similar_to_text(asked[0]))
        ways = {
            "search": _ask(search, asked),
            "embed and search": _ask(whole, asked),
            "exact": _ask(Similarity(ledger, known, few=10 * sizes.similar_nodes), asked),
        }
    return Compared(
        len(stored), store, first, again,
        {name: way.wall for name, way in ways.items()},
        {name: way.cpu for name, way in ways.items()},
        _recall(ways["search"].found, ways["exact"].found),
    )  # fmt: skip


def _record(ledger: "Ledger", texts: Sequence[str]) -> None:
    """Every text is a message of its own."""
    for start in range(0, len(texts), MESSAGES):
        first, *more = texts[start : start + MESSAGES]
        response = [{"role": "assistant", "content": text} for text in more]
        ledger.record_turn(session=f"session {start // MESSAGES % SESSIONS}", query=first, response=response)


def _ask(similarity: "Similarity", texts: Sequence[str]) -> Asked:
    """The first answer is not counted: it finds nothing loaded."""
    similarity.find_similar_to_text(texts[0], limit=NEAREST)
    walls, cpus, found = [], [], []
    for text in texts:
        cpu, wall = time.process_time(), time.perf_counter()
        near = similarity.find_similar_to_text(text, limit=NEAREST)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        found.append(tuple(one.node.id for one in near))
    return Asked(latency(walls), latency(cpus), tuple(found))


def _recall(found: Sequence[tuple[str, ...]], exact: Sequence[tuple[str, ...]]) -> float:
    there = sum(len({*some} & {*all_}) for some, all_ in zip(found, exact, strict=True))
    return there / sum(map(len, exact))


def _cpu(action: Callable[[], object]) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before
