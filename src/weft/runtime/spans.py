"""What the runtime does, as spans that somebody may trace: turns, requests to models, calls of tools.

Nothing is traced unless the process says who traces; then those who run within it are, by their context variables. A
span has names, counts and codes, and nothing that was said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol

SpanValue = str | int | float | bool | list[str]


class TracedSpan(Protocol):
    """Something under way."""

    def set(self, attributes: Mapping[str, SpanValue]) -> None:
        """What became known of it."""


class SpanTracer(Protocol):
    """Whoever is told of spans. A span that ends with an exception failed."""

    def span(
        self, operation: str, about: str, attributes: Mapping[str, SpanValue]
    ) -> AbstractContextManager[TracedSpan]:
        """`operation`: of the conventions for generative AI, such as `chat`; `about`: which model or tool."""


class _NoSpan:
    def set(self, attributes: Mapping[str, SpanValue]) -> None:
        """Nobody is told."""


_NOTHING = _NoSpan()
tracer: ContextVar[SpanTracer | None] = ContextVar("weft_tracer", default=None)


@contextmanager
def span(operation: str, about: str = "", attributes: Mapping[str, SpanValue] | None = None) -> Iterator[TracedSpan]:
    """Tell whoever traces of what is done inside."""
    current = tracer.get()
    if current is None:
        yield _NOTHING
        return
    with current.span(operation, about, attributes or {}) as begun:
        yield begun
