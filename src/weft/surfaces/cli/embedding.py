"""Which model embeds, and how similar nodes are told apart on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from weft.ledger.ledger import Ledger
    from weft.programs.nodes import Node
    from weft.programs.similarity.similarity import ModelCount, Similarity

F = TypeVar("F", bound=Callable[..., Any])
EMBEDDED_KINDS = ("turn", "message", "session", "program")


def similarity(ledger: Ledger) -> Similarity:
    from weft.programs.similarity.minilm import MiniLM
    from weft.programs.similarity.similarity import Similarity

    return Similarity(ledger, MiniLM())


def counted(ledger: Ledger) -> list[ModelCount]:
    """Without loading a model."""
    from weft.programs.similarity.minilm import NAME
    from weft.programs.similarity.similarity import count_vectors

    return count_vectors(ledger, NAME)


def about(ledger: Ledger, node: Node) -> str:
    """The first line of what a node says."""
    from weft.kernel.errors import InvalidInput
    from weft.ledger.subjects import first_line
    from weft.programs import Programs
    from weft.programs.similarity.texts import text_of_node

    try:
        return first_line(text_of_node(Programs(ledger), node.kind, node.id))
    except InvalidInput:  # it has none of its own
        return ""
