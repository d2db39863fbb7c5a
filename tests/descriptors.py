"""What this process has open."""

import os
from contextlib import suppress
from pathlib import Path


def open_below(folder: Path) -> list[str]:
    """The files and folders below this one, or it itself, that a descriptor is open for. What other tests and threads
    have open comes and goes meanwhile, and counts for nothing."""
    targets: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # it was closed meanwhile, as that of the listing is
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
    return [target for target in targets if Path(target).is_relative_to(folder.resolve())]
