"""What turns texts into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[float32]


class Embedder(Protocol):
    """A model of texts. Vectors of two models, or of two sizes, are never compared. `dimensions` may be 0 until the
    first text was embedded, where only the answer tells it."""

    name: str
    dimensions: int

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row of length 1 for each text."""
