"""Options of the commands that bring turns from one session to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec import UNSET, UnsetType

if TYPE_CHECKING:
    from weft.ledger.api.ledger import Ledger

expected_option = click.option(
    "--expected", metavar="REV", help="Only if the session's head is this turn; else nothing is done."
)
key_option = click.option(
    "--key", metavar="KEY", help="A name for this command: repeated with it, it does nothing more."
)


def expected_head(ledger: Ledger, rev: str | None) -> str | UnsetType:
    return UNSET if rev is None else ledger.resolve(rev)
