"""Sees whether what covers a file or folder of the workspace is still on it while a command runs.

A mount lies on a file, not on a name. An editor that writes a file anew and renames it to its place takes the cover
away: the new file is seen by the command that runs. Nothing in the sandbox can do that, so whoever does is outside and
means no harm; but the command must not go on. Whoever runs it asks `uncovered` again and again, and once more at its
end.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from weft.kernel.errors import StoreFailed
from weft.runtime.sandbox.processes import StartAgain

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class CoverWatch:
    """Holds what is covered open: the number of a file that is gone would be given to the next one. Close it."""

    def __init__(self, places: Iterable[str]) -> None:
        """Before it is looked from inside whether they are covered. Raises StartAgain where one is gone."""
        self._names: dict[int, str] = {}
        place = ""
        try:
            for place in places:
                descriptor = os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                self._names[descriptor] = _present_path(descriptor)
        except OSError as error:
            self.close()
            if error.errno in _GONE:
                raise StartAgain(f"{place} was moved") from None
            raise StoreFailed(
                f"what is hidden from the command cannot be watched: {error.strerror}", "close some files"
            ) from None

    def uncovered(self) -> str | None:
        """A path that another file has now, or none. What is moved with a folder above it takes its cover along."""
        for descriptor, path in self._names.items():
            present = _present_path(descriptor)
            if present != path:
                if os.path.basename(present) != os.path.basename(path):  # also where it is gone: then it says so
                    return path
                self._names[descriptor] = present
        return None

    def close(self) -> None:
        while self._names:
            os.close(self._names.popitem()[0])


def _present_path(descriptor: int) -> str:
    """Where a file lies now, as the kernel says it."""
    return os.readlink(f"/proc/self/fd/{descriptor}")
