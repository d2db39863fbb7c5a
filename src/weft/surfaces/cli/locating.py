"""Which ledger is meant: named on the command line, in WEFT_LEDGER, or found as git finds its repository."""

from __future__ import annotations

import os
from pathlib import Path

from weft.kernel.errors import LedgerMissing
from weft.kernel.sites import Site

FOLDER, FILE = ".weft", "ledger.db"
VARIABLE = "WEFT_LEDGER"


def named_ledger(option: str | None) -> str | None:
    """What `--ledger` or else WEFT_LEDGER names; a folder stands for the ledger inside it."""
    name = option or os.environ.get(VARIABLE) or None
    if name is None or Site.of(name) is not Site.FILE:
        return name
    path = Path(os.path.expanduser(name))
    return str(path / FOLDER / FILE if os.path.isdir(path) else path)


def find_ledger(option: str | None) -> str:
    """The named ledger, or the nearest one in this folder or above it, or the user's own."""
    name = named_ledger(option)
    if name is not None:
        return name
    here = Path.cwd()
    for folder in (here, *here.parents):
        if os.path.isfile(folder / FOLDER / FILE):
            return str(folder / FOLDER / FILE)
    own = user_ledger()
    if os.path.isfile(own):
        return str(own)
    raise LedgerMissing(f"{here} or above it, nor at {own}")


def user_ledger() -> Path:
    data = os.environ.get("XDG_DATA_HOME", "")
    home = Path(data) if data.startswith("/") else Path("~/.local/share").expanduser()
    return home / "weft" / FILE


def user_cache() -> Path:
    """Where things lie that can be made again."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if cache.startswith("/") else Path("~/.cache").expanduser()
    return home / "weft"


def place_for(name: str) -> Path:
    """Where `weft init NAME` makes a ledger: in a folder, or the file itself if it looks like one."""
    path = Path(os.path.expanduser(name))
    looks_so = path.suffix in (".db", ".sqlite", ".sqlite3") and not os.path.isdir(path)
    is_file = looks_so or os.path.isfile(path)
    return path if is_file else path / FOLDER / FILE
