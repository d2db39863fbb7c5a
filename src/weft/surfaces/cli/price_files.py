"""Which prices hold: the user's own file before the table that is shipped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from weft.kernel.errors import InvalidInput
from weft.ledger.reports.prices import PriceTable, prices_from, shipped_prices

NAME = "prices.toml"


def prices_in_force(option: str | None) -> PriceTable:
    """The file that is named, else `prices.toml` of the config folder if there is one; what it leaves out is as
    shipped."""
    path = user_prices() if option is None else Path(os.path.expanduser(option))
    if option is None and not path.is_file():
        return shipped_prices()
    return prices_from(_loaded(path), str(path)).over(shipped_prices())


def user_prices() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME", "")
    home = Path(config) if config.startswith("/") else Path("~/.config").expanduser()
    return home / "weft" / NAME


def _loaded(path: Path) -> Any:
    """TOML, or JSON in a file whose name ends so."""
    data = path.read_bytes()
    try:
        if path.suffix == ".json":
            import json

            return json.loads(data)
        import tomllib

        return tomllib.loads(data.decode())
    except ValueError as error:  # what both say of a text that is not theirs, and of one that is no text
        raise InvalidInput(f"{path}: {error}", "docs/usage.md shows how prices are written") from None
