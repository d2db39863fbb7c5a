"""Documents with fields dropped, types swapped, bytes cut or put in: what every importer must bear."""

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st

Way = tuple[Any, ...]
Change = tuple[Way, tuple[Any] | None]

ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: Way = ()) -> list[Way]:
    """Every place in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inner for found in places(each, (*path, key)))]


def changes(document: Any) -> st.SearchStrategy[list[Change]]:
    """A few places whose value goes or becomes another."""
    found = [place for place in places(document) if place]
    value = st.none() | ODD.map(lambda value: (value,))
    return st.lists(st.tuples(st.sampled_from(found), value), min_size=1, max_size=6)


def changed(document: Any, what: list[Change]) -> Any:
    found = copy.deepcopy(document)
    for place, change in what:
        target = found
        try:
            for key in place[:-1]:
                target = target[key]
            if change is None:
                del target[place[-1]]
            else:
                target[place[-1]] = change[0]
        except (KeyError, IndexError, TypeError):
            continue
    return found


def either(*documents: Any) -> st.SearchStrategy[Any]:
    """One of these documents, with changes."""

    def one(document: Any) -> st.SearchStrategy[Any]:
        return changes(document).map(lambda what: changed(document, what))

    return st.one_of(*map(one, documents))


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def as_lines(values: list[Any]) -> bytes:
    return b"".join(as_json(value) + b"\n" for value in values)


def torn(data: bytes) -> st.SearchStrategy[bytes]:
    """Bytes put in, taken out, or cut off."""
    at, gone = st.integers(0, len(data)), st.integers(0, 200)
    junk = st.binary(max_size=4)
    return st.builds(lambda place, some, size: data[:place] + some + data[place + size :], at, junk, gone) | at.map(
        lambda end: data[:end]
    )


@contextmanager
def written(data: bytes, name: str) -> Iterator[Path]:
    """A file of its own for every example."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        yield path
