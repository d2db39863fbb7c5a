"""The turns that every store is given: the same texts, none twice, one tool call in each.

A turn is a query of about 200 bytes, one tool call with a result of about 1.5 KB, and a response of about
600 bytes. Texts are random words from a fixed seed: a store that keeps equal contents once gains nothing.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

QUERY_BYTES, RESULT_BYTES, RESPONSE_BYTES = 200, 1500, 600
MESSAGES_PER_TURN = 4  # query, the call, its result, response

_WORDS = (
    "ledger turn fork branch commit head session thread message token tool result query answer model "
    "file path line error value index table column row page cache lock read write open close build test "
    "deploy server client request reply queue worker task event record field name type list first last "
    "before after between under above because should would could again never always often quickly slowly"
).split()


@dataclass(frozen=True, slots=True)
class Turn:
    """One finished turn, before any store has seen it."""

    number: int
    query: str
    response: str
    result: str
    call: str
    tool: str = "read_file"
    model: str = "benchmark-model"

    @property
    def arguments(self) -> dict[str, str]:
        return {"path": f"src/part_{self.number}.py", "mode": "text"}

    @property
    def usage(self) -> dict[str, int]:
        return {"input_tokens": 900 + self.number % 100, "output_tokens": 150}


def turns(start: int = 0, seed: int = 7) -> Iterator[Turn]:
    """Turns without end; the same ones for the same start and seed."""
    for number in count(start):
        words = random.Random(seed * 1_000_003 + number)
        yield Turn(
            number,
            query=_text(words, QUERY_BYTES),
            response=_text(words, RESPONSE_BYTES),
            result=_text(words, RESULT_BYTES),
            call=f"call_{seed}_{number}",
        )


def some_turns(amount: int, seed: int = 7) -> list[Turn]:
    return list(islice(turns(seed=seed), amount))


def _text(words: random.Random, size: int) -> str:
    picked = words.choices(_WORDS, k=size // 5)
    return " ".join(picked)[:size]
