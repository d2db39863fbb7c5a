"""`weft import --watch --files DIR`: the folders that are kept when turns of other tools end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from weft.kernel.clock import SystemClock
from weft.surfaces.cli.resource_access import directory_driver, load_resource_settings

if TYPE_CHECKING:
    from weft.exchange.importing.intake import OnEnded
    from weft.ledger.api import Ledger
    from weft.runtime.resources.followed_folders import KeptFolder


@contextmanager
def kept_folders(
    ledger: Ledger, folders: Sequence[str], tell: Callable[[KeptFolder], None]
) -> Iterator[OnEnded | None]:
    """Who is to be told of turns that ended; None where no folder is named."""
    if not folders:
        yield None
        return
    from weft.runtime.resources.followed_folders import FollowedFolders

    driver = directory_driver(ledger.path, load_resource_settings().snapshots)
    paths = [Path(folder) for folder in folders]
    with FollowedFolders(ledger, driver, paths, SystemClock(), tell) as followed:
        yield followed.on_ended
