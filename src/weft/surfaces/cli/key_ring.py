"""Where keys lie, and how a passphrase is asked for. It is held no longer than the key is opened, and never shown."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.kernel.errors import InvalidKey

if TYPE_CHECKING:
    from weft.exchange.bundles.keys import KeyRing, Signer

VARIABLE = "WEFT_KEY_PASSPHRASE"


def key_ring() -> KeyRing:
    from weft.exchange.bundles.keys import KeyRing

    config = os.environ.get("XDG_CONFIG_HOME", "")
    home = Path(config) if config.startswith("/") else Path("~/.config").expanduser()
    return KeyRing(home / "weft" / "keys")


def new_passphrase() -> str:
    """Asked for twice; from the environment where nobody is there."""
    found = os.environ.get(VARIABLE) or None
    if found is None and sys.stdin.isatty():
        found = click.prompt("passphrase", hide_input=True, confirmation_prompt=True, err=True)
    if not found:
        raise InvalidKey("there is no passphrase", f"say it on a terminal, or in {VARIABLE}")
    return found


def open_signer(name: str) -> Signer:
    """A private key, with the passphrase that it wants, if any."""
    ring, passphrase = key_ring(), None
    if ring.is_sealed(name):
        passphrase = os.environ.get(VARIABLE) or None
        if passphrase is None and sys.stdin.isatty():
            passphrase = click.prompt(f"passphrase of {name}", hide_input=True, err=True)
    return ring.signer(name, passphrase)


def complete_keys(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The names of one's own keys. A shell in the middle of a line wants names or nothing."""
    try:
        return [key.name for key in key_ring().own() if key.name.startswith(incomplete)]
    except (InvalidKey, OSError):
        return []
