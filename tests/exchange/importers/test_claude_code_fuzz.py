"""Lines with fields dropped, types swapped and bytes cut: no exception, and every record is counted."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from tests.exchange.fixtures.claude_code.lines import SESSION, read
from tests.exchange.fixtures.claude_code.story import story

ODD: tuple[Any, ...] = (None, True, 0, -1, 1.5, 2**70, "", "x", "p1", [], [None], {}, {"type": "text"}, [[]])


STORY = story().lines


def paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value of a JSON document lies."""
    found = [before] if before else []
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found += paths(inner, (*before, key))
    return found


PLACES = paths(STORY)


@st.composite
def damaged_stories(draw: st.DrawFn) -> bytes:
    lines = orjson.loads(orjson.dumps(STORY))
    for _ in range(draw(st.integers(1, 4))):
        *way, last = draw(st.sampled_from(PLACES))
        holder: Any = lines
        for key in way:
            holder = holder[key] if isinstance(holder, dict | list) and _has(holder, key) else None
        if not isinstance(holder, dict | list) or not _has(holder, last):
            continue
        if draw(st.booleans()):
            del holder[last]
        else:
            holder[last] = draw(st.sampled_from(ODD))
    order = draw(st.permutations(lines)) if draw(st.integers(0, 4)) == 0 else lines
    data = b"\n".join(_packed(line) for line in order)
    cut = draw(st.integers(0, len(data)))
    return data[:cut] if draw(st.booleans()) else data + b"\n"


def _has(holder: dict[Any, Any] | list[Any], key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else isinstance(key, int) and key < len(holder)


def _packed(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return repr(value).encode()


@given(damaged_stories())
def test_damaged_sessions_are_read_without_harm(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{SESSION}.jsonl"
        path.write_bytes(data)
        read(path)


@given(st.lists(st.integers(0, len(STORY) - 1), max_size=60), st.lists(st.integers(0, 40), max_size=60))
def test_any_tangle_of_parents_makes_turns(which: list[int], parents: list[int]) -> None:
    ids = [line["uuid"] for line in STORY if "uuid" in line]
    lines = [
        STORY[place] | ({"parentUuid": ids[parent % len(ids)]} if "uuid" in STORY[place] else {})
        for place, parent in zip(which, parents, strict=False)
    ]
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{SESSION}.jsonl"
        path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
        read(path)
