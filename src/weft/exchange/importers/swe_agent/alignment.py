"""SWE-agent tells a run twice: `history` is what the model saw, `trajectory` what was done, step by step.

Neither holds all of it: an attempt that the model was asked to repeat is a step only, the outcome of the last step is
no message, and a trajectory edited by hand has other words. So both are laid side by side.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

Json = dict[str, Any]


class Pair(Struct, frozen=True):
    """A response and its step; one of them may be missing."""

    message: int | None
    step: int | None


def align(responses: list[tuple[int, Json]], steps: list[Json]) -> list[Pair]:
    """Responses with their places in the history, in order, against the steps, in order."""
    pairs: list[Pair] = []
    later_steps, later_responses = _places(steps, "response"), _places([each for _, each in responses], "content")
    at = step = 0
    while at < len(responses) and step < len(steps):
        place, message = responses[at]
        if _same(message, steps[step]):
            pairs.append(Pair(place, step))
            at, step = at + 1, step + 1
        elif _comes(later_steps, message.get("content"), after=step):
            pairs.append(Pair(None, step))
            step += 1
        elif _comes(later_responses, steps[step].get("response"), after=at):
            pairs.append(Pair(place, None))
            at += 1
        else:  # edited on one side: nothing else can stand for either
            pairs.append(Pair(place, step))
            at, step = at + 1, step + 1
    pairs += [Pair(place, None) for place, _ in responses[at:]]
    pairs += [Pair(None, number) for number in range(step, len(steps))]
    return pairs


def _same(message: Json, step: Json) -> bool:
    said, done = message.get("content"), step.get("response")
    if isinstance(said, str) and said and said == done:
        return True
    action = message.get("action")
    return isinstance(action, str) and bool(action.strip()) and action == step.get("action")


def _places(records: list[Json], name: str) -> dict[str, int]:
    """The last place of each text."""
    return {value: number for number, record in enumerate(records) if isinstance(value := record.get(name), str)}


def _comes(places: dict[str, int], words: Any, after: int) -> bool:
    return isinstance(words, str) and bool(words) and places.get(words, -1) > after
