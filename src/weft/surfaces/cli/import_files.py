"""`weft import --watch --files DIR`: the folders that are kept when turns of other tools end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from weft.kernel.clock import SystemClock
from weft.surfaces.cli.turn_files_call import ledger_directories

if TYPE_CHECKING:
    from weft.exchange.importing.run import OnEnded
    from weft.ledger.api import Ledger
    from weft.runtime.resources.workspace_snapshots import KeptFolder


@contextmanager
def kept_folders(
    ledger: Ledger, folders: Sequence[str], report: Callable[[KeptFolder], None]
) -> Iterator[OnEnded | None]:
    """Who is to be told of turns that ended; None where no folder is named."""
    if not folders:
        yield None
        return
    from weft.runtime.resources.workspace_snapshots import FollowedFolders

    paths = [Path(folder) for folder in folders]
    with FollowedFolders(ledger, ledger_directories(ledger), paths, SystemClock(), report) as followed:
        yield followed.on_ended
