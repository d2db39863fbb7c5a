"""Which model embeds, and how similar nodes are told apart on a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.program_call import acting_person, complete_programs

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.programs.lookups import Node
    from weft.programs.similarity import ModelCount, Similarity

F = TypeVar("F", bound=Callable[..., Any])
EMBEDDED_KINDS = ("turn", "message", "session", "program")


def by_model(function: F) -> F:
    return click.option(
        "--model",
        metavar="NAME",
        shell_complete=complete_programs("model"),
        help="A model program at an OpenAI-compatible provider, in place of the model that comes with Weft.",
    )(function)


@contextmanager
def similarity(call: Call, ledger: Ledger, model: str | None = None) -> Iterator[Similarity]:
    """By the model that needs no network, or by the one that a program names, in the name of the person here."""
    from weft.programs.similarity import Similarity

    if model is None:
        from weft.programs.minilm import MiniLM

        yield Similarity(ledger, MiniLM())
        return
    from weft.programs import Programs
    from weft.runtime.assembly.turn_configuration import model_settings
    from weft.runtime.inference.plain_requests import FarEmbedder

    ledger.trust.ensure("send its texts to a server")
    programs = Programs(ledger)
    find, person = programs.get, acting_person(call, programs)
    configured = model_settings(find(model, "model"), find, os.environ.get, person)
    with FarEmbedder(configured.model, configured.context) as embedder:
        yield Similarity(ledger, embedder)


def nearest_turns(call: Call, ledger: Ledger, text: str) -> dict[str, float]:
    """Turns with their cosines, by the model that comes with Weft; none, and no model is loaded, where nothing was
    embedded with it or what it needs is not installed."""
    from weft.programs.minilm import NAME
    from weft.programs.similarity import has_vectors

    if find_spec("numpy") is None or not has_vectors(ledger, NAME):
        return {}
    with similarity(call, ledger) as index:
        return index.nearest_turns(text)


def counted(ledger: Ledger) -> list[ModelCount]:
    """Without loading a model."""
    from weft.programs.minilm import NAME
    from weft.programs.similarity import count_vectors

    return count_vectors(ledger, NAME)


def about(ledger: Ledger, node: Node) -> str:
    """What a node says, in one line."""
    from weft.kernel.errors import InvalidInput
    from weft.ledger.read.session_list import in_one_line
    from weft.programs import Programs
    from weft.programs.similarity import text_of_node

    try:
        return in_one_line(text_of_node(Programs(ledger), node.kind, node.id))
    except InvalidInput:  # it has none of its own
        return ""
