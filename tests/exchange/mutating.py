"""Documents with something else in some of their places: for importers, which must survive whatever they are given."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inner for found in places(each, (*path, key)))]


def changed(document: Any, changes: list[tuple[tuple[Any, ...], Any]]) -> Any:
    document = copy.deepcopy(document)
    for place, change in changes:
        target = document
        try:
            for key in place[:-1]:
                target = target[key]
            if change is None:
                del target[place[-1]]
            else:
                target[place[-1]] = change[0]
        except (KeyError, IndexError, TypeError):
            continue
    return document


def mutations(base: Any, least: int) -> st.SearchStrategy[list[tuple[tuple[Any, ...], Any]]]:
    spots = [place for place in places(base) if len(place) > least]
    change = st.none() | ODD.map(lambda value: (value,))
    return st.lists(st.tuples(st.sampled_from(spots), change), min_size=1, max_size=6)


@st.composite
def spoiled(draw: st.DrawFn, document: Any) -> Any:
    """The document with some of its values changed to others, or taken out."""
    return changed(document, draw(mutations(document, 0)))
