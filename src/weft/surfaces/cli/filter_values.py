"""Values of filters that nothing fits: a tool, a project or a model that is not known is told apart from one of which
nothing was found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from weft.ledger.api import Ledger

NO_PROJECT = "no project of that name is known: `weft projects` lists them"
NO_MODEL = "no model of that name is known: `weft usage --by model` lists them"


def ensure_known_origin(ledger: Ledger, origin: str | None, *, any_case: bool = False) -> None:
    """Refuse an `--origin` that found nothing and is neither a tool that is imported from nor one in the ledger."""
    if origin is None:
        return
    from weft.exchange.importers.port import importer_names
    from weft.ledger.api import HERE

    wanted = origin.casefold() if any_case else origin
    names = {HERE, *importer_names()}
    if wanted in names:
        return
    names |= {session.origin for session in ledger.sessions(every=True) if session.origin is not None}
    if wanted in ({name.casefold() for name in names} if any_case else names):
        return
    raise click.UsageError(
        f"--origin: no tool is called {origin!r:.80}; known are {', '.join(sorted(names))}",
        ctx=click.get_current_context(silent=True),
    )
