"""The vectors nearest to one: all of them looked at while they are few, an index of neighbours when they are many.

The index is a cache: it can be thrown away at any time, is brought up to date by what came since, and whatever it
proposes is measured again with the vectors themselves. It lies in a file where there is a place for it, so that the
next process need not build it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.store.private_files import create_private

if TYPE_CHECKING:
    from weft.programs.similarity.embedder import Vectors

FEW = 50_000
"""Up to here every vector is looked at: some milliseconds."""
CLOSE, LINKS, WIDTH_WHEN_BUILT, WIDTH = 4, 16, 128, 128
"""So many times more neighbours than wanted are asked for, and measured; how densely they are linked and searched."""
WAITING = 50
"""Of this many times fewer than `few`: so many new vectors are looked at one by one before the index takes them in and
is written again."""
ROOMY = 1.25
STALE, ROUNDED = 1.25, 0.01
"""How much bigger than needed an index may be; how far a half-precision copy of a vector may be off."""

Near = tuple[int, float]


class Space:
    """Vectors of one model. Each has a number that grows and is never given to another."""

    def __init__(self, dimensions: int, file: Path | None = None, few: int = FEW) -> None:
        import numpy as np

        self.dimensions, self._file, self._few = dimensions, file, few
        self._count = self._taken = 0
        self._room = np.zeros(0, np.int64), np.zeros((0, dimensions), np.float32)
        """Numbers and rows, with room at their ends: one vector more does not copy them all."""
        self._index: Any = None

    def __len__(self) -> int:
        return self._count

    @property
    def _numbers(self) -> Any:
        return self._room[0][: self._count]

    @property
    def _rows(self) -> Any:
        return self._room[1][: self._count]

    @property
    def last(self) -> int:
        return int(self._numbers[-1]) if len(self) else 0

    def add(self, numbers: Sequence[int], vectors: Vectors) -> None:
        """Vectors with higher numbers than all that are here."""
        import numpy as np

        start, end = self._count, self._count + len(numbers)
        if end > len(self._room[0]):
            size = max(end, int(ROOMY * start))
            room = np.zeros(size, np.int64), np.zeros((size, self.dimensions), np.float32)
            room[0][:start], room[1][:start] = self._numbers, self._rows
            self._room = room
        self._room[0][start:end], self._room[1][start:end] = numbers, vectors
        self._count = end

    def keep(self, numbers: Sequence[int]) -> None:
        """None but these: the others were taken away."""
        import numpy as np

        kept = np.isin(self._numbers, np.array(numbers, np.int64))
        self._room = self._numbers[kept], self._rows[kept]
        self._count = len(self._room[0])

    def nearest(self, vector: Vectors, limit: int) -> list[Near]:
        """Numbers and cosines, the nearest first."""
        if not len(self) or limit < 1:
            return []
        if len(self) <= self._few:
            return _best(self._numbers, self._rows @ vector, limit)
        among = self._proposed(vector, limit)
        return _best(self._numbers[among], self._rows[among] @ vector, limit)

    def _proposed(self, vector: Vectors, limit: int) -> Any:
        """Where the vectors are that the index takes for the nearest, and those that are not in it yet."""
        import numpy as np

        index = self._ensure_index()
        index.expansion_search = max(WIDTH, CLOSE * limit)
        keys = index.search(vector, CLOSE * limit).keys.astype(np.int64)
        places = np.searchsorted(self._numbers, keys)
        places = places[places < len(self)]
        known = np.intersect1d(places, places[np.isin(self._numbers[places], keys)])
        return np.concatenate([known, np.arange(self._indexed(), len(self))])

    def _indexed(self) -> int:
        """How many of the vectors the index has been given. It takes them in the order of their numbers."""
        import numpy as np

        return int(np.searchsorted(self._numbers, self._taken, "right"))

    def _ensure_index(self) -> Any:
        """The index with nearly every vector in it, and few that are gone."""
        import numpy as np

        if self._index is None:
            self._take(self._load() or _new_index(self.dimensions))
        if len(self._index) > STALE * len(self):
            self._take(_new_index(self.dimensions))
        known = self._indexed()
        if len(self) - known > self._few // WAITING:
            self._index.add(self._numbers[known:].astype(np.uint64), self._rows[known:])
            self._taken = self.last
            self._save()
        return self._index

    def _take(self, index: Any) -> None:
        self._index, self._taken = index, int(index.keys[: len(index)].max()) if len(index) else 0

    def _load(self) -> Any:
        """From its file; None where that is missing, damaged, or not of these vectors."""
        if self._file is None or not self._file.exists():
            return None
        index = _new_index(self.dimensions)
        try:
            index.load(str(self._file))
        except Exception:  # whatever is wrong with a cache, it is made anew
            return None
        return index if index.ndim == self.dimensions and self._fits(index) else None

    def _fits(self, index: Any) -> bool:
        """Are these the very vectors it was made of? Of another ledger's cache hardly one would be the same."""
        import numpy as np

        both = [k for k in (0, len(self) // 2, len(self) - 1) if index.contains(int(self._numbers[k]))]
        same = (index.get(int(self._numbers[k])).astype(np.float32) - self._rows[k] for k in both)
        return all(np.abs(difference).max() < ROUNDED for difference in same)

    def _save(self) -> None:
        """Written beside and renamed; without room for it the next process builds its own."""
        if self._file is None:
            return
        part = self._file.with_name(self._file.name + ".part")
        with suppress(OSError, RuntimeError):
            create_private(part)
            self._index.save(str(part))
            part.replace(self._file)


def _new_index(dimensions: int) -> Any:
    from usearch.index import Index

    return Index(
        ndim=dimensions, metric="ip", dtype="f16", connectivity=LINKS, expansion_add=WIDTH_WHEN_BUILT,
        expansion_search=WIDTH,
    )  # fmt: skip


def _best(places: Any, scores: Any, limit: int) -> list[Near]:
    """The highest scores; equal ones in the order of their places, whatever the engine's order was."""
    import numpy as np

    if len(scores) > limit:
        edge = np.partition(scores, -limit)[-limit]
        kept = np.flatnonzero(scores >= edge)
        places, scores = places[kept], scores[kept]
    order = np.lexsort((places, -scores))[:limit]
    return [(int(places[k]), float(scores[k])) for k in order]
